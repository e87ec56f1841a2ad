"""Report what an agent's own hooks say. Each message of a hook runs this as a program inside the agent's session."""

import json
import os
import time
from collections.abc import Mapping
from functools import partial

from baton.adapters import find_agent
from baton.adapters.contract import Agent
from baton.config import Settings
from baton.core.errors import BatonError, NotVerified
from baton.core.facts import one_line
from baton.core.job import TERMINAL, Job
from baton.jobs.caller import MARKER
from baton.jobs.output import OutputWriter
from baton.jobs.verbs import open_jobs
from baton.sessions.ending import try_to_send
from baton.sessions.instructions import mark
from baton.sessions.inventory import Inventory
from baton.sessions.pane_output import output_writer
from baton.sessions.reporter import Reporter
from baton.sessions.session import Session
from baton.sessions.statement import Statement, statement
from baton.storage.files import append_line


def hook(settings: Settings, agent_name: str, message: Mapping[str, object]) -> str | None:
    """Report one message of a hook; return the answer for the agent, if any."""
    folder = os.environ.get("BATON_SESSION_DIR")
    session_id = os.environ.get(MARKER)
    if folder is None or session_id is None:
        return None  # baton did not start this agent
    agent = find_agent(settings, agent_name)
    signal = statement(agent.read_hook(message))
    if signal is None:
        return None
    inventory = Inventory(settings)
    session = inventory.find(session_id)
    if session is None:
        return None
    if signal.conversation_id and signal.conversation_id != session.conversation_id:
        session = inventory.remember_conversation(session, signal.conversation_id)
    if session.job_id is None:
        return None
    with open_jobs(settings) as jobs:
        job = jobs.get_job(session.job_id)
        if job.status in TERMINAL:
            if signal.finished and session.made_for == job.job_id:
                jobs.add_message(job, signal.finished)  # the agent had published its end before
            return None
        try:
            _keep_output(output_writer(settings, jobs, job), signal)
        except OSError as error:
            log_error(error)  # a full disk must not keep the end of the job from being reported
        reporter = Reporter(jobs, folder, partial(try_to_send, settings, jobs), job=job)
        return _report(reporter, job, session, agent, message, signal)


def _keep_output(writer: OutputWriter, signal: Statement) -> None:
    if text := signal.progress or signal.permission or signal.failed or signal.finished:
        writer.write_line(text)
        writer.flush()


def _report(
    reporter: Reporter, job: Job, session: Session, agent: Agent, message: Mapping[str, object], signal: Statement
) -> str | None:
    is_last = signal.finished is not None or signal.failed is not None
    if is_last and session.made_for != job.job_id and not agent.conversation_contains(message, mark(job)):
        return None  # the end of a turn that began before the job
    if signal.permission is not None:
        reporter.permission_required(signal.permission)
    elif signal.progress is not None:
        reporter.progress(signal.progress)
    elif signal.failed is not None:
        reporter.failed(signal.failed)
    elif signal.finished is not None:
        try:
            reporter.completed(one_line(signal.finished, 300), message=signal.finished)
        except NotVerified as error:
            answer = agent.refusal(message, error.with_output(str(error))) if reporter.may_try_again() else None
            if answer is None:
                reporter.refused(error)
            return answer
    return None


def log_error(error: Exception) -> None:
    """Write the error into the log of the session's hooks: the screen belongs to the agent."""
    folder = os.environ.get("BATON_SESSION_DIR")
    if folder is None:
        return
    text = str(error) if isinstance(error, BatonError) else f"{type(error).__name__}: {error}"
    append_line(os.path.join(folder, "hook.log"), json.dumps({"at": time.time(), "error": text}))
