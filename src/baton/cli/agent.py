"""agent publish | refresh | resolve | list | show | remove | cleanup | watch: who owns a name. What one sees of that is
in `live_agents`."""

from __future__ import annotations

import argparse
import os

from baton.cli import live_agents
from baton.cli.main import action_parser
from baton.cli.output import json_text, on_terminal, one_line, parse_duration, say
from baton.config import Settings
from baton.core.errors import ControlRefused, InvalidValue, OwnershipLost
from baton.live_agents import open_directory, ownership
from baton.live_agents.names import Names, check_generation_id, derived_id
from baton.live_agents.record import in_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

    from baton.cli.main import VerbAction
    from baton.live_agents.contract import Directory
    from baton.live_agents.record import AgentRecord
    from baton.sessions.adopt import LeftOver


def run(verb: str, arguments: Sequence[str]) -> int:
    description = "The directory of live agents: a name leads to its session."
    options = action_parser(verb, description, _ACTIONS, _directory).parse_args(arguments)
    settings = Settings(vars(options))
    directory = open_directory(settings)
    try:
        _, _, act = _ACTIONS[options.action]
        return act(options, settings, directory)
    finally:
        directory.close()


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        metavar="URL",
        default=argparse.SUPPRESS,
        help="file:/FOLDER or postgresql://... (default: your own)",
    )


# -- publish, refresh, remove ------------------------------------------------------------------------------


def _publish_options(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="the name, with or without its prefix")
    action.add_argument("--session", metavar="S", help="the tmux session (default: called as the agent)")
    action.add_argument("--tmux-socket", metavar="L", help="its tmux server: a name or a path (default: baton)")
    action.add_argument("--manifest", metavar="FILE", help="publish the session that this manifest describes")
    action.add_argument("--tool", metavar="A", help="which agent runs there (default: the agent setting)")
    action.add_argument("--agent-id", metavar="ID", help="its id (default: derived from the name)")
    action.add_argument("--generation", metavar="G", help="which live session it is (default: a new one)")
    action.add_argument("--agent-def-dir", metavar="DIR", help="where the agent is defined, if anywhere")
    action.add_argument("--takeover", action="store_true", help="take the name from a session that still owns it")
    action.add_argument("--no-tmux-check", action="store_true", help="believe the manifest without asking tmux")
    _lease(action)


