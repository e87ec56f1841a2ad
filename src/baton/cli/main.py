"""Run the `baton` command: find the verb, load its module, and turn errors into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from baton.cli.options import COMMON
from baton.cli.parser import Parser, Verb, build_parser, help_width
from baton.core.errors import BatonError, UsageError, describe_system_error

INTERRUPTED = 130

# heading in the overview: verb: (module below baton.cli, one line of help)
GROUPS = {
    "every day": {
        "submit": ("submit", "run a task with an agent in tmux and wait until its result is verified"),
        "list": ("listing", "show what each job is doing, how it ended and why"),
        "requests": ("requests", "show what agents ask: all open requests, or one with its whole call"),
        "approve": ("requests", "allow what an agent asks"),
        "deny": ("requests", "deny what an agent asks, with a reason for the agent"),
        "answer": ("requests", "answer the question of an agent"),
        "result": ("result", "print what a job left: the agent's last message, its output, or all of it as JSON"),
        "diff": ("worktree", "show what a job has changed in its git worktree"),
        "merge": ("worktree", "merge the work of a job with a git worktree into the current branch"),
        "board": ("board", "show the jobs of all your folders on the terminal, those first that need you"),
        "web": ("web", "show the jobs of all your folders in a browser, and answer, cancel, retry there"),
        "attach": ("session", "attach the terminal to the session that runs a job"),
        "explain": ("explain", "show what a job is doing and every fact that says so"),
        "wait": ("subscribe", "wait until jobs end; the exit code says how they ended"),
        "cancel": ("jobs", "cancel a job and stop its agent"),
        "retry": ("submit", "run a job again, as a new job"),
        "follow-up": ("submit", "run a new job in the conversation of an ended job"),
        "send": ("session", "type a text, or press keys, in the session that runs a job"),
        "cost": ("cost", "show what jobs have used: tokens and US dollars, by day, agent and label"),
    },
    "queues, workers and sessions": {
        "register": ("jobs", "add a job to a queue and print its id"),
        "worker": ("worker", "run the jobs of a queue, each in its own session"),
        "monitor": ("monitor", "find jobs and sessions that died or take too long, and requeue, fail or stop them"),
        "get": ("jobs", "print one job as JSON"),
        "status": ("jobs", "print or set the status of a job"),
        "pick": ("jobs", "claim the next pending job of a queue and print its id"),
        "renew": ("jobs", "extend the lease of a claimed job"),
        "release": ("jobs", "return a claimed job to its queue"),
        "session": ("session", "manage agents in tmux: create, stop, resume, list, show, attach, send, capture, prune"),
        "agent": ("agent", "manage live agents: publish, refresh, resolve, list, show, remove, cleanup, watch"),
    },
    "events": {
        "publish": ("publish", "record an event of a job and send it to the broker"),
        "subscribe": ("subscribe", "print the events of jobs until the jobs end"),
        "watch": ("subscribe", "print the events of jobs until the jobs end (the same as subscribe)"),
        "logs": ("logs", "print or verify the audit log of a job"),
    },
    "setup and care": {
        "doctor": ("doctor", "check the installation, the folders, the jobs and the agents"),
        "demo": ("demo", "run three agents, answer one, merge its work, and remove everything again"),
        "rules": ("rules", "let rules answer requests of agents: list, add, remove, test"),
        "worktree": ("worktree", "manage the git worktrees of jobs: list, remove, salvage"),
        "prune": ("prune", "remove what jobs that ended long ago have left: records, audit logs, session files"),
        "config": ("config", "print every setting and where it comes from, or write a config file: show, init"),
        "trust": ("trust", "show what a folder holds, and make it a home of your own"),
        "registry": ("registry", "manage the job registry: stats, migrate, upgrade, reconcile, grants, prune"),
        "broker": ("broker", "manage MQTT brokers: up, down, status, logs, init, check"),
        "skills": ("skills", "give agents the skills to use baton: install"),
        "mcp": ("mcp", "serve the Model Context Protocol to an agent, which hands work to other agents"),
        "completion": ("completion", "print the completion script for bash, zsh or fish"),
        "version": ("config", "print the version"),
        "hook": ("hook", ""),  # called by agents, not by people
    },
}
VERBS = {verb: row for verbs in GROUPS.values() for verb, row in verbs.items()}
# What people type who know other programs.
_OTHER_NAMES = {
    "kill": "cancel", "stop": "cancel", "abort": "cancel", "ps": "list", "ls": "list", "jobs": "list", "top": "list",
    "show": "get", "info": "get", "inspect": "get", "run": "submit", "start": "submit", "exec": "submit",
    "add": "register", "output": "result", "cat": "result", "log": "logs", "tail": "logs", "history": "logs",
    "follow": "watch", "why": "explain", "rm": "prune", "gc": "prune", "delete": "prune", "rerun": "retry",
    "resume": "session", "sessions": "session", "agents": "agent", "worktrees": "worktree",
}  # fmt: skip
_FOR_PEOPLE = ("no_verify", "yolo")  # options that an agent may not use
_TAKE_A_VALUE = {name for option in COMMON if option.takes_value for name in option.names}


def load_verb(name: str) -> Verb:
    """Import the one module that has this verb, and return the verb."""
    from importlib import import_module

    verbs: Sequence[Verb] = import_module(f"baton.cli.{VERBS[name][0]}").VERBS
    return next(verb for verb in verbs if verb.name == name)


def describe(name: str) -> Parser:
    """Return the parser of a verb."""
    return build_parser(load_verb(name), VERBS[name][1], COMMON)


def run_verb(name: str, arguments: Sequence[str]) -> int:
    """Parse the arguments of a verb and run it. BatonError when the verb fails."""
    verb = load_verb(name)
    if verb.options is None:
        return verb.function(arguments) or 0
    options = build_parser(verb, VERBS[name][1], COMMON).parse(arguments)
    from baton.origin import adopt_environment

    adopt_environment(options.home)
    for option in _FOR_PEOPLE:
        if getattr(options, option, None):
            from baton.jobs.caller import refuse_inside_session

            refuse_inside_session(f"--{option.replace('_', '-')}")
    if verb.actions:
        verb = next(action for action in verb.actions if action.name == options.action)
    if not verb.reads_settings:
        return verb.function(options) or 0
    from baton.storage.homes import load_settings

    settings = load_settings(vars(options))
    for warning in settings.warnings:
        _complain(f"warning: {warning}")
    return verb.function(options, settings) or 0


def overview() -> str:
    from textwrap import fill

    width = help_width()
    column = max(map(len, VERBS)) + 4
    lines = []
    for heading, verbs in GROUPS.items():
        lines += ["", f"{heading}:"]
        for verb, (_, text) in verbs.items():
            if text:
                indent = f"  {verb}".ljust(column)
                lines.append(fill(text, width, initial_indent=indent, subsequent_indent=" " * column))
    codes = (
        "See baton VERB --help for the options of a verb. Exit codes: 0 ok, 1 refused or failed, 2 timed out, "
        "3 nothing to pick, 4 cancelled, 64 wrong command line, 130 interrupted, 129 SIGHUP, 143 SIGTERM."
    )
    purpose = "Run coding agents in tmux, several at once, and know how each job ended."
    return "\n".join(
        [
            "usage: baton VERB [options]",
            "",
            fill(purpose, width),
            *lines,
            "",
            fill(codes, width, break_on_hyphens=False),
        ]
    )


def split_verb(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the verb and all other arguments. Common options may stand before the verb."""
    front: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-h", "--help"):
            return None, ["--help"]
        if option in ("-V", "--version"):
            return "version", []
        front.append(option)
        if option in _TAKE_A_VALUE and rest:
            front.append(rest.pop(0))
    if not rest:
        return None, front
    if rest[0] == "help":
        return (rest[1], ["--help"]) if len(rest) > 1 else (None, ["--help"])
    return rest[0], front + rest[1:]


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    verb, rest = split_verb(arguments)
    if verb is None:
        if rest not in ([], ["--help"]):
            print("baton: a verb is missing; see `baton --help`", file=sys.stderr)
            return UsageError.exit_code
        print(overview(), file=sys.stdout if rest else sys.stderr)
        return 0 if rest else UsageError.exit_code
    if verb not in VERBS:
        print(f"baton: there is no verb {verb[:40]!r}; {_hint(verb)}", file=sys.stderr)
        return UsageError.exit_code
    try:
        code = run_verb(verb, rest)
        sys.stdout.flush()
    except BatonError as error:
        if _debugging(rest):
            _print_traceback()
        _complain(str(error))
        return error.exit_code
    return code


