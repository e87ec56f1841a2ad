"""Print the events of jobs. Exit with 0 completed, 1 error, 2 timed out, 4 cancelled.

As a module: `for event in subscribe(job_id): ...`.
"""

from __future__ import annotations

import sys

try:
    from baton import subscribe
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"job_subscriber.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

__all__ = ["subscribe"]

if __name__ == "__main__":
    from baton.cli.main import run

    sys.argv.insert(1, "subscribe")
    run()
