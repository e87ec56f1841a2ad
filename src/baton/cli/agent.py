"""agent publish | refresh | resolve | list | show | remove | cleanup | watch"""

from __future__ import annotations

import argparse
import os
import time

from baton.cli.main import Parser, add_common, sentence
from baton.cli.output import json_text, on_terminal, one_line, parse_duration, print_table, say
from baton.config import Settings
from baton.directory import open_directory, ownership
from baton.directory.base import State
from baton.directory.names import Names, check_generation_id, derived_id
from baton.directory.record import in_seconds
from baton.directory.resolve import resolve
from baton.errors import BatonError, ControlRefused, InvalidValue, OwnershipLost, RegistryUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Final

    from baton.directory.base import Directory, Entry
    from baton.directory.record import AgentRecord
    from baton.directory.resolve import Resolution

_ACTIONS: Final = {
    "publish": "give a name to a tmux session, for as long as its lease lasts",
    "refresh": "prolong the lease of a name you own",
    "resolve": "find the session that owns a name now",
    "list": "show all names, who owns them, and for how long",
    "show": "print everything about one agent, and whether it can be controlled from here",
    "remove": "give a name back",
    "cleanup": "remove what is expired, missing or malformed, with a reason for each",
    "watch": "print changes as they happen",
}
_OK: Final = "ok"
_COLOURS: Final = {"fresh": "green", "expired": "yellow"}


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = Parser(prog=f"baton {verb}", description="The directory of live agents: a name leads to its session.")
    _common(parser)
    parser.set_defaults(json=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    for name, text in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=sentence(text))
        _common(action)
        _OPTIONS.get(name, lambda _: None)(action)
    options = parser.parse_args(arguments)
    settings = Settings(vars(options))
    directory = open_directory(settings)
    try:
        return _RUN[options.action](options, settings, directory)
    finally:
        directory.close()


def _common(parser: argparse.ArgumentParser) -> None:
    """What may stand in front of the action as well as behind it."""
    add_common(parser)
    parser.add_argument(
        "--directory",
        metavar="URL",
        default=argparse.SUPPRESS,
        help="file:/FOLDER or postgresql://... (default: your own)",
    )
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print data as JSON")


# -- publish, refresh, remove ------------------------------------------------------------------------------


def _publish_options(action: argparse.ArgumentParser) -> None:
    _name(action)
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
    _tell(options, stored, f"{stored.agent_name} is published until {in_seconds(stored.lease_expires_at)}")
    return 0


def _publish_session(options: argparse.Namespace, settings: Settings, directory: Directory) -> AgentRecord:
    from baton.directory.adopt import adopt
    from baton.directory.record import new_generation_id

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
    from baton.directory.control import control_target
    from baton.directory.record import new_record
    from baton.manifest import read_manifest

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
    _name_or_id(action)
    _generation(action)
    _lease(action)


