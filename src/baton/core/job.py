"""Jobs and events as values: parsed once at the edge, never changed afterwards.

Hand-written classes instead of dataclasses: importing `dataclasses` costs more than starting Python.
"""

from __future__ import annotations

import json
import os
import re
from enum import StrEnum

from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidRecord, InvalidValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Final, Self

SCHEMA_VERSION = 1
DEFAULT_AGENT = "claude-code"
AGENT_ALIASES = {"claude": "claude-code"}
DEFAULT_TIMEOUT_SEC = 3600
DEFAULT_IDLE_TIMEOUT_SEC = 120
MAX_TIMEOUT_SEC = 10 * 366 * 86400
MAX_PROMPT_BYTES = 1024 * 1024
HIDDEN = "***"


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"


class EventName(StrEnum):
    STARTED = "started"
    PROGRESS = "progress"
    PERMISSION_REQUIRED = "permission_required"
    COMPLETED = "completed"
    ERROR = "error"


TERMINAL: Final[frozenset[Status]] = frozenset({Status.COMPLETED, Status.ERROR, Status.CANCELLED})


# -- what each field may hold: a check takes the value, returns it in its final form or raises ValueError ----


def _text(value: object, longest: int = 4096) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_kind(value)}")
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8") from None
    if size > longest:
        raise ValueError(f"is {size} bytes long, at most {longest} are allowed")
    return value


def _prompt(value: object) -> str:
    text = _text(value, MAX_PROMPT_BYTES)
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _label(value: object) -> str:
    """One printable line: agents, sessions, holders."""
    text = _text(value, 200)
    if not text or text != text.strip() or not text.isprintable():
        raise ValueError("must be one line of printable characters, without spaces around it")
    return text


def _topic(value: object) -> str:
    text = _label(value)
    if "+" in text or "#" in text or " " in text:
        raise ValueError("must not contain +, # or a space")
    return text


def _whole(least: int, most: int = 2**53) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {_kind(value)}")
        if not least <= value <= most:
            raise ValueError(f"must be at least {least}" if value < least else f"must be at most {most}")
        return value

    return check


