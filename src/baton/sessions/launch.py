"""Create and resume sessions: check what is needed, claim the name, start the runner in tmux, pass the environment."""

import json
import os
import sys
import time
from functools import cache
from typing import Any
from uuid import uuid4

from baton.adapters import find_agent
from baton.adapters.contract import Agent, Mode, Task
from baton.config import Settings, machine_of, process_domain
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS, format_micros
from baton.core.errors import (
    AgentUnusable,
    BatonError,
    InvalidValue,
    RegistryUnavailable,
    RunnerDied,
    TmuxUnavailable,
    WrongState,
)
from baton.core.fields import one_line, parse_json
from baton.core.job import Job
from baton.core.parking import kept_conversation
from baton.core.value import Value
from baton.jobs.caller import check_depth, starter_here
from baton.live_agents import open_directory, ownership
from baton.live_agents.names import Names, derived_id
from baton.live_agents.record import new_generation_id
from baton.origin import MARKER, Origin, obeyed_environment
from baton.sessions import env_pipe
from baton.sessions.instructions import job_prompt
from baton.sessions.inventory import Inventory
from baton.sessions.manifest import Manifest
from baton.sessions.processes import HOME_MARKER, started_at
from baton.sessions.session import TMUX_SOCKET, Session, State
from baton.sessions.tmux import Pane, Tmux, TmuxSnapshot, check_session_name
from baton.storage.files import make_private_dir, read_file, remove_file, replace_file, why_closed

LAUNCH = "launch.json"
BEGUN = "begun.json"
LAST_SCREEN = "last-screen.txt"
RUNNER_LOG = "runner.log"
_UNDO_SEC = 10.0
_CLOSE_SEC = 10.0
_BEGIN_SEC = 60.0  # a server that is a part of the agent takes up to 15 s on a busy machine


class Plan(Value):
    """What the runner needs beside the session. `attempt` is set for a job that a worker has already claimed; `above`
    are the jobs whose agents led to a session that is made for none."""

    prompt: str | None
    resume: bool = False
    attempt: int | None = None
    above: tuple[str, ...] = ()


def check_launch(
    settings: Settings,
    agent: str,
    *,
    workdir: str,
    mode: Mode = Mode.INTERACTIVE,
    yolo: bool = False,
    prompt: str | None = None,
    job: Job | None = None,
) -> Agent:
    """Check that the agent can be started for this, and return it. AgentUnusable, InvalidValue or TmuxUnavailable say
    what is missing. Nothing is made."""
    program = usable_agent(settings, agent)
    if (closed := why_closed(workdir)) is not None:
        raise InvalidValue("workdir", closed)
    if job is not None:
        program.check_job(mode)
    resume, conversation_id = _conversation(program, job, settings.host)
    task = Task(
        mode=program.usable_mode(mode),
        prompt=prompt if job is None else job_prompt(program, job),
        conversation_id=conversation_id,
        resume=resume,
        yolo=yolo,
        folder="",
        workdir=workdir,
        hook=hook_command(program.name),
    )
    if resume:
        program.check_resume(conversation_id, task.prompt)
    argv = program.checked_launch(task).argv
    if yolo and not program.yolo_by_channel and argv == program.checked_launch(task.replace(yolo=False)).argv:
        raise program.unusable("has no flag that skips permissions, so --yolo means nothing for it")
    _check_tmux(settings.tmux_socket)
    return program


def _conversation(agent: Agent, job: Job | None, host: str) -> tuple[bool, str | None]:
    """Return whether a session for this job continues a conversation, and the id of the old or the new one."""
    kept = None if job is None else kept_conversation(job, host)
    if kept is not None and _can_resume(agent, kept):
        return True, kept
    if job is not None and job.start_options.get("resume"):
        return True, job.start_options.get("conversation_id")
    return False, str(uuid4()) if agent.chooses_id else None


def _can_resume(agent: Agent, conversation_id: str) -> bool:
    """Return whether a conversation that a usage limit interrupted is still there; else the work begins anew."""
    try:
        agent.check_resume(conversation_id, "")
    except AgentUnusable:
        return False
    return True


