"""Write the history lines that belong to registry changes.

The registry decides and comes first. A line that cannot be written is a warning; the next change of that job, or
`baton logs`, fills the gap.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from baton.core import lifecycle
from baton.core.clock import SECOND_NS, Clock, parse_time
from baton.core.event import StoredEvent
from baton.core.job import TERMINAL, Job, Status
from baton.core.value import Any
from baton.history import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.request import Request
    from baton.history.received import Received

SKIPPED = "skipped by --no-verify"
_AT_ONCE_NS = 5 * SECOND_NS


class JobHistory:
    """The histories of the jobs of one registry."""

    def __init__(self, logs_dir: str, clock: Clock, warn: Callable[[str], None]) -> None:
        self._logs_dir = logs_dir
        self._clock = clock
        self._warn = warn

    def exists(self, job_id: str) -> bool:
        return os.path.exists(os.path.join(self._logs_dir, job_id))

    def status(self, job_id: str) -> str | None:
        """Return the last status in the history of a job."""
        return log.read_logged_status(job_id, self._logs_dir)

    def lines(self, job_id: str) -> Iterator[dict[str, Any]]:
        return log.iter_logged_events(job_id, self._logs_dir)

    def begin(self, job: Job) -> None:
        self._try(
            job.job_id, lambda: log.init_job_log(job.record(), now_ns=self._clock.wall_ns(), logs_dir=self._logs_dir)
        )

    def fill_gap(self, job: Job) -> None:
        """Append a change of status that the history missed, marked as written later."""
        self._try(job.job_id, lambda: self._catch_up(job))

    def add_change(self, before: Job, after: Job, reason: str | None = None) -> None:
        changes = lifecycle.transitions(before, after)
        if changes:
            self._try(after.job_id, lambda: self._append_changes(before, after, changes, reason))
        elif not self.exists(after.job_id):
            self.fill_gap(before)  # a job of another tool

    def add_event(self, event: StoredEvent) -> None:
        def write() -> None:
            self._append(event.job_id, {"event": "published", "payload": json.loads(event.payload)})

        self._try(event.job_id, write)

    def add_received(self, job: Job, payloads: Sequence[Mapping[str, Any]], known: Received) -> None:
        """Record that a listener accepted these events; each is recorded once, however many listeners there are.
        `known` is what the listener knows of the job's history."""
        from baton.history.received import append_received

        job_id = job.job_id
        if not self.exists(job_id):
            self.fill_gap(job)  # a job of another tool
        events = [(each["seq"], each["event"]) for each in payloads]
        self._try(
            job_id,
            lambda: append_received(job_id, events, known, now_ns=self._clock.wall_ns(), logs_dir=self._logs_dir),
        )

    def add_rejected(self, job_id: str, reason: str) -> None:
        """Record why a message on the job's topic was rejected, never its content."""
        self._try(job_id, lambda: self._append(job_id, {"event": "rejected", "reason": reason}))

    def add_validation(self, job_id: str, problems: Sequence[str], *, skipped_by: str | None = None) -> None:
        """Record whether the results of a job were there before it was completed, or who skipped that check."""
        line = {"event": "validated", "ok": not problems and not skipped_by, "problems": list(problems)}
        if skipped_by:
            line |= {"detail": SKIPPED, "by": skipped_by}
        self._try(job_id, lambda: self._append(job_id, line))

    def add_typed(self, job_id: str, what: str, by: str) -> None:
        """Record what a user typed into the session of the job, without secrets."""
        self._try(job_id, lambda: self._append(job_id, {"event": "typed", "detail": what, "by": by}))

    def add_action(self, job_id: str, action: str, by: str, via: str) -> None:
        """Record what a user did with the job on a board (`via`), and who."""
        self._try(job_id, lambda: self._append(job_id, {"event": "action", "action": action, "by": by, "via": via}))

    def add_request(self, request: Request, event: str, **more: Any) -> None:
        """Record what became of a request of the job's agent. `more` is without secrets."""
        line = {"event": event, "request_id": request.request_id, "attempt": request.attempt}
        line |= {"call_sha256": request.call_sha256} | {key: value for key, value in more.items() if value}
        self._try(request.job_id, lambda: self._append(request.job_id, line))

    def add_reconciled(self, logged: str, after: Job, kept: str) -> None:
        """Record that the user settled a disagreement between the registry and this log."""
        numbers = {"attempt": after.attempt, "seq": after.last_seq}
        line = {"event": "reconciled", "from": logged, "to": after.status, "kept": kept, **numbers}
        self._try(after.job_id, lambda: self._append(after.job_id, line, after.status))

    def find_contradiction(self, job: Job) -> str | None:
        """Return how the history of a pending job goes further than the registry, which has lost changes; else None.
        Read the history of this job alone."""
        from baton.history.position import read_position

        try:
            position = read_position(job.job_id, self._logs_dir)
        except OSError:
            return None  # a log that cannot be read never keeps a job from being claimed
        why = None if position is None else position.contradicts(job)
        if why is not None:
            self._warn(f"job {job.job_id} is not claimed: {why}; see `baton registry reconcile`")
        return why

    def _append(self, job_id: str, line: Mapping[str, Any], status: str | None = None) -> None:
        log.append_event(job_id, line, status=status, now_ns=self._clock.wall_ns(), logs_dir=self._logs_dir)

    def _append_changes(
        self, before: Job, after: Job, changes: Sequence[tuple[Status, Status]], reason: str | None
    ) -> None:
        is_ahead = self._catch_up(before)
        for old, new in changes:
            line: dict[str, Any] = {
                "event": "requeued" if new is Status.PENDING else "status_changed",
                "from": old,
                "to": new,
                "attempt": after.attempt,
            }
            if is_ahead:
                line["late"] = True  # the status of the log is the later one
            if new is Status.RUNNING and after.claimed_by:
                line["claimed_by"] = after.claimed_by
            if reason is not None:
                line["reason"] = reason
            self._append(after.job_id, line, None if is_ahead else new)

    def _catch_up(self, job: Job) -> bool:
        """Bring the history up to this state of the job. Return whether it is already ahead of it, because a later
        writer was faster."""
        now_ns = self._clock.wall_ns()
        logged = self.status(job.job_id)
        if logged is None:
            late = now_ns - parse_time(job.created_at) > _AT_ONCE_NS
            log.init_job_log(job.record(), now_ns=now_ns, logs_dir=self._logs_dir, late=late)
        elif logged in TERMINAL and job.status not in TERMINAL:
            return True
        elif logged != job.status:
            more = {"attempt": job.attempt, "detail": "written later: the log missed this change"}
            log.update_logged_status(job.job_id, logged, job.status, now_ns=now_ns, logs_dir=self._logs_dir, **more)
        return False

    def _try(self, job_id: str, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001  the registry has changed already: no failure here may hide that
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._warn(f"the audit log of job {job_id} could not be written: {why}; `baton doctor` shows gaps")
