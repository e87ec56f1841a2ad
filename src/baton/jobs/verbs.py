"""Carry out the verbs on jobs: a registry change and its history lines together."""

from __future__ import annotations

import os
import sys
import time

from baton.config import DEFAULT_DEPTH_LIMIT, DEFAULT_RUNNING_LIMIT
from baton.core import fields, lifecycle
from baton.core.clock import SECOND_NS, Clock, SystemClock, parse_time
from baton.core.errors import AmbiguousId, BatonError, InvalidRecord, JobNotFound, RegistryUnavailable
from baton.core.fields import FULL_ID_LENGTH, check_label, one_line
from baton.core.job import DEFAULT_AGENT, TERMINAL, Broker, Job, Status, check_status
from baton.storage.files import make_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Self, TypeVar

    from baton.config import Settings
    from baton.core.event import EventName, StoredEvent
    from baton.core.redact import Redactor
    from baton.core.result import Result
    from baton.jobs.job_history import JobHistory
    from baton.registry.contract import Change, JobFilter, OutlinePage, Page, Recorded
    from baton.registry.verbs import Registry

    Found = TypeVar("Found")
    AnyPage = TypeVar("AnyPage", Page, OutlinePage)

_PAGE = 1_000
_LOOKS, _LOOK_SEC = 100, 0.02
_MATCHES = 5  # that a message about an ambiguous id names


def _warn(message: str) -> None:
    print(f"baton: warning: {message}", file=sys.stderr)


