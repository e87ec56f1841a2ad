"""The verbs people call on jobs: a registry change and its audit lines, together.

The registry decides and comes first. An audit line that cannot be written is a warning, and the gap shows
(`Jobs.audit_gaps`, `baton doctor`); the next verb on that job, or `baton logs`, fills it.
"""

from __future__ import annotations

import os
import sys

from baton.core import lifecycle
from baton.core.clock import SECOND_NS, SystemClock, parse_time
from baton.core.fields import check_label
from baton.core.job import DEFAULT_AGENT, TERMINAL, Job, Status, check_status, new_job, with_new_id
from baton.storage.files import make_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self

    from baton.config import Settings
    from baton.core.clock import Clock
    from baton.core.event import EventName, StoredEvent
    from baton.core.job import Broker
    from baton.core.redact import Redactor
    from baton.history import log as audit
    from baton.registry.contract import Registry
    from baton.registry.query import JobFilter
    from baton.registry.results import Change, Page, Recorded


_AT_ONCE_NS = 5 * SECOND_NS
_PAGE = 1_000


def _warn(message: str) -> None:
    print(f"baton: warning: {message}", file=sys.stderr)


class Jobs:
    """A registry with its audit log. Use it in a `with` block, or close it."""

    def __init__(
        self,
        registry: Registry,
        logs_dir: str,
        *,
        clock: Clock | None = None,
        home: str | None = None,
        host: str | None = None,
        secrets: Iterable[str | None] = (),
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self.registry = registry
        self._home = home and os.path.abspath(home)
        self.logs_dir = os.path.abspath(logs_dir)
        self._host = host or os.uname().nodename
        self._clock: Clock = clock or SystemClock()
        self._secrets = tuple(secrets)
        self._warn = warn
        self._received: dict[str, audit.Received] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.registry.close()

    def register_job(self, prompt: str, *, agent: str = DEFAULT_AGENT, **fields: Any) -> Job:
        """Registers a pending job and returns it; `fields` are those of `baton.core.job.new_job`."""
        return self.register_many([new_job(prompt, now_ns=self._clock.wall_ns(), agent=agent, **fields)])[0]

    def register_many(self, drafts: Iterable[Job]) -> list[Job]:
        if self._home is not None:
            make_home(self._home)
        # An id whose log outlived its job is not given out again.
        jobs = self.registry.register_many(with_new_id(job) if self._has_log(job) else job for job in drafts)
        for job in jobs:
            self._begin_log(job)
        return jobs

    def get_job(self, job_id: str) -> Job:
        return self.registry.get_job(job_id)

    def list_jobs(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page:
        return self.registry.list_jobs(where, limit=limit, after=after)

    def pages(
        self, where: JobFilter | None = None, *, limit: int | None = None, after: str | None = None
    ) -> Iterator[Page]:
        """The whole listing, page by page: at most `limit` jobs, where one is given."""
        while True:
            page = self.list_jobs(where, limit=_PAGE if limit is None else min(limit, _PAGE), after=after)
            yield page
            after = page.next
            if limit is not None:
                limit -= len(page.jobs)
            if after is None or limit == 0:
                return

    def each_job(self, where: JobFilter | None = None) -> Iterator[Job]:
        """All of them, newest first; records that do not fit are passed over."""
        for page in self.pages(where):
            yield from page

    def pick_pending(
        self, agent_session: str, *, holder: str | None = None, lease_sec: float | None = None
    ) -> Job | None:
        """Claims the next pending job of that label; None when there is none."""
        change = self.registry.pick_pending(
            agent_session, holder=self.holder_here() if holder is None else holder, lease_sec=lease_sec
        )
        if change is None:
            return None
        self._log_change(change.before, change.after)
        return change.after

    def pick_job(self, job_id: str, *, holder: str | None = None, lease_sec: float | None = None) -> Job:
        """Claims this very job; IllegalTransition when it is not pending."""
        change = self.registry.pick_job(
            job_id, holder=self.holder_here() if holder is None else holder, lease_sec=lease_sec
        )
        self._log_change(change.before, change.after)
        return change.after

    def update_status(self, job_id: str, status: str, *, attempt: int | None = None) -> Job:
        change = self.registry.update_status(job_id, check_status(status), attempt=attempt, holder=self.holder_here())
        self._log_change(change.before, change.after)
        return change.after

    def release(self, job_id: str, *, attempt: int | None = None, reason: str = "released") -> Job:
        """Hands a running job back: it is pending again, for whoever picks next."""
        check_label("reason", reason)
        change = self.registry.requeue(job_id, attempt=attempt)
        self._log_change(change.before, change.after, reason=reason)
        return change.after

    def renew_lease(self, job_id: str, *, attempt: int, lease_sec: float) -> Job:
        return self.registry.renew_lease(job_id, attempt=attempt, lease_sec=lease_sec)

    def expire_leases(self) -> list[Change]:
        """Takes jobs from holders whose lease ran out: requeued, or ended as error without attempts left."""
        changes: list[Change] = []
        while batch := self.registry.expire_leases():
            changes += batch
            for change in batch:
                self._log_change(change.before, change.after, reason="lease expired")
                if change.after.status in TERMINAL:  # with an event that says so
                    for event in self.registry.events_after(change.after.job_id, change.after.last_seq - 1):
                        self._log_event(event)
        return changes

    def next_seq(self, job_id: str, *, attempt: int | None = None) -> int:
        return self.registry.next_seq(job_id, attempt=attempt)

    def record_event(
        self,
        job_id: str,
        event: str,
        *,
        detail: str = "",
        data: Mapping[str, Any] | None = None,
        attempt: int | None = None,
    ) -> StoredEvent:
        """Record an event without verifying `completed`; see `baton.jobs.report`."""
        from baton.jobs.report import report

        return report(self, job_id, event, detail=detail, data=data, attempt=attempt, verify=None)[1]

    def holder_here(self) -> str:
        """Return the holder of claims made by this process: the monitor of this host recognises it."""
        return f"{self._host}:{os.getpid()}"

    def redactor(self, job: Job) -> Redactor:
        """Takes out of a text what must not be said about this job."""
        from baton.core.redact import process_redactor

        return process_redactor(secrets=(job.auth_token, job.broker.password, *self._secrets), workdir=job.workdir)

    def events_after(self, job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        return self.registry.events_after(job_id, seq, limit=limit)

    def last_event(self, job: Job) -> EventName | None:
        """Return the name of the newest event of the job as given, or None without one."""
        found = self.registry.events_after(job.job_id, max(job.last_seq - 1, 0))
        return found[-1].event if found else None

    def unsent_events(
        self, *, job_id: str | None = None, broker: Broker | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        return self.registry.unsent_events(job_id=job_id, broker=broker, limit=limit)

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        self.registry.mark_sent(job_id, seqs)

    def prune(self, before_ns: int) -> list[str]:
        """Forgets jobs that ended before then; their audit logs stay."""
        pruned: list[str] = []
        while batch := self.registry.prune(before_ns):
            pruned += batch
        return pruned

    def stats(self) -> dict[str, int]:
        return self.registry.stats()

    # -- the audit log beside it -------------------------------------------------------------------------

    def audit_gaps(self, *, newest: int = 1000) -> list[Job]:
        """Jobs, among the newest, whose audit log does not know their present status."""
        from baton.history import log as audit

        jobs = self.registry.list_jobs(limit=newest).jobs
        return [job for job in jobs if audit.read_logged_status(job.job_id, self.logs_dir) != job.status]

    def mend_audit(self, job: Job) -> None:
        """Writes what the audit log missed, marked as written later."""
        self._audited(job.job_id, lambda: self._catch_up(job))

    def _has_log(self, job: Job) -> bool:
        return os.path.exists(os.path.join(self.logs_dir, job.job_id))

    def _catch_up(self, job: Job) -> str | None:
        """Brings the log to where the job was; returns the status the log had, where that is already beyond it."""
        from baton.history import log as audit

        now_ns = self._clock.wall_ns()
        logged = audit.read_logged_status(job.job_id, self.logs_dir)
        if logged is None:
            late = now_ns - parse_time(job.created_at) > _AT_ONCE_NS
            audit.init_job_log(job.record(), now_ns=now_ns, logs_dir=self.logs_dir, late=late)
        elif logged in TERMINAL and job.status not in TERMINAL:
            return logged  # somebody who came after us was quicker with the log
        elif logged != job.status:
            detail = "written later: the log missed this change"
            audit.update_logged_status(
                job.job_id, logged, job.status, now_ns=now_ns, logs_dir=self.logs_dir, detail=detail
            )
        return None

    def _begin_log(self, job: Job) -> None:
        from baton.history import log as audit

        self._audited(
            job.job_id,
            lambda: audit.init_job_log(job.record(), now_ns=self._clock.wall_ns(), logs_dir=self.logs_dir),
        )

    def _log_change(self, before: Job, after: Job, reason: str | None = None) -> None:
        changes = lifecycle.transitions(before, after)
        if changes:
            self._audited(after.job_id, lambda: self._append_changes(before, after, changes, reason))

    def _append_changes(
        self, before: Job, after: Job, changes: Iterable[tuple[Status, Status]], reason: str | None
    ) -> None:
        from baton.history import log as audit

        beyond = self._catch_up(before)
        for old, new in changes:
            more: dict[str, Any] = {"attempt": after.attempt}
            if beyond is not None:
                more["late"] = True  # the log tells it, but its status is the later one
            if new is Status.RUNNING and after.claimed_by:
                more["claimed_by"] = after.claimed_by
            if reason is not None:
                more["reason"] = reason
            requeued = new is Status.PENDING
            line = {"event": "requeued" if requeued else "status_changed", "from": old, "to": new, **more}
            status = new if beyond is None else None
            audit.append_event(after.job_id, line, status=status, now_ns=self._clock.wall_ns(), logs_dir=self.logs_dir)

    def log_recorded(self, recorded: Recorded) -> None:
        """Add the history lines of a recorded event."""
        self._log_change(recorded.before, recorded.after)
        self._log_event(recorded.event)

    def _log_event(self, event: StoredEvent) -> None:
        import json

        from baton.history import log as audit

        self._audited(
            event.job_id,
            lambda: audit.append_event(
                event.job_id,
                {"event": "published", "payload": json.loads(event.payload)},
                now_ns=self._clock.wall_ns(),
                logs_dir=self.logs_dir,
            ),
        )

    def log_received(self, job_id: str, payloads: Sequence[Mapping[str, Any]]) -> None:
        """Events that a listener accepted; each is logged once, however many listen, and however often."""
        from baton.history import log as audit

        known = self._received.setdefault(job_id, audit.Received())
        events = [(each["seq"], each["event"]) for each in payloads]
        self._audited(
            job_id,
            lambda: audit.append_received(job_id, events, known, now_ns=self._clock.wall_ns(), logs_dir=self.logs_dir),
        )

    def log_rejected(self, job_id: str, reason: str) -> None:
        """Something on the job's topic that was not an event of it: the reason, never the content."""
        from baton.history import log as audit

        line = {"event": "rejected", "reason": reason}
        self._audited(
            job_id,
            lambda: audit.append_event(job_id, line, now_ns=self._clock.wall_ns(), logs_dir=self.logs_dir),
        )

    def log_validation(self, job_id: str, problems: Sequence[str], *, skipped: bool = False) -> None:
        """Whether the results of a job were found to be there, before it may be completed."""
        from baton.history import log as audit

        line = {"event": "validated", "ok": not problems and not skipped, "problems": list(problems)}
        if skipped:
            line["detail"] = "skipped by --no-verify"
        self._audited(
            job_id,
            lambda: audit.append_event(job_id, line, now_ns=self._clock.wall_ns(), logs_dir=self.logs_dir),
        )

    def _audited(self, job_id: str, write: Callable[[], object]) -> None:
        """The history must never break the present."""
        try:
            write()
        except Exception as error:  # noqa: BLE001  whatever it is, the registry change stands
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._warn(f"the audit log of job {job_id} could not be written: {why}; `baton doctor` shows gaps")


def open_jobs(settings: Settings) -> Jobs:
    """The registry and the audit log that the settings name; the first registration makes the home folder."""
    from baton.registry import open_registry

    secrets = [settings.mqtt_password]
    if settings.registry and "@" in settings.registry:
        from baton.core.redact import url_password

        secrets.append(url_password(settings.registry))
    return Jobs(open_registry(settings), settings.logs_dir, home=settings.home, host=settings.host, secrets=secrets)
