"""Record an event of a job and send it."""

from __future__ import annotations

import sys

try:
    from baton.cli.main import run
except ImportError as error:
    sys.exit(f"publish_event.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

sys.argv.insert(1, "publish")
run()
