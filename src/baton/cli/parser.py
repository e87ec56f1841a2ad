"""Describe the command line: options, verbs, and the parser that reads what the user typed.

The standard library's argparse accepts other command lines, words its errors and breaks its help texts differently in
each release of Python, and from 3.14 on it loads modules that a quick verb has no time for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from baton.core.errors import InvalidValue, UsageError
from baton.core.value import Any, NoReturn

TYPE_CHECKING = False


class Options:
    """What the user typed: an attribute for each option of the verb."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


class BadValue(ValueError):
    """A text that is no value of an option; the message says what one must be."""


class Option:
    """One option or positional argument.

    Settings: `metavar`, the name of its value in the help; `help`, "" if the help does not show it; `type`, which
    converts the typed text; `choices`, the accepted values; `default`; `dest`, its name in `Options`; `required`;
    `action`: store, append, store_true or store_const (of `const`); `nargs`, how many values a positional argument
    takes, if not one: ?, * or +. An option with ? may stand without its value: then it is `const`.
    """

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def but(self, **changes: Any) -> Option:
        """Return the same option with some settings changed, for a verb where it means something else."""
        return Option(*self.names, **self.settings | changes)

    @property
    def is_positional(self) -> bool:
        return not self.names[0].startswith("-")

    @property
    def is_required(self) -> bool:
        return self.nargs not in ("?", "*") if self.is_positional else bool(self.settings.get("required"))

    @property
    def action(self) -> str:
        return self.settings.get("action", "store")  # type: ignore[no-any-return]

    @property
    def takes_value(self) -> bool:
        return self.action in ("store", "append")

    @property
    def nargs(self) -> str:
        return self.settings.get("nargs") or ""

    @property
    def dest(self) -> str:
        long_name = next((name for name in self.names if name.startswith("--")), self.names[0])
        return self.settings.get("dest") or long_name.lstrip("-").replace("-", "_")

    @property
    def metavar(self) -> str:
        """Return the name of its value in the help."""
        if "metavar" in self.settings or "choices" not in self.settings:
            return str(self.settings.get("metavar", self.names[0]))
        return f"{{{','.join(self.settings['choices'])}}}"

    @property
    def label(self) -> str:
        """Return its name in an error."""
        return self.settings.get("metavar", self.names[0]) if self.is_positional else "/".join(self.names)

    def convert(self, text: str) -> Any:
        """Return the value that the text stands for. BadValue if there is none."""
        convert = self.settings.get("type", str)
        try:
            value = convert(text)
        except BadValue:
            raise
        except ValueError:
            what = "a whole number" if convert is int else "a number"
            raise BadValue(f"must be {what}, not {text[:40]!r}") from None
        choices = self.settings.get("choices")
        if choices is not None and value not in choices:
            raise BadValue(f"invalid choice: {text[:40]!r} (choose from {', '.join(choices)})")
        return value

    def store(self, value: Any, options: Options) -> None:
        """Set the attribute of `options` to this value, as the action says."""
        if self.action == "append":
            value = [*vars(options).get(self.dest, ()), value]
        elif not self.takes_value:
            value = self.settings.get("const", True)
        setattr(options, self.dest, value)

    def store_default(self, options: Options) -> None:
        """Set the attribute of `options` unless it was given."""
        usual: object = False if self.action == "store_true" else [] if self.nargs == "*" else None
        default = self.settings.get("default", usual)
        if self.dest not in vars(options):
            setattr(options, self.dest, [*default] if isinstance(default, list) else default)


