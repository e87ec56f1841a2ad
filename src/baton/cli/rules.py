"""rules list | add | remove | test: the user's rules, which answer requests of agents at once."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import json_text, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import rules_file
from baton.core.clock import format_time
from baton.core.errors import BatonError, InvalidValue, UsageError
from baton.core.job import DEFAULT_AGENT, agent_name
from baton.core.rule_file import RELEASE, format_rule, marks, parse_rules, read_rule, without_rule
from baton.core.rules import RuleBook, decide, plain_words
from baton.jobs.caller import refuse_agents, refuse_inside_session
from baton.jobs.rules import call_for_rules, read_text
from baton.storage.files import lock_within, make_private_dir, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_NEVER = "an allow rule matches no command with an active character, a line break or an assignment before the program"


def list_rules(options: Options) -> None:
    refuse_inside_session("rules")
    path, book = _path(), _book()
    found = marks(book)
    if options.json:
        named = {
            "rules": [each.as_dict() for each in book.rules],
            "answerers": [each.as_dict() for each in book.answerers],
            "marks": [each.as_dict() for each in found],
        }
        print(json_text({"path": path, **named}, indent=2))
        return
    if not book.rules and not book.answerers:
        say(f"there are no rules in {path}: every request is asked; `baton rules add` adds one")
        return
    notes = {mark.number: mark.describe() for mark in found}
    rows = [
        (str(number), rule.decision, rule.describe().partition(" ")[2], rule.expires or "-", notes.get(number, "-"))
        for number, rule in enumerate(book.rules, 1)
    ]
    rows += [
        ("-", "answerer", f"agent {each.agent}{f', label {each.label}' if each.label else ''}", "-", "-")
        for each in book.answerers
    ]
    print_table(("N", "DECISION", "MATCHES", "EXPIRES", "NOTE"), rows)
    if found and book.release is None:
        say(f'when you have read the notes, write release = "{RELEASE}" into the first line of {path}')


def add(options: Options) -> None:
    refuse_agents("rules")
    table = {
        "decision": options.decision,
        "agent": options.for_agent and agent_name(options.for_agent),
        "tool": options.tool,
        "command": None if options.command is None else _words(options.command),
        "path": options.path,
        "expires": options.expires and _moment(options.expires),
    }
    try:
        rule = read_rule(table)
    except ValueError as error:
        raise InvalidValue("rule", f"is not valid: {error}") from None
    with _changing() as (path, text):
        before = text.rstrip("\n") + "\n\n" if text.strip() else ""
        book = _parse(path, text)
        if book.release is None and not marks(book) and marks(RuleBook(rules=(rule,))):
            before = f'release = "{RELEASE}"\n\n{before}'  # no rule in it means less than it did
        _replace(path, before + format_rule(rule))
    print(json_text(rule.as_dict()) if options.json else f"added: {rule.describe()}")


def remove(options: Options) -> None:
    refuse_agents("rules")
    with _changing() as (path, text):
        rules = _parse(path, text).rules
        if options.number > len(rules):
            raise InvalidValue("N", f"must be from 1 to {len(rules)}; `baton rules list` shows the rules")
        try:
            left = without_rule(text, options.number)
        except ValueError as error:
            raise BatonError(f"{path} {error}") from None
        _replace(path, left)
    rule = rules[options.number - 1]
    print(json_text(rule.as_dict()) if options.json else f"removed: {rule.describe()}")


def test(options: Options) -> None:
    refuse_inside_session("rules")
    if (options.command is None) is (options.path is None) and options.tool is None:
        raise UsageError("give --command LINE, --path FILE, or --tool TOOL")
    workdir = os.path.abspath(options.workdir or os.getcwd())
    if not os.path.isdir(workdir):
        raise InvalidValue("--workdir", f"{options.workdir!r} is not a folder")
    arguments = {name: value for name in ("command", "path") if (value := getattr(options, name)) is not None}
    call = call_for_rules(
        agent_name(options.for_agent or DEFAULT_AGENT),
        options.tool or ("Bash" if options.command is not None else "Edit"),
        arguments,
        exact=True,
        workdir=workdir,
        env=os.environ,
    )
    book = _book()
    rule = decide(book.rules, call, now_ns=time.time_ns())
    decision = "ask" if rule is None else rule.decision
    number = None if rule is None else book.rules.index(rule) + 1
    if options.json:
        print(json_text({"decision": decision, "rule": None if rule is None else rule.as_dict(), "number": number}))
        return
    print(f"{decision}: " + ("no rule matches" if rule is None else f"rule {number}: {rule.describe()}"))
    if rule is None and call.command is not None and plain_words(call.command) is None:
        say(f"{_NEVER}; see docs/how-to/rules.md")


def _path() -> str:
    if not (path := rules_file(os.environ)):
        raise InvalidValue("HOME", "is not set, and this user has no home folder")
    return path


def _book() -> RuleBook:
    path = _path()
    try:
        return _parse(path, read_text(path))
    except FileNotFoundError:
        return RuleBook()
    except ValueError as error:
        raise BatonError(f"{path} {error}; no rule is used until it is fixed") from None


def _parse(path: str, text: str) -> RuleBook:
    try:
        return parse_rules(text)
    except ValueError as error:
        raise BatonError(f"{path} {error}; no rule is used until it is fixed") from None


@contextmanager
def _changing() -> Iterator[tuple[str, str]]:
    """Keep other commands from changing the rules meanwhile. Give the real path of the file, and its text."""
    path = os.path.realpath(_path())
    folder = os.path.dirname(path)
    make_private_dir(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_within(fd, folder)
        try:
            text = read_text(path)
        except FileNotFoundError:
            text = ""
        except ValueError as error:
            raise BatonError(f"{path} {error}; nothing was changed") from None
        yield path, text
    finally:
        os.close(fd)


def _replace(path: str, text: str) -> None:
    _parse(path, text)
    replace_file(path, text.encode())


def _words(line: str) -> list[str]:
    """Return the words of a command as the user typed it, with quotes."""
    from shlex import split

    try:
        words = split(line)
    except ValueError:
        raise InvalidValue("--command", "has a quote that is not closed") from None
    if not words:
        raise InvalidValue("--command", "must not be empty")
    return words


def _moment(text: str) -> str:
    """Return when a rule expires: after a duration such as 8h, or at a date or a time."""
    try:
        return format_time(time.time_ns() + parse_duration("--expires", text))
    except InvalidValue:
        return text  # a date or a time


_TOOL = opt.TOOL.but(
    metavar="TOOL", help="match calls of this tool, such as Bash, Edit, WebFetch (default: every tool)"
)
_AGENT = opt.AGENT.but(dest="for_agent", help="match calls of this agent (default: every agent)")
_ACTIONS = (
    Verb("list", (), list_rules, "print every rule with its number", reads_settings=False),
    Verb("add", (
        opt.DECISION, _TOOL,
        opt.RULE_COMMAND.but(
            help="match this command: to allow, exactly these words, with * as the last word also further words that "
            "are no options, with ** any further words; to deny or ask, every command in which they occur (default: "
            "every call)",
        ),
        opt.RULE_PATH.but(
            help="match calls for this file or folder, in the work folder (default: every call)",
        ),
        _AGENT, opt.EXPIRES,
    ), add, "add a rule to your rules file", reads_settings=False),
    Verb("remove", (opt.RULE_NUMBER,), remove, "remove a rule by its number", reads_settings=False),
    Verb("test", (
        opt.RULE_COMMAND.but(help="decide about this command line (default: none)"),
        opt.RULE_PATH.but(help="decide about a tool that uses this file (default: none)"),
        _TOOL.but(help="decide about this tool (default: Bash with --command, Edit with --path)"),
        _AGENT.but(help="decide about a call of this agent (default: claude-code)"),
        opt.WORKDIR,
    ), test, "print which rule decides about a command, a file or a tool", reads_settings=False),
)  # fmt: skip
VERBS = (Verb("rules", (opt.JSON,), actions=_ACTIONS),)
