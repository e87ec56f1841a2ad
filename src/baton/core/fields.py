"""Check the values of fields, for every record that baton reads.

A check takes a value and returns it in its final form, or raises ValueError with the reason. The caller adds the name
of the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidValue
from baton.core.value import Any

Check = Callable[[object], Any]

# What reading a message of another program raises when its shape is not the expected one, a number in it has no end, or
# it is nested too deeply.
UNEXPECTED_SHAPE = (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError)

MAX_LEVELS = 100  # of arrays and objects in a JSON text; what programs write has a few dozen at most
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)

# Characters that a terminal and a browser show as nothing, or as a space, though they count as printable.
_UNSEEN = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
_HARMLESS = "\u200d\ufe0f\xa0\u202f\u3000"
JOB_ID = re.compile(r"[0-9a-f]{8,32}", re.ASCII)
FULL_ID_LENGTH = 8
_ID_BEGINNING = re.compile(r"[0-9a-f]{4,32}", re.ASCII)


def kind(value: object) -> str:
    """Return the name of a value's type, as it appears in a message."""
    return "null" if value is None else type(value).__name__


def text(value: object, longest: int = 4096) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {kind(value)}")
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8") from None
    if size > longest:
        raise ValueError(f"is {size} bytes long, at most {longest} are allowed")
    return value


def line(value: object, longest: int = 4096) -> str:
    """Accept one printable line."""
    checked = text(value, longest)
    if not checked or checked != checked.strip() or not checked.isprintable():
        raise ValueError("must be one line of printable characters, without spaces around it")
    return checked


def label(value: object) -> str:
    """Accept a short printable line: the name of an agent, a queue, a holder."""
    return line(value, 200)


def texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of texts, not {kind(value)}")
    checked = tuple(text(item) for item in value)
    if not all(checked):
        raise ValueError("must not contain an empty text")
    return checked


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {kind(value)}")
    return value


def whole(least: int, most: int = 2**53) -> Callable[[object], int]:
    """Return a check that accepts whole numbers of this range."""

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {kind(value)}")
        if not least <= value <= most:
            raise ValueError(f"must be at least {least}" if value < least else f"must be at most {most}")
        return value

    return check


def dollars(least: float) -> Callable[[object], float]:
    """Return a check that accepts an amount of US dollars, at least this one."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e9:
            raise ValueError("must be an amount of US dollars, such as 2.50")
        return float(value)

    return check


def exactly(number: int) -> Callable[[object], int]:
    """Return a check that accepts this whole number alone."""

    def check(value: object) -> int:
        if value != number or isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be {number}")
        return value

    return check


def time(value: object) -> str:
    """Accept a time with a zone; return it in UTC."""
    if not isinstance(value, str):
        raise ValueError(f"must be a time as text, not {kind(value)}")
    return format_time(parse_time(value))


def optional(check: Check) -> Check:
    """Return a check that also accepts null."""
    return lambda value: None if value is None else check(value)


def job_id(value: object) -> str:
    if isinstance(value, str) and JOB_ID.fullmatch(value):  # guard: job-id-in-path
        return value
    shown = repr(value[:40]) if isinstance(value, str) else kind(value)
    raise ValueError(f"must be 8 to 32 characters of 0-9 and a-f, not {shown}")


def check_named(field: str, check: Check, value: object) -> Any:
    """Check a value that a caller passed; raise InvalidValue with the name of the field."""
    try:
        return check(value)
    except ValueError as error:
        raise InvalidValue(field, str(error)) from None


def texts_of(field: str, value: object) -> list[str]:
    """Return the texts that a caller passed: none, one, or a list of them."""
    if value is None:
        return []
    return list(check_named(field, texts, [value] if isinstance(value, str) else value))


def check_job_id(value: object) -> str:
    """Return the id, or raise InvalidValue. Call it before an id becomes part of a path, a topic or a query."""
    checked: str = check_named("job id", job_id, value)
    return checked


def check_id_beginning(value: str) -> str:
    """Return the id, or the first characters of one, that a user typed; raise InvalidValue for other texts."""
    if not is_id_beginning(value):
        raise InvalidValue("job id", f"must be 8 to 32 characters of 0-9 and a-f, or its first 4, not {value[:40]!r}")
    return value


def is_id_beginning(text: str) -> bool:
    """Return whether this may be the id of a job, or the first characters of one."""
    return _ID_BEGINNING.fullmatch(text) is not None


def check_label(field: str, value: object) -> str:
    checked: str = check_named(field, label, value)
    return checked


def members(value: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked members of an object; a member that is missing is checked as null."""
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {kind(value)}")
    checked = {}
    for name, check in checks.items():
        try:
            checked[name] = check(value.get(name))
        except ValueError as error:
            raise ValueError(f"has a field {name} that {error}") from None
    return checked


