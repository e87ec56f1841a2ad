"""Record an event of a job and send it: as a program, or by `publish_event(job_id, event, detail=..., data=...)`."""

from __future__ import annotations

import sys

try:
    from baton import publish_event
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"publish_event.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

__all__ = ["publish_event"]

if __name__ == "__main__":
    from baton.cli.main import run

    sys.argv.insert(1, "publish")
    run()
