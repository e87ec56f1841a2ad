"""Give a name to a tmux session that baton did not start: write the manifest that it lacks.

    manifests/<agent_id>.<generation_id>.json     in the state folder

The manifest is written when its generation owns the id, and removed with the record. After a crash or a takeover, the
clean-up removes it once its process is gone.
"""

import os
from collections.abc import Iterator

from baton.config import Settings, machine_of
from baton.core.errors import BatonError, ControlRefused, SessionGone
from baton.core.value import Value
from baton.live_agents import ownership
from baton.live_agents.contract import Directory
from baton.live_agents.names import is_agent_id
from baton.live_agents.record import AgentRecord, Entry, State
from baton.sessions.manifest import Manifest, read_manifest
from baton.sessions.processes import started_at
from baton.sessions.tmux import NoServer, Pane, Tmux
from baton.storage.files import make_private_dir, remove_file


class LeftOver(Value):
    """A manifest without a record. It was removed, unless `error` is set."""

    path: str
    error: str | None


def adopt(
    settings: Settings,
    directory: Directory,
    *,
    agent_name: str,
    agent_id: str,
    generation_id: str,
    tool: str,
    session_name: str,
    lease_ns: int,
    agent_def_dir: str | None = None,
    takeover: bool = False,
) -> AgentRecord:
    """Publish a session that runs in tmux, and write its manifest.

    Raise SessionGone if tmux has no such session, AgentTaken if the id belongs to another."""
    tmux = Tmux(settings.tmux_socket)
    pane = _active_pane(tmux, session_name)
    manifest = Manifest(
        agent_name=agent_name,
        agent_id=agent_id,
        generation_id=generation_id,
        backend="tmux",
        tool=tool,
        session_name=session_name,
        socket=tmux.socket_path(),
        host=settings.host,
        machine=machine_of(settings.host),
        workdir=None,
        pane_pid=pane.pid,
        pane_started=started_at(pane.pid),
    )
    path = _manifest_path(settings, agent_id, generation_id)
    record = manifest.agent_record(path, now_ns=directory.now_ns(), lease_ns=lease_ns, agent_def_dir=agent_def_dir)
    make_private_dir(os.path.dirname(path))
    return ownership.publish(directory, record, takeover=takeover, before_put=lambda: manifest.write(path))


def forget_adopted(settings: Settings, directory: Directory, record: AgentRecord) -> None:
    """Remove the manifest of a removed record, if `adopt` wrote it and the generation was not published again."""
    if record.manifest_path == _manifest_path(settings, record.agent_id, record.generation_id):
        _forget(directory, record.manifest_path, record.agent_id, record.generation_id)


def sweep_manifests(
    settings: Settings, directory: Directory, *, grace_sec: float, dry_run: bool = False
) -> Iterator[LeftOver]:
    """Remove and yield the manifests of `adopt` that are past the grace period, without a record in the directory, and
    whose process is gone. A manifest of another directory stays as long as its session runs."""
    folder = os.path.dirname(_manifest_path(settings, "", ""))
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        agent_id, _, generation_id = name.removesuffix(".json").partition(".")
        path = os.path.join(folder, name)
        if not (name.endswith(".json") and is_agent_id(agent_id) and is_agent_id(generation_id)):
            continue  # not a manifest of `adopt`
        try:
            old = directory.now_ns() - os.lstat(path).st_mtime_ns > grace_sec * 10**9
            manifest = read_manifest(path) if old else None
            if manifest is None or manifest.host != settings.host or manifest.process_lives() is not False:
                continue
            if _is_needed(directory.get(agent_id), generation_id):
                continue
            if dry_run or _forget(directory, path, agent_id, generation_id):
                yield LeftOver(path=path, error=None)
        except (ControlRefused, FileNotFoundError):
            continue  # just removed, or not a manifest
        except (BatonError, OSError) as error:
            yield LeftOver(path=path, error=str(error))


def _forget(directory: Directory, path: str, agent_id: str, generation_id: str) -> bool:
    with directory.locked(agent_id) as entry:
        if _is_needed(entry, generation_id):
            return False
        remove_file(path)
    return True


def _is_needed(entry: Entry, generation_id: str) -> bool:
    """Return whether the record needs its manifest; true if the record cannot be read."""
    if entry.record is None:
        return entry.state in (State.NEWER, State.UNREADABLE)
    return entry.record.generation_id == generation_id


def _active_pane(tmux: Tmux, session_name: str) -> Pane:
    """Return the active pane, into which a person types."""
    try:
        panes = [pane for pane in tmux.panes() if pane.session_name == session_name]
    except NoServer as error:
        raise SessionGone(f"{error}; start the session first, or name its socket with --tmux-socket") from None
    if not panes:
        option = "-S" if tmux.socket.startswith("/") else "-L"
        raise SessionGone(
            f"tmux at socket {tmux.socket} has no session {session_name!r}; see: tmux {option} {tmux.socket} ls"
        )
    active = tmux.run("display-message", "-p", "-t", f"={session_name}:", "#{pane_id}").strip()
    pane = next((pane for pane in panes if pane.pane_id == active), panes[0])
    if pane.dead:
        raise SessionGone(f"the active pane of tmux session {session_name!r} is dead; start something in it first")
    return pane


def _manifest_path(settings: Settings, agent_id: str, generation_id: str) -> str:
    return os.path.join(os.path.abspath(settings.state_dir), "manifests", f"{agent_id}.{generation_id}.json")