def unknown_fields(record: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the fields that are not in `known`. Refuse what could not be written as JSON again."""
    extra = {key: value for key, value in record.items() if key not in known}
    if extra:
        try:
            storable_json(extra).encode()
        except ValueError:
            raise ValueError("holds a field that is not strict JSON") from None
    return extra


def storable_json(value: object) -> str:
    """Return a value as JSON that can be read again as a part of a record or a line. ValueError if there is none."""
    try:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise NestedTooDeeply from None
    parse_json(content, most_levels=MAX_LEVELS - 10)
    return content


class NestedTooDeeply(ValueError):
    """A JSON text whose arrays and objects are nested in more levels than baton follows."""

    def __init__(self) -> None:
        super().__init__("is nested too deeply")


def parse_json(text: str | bytes, decode: Callable[[Any], Any] = json.loads, most_levels: int = MAX_LEVELS) -> Any:
    """Return the value of a JSON text from another program. ValueError if it is none, NestedTooDeeply if arrays and
    objects are nested in more than `most_levels`: how many levels Python follows differs in each release."""
    try:
        value = decode(text)
    except RecursionError:
        raise NestedTooDeeply from None
    except ValueError as error:
        if _brackets(text) > most_levels and _levels(text, getattr(error, "pos", None)) > most_levels:
            raise NestedTooDeeply from None  # Python 3.11 does not read as far as the error
        raise
    if _brackets(text) > most_levels and _is_deeper(value, most_levels):  # guard: payload-depth
        raise NestedTooDeeply
    return value


def _brackets(text: str | bytes) -> int:
    """Return how many levels a text can have at most."""
    return text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")


def _is_deeper(value: object, most_levels: int) -> bool:
    level = [value]
    for _ in range(most_levels):
        containers = [each for each in level if isinstance(each, dict | list)]
        level = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, dict | list) for each in level)


def _levels(text: str | bytes, end: int | None) -> int:
    """Return in how many levels the brackets of a text are nested that is no JSON from `end` on."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    level = deepest = 0
    for part in _STRING_OR_BRACKET.findall(text[:end]):
        level += (part in "[{") - (part in "]}")
        deepest = max(deepest, level)
    return deepest


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; refuse a key that stands twice. For `object_pairs_hook`."""
    found = dict(pairs)
    if len(found) != len(pairs):  # guard: duplicate-keys
        raise ValueError("a key stands twice")
    return found


def json_object(raw: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one for anything else."""
    try:
        found = parse_json(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def printable(untrusted: str) -> str:
    """Return text that is safe on a terminal: each character that is not printable becomes U+FFFD.

    The joiner and the selector of emoji and the spaces of some languages are harmless, though not printable by
    themselves.
    """
    if untrusted.isprintable():
        return untrusted
    return "".join(each if each.isprintable() or each in _HARMLESS else "\ufffd" for each in untrusted)


def printable_lines(untrusted: str) -> str:
    """Return text that is safe on a terminal, with its line breaks and tabs."""
    return untrusted if untrusted.isprintable() else re.sub(r"[^\n\t]+", lambda part: printable(part[0]), untrusted)


def visible(untrusted: str) -> str:
    """Return text in which each character that acts on a terminal, hides, or looks like a space is written as its code:
    what it does can then be judged. Line breaks, too."""
    if untrusted.isprintable() and (untrusted.isascii() or re.search(_UNSEEN, untrusted) is None):
        return untrusted
    return "".join(
        each if each.isprintable() and re.match(_UNSEEN, each) is None else f"<U+{ord(each):04X}>" for each in untrusted
    )


def first_line(text: str) -> str:
    """Return the first line of a reason: what a validation printed stands below it. If it only announces what stands
    below it, such as the last lines of a screen, add the last of them."""
    lines = text.strip().splitlines()
    return f"{lines[0]} {lines[-1].strip()}" if len(lines) > 1 and lines[0].endswith(":") else "".join(lines[:1])


def one_line(untrusted: str, longest: int | None = None) -> str:
    """Return the text as one printable line, cut to `longest` characters."""
    if longest is not None:  # of a prompt of 1 MB, clean only the part that is shown
        size = 4 * longest
        while size < len(untrusted) and len(" ".join(untrusted[:size].split())) <= longest:
            size *= 8
        untrusted = untrusted[:size]
    clean = printable(" ".join(untrusted.split()))
    return clean if longest is None or len(clean) <= longest else clean[: longest - 1] + "…"
