"""Decide which notifications about a job are due, and which process sends each: pure functions from job to job.

A notification is recorded in the job with the change that it announces, as `ATTEMPT:KIND`, until it was sent. `to` is
the user who wants it, as NAME@HOST, `sender` the process that is sending it, `tries` how often that has failed, and
`done` on which channels it was sent.
"""

from __future__ import annotations

import os
import re

from baton.core import fields
from baton.core.errors import InvalidValue
from baton.core.job import Job, Status
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from baton.core.fields import Check

# Later kinds are waiting, stalled and limited.
KINDS = {Status.COMPLETED: "completed", Status.ERROR: "failed"}
MAX_TRIES = 5


class NotifySettings(Value):
    """The table [notify] of the user's config file."""

    command: tuple[str, ...] = ()
    bell: bool = False
    webhook: str | None = None
    webhook_key_file: str | None = None
    kinds: tuple[str, ...] = tuple(KINDS.values())

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
        return self.key.partition(":")[2]

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


def add_due(before: Job, after: Job, wish: Wish) -> Job:
    """Return the job with the notification of the status that it has got, if the user wants it."""
    kind = None if before.status is after.status else KINDS.get(after.status)
    if kind is None or kind not in wish.kinds:
        return after
    return after.replace(notify_due={**after.notify_due, f"{after.attempt}:{kind}": {"to": wish.user}})


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
