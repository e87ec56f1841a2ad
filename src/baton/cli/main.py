"""`baton`: finds the verb, loads the one module that knows it, and turns errors into one line and a code."""

from __future__ import annotations

import argparse
import io
import os
import sys

from baton.core.errors import BatonError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Final, NoReturn

    # One line of help, what adds its options, what runs it.
    VerbAction = tuple[str, Callable[[argparse.ArgumentParser], None] | None, Callable[..., int]]

USAGE = 64
INTERRUPTED = 130

# verb: (module under baton.cli, one line of help)
VERBS: Final = {
    "submit": ("submit", "hand work to an agent in tmux and stay until it is truly done"),
    "worker": ("worker", "keep taking jobs of a queue, each in a session of its own"),
    "monitor": ("monitor", "notice what died, was forgotten or takes too long, and put it right"),
    "register": ("jobs", "hand in a piece of work; prints its id"),
    "list": ("list", "show jobs, newest first"),
    "get": ("jobs", "print one job as JSON"),
    "status": ("jobs", "print or set the status of a job"),
    "pick": ("jobs", "claim the next pending job of a session; prints its id"),
    "renew": ("jobs", "prolong the lease of a job you picked"),
    "release": ("jobs", "hand a running job back, for whoever picks next"),
    "cancel": ("jobs", "cancel a job; its agent is ended a moment later"),
    "retry": ("submit", "do a job once more, as a new one"),
    "wait": ("wait", "wait for jobs; the exit code says how they ended"),
    "attach": ("attach", "look at the session that works on a job, and type into it"),
    "publish": ("publish", "say how a job is going: an event, signed and sent"),
    "subscribe": ("subscribe", "print the events of jobs as they come, until they are over"),
    "watch": ("subscribe", "the same as subscribe"),
    "logs": ("logs", "read and verify the audit log of a job"),
    "session": ("session", "agents in tmux: create, stop, resume, list, show, attach, send, capture, prune"),
    "agent": ("agent", "the directory of live agents: publish, refresh, resolve, list, show, remove, cleanup, watch"),
    "registry": ("registry", "look after the job registry: stats, rescue, migrate, prune"),
    "broker": ("broker", "the local broker, and others: up, down, status, logs, init, check"),
    "config": ("settings", "show every setting and where it comes from"),
    "doctor": ("doctor", "check what baton needs and what is wrong"),
    "skills": ("skills", "give agents the skills to use baton: install, list"),
    "completion": ("completion", "print what makes bash, zsh or fish complete baton's commands"),
    "demo": ("demo", "three agents at work, in half a minute, leaving nothing behind"),
    "version": ("settings", "print the version"),
    "hook": ("hook", ""),  # called by agents, not by people
}
# Options that every verb takes, also in front of the verb; the value says whether a value follows.
_EVERYWHERE: Final = {
    "--home": True,
    "--registry": True,
    "--registry-dir": True,
    "--allow-network-fs": False,
    "--debug": False,
}


def _formatter(prog: str) -> argparse.HelpFormatter:
    """A formatter that is told its width; one that has to find out imports shutil, for every argument."""
    columns = os.environ.get("COLUMNS", "")
    return argparse.HelpFormatter(prog, width=max(int(columns), 40) if columns.isdecimal() else 100)


