"""What an agent's own hooks tell, made into events. Runs inside the agent's session, as a program of its own for each
message; whatever goes wrong here must never trouble the agent."""

from __future__ import annotations

import json
import os
import time

from baton.adapters import find_agent
from baton.core.errors import BatonError, NotVerified
from baton.core.job import TERMINAL
from baton.jobs.verbs import open_jobs
from baton.sessions.instructions import mark
from baton.sessions.inventory import Inventory
from baton.sessions.processes import MARKER
from baton.storage.files import open_private, replace_file, write_all
from baton.transport.publish import publish_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

    from baton.adapters.contract import Agent, Signal
    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.session import Session

_PROGRESS_EVERY_SEC: Final = 5.0
_REFUSALS: Final = 3


def hook(settings: Settings, agent_name: str, message: Mapping[str, Any]) -> str | None:
    """Takes one message; returns what the hook answers the agent, if anything."""
    folder = os.environ.get("BATON_SESSION_DIR")
    session_id = os.environ.get(MARKER)
    if folder is None or session_id is None:
        return None  # the agent was not started by us
    agent = find_agent(settings, agent_name)
    told = agent.read_hook(message)
    if told is None:
        return None
    inventory = Inventory(settings)
    session = inventory.find(session_id)
    if session is None:
        return None
    if told.conversation_id and told.conversation_id != session.conversation_id:
        session = inventory.remember_conversation(session, told.conversation_id)
    if session.job_id is None:
        return None
    with open_jobs(settings) as jobs:
        return _tell(settings, jobs, folder, session, agent, message, told)


def _tell(
    settings: Settings,
    jobs: Jobs,
    folder: str,
    session: Session,
    agent: Agent,
    message: Mapping[str, Any],
    told: Signal,
) -> str | None:
    assert session.job_id is not None
    job = jobs.get_job(session.job_id)
    if job.status in TERMINAL:
        return None
    over = told.finished is not None or told.failed is not None
    if over and session.made_for != job.job_id and not agent.conversation_contains(message, mark(job)):
        return None  # a turn about something else, which had begun before
    if told.permission is not None:
        _publish(settings, jobs, job, "permission_required", told.permission)
    elif told.progress is not None:
        if _due(folder):
            _publish(settings, jobs, job, "progress", told.progress)
    elif told.failed is not None:
        _publish(settings, jobs, job, "error", told.failed)
    elif told.finished is not None:
        return _finish(settings, jobs, folder, job, agent, message, told.finished)
    return None


def _finish(
    settings: Settings, jobs: Jobs, folder: str, job: Job, agent: Agent, message: Mapping[str, Any], words: str
) -> str | None:
    """The agent thinks it is done. If its work does not hold, it is sent back to mend it, a few times."""
    try:
        _publish(settings, jobs, job, "completed", words)
        return None
    except NotVerified as error:
        path = os.path.join(folder, f"refusals-{job.job_id}-{job.attempt}")
        count = _counted(path)
        answer = agent.refusal(message, str(error)) if count < _REFUSALS else None
        if answer is None:
            _publish(settings, jobs, job, "error", error.why)
            return None
        replace_file(path, str(count + 1).encode(), durable=False)
        return answer


def _publish(settings: Settings, jobs: Jobs, job: Job, event: str, detail: str) -> None:
    publish_event(jobs, settings, job.job_id, event, detail=detail, attempt=job.attempt, tries=1)


def _due(folder: str) -> bool:
    """Whether the last progress is long enough ago: an agent uses many tools in a minute."""
    path = os.path.join(folder, "progress")
    try:
        if time.time() - os.stat(path).st_mtime < _PROGRESS_EVERY_SEC:
            return False
    except FileNotFoundError:
        pass
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    os.utime(path)
    return True


def _counted(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def note(error: Exception) -> None:
    """Where somebody who wonders can look; the agent's screen is not ours to write on."""
    folder = os.environ.get("BATON_SESSION_DIR")
    if folder is None:
        return
    text = str(error) if isinstance(error, BatonError) else f"{type(error).__name__}: {error}"
    try:
        fd = open_private(os.path.join(folder, "hook.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(fd, "wb") as file:
            write_all(file.fileno(), (json.dumps({"at": time.time(), "error": text}) + "\n").encode())
    except OSError:
        pass  # the disk is full, or the session is gone
