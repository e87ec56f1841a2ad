"""Print the events of jobs. Exit with 0 completed, 1 error, 2 timed out, 4 cancelled."""

from __future__ import annotations

import sys

try:
    from baton.cli.main import run
except ImportError as error:
    sys.exit(f"job_subscriber.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

sys.argv.insert(1, "subscribe")
run()
