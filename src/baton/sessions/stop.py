"""Stop a session: end the processes of its agent, then its pane, and fail the job in it."""

import os
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from baton.adapters import find_agent
from baton.config import Settings
from baton.core.errors import AgentUnusable, BatonError, IllegalTransition, JobNotFound, WrongState
from baton.core.job import Job, Status
from baton.core.value import Value
from baton.jobs.verbs import Jobs
from baton.origin import MARKER
from baton.sessions import env_pipe
from baton.sessions.ending import EXIT, end_session, fail_job
from baton.sessions.inventory import Inventory
from baton.sessions.processes import Process, ProcessId, end_processes, parent_of, unproven_processes
from baton.sessions.session import Session, State, session_name
from baton.sessions.tmux import NoServer, Tmux

GRACE_SEC = 10.0
_RUNNER_SEC = 15.0  # the runner still has to report for its job


class StopMode(StrEnum):
    GRACEFUL = "graceful"  # ask the agent to end, and keep its conversation
    HARD = "hard"  # kill it
    SOFT = "soft"  # leave it running, and stop managing it


class Stopped(Value):
    """A session that was stopped, and the processes that were ended."""

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
    """Stop a running session of this host. `capture_id` refuses to stop it while its conversation's id is unknown."""
    session = inventory.get(name)
    if session.state is not State.RUNNING:
        raise WrongState("session", f"{name!r} is {session.state} already")
    if session.host != settings.host:
        raise WrongState("session", f"{name!r} is on {session.host}; stop it there")
    if session.has_live_runner() and inventory.runner_of(session) is None:
        raise WrongState("session", f"{name!r} runs in another home, of which this one is a copy; stop it there")
    if capture_id and session.conversation_id is None:
        kept = find_agent(settings, session.agent).keeps_conversation
        why = "has not reported the id of its conversation yet" if kept else "keeps no conversation"
        raise AgentUnusable(f"{session.agent} in session {name!r} {why}; stop it without --capture-id")
    reason = reason or f"stopped by `baton session stop --mode {mode}`"
    if mode is StopMode.SOFT:
        return Stopped(session=end_session(settings, inventory, session, State.ARCHIVED, reason=reason), ended=[])
    # If the creating process died before it started the agent, the runner still waits, and its pid is not stored.
    env_pipe.withdraw(inventory.folder_of(session))
    stopper = str(ProcessId.current())
    if mode is StopMode.HARD:
        try:  # another process that sees the runner gone leaves it to this one to say why
            inventory.change(session, lambda current: current.replace(stopper=stopper))
        except BatonError:
            pass  # the disk is full, for example: the agent is ended all the same
        ended = end_processes(lambda: all_processes(inventory, session), grace_sec=0)
        state = State.TERMINATED
    else:
        inventory.change(session, lambda current: current.replace(stop_requested=reason, stopper=stopper))
        ended = end_processes(lambda: inventory.agent_processes(session), grace_sec=grace_sec)
        deadline = time.monotonic() + _RUNNER_SEC
        while session.has_live_runner() and time.monotonic() < deadline:
            time.sleep(0.01)
        current = inventory.find(session.session_id)
        if current is None or current.pane_pid != session.pane_pid:
            return Stopped(session=session, ended=ended)  # it has ended and was resumed meanwhile
        ended += end_processes(lambda: all_processes(inventory, session), grace_sec=0)
        state = State.STOPPED
    try:
        _kill_pane(session)
    finally:
        fail_job_in(settings, jobs, session, f"the session was stopped: {reason}")
        session = end_session(settings, inventory, session, state, reason=reason)
    return Stopped(session=session, ended=ended)


def cancel_job(
    settings: Settings,
    jobs: Jobs,
    job_id: str,
    *,
    reason: str | None = None,
    show_unproven: Callable[[Process], object] = lambda _process: None,
) -> Job:
    """Cancel a job and end what a killed runner left of it; a runner that lives ends its agent itself. Call
    `show_unproven` with each process that may be the agent's, without proof. Raise IllegalTransition when the job has
    ended."""

    def end_leftovers() -> None:
        for process in _end_leftovers(settings, Inventory(settings), jobs, job_id):
            show_unproven(process)

    try:
        job = jobs.update_status(job_id, "cancelled", reason=reason)
    except IllegalTransition:
        end_leftovers()  # it may be an error because its runner was killed
        raise
    if job.attempt:
        end_leftovers()
    return job


def _end_leftovers(settings: Settings, inventory: Inventory, jobs: Jobs, job_id: str) -> list[Process]:
    """End what agents of the job left running because their runner was killed. Return the processes that may be theirs,
    without proof: those are left alone."""
    unproven: dict[int, Process] = {}
    for session in inventory.all():
        if session.made_for != job_id or session.host != settings.host or session.pane_started is None:
            continue
        server = Tmux(session.socket).own_server()
        parents = [] if server is None else [server]
        wrote_end = os.path.exists(os.path.join(inventory.folder_of(session), EXIT))
        was_killed = not wrote_end and not session.has_live_runner()
        if was_killed:
            if session.state is State.RUNNING:
                why = "its runner was killed"
                stop_session(settings, inventory, jobs, session.name, mode=StopMode.HARD, reason=why)
            end_processes(partial(inventory.agent_processes, session), grace_sec=0)
            parents += [parent_of(server) or 1] if server is not None else []  # it adopts what the runner had adopted
        found = unproven_processes(session.workdir, session.pane_started, parents, orphans=was_killed)
        unproven |= {process.pid: process for process in found}
    return list(unproven.values())


def fail_job_in(settings: Settings, jobs: Jobs, session: Session, detail: str) -> None:
    """Fail the job that the session holds, if its runner did not end it."""
    try:
        job = held_job(jobs, session)
        if job is not None:
            fail_job(settings, jobs, job, job.attempt, detail, ended_by="cancelled")
    except BatonError:
        pass  # the registry is unavailable: the lease of the job expires


def held_job(jobs: Jobs, session: Session) -> Job | None:
    """Return the running job that the session holds, or None."""
    if session.job_id is None:
        return None
    try:
        job = jobs.get_job(session.job_id)
    except JobNotFound:
        return None
    # A runner claims in the name of its session. A worker claims itself, and the session's name tells the attempt.
    claimed_here = (job.claimed_by or "").endswith(f":{session.name}:{session.pane_pid}")
    held = job.status is Status.RUNNING and (claimed_here or session.name == session_name(job))
    return job if held else None


def all_processes(inventory: Inventory, session: Session) -> list[Process]:
    """Return the runner and the agent's processes. The runner comes first: it would report an agent that is killed."""
    found = inventory.agent_processes(session)
    runner = inventory.runner_of(session)
    if runner is not None:
        found.insert(0, Process(id=runner, command="baton runner"))
    return found


def _kill_pane(session: Session) -> None:
    """End the tmux session, if the pane is still this session's: another one may have its name now."""
    tmux = Tmux(session.socket)
    try:
        pane = next((pane for pane in tmux.panes() if pane.pane_id == session.pane_id), None)
    except NoServer:
        return
    mine = pane is not None and pane.pid == session.pane_pid
    if pane is not None and not pane.pid:  # it is dead: the mark of the tmux session says whose it was
        mine = tmux.marked(session.name, MARKER) == session.session_id
    if mine:  # guard: pane-identity
        tmux.kill_session(session.name)
