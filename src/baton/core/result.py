"""Define the result of a job: what its agent answered, and what the validation of its work printed."""

from __future__ import annotations

import json

from baton.core import fields
from baton.core.errors import InvalidRecord
from baton.core.fields import parse_json
from baton.core.redact import shorten
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_MESSAGE_BYTES = 1_000_000
VALIDATION_LINES = 200
MAX_VALIDATION_BYTES = 200_000
HIDDEN = "***"
_SHORTEST_KEY = 6
_TEXTS = ("message", "validation")


class Result(Value):
    """What a job left in the registry when it ended. `message` is the agent's last message; None: it said nothing.
    `validation` is the end of what the validation printed; None: it did not run. `attempt` is the attempt that ended
    with it: the registry sets it. `extra` keeps the fields of a later version."""

    message: str | None = None
    validation: str | None = None
    attempt: int = 0
    extra: Mapping[str, Any] = {}

    @classmethod
    def parse(cls, content: str | bytes, job_id: str) -> Result:
        """Return the stored result of a job; raise InvalidRecord when it is not valid."""
        try:
            record = parse_json(content)
        except ValueError:
            raise InvalidRecord(job_id, "result", "is not JSON") from None
        if not isinstance(record, dict):
            raise InvalidRecord(job_id, "result", f"must be an object, not {fields.kind(record)}")
        texts = [record.get(name) for name in _TEXTS]
        attempt = record.get("attempt")
        if not all(isinstance(each, str | None) for each in texts) or type(attempt) is not int:
            raise InvalidRecord(job_id, "result", "holds a field of another type")
        message, validation = texts
        extra = {name: value for name, value in record.items() if name not in (*_TEXTS, "attempt")}
        return cls(message=message, validation=validation, attempt=attempt, extra=extra)

    def content(self) -> str:
        """Return the result as it is stored."""
        return json.dumps(dict(self.extra) | {name: getattr(self, name) for name in (*_TEXTS, "attempt")})

    @property
    def size(self) -> int:
        """Return about how many bytes the texts take."""
        return sum(len(text) for text in (self.message, self.validation) if text)


def new_result(message: str | None, validation: str | None, keys: Iterable[str | None]) -> Result | None:
    """Return the result as it is kept: whole up to a limit, and without baton's own keys; None if it is empty."""
    if not message and validation is None:
        return None
    text = hide_keys(message or "", keys).encode(errors="replace").decode()
    return Result(
        message=shorten(text, MAX_MESSAGE_BYTES) or None,
        validation=None if validation is None else hide_keys(validation, keys),
    )


def hide_keys(text: str, keys: Iterable[str | None]) -> str:
    """Return the text without baton's own keys. Nothing else is hidden from the user to whom the result belongs."""
    for key in own_keys(keys):
        text = text.replace(key, HIDDEN)  # guard: keys-in-results
    return text


def own_keys(keys: Iterable[str | None]) -> list[str]:
    """Return the keys that are long enough to be recognised, the longest first: one may be a part of another."""
    return sorted({key for key in keys if key and len(key) >= _SHORTEST_KEY}, key=len, reverse=True)


def before_backtrace(text: str) -> str:
    """Return what a program has printed without the backtrace at its end: the lines before it say why it failed."""
    lines = text.splitlines()
    ends = [
        number for number, line in enumerate(lines) if line.strip().casefold() in ("stack backtrace:", "backtrace:")
    ]
    before = "\n".join(lines[: ends[-1]]) if ends else ""
    return before if before.strip() else text


def last_lines(text: str, count: int = VALIDATION_LINES, longest: int = MAX_VALIDATION_BYTES) -> str:
    """Return the last lines of a text, of at most so many bytes."""
    lines = text.rstrip().splitlines()[-count:]
    end = "\n".join(lines).encode(errors="replace")
    return end[-longest:].decode(errors="replace")