@cache
def _check_tmux(socket: str) -> None:
    """Check the name of the server, and the version of tmux, once in a process: a batch checks each of its jobs."""
    if not TMUX_SOCKET.fullmatch(socket):
        raise InvalidValue("tmux socket", f"must be a path or a plain name, not {one_line(socket, 80)!r}")
    Tmux(socket).check_version()


def create_session(
    settings: Settings,
    inventory: Inventory,
    name: str,
    *,
    agent: str | Agent,
    workdir: str,
    mode: Mode = Mode.INTERACTIVE,
    prompt: str | None = None,
    job: Job | None = None,
    attempt: int | None = None,
    yolo: bool = False,
    replace: bool = False,
    socket: str | None = None,
) -> Session:
    """Start an agent in a tmux session of its own, and return the session once the agent runs.

    NameInUse when another session has the name: of two that try at once, one gets it. Whatever fails on the way is
    undone. An `agent` that `check_launch` returned for the same task is not checked again."""
    check_session_name(name)
    check_prompt(prompt)
    workdir = os.path.abspath(workdir)
    if isinstance(agent, str):
        agent = check_launch(settings, agent, workdir=workdir, mode=mode, yolo=yolo, prompt=prompt, job=job)
    agent_name = Names(settings.agent_name_prefix).canonical(name)
    now = format_micros(time.time_ns())
    starter = _checked_starter(settings, job)
    job_id = job.job_id if job else None
    resume, conversation_id = _conversation(agent, job, settings.host)
    session = Session(
        name=name,
        session_id=os.urandom(8).hex(),
        state=State.RUNNING,
        agent=agent.name,
        mode=agent.usable_mode(mode),
        workdir=workdir,
        yolo=yolo,
        conversation_id=conversation_id,
        made_for=job_id,
        parent=(job.parent if job is not None else None) or (starter.job_id if starter is not None else None),
        job_id=job_id,
        agent_name=agent_name,
        agent_id=derived_id(agent_name),
        generation_id=new_generation_id(),
        host=settings.host,
        machine=machine_of(settings.host),
        socket=socket or settings.tmux_socket,
        created_at=now,
        updated_at=now,
    )
    before = inventory.add(session, replace=replace)
    try:
        above = () if starter is None else starter.chain()
        plan = Plan(prompt=prompt, resume=resume, attempt=attempt, above=above)
        return _start_runner(settings, inventory, session, plan, before)
    except BaseException:
        inventory.remove(session, restore=before)
        _remove_folder(inventory.folder_of(session))
        raise


def resume_session(settings: Settings, inventory: Inventory, name: str, *, prompt: str | None = None) -> Session:
    """Start the agent of an ended session again, with its conversation, in the same folder and generation."""
    check_prompt(prompt)
    before = inventory.get(name)
    if before.state is State.RUNNING:
        raise WrongState("session", f"{name!r} is running; `baton session attach {name}` shows it")
    program = usable_agent(settings, before.agent)
    if before.state is State.ARCHIVED and inventory.runner_of(before) is not None:
        return _manage_again(settings, inventory, before)
    if program.keeps_conversation:
        if program.resumes_by_id and before.conversation_id is None:
            unknown = f"the conversation of session {name!r} is unknown, so {before.agent} cannot resume it"
            raise AgentUnusable(f"{unknown}; create a new session")
        program.check_resume(before.conversation_id, prompt)
    if not os.path.isdir(before.workdir):
        raise WrongState("workdir", f"{before.workdir} of session {name!r} is gone; conversations are bound to it")
    now = format_micros(time.time_ns())
    resumed = before.replace(
        state=State.RUNNING, mode=program.usable_mode(Mode.INTERACTIVE), made_for=None, job_id=None, pane_id=None,
        pane_pid=None, pane_started=None, updated_at=now, ended_at=None, stop_requested=None, stopper=None, reason=None,
        exit=None,
    )  # fmt: skip
    program.checked_launch(task_for(resumed, inventory.folder_of(resumed), prompt=prompt, resume=True))

    def claim(current: Session) -> Session:
        if current != before:
            raise WrongState("session", f"{name!r} was changed by another process; try again")
        return resumed

    starter = _checked_starter(settings)
    above = _line_before(inventory.folder_of(resumed)) if starter is None else starter.chain()
    inventory.change(before, claim)
    try:
        plan = Plan(prompt=prompt, resume=program.keeps_conversation, above=above)
        return _start_runner(settings, inventory, resumed, plan, before)
    except BaseException:
        inventory.change(resumed, lambda _: before)
        raise


