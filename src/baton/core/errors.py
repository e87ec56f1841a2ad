"""Define every error of baton. Each class carries its exit code; `make reference` draws the tree."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class BatonError(Exception):
    """An error whose message says, in one line, what failed, why, and what to do next."""

    exit_code = 1


class UsageError(BatonError):
    """The command line is wrong."""

    exit_code = 64


class InvalidValue(BatonError):
    """A value is not valid; `field` names it."""

    exit_code = 64

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field} {why}")
        self.field = field
        self.why = why


class WrongState(InvalidValue):
    """A value is valid, but not in the present state of what `field` names."""

    exit_code = 1


class InvalidRecord(InvalidValue):
    """A stored job record is not valid; `job_id` is the name under which it is stored."""

    exit_code = 1

    def __init__(self, job_id: str, field: str, why: str) -> None:
        super().__init__(field, why)
        self.args = (f"record {job_id}: {field} {why}",)
        self.job_id = job_id


class UntrustedHome(BatonError):
    """The user has not trusted this home; `place` is its path, `folder` is what `baton trust` takes."""

    def __init__(self, place: str, folder: str) -> None:
        from shlex import quote

        super().__init__(
            f"{place} is not a home that you made here (it may come with a clone, a copy or an older baton) and is not "
            f"used; look at it and take it over with: baton trust {quote(folder)}"
        )
        self.place = place
        self.folder = folder


class InvalidSession(InvalidValue):
    """A row of the inventory that is not a session; `name` is the name under which it is stored."""

    exit_code = 1

    def __init__(self, name: str, field: str, why: str) -> None:
        super().__init__(field, why)
        self.args = (f"session {name[:64]!r}: {field} {why}; `baton session prune --invalid` removes the row",)
        self.name = name


_ALSO = "with --all-homes also those of other folders"


class JobNotFound(BatonError):
    """The registry has no job with this id."""

    def __init__(self, job_id: str, where: str) -> None:
        super().__init__(f"no job {job_id} in {where}; `baton list` shows all jobs, {_ALSO}")
        self.job_id = job_id


class AmbiguousId(BatonError):
    """Several job ids begin with the text that was typed; `matches` describes each."""

    def __init__(self, text: str, matches: list[str], more: bool = False) -> None:
        shown = ", ".join(matches) + (", ..." if more else "")
        super().__init__(f"more than one job id begins with {text}: {shown}; type more characters")
        self.matches = matches


class KeyTaken(BatonError):
    """The idempotency key belongs to a job for other work; `fields` are those that differ."""

    def __init__(self, key: str, job_id: str, fields: list[str]) -> None:
        differ = ", ".join(fields)
        super().__init__(f"idempotency key {key!r} belongs to job {job_id}, whose {differ} differ; use another key")
        self.job_id = job_id
        self.fields = fields


_IS = {"pending": "has not started", "error": "has failed already"}
_BECOMES = {"pending": "be requeued", "running": "be started", "error": "fail"}


class IllegalTransition(BatonError):
    """A status may not follow the job's present one."""

    def __init__(self, job_id: str, current: str, wanted: str, hint: str = "") -> None:
        state, change = _IS.get(current, f"is {current} already"), _BECOMES.get(wanted, f"be {wanted}")
        super().__init__(f"job {job_id} {state} and cannot {change}{hint and '; ' + hint}")
        self.job_id = job_id
        self.current = current
        self.wanted = wanted


class EventRefused(BatonError):
    """An event is not allowed in the job's present status."""

    def __init__(self, job_id: str, event: str, why: str) -> None:
        super().__init__(f"event {event} for job {job_id} refused: {why}")
        self.job_id = job_id
        self.event = event


