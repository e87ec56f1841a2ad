"""Everything that can go wrong, as one tree. Each class carries its exit code.

BatonError                     1   refused or failed
├── UsageError                64   the command line itself is wrong
├── InvalidValue               1   a value that does not fit, by field
│   └── InvalidRecord          1   ... inside a stored job record
├── JobNotFound                1
├── IllegalTransition          1   from one status to another that may not follow
├── EventRefused               1   an event the job's story has no room for
├── StaleAttempt               1   a write by a holder that is no longer the holder
├── Rejected                   1   bytes that are not an event of ours
├── NothingPending             3   `pick` found no job of that label
├── NotVerified                1   `completed` without what the job must leave behind
├── BrokerUnavailable          1   no broker, or none that lets us in; the event is safe in the registry
├── AgentNotFound              1   a name leads to no live agent now
├── AgentTaken                 1   another live session owns that name
├── OwnershipLost              1   a session that no longer owns its name
├── ControlRefused             1   a live agent's record leads somewhere that is not safe to touch
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
├── NameInUse                  1   a session of that name is there already
├── RunnerDied                 1   what was to run an agent in its pane ended before it could
├── AgentUnusable              1   an agent's program is missing, or cannot do what was asked
├── TmuxUnavailable            1   no tmux, too old, or its server does not answer
├── MissingExtra               1   an optional package is needed and not installed
├── AuditDamaged               1   the audit log does not verify
├── MigrationFailed            1   nothing was set aside, the old registry is still in use
└── RegistryUnavailable        1   the store cannot be used now
    ├── RegistryBusy           1   somebody else holds its lock
    ├── NewerSchema            1   written by a newer baton
    └── NetworkFileSystem      1   a store that needs a local disk lies on a share
"""

from __future__ import annotations


class BatonError(Exception):
    """What went wrong, why, and what to do next, in one line."""

    exit_code = 1


class UsageError(BatonError):
    exit_code = 64


class InvalidValue(BatonError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field} {why}")
        self.field = field
        self.why = why


class InvalidRecord(InvalidValue):
    """A stored record that does not fit; `job_id` is the name it is stored under."""

    def __init__(self, job_id: str, field: str, why: str) -> None:
        super().__init__(field, why)
        self.args = (f"record {job_id}: {field} {why}",)
        self.job_id = job_id


class JobNotFound(BatonError):
    def __init__(self, job_id: str, where: str) -> None:
        super().__init__(f"no job {job_id} in {where}; `baton list` shows what is there")
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
    """Why a payload is not an event of ours. `reason` is one word, for counting."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class NothingPending(BatonError):
    exit_code = 3

    def __init__(self, agent_session: str) -> None:
        super().__init__(f"no pending job for {agent_session}")


class NotVerified(BatonError):
    """`why` is what is missing, without what to do about it."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


class BrokerUnavailable(BatonError):
    """`transient`: trying again in a moment may help. A wrong password stays wrong."""

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class AgentNotFound(BatonError):
    pass


class AgentTaken(BatonError):
    """`owner` is the record of the session that has the name, where it can be read."""

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
        super().__init__(f"there is no session {name!r}; `baton session list --all` shows what there is")


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
            f"{path} is on a network file system ({kind}), where locks cannot be trusted; use a local folder "
            "or PostgreSQL (--registry postgresql://...), or insist with --allow-network-fs"
        )