def _checked_starter(settings: Settings, job: Job | None = None) -> Origin | None:
    """Return the session whose agent starts another one; None for a person. BatonError if that agent may not."""
    starter = starter_here()
    if starter is None or job is not None:
        return starter  # the job was checked when it was registered
    check_depth(starter, settings.depth_limit)
    if starter.has_budget:  # guard: session-without-budget
        raise BatonError("a job above has a budget, which counts what jobs cost; start a job: baton submit")
    return starter


def read_plan(folder: str) -> Plan:
    """Return what the runner of a session in this folder needs."""
    plan = parse_json(read_file(os.path.join(folder, LAUNCH)))
    return Plan(**plan | {"above": tuple(plan.get("above", ()))})


def _line_before(folder: str) -> tuple[str, ...]:
    """Return the jobs whose agents led to the session when it was started before; none if that is not known."""
    try:
        return read_plan(folder).above
    except (OSError, ValueError, TypeError):
        return ()


def _manage_again(settings: Settings, inventory: Inventory, archived: Session) -> Session:
    """Return an archived session that still runs to the inventory's running sessions."""
    _publish(settings, archived, inventory.folder_of(archived))
    now = format_micros(time.time_ns())
    return inventory.change(
        archived, lambda current: current.replace(state=State.RUNNING, updated_at=now, ended_at=None, reason=None)
    )


def usable_agent(settings: Settings, name: str) -> Agent:
    """Return the agent. Raise AgentUnusable, which says how to install it, when its program is missing."""
    from shutil import which

    agent = find_agent(settings, name)
    if which(agent.program) is None:
        raise AgentUnusable(
            f"{agent.name} needs the program {agent.program!r}, which is not on your PATH: {agent.install}"
        )
    return agent


def _start_runner(
    settings: Settings, inventory: Inventory, session: Session, plan: Plan, before: Session | None
) -> Session:
    """Start the runner in a tmux session, and return the session once the agent runs. Undo everything on failure.
    `before` is the ended session that had the name."""
    folder = inventory.folder_of(session)
    make_private_dir(folder)
    for name in (BEGUN, env_pipe.PIPE):
        remove_file(os.path.join(folder, name))
    replace_file(os.path.join(folder, LAUNCH), json.dumps(plan.as_dict()).encode())
    env_pipe.prepare(folder)
    tmux = Tmux(session.socket)
    pane = None
    try:
        # -P: Python must not import a folder named baton in the working directory.
        argv = [sys.executable, "-P", "-m", "baton.sessions.runner", folder]
        # The folder of `pip install --user`, if it is not the usual one: Python finds baton there.
        given = obeyed_environment(settings.home)
        base = {name: given[name] for name in ("PYTHONUSERBASE",) if name in given}
        _wait_until_closed(before, session.host)
        pane = tmux.new_session(session.name, argv, workdir=session.workdir, environment=base)
        session = session.replace(
            socket=tmux.socket_path(), pane_id=pane.pane_id, pane_pid=pane.pid, pane_started=started_at(pane.pid),
            domain=process_domain(),
        )  # fmt: skip
        _publish(settings, session, folder)
        session = inventory.change(session, lambda _: session)
        environment = env_pipe.agent_environment(settings, session.session_id, folder)
        # For what the agent starts by tmux. The runner has been started before, and has no mark.
        tmux.mark(session.name, {name: environment[name] for name in (MARKER, HOME_MARKER)})
        env_pipe.send(folder, environment, pane.pid)
        return _wait_for_agent(inventory, session, pane, folder)
    except BaseException:
        env_pipe.withdraw(folder)
        if pane is not None:
            _end_pane(tmux, pane)
        from baton.sessions.ending import forget_name

        forget_name(settings, session)
        raise


