"""Define every error of baton, as one tree. Each class carries its exit code.

BatonError                     1   refused or failed
├── UsageError                64   the command line is wrong
├── InvalidValue               1   a value is not valid; names the field
│   └── InvalidRecord          1   ... in a stored job record
├── JobNotFound                1
├── IllegalTransition          1   a status that may not follow the present one
├── EventRefused               1   an event that is not allowed in the job's present status
├── StaleAttempt               1   a write of a holder that has lost the job
├── Rejected                   1   bytes that are not a valid event
├── NothingPending             3   `pick` found no pending job in the queue
├── NotVerified                1   `completed` without the expected results
├── BrokerUnavailable          1   no broker, or the login failed; the event is safe in the registry
├── AgentNotFound              1   no live agent has that name
├── AgentTaken                 1   another session owns that name
├── OwnershipLost              1   the session no longer owns its name
├── ControlRefused             1   the session of a live agent failed a check
│   ├── RemoteAgent            1   ... on another machine
│   ├── ManifestPathRelative   1
│   ├── ManifestGone           1
│   ├── ManifestInvalid        1
│   ├── NotInTmux              1   ... its backend is not tmux
│   ├── SessionMismatch        1   ... the manifest names another tmux session
│   ├── IdentityMismatch       1   ... the manifest is of another agent or generation
│   ├── SessionGone            1   ... tmux has no such session
│   └── AgentDefDirUnusable    1
├── SessionNotFound            1   no session of that name in the inventory
├── NameInUse                  1   a session of that name exists
├── RunnerDied                 1   the runner ended before the agent started
├── AgentUnusable              1   the agent's program is missing, or cannot do this
├── TmuxUnavailable            1   tmux is missing, too old, or does not answer
├── MissingExtra               1   an optional package is not installed
├── AuditDamaged               1   the audit log does not verify
├── MigrationFailed            1   the old registry is still in use, unchanged
└── RegistryUnavailable        1   the registry cannot be used now
    ├── RegistryBusy           1   another process holds its lock
    ├── NewerSchema            1   written by a newer baton
    └── NetworkFileSystem      1   the store needs a local disk
"""

from __future__ import annotations


class BatonError(Exception):
    """An error whose message says, in one line, what failed, why, and what to do next."""

    exit_code = 1


class UsageError(BatonError):
    exit_code = 64


class InvalidValue(BatonError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field} {why}")
        self.field = field
        self.why = why


class InvalidRecord(InvalidValue):
    """A stored record that is not valid; `job_id` is the name under which it is stored."""

    def __init__(self, job_id: str, field: str, why: str) -> None:
        super().__init__(field, why)
        self.args = (f"record {job_id}: {field} {why}",)
        self.job_id = job_id


class JobNotFound(BatonError):
    def __init__(self, job_id: str, where: str) -> None:
        super().__init__(f"no job {job_id} in {where}; `baton list` shows all jobs")
        self.job_id = job_id


class IllegalTransition(BatonError):
    def __init__(self, job_id: str, current: str, wanted: str, hint: str = "") -> None:
        super().__init__(f"job {job_id} is {current} and cannot become {wanted}{hint and '; ' + hint}")
        self.job_id = job_id
        self.current = current
        self.wanted = wanted


class EventRefused(BatonError):
    def __init__(self, job_id: str, event: str, why: str) -> None:
        super().__init__(f"event {event} for job {job_id} refused: {why}")
        self.job_id = job_id
        self.event = event


class StaleAttempt(BatonError):
    def __init__(self, job_id: str, attempt: int, current: int, status: str) -> None:
        super().__init__(
            f"stale attempt: job {job_id} is {status} at attempt {current}, this write is from attempt "
            f"{attempt}; stop working on it"
        )
        self.job_id = job_id
        self.attempt = attempt
        self.current = current


class Rejected(BatonError):
    """The reason why a payload is not a valid event. `reason` is one word, for counting."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class NothingPending(BatonError):
    exit_code = 3

    def __init__(self, agent_session: str) -> None:
        super().__init__(f"no pending job for {agent_session}")


class NotVerified(BatonError):
    """The expected results are missing. `why` says which, without advice."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


class BrokerUnavailable(BatonError):
    """No broker. `transient`: a retry may succeed. A wrong password is not transient."""

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class AgentNotFound(BatonError):
    pass


class AgentTaken(BatonError):
    """`owner` is the record of the session that owns the name, if it can be read."""

    def __init__(self, message: str, owner: object = None) -> None:
        super().__init__(message)
        self.owner = owner


class OwnershipLost(BatonError):
    pass


class ControlRefused(BatonError):
    pass


class RemoteAgent(ControlRefused):
    def __init__(self, name: str, host: str) -> None:
        super().__init__(f"{name} runs on {host}; control it there (a job can be sent to it from here)")
        self.host = host


class ManifestPathRelative(ControlRefused):
    pass


class ManifestGone(ControlRefused):
    pass


class ManifestInvalid(ControlRefused):
    pass


class NotInTmux(ControlRefused):
    pass


class SessionMismatch(ControlRefused):
    pass


class IdentityMismatch(ControlRefused):
    pass


class SessionGone(ControlRefused):
    pass


class AgentDefDirUnusable(ControlRefused):
    pass


class SessionNotFound(BatonError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no session {name!r}; `baton session list --all` shows all sessions")


class NameInUse(BatonError):
    pass


class RunnerDied(BatonError):
    pass


class AgentUnusable(BatonError):
    pass


class TmuxUnavailable(BatonError):
    pass


class MissingExtra(BatonError):
    def __init__(self, extra: str, what_for: str) -> None:
        super().__init__(f"{what_for} needs an extra package: pip install 'tmux-baton[{extra}]'")


class AuditDamaged(BatonError):
    pass


class MigrationFailed(BatonError):
    pass


class RegistryUnavailable(BatonError):
    pass


class RegistryBusy(RegistryUnavailable):
    pass


class NewerSchema(RegistryUnavailable):
    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} was written by a newer baton (schema {found}, this one knows {known}); upgrade tmux-baton"
        )


class NetworkFileSystem(RegistryUnavailable):
    def __init__(self, path: str, kind: str) -> None:
        super().__init__(
            f"{path} is on a network file system ({kind}), where locks are not reliable; use a local folder "
            "or PostgreSQL (--registry postgresql://...), or accept the risk with --allow-network-fs"
        )