class Described(Exception):
    """In place of running a verb: its parser, for whoever writes about it."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line exits with 64: its own 2 means "timed out" here."""

    describing = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if Parser.describing:
            raise Described(self)
        for each in args:
            option, _, value = each.partition("=")
            if each == "--":
                break
            if option.startswith("--") and value == "--":
                self.error(f"argument {option}: -- cannot be its value")  # argparse would make a list of it
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        print(f"baton: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(USAGE)


def verb_parser(verb: str) -> Parser:
    """An empty parser for a verb, with the options that every verb takes."""
    parser = Parser(prog=f"baton {verb}", description=sentence(VERBS[verb][1]))
    add_common(parser)
    return parser


def action_parser(
    verb: str,
    description: str,
    actions: Mapping[str, VerbAction],
    everywhere: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> Parser:
    """A parser for a verb that has actions. `--json`, the options that every verb takes and what `everywhere` adds may
    stand in front of the action as well as behind it."""

    def add_shared(each: argparse.ArgumentParser) -> None:
        add_common(each)
        everywhere(each)
        each.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print data as JSON")

    parser = Parser(prog=f"baton {verb}", description=description)
    parser.set_defaults(json=False)
    add_shared(parser)
    choices = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    for name, (text, add_options, _) in actions.items():
        action = choices.add_parser(name, help=text, description=sentence(text))
        add_shared(action)
        if add_options is not None:
            add_options(action)
    return parser


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def add_common(parser: argparse.ArgumentParser) -> None:
    # SUPPRESS: an option that was given in front of an action is not undone by the action's own default.
    common = parser.add_argument_group("everywhere", argument_default=argparse.SUPPRESS)
    common.add_argument("--home", metavar="DIR", help="where baton keeps its state (default: .hermes)")
    common.add_argument("--registry", metavar="URL", help="sqlite:PATH, file:DIR or postgresql://...")
    common.add_argument("--registry-dir", metavar="DIR", help="folder of the registry (default: jobs in --home)")
    common.add_argument("--allow-network-fs", action="store_true", help=argparse.SUPPRESS)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")


def describe(verb: str) -> Parser:
    """The parser of a verb, without running it."""
    from importlib import import_module

    module = import_module(f"baton.cli.{VERBS[verb][0]}")
    Parser.describing = True
    try:
        module.run(verb, [])
    except Described as described:
        return described.parser
    finally:
        Parser.describing = False
    raise AssertionError(f"{verb} has no parser")


def overview() -> str:
    shown = {verb: text for verb, (_, text) in VERBS.items() if text}
    width = max(map(len, shown))
    lines = [
        "usage: baton VERB [options]",
        "",
        "Hands work to CLI coding agents in tmux and always knows what became of it.",
        "",
        *(f"  {verb:<{width}}  {text}" for verb, text in shown.items()),
        "",
        "baton VERB --help tells more. Exit codes: 0 ok, 1 refused or failed, 2 timed out, 3 nothing to pick,",
        "4 cancelled, 64 wrong command line, 130 interrupted (129, 143: by SIGHUP, SIGTERM).",
    ]
    return "\n".join(lines)


def split_verb(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The verb, and all other arguments: options may stand in front of it."""
    front: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-h", "--help"):
            return None, ["--help"]
        if option in ("-V", "--version"):
            return "version", []
        front.append(option)
        if _EVERYWHERE.get(option) and rest:
            front.append(rest.pop(0))
    if not rest:
        return None, front
    if rest[0] == "help":
        return (rest[1], ["--help"]) if len(rest) > 1 else (None, ["--help"])
    return rest[0], front + rest[1:]


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    verb, rest = split_verb(arguments)
    if verb is None:
        if rest not in ([], ["--help"]):
            print("baton: a verb is missing; see `baton --help`", file=sys.stderr)
            return USAGE
        print(overview(), file=sys.stdout if rest else sys.stderr)
        return 0 if rest else USAGE
    if verb not in VERBS:
        from difflib import get_close_matches

        near = get_close_matches(verb, VERBS, 1, 0.7)
        hint = f"did you mean `baton {near[0]}`?" if near else "see `baton --help`"
        print(f"baton: there is no verb {verb[:40]!r}; {hint}", file=sys.stderr)
        return USAGE
    from importlib import import_module

    module = import_module(f"baton.cli.{VERBS[verb][0]}")
    try:
        code: int = module.run(verb, rest)
        sys.stdout.flush()
    except BatonError as error:
        if _debugging(rest):
            import traceback

            traceback.print_exc()
        _complain(str(error))
        return error.exit_code
    return code


def _debugging(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in options


def _complain(message: str) -> None:
    """One line, whatever stands in the message: parts of it may come from files and from others."""
    flat = " ".join(message.split())
    print("baton: " + "".join(each if each.isprintable() else "\ufffd" for each in flat), file=sys.stderr)


def _prepare_streams() -> None:
    """What is printed may hold any character, whatever the terminal can show; and it must have somewhere to go."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the life of the process
    if sys.stdout is None:
        raise BatonError("standard output is closed; send it somewhere, /dev/null if nowhere else")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="backslashreplace")


def run() -> NoReturn:
    """The `baton` command."""
    try:
        _prepare_streams()
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except SystemExit as stop:  # argparse, after --help or a wrong option
        sys.stdout.flush()
        code = stop.code if isinstance(stop.code, int) else 1
    except BatonError as error:
        _complain(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = 1  # the reader of our output has gone, as with `baton list | head`
    except OSError as error:
        if _debugging(sys.argv):
            raise
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        code = 1
    except Exception as error:
        if _debugging(sys.argv):
            raise
        _complain(f"unexpected {type(error).__name__}: {error}; run it again with --debug and report what it shows")
        code = 1
    sys.stderr.flush()
    # Everything is closed and written; taking the interpreter apart would only cost 5 ms.
    os._exit(code)
