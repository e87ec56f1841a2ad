"""Loaded by every Python that the tmux server of a row starts: in a runner, record what its agent says."""

import os
import sys

if os.environ.get("TRUTH_TAP") and "baton.sessions.runner" in sys.orig_argv:
    from record_runner import record

    record(os.environ["TRUTH_TAP"])
