"""Define jobs: their fields, how a record is parsed, and how a new one is made."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from baton.core import fields
from baton.core.clock import format_time
from baton.core.errors import InvalidRecord, InvalidValue, KeyTaken
from baton.core.fields import Check
from baton.core.value import Any, Value

SCHEMA_VERSION = 1
DEFAULT_AGENT = "claude-code"
AGENT_ALIASES = {"claude": "claude-code", "opencode-ai": "opencode"}
LIVE_QUEUE = "agent:"  # begins the queue of a live agent, before its id
DEFAULT_TIMEOUT_SEC = 3600
DEFAULT_IDLE_TIMEOUT_SEC = 120
DEFAULT_BACKGROUND_TIMEOUT_SEC = 600
MAX_TIMEOUT_SEC = 10 * 366 * 86400
MAX_PROMPT_BYTES = 1024 * 1024
HIDDEN = "***"
# What ended a job: its agent, the checks of its results, one of its limits, a person, or what happened around it.
ENDED_BY = frozenset(
    {"agent", "verification", "timeout", "idle", "cancelled", "lost", "predecessor", "refused", "limit", "budget"}
)


class Status(StrEnum):
    """Where a job stands. The last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.COMPLETED, Status.ERROR, Status.CANCELLED})


def is_unseen(status: Status, seen_at: object) -> bool:
    """Return whether a job has completed or failed and the user was not shown that yet."""
    return seen_at is None and status in (Status.COMPLETED, Status.ERROR)


def _prompt(value: object) -> str:
    text = fields.text(value, MAX_PROMPT_BYTES)
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def check_mark(value: object) -> str:
    text = fields.label(value)
    if not re.fullmatch(r"[^/]+/\d{1,19}", text, re.ASCII):
        raise ValueError("is not a boot id and a number of nanoseconds")
    return text


def _ended_by(value: object) -> str:
    text = fields.label(value)
    if text not in ENDED_BY:
        raise ValueError(f"{text!r} is not one of {', '.join(sorted(ENDED_BY))}")
    return text


_DUE_CHECKS: dict[str, Check] = {
    "to": fields.label,
    "sender": fields.optional(fields.label),
    "tries": fields.optional(fields.whole(0)),
    "done": fields.optional(fields.texts),
}


def _notify_due(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(entry, dict) for entry in value.values()):
        raise ValueError("must be an object of objects")
    for entry in value.values():
        fields.members(entry, _DUE_CHECKS)
    return fields.unknown_fields(value, ())  # refuses what could not be written as JSON again


