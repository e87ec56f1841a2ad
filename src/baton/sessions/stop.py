"""Ending a session: its process tree first, then its pane; and what it was doing is told."""

from __future__ import annotations

import time
from enum import StrEnum

from baton.adapters import find_agent
from baton.core.errors import AgentUnusable, BatonError, InvalidValue
from baton.core.job import Status
from baton.core.value import Value
from baton.sessions import env_pipe as handover
from baton.sessions.ending import end_session, fail_job
from baton.sessions.processes import Process, ProcessId, end_processes, marked_processes
from baton.sessions.session import State, session_name
from baton.sessions.tmux import NoServer, Tmux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from baton.config import Settings
    from baton.jobs.verbs import Jobs
    from baton.sessions.inventory import Inventory
    from baton.sessions.session import Session

GRACE_SEC: Final = 10.0
_RUNNER_SEC: Final = 15.0  # it still has to say what became of the job


class StopMode(StrEnum):
    GRACEFUL = "graceful"  # asked to end, the conversation kept
    HARD = "hard"  # killed
    SOFT = "soft"  # left alone; only ours no longer


class Stopped(Value):
    session: Session
    ended: list[Process]


def stop_session(
    settings: Settings,
    inventory: Inventory,
    jobs: Jobs,
    name: str,
    *,
    mode: StopMode = StopMode.GRACEFUL,
    reason: str = "",
    capture_id: bool = False,
    grace_sec: float = GRACE_SEC,
) -> Stopped:
    """Ends it and returns what was ended. With `capture_id` it is refused where the conversation is not known."""
    session = inventory.get(name)
    if session.state is not State.RUNNING:
        raise InvalidValue("session", f"{name!r} is {session.state} already")
    if session.host != settings.host:
        raise InvalidValue("session", f"{name!r} is on {session.host}; stop it there")
    if capture_id and session.conversation_id is None:
        kept = find_agent(settings, session.agent).keeps_conversation
        why = "has not told the id of its conversation yet" if kept else "keeps no conversation"
        raise AgentUnusable(f"{session.agent} in session {name!r} {why}; stop it without --capture-id")
    reason = reason or f"stopped by `baton session stop --mode {mode}`"
    if mode is StopMode.SOFT:
        return Stopped(session=end_session(settings, inventory, session, State.ARCHIVED, reason=reason), ended=[])
    # For one that whoever made it did not live to begin: its runner still waits for the word, and nobody knows its pid.
    handover.withdraw(inventory.folder_of(session))
    if mode is StopMode.HARD:
        ended = end_processes(lambda: all_processes(session), grace_sec=0)
        state = State.TERMINATED
    else:
        inventory.change(session, lambda current: current.replace(ending=reason, stopper=str(ProcessId.current())))
        ended = end_processes(lambda: marked_processes(session.session_id), grace_sec=grace_sec)
        _wait_for_runner(session)
        current = inventory.find(session.session_id)
        if current is None or current.pane_pid != session.pane_pid:
            return Stopped(session=session, ended=ended)  # it has ended, and was brought back by somebody meanwhile
        ended += end_processes(lambda: all_processes(session), grace_sec=0)
        state = State.STOPPED
    try:
        _kill_pane(session)
    finally:
        fail_job_in(settings, jobs, session, f"the session was stopped: {reason}")
        session = end_session(settings, inventory, session, state, reason=reason)
    return Stopped(session=session, ended=ended)


def fail_job_in(settings: Settings, jobs: Jobs, session: Session, detail: str) -> None:
    """The job that was in the session, where its runner could not see to it any more."""
    if session.job_id is None:
        return
    try:
        job = jobs.get_job(session.job_id)
        # A runner claims in the name of its session; for a worker's job, the name tells the attempt.
        claimed_here = (job.claimed_by or "").startswith(f"{session.host}:{session.name}:")
        ours = claimed_here or session.name == session_name(job)
        if job.status is Status.RUNNING and ours:
            fail_job(settings, jobs, job, job.attempt, detail)
    except BatonError:
        pass  # it is gone, or the registry is away: then its lease ends


def all_processes(session: Session) -> list[Process]:
    """The runner comes first: it would tell a story of its own about an agent that was killed under its hands."""
    found = marked_processes(session.session_id)
    runner = session.runner()
    if runner is not None and runner.is_alive():
        found.insert(0, Process(id=runner, command="baton runner"))
    return found


def _wait_for_runner(session: Session) -> None:
    deadline = time.monotonic() + _RUNNER_SEC
    while session.has_live_runner():
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def _kill_pane(session: Session) -> None:
    """Only the pane that was ours: another session may have the name in tmux by now."""
    tmux = Tmux(session.socket)
    try:
        mine = any(pane.pane_id == session.pane_id and pane.pid == session.pane_pid for pane in tmux.panes())
    except NoServer:
        return
    if mine:  # guard: pane-identity
        tmux.kill_session(session.name)