def _wait_until_closed(before: Session | None, host: str) -> None:
    """Wait until tmux has closed an ended session: its runner records the end, or is killed, a moment before that."""
    if before is None or before.state is State.ARCHIVED or before.host != host:
        return  # the tmux session of an archived one is left running
    clock = AwakeClock()
    until_ns = clock.monotonic_ns() + int(_CLOSE_SEC * SECOND_NS)
    while clock.monotonic_ns() < until_ns:
        try:
            if TmuxSnapshot().pane_of(before) is None:
                return
        except TmuxUnavailable:
            return  # the start of the new one says why
        clock.sleep(0.02)


def _end_pane(tmux: Tmux, pane: Pane) -> None:
    """End the new tmux session, and wait until its runner has ended."""
    try:
        tmux.kill_session(pane.session_name)
    except TmuxUnavailable:
        pass  # the runner ends without tmux: its pipe is gone
    deadline = time.monotonic() + _UNDO_SEC
    while started_at(pane.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.005)


def _remove_folder(folder: str) -> None:
    """Remove the folder of a session that could not be created, unless it holds the log of a failure."""
    if not os.path.exists(os.path.join(folder, RUNNER_LOG)):
        from shutil import rmtree

        rmtree(folder, ignore_errors=True)


def check_prompt(prompt: str | None) -> None:
    """Raise InvalidValue for a prompt that no program can get as an argument."""
    if prompt is not None and "\0" in prompt:
        raise InvalidValue("prompt", "must not contain a NUL character")


def _wait_for_agent(inventory: Inventory, session: Session, pane: Pane, folder: str) -> Session:
    """Wait until the agent runs. Raise AgentUnusable with the runner's reason, RegistryUnavailable if the runner could
    not claim the job, for example during a migration, or RunnerDied."""
    clock = AwakeClock()
    until_ns = clock.monotonic_ns() + int(_BEGIN_SEC * SECOND_NS)
    while clock.monotonic_ns() < until_ns:
        begun = read_begun(folder)
        if begun is not None:
            if begun.get("failed"):
                raise (RegistryUnavailable if begun.get("busy") else AgentUnusable)(str(begun["failed"]))
            return inventory.get(session.name)
        if started_at(pane.pid) is None and read_begun(folder) is None:
            raise RunnerDied("the session's runner ended before the agent began")
        time.sleep(0.005)
    raise RunnerDied(f"the agent did not begin within {_BEGIN_SEC:g} s")


def read_begun(folder: str) -> dict[str, Any] | None:
    """Return what the runner wrote when the agent began or failed to; None before that."""
    try:
        begun: dict[str, Any] = parse_json(read_file(os.path.join(folder, BEGUN)))
    except (FileNotFoundError, ValueError):
        return None
    return begun


def _publish(settings: Settings, session: Session, folder: str) -> None:
    """Write the manifest of the session, and publish its name."""
    path = os.path.join(folder, "manifest.json")
    manifest = Manifest(
        agent_name=session.agent_name,
        agent_id=session.agent_id,
        generation_id=session.generation_id,
        backend="tmux",
        tool=session.agent,
        session_name=session.name,
        socket=session.socket,
        host=session.host,
        machine=session.machine,
        workdir=session.workdir,
        pane_pid=session.pane_pid,
        pane_started=session.pane_started,
        home_id=settings.home_id or None,
    )
    manifest.write(path)
    with open_directory(settings) as directory:
        lease_ns = ownership.DEFAULT_LEASE_SEC * 10**9
        record = manifest.agent_record(path, now_ns=directory.now_ns(), lease_ns=lease_ns, session_root=folder)
        ownership.publish(directory, record)


def task_for(
    session: Session, folder: str, *, prompt: str | None, resume: bool, budget_usd: float | None = None
) -> Task:
    """Return what the session's agent is started for."""
    return Task(
        mode=session.mode,
        prompt=prompt,
        conversation_id=session.conversation_id,
        resume=resume,
        yolo=session.yolo,
        folder=folder,
        workdir=session.workdir,
        hook=hook_command(session.agent),
        budget_usd=budget_usd,
    )


def hook_command(agent: str) -> list[str]:
    """Return the command that passes a hook's message to baton."""
    return [sys.executable, "-P", "-m", "baton", "hook", agent]