def _hint(typed: str) -> str:
    from difflib import get_close_matches

    verbs = [verb for verb, (_, text) in VERBS.items() if text]
    near = get_close_matches(typed.lower(), [*_OTHER_NAMES, *verbs], 1, 0.7)
    verb = _OTHER_NAMES.get(near[0], near[0]) if near else ""
    return f"did you mean `baton {verb}`?" if verb in verbs else "see `baton --help`"


def _debugging(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in options


def _print_traceback() -> None:
    """Print it without the colours that Python 3.13 and newer give it on a terminal: the stream would clean them."""
    import traceback

    traceback.print_exc()


def _complain(message: str) -> None:
    """Print the message as one line. Parts of it may come from files or from the network."""
    from baton.core.fields import one_line

    print(f"baton: {one_line(message)}", file=sys.stderr)


def _prepare_streams() -> None:
    """Refuse a closed standard output. Make every character printable in the encoding, and clean it for a terminal."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the life of the process
    if sys.stdout is None:
        raise BatonError("standard output is closed; redirect it, for example to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout.isatty() or sys.stderr.isatty():
        from baton.cli.terminal import clean_terminals

        clean_terminals()
    if sys.stderr.isatty():
        from baton.storage import files

        files.tell_waiting = _complain


def run() -> None:
    """Run the command line of this process and exit."""
    try:
        _prepare_streams()
        try:
            code = main(sys.argv[1:])
        except SystemExit as stop:  # after --help, or by a signal
            code = stop.code if isinstance(stop.code, int) else 1
        sys.stdout.flush()
    except BatonError as error:
        _complain(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0  # the reader of the output has read enough, as with `baton list | head`
    except Exception as error:  # noqa: BLE001  the top of the process
        if _debugging(sys.argv):
            _print_traceback()
        else:
            what = f"unexpected {type(error).__name__}: {error}; run it again with --debug and report the traceback"
            _complain(describe_system_error(error) or what)
        code = 1
    sys.stderr.flush()
    # Everything is closed and written: the interpreter's own clean-up would cost 5 ms.
    os._exit(code)
