"""The verbs of live agents as functions: each opens the directory and closes it again.

Every function takes, as keywords, where to look: `state_dir`, `directory` (a url), `registry` (a url), `home`. What is
not given comes from the environment and the config file, as on the command line. A name may be given in either
spelling, or as an id.
"""

from typing import TypedDict, Unpack

from baton.config import Settings
from baton.live_agents import open_directory, ownership
from baton.live_agents.contract import Directory
from baton.live_agents.names import Names
from baton.live_agents.record import UNNAMED_HOST, AgentRecord, new_generation_id, new_record
from baton.live_agents.resolve import resolve
from baton.sessions.adopt import forget_adopted
from baton.sessions.live_agents import DEFAULT_GRACE_SEC, Decision, Target, cleanup, control_target
from baton.storage.homes import load_settings


class Where(TypedDict, total=False):
    home: str | None
    registry: str | None
    directory: str | None
    state_dir: str | None


def new_live_agent_record(
    name: str,
    *,
    session_name: str,
    manifest_path: str,
    tool: str,
    lease_sec: float = ownership.DEFAULT_LEASE_SEC,
    agent_id: str | None = None,
    generation_id: str | None = None,
    socket: str | None = None,
    session_root: str | None = None,
    agent_def_dir: str | None = None,
    **where: Unpack[Where],
) -> AgentRecord:
    """Return the record of a tmux session on this machine, ready to be published.

    By default the id is derived from the name, and the generation is new."""
    lease_ns = ownership.check_lease(lease_sec * 10**9)
    with open_directory(settings := load_settings(where)) as directory:
        names = Names(settings.agent_name_prefix)
        canonical = names.canonical(name)
        return new_record(
            canonical,
            names.id_of(canonical, agent_id),
            new_generation_id() if generation_id is None else generation_id,
            now_ns=directory.now_ns(),
            lease_ns=lease_ns,
            tool=tool,
            manifest_path=manifest_path,
            session_name=session_name,
            socket=socket,
            host=settings.host,
            session_root=session_root,
            agent_def_dir=agent_def_dir,
        )


def publish_live_agent_record(record: AgentRecord, *, takeover: bool = False, **where: Unpack[Where]) -> AgentRecord:
    """Make the record's generation the owner of its agent_id; return the stored record.

    Raise AgentTaken if a fresh record of another session is stored, unless `takeover`."""
    with open_directory(settings := load_settings(where)) as directory:
        names = Names(settings.agent_name_prefix)
        names.explicit_id(record.agent_id)
        record = _with_host(record.replace(agent_name=names.canonical(record.agent_name)), settings, directory)
        return ownership.publish(directory, record, takeover=takeover)


def refresh_live_agent_record(
    record: AgentRecord, *, lease_sec: float = ownership.DEFAULT_LEASE_SEC, **where: Unpack[Where]
) -> AgentRecord:
    """Extend the session's lease to `lease_sec` from now. Raise OwnershipLost if another generation owns its id."""
    lease_ns = ownership.check_lease(lease_sec * 10**9)
    with open_directory(settings := load_settings(where)) as directory:
        record = _with_host(record, settings, directory)
        return ownership.refresh(directory, record.agent_id, record.generation_id, lease_ns=lease_ns, record=record)


def _with_host(record: AgentRecord, settings: Settings, directory: Directory) -> AgentRecord:
    """Add this host to a record without one, if several machines share the directory."""
    unnamed = directory.multi_host and record.host in (None, UNNAMED_HOST)
    return record.replace(host=settings.host) if unnamed else record


def resolve_live_agent_record(name_or_id: str, *, by_id: bool = False, **where: Unpack[Where]) -> AgentRecord | None:
    """Return the one fresh record of that name or id (`by_id`: of that id only). Return None if it is missing,
    malformed, invalid, expired, of another name, or ambiguous."""
    with open_directory(settings := load_settings(where)) as directory:
        return resolve(directory, Names(settings.agent_name_prefix), name_or_id, by_id=by_id).record


def resolve_for_control(
    name_or_id: str,
    *,
    by_id: bool = False,
    needs_agent_def_dir: bool = False,
    agent_def_dir: str | None = None,
    **where: Unpack[Where],
) -> Target:
    """Return the session of that name or id, after all checks.

    Raise AgentNotFound if there is no fresh record, and a subclass of ControlRefused for each failed check."""
    with open_directory(settings := load_settings(where)) as directory:
        record = resolve(directory, Names(settings.agent_name_prefix), name_or_id, by_id=by_id).found()
    return control_target(
        record, host=settings.host, needs_agent_def_dir=needs_agent_def_dir, agent_def_dir=agent_def_dir
    )


def remove_live_agent_record(agent_id: str, generation_id: str, **where: Unpack[Where]) -> bool:
    """Remove the record of that generation; return False if there is none. Raise OwnershipLost, and remove nothing, if
    another generation owns the agent_id."""
    with open_directory(settings := load_settings(where)) as directory:
        removed = ownership.remove(directory, agent_id, generation_id)
        if removed is not None:
            forget_adopted(settings, directory, removed)
        return removed is not None


def cleanup_registry(
    *, grace_sec: float = DEFAULT_GRACE_SEC, dry_run: bool = False, tmux_check: bool = True, **where: Unpack[Where]
) -> list[Decision]:
    """Remove entries past the grace period that are missing, malformed, expired, or whose session is gone.

    Return a decision with its reason for every entry."""
    with open_directory(settings := load_settings(where)) as directory:
        found = list(cleanup(settings, directory, tmux_check=tmux_check, grace_sec=grace_sec, dry_run=dry_run))
        return [each for each in found if isinstance(each, Decision)]
