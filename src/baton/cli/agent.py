"""agent publish | refresh | resolve | list | show | remove | cleanup | watch: the directory of live agents."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import BatonError, ControlRefused, InvalidValue, OwnershipLost, RegistryUnavailable
from baton.core.fields import one_line, printable
from baton.live_agents import open_directory, ownership
from baton.live_agents.contract import Directory
from baton.live_agents.names import Names, check_agent_id
from baton.live_agents.record import AgentRecord, Entry, State, in_seconds, new_generation_id
from baton.live_agents.resolve import Resolution, resolve
from baton.sessions.adopt import LeftOver, adopt, forget_adopted
from baton.sessions.live_agents import Action, control_target
from baton.sessions.live_agents import cleanup as clean_up
from baton.sessions.manifest import Manifest, read_manifest

_OK = "ok"


def _with_directory(action: Callable[..., int | None]) -> Callable[[Options, Settings], int | None]:
    """Open the directory for the time of an action, and pass it as a third argument."""

    def run(options: Options, settings: Settings) -> int | None:
        with open_directory(settings) as directory:
            return action(options, settings, directory)

    return run


@_with_directory
def resolve_name(options: Options, settings: Settings, directory: Directory) -> int:
    found = _find(options, settings, directory)
    if options.explain and options.json:
        shown = _explain(options, settings, directory, found, control=options.control)
        print(json_text(shown, indent=2))
        return 0 if found.record is not None and shown.get("control", _OK) == _OK else 1
    if options.explain:
        for entry in found.entries:
            named = f" of {entry.record.agent_name}" if entry.record else ""
            say(f"examined {entry.agent_id}{named}: {entry.state}{entry.why and ': ' + entry.why}")
        say(f"{found.reason}: {found.text}")
        if found.record is None:
            return 1
    record = found.found()
    if options.control:
        _check_control(options, settings, record)
    _print_record(options, record)
    return 0


def _explain(
    options: Options, settings: Settings, directory: Directory, found: Resolution, *, control: bool
) -> dict[str, object]:
    """Return the result of a look-up as JSON. `control`: say whether the agent can be controlled: `ok`, or why not."""
    shown: dict[str, object] = {
        "record": found.record.record() if found.record else None,
        "reason": found.reason,
        "explanation": found.text,
        "looked_at": [_entry_json(entry, directory.now_ns()) for entry in found.entries],
    }
    if control and found.record is not None:
        try:
            _check_control(options, settings, found.record)
            shown["control"] = _OK
        except BatonError as error:
            shown["control"] = str(error)
    return shown


def _check_control(options: Options, settings: Settings, record: AgentRecord) -> None:
    need, folder = options.need_agent_def_dir, options.agent_def_dir
    control_target(record, host=settings.host, needs_agent_def_dir=need, agent_def_dir=folder)


@_with_directory
def list_names(options: Options, settings: Settings, directory: Directory) -> None:
    now_ns = directory.now_ns()
    entries = list(directory.all())
    fresh = Counter(entry.record.agent_name for entry in entries if entry.record and entry.state is State.FRESH)

    def verdict(entry: Entry) -> str:
        shared = entry.record is not None and entry.state is State.FRESH and fresh[entry.record.agent_name] > 1
        return "ambiguous" if shared else entry.state.value

    if options.json:
        print(json_text([_entry_json(entry, now_ns) | {"verdict": verdict(entry)} for entry in entries], indent=2))
        return
    if not entries:
        say("no live agents")
        return
    rows, colours = [], []
    for entry in sorted(entries, key=lambda entry: (entry.record.agent_name if entry.record else "~", entry.agent_id)):
        name, host, session, left = "?", "", "", entry.why
        if (record := entry.record) is not None:
            name, host, session = record.agent_name, record.host or settings.host, record.session_name
            left = _left(record, now_ns)
        rows.append((name, verdict(entry), entry.agent_id, host, session, left))
        colours.append({"fresh": "green", "expired": "yellow"}.get(verdict(entry), "red"))
    print_table(("NAME", "VERDICT", "ID", "HOST", "SESSION", "LEASE LEFT"), rows, colours)


@_with_directory
def show(options: Options, settings: Settings, directory: Directory) -> int:
    found = _find(options, settings, directory)
    if found.record is None and not found.entries:
        found.found()
    print(json_text(_explain(options, settings, directory, found, control=True), indent=2))
    return 0 if found.record is not None else 1


@_with_directory
def watch(options: Options, settings: Settings, directory: Directory) -> int:
    if not 0 < options.interval < float("inf"):
        raise InvalidValue("--interval", "must be more than 0")
    end = None if options.timeout is None else time.monotonic() + options.timeout
    before: dict[str, Entry] | None = None
    away = False
    while True:
        try:
            entries = directory.all() if options.name is None else _find(options, settings, directory).entries
            now = {entry.agent_id: entry for entry in entries}
            for change, entry in _changes(before or {}, now):
                now_ns = directory.now_ns()
                shown = {"change": change} | _entry_json(entry, now_ns)
                print(json_text(shown) if options.json else _change_text(change, entry, now_ns), flush=True)
            before, away = now, False
        except RegistryUnavailable as error:
            if before is None:
                raise
            if not away:
                say(f"baton: {error}; trying again")
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


def _change_text(change: str, entry: Entry, now_ns: int) -> str:
    name = entry.record.agent_name if entry.record else entry.agent_id
    more = f"session {entry.record.session_name}, {_left(entry.record, now_ns)} left" if entry.record else entry.why
    return f"{time.strftime('%H:%M:%S')}  {change:<9}  {name}  {entry.state}  {one_line(more, 1000)}"


def _find(options: Options, settings: Settings, directory: Directory) -> Resolution:
    return resolve(directory, Names(settings.agent_name_prefix), options.name, by_id=options.id)


def _print_record(options: Options, record: AgentRecord, note: str | None = None) -> None:
    """Print the record as JSON, or a line for scripts: name, id, generation, session, socket, host; and a note."""
    if options.json:
        print(json_text(record.record(), indent=2))
        return
    fields = (record.agent_name, record.agent_id, record.generation_id, record.session_name, record.socket, record.host)
    print("\t".join(field or "-" for field in fields))
    if note is not None:
        say(note)


def _entry_json(entry: Entry, now_ns: int) -> dict[str, object]:
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
    """Return how long the lease lasts, rounded up: a new lease of 24h is shown as 24h."""
    left_ns = record.expires_ns() - now_ns
    if left_ns < 0:
        return "none"
    seconds = -(-left_ns // 10**9)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{-(-seconds // size)}{unit}"
    return f"{seconds}s"


@_with_directory
def publish(options: Options, settings: Settings, directory: Directory) -> None:
    names = Names(settings.agent_name_prefix)
    name = names.canonical(options.name)
    lease_ns = _lease_ns(options)
    agent_def_dir = options.agent_def_dir and os.path.abspath(options.agent_def_dir)
    if options.manifest is not None:
        path = os.path.abspath(options.manifest)
        manifest = _matching_manifest(options, name, path)
        names.explicit_id(manifest.agent_id)
        record = manifest.replace(host=manifest.host or settings.host).agent_record(
            path, now_ns=directory.now_ns(), lease_ns=lease_ns, agent_def_dir=agent_def_dir
        )
        if not options.no_tmux_check:
            try:
                control_target(record, host=settings.host)
            except ControlRefused as error:
                raise ControlRefused(f"{error}; --no-tmux-check publishes it anyway") from None
        stored = ownership.publish(directory, record, takeover=options.takeover)
    else:
        stored = adopt(
            settings,
            directory,
            agent_name=name,
            agent_id=names.id_of(name, options.agent_id),
            generation_id=check_agent_id(options.generation or new_generation_id(), "generation id"),
            tool=options.tool or settings.agent,
            session_name=options.session or names.bare(options.name),
            lease_ns=lease_ns,
            agent_def_dir=agent_def_dir,
            takeover=options.takeover,
        )
    _print_published(options, stored)


def _matching_manifest(options: Options, name: str, path: str) -> Manifest:
    """Read the manifest that --manifest names; refuse options that contradict it."""
    manifest = read_manifest(path)
    for option, value in (
        ("session", manifest.session_name), ("tmux_socket", manifest.socket), ("tool", manifest.tool),
        ("agent_id", manifest.agent_id), ("generation", manifest.generation_id),
    ):  # fmt: skip
        if getattr(options, option) not in (None, value):
            raise InvalidValue("--" + option.replace("_", "-"), f"is {value!r} in the manifest; leave it out")
    if manifest.agent_name != name:
        raise InvalidValue("--manifest", f"belongs to {manifest.agent_name}, not to {name}")
    return manifest


def _print_published(options: Options, record: AgentRecord) -> None:
    _print_record(options, record, f"{record.agent_name} is published until {in_seconds(record.lease_expires_at)}")


@_with_directory
def refresh(options: Options, settings: Settings, directory: Directory) -> None:
    lease_ns = _lease_ns(options)
    agent_id = _owned_id(options, settings, directory)
    record = ownership.refresh(directory, agent_id, options.generation, lease_ns=lease_ns)
    _print_published(options, record)


@_with_directory
def remove(options: Options, settings: Settings, directory: Directory) -> None:
    agent_id = _owned_id(options, settings, directory)
    record = ownership.remove(directory, agent_id, options.generation)
    if record is None:
        raise OwnershipLost(f"nothing is published for {agent_id}")
    forget_adopted(settings, directory, record)
    _print_record(options, record, f"{record.agent_name} is removed")


def _owned_id(options: Options, settings: Settings, directory: Directory) -> str:
    """Return the id under which the generation published, also after its lease expired.

    For a name that was never published, return the id that it would have."""
    found = _find(options, settings, directory)
    for entry in found.entries:
        if entry.record is not None and entry.record.generation_id == options.generation:
            return entry.agent_id
    if found.record is None and found.entries:
        return found.entries[0].agent_id
    return found.found().agent_id


def _lease_ns(options: Options) -> int:
    return ownership.check_lease(parse_duration("--lease", options.lease), "--lease")


@_with_directory
def cleanup(options: Options, settings: Settings, directory: Directory) -> int:
    shown, failed = [], False
    grace_sec, ask_tmux = _grace_sec(options.grace_seconds), not options.no_tmux_check
    for each in clean_up(settings, directory, tmux_check=ask_tmux, grace_sec=grace_sec, dry_run=options.dry_run):
        if isinstance(each, LeftOver):
            failed = failed or each.error is not None
            if each.error is not None:
                say(f"baton: cannot remove {each.path}, a manifest without an agent: {each.error}")
            elif not options.json:
                say(f"{'would remove' if options.dry_run else 'removed'} {each.path}, a manifest without an agent")
            continue
        failed = failed or each.failed
        name = each.entry.record.agent_name if each.entry.record else None
        why = one_line(each.why, 1000)
        if options.json:
            shown.append({"agent_id": each.entry.agent_id, "agent_name": name, "action": each.action, "why": why})
        elif each.action is not Action.KEEP or each.failed or options.dry_run or on_terminal():
            action = f"would {each.action}" if options.dry_run else each.action
            print(f"{action}\t{name or printable(each.entry.agent_id)}\t{why}")
    if options.json:
        print(json_text(shown, indent=2))
    return 1 if failed else 0


def _grace_sec(text: str) -> float:
    """Parse seconds without a unit, or a duration with its unit."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration("--grace-seconds", text) / 10**9
    if not 0 <= seconds < float("inf"):
        raise InvalidValue("--grace-seconds", "must be 0 seconds or more, or a duration such as 15m")
    return seconds


