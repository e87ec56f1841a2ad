"""agent publish | refresh | remove | cleanup: own a name in the directory of live agents. The table of all actions."""

from __future__ import annotations

import argparse
import os

from baton.cli import agent_lookup
from baton.cli import options as opt
from baton.cli.agent_lookup import find, print_record, with_directory
from baton.cli.options import parse_duration
from baton.cli.output import json_text, on_terminal, say
from baton.cli.parser import Verb
from baton.config import Settings
from baton.core.errors import ControlRefused, InvalidValue, OwnershipLost
from baton.core.fields import one_line, printable
from baton.live_agents import ownership
from baton.live_agents.contract import Directory
from baton.live_agents.names import Names, check_agent_id
from baton.live_agents.record import AgentRecord, in_seconds, new_generation_id
from baton.sessions import live_agent_cleanup
from baton.sessions.adopt import LeftOver, adopt, forget_adopted
from baton.sessions.live_agent_control import control_target
from baton.sessions.manifest import Manifest, read_manifest


@with_directory
def publish(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
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
        return _print_published(options, ownership.publish(directory, record, takeover=options.takeover))
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
    return _print_published(options, stored)


def _matching_manifest(options: argparse.Namespace, name: str, path: str) -> Manifest:
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


def _print_published(options: argparse.Namespace, record: AgentRecord) -> int:
    print_record(options, record)
    if not options.json:
        say(f"{record.agent_name} is published until {in_seconds(record.lease_expires_at)}")
    return 0


@with_directory
def refresh(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    agent_id = _owned_id(options, settings, directory)
    record = ownership.refresh(directory, agent_id, options.generation, lease_ns=_lease_ns(options))
    return _print_published(options, record)


@with_directory
def remove(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    agent_id = _owned_id(options, settings, directory)
    record = ownership.remove(directory, agent_id, options.generation)
    if record is None:
        raise OwnershipLost(f"nothing is published for {agent_id}")
    forget_adopted(settings, directory, record)
    print_record(options, record)
    if not options.json:
        say(f"{record.agent_name} is removed")
    return 0


def _owned_id(options: argparse.Namespace, settings: Settings, directory: Directory) -> str:
    """Return the id under which the generation published, also after its lease expired.

    For a name that was never published, return the id that it would have."""
    found = find(options, settings, directory)
    for entry in found.entries:
        if entry.record is not None and entry.record.generation_id == options.generation:
            return entry.agent_id
    if found.record is None and found.entries:
        return found.entries[0].agent_id
    return found.found().agent_id


def _lease_ns(options: argparse.Namespace) -> int:
    return ownership.check_lease(parse_duration("--lease", options.lease), "--lease")


@with_directory
def cleanup(options: argparse.Namespace, settings: Settings, directory: Directory) -> int:
    shown, failed = [], False
    for each in live_agent_cleanup.cleanup(
        settings,
        directory,
        tmux_check=not options.no_tmux_check,
        grace_sec=_grace_sec(options.grace_seconds),
        dry_run=options.dry_run,
    ):
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
        elif each.action is not live_agent_cleanup.Action.KEEP or each.failed or options.dry_run or on_terminal():
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
    Verb("resolve", (*_AGENT, opt.EXPLAIN, opt.CONTROL, *_DEFINITION), agent_lookup.resolve_name,
         "find the session that owns a name now"),
    Verb("list", (), agent_lookup.list_names, "show all names, their owners and their leases"),
    Verb("show", (*_AGENT, *_DEFINITION), agent_lookup.show,
         "print everything about one agent, and whether it can be controlled from this host"),
    Verb("remove", (*_AGENT, _GENERATION), remove, "remove a name that you own"),
    Verb("cleanup", (
        opt.GRACE_SECONDS,
        # An option of its own: how argparse shows two names of one option depends on the Python version.
        opt.GRACE.but(
            type=str, dest="grace_seconds", default=argparse.SUPPRESS, help="set --grace-seconds (default: 300)"
        ),
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
    ), agent_lookup.watch, "print changes of the directory as they happen"),
)  # fmt: skip
VERBS = (Verb("agent", (opt.DIRECTORY, opt.JSON), actions=_ACTIONS),)
