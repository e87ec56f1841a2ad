"""Describe the command line: options, verbs, and the parser that argparse builds from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache

from baton.core.errors import InvalidValue
from baton.core.value import Any, NoReturn

# argparse imports gettext to translate its messages, and looks for translations: 2 ms. There are none.
_no_translations: Any = type(sys)("gettext")
_no_translations.gettext = str
_no_translations.ngettext = lambda one, many, count: one if count == 1 else many
_gettext = sys.modules.get("gettext")
sys.modules["gettext"] = _no_translations
try:
    import argparse as argparse  # noqa: PLC0414  for `options`, which is loaded first
finally:
    if _gettext is None:
        del sys.modules["gettext"]
    else:
        sys.modules["gettext"] = _gettext

USAGE = 64


class Option:
    """One option or positional argument. `settings` are the arguments of `add_argument`."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def but(self, **changes: Any) -> Option:
        """Return the same option with some settings changed, for a verb where it means something else."""
        return Option(*self.names, **self.settings | changes)

    def add_to(self, parser: Any) -> None:
        parser.add_argument(*self.names, **self.settings)


class OneOf:
    """Options that exclude each other."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self.options = options
        self.required = required

    def add_to(self, parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=self.required)
        for option in self.options:
            option.add_to(group)


def _nothing(*_: object) -> None:
    raise AssertionError("a noun is not called: its actions are")


class Verb:
    """One row of the command table: `baton NAME` with these options calls `function(options, settings)`.

    The function returns the exit code; None is 0.
    A noun has actions in place of a function. Its options may stand before the action or after it.
    Without `reads_settings`, the call is `function(options)`: a broken config file does not stop the verb.
    Where `options` is None, the call is `function(arguments)`: nothing is parsed.
    """

    def __init__(
        self,
        name: str,
        options: Sequence[Option | OneOf] | None,
        function: Callable[..., int | None] = _nothing,
        help: str = "",  # noqa: A002  as argparse calls it
        *,
        actions: Sequence[Verb] = (),
        epilog: str | None = None,
        reads_settings: bool = True,
    ) -> None:
        self.name = name
        self.options = options
        self.function = function
        self.help = help
        self.actions = actions
        self.epilog = epilog
        self.reads_settings = reads_settings


class Parser(argparse.ArgumentParser):
    """Exit with 64 on a wrong command line: argparse's own 2 means "timed out" here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, **settings)
        self.second: str | None = None  # an optional argument after the first

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        for each in args:
            option, _, value = each.partition("=")
            if each == "--":
                break
            if option.startswith("--") and value == "--":
                self.error(f"argument {option}: -- cannot be its value")  # argparse would make a list of it
        options, rest = self.parse_known_args(args, namespace)
        if rest and self.second is not None and getattr(options, self.second) is None:
            # argparse leaves out an optional argument that an option separates from the first.
            words = rest[1:] if rest[0] == "--" else rest
            if len(words) == 1 and (words is not rest or words[0] == "-" or not words[0].startswith("-")):
                setattr(options, self.second, words[0])
                rest = []
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._hint(rest[0], options)}")
        return options

    def _hint(self, typed: str, options: Any) -> str:
        """Return which option the user may have meant, if one of the verb or of its action is near."""
        from difflib import get_close_matches

        known = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action.choices, dict):
                known.update(action.choices[options.action]._option_string_actions)  # noqa: SLF001  a parser like this
        near = get_close_matches(typed.partition("=")[0], sorted(known), 1, 0.7) if typed.startswith("--") else []
        return f"; did you mean {near[0]}?" if near else ""

    def error(self, message: str) -> NoReturn:
        from baton.core.fields import one_line

        print(f"baton: {one_line(message)}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(USAGE)


def build_parser(verb: Verb, help: str, common: Sequence[Option]) -> Parser:  # noqa: A002
    """Build the parser of one verb with its actions. `common` are the options that every verb takes."""
    options = verb.options or ()
    parser = Parser(prog=f"baton {verb.name}", description=_sentence(help), epilog=verb.epilog)
    _add_options(parser, options, common)
    if verb.actions:
        choices = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
        # SUPPRESS: the default of an action does not replace what was given before the action.
        shared = [option.but(default=argparse.SUPPRESS) for option in options if isinstance(option, Option)]
        for action in verb.actions:
            child = choices.add_parser(action.name, help=action.help, description=_sentence(action.help))
            _add_options(child, [*(action.options or ()), *shared], common)
    return parser


def _add_options(parser: Parser, options: Sequence[Option | OneOf], common: Sequence[Option]) -> None:
    for option in options:
        option.add_to(parser)
    arguments = [each for each in options if isinstance(each, Option) and not each.names[0].startswith("-")]
    if len(arguments) == 2 and arguments[1].settings.get("nargs") == "?":
        parser.second = arguments[1].names[0]
    group = parser.add_argument_group("options of every command", argument_default=argparse.SUPPRESS)
    for each in common:
        each.add_to(group)


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Make a formatter with a known width: argparse imports shutil for each argument to find the width out."""
    return argparse.HelpFormatter(prog, width=help_width())


@cache
def help_width() -> int:
    """Return how wide help texts are: as $COLUMNS or the terminal says, else 100; at least 40."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return max(int(columns), 40)
    try:
        return max(os.get_terminal_size(1).columns, 40)
    except OSError:
        return 100  # not a terminal


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def read_text(field: str, typed: str | None, *, file: str | None = None) -> str:
    """Return the typed text, else the content of the file; `-` is standard input. InvalidValue if it is not text."""
    source = file if typed is None else typed
    if source == "-":
        if sys.stdin is None:
            raise InvalidValue(field, "cannot be read: standard input is closed")
        content = sys.stdin.buffer.read()
    elif typed is not None:
        content = os.fsencode(typed)
    else:
        assert file is not None
        try:
            with open(file, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise InvalidValue(field, f"cannot be read from {file}: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidValue(field, "is not valid UTF-8") from None
