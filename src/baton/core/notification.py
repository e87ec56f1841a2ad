"""Decide which notifications about a job are due, and which process sends each: pure functions from job to job.

A notification is recorded in the job with the change that it announces, until it was sent: as `ATTEMPT:KIND` for an
end, as `ATTEMPT:KIND:NUMBER` for what may come again. NUMBER is the id of the request, or when the activity began;
`screen-` stands before it when the agent waits for a person at its own screen, without a request. `to`
is the user who wants it, as NAME@HOST, `sender` the process that is sending it, `tries` how often that has failed, and
`done` on which channels it was sent.
"""

from __future__ import annotations

import os
import re

from baton.core import fields
from baton.core.clock import parse_time
from baton.core.errors import InvalidValue
from baton.core.job import Job, Status, is_at_screen
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from baton.core.fields import Check

_ENDS = {Status.COMPLETED: "completed", Status.ERROR: "failed"}
WAITING = "waiting"
_ACTIVITIES = ("blocked", "stalled", "limited")
KINDS = (*_ENDS.values(), WAITING, *_ACTIVITIES)
MAX_TRIES = 5
_SCREEN = "screen-"


class NotifySettings(Value):
    """The table [notify] of the user's config file."""

    command: tuple[str, ...] = ()
    bell: bool = False
    webhook: str | None = None
    webhook_key_file: str | None = None
    kinds: tuple[str, ...] = KINDS

    @classmethod
    def parse(cls, table: object, path: str) -> NotifySettings:
        """Return the settings in a decoded table; raise InvalidValue for what is not valid."""
        if not isinstance(table, dict):
            raise InvalidValue("config file", f"{path}: notify must be a table")
        values = {}
        for name, value in table.items():
            if name not in _CHECKS:
                raise InvalidValue("config file", f"[notify] in {path} sets {name!r}, not one of {', '.join(_CHECKS)}")
            try:
                values[name] = _CHECKS[name](value)
            except ValueError as error:
                raise InvalidValue("config file", f"[notify] in {path}: {name} {error}") from None
        found = cls(**values)
        if (found.webhook is None) != (found.webhook_key_file is None):
            why = "webhook and webhook_key_file belong together: the key in that file signs what is sent"
            raise InvalidValue("config file", f"[notify] in {path}: {why}")
        return found

    def shown(self) -> dict[str, Any]:
        """Return the settings for people, as they stand in the file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.as_dict().items()}

    @property
    def wants(self) -> frozenset[str]:
        """Return the kinds of notifications that are sent."""
        has_channel = self.command or self.bell or self.webhook
        return frozenset(self.kinds if has_channel else ())


def _words(value: object) -> tuple[str, ...]:
    words = fields.texts(value)
    if not words:
        raise ValueError("must name a program")
    return words


def _url(value: object) -> str:
    text = fields.line(value)
    scheme, _, rest = text.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    if scheme not in ("http", "https") or not host or "@" in rest.partition("/")[0]:
        raise ValueError("must be an address such as https://example.com/hook, without a login")
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    if scheme == "http" and name not in ("localhost", "127.0.0.1", "[::1]"):  # guard: webhook-without-tls
        raise ValueError("must begin with https:// unless it is on this machine")
    return text


def _key_file(value: object) -> str:
    path = os.path.expanduser(fields.line(value))
    if not os.path.isabs(path):
        raise ValueError("must be an absolute path, or begin with ~/")
    return path


_CHECKS: dict[str, Check] = {
    "command": _words,
    "bell": fields.boolean,
    "webhook": _url,
    "webhook_key_file": _key_file,
    "kinds": fields.texts,  # a later version may know more than KINDS
}


class Wish(Value):
    """Which kinds of notifications a user (NAME@HOST) wants."""

    user: str
    kinds: frozenset[str]


class Due(Value):
    """A notification that is to be sent."""

    job: Job
    key: str

    @property
    def id(self) -> str:
        """Return the id by which a receiver recognises a notification that it gets twice."""
        return f"{self.job.job_id}:{self.key}"

    @property
    def kind(self) -> str:
        return self.key.split(":")[1]

    @property
    def number(self) -> str:
        """Return the id of the request, or what names the time at which the activity began; "" for an end."""
        return self.key.partition(":")[2].partition(":")[2]

    @property
    def is_at_screen(self) -> bool:
        """Return whether the agent waits for a person at its own screen, without a request."""
        return self.number.startswith(_SCREEN)

    @property
    def tries(self) -> int:
        return int(self._entry.get("tries") or 0)

    @property
    def done(self) -> frozenset[str]:
        """Return the channels on which it was sent already."""
        return frozenset(self._entry.get("done") or ())

    @property
    def _entry(self) -> dict[str, Any]:
        return dict(self.job.notify_due.get(self.key, {}))


def add_due(before: Job, after: Job, wish: Wish, data: Mapping[str, Any] | None = None) -> Job:
    """Return the job with the notification of what it has become, if the user wants it: of its end, of an activity that
    needs the user, or of its first open request. `data` is that of the event which is recorded with the change."""
    kind, number = _transition(before, after, data or {})
    if kind not in wish.kinds:
        return after
    key = f"{after.attempt}:{kind}:{number}".rstrip(":")
    return after.replace(notify_due={**after.notify_due, key: {"to": wish.user}})


def _transition(before: Job, after: Job, data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the number of the notification that a change is worth; "" for none."""
    if before.status is not after.status and after.status in _ENDS:
        return _ENDS[after.status], ""
    if data.get("open_requests") == 1 and "request_state" not in data:  # it opens a request; it closes none
        return WAITING, str(data.get("request_id"))
    new, old = after.activity, before.activity
    kind = _kind_of(new)
    if new is None or not kind:
        return "", ""
    is_same = old is not None and (_kind_of(old), old["attempt"]) == (kind, new["attempt"])
    number = str(parse_time(new["since"]) // 1000)
    return ("", "") if is_same else (kind, f"{_SCREEN}{number}" if kind == WAITING else number)


def _kind_of(activity: Mapping[str, Any] | None) -> str:
    """Return the kind of notification that an activity is worth; "" for none. A request has its own."""
    if activity is None:
        return ""
    return WAITING if is_at_screen(activity) else activity["kind"] if activity["kind"] in _ACTIVITIES else ""


def due_to(job: Job, user: str) -> list[Due]:
    """Return the notifications of a job that are due to this user."""
    return [Due(job=job, key=key) for key, entry in job.notify_due.items() if entry.get("to") == user]


def claim(job: Job, *, key: str, sender: str, is_dead: Callable[[str], bool]) -> Job:
    """Return the job with this process as the sender. Return the same job if the notification is not due any more, or
    if another process that lives sends it."""
    entry: dict[str, Any] | None = job.notify_due.get(key)
    if entry is None:
        return job
    present = entry.get("sender")
    if present is not None and not is_dead(present):  # guard: one-sender
        return job
    return job.replace(notify_due={**job.notify_due, key: {**entry, "sender": sender}})


def settle(job: Job, *, key: str, sender: str, done: Collection[str], failed: bool) -> Job:
    """Return the job after its sender has tried, and has sent it on the channels `done`. A notification that did not
    fail, or that failed too often, is not due any more."""
    entry = job.notify_due.get(key)
    if entry is None or entry.get("sender") != sender:
        return job
    others = {name: value for name, value in job.notify_due.items() if name != key}
    tries = int(entry.get("tries") or 0) + 1
    if not failed or tries >= MAX_TRIES:
        return job.replace(notify_due=others)
    changes = {"sender": None, "tries": tries, "done": sorted({*(entry.get("done") or ()), *done})}
    return job.replace(notify_due={**others, key: {**entry, **changes}})
