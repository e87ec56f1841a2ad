"""baton hands work to CLI coding agents in tmux and knows what became of it.

    import baton

    job = baton.register_job("Write sort_problems.md", agent="claude-code")
    with baton.open_jobs() as jobs:
        claimed = jobs.pick_pending("tmux:claude-code", lease_sec=60)

The functions open the registry for one call; `open_jobs` keeps it open for many. Names are loaded when they
are first used, so that importing baton costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.api import (
        events_after,
        get_job,
        list_jobs,
        mark_sent,
        next_seq,
        open_jobs,
        pick_pending,
        publish_event,
        record_event,
        register_job,
        release,
        renew_lease,
        requeue,
        stats,
        subscribe,
        unsent_events,
        update_status,
        verify_event,
    )
    from baton.core.errors import (
        AgentDefDirUnusable,
        AgentNotFound,
        AgentTaken,
        BatonError,
        BrokerUnavailable,
        ControlRefused,
        EventRefused,
        IdentityMismatch,
        IllegalTransition,
        InvalidRecord,
        InvalidValue,
        JobNotFound,
        ManifestGone,
        ManifestInvalid,
        ManifestPathRelative,
        MissingExtra,
        NetworkFileSystem,
        NewerSchema,
        NotInTmux,
        NotVerified,
        OwnershipLost,
        RegistryBusy,
        RegistryUnavailable,
        Rejected,
        RemoteAgent,
        SessionGone,
        SessionMismatch,
        StaleAttempt,
        TmuxUnavailable,
    )
    from baton.core.event import EventName, StoredEvent
    from baton.core.job import Job, Status
    from baton.history.append import append_event, init_job_log, update_logged_status
    from baton.history.read import (
        iter_logged_events,
        job_log_path,
        list_logged_jobs,
        read_logged_meta,
        read_logged_status,
    )
    from baton.history.verify import verify_log
    from baton.jobs.verbs import Jobs
    from baton.live_agent_api import (
        cleanup_registry,
        new_live_agent_record,
        publish_live_agent_record,
        refresh_live_agent_record,
        remove_live_agent_record,
        resolve_for_control,
        resolve_live_agent_record,
    )
    from baton.live_agents.record import AgentRecord
    from baton.registry.query import JobFilter

    LOGS_DIR: str

_HOME_OF = {
    "baton.api": (
        "events_after get_job list_jobs mark_sent next_seq open_jobs pick_pending publish_event record_event "
        "register_job release renew_lease requeue stats subscribe unsent_events update_status verify_event"
    ),
    "baton.history.append": "append_event init_job_log update_logged_status",
    "baton.history.read": (
        "LOGS_DIR iter_logged_events job_log_path list_logged_jobs read_logged_meta read_logged_status"
    ),
    "baton.history.verify": "verify_log",
    "baton.live_agent_api": (
        "cleanup_registry new_live_agent_record publish_live_agent_record refresh_live_agent_record "
        "remove_live_agent_record resolve_for_control resolve_live_agent_record"
    ),
    "baton.live_agents.record": "AgentRecord",
    "baton.core.errors": (
        "AgentDefDirUnusable AgentNotFound AgentTaken BatonError BrokerUnavailable ControlRefused "
        "EventRefused IdentityMismatch IllegalTransition InvalidRecord InvalidValue JobNotFound ManifestGone "
        "ManifestInvalid ManifestPathRelative MissingExtra NetworkFileSystem NewerSchema NotInTmux NotVerified "
        "OwnershipLost RegistryBusy RegistryUnavailable Rejected RemoteAgent SessionGone SessionMismatch StaleAttempt "
        "TmuxUnavailable"
    ),
    "baton.jobs.verbs": "Jobs",
    "baton.core.event": "EventName StoredEvent",
    "baton.core.job": "Job Status",
    "baton.registry.query": "JobFilter",
}
_MODULE_OF = {name: module for module, names in _HOME_OF.items() for name in names.split()}

__all__ = [
    "LOGS_DIR",
    "AgentDefDirUnusable",
    "AgentNotFound",
    "AgentRecord",
    "AgentTaken",
    "BatonError",
    "BrokerUnavailable",
    "ControlRefused",
    "EventName",
    "EventRefused",
    "IdentityMismatch",
    "IllegalTransition",
    "InvalidRecord",
    "InvalidValue",
    "Job",
    "JobFilter",
    "JobNotFound",
    "Jobs",
    "ManifestGone",
    "ManifestInvalid",
    "ManifestPathRelative",
    "MissingExtra",
    "NetworkFileSystem",
    "NewerSchema",
    "NotInTmux",
    "NotVerified",
    "OwnershipLost",
    "RegistryBusy",
    "RegistryUnavailable",
    "Rejected",
    "RemoteAgent",
    "SessionGone",
    "SessionMismatch",
    "StaleAttempt",
    "Status",
    "StoredEvent",
    "TmuxUnavailable",
    "__version__",
    "append_event",
    "cleanup_registry",
    "events_after",
    "get_job",
    "init_job_log",
    "iter_logged_events",
    "job_log_path",
    "list_jobs",
    "list_logged_jobs",
    "mark_sent",
    "new_live_agent_record",
    "next_seq",
    "open_jobs",
    "pick_pending",
    "publish_event",
    "publish_live_agent_record",
    "read_logged_meta",
    "read_logged_status",
    "record_event",
    "refresh_live_agent_record",
    "register_job",
    "release",
    "remove_live_agent_record",
    "renew_lease",
    "requeue",
    "resolve_for_control",
    "resolve_live_agent_record",
    "stats",
    "subscribe",
    "unsent_events",
    "update_logged_status",
    "update_status",
    "verify_event",
    "verify_log",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'baton' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
