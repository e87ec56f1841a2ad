"""Define jobs: their fields, and how a record is parsed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum

from baton.core import fields
from baton.core import job_checks as checks
from baton.core.errors import InvalidRecord
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
HIDDEN = "***"
ATTACH = "`baton attach`"  # in the cause of what only a person at the agent's own screen can answer


class Status(StrEnum):
    """Where a job stands. The last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.COMPLETED, Status.ERROR, Status.CANCELLED})


# How the entries of `verified_by` begin, and what vouches for a job that ended well: its agent's word, its files, its
# validation.
EXPECT, VALIDATE = "expect: ", "validate: "
SAID, RAN, VALIDATED = "said", "ran", "validated"


def grade_of(status: Status, verified_by: Sequence[str]) -> str | None:
    """Return what vouches for a job that ended well; None for other jobs."""
    if status is not Status.COMPLETED:
        return None
    if any(each.startswith(VALIDATE) for each in verified_by):
        return VALIDATED
    return RAN if verified_by else SAID


def is_unseen(status: Status, seen_at: object) -> bool:
    """Return whether a job has completed or failed and the user was not shown that yet."""
    return seen_at is None and status in (Status.COMPLETED, Status.ERROR)


def is_at_screen(activity: Mapping[str, Any] | None) -> bool:
    """Return whether this activity, as its runner wrote it, waits for a person at the agent's own screen: no request is
    known that a command could answer."""
    return activity is not None and activity["kind"] == "waiting" and activity.get("at_screen") is True


def _status(value: object) -> Status:
    try:
        return Status(value)  # type: ignore[arg-type]
    except ValueError:
        allowed = ", ".join(Status)
        shown = value if isinstance(value, str) and len(value) < 40 and value.isprintable() else fields.kind(value)
        raise ValueError(f"{shown!r} is not one of {allowed}") from None


def check_status(value: object) -> Status:
    status: Status = fields.check_named("status", _status, value)
    return status


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
# when a field differs from its default, so that a record of the earlier scripts stays as it was.
_SCRIPT_FIELDS: tuple[tuple[str, Check, Any], ...] = (
    ("schema_version", fields.exactly(SCHEMA_VERSION), _REQUIRED),
    ("job_id", fields.job_id, _REQUIRED),
    ("status", _status, _REQUIRED),
    ("created_at", fields.time, _REQUIRED),
    ("updated_at", fields.time, _REQUIRED),
    ("prompt", checks.prompt, _REQUIRED),
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
    ("lease_mark", fields.optional(checks.lease_mark), None),
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
    ("ended_by", fields.optional(checks.ended_by), None),
    ("seen_at", fields.optional(fields.time), None),
    ("idempotency_key", fields.optional(fields.label), None),
    ("start_options", checks.start_options, {}),
    ("notify_due", checks.notify_due, {}),
    ("activity", checks.activity, None),
    ("tool_timeout_sec", fields.optional(fields.whole(1, MAX_TIMEOUT_SEC)), None),
    ("background_timeout_sec", fields.whole(1, MAX_TIMEOUT_SEC), DEFAULT_BACKGROUND_TIMEOUT_SEC),
    ("change", fields.whole(0, 2**63 - 1), 0),
    ("worktree", checks.worktree, None),
    ("checkout", checks.checkout, None),
    ("on_limit", checks.on_limit, checks.ON_LIMIT[0]),
    ("parked", fields.optional(checks.parked), None),
    ("budget_usd", fields.optional(fields.dollars(0.000001)), None),
    ("usage", checks.usage, ()),
    ("after", checks.job_ids, ()),
    ("waits_for", checks.job_ids, ()),
    ("not_before", fields.optional(fields.time), None),
    ("look_at", fields.optional(fields.time), None),
    ("followed_at", fields.optional(fields.time), None),
    ("retries", fields.whole(0, 1000), 0),
    ("backoff_sec", fields.whole(0, MAX_TIMEOUT_SEC), 0),
    ("failed_attempts", fields.whole(0), 0),
    ("lost_attempts", fields.whole(0), 0),
    ("changed", fields.optional(fields.boolean), None),
    ("above", checks.job_ids, ()),
    ("agent_runs", checks.agent_runs, ()),
)
OWN_DEFAULTS = {name: default for name, _, default in _OWN_FIELDS}
_CHECKS = {name: (check, default) for name, check, default in _SCRIPT_FIELDS + _OWN_FIELDS}
_SECONDS = len("2026-06-19T09:30:00")
_MICROSECONDS = len("2026-06-19T09:30:00.123456Z")
TIME_FIELDS = frozenset(name for name in _CHECKS if name.endswith("_at")) | {"not_before"}
_ROW_CHECKS = {
    name: ((lambda value: value), default) if name in TIME_FIELDS else (check, default)
    for name, (check, default) in _CHECKS.items()
}
JOB_FIELDS = tuple(_CHECKS)
_LISTS = ("expected_artifacts", "labels", "verified_by", "after", "waits_for", "above")
# Other jobs that the record of an unfinished job names: `prune` keeps them, with those in `after`.
NAMES_OF_JOBS = ("parent", "follows", "retry_of")
_COMPARED = tuple(name for name in (*JOB_FIELDS, "extra") if name != "change")
# What became of a job. A field that is not here belongs to the work, and a retry has it too.
FATE = frozenset(
    {"attempt", "claimed_by", "lease_expires_at", "lease_mark", "deadline_at", "last_seq", "last_event_at", "detail"}
    | {"finished_at", "submitter", "verified_by", "unverified", "disputed", "follows", "retry_of", "retried_by"}
    | {"reason", "ended_by", "seen_at", "idempotency_key", "notify_due", "activity", "change", "checkout"}
    | {"parked", "usage", "changed", "agent_runs"}
    | {"waits_for", "not_before", "look_at", "followed_at", "failed_attempts", "lost_attempts"}
)