class Jobs:
    """A registry with its history. Use it in a `with` block, or close its registry."""

    def __init__(
        self,
        registry: Registry,
        logs_dir: str,
        *,
        clock: Clock | None = None,
        home: str | None = None,
        folder: str | None = None,
        host: str | None = None,
        secrets: Iterable[str | None] = (),
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self.registry = registry
        self.place = folder or registry.where  # as messages name it: the folder that the home serves, or the url
        self.logs_dir = os.path.abspath(logs_dir)
        self.home = home and os.path.abspath(home)
        self._host = host or os.uname().nodename
        self.clock: Clock = clock or SystemClock()
        self._secrets = tuple(secrets)
        self.warn = warn
        self.limits = (DEFAULT_DEPTH_LIMIT, DEFAULT_RUNNING_LIMIT)
        self._history: JobHistory | None = None
        registry.find_contradiction = self._find_contradiction
        registry.on_advanced = self._log_advanced

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.registry.close()

    @property
    def history(self) -> JobHistory:
        if self._history is None:
            from baton.jobs.job_history import JobHistory  # reading needs none of it

            self._history = JobHistory(self.logs_dir, self.clock, self.warn)
        return self._history

    def register_job(self, prompt: str, *, agent: str = DEFAULT_AGENT, **fields: Any) -> Job:
        """Register a pending job and return it; `fields` are those of `baton.core.drafts.new_job`."""
        from baton.core.drafts import new_job

        return self.register_many([new_job(prompt, now_ns=self.clock.wall_ns(), agent=agent, **fields)])[0]

    def register_many(self, drafts: Iterable[Job]) -> list[Job]:
        """Register jobs in one step. A job whose id has a history already gets another id. In place of a job whose
        idempotency key is known, the job with that key is returned. Inside a session, its job is the parent."""
        if self.home is not None:
            make_home(self.home)
        history = self.history
        from baton.core.drafts import is_registered, with_new_id
        from baton.jobs.caller import refuse_inside_session

        drafts = list(drafts)
        line = self._line_of_starter()
        new = [(with_new_id(job) if history.exists(job.job_id) else job).replace(**line) for job in drafts]
        if any(job.after for job in new):
            ids = {old.job_id: job.job_id for old, job in zip(drafts, new, strict=True)}
            new = [job.replace(after=tuple(ids.get(each, each) for each in job.after)) for job in new]
        if any(job.start_options.get("yolo") for job in new):  # guard: yolo-in-a-record
            refuse_inside_session("a job whose agent does not ask (yolo)")
        jobs = self.registry.register_many(new)
        for draft, job in zip(new, jobs, strict=True):
            if is_registered(draft, job):
                history.begin(job)
        return jobs

    def _line_of_starter(self) -> dict[str, Any]:
        """Return the fields of a new job that say which agent starts it. BatonError if that may not start it."""
        from baton.jobs.caller import check_depth, starter_here

        starter = starter_here()
        if starter is None:
            return {}
        check_depth(starter, self.limits[0])
        self.check_running(starter.chain()[0])
        if starter.has_budget and self.registry.url != starter.environment.get(
            "BATON_REGISTRY"
        ):  # guard: budget-at-home
            raise BatonError(
                "a job above has a budget, so what its agents start is kept in its home; leave out --home, --registry, "
                "BATON_HOME and BATON_REGISTRY"
            )
        return {"parent": starter.job_id, "above": starter.chain()}  # guard: parent-by-the-runner

    def check_running(self, root: str) -> None:
        """Raise BatonError if no more jobs that agents started may run now below this job."""
        from baton.jobs.caller import check_running
        from baton.registry.contract import JobFilter

        check_running(root, self.each_job(JobFilter(statuses=[Status.RUNNING])), self.limits[1])

    def get_job(self, job_id: str) -> Job:
        return self.registry.get_job(job_id)

    def find_id(self, typed: str) -> str:
        """Return the id of a job that a user typed; its first characters are enough where no other id begins so."""
        found = self.registry.find_ids(typed, limit=_MATCHES + 1)
        if not found:
            raise JobNotFound(typed, self.place)
        if len(found) > 1:
            raise AmbiguousId(typed, [self._describe(each) for each in found[:_MATCHES]], len(found) > _MATCHES)
        return found[0]

    def with_id(self, typed: str, verb: Callable[[str], Found]) -> Found:
        """Call the verb with the id that a user typed. An id of full length is looked up only if no job has it."""
        if len(typed) >= FULL_ID_LENGTH:
            try:
                return verb(typed)
            except JobNotFound as error:
                if error.job_id != typed:
                    raise
        return verb(self.find_id(typed))

    def _describe(self, job_id: str) -> str:
        try:
            job = self.get_job(job_id)
        except (InvalidRecord, JobNotFound):
            return job_id
        return f"{job_id} ({job.status}, {one_line(job.title or job.prompt, 40)})"

    def get_result(self, job_id: str) -> Result | None:
        """Return the message and the validation output with which the job ended; None without either."""
        return self.registry.get_result(job_id)

    def add_message(self, job: Job, message: str) -> None:
        """Keep the last message of an agent that had ended its job itself before."""
        from baton.core.result import new_result

        result = new_result(message, None, self.keys(job))
        if result is not None and result.message is not None:
            self.registry.add_message(job.job_id, result.message, attempt=job.attempt)

    def list_jobs(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page:
        return self.registry.list_jobs(where, limit=limit, after=after)

    def pages(
        self, where: JobFilter | None = None, *, limit: int | None = None, after: str | None = None
    ) -> Iterator[Page]:
        """Yield a listing page by page: all jobs, or at most `limit`."""
        return _each_page(lambda size, start: self.list_jobs(where, limit=size, after=start), limit, after)

    def outlines(
        self, where: JobFilter | None = None, *, limit: int | None = None, after: str | None = None
    ) -> Iterator[OutlinePage]:
        """Yield a listing page by page, as outlines."""
        return _each_page(lambda size, start: self.registry.list_outlines(where, limit=size, after=start), limit, after)

    def each_job(self, where: JobFilter | None = None) -> Iterator[Job]:
        """Yield all jobs, newest first, without records that cannot be read."""
        for page in self.pages(where):
            yield from page

    def pick_pending(
        self, agent_session: str, *, holder: str | None = None, lease_sec: float | None = None
    ) -> Job | None:
        """Claim the next pending job of a queue; return None when there is none."""
        holder = self.holder_here() if holder is None else holder
        change = self.registry.pick_pending(agent_session, holder=holder, lease_sec=lease_sec)
        return self._log_change(change) if change is not None else None

    def pick_job(self, job_id: str, *, holder: str | None = None, lease_sec: float | None = None) -> Job:
        """Claim this job; raise IllegalTransition when it is not pending."""
        holder = self.holder_here() if holder is None else holder
        return self._log_change(self.registry.pick_job(job_id, holder=holder, lease_sec=lease_sec))

    def update_status(
        self, job_id: str, status: str, *, attempt: int | None = None, verify: bool = True, reason: str | None = None
    ) -> Job:
        """Set a status that may follow the present one; raise IllegalTransition otherwise. `verify` is for `completed`,
        as in `baton.jobs.report`. `reason` says why the job ends (default: which user set the status)."""
        wanted, holder = check_status(status), self.holder_here()
        outcome: dict[str, Any] = {}
        result = None
        if wanted is Status.COMPLETED and (job := self.get_job(job_id)).status is not wanted:
            lifecycle.set_status(job, wanted, attempt=attempt, holder=holder, now_ns=0, token="")  # nosec B106
            from baton.jobs.activity_file import refuse_open_work

            refuse_open_work(job)
            if job.checkout is not None:
                from baton.jobs.report import has_changes

                outcome["changed"] = has_changes(job)
            if job.expected_artifacts or job.validate or not verify:
                from baton.core.result import new_result
                from baton.jobs.report import verify_results

                verified, validation = verify_results(self, job, self.redactor(job), skip=not verify)
                outcome |= verified
                result = new_result(None, validation, self.keys(job))
        if wanted in TERMINAL:
            done = "cancelled" if wanted is Status.CANCELLED else f"set to {wanted}"
            why = f"{done} by {self.user_here()}" if reason is None else reason
            outcome["reason"] = fields.check_named("reason", fields.text, why)
        change = self.registry.update_status(
            job_id, wanted, attempt=attempt, holder=holder, outcome=outcome, result=result
        )
        return self._log_change(change, None if reason is None else self.redactor(change.after).text(reason))

    def release(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        reason: str = "released",
        lost: bool = False,
        not_before_ns: int | None = None,
    ) -> Job:
        """Requeue a running job: with `attempt` on behalf of its holder, without one on behalf of an operator. `lost`:
        its holder has died, which counts for `max_attempts`. `not_before_ns`: it is blocked until then."""
        check_label("reason", reason)
        change = self.registry.requeue(job_id, attempt=attempt, lost=lost, not_before_ns=not_before_ns)
        return self._log_change(change, reason)

    def find_predecessors(self, typed: Iterable[str]) -> list[str]:
        """Return the ids of jobs that a user typed, for a job that comes after them. Refuse one that can never let that
        job start."""
        found = [self.with_id(each, self.get_job) for each in typed]
        for job in found:
            if lifecycle.is_met(job) is False:
                why = lifecycle.describe_unmet(job.job_id, job).replace("it comes", "a job", 1)
                again = f"; it was retried as {job.retried_by}: name that one" if job.retried_by else ""
                raise BatonError(f"{why}, would never start{again or '; retry that one first, and name the new job'}")
        return list(dict.fromkeys(job.job_id for job in found))

    def predecessors(self, job: Job) -> list[Job]:
        """Return the jobs that this one comes after. The registry keeps them while it is unfinished."""
        return [self.get_job(each) for each in job.after]

    def advance_waiting(self) -> list[Change]:
        """Let jobs go on whose predecessors are completed, or whose time has come; end those with a predecessor that
        failed."""
        changes: list[Change] = []
        while batch := self.registry.advance_waiting():
            changes += batch
        return changes

    def renew_lease(self, job_id: str, *, attempt: int, lease_sec: float) -> Job:
        return self.registry.renew_lease(job_id, attempt=attempt, lease_sec=lease_sec)

    def mark_seen(self, jobs: Iterable[Job]) -> None:
        """Note that the user was shown the end of those of these jobs that have ended, as far as the user may write."""
        try:
            for job in jobs:
                if job.status in TERMINAL and job.seen_at is None:
                    self.registry.mark_seen(job.job_id)
        except (RegistryUnavailable, JobNotFound):
            return  # a login that may only read, a full disk, or a job that was pruned meanwhile

    def expire_leases(self, *, spare: Callable[[Job], bool] = lambda _: False) -> list[Change]:
        """Take jobs from holders whose lease has expired: requeue them, or fail those without attempts left. Leave out
        those that the caller spares."""
        changes: list[Change] = []
        while batch := self.registry.expire_leases(spare=spare):
            changes += batch
            for change in batch:
                job = self._log_change(change, "lease expired")
                if job.status in TERMINAL:
                    for event in self.registry.events_after(job.job_id, job.last_seq - 1):
                        self.history.add_event(event)
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
        """Record an event with `baton.jobs.report`, without verifying `completed`."""
        from baton.jobs.report import report

        return report(self, job_id, event, detail=detail, data=data, attempt=attempt, verify=None)[1]

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

    def prunable(self, before_ns: int) -> list[str]:
        return self.registry.prunable(before_ns)

    def prune(self, before_ns: int) -> list[str]:
        """Remove jobs that ended before that time from the registry; their histories stay."""
        pruned: list[str] = []
        while batch := self.registry.prune(before_ns):
            pruned += batch
        return pruned

    def stats(self) -> dict[str, int]:
        return self.registry.stats()

    def fill_gap(self, job_id: str) -> None:
        """Add the changes and the events to the history of a job that it missed."""
        from baton.history.position import read_position

        job = self.registry.get_job(job_id)
        changed_ns = parse_time(job.updated_at)
        for _ in range(_LOOKS):
            position = read_position(job_id, self.logs_dir)
            is_behind = position is None or position.status is not job.status or position.seq < job.last_seq
            if not is_behind or self.clock.wall_ns() > changed_ns + _LOOKS * _LOOK_SEC * SECOND_NS:
                break
            time.sleep(_LOOK_SEC)  # the process that has just changed the job may be about to write the lines
        if position is None or position.status is not job.status or position.attempt < job.attempt:
            self.history.fill_gap(job)
        if position is not None and position.contradicts(job) is None and position.seq < job.last_seq:
            for event in self.registry.events_after(job_id, position.seq):
                self.history.add_event(event)

    def _log_advanced(self, recorded: Recorded) -> None:
        self.history.add_change(recorded.before, recorded.after, recorded.after.reason)
        self.history.add_event(recorded.event)

    def _find_contradiction(self, job: Job) -> str | None:
        return self.history.find_contradiction(job)

    def holder_here(self) -> str:
        """Return the holder of claims made by this process: the monitor of this host recognises it."""
        return f"{self._host}:{os.getpid()}"

    def user_here(self) -> str:
        """Return the user of this process: `NAME@HOST`."""
        import pwd

        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = str(os.getuid())
        return f"{name}@{self._host}"

    def redactor(self, job: Job) -> Redactor:
        """Return what removes paths and secrets from texts about this job."""
        from baton.core.redact import process_redactor

        return process_redactor(secrets=self.keys(job), workdir=job.folder)

    def keys(self, job: Job) -> tuple[str | None, ...]:
        """Return baton's own keys, which no text about this job may show."""
        return (job.auth_token, job.broker.password, *self._secrets)

    def _log_change(self, change: Change, reason: str | None = None) -> Job:
        """Add the history lines of a change; return the job after it."""
        self.history.add_change(change.before, change.after, reason)
        return change.after


def _each_page(read: Callable[[int, str | None], AnyPage], limit: int | None, after: str | None) -> Iterator[AnyPage]:
    """Yield pages, `read` by size and cursor, until the listing ends or has `limit` jobs."""
    while True:
        page = read(_PAGE if limit is None else min(limit, _PAGE), after)
        yield page
        after = page.next
        if limit is not None:
            limit -= len(page.jobs)
        if after is None or limit == 0:
            return


def open_jobs(settings: Settings) -> Jobs:
    """Open the registry and the history that the settings name; the first registration makes the home folder."""
    from baton.registry import open_registry, registry_is_of_home

    secrets = [settings.mqtt_password]
    if settings.registry and "@" in settings.registry:
        from baton.core.redact import url_password

        secrets.append(url_password(settings.registry))
    registry = open_registry(settings)
    folder = settings.folder if registry_is_of_home(settings, registry.url) else None
    jobs = Jobs(registry, settings.logs_dir, home=settings.home, folder=folder, host=settings.host, secrets=secrets)
    jobs.limits = (settings.depth_limit, settings.running_limit)
    if settings.notify is not None:
        from baton.core.notification import Wish

        jobs.registry.wish = Wish(user=jobs.user_here(), kinds=settings.notify.wants)
    return jobs