def _publish(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    if options.agent_def_dir is not None:
        options.agent_def_dir = os.path.abspath(options.agent_def_dir)
    if options.manifest is None:
        stored = _publish_session(options, settings, directory)
    else:
        record = _described_record(options, settings, directory)
        stored = ownership.publish(directory, record, takeover=options.takeover)
    live_agents.tell(options, stored, f"{stored.agent_name} is published until {in_seconds(stored.lease_expires_at)}")
    return 0


def _publish_session(options: argparse.Namespace, settings: Settings, directory: Directory) -> AgentRecord:
    from baton.live_agents.record import new_generation_id
    from baton.sessions.adopt import adopt

    names = Names(settings.agent_name_prefix)
    name = names.canonical(options.name)
    return adopt(
        settings,
        directory,
        agent_name=name,
        agent_id=derived_id(name) if options.agent_id is None else names.explicit_id(options.agent_id),
        generation_id=check_generation_id(options.generation or new_generation_id()),
        tool=options.tool or settings.agent,
        session_name=options.session or names.bare(options.name),
        socket=settings.tmux_socket,
        lease_ns=_lease_ns(options),
        agent_def_dir=options.agent_def_dir,
        takeover=options.takeover,
    )


def _described_record(options: argparse.Namespace, settings: Settings, directory: Directory) -> AgentRecord:
    """What a manifest says, after a look at whether it is still true."""
    from baton.live_agents.record import new_record
    from baton.sessions.live_agent_control import control_target
    from baton.sessions.manifest import read_manifest

    names = Names(settings.agent_name_prefix)
    name = names.canonical(options.name)
    path = os.path.abspath(options.manifest)
    manifest = read_manifest(path)
    for option, told in (
        ("session", manifest.session_name), ("tmux_socket", manifest.socket), ("tool", manifest.tool),
        ("agent_id", manifest.agent_id), ("generation", manifest.generation_id),
    ):  # fmt: skip
        if getattr(options, option) not in (None, told):
            raise InvalidValue("--" + option.replace("_", "-"), f"is {told!r} in the manifest; leave it out")
    if manifest.agent_name != name:
        raise InvalidValue("--manifest", f"is of {manifest.agent_name}, not of {name}")
    record = new_record(
        name,
        names.explicit_id(manifest.agent_id),
        manifest.generation_id,
        now_ns=directory.now_ns(),
        lease_ns=_lease_ns(options),
        tool=manifest.tool,
        backend=manifest.backend,
        manifest_path=path,
        session_name=manifest.session_name,
        socket=manifest.socket,
        host=manifest.host or settings.host,
        agent_def_dir=options.agent_def_dir,
    )
    if not options.no_tmux_check:
        try:
            control_target(record, host=settings.host)
        except ControlRefused as error:
            raise ControlRefused(f"{error}; --no-tmux-check publishes it all the same") from None
    return record


def _refresh_options(action: argparse.ArgumentParser) -> None:
    live_agents.name_or_id(action)
    _generation(action)
    _lease(action)


def _refresh(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    agent_id = _owned_id(options, settings, directory)
    record = ownership.refresh(directory, agent_id, options.generation, lease_ns=_lease_ns(options))
    live_agents.tell(options, record, f"{record.agent_name} is published until {in_seconds(record.lease_expires_at)}")
    return 0


def _remove_options(action: argparse.ArgumentParser) -> None:
    live_agents.name_or_id(action)
    _generation(action)


def _remove(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    from baton.sessions.adopt import forget_adopted

    agent_id = _owned_id(options, settings, directory)
    record = ownership.remove(directory, agent_id, options.generation)
    if record is None:
        raise OwnershipLost(f"nothing is published for {agent_id}")
    forget_adopted(settings, directory, record)
    live_agents.tell(options, record, f"{record.agent_name} is free")
    return 0


def _owned_id(options: argparse.Namespace, settings: Settings, directory: Directory) -> str:
    """The id under which that generation published, also when its lease has run out; for what was never published,
    the id it would have."""
    found = live_agents.find(options, settings, directory)
    for entry in found.entries:
        if entry.record is not None and entry.record.generation_id == options.generation:
            return entry.agent_id
    if found.record is not None:
        return found.record.agent_id
    if found.entries:
        return found.entries[0].agent_id
    found.found()
    raise AssertionError("unreachable")


def _generation(action: argparse.ArgumentParser) -> None:
    action.add_argument("--generation", metavar="G", required=True, help="the generation you published with")


def _lease(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--lease", default="24h", metavar="AGE", help="how long it is yours: 90s, 15m, 24h (default), 7d"
    )


def _lease_ns(options: argparse.Namespace) -> int:
    try:
        return ownership.check_lease(parse_duration("--lease", options.lease))
    except InvalidValue as error:
        raise InvalidValue("--lease", error.why) from None


# -- cleanup -------------------------------------------------------------------------------------------------


def _cleanup_options(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--grace-seconds", default="300", metavar="S", help="spare what is younger: 300 (default), 90s, 15m"
    )
    # An option of its own: how two names of one are shown depends on the Python.
    action.add_argument("--grace", dest="grace_seconds", default=argparse.SUPPRESS, metavar="S", help="the same")
    action.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    action.add_argument("--no-tmux-check", action="store_true", help="go by the lease alone, do not ask tmux")


def _cleanup(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    from baton.sessions.adopt import LeftOver
    from baton.sessions.live_agent_cleanup import Action, cleanup

    shown, failed = [], False
    for each in cleanup(
        settings,
        directory,
        tmux_check=not options.no_tmux_check,
        grace_sec=_grace_sec(options.grace_seconds),
        dry_run=options.dry_run,
    ):
        if isinstance(each, LeftOver):
            failed = failed or each.error is not None
            _tell_left_over(options, each)
            continue
        failed = failed or each.failed
        name = each.entry.record.agent_name if each.entry.record else None
        why = one_line(each.why, 1000)
        if options.json:
            shown.append({"agent_id": each.entry.agent_id, "agent_name": name, "action": each.action, "why": why})
        elif each.action is not Action.KEEP or each.failed or options.dry_run or on_terminal():
            print(f"{'would ' if options.dry_run else ''}{each.action}\t{name or each.entry.agent_id}\t{why}")
    if options.json:
        print(json_text(shown, indent=2))
    return 1 if failed else 0


def _tell_left_over(options: argparse.Namespace, manifest: LeftOver) -> None:
    path = one_line(manifest.path, 1000)
    if manifest.error is not None:
        say(f"baton: could not remove {path}, the manifest of no agent: {one_line(manifest.error, 1000)}")
    elif not options.json:
        say(f"{'would remove' if options.dry_run else 'removed'} {path}, the manifest of no agent")


def _grace_sec(text: str) -> float:
    """Plain seconds, or a duration with its unit."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration("--grace-seconds", text) / 10**9
    if not 0 <= seconds < float("inf"):
        raise InvalidValue("--grace-seconds", "must be a number of seconds, 0 or more, or a duration such as 15m")
    return seconds


_ACTIONS: Final[dict[str, VerbAction]] = {
    "publish": ("give a name to a tmux session, for as long as its lease lasts", _publish_options, _publish),
    "refresh": ("prolong the lease of a name you own", _refresh_options, _refresh),
    "resolve": ("find the session that owns a name now", live_agents.resolve_options, live_agents.resolve_name),
    "list": ("show all names, who owns them, and for how long", None, live_agents.list_names),
    "show": (
        "print everything about one agent, and whether it can be controlled from here",
        live_agents.show_options,
        live_agents.show,
    ),
    "remove": ("give a name back", _remove_options, _remove),
    "cleanup": ("remove what is expired, missing or malformed, with a reason for each", _cleanup_options, _cleanup),
    "watch": ("print changes as they happen", live_agents.watch_options, live_agents.watch),
}
