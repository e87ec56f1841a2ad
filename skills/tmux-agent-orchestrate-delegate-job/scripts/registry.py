"""Use the job registry: register, list, get, status, pick, cancel, logs."""

from __future__ import annotations

import sys

try:
    from baton.cli.main import run
except ImportError as error:
    sys.exit(f"registry.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

run()
