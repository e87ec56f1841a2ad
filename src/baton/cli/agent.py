"""agent publish | refresh | resolve | list | show | remove | cleanup | watch: who owns a name. What one sees of that is
in `live_agents`."""

from __future__ import annotations

import argparse
import os

from baton.cli import agent_lookup
from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import json_text, on_terminal, one_line, say
from baton.cli.parser import Verb
from baton.core.errors import ControlRefused, InvalidValue, OwnershipLost
from baton.live_agents import open_directory, ownership
from baton.live_agents.names import Names, check_generation_id, derived_id
from baton.live_agents.record import in_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.config import Settings
    from baton.live_agents.contract import Directory
    from baton.live_agents.record import AgentRecord
    from baton.sessions.adopt import LeftOver

    Action = Callable[[argparse.Namespace, Settings, Directory], int]


def _with_directory(action: Action) -> Callable[[argparse.Namespace, Settings], int]:
    def run(options: argparse.Namespace, settings: Settings) -> int:
        directory = open_directory(settings)
        try:
            return action(options, settings, directory)
        finally:
            directory.close()

    return run


# -- publish, refresh, remove ------------------------------------------------------------------------------


def _publish(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    if options.agent_def_dir is not None:
        options.agent_def_dir = os.path.abspath(options.agent_def_dir)
    if options.manifest is None:
        stored = _publish_session(options, settings, directory)
    else:
        record = _described_record(options, settings, directory)
        stored = ownership.publish(directory, record, takeover=options.takeover)
    agent_lookup.tell(options, stored, f"{stored.agent_name} is published until {in_seconds(stored.lease_expires_at)}")
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


def _refresh(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    agent_id = _owned_id(options, settings, directory)
    record = ownership.refresh(directory, agent_id, options.generation, lease_ns=_lease_ns(options))
    agent_lookup.tell(options, record, f"{record.agent_name} is published until {in_seconds(record.lease_expires_at)}")
    return 0


def _remove(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    from baton.sessions.adopt import forget_adopted

    agent_id = _owned_id(options, settings, directory)
    record = ownership.remove(directory, agent_id, options.generation)
    if record is None:
        raise OwnershipLost(f"nothing is published for {agent_id}")
    forget_adopted(settings, directory, record)
    agent_lookup.tell(options, record, f"{record.agent_name} is free")
    return 0


def _owned_id(options: argparse.Namespace, settings: Settings, directory: Directory) -> str:
    """The id under which that generation published, also when its lease has run out; for what was never published,
    the id it would have."""
    found = agent_lookup.find(options, settings, directory)
    for entry in found.entries:
        if entry.record is not None and entry.record.generation_id == options.generation:
            return entry.agent_id
    if found.record is not None:
        return found.record.agent_id
    if found.entries:
        return found.entries[0].agent_id
    found.found()
    raise AssertionError("unreachable")


def _lease_ns(options: argparse.Namespace) -> int:
    try:
        return ownership.check_lease(parse_duration("--lease", options.lease))
    except InvalidValue as error:
        raise InvalidValue("--lease", error.why) from None


# -- cleanup -------------------------------------------------------------------------------------------------


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


_AGENT = (opt.AGENT_NAME, opt.BY_ID)
_GENERATION = opt.GENERATION.but(required=True, help="refuse unless this generation owns the name")
_DEFINITION = (
    opt.AGENT_DEF_DIR.but(help="use this definition folder (default: the one in the record)"),
    opt.NEED_AGENT_DEF_DIR,
)
VERBS = (
    Verb(
        "agent",
        (opt.DIRECTORY, opt.JSON),
        actions=(
            Verb(
                "publish",
                (
                    opt.NAME.but(help="publish this name, with or without its prefix"),
                    opt.SESSION.but(metavar="S", help="publish this tmux session (default: the one named NAME)"),
                    opt.TMUX_SOCKET,
                    opt.MANIFEST,
                    opt.TOOL,
                    opt.AGENT_ID,
                    opt.GENERATION,
                    opt.AGENT_DEF_DIR,
                    opt.TAKEOVER,
                    opt.NO_TMUX_CHECK,
                    opt.NAME_LEASE,
                ),
                _with_directory(_publish),
                "give a name to a tmux session until its lease expires",
            ),
            Verb(
                "refresh",
                (*_AGENT, _GENERATION, opt.NAME_LEASE),
                _with_directory(_refresh),
                "extend the lease of a name that you own",
            ),
            Verb(
                "resolve",
                (*_AGENT, opt.EXPLAIN, opt.CONTROL, *_DEFINITION),
                _with_directory(agent_lookup.resolve_name),
                "find the session that owns a name now",
            ),
            Verb("list", (), _with_directory(agent_lookup.list_names), "show all names, their owners and their leases"),
            Verb(
                "show",
                (*_AGENT, *_DEFINITION),
                _with_directory(agent_lookup.show),
                "print everything about one agent, and whether it can be controlled from this host",
            ),
            Verb("remove", (*_AGENT, _GENERATION), _with_directory(_remove), "remove a name that you own"),
            Verb(
                "cleanup",
                (
                    opt.GRACE_SECONDS,
                    # An option of its own: how argparse shows two names of one option depends on the Python version.
                    opt.GRACE.but(
                        type=str,
                        dest="grace_seconds",
                        default=argparse.SUPPRESS,
                        help="set --grace-seconds, by another name (default: 300)",
                    ),
                    opt.DRY_RUN,
                    opt.NO_TMUX_CHECK.but(help="decide by the lease alone (default: ask tmux too)"),
                ),
                _with_directory(_cleanup),
                "remove entries that are expired, missing or malformed, with a reason for each",
            ),
            Verb(
                "watch",
                (
                    opt.AGENT_NAME.but(nargs="?", help="watch only this agent, by name or id (default: all)"),
                    opt.BY_ID,
                    opt.INTERVAL.but(default=1.0, help="look every S seconds (default: 1)"),
                    opt.TIMEOUT.but(
                        type=opt.time_limit("--timeout", zero=True),
                        dest="timeout",
                        help="stop after this long with exit code 2: seconds, or such as 90s, 10m, 2h (default: never)",
                    ),
                ),
                _with_directory(agent_lookup.watch),
                "print changes of the directory as they happen",
            ),
        ),
    ),
)