def _activity(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    checked = fields.members(value, _ACTIVITY_CHECKS)
    return checked | fields.unknown_fields(value, _ACTIVITY_CHECKS)


_ACTIVITY_CHECKS: dict[str, Check] = {
    "kind": fields.label,
    "since": fields.time,
    "cause": fields.text,
    "attempt": fields.whole(1),
}


def _start_options(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    fields.members(value, _START_CHECKS)
    fields.unknown_fields(value, _START_CHECKS)
    return dict(value)


_START_CHECKS: dict[str, Check] = {
    "headless": fields.optional(fields.boolean),
    "yolo": fields.optional(fields.boolean),
    "resume": fields.optional(fields.boolean),
    "conversation_id": fields.optional(fields.label),
}


def _status(value: object) -> Status:
    try:
        return Status(value)  # type: ignore[arg-type]
    except ValueError:
        allowed = ", ".join(Status)
        shown = value if isinstance(value, str) and len(value) < 40 and value.isprintable() else fields.kind(value)
        raise ValueError(f"{shown!r} is not one of {allowed}") from None


def check_status(value: object) -> Status:
    status: Status = fields.named("status", _status, value)
    return status


def check_activity(value: object) -> Any:
    return fields.named("activity", _activity, value)


class Broker(Value):
    """Where a job's events go. None: the process that connects takes this part from its settings."""

    host: str | None
    port: int | None
    tls: bool | None
    username: str | None
    password: str | None
    extra: dict[str, Any]

    @classmethod
    def parse(cls, value: Any) -> Broker:
        if value is None:
            value = {}
        known = fields.members(value, _BROKER_CHECKS)
        return cls(**known, extra=fields.unknown_fields(value, _BROKER_CHECKS))

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _BROKER_CHECKS} | self.extra

    def key(self) -> str:
        """Return a text that is equal for equal brokers. It holds the password: do not show it."""
        return repr(sorted(self.record().items()))


_BROKER_CHECKS: dict[str, Check] = {
    "host": fields.optional(fields.label),
    "port": fields.optional(fields.whole(1, 65535)),
    "tls": fields.optional(fields.boolean),
    "username": fields.optional(fields.text),
    "password": fields.optional(fields.text),
}

_REQUIRED = object()

# Field, check, default, in the order of a record. The first group is always written. The second group is written only
# when a field differs from its default, so that a record of the seeds stays as it was.
_SEED_FIELDS: tuple[tuple[str, Check, Any], ...] = (
    ("schema_version", fields.exactly(SCHEMA_VERSION), _REQUIRED),
    ("job_id", fields.job_id, _REQUIRED),
    ("status", _status, _REQUIRED),
    ("created_at", fields.time, _REQUIRED),
    ("updated_at", fields.time, _REQUIRED),
    ("prompt", _prompt, _REQUIRED),
    ("agent", fields.label, _REQUIRED),
    ("agent_session", fields.label, _REQUIRED),
    ("broker", Broker.parse, Broker.parse(None)),
    ("topic_prefix", fields.label, _REQUIRED),
    ("timeout_sec", fields.whole(1, MAX_TIMEOUT_SEC), DEFAULT_TIMEOUT_SEC),
    ("idle_timeout_sec", fields.whole(1, MAX_TIMEOUT_SEC), DEFAULT_IDLE_TIMEOUT_SEC),
    ("expected_artifacts", fields.texts, ()),
    ("last_seq", fields.whole(0), 0),
    ("auth_token", fields.optional(fields.label), None),
)
_OWN_FIELDS: tuple[tuple[str, Check, Any], ...] = (
    ("workdir", fields.optional(fields.text), None),
    ("attempt", fields.whole(0), 0),
    ("max_attempts", fields.whole(1), 1),
    ("priority", fields.whole(-(10**9), 10**9), 0),
    ("claimed_by", fields.optional(fields.label), None),
    ("lease_expires_at", fields.optional(fields.time), None),
    ("lease_mark", fields.optional(check_mark), None),
    ("deadline_at", fields.optional(fields.time), None),
    ("last_event_at", fields.optional(fields.time), None),
    ("finished_at", fields.optional(fields.time), None),
    ("detail", fields.optional(fields.text), None),
    ("validate", fields.optional(fields.text), None),
    ("labels", fields.texts, ()),
    ("submitter", fields.optional(fields.label), None),
    ("verified_by", fields.texts, ()),
    ("unverified", fields.optional(fields.text), None),
    ("disputed", fields.optional(fields.label), None),
    ("title", fields.optional(fields.label), None),
    ("parent", fields.optional(fields.job_id), None),
    ("follows", fields.optional(fields.job_id), None),
    ("retry_of", fields.optional(fields.job_id), None),
    ("retried_by", fields.optional(fields.job_id), None),
    ("reason", fields.optional(fields.text), None),
    ("ended_by", fields.optional(_ended_by), None),
    ("seen_at", fields.optional(fields.time), None),
    ("idempotency_key", fields.optional(fields.label), None),
    ("start_options", _start_options, {}),
    ("notify_due", _notify_due, {}),
    ("activity", _activity, None),
    ("tool_timeout_sec", fields.optional(fields.whole(1, MAX_TIMEOUT_SEC)), None),
    ("background_timeout_sec", fields.whole(1, MAX_TIMEOUT_SEC), DEFAULT_BACKGROUND_TIMEOUT_SEC),
    ("change", fields.whole(0, 2**63 - 1), 0),
)
OWN_DEFAULTS = {name: default for name, _, default in _OWN_FIELDS}
_CHECKS = {name: (check, default) for name, check, default in _SEED_FIELDS + _OWN_FIELDS}
_MICROSECONDS = len("2026-06-19T09:30:00.123456Z")
TIME_FIELDS = frozenset(name for name in _CHECKS if name.endswith("_at"))
_ROW_CHECKS = {
    name: ((lambda value: value), default) if name in TIME_FIELDS else (check, default)
    for name, (check, default) in _CHECKS.items()
}
JOB_FIELDS = tuple(_CHECKS)
_COMPARED = tuple(name for name in (*JOB_FIELDS, "extra") if name != "change")
# What became of a job. A field that is not here belongs to the work, and a retry has it too.
FATE = frozenset(
    {"attempt", "claimed_by", "lease_expires_at", "lease_mark", "deadline_at", "last_seq", "last_event_at", "detail"}
    | {"finished_at", "submitter", "verified_by", "unverified", "disputed", "follows", "retry_of", "retried_by"}
    | {"reason", "ended_by", "seen_at", "idempotency_key", "notify_due", "activity", "change"}
)

# Of a submission: which job it became, and where it was made. All other fields are its work.
_NOT_WORK = FATE | {"job_id", "status", "created_at", "updated_at", "topic_prefix", "auth_token", "parent", "broker"}


class Job(Value):
    """One delegated piece of work, as the registry holds it.

    Times are RFC 3339 text in UTC. `extra` keeps the fields of a stored record that this version does not know.
    `lease_mark` is the end of the lease on the monotonic clock of the machine that gave it; `lease_expires_at` is the
    same moment as a date. `submitter` names the `baton submit` process that alone may start this job while it lives.
    Of a completed job, `verified_by` names the checks of its results that ran, or `unverified` who skipped them.
    `disputed` says how the audit log contradicts the registry: until the user has settled it, no process may claim the
    job. `parent` is the job whose agent submitted this one, `follows` the job whose conversation this one continues.
    Of an ended job, `ended_by` is one of ENDED_BY, `reason` says it in words, and `seen_at` is when the user was shown
    the end. `idempotency_key` is unique in a registry: a second submission with it is this job. `start_options` says
    how its session is started: `headless`, `yolo`, and `resume` to continue the conversation `conversation_id`.
    `activity` is what the agent did when its runner last reported it: `kind`, `since`, `cause`, `attempt`. `change` is
    the number of the write that stored it, which rises with each write: equal jobs may differ in it."""

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
    submitter: str | None
    verified_by: tuple[str, ...]
    unverified: str | None
    disputed: str | None
    title: str | None
    parent: str | None
    follows: str | None
    retry_of: str | None
    retried_by: str | None
    reason: str | None
    ended_by: str | None
    seen_at: str | None
    idempotency_key: str | None
    start_options: dict[str, Any]
    notify_due: dict[str, Any]
    activity: dict[str, Any] | None
    tool_timeout_sec: int | None
    background_timeout_sec: int
    change: int
    extra: dict[str, Any]

    @classmethod
    def parse(cls, record: object, stored_as: str | None = None, *, times_checked: bool = False) -> Job:
        """Return the job in a decoded record; raise InvalidRecord with the first field that is not valid.

        `stored_as` is the id under which the store keeps the record: a record with another id is refused.
        `times_checked`: `format_time` has just written the times, from numbers in a database."""
        name = stored_as or "?"
        if not isinstance(record, dict):
            raise InvalidRecord(name, "record", f"must be an object, not {fields.kind(record)}")
        values: dict[str, Any] = {}
        for field, (check, default) in (_ROW_CHECKS if times_checked else _CHECKS).items():
            value = record.get(field, default)
            if value is default:
                if value is _REQUIRED:
                    raise InvalidRecord(name, field, "is missing")
                values[field] = value
                continue
            try:
                values[field] = check(value)
            except ValueError as error:
                raise InvalidRecord(name, field, str(error)) from None
        if stored_as is not None and values["job_id"] != stored_as:
            raise InvalidRecord(name, "job_id", "names another job")
        if values["topic_prefix"] != topic_prefix(values["job_id"]):  # guard: own-topic
            raise InvalidRecord(
                name, "topic_prefix", f"must be {topic_prefix(values['job_id'])}: a job has its own topic"
            )
        try:
            return cls(**values, extra=fields.unknown_fields(record, _CHECKS))
        except ValueError as error:
            raise InvalidRecord(name, "record", str(error)) from None

    def record(self) -> dict[str, Any]:
        """Return the record as it is stored."""
        full = self._full()
        for name, default in OWN_DEFAULTS.items():
            if getattr(self, name) == default:
                del full[name]
        return full | self.extra

    def public(self, *, show_secrets: bool = False) -> dict[str, Any]:
        """Return the record as it is shown: every field, times with at most microseconds, secrets hidden."""
        full = self._full() | self.extra
        for name in TIME_FIELDS:
            if full[name] is not None and len(full[name]) > _MICROSECONDS:
                full[name] = full[name][: _MICROSECONDS - 1] + "Z"
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
        full["verified_by"] = list(self.verified_by)
        return full

    @property
    def events_topic(self) -> str:
        return f"{self.topic_prefix}/events"

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return type(other) is Job and all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    def __repr__(self) -> str:
        return f"<Job {self.job_id} {self.status} attempt={self.attempt}>"


def new_token() -> str:
    """Return what `secrets.token_urlsafe(32)` returns, without its import of 10 ms."""
    from binascii import b2a_base64

    return b2a_base64(os.urandom(32), newline=False).decode().rstrip("=").translate({43: "-", 47: "_"})


def new_job_id() -> str:
    return os.urandom(4).hex()


def agent_name(name: str) -> str:
    """Return the name of the agent itself for an alias, so that both share one queue."""
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
    tool_timeout_sec: int | None = None,
    background_timeout_sec: int = DEFAULT_BACKGROUND_TIMEOUT_SEC,
    expected_artifacts: Iterable[str] = (),
    workdir: str | None = None,
    max_attempts: int = 1,
    priority: int = 0,
    validate: str | None = None,
    labels: Iterable[str] = (),
    submitter: str | None = None,
    title: str | None = None,
    parent: str | None = None,
    follows: str | None = None,
    retry_of: str | None = None,
    idempotency_key: str | None = None,
    start_options: Mapping[str, Any] | None = None,
) -> Job:
    """Return a job that is ready to be registered; raise InvalidValue with the argument that is not valid."""
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
                "tool_timeout_sec": tool_timeout_sec,
                "background_timeout_sec": background_timeout_sec,
                "expected_artifacts": list(expected_artifacts),
                "auth_token": new_token(),
                "workdir": workdir,
                "max_attempts": max_attempts,
                "priority": priority,
                "validate": validate,
                "labels": list(labels),
                "submitter": submitter,
                "title": title,
                "parent": parent,
                "follows": follows,
                "retry_of": retry_of,
                "idempotency_key": idempotency_key,
                "start_options": dict(start_options) if start_options else None,
            }
        )
    except InvalidRecord as error:
        raise InvalidValue(error.field, error.why) from None