class JobBlocked(BatonError):
    """A pending job waits for other jobs, or for a time, so it may not be claimed yet; `why` says for what."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"job {job_id} waits and cannot start yet: {why}; `baton explain {job_id}` says more")
        self.job_id = job_id
        self.why = why


class JobDisputed(BatonError):
    """The audit log of a job contradicts the registry, so the job may not be claimed."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(
            f"job {job_id} is not claimed: {why}; settle it with `baton registry reconcile {job_id} --keep registry` "
            "or `--keep history`"
        )
        self.job_id = job_id
        self.why = why


class StaleAttempt(BatonError):
    """A holder that has lost the job tried to write."""

    def __init__(self, job_id: str, attempt: int, current: int, status: str) -> None:
        super().__init__(
            f"stale attempt: job {job_id} is {status} at attempt {current}, this write is from attempt "
            f"{attempt}; stop working on it"
        )
        self.job_id = job_id
        self.attempt = attempt
        self.current = current


class RequestNotFound(BatonError):
    """The registry has no request with this id."""

    def __init__(self, request_id: str, where: str) -> None:
        super().__init__(f"no request {request_id} in {where}; `baton requests` shows all open requests, {_ALSO}")
        self.request_id = request_id


class RequestClosed(BatonError):
    """A request is not open any more. `request` is what became of it: who answered what, and when."""

    def __init__(self, request: Any, why: str) -> None:
        super().__init__(f"request {request.request_id} {why}; nothing was changed")
        self.request = request


class AnswerNotUsed(BatonError):
    """The agent did not use the answer to a request. `request` says what it did instead (`overridden_by`)."""

    def __init__(self, request: Any, why: str) -> None:
        super().__init__(f"request {request.request_id}: {why}")
        self.request = request


class Rejected(BatonError):
    """Bytes are not a valid event. `reason` is one word, for counting."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class NothingPending(BatonError):
    """`pick` found no pending job in the queue."""

    exit_code = 3

    def __init__(self, agent_session: str) -> None:
        super().__init__(f"no pending job for {agent_session}")


class TimedOut(BatonError):
    """The time to wait is over, and jobs go on; `job_ids` names them."""

    exit_code = 2

    def __init__(self, message: str, job_ids: list[str]) -> None:
        super().__init__(message)
        self.job_ids = job_ids


class JobFailed(BatonError):
    """A job did not end well. `outcome` says how; the exit code is that of the outcome."""

    def __init__(self, message: str, outcome: Any) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.exit_code = outcome.exit_code


class NotVerified(BatonError):
    """`completed` came without the expected results. `why` says which are missing, without advice; `validation` is the
    end of what the validation printed, if it failed."""

    def __init__(self, message: str, why: str = "", validation: str | None = None) -> None:
        super().__init__(message)
        self.why = why or message
        self.validation = validation

    def with_output(self, text: str) -> str:
        """Return a text about this error with the output of the validation below it."""
        return f"{text}\n\nThe validation printed:\n{self.validation}" if self.validation else text


class BrokerUnavailable(BatonError):
    """No broker, or the login failed; the event is safe in the registry. `transient`: a retry may succeed."""

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class AgentNotFound(BatonError):
    """No live agent has this name."""


class AgentTaken(BatonError):
    """Another session owns this name; `owner` is its record, if it can be read."""

    def __init__(self, message: str, owner: object = None) -> None:
        super().__init__(message)
        self.owner = owner


class OwnershipLost(BatonError):
    """The session no longer owns its name."""


class ControlRefused(BatonError):
    """The session of a live agent failed a check."""


class RemoteAgent(ControlRefused):
    """The live agent runs on another machine."""

    def __init__(self, name: str, host: str) -> None:
        super().__init__(f"{name} runs on {host}; control it there (a job can be sent to it from here)")
        self.host = host


class ManifestPathRelative(ControlRefused):
    """The path of the manifest is not absolute."""


class ManifestGone(ControlRefused):
    """The manifest no longer exists."""


class ManifestInvalid(ControlRefused):
    """The manifest cannot be read."""


class NotInTmux(ControlRefused):
    """The backend of the session is not tmux."""


class SessionMismatch(ControlRefused):
    """The manifest names another tmux session."""


class IdentityMismatch(ControlRefused):
    """The manifest is of another agent or generation."""


class SessionGone(ControlRefused):
    """tmux has no such session."""


class AgentDefDirUnusable(ControlRefused):
    """The definition folder of the agent is missing or not absolute."""


class SessionNotFound(BatonError):
    """The inventory has no session of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no session {name!r}; `baton session list --all` shows all sessions")