_AGENT = (opt.AGENT_NAME, opt.BY_ID)
_GENERATION = opt.GENERATION.but(required=True, help="refuse unless this generation owns the name")
_DEFINITION = (
    opt.AGENT_DEF_DIR.but(help="use this definition folder (default: the one in the record)"),
    opt.NEED_AGENT_DEF_DIR,
)
_ACTIONS = (
    Verb("publish", (
        opt.NAME.but(help="publish this name, with or without its prefix"),
        opt.SESSION.but(metavar="S", help="publish this tmux session (default: the one named NAME)"),
        opt.TMUX_SOCKET, opt.MANIFEST, opt.TOOL, opt.AGENT_ID, opt.GENERATION, opt.AGENT_DEF_DIR, opt.TAKEOVER,
        opt.NO_TMUX_CHECK, opt.NAME_LEASE,
    ), publish, "give a name to a tmux session until its lease expires"),
    Verb("refresh", (*_AGENT, _GENERATION, opt.NAME_LEASE), refresh, "extend the lease of a name that you own"),
    Verb("resolve", (*_AGENT, opt.EXPLAIN, opt.CONTROL, *_DEFINITION), resolve_name,
         "find the session that owns a name now"),
    Verb("list", (), list_names, "show all names, their owners and their leases"),
    Verb("show", (*_AGENT, *_DEFINITION), show,
         "print everything about one agent, and whether it can be controlled from this host"),
    Verb("remove", (*_AGENT, _GENERATION), remove, "remove a name that you own"),
    Verb("cleanup", (
        opt.GRACE_SECONDS,
        opt.DRY_RUN,
        opt.NO_TMUX_CHECK.but(help="decide by the lease alone (default: ask tmux too)"),
    ), cleanup, "remove entries that are expired, missing or malformed, with a reason for each"),
    Verb("watch", (
        opt.AGENT_NAME.but(nargs="?", help="watch only this agent, by name or id (default: all)"),
        opt.BY_ID,
        opt.INTERVAL.but(default=1.0, help="look every S seconds (default: 1)"),
        opt.TIMEOUT.but(
            type=opt.time_limit("--timeout", zero=True),
            dest="timeout",
            help="stop after this long with exit code 2: seconds, or such as 90s, 10m, 2h (default: never)",
        ),
    ), watch, "print changes of the directory as they happen"),
)  # fmt: skip
VERBS = (Verb("agent", (opt.DIRECTORY, opt.JSON), actions=_ACTIONS),)