def repeat_job(job: Job, *, now_ns: int, **changes: Any) -> Job:
    """Return a new job for the same work: with every field of the old one, also of a later version, except those that
    tell what became of it."""
    now, job_id = format_time(now_ns), new_job_id()
    kept = {name: value for name, value in job.record().items() if name not in FATE}
    new = {"job_id": job_id, "status": "pending", "created_at": now, "updated_at": now, "auth_token": new_token()}
    return Job.parse(kept | new | {"topic_prefix": topic_prefix(job_id)} | changes)


def is_registered(draft: Job, job: Job) -> bool:
    """Return whether this registered job is the draft, perhaps under another id, and not an earlier one with its
    idempotency key: each draft has a key of its own."""
    return draft.idempotency_key is None or draft.auth_token == job.auth_token


def refuse_other_work(known: Job, job: Job) -> None:
    """Raise KeyTaken if a job with the idempotency key of a known one is not for the same work."""
    both = known.record(), job.record()
    differ = [
        name for name in sorted(both[0] | both[1]) if name not in _NOT_WORK and both[0].get(name) != both[1].get(name)
    ]
    if differ:
        raise KeyTaken(known.idempotency_key or "", known.job_id, differ)


def topic_prefix(job_id: str) -> str:
    return f"python/mqtt/jobs/{job_id}"


def with_new_id(job: Job) -> Job:
    """Return the same job under another id, for one that is already taken."""
    job_id = new_job_id()
    return job.replace(job_id=job_id, topic_prefix=topic_prefix(job_id))