def _refresh(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    agent_id = _owned_id(options, settings, directory)
    record = ownership.refresh(directory, agent_id, options.generation, lease_ns=_lease_ns(options))
    _tell(options, record, f"{record.agent_name} is published until {in_seconds(record.lease_expires_at)}")
    return 0


def _remove_options(action: argparse.ArgumentParser) -> None:
    _name_or_id(action)
    _generation(action)


def _remove(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    from baton.directory.adopt import forget_adopted

    agent_id = _owned_id(options, settings, directory)
    record = ownership.remove(directory, agent_id, options.generation)
    if record is None:
        raise OwnershipLost(f"nothing is published for {agent_id}")
    forget_adopted(settings, directory, record)
    _tell(options, record, f"{record.agent_name} is free")
    return 0


def _owned_id(options: argparse.Namespace, settings: Settings, directory: Directory) -> str:
    """The id under which that generation published, also when its lease has run out; for what was never published,
    the id it would have."""
    found = _find(options, settings, directory)
    for entry in found.entries:
        if entry.record is not None and entry.record.generation_id == options.generation:
            return entry.agent_id
    if found.record is not None:
        return found.record.agent_id
    if found.entries:
        return found.entries[0].agent_id
    found.found()
    raise AssertionError("unreachable")


# -- looking -------------------------------------------------------------------------------------------------


def _resolve_options(action: argparse.ArgumentParser) -> None:
    _name_or_id(action)
    action.add_argument("--explain", action="store_true", help="say what was looked at, and why it counts or not")
    action.add_argument("--control", action="store_true", help="also check that the session can be controlled")
    _def_dir(action)


def _resolve(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    found = _find(options, settings, directory)
    if options.explain and options.json:
        shown = _explained(found, directory)
        if options.control and found.record is not None:
            shown["control"] = _control(options, settings, found.record)
        print(json_text(shown, indent=2))
        return 0 if found.record is not None and shown.get("control", _OK) == _OK else 1
    if options.explain:
        for entry in found.entries:
            named = f" of {entry.record.agent_name}" if entry.record else ""
            say(one_line(f"looked at {entry.agent_id}{named}: {entry.state}{entry.why and ': ' + entry.why}", 1000))
        say(one_line(f"{found.reason}: {found.text}", 1000))
        if found.record is None:
            return 1
    record = found.found()
    if options.control:
        _target(options, settings, record)
    _tell(options, record, None)
    return 0


def _find(options: argparse.Namespace, settings: Settings, directory: Directory) -> Resolution:
    return resolve(directory, Names(settings.agent_name_prefix), options.name, by_id=options.id)


def _explained(found: Resolution, directory: Directory) -> dict[str, Any]:
    return {
        "record": found.record.record() if found.record else None,
        "reason": found.reason,
        "explanation": found.text,
        "looked_at": [_entry_json(entry, directory.now_ns()) for entry in found.entries],
    }


def _control(options: argparse.Namespace, settings: Settings, record: AgentRecord) -> str:
    """`ok`, or why it cannot be controlled."""
    try:
        _target(options, settings, record)
    except BatonError as error:
        return str(error)
    return _OK


def _target(options: argparse.Namespace, settings: Settings, record: AgentRecord) -> None:
    from baton.directory.control import control_target

    control_target(
        record,
        host=settings.host,
        needs_agent_def_dir=options.need_agent_def_dir,
        agent_def_dir=options.agent_def_dir,
    )


def _list(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    now_ns = directory.now_ns()
    entries = list(directory.all())
    times: dict[str, int] = {}
    for entry in entries:
        if entry.record is not None and entry.state is State.FRESH:
            times[entry.record.agent_name] = times.get(entry.record.agent_name, 0) + 1

    def verdict(entry: Entry) -> str:
        fresh = entry.record is not None and entry.state is State.FRESH
        return "ambiguous" if fresh and entry.record and times[entry.record.agent_name] > 1 else entry.state.value

    if options.json:
        print(json_text([_entry_json(entry, now_ns) | {"verdict": verdict(entry)} for entry in entries], indent=2))
        return 0
    if not entries:
        say("no live agents")
        return 0
    rows, colours = [], []
    for entry in sorted(entries, key=lambda entry: (entry.record.agent_name if entry.record else "~", entry.agent_id)):
        record = entry.record
        rows.append((
            record.agent_name if record else "?",
            verdict(entry),
            entry.agent_id,
            (record.host or settings.host) if record else "",
            record.session_name if record else "",
            _left(record, now_ns) if record else entry.why,
        ))  # fmt: skip
        colours.append(_COLOURS.get(verdict(entry), "red"))
    print_table(("NAME", "VERDICT", "ID", "HOST", "SESSION", "LEASE LEFT"), rows, colours)
    return 0


def _show_options(action: argparse.ArgumentParser) -> None:
    _name_or_id(action)
    _def_dir(action)


def _show(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    found = _find(options, settings, directory)
    if found.record is None and not found.entries:
        found.found()
    shown = _explained(found, directory)
    if found.record is not None:
        shown["control"] = _control(options, settings, found.record)
    print(json_text(shown, indent=2))
    return 0 if found.record is not None else 1


def _cleanup_options(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--grace-seconds", default="300", metavar="S", help="spare what is younger: 300 (default), 90s, 15m"
    )
    # An option of its own: how two names of one are shown depends on the Python.
    action.add_argument("--grace", dest="grace_seconds", default=argparse.SUPPRESS, metavar="S", help="the same")
    action.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    action.add_argument("--no-tmux-check", action="store_true", help="go by the lease alone, do not ask tmux")


def _cleanup(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    from baton.directory.adopt import forget_adopted, sweep_manifests
    from baton.directory.cleanup import Action, Observer, cleanup

    grace_sec = _grace_sec(options.grace_seconds)
    observer = None if options.no_tmux_check else Observer(settings.host)
    shown, failed = [], False
    for decision in cleanup(directory, observer=observer, grace_sec=grace_sec, dry_run=options.dry_run):
        entry = decision.entry
        failed = failed or decision.failed
        if decision.action is Action.REMOVE and entry.record is not None and not options.dry_run:
            forget_adopted(settings, directory, entry.record)
        name = entry.record.agent_name if entry.record else None
        why = one_line(decision.why, 1000)
        if options.json:
            shown.append({"agent_id": entry.agent_id, "agent_name": name, "action": decision.action, "why": why})
        elif decision.action is not Action.KEEP or decision.failed or options.dry_run or on_terminal():
            print(f"{'would ' if options.dry_run else ''}{decision.action}\t{name or entry.agent_id}\t{why}")
    for path in sweep_manifests(settings, directory, grace_sec=grace_sec, dry_run=options.dry_run):
        if not options.json:
            say(f"{'would remove' if options.dry_run else 'removed'} {one_line(path, 1000)}, the manifest of no agent")
    if options.json:
        print(json_text(shown, indent=2))
    return 1 if failed else 0


def _grace_sec(text: str) -> float:
    """Plain seconds, or a duration with its unit."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration("--grace-seconds", text) / 10**9
    if not 0 <= seconds < float("inf"):
        raise InvalidValue("--grace-seconds", "must be a number of seconds, 0 or more, or a duration such as 15m")
    return seconds


def _watch_options(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", nargs="?", metavar="NAME", help="only this agent, by name or id")
    _id(action)
    action.add_argument("--interval", type=float, default=1.0, metavar="S", help="look so often (default: 1)")
    action.add_argument("--timeout", type=float, metavar="S", help="stop after so long, with exit code 2")


def _watch(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    if not 0 < options.interval < float("inf"):
        raise InvalidValue("--interval", "must be more than 0")
    if options.timeout is not None and not options.timeout >= 0:
        raise InvalidValue("--timeout", "must not be negative")
    end = None if options.timeout is None else time.monotonic() + options.timeout
    before: dict[str, Entry] | None = None
    away = False
    while True:
        try:
            entries = directory.all() if options.name is None else _find(options, settings, directory).entries
            now = {entry.agent_id: entry for entry in entries}
            for change, entry in _changes(before or {}, now):
                _tell_change(options, change, entry, directory.now_ns())
            before, away = now, False
        except RegistryUnavailable as error:
            if before is None:
                raise
            if not away:
                say(one_line(f"baton: {error}; trying again", 1000))
            away = True
        left = options.interval if end is None else min(options.interval, end - time.monotonic())
        if left <= 0:
            return 2
        time.sleep(left)


def _changes(before: dict[str, Entry], now: dict[str, Entry]) -> Iterator[tuple[str, Entry]]:
    for agent_id, entry in now.items():
        old = before.get(agent_id)
        if old is None:
            yield "appeared", entry
        elif entry.record is None or old.record is None:
            if entry.state is not old.state:
                yield "changed", entry
        elif entry.record.generation_id != old.record.generation_id:
            yield "replaced", entry
        elif entry.record.lease_expires_at != old.record.lease_expires_at:
            yield "refreshed", entry
        elif entry.state is not old.state:
            yield "expired", entry
    for agent_id, entry in before.items():
        if agent_id not in now:
            yield "removed", entry


def _tell_change(options: argparse.Namespace, change: str, entry: Entry, now_ns: int) -> None:
    if options.json:
        print(json_text({"change": change} | _entry_json(entry, now_ns)), flush=True)
        return
    name = entry.record.agent_name if entry.record else entry.agent_id
    more = f"session {entry.record.session_name}, {_left(entry.record, now_ns)} left" if entry.record else entry.why
    print(f"{time.strftime('%H:%M:%S')}  {change:<9}  {name}  {entry.state}  {one_line(more, 1000)}", flush=True)


# -- what they share -----------------------------------------------------------------------------------------


def _name(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="the name, with or without its prefix")


def _name_or_id(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="the agent, by name or id")
    _id(action)


def _id(action: argparse.ArgumentParser) -> None:
    action.add_argument("--id", action="store_true", help="NAME is an id, and nothing else")


def _generation(action: argparse.ArgumentParser) -> None:
    action.add_argument("--generation", metavar="G", required=True, help="the generation you published with")


def _lease(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--lease", default="24h", metavar="AGE", help="how long it is yours: 90s, 15m, 24h (default), 7d"
    )


def _def_dir(action: argparse.ArgumentParser) -> None:
    action.add_argument("--agent-def-dir", metavar="DIR", help="use this one, whatever the record says")
    action.add_argument("--need-agent-def-dir", action="store_true", help="insist on one that is there")


def _lease_ns(options: argparse.Namespace) -> int:
    try:
        return ownership.checked_lease(parse_duration("--lease", options.lease))
    except InvalidValue as error:
        raise InvalidValue("--lease", error.why) from None


def _tell(options: argparse.Namespace, record: AgentRecord, done: str | None) -> None:
    """The record as JSON, or the line that a script cuts into fields: name, id, generation, session, socket, host."""
    if options.json:
        print(json_text(record.record(), indent=2))
        return
    fields = (record.agent_name, record.agent_id, record.generation_id, record.session_name, record.socket, record.host)
    print("\t".join(field or "-" for field in fields))
    if done is not None:
        say(done)


def _entry_json(entry: Entry, now_ns: int) -> dict[str, Any]:
    record = entry.record
    return {
        "agent_id": entry.agent_id,
        "agent_name": record.agent_name if record else None,
        "verdict": entry.state,
        "why": entry.why,
        "lease_left_sec": max(0, (record.expires_ns() - now_ns) // 10**9) if record else None,
        "record": record.record() if record else None,
    }


def _left(record: AgentRecord, now_ns: int) -> str:
    """Rounded up: a lease of 24h that was just given is one of 24h."""
    left_ns = record.expires_ns() - now_ns
    if left_ns < 0:
        return "none"
    seconds = -(-left_ns // 10**9)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{-(-seconds // size)}{unit}"
    return f"{seconds}s"


_OPTIONS: Final = {
    "publish": _publish_options,
    "refresh": _refresh_options,
    "resolve": _resolve_options,
    "show": _show_options,
    "remove": _remove_options,
    "cleanup": _cleanup_options,
    "watch": _watch_options,
}
_RUN: Final = {
    "publish": _publish,
    "refresh": _refresh,
    "resolve": _resolve,
    "list": _list,
    "show": _show,
    "remove": _remove,
    "cleanup": _cleanup,
    "watch": _watch,
}
