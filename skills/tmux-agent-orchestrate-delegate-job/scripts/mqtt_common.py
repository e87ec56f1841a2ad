"""Write and read the audit logs of jobs, from scripts. A module only: it is no program."""

from __future__ import annotations

import sys

try:
    import baton
    from baton import (
        append_event,
        init_job_log,
        iter_logged_events,
        job_log_path,
        list_logged_jobs,
        read_logged_meta,
        read_logged_status,
        update_logged_status,
    )
    from baton import update_status as update_job_status
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"mqtt_common.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

__all__ = [  # and LOGS_DIR
    "TERMINAL_EVENTS", "append_event", "init_job_log", "iter_logged_events", "job_log_path",
    "list_logged_jobs", "read_logged_meta", "read_logged_status", "update_job_status", "update_logged_status",
]  # fmt: skip
TERMINAL_EVENTS = frozenset({"completed", "error"})


def __getattr__(name: str) -> str:
    if name == "LOGS_DIR":  # of the folder in which it is asked for
        return baton.LOGS_DIR
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit("mqtt_common.py is a module; run registry.py, publish_event.py or job_subscriber.py")