class OneOf:
    """Options that exclude each other."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self.options = options
        self.required = required


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
        help: str = "",  # noqa: A002
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


HELP = Option("-h", "--help", action="store_true", help="show this help message and exit")
_NUMBER = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)


class Parser:
    """Read the words that follow a verb, or an action of a noun."""

    def __init__(self, name: str, text: str, rows: Sequence[Option | OneOf], common: Sequence[Option]) -> None:
        self.name = name
        self.text = text
        self.rows = (HELP, *rows)
        self.common = common
        self.epilog: str | None = None
        self.actions: dict[str, Parser] = {}

    @property
    def options(self) -> list[Option]:
        """Return every option and positional argument."""
        own = [option for row in self.rows for option in (row.options if isinstance(row, OneOf) else (row,))]
        return [*own, *self.common]

    def format_help(self) -> str:
        from baton.cli.help import format_help

        return format_help(self, help_width())

    def parse(self, words: Sequence[str]) -> Options:
        """Return what the words say. UsageError if they are wrong, SystemExit after printing the help."""
        return self._parse([*words], Options(), [])

    def _parse(self, words: list[str], options: Options, given: list[Option]) -> Options:
        named = {name: option for option in self.options if not option.is_positional for name in option.names}
        plain: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                plain += words
                break
            if not _is_option(word, named):
                if self.actions:
                    options.action = word
                    return self._find_action(word)._parse(words, options, given)  # noqa: SLF001  a parser like this
                plain.append(word)
                continue
            option, value = self._read_option(word, words, named)
            if option is HELP:
                print(self.format_help(), end="")
                raise SystemExit(0)
            option.store(value, options)
            given.append(option)
        if self.actions:
            self._fail("the following arguments are required: ACTION")
        self._place(plain, options, given)
        self._check(given)
        for option in self.options:
            option.store_default(options)
        return options

    def _read_option(self, word: str, rest: list[str], named: Mapping[str, Option]) -> tuple[Option, Any]:
        """Return the option that the word begins, and its value, which may be the first of the `rest`."""
        name, equals, value = word.partition("=")
        if name not in named:
            self._fail(f"unrecognized arguments: {word}{_hint(name, named)}")
        option = named[name]
        if not option.takes_value:
            if equals:
                self._fail(f"argument {option.label}: ignored explicit argument {value[:40]!r}")
            return option, None
        if not equals:
            if not rest or _is_option(rest[0], named):
                if option.nargs == "?":
                    return option, option.settings["const"]
                self._fail(f"argument {option.label}: expected one argument")
            value = rest.pop(0)
        return option, self._convert(option, value)

    def _find_action(self, word: str) -> Parser:
        if word not in self.actions:
            self._fail(f"argument ACTION: invalid choice: {word[:40]!r} (choose from {', '.join(self.actions)})")
        return self.actions[word]

    def _convert(self, option: Option, text: str) -> Any:
        try:
            return option.convert(text)
        except BadValue as error:
            self._fail(f"argument {option.label}: {error}")

    def _place(self, words: list[str], options: Options, given: list[Option]) -> None:
        """Give the words to the positional arguments, each as many as it takes and the later ones do not need."""
        arguments = [option for option in self.options if option.is_positional]
        for number, option in enumerate(arguments, 1):
            room = max(len(words) - sum(later.is_required for later in arguments[number:]), int(option.is_required))
            taken = words[: room if option.nargs in ("*", "+") else min(room, 1)]
            if taken:
                values = [self._convert(option, word) for word in taken]
                option.store(values if option.nargs in ("*", "+") else values[0], options)
                given.append(option)
                words = words[len(taken) :]
        if words:
            self._fail(f"unrecognized arguments: {' '.join(words)}")

    def _check(self, given: Sequence[Option]) -> None:
        missing = [option.label for option in self.options if option.is_required and option not in given]
        if missing:
            self._fail(f"the following arguments are required: {', '.join(missing)}")
        for row in self.rows:
            if isinstance(row, OneOf):
                chosen = [*dict.fromkeys(option.label for option in given if option in row.options)]
                if len(chosen) > 1:
                    self._fail(f"argument {chosen[1]}: not allowed with argument {chosen[0]}")
                if row.required and not chosen:
                    self._fail(f"one of the arguments {' '.join(option.label for option in row.options)} is required")

    def _fail(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `baton {self.name} --help`")


def _is_option(word: str, named: Mapping[str, Option]) -> bool:
    """Tell an option from a value: a number, a lone dash and a text with spaces that begins with a dash are values."""
    if not word.startswith("-") or word == "-":
        return False
    return word.partition("=")[0] in named or not (" " in word or _NUMBER.fullmatch(word))


def _hint(typed: str, named: Mapping[str, Option]) -> str:
    """Return which option the user may have meant, if one is near."""
    from difflib import get_close_matches

    near = get_close_matches(typed, sorted(named), 1, 0.7) if typed.startswith("--") else []
    return f"; did you mean {near[0]}?" if near else ""


def build_parser(verb: Verb, help: str, common: Sequence[Option]) -> Parser:  # noqa: A002
    """Build the parser of one verb with its actions. `common` are the options that every verb takes."""
    options = verb.options or ()
    parser = Parser(verb.name, help, options, common)
    parser.epilog = verb.epilog
    for action in verb.actions:
        rows = (*(action.options or ()), *options)  # those of the noun may stand before the action or after it
        parser.actions[action.name] = Parser(f"{verb.name} {action.name}", action.help, rows, common)
    return parser


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
