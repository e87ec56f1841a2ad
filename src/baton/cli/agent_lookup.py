"""agent resolve | list | show | watch: read the directory of live agents."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator

from baton.cli.output import json_text, print_table, say
from baton.config import Settings
from baton.core.errors import BatonError, InvalidValue, RegistryUnavailable
from baton.core.fields import one_line
from baton.live_agents import open_directory
from baton.live_agents.contract import Directory
from baton.live_agents.names import Names
from baton.live_agents.record import AgentRecord, Entry, State
from baton.live_agents.resolve import Resolution, resolve
from baton.sessions.live_agent_control import control_target

Action = Callable[[argparse.Namespace, Settings, Directory], int]

_OK = "ok"
_COLOURS = {"fresh": "green", "expired": "yellow"}


def with_directory(action: Action) -> Callable[[argparse.Namespace, Settings], int]:
    """Open the directory for the time of an action, and pass it as a third argument."""

    def run(options: argparse.Namespace, settings: Settings) -> int:
        with open_directory(settings) as directory:
            return action(options, settings, directory)

    return run


@with_directory
def resolve_name(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    found = find(options, settings, directory)
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
    print_record(options, record)
    return 0


def _explain(
    options: argparse.Namespace, settings: Settings, directory: Directory, found: Resolution, *, control: bool
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


def _check_control(options: argparse.Namespace, settings: Settings, record: AgentRecord) -> None:
    need, folder = options.need_agent_def_dir, options.agent_def_dir
    control_target(record, host=settings.host, needs_agent_def_dir=need, agent_def_dir=folder)


@with_directory
def list_names(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    now_ns = directory.now_ns()
    entries = list(directory.all())
    fresh = Counter(entry.record.agent_name for entry in entries if entry.record and entry.state is State.FRESH)

    def verdict(entry: Entry) -> str:
        shared = entry.record is not None and entry.state is State.FRESH and fresh[entry.record.agent_name] > 1
        return "ambiguous" if shared else entry.state.value

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


@with_directory
def show(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    found = find(options, settings, directory)
    if found.record is None and not found.entries:
        found.found()
    print(json_text(_explain(options, settings, directory, found, control=True), indent=2))
    return 0 if found.record is not None else 1


@with_directory
def watch(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    if not 0 < options.interval < float("inf"):
        raise InvalidValue("--interval", "must be more than 0")
    end = None if options.timeout is None else time.monotonic() + options.timeout
    before: dict[str, Entry] | None = None
    away = False
    while True:
        try:
            entries = directory.all() if options.name is None else find(options, settings, directory).entries
            now = {entry.agent_id: entry for entry in entries}
            for change, entry in _changes(before or {}, now):
                _print_change(options, change, entry, directory.now_ns())
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


def _print_change(options: argparse.Namespace, change: str, entry: Entry, now_ns: int) -> None:
    if options.json:
        print(json_text({"change": change} | _entry_json(entry, now_ns)), flush=True)
        return
    name = entry.record.agent_name if entry.record else entry.agent_id
    more = f"session {entry.record.session_name}, {_left(entry.record, now_ns)} left" if entry.record else entry.why
    print(f"{time.strftime('%H:%M:%S')}  {change:<9}  {name}  {entry.state}  {one_line(more, 1000)}", flush=True)


def find(options: argparse.Namespace, settings: Settings, directory: Directory) -> Resolution:
    return resolve(directory, Names(settings.agent_name_prefix), options.name, by_id=options.id)


def print_record(options: argparse.Namespace, record: AgentRecord) -> None:
    """Print the record as JSON, or a line for scripts: name, id, generation, session, socket, host."""
    if options.json:
        print(json_text(record.record(), indent=2))
        return
    fields = (record.agent_name, record.agent_id, record.generation_id, record.session_name, record.socket, record.host)
    print("\t".join(field or "-" for field in fields))


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
