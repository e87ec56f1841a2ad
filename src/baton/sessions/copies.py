"""Separate a copy of a home from its original: sessions and running jobs belong to the original."""

import os
import time

from baton.config import Settings
from baton.core.clock import format_time
from baton.core.errors import BatonError, RegistryUnavailable
from baton.core.job import Status
from baton.jobs.verbs import open_jobs
from baton.live_agents.record import new_generation_id
from baton.registry import leaves, registry_url
from baton.registry.contract import JobFilter
from baton.sessions.inventory import Inventory
from baton.sessions.processes import ProcessId, command_line
from baton.sessions.session import Session, State
from baton.storage.inspection import FoundSession

_REASON = "this home is a copy: the original has the session"


def runs_elsewhere(home: str, sessions: list[FoundSession]) -> bool:
    """Return whether one of these sessions runs from another home that exists, of which this one is a copy. BatonError
    if one runs from a folder that is gone: it was moved while the agent worked in it."""
    found = False
    for session in sessions:
        folder = folder_of_runner(session)
        if folder is None or folder == os.path.join(home, "sessions", session.session_id):
            continue
        if not os.path.isdir(folder):
            raise BatonError(
                f"session {session.name} still runs (process {session.pane_pid}), but {folder} is gone; end it first, "
                "nothing was changed"
            )
        found = True
    return found


def folder_of_runner(session: FoundSession) -> str | None:
    """Return the folder in the command line of the session's runner; None if it has ended."""
    if session.pane_pid is None or session.pane_started is None:
        return None
    words = command_line(ProcessId(pid=session.pane_pid, started=session.pane_started))
    return next((word for word in words if word.endswith(f"/sessions/{session.session_id}")), None)


def end_copied_work(home: str, host: str) -> None:
    """Cancel the running jobs of a copied home, drop its unsent events and archive its sessions. Nothing is sent, and
    no process is touched: the original reports and stops its own."""
    settings = _settings_of(home, host)
    if _has_own_registry(settings):
        _end_jobs(settings)
    inventory = Inventory(settings)
    now = format_time(time.time_ns())

    def archive(session: Session) -> Session:
        """Return the session without its process, and with a generation of its own: the name is the original's."""
        running = session.state is State.RUNNING
        ended = {"state": State.ARCHIVED, "reason": _REASON, "ended_at": now, "updated_at": now} if running else {}
        return session.replace(
            pane_id=None,
            pane_pid=None,
            pane_started=None,
            job_id=None,
            stop_requested=None,
            stopper=None,
            generation_id=new_generation_id(),
            **ended,
        )

    for session in inventory.all():
        inventory.change(session, archive)


def upgrade_registry(home: str, host: str) -> None:
    """Bring a registry of 0.1.0 to the present schema, also with running jobs: the processes that ran them have ended,
    or the home could not have been moved."""
    settings = _settings_of(home, host)
    if _has_own_registry(settings):
        with open_jobs(settings) as jobs:
            jobs.registry.upgrade(force=True)


def _settings_of(home: str, host: str) -> Settings:
    settings = Settings({}, env={})
    settings.home, settings.host = home, host
    settings.registry_dir = os.path.join(home, "jobs")
    settings.logs_dir = os.path.join(home, "delegate_job_logs")
    return settings


def _has_own_registry(settings: Settings) -> bool:
    """Return whether the jobs are in this home. Otherwise another home may use them, too."""
    try:
        url = registry_url(settings)
    except RegistryUnavailable:
        return False  # a migration has moved them out of the home
    return not leaves(url, settings.home) and os.path.isdir(settings.registry_dir)


def _end_jobs(settings: Settings) -> None:
    with open_jobs(settings) as jobs:
        jobs.registry.upgrade(force=True)
        for job in list(jobs.each_job(JobFilter(statuses=[Status.RUNNING]))):
            jobs.update_status(job.job_id, Status.CANCELLED, reason="this home is a copy: the original runs the job")
        while unsent := jobs.unsent_events():
            for event in unsent:
                jobs.mark_sent(event.job_id, [event.seq])
