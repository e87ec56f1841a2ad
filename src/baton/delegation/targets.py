"""Find the queue of a running session or of a live agent, to give it a job."""

import os

from baton.config import Settings
from baton.core.errors import InvalidValue, WrongState
from baton.core.value import Value
from baton.origin import obeyed_environment
from baton.sessions.inventory import Inventory
from baton.sessions.session import State, job_label
from baton.storage.homes import load_settings

# Of the environment: what belongs to one home alone.
_OF_A_HOME = frozenset({"BATON_HOME", "BATON_REGISTRY", "DELEGATE_JOB_LOGS_DIR"})


class Target(Value):
    """Where a job goes. `settings` are those of the home that the job is registered in; `workdir` is None if it is on
    another host; `note` is a line for the user."""

    settings: Settings
    queue: str
    agent: str
    workdir: str | None
    note: str | None = None


def target_session(settings: Settings, name: str) -> Target:
    """Return the queue of a running session; InvalidValue if it takes no jobs."""
    session = Inventory(settings).get(name)
    if session.state is not State.RUNNING or session.made_for is not None:
        what = f"is {session.state}" if session.state is not State.RUNNING else f"was made for job {session.made_for}"
        raise WrongState("--session", f"{name!r} {what}; it takes no jobs")
    if not session.has_live_runner():
        raise WrongState("--session", f"{name!r} has died; `baton monitor --once` records that")
    return Target(settings=settings, queue=job_label(session.agent_id), agent=session.agent, workdir=session.workdir)


def target_live_agent(settings: Settings, name: str, *, agent_def_dir: str | None = None) -> Target:
    """Return the queue of a live agent, and the settings of its home: it may have another registry."""
    from baton.live_agents import open_directory
    from baton.live_agents.names import Names
    from baton.live_agents.resolve import resolve
    from baton.registry import open_registry
    from baton.sessions.live_agents import control_target, host_of

    with open_directory(settings) as directory:
        record = resolve(directory, Names(settings.agent_name_prefix), name).found()
    if record.session_root is None:
        raise WrongState("--to", f"{name} was published by hand; no runner of baton takes jobs there")
    there = host_of(record)
    remote = there is not None and there != settings.host
    shared = open_registry(settings).multi_host
    if remote and agent_def_dir is not None:
        raise InvalidValue("--agent-def-dir", f"cannot be checked here: {name} is on {record.host}")
    if remote and not shared:
        raise WrongState("--to", f"{name} is on {there}: sending it a job needs a registry on PostgreSQL")
    workdir = note = None
    if not remote:
        workdir = control_target(record, host=settings.host, agent_def_dir=agent_def_dir).manifest.workdir
        home = os.path.dirname(os.path.dirname(record.session_root))
        if not shared and os.path.realpath(home) != os.path.realpath(settings.home):
            note = f"{record.agent_name} belongs to {home}: the job is registered there"
            settings = _settings_of(home)
    return Target(settings=settings, queue=job_label(record.agent_id), agent=record.tool, workdir=workdir, note=note)


def _settings_of(home: str) -> Settings:
    """Return the settings of another home, without those of this environment that belong to this home."""
    from baton.registry import registry_url

    variables = {name: value for name, value in obeyed_environment(home).items() if name not in _OF_A_HOME}
    there = load_settings({"home": home}, variables)
    return load_settings({"home": home, "registry": registry_url(there), "logs_dir": there.logs_dir})
