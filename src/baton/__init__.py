"""Run coding agents in tmux and know how each job ended.

    import baton

    job = baton.register_job("Write sort_problems.md", agent="claude-code")
    with baton.open_jobs() as jobs:
        claimed = jobs.pick_pending("tmux:claude-code", lease_sec=60)

Each function opens the registry for one call; `open_jobs` keeps it open for many. A name is loaded when it is first
used: `import baton` alone loads nothing else.
"""

from __future__ import annotations

__version__ = "0.2.0"

# The public names, by the module that defines them.
_PUBLIC = {
    "baton.api": (
        "answer approve deny events_after get_job list_jobs mark_sent next_seq open_jobs pick_pending publish_event "
        "read_output record_event register_job release renew_lease requests requeue result stats subscribe "
        "unsent_events update_status verify_event"
    ),
    "baton.core.errors": (
        "AgentDefDirUnusable AgentNotFound AgentTaken AgentUnusable AmbiguousId AnswerNotUsed BatonError "
        "BrokerUnavailable ControlRefused EventRefused IdentityMismatch IllegalTransition InvalidRecord "
        "InvalidValue JobDisputed JobFailed JobNotFound KeyTaken ManifestGone ManifestInvalid ManifestPathRelative "
        "MissingExtra NameInUse NetworkFileSystem NewerSchema NotInTmux NotVerified OwnershipLost RegistryBusy "
        "RegistryUnavailable Rejected RemoteAgent SessionGone SessionMismatch SessionNotFound StaleAttempt TimedOut "
        "TmuxUnavailable UntrustedHome WrongState"
    ),
    "baton.core.event": "EventName StoredEvent",
    "baton.core.job": "Job Status",
    "baton.core.request": "Request RequestKind RequestState",
    "baton.delegation_api": "Outcome cancel events follow_up retry run_worker submit submit_many wait wait_all",
    "baton.history.log": (
        "LOGS_DIR iter_logged_events job_log_path list_logged_jobs read_logged_meta read_logged_status"
    ),
    "baton.history.scripts": "append_event init_job_log update_logged_status",
    "baton.history.verify": "verify_log",
    "baton.jobs.results": "JobResult",
    "baton.jobs.verbs": "Jobs",
    "baton.live_agent_api": (
        "cleanup_registry new_live_agent_record publish_live_agent_record refresh_live_agent_record "
        "remove_live_agent_record resolve_for_control resolve_live_agent_record"
    ),
    "baton.live_agents.record": "AgentRecord",
    "baton.registry.contract": "JobFilter",
    "baton.session_api": (
        "attach_command capture_screen create_session explain get_session list_sessions resume_session send_text "
        "stop_session"
    ),
    "baton.sessions.session": "Session",
    "baton.wire.payload": "Event",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604

TYPE_CHECKING = False
if TYPE_CHECKING:  # the same names, for type checkers and editors
    # fmt: off
    # isort: off
    from baton.api import (
        answer as answer, approve as approve, deny as deny, events_after as events_after, get_job as get_job,
        list_jobs as list_jobs, mark_sent as mark_sent, next_seq as next_seq, open_jobs as open_jobs,
        pick_pending as pick_pending, publish_event as publish_event, read_output as read_output,
        record_event as record_event, register_job as register_job, release as release, renew_lease as renew_lease,
        requests as requests, requeue as requeue, result as result, stats as stats, subscribe as subscribe,
        unsent_events as unsent_events, update_status as update_status, verify_event as verify_event,
    )
    from baton.core.errors import (
        AgentDefDirUnusable as AgentDefDirUnusable, AgentNotFound as AgentNotFound, AgentTaken as AgentTaken,
        AgentUnusable as AgentUnusable, AmbiguousId as AmbiguousId, AnswerNotUsed as AnswerNotUsed,
        BatonError as BatonError, BrokerUnavailable as BrokerUnavailable, ControlRefused as ControlRefused,
        EventRefused as EventRefused, IdentityMismatch as IdentityMismatch, IllegalTransition as IllegalTransition,
        InvalidRecord as InvalidRecord, InvalidValue as InvalidValue, JobDisputed as JobDisputed,
        JobFailed as JobFailed, JobNotFound as JobNotFound, KeyTaken as KeyTaken, ManifestGone as ManifestGone,
        ManifestInvalid as ManifestInvalid, ManifestPathRelative as ManifestPathRelative, MissingExtra as MissingExtra,
        NameInUse as NameInUse, NetworkFileSystem as NetworkFileSystem, NewerSchema as NewerSchema,
        NotInTmux as NotInTmux, NotVerified as NotVerified, OwnershipLost as OwnershipLost,
        RegistryBusy as RegistryBusy, RegistryUnavailable as RegistryUnavailable, Rejected as Rejected,
        RemoteAgent as RemoteAgent, SessionGone as SessionGone, SessionMismatch as SessionMismatch,
        SessionNotFound as SessionNotFound, StaleAttempt as StaleAttempt, TimedOut as TimedOut,
        TmuxUnavailable as TmuxUnavailable, UntrustedHome as UntrustedHome, WrongState as WrongState,
    )
    from baton.core.event import EventName as EventName, StoredEvent as StoredEvent
    from baton.core.job import Job as Job, Status as Status
    from baton.core.request import Request as Request, RequestKind as RequestKind, RequestState as RequestState
    from baton.delegation_api import (
        Outcome as Outcome, cancel as cancel, events as events, follow_up as follow_up, retry as retry,
        run_worker as run_worker, submit as submit, submit_many as submit_many, wait as wait, wait_all as wait_all,
    )
    from baton.history.log import (
        LOGS_DIR as LOGS_DIR, iter_logged_events as iter_logged_events, job_log_path as job_log_path,
        list_logged_jobs as list_logged_jobs, read_logged_meta as read_logged_meta,
        read_logged_status as read_logged_status,
    )
    from baton.history.scripts import (
        append_event as append_event, init_job_log as init_job_log, update_logged_status as update_logged_status,
    )
    from baton.history.verify import verify_log as verify_log
    from baton.jobs.results import JobResult as JobResult
    from baton.jobs.verbs import Jobs as Jobs
    from baton.live_agent_api import (
        cleanup_registry as cleanup_registry, new_live_agent_record as new_live_agent_record,
        publish_live_agent_record as publish_live_agent_record, refresh_live_agent_record as refresh_live_agent_record,
        remove_live_agent_record as remove_live_agent_record, resolve_for_control as resolve_for_control,
        resolve_live_agent_record as resolve_live_agent_record,
    )
    from baton.live_agents.record import AgentRecord as AgentRecord
    from baton.registry.contract import JobFilter as JobFilter
    from baton.session_api import (
        attach_command as attach_command, capture_screen as capture_screen, create_session as create_session,
        explain as explain, get_session as get_session, list_sessions as list_sessions,
        resume_session as resume_session, send_text as send_text, stop_session as stop_session,
    )
    from baton.sessions.session import Session as Session
    from baton.wire.payload import Event as Event
    # isort: on
    # fmt: on


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'baton' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