class NameInUse(BatonError):
    """A session of this name exists."""


class RunnerDied(BatonError):
    """The runner ended before the agent started."""


class AgentUnusable(BatonError):
    """The agent's program is missing, or cannot do this."""


class UnknownAgent(AgentUnusable):
    """No agent has this name."""

    exit_code = 64


class TmuxUnavailable(BatonError):
    """tmux is missing, too old, or does not answer."""


class GitFailed(BatonError):
    """git refused what baton asked for; nothing was changed."""


class GitUnusable(GitFailed):
    """git is missing or too old."""


class WorktreeRefused(BatonError):
    """A worktree is in use, holds work that is found nowhere else, or cannot be merged; nothing was changed."""


class MissingExtra(BatonError):
    """An optional package is not installed."""

    def __init__(self, what_for: str, command: str) -> None:
        super().__init__(f"{what_for} needs an extra package: {command}")


class MigrationFailed(BatonError):
    """The old registry is still in use, unchanged."""


class RegistryUnavailable(BatonError):
    """The registry cannot be used now."""


class RegistryBusy(RegistryUnavailable):
    """Another process holds the lock of the registry."""


class RegistryMoved(RegistryUnavailable):
    """A migration has moved the registry: it does not come back."""


class NewerSchema(RegistryUnavailable):
    """A newer baton wrote this."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} was written by a newer baton (schema {found}, this one knows {known}); upgrade tmux-baton"
        )


class NetworkFileSystem(RegistryUnavailable):
    """The store needs a local disk."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(
            f"{path} is on a network file system ({kind}), where locks are not reliable; use a local folder "
            "(BATON_STATE_DIR) or PostgreSQL (--registry postgresql://...), or accept the risk with --allow-network-fs"
        )


# Here, and not in a module of its own: a process that may not open more files cannot import one.
_ADVICE = {
    errno.EMFILE: "this process may open no more files; raise the limit: ulimit -n 1024",
    errno.ENFILE: "programs on this machine may open no more files; end some",
    errno.EAGAIN: "no more processes may be started; end some, or raise the limit: ulimit -u",
    errno.ENOMEM: "end programs that need much memory, or raise the limit: ulimit -v",
    errno.ENOSPC: "free some and try again",
    errno.EDQUOT: "free some of your quota and try again",
    errno.EFBIG: "files of this process may not become longer; raise the limit: ulimit -f unlimited",
}
_NO_THREAD = "can't start new thread"  # of Python, for EAGAIN: a thread counts as a process


def describe_system_error(error: Exception, where: str = "") -> str | None:
    """Return in one line what the operating system refused, and what to do if it lacks something; None for an error
    that is not one of the system. `where` stands for a file that the error does not name."""
    if (what := describe_shortage(error)) is None:
        if not isinstance(error, OSError):
            return None
        what = str(error.strerror or error)
    place = getattr(error, "filename", None) or where
    return f"{place}: {what}" if place else what


def describe_shortage(error: BaseException | None) -> str | None:
    """Return what the operating system lacks, and what to do; None for every other error."""
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        number = errno.EAGAIN
    elif isinstance(error, OSError) and error.errno in _ADVICE and error.strerror == os.strerror(error.errno):
        number = error.errno
    else:
        return None  # also for what Python says with EAGAIN, of a descriptor that would block
    return f"{os.strerror(number)} ({_ADVICE[number]})"