def _time(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a time as text, not {_kind(value)}")
    return format_time(parse_time(value))


def _mark(value: object) -> str:
    text = _label(value)
    if not re.fullmatch(r"[^/]+/\d{1,19}", text, re.ASCII):
        raise ValueError("is not a boot id and a number of nanoseconds")
    return text


def _extra(record: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Fields that are not ours, kept as they are; but what cannot be written again as JSON is refused."""
    extra = {key: value for key, value in record.items() if key not in known}
    if extra:
        try:
            json.dumps(extra, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise ValueError("holds a field that is not strict JSON") from None
    return extra


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of texts, not {_kind(value)}")
    texts = tuple(_text(item) for item in value)
    if not all(texts):
        raise ValueError("must not contain an empty text")
    return texts


def _status(value: object) -> Status:
    try:
        return Status(value)  # type: ignore[arg-type]
    except ValueError:
        allowed = ", ".join(Status)
        shown = value if isinstance(value, str) and len(value) < 40 and value.isprintable() else _kind(value)
        raise ValueError(f"{shown!r} is not one of {allowed}") from None


def _version(value: object) -> int:
    if value != SCHEMA_VERSION or isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be {SCHEMA_VERSION}")
    return value


def _optional(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else check(value)


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


class Value:
    """A frozen record of named fields, with equality and a copy that differs in some of them."""

    __slots__: tuple[str, ...] = ()
    _setters: tuple[tuple[str, Callable[[object, object], None]], ...]

    def __init_subclass__(cls) -> None:
        cls._setters = tuple((name, getattr(cls, name).__set__) for name in cls.__slots__)

    def __init__(self, **values: Any) -> None:
        for name, set_field in self._setters:
            set_field(self, values[name])
        if len(values) != len(self._setters):
            unknown = ", ".join(sorted(values.keys() - set(self.__slots__)))
            raise TypeError(f"{type(self).__name__} has no field {unknown}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; use replace({name}=...)")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # fields may hold dicts

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def replace(self, **changes: Any) -> Self:
        return type(self)(**(self._fields() | changes))


class Broker(Value):
    """Where a job's events go. A part that is None is taken from the settings of whoever connects."""

    __slots__ = ("extra", "host", "password", "port", "tls", "username")

    host: str | None
    port: int | None
    tls: bool | None
    username: str | None
    password: str | None
    extra: dict[str, Any]

    @classmethod
    def parse(cls, value: object) -> Broker:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise ValueError(f"must be an object, not {_kind(value)}")
        known = {}
        for name, check in _BROKER_CHECKS.items():
            try:
                known[name] = check(value.get(name))
            except ValueError as error:
                raise ValueError(f"has a field {name} that {error}") from None
        return cls(**known, extra=_extra(value, _BROKER_CHECKS))

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _BROKER_CHECKS} | self.extra

    def key(self) -> str:
        """The same for equal ones; with the password, so not to be shown."""
        return repr(sorted(self.record().items()))


_BROKER_CHECKS: Final[dict[str, Callable[[object], Any]]] = {
    "host": _optional(_label),
    "port": _optional(_whole(1, 65535)),
    "tls": _optional(_boolean),
    "username": _optional(_text),
    "password": _optional(_text),
}

_ID = re.compile(r"[0-9a-f]{8,32}", re.ASCII)


def check_job_id(value: object) -> str:
    """The id, or InvalidValue: called before an id becomes part of a path, a topic or a query."""
    if isinstance(value, str) and _ID.fullmatch(value):  # guard: job-id-in-path
        return value
    shown = repr(value[:40]) if isinstance(value, str) else _kind(value)
    raise InvalidValue("job id", f"must be 8 to 32 characters of 0-9 and a-f, not {shown}")


def check_label(field: str, value: object) -> str:
    try:
        return _label(value)
    except ValueError as error:
        raise InvalidValue(field, str(error)) from None


def check_status(value: object) -> Status:
    try:
        return _status(value)
    except ValueError as error:
        raise InvalidValue("status", str(error)) from None


def _job_id(value: object) -> str:
    try:
        return check_job_id(value)
    except InvalidValue as error:
        raise ValueError(error.why) from None


REQUIRED: Final = object()

# Field, check, default; the order is the order in a record. The seeds' fields come first and are always
# written, ours follow and are written only when they hold something, so that a record of the seeds stays as
# it was.
_SEED_FIELDS: Final[tuple[tuple[str, Callable[[object], Any], Any], ...]] = (
    ("schema_version", _version, REQUIRED),
    ("job_id", _job_id, REQUIRED),
    ("status", _status, REQUIRED),
    ("created_at", _time, REQUIRED),
    ("updated_at", _time, REQUIRED),
    ("prompt", _prompt, REQUIRED),
    ("agent", _label, REQUIRED),
    ("agent_session", _label, REQUIRED),
    ("broker", Broker.parse, None),
    ("topic_prefix", _topic, REQUIRED),
    ("timeout_sec", _whole(1, MAX_TIMEOUT_SEC), DEFAULT_TIMEOUT_SEC),
    ("idle_timeout_sec", _whole(1, MAX_TIMEOUT_SEC), DEFAULT_IDLE_TIMEOUT_SEC),
    ("expected_artifacts", _texts, ()),
    ("last_seq", _whole(0), 0),
    ("auth_token", _optional(_label), None),
)
_OWN_FIELDS: Final[tuple[tuple[str, Callable[[object], Any], Any], ...]] = (
    ("workdir", _optional(_text), None),
    ("attempt", _whole(0), 0),
    ("max_attempts", _whole(1), 1),
    ("priority", _whole(-(10**9), 10**9), 0),
    ("claimed_by", _optional(_label), None),
    ("lease_expires_at", _optional(_time), None),
    ("lease_mark", _optional(_mark), None),
    ("deadline_at", _optional(_time), None),
    ("last_event_at", _optional(_time), None),
    ("finished_at", _optional(_time), None),
    ("detail", _optional(_text), None),
    ("validate", _optional(_text), None),
    ("labels", _texts, ()),
)
_OWN_DEFAULTS: Final = {name: default for name, _, default in _OWN_FIELDS}
_CHECKS: Final = {name: (check, default) for name, check, default in _SEED_FIELDS + _OWN_FIELDS}
TIME_FIELDS: Final = frozenset(name for name in _CHECKS if name.endswith("_at"))
_ROW_CHECKS: Final = {
    name: ((lambda value: value), default) if name in TIME_FIELDS else (check, default)
    for name, (check, default) in _CHECKS.items()
}
JOB_FIELDS: Final = tuple(_CHECKS)


class Job(Value):
    """One delegated piece of work, as the registry holds it.

    Times are RFC 3339 text in UTC. `extra` holds the fields of a stored record that this version does not
    know; they are kept as they are. `lease_mark` is the end of the lease on the monotonic clock of the
    machine that gave it; `lease_expires_at` is the same moment for people to read.
    """

    __slots__ = (*JOB_FIELDS, "extra")

    schema_version: int
    job_id: str
    status: Status
    created_at: str
    updated_at: str
    prompt: str
    agent: str
    agent_session: str
    broker: Broker
    topic_prefix: str
    timeout_sec: int
    idle_timeout_sec: int
    expected_artifacts: tuple[str, ...]
    last_seq: int
    auth_token: str | None
    workdir: str | None
    attempt: int
    max_attempts: int
    priority: int
    claimed_by: str | None
    lease_expires_at: str | None
    lease_mark: str | None
    deadline_at: str | None
    last_event_at: str | None
    finished_at: str | None
    detail: str | None
    validate: str | None
    labels: tuple[str, ...]
    extra: dict[str, Any]

    @classmethod
    def parse(cls, record: object, stored_as: str | None = None, *, times_checked: bool = False) -> Job:
        """The job in a decoded record, or InvalidRecord with the name of the first field that does not fit.
        `stored_as` is the id the store filed it under: a record that claims another is refused.
        `times_checked`: the times were just written by `format_time`, from numbers in a database."""
        name = stored_as or "?"
        if not isinstance(record, dict):
            raise InvalidRecord(name, "record", f"must be an object, not {_kind(record)}")
        values: dict[str, Any] = {}
        for field, (check, default) in (_ROW_CHECKS if times_checked else _CHECKS).items():
            value = record.get(field, default)
            if value is REQUIRED:
                raise InvalidRecord(name, field, "is missing")
            try:
                values[field] = check(value)
            except ValueError as error:
                raise InvalidRecord(name, field, str(error)) from None
        if stored_as is not None and values["job_id"] != stored_as:
            raise InvalidRecord(name, "job_id", "names another job")
        try:
            return cls(**values, extra=_extra(record, _CHECKS))
        except ValueError as error:
            raise InvalidRecord(name, "record", str(error)) from None

    def record(self) -> dict[str, Any]:
        """The record as it is stored."""
        full = self._full()
        for name, default in _OWN_DEFAULTS.items():
            if getattr(self, name) == default:
                del full[name]
        return full | self.extra

    def public(self, *, show_secrets: bool = False) -> dict[str, Any]:
        """The record as it is shown: every field, secrets hidden."""
        full = self._full() | self.extra
        if not show_secrets:
            if full["auth_token"] is not None:
                full["auth_token"] = HIDDEN
            if full["broker"].get("password") is not None:
                full["broker"]["password"] = HIDDEN
        return full

    def _full(self) -> dict[str, Any]:
        full = {name: getattr(self, name) for name in JOB_FIELDS}
        full["status"] = self.status.value
        full["broker"] = self.broker.record()
        full["expected_artifacts"] = list(self.expected_artifacts)
        full["labels"] = list(self.labels)
        return full

    @property
    def events_topic(self) -> str:
        return f"{self.topic_prefix}/events"

    def __repr__(self) -> str:
        return f"<Job {self.job_id} {self.status} attempt={self.attempt}>"


def new_token() -> str:
    """What `secrets.token_urlsafe(32)` gives, without the 10 ms its import takes."""
    from binascii import b2a_base64

    return b2a_base64(os.urandom(32), newline=False).decode().rstrip("=").translate({43: "-", 47: "_"})


def new_job_id() -> str:
    return os.urandom(4).hex()


def agent_name(name: str) -> str:
    """The agent's own name, where it was called by another: there is one queue, whatever people call it."""
    return AGENT_ALIASES.get(name, name) if isinstance(name, str) else name


def new_job(
    prompt: str,
    *,
    now_ns: int,
    agent: str,
    agent_session: str | None = None,
    broker: Mapping[str, Any] | None = None,
    timeout_sec: int = DEFAULT_TIMEOUT_SEC,
    idle_timeout_sec: int = DEFAULT_IDLE_TIMEOUT_SEC,
    expected_artifacts: Iterable[str] = (),
    workdir: str | None = None,
    max_attempts: int = 1,
    priority: int = 0,
    validate: str | None = None,
    labels: Iterable[str] = (),
) -> Job:
    """A job that is ready to be registered, or InvalidValue naming the argument that does not fit."""
    now = format_time(now_ns)
    agent = agent_name(agent)
    job_id = new_job_id()
    try:
        return Job.parse(
            {
                "schema_version": SCHEMA_VERSION,
                "job_id": job_id,
                "status": "pending",
                "created_at": now,
                "updated_at": now,
                "prompt": prompt,
                "agent": agent,
                "agent_session": f"tmux:{agent}" if agent_session is None else agent_session,
                "broker": dict(broker) if broker else None,
                "topic_prefix": topic_prefix(job_id),
                "timeout_sec": timeout_sec,
                "idle_timeout_sec": idle_timeout_sec,
                "expected_artifacts": list(expected_artifacts),
                "auth_token": new_token(),
                "workdir": workdir,
                "max_attempts": max_attempts,
                "priority": priority,
                "validate": validate,
                "labels": list(labels),
            }
        )
    except InvalidRecord as error:
        raise InvalidValue(error.field, error.why) from None


def topic_prefix(job_id: str) -> str:
    return f"python/mqtt/jobs/{job_id}"


def with_new_id(job: Job) -> Job:
    """The same job under another id: its first one was taken."""
    job_id = new_job_id()
    return job.replace(job_id=job_id, topic_prefix=topic_prefix(job_id))


class StoredEvent(Value):
    """One signed statement about a job, as the registry keeps it. `payload` is what goes on the wire."""

    __slots__ = ("attempt", "event", "job_id", "payload", "sent", "seq")

    job_id: str
    seq: int
    attempt: int
    event: EventName
    payload: bytes
    sent: bool

    def __repr__(self) -> str:
        return f"<StoredEvent {self.job_id} seq={self.seq} {self.event} sent={self.sent}>"


def check_event_name(value: object) -> EventName:
    try:
        return EventName(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidValue("event", f"must be one of {', '.join(EventName)}") from None