class Job(Value):
    """One delegated piece of work, as the registry holds it.

    Times are RFC 3339 text in UTC. `extra` keeps the fields of a stored record that this version does not know.
    `lease_mark` is the end of the lease on the monotonic clock of the machine that gave it; `lease_expires_at` is the
    same moment as a date. `submitter` names the `baton submit` process that alone may start this job while it lives.
    Of a completed job, `verified_by` names the checks of its results that ran, or `unverified` who skipped them.
    `disputed` says how the audit log contradicts the registry: until the user has settled it, no process may claim the
    job. `parent` is the job whose agent submitted this one, `above` all jobs (or sessions without one) whose agents led
    to it, the first one first, `follows` the job whose conversation this one continues.
    Of an ended job, `ended_by` is one of ENDED_BY, `reason` says it in words, and `seen_at` is when the user was shown
    the end. `idempotency_key` is unique in a registry: a second submission with it is this job. `start_options` says
    how its session is started: `headless`, `yolo`, `resume` to continue the conversation `conversation_id`, and
    `within`, the folder in which its work folder must lie when it starts.
    `activity` is what the agent did when its runner last reported it: `kind`, `since`, `cause`, `attempt`. `change` is
    the number of the write that stored it, which rises with each write: equal jobs may differ in it. A job with a
    `worktree` works in a git worktree of that `repository`, from `base` on, as the user gave it. `checkout` is the
    commit of that base and, once a runner has made the worktree, its `path` and `branch`, and for which `job` and
    `attempt` it was made: a follow-up works in that of the first job. `parked` says which usage limit the job waited
    for last: the attempt that reached it, since when, until when, and the conversation that goes on after it. `usage`
    is what each attempt has used: tokens, and dollars if they are known.
    `after` are the jobs that must be completed before this one starts; `waits_for` those of them that are not, as far
    as the registry has looked. A pending job with `waits_for` or `look_at` is blocked: no process may claim it.
    `look_at` is when the registry looks at the job again: at `not_before`, or, of an ended job, to let those after it
    go on (`followed_at`: there are some). `failed_attempts` counts the errors that `retries` allowed, `lost_attempts`
    the holders that were lost, of which `max_attempts` allows some. `changed` says of an ended job with a worktree
    whether it has left a change there; None: unknown, or it has no worktree. `agent_runs`
    says what each attempt ran, as far as the agent says it: its release, its permission mode, its model."""

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
    worktree: dict[str, Any] | None
    checkout: dict[str, Any] | None
    on_limit: str
    parked: dict[str, Any] | None
    budget_usd: float | None
    usage: tuple[dict[str, Any], ...]
    after: tuple[str, ...]
    waits_for: tuple[str, ...]
    not_before: str | None
    look_at: str | None
    followed_at: str | None
    retries: int
    backoff_sec: int
    failed_attempts: int
    lost_attempts: int
    changed: bool | None
    above: tuple[str, ...]
    agent_runs: tuple[dict[str, Any], ...]
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
        """Return the record as it is shown: every field and the `grade`, times with at most microseconds, secrets
        hidden."""
        full = self._full() | self.extra
        for name in TIME_FIELDS:
            if full[name] is not None and len(full[name]) > _MICROSECONDS:
                full[name] = full[name][: _MICROSECONDS - 1] + "Z"
        if not show_secrets:
            if full["auth_token"] is not None:
                full["auth_token"] = HIDDEN
            if full["broker"].get("password") is not None:
                full["broker"]["password"] = HIDDEN
        return full | {"grade": self.grade}

    def _full(self) -> dict[str, Any]:
        full = {name: getattr(self, name) for name in JOB_FIELDS}
        full["status"] = self.status.value
        full["broker"] = self.broker.record()
        for name in _LISTS:
            full[name] = list(full[name])
        return full

    @property
    def grade(self) -> str | None:
        """What vouches for a job that ended well: `validated`, `ran` (its files are there), `said`; None for others."""
        return grade_of(self.status, self.verified_by)

    @property
    def is_blocked(self) -> bool:
        """Whether the job is pending and must not start yet."""
        return self.status is Status.PENDING and (bool(self.waits_for) or self.look_at is not None)

    @property
    def events_topic(self) -> str:
        return f"{self.topic_prefix}/events"

    @property
    def folder(self) -> str | None:
        """The folder of the work: `workdir`, or the same place in the job's worktree once that was made."""
        path = (self.checkout or {}).get("path")
        if path is None or self.worktree is None or self.workdir is None:
            return self.workdir
        inside = os.path.relpath(self.workdir, self.worktree["repository"])
        return path if inside == "." else os.path.join(path, inside)

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


def waiting_text(waits_for: Sequence[str], not_before: str | None) -> str:
    """Return what a blocked job waits for, in words."""
    if waits_for:
        more = f" and {len(waits_for) - 1} more" if len(waits_for) > 1 else ""
        return f"after {waits_for[0]}{more}"
    return f"not before {not_before[:_SECONDS]}Z" if not_before is not None else ""


def topic_prefix(job_id: str) -> str:
    return f"python/mqtt/jobs/{job_id}"
