"""Use the job registry: as a program (register, list, get, status, pick, cancel, logs), or as a module.

Every function takes, as keywords, where to look: `registry_dir`, `home`, `registry` (a url), `logs_dir`. Each is one
transaction. `baton` has the same functions with more fields, and returns jobs in place of ids and records.
"""

from __future__ import annotations

import sys

try:
    import baton
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"registry.py: {error} in {sys.executable}; pip install tmux-baton, or use the baton command")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def register_job(prompt: str, **fields: Any) -> str:
    """Register a pending job and return its id; `fields` are those of `baton.register_job`."""
    return baton.register_job(prompt, **fields).job_id


def get_job(job_id: str, **where: Any) -> dict[str, Any]:
    """Return the record of a job, secrets hidden; raise baton.JobNotFound."""
    return baton.get_job(job_id, **where).public()


def list_jobs(**where: Any) -> list[dict[str, Any]]:
    """Return the records of all jobs, newest first, secrets hidden."""
    with baton.open_jobs(**where) as jobs:
        return [job.public() for job in jobs.each_job()]


def pick_pending(agent_session: str, **where: Any) -> str | None:
    """Claim the next pending job of the queue and return its id; None when there is none."""
    job = baton.pick_pending(agent_session, **where)
    return None if job is None else job.job_id


def update_status(job_id: str, status: str, **where: Any) -> dict[str, Any]:
    """Set a status that may follow the present one, and return the record; raise baton.IllegalTransition otherwise."""
    return baton.update_status(job_id, status, **where).public()


def next_seq(job_id: str, **where: Any) -> int:
    """Take the job's next event number without recording an event."""
    return baton.next_seq(job_id, **where)


if __name__ == "__main__":
    from baton.cli.main import run

    run()
