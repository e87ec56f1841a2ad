"""Remove the histories of jobs that ended long ago."""

import os
import re
from collections.abc import Iterator

from baton.core.clock import parse_time
from baton.core.fields import JOB_ID
from baton.core.job import TERMINAL
from baton.history.log import EVENTS, META, STATUS, job_log_path, read_object
from baton.storage.removal import entries_of, remove_known

# Also what an interrupted replacement of one of them left.
_OURS = re.compile("|".join(re.escape(name) for name in (EVENTS, META, STATUS)) + r"|\.[a-z]+\.[0-9a-f]{8}\.tmp")


def ended_logs(logs_dir: str, before_ns: int) -> Iterator[str]:
    """Yield the ids of the jobs whose history says that they have ended, and has not changed since that time."""
    for _, entry in entries_of(logs_dir, JOB_ID):
        head = read_object(os.path.join(entry.path, STATUS)) or {}
        if isinstance(head.get("n"), int) and head.get("status") in TERMINAL and _is_before(head, before_ns):
            yield entry.name


def _is_before(head: dict[str, object], before_ns: int) -> bool:
    try:
        return parse_time(str(head.get("updated_at"))) < before_ns
    except ValueError:
        return False


def remove_log(job_id: str, logs_dir: str, *, dry_run: bool = False) -> int:
    """Remove the history of a job; return how much of the disk it took. OSError if baton did not write all of it: then
    the rest stays."""
    return remove_known(job_log_path(job_id, logs_dir), _OURS, dry_run=dry_run)
