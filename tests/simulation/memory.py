"""A registry in memory: the decisions are baton's own (`lifecycle`, `wire`), only the store is a dictionary."""

from __future__ import annotations

from baton.core import lifecycle
from baton.core.clock import format_time, lease_expired, lease_mark, parse_time
from baton.core.errors import JobNotFound
from baton.core.event import EventName
from baton.core.job import Status
from baton.registry.results import Change, Page, Recorded
from baton.wire.payload import signed_event


class MemoryRegistry:
    where = "memory"
    url = "memory:"
    multi_host = False
    lock_path = None

    def __init__(self, clock, random):
        self.jobs = {}
        self.events = {}
        self._clock = clock
        self._random = random

    def close(self):
        pass

    def _token(self):
        return f"{self._random.getrandbits(128):032x}"

    def register_many(self, jobs):
        registered = []
        for job in jobs:
            self.jobs[job.job_id] = job
            self.events[job.job_id] = []
            registered.append(job)
        return registered

    def get_job(self, job_id):
        try:
            return self.jobs[job_id]
        except KeyError:
            raise JobNotFound(job_id, self.where) from None

    def list_jobs(self, where=None, *, limit=50, after=None):
        jobs = sorted(self.jobs.values(), key=lambda job: (parse_time(job.created_at), job.job_id), reverse=True)
        return Page(jobs=[job for job in jobs if where is None or where.matches(job)][:limit], bad=[], next=None)

    def _save(self, before, after):
        self.jobs[after.job_id] = after
        return Change(before=before, after=after)

    def _leased(self, job, lease_sec):
        lease_ns = lifecycle.lease_ns(lease_sec)
        if not lease_ns:
            return job
        return job.replace(
            lease_expires_at=format_time(self._clock.wall_ns() + lease_ns), lease_mark=lease_mark(self._clock, lease_ns)
        )

    def pick_pending(self, agent_session, *, holder, lease_sec=None):
        waiting = [
            job
            for job in self.jobs.values()
            if job.status is Status.PENDING and job.agent_session == agent_session and job.submitter is None
        ]
        if not waiting:
            return None
        before = min(waiting, key=lambda job: (-job.priority, parse_time(job.created_at), job.job_id))
        after = lifecycle.claim(before, holder=holder, now_ns=self._clock.wall_ns(), token=self._token())
        return self._save(before, self._leased(after, lease_sec))

    def pick_job(self, job_id, *, holder, lease_sec=None):
        before = self.get_job(job_id)
        after = lifecycle.claim(before, holder=holder, now_ns=self._clock.wall_ns(), token=self._token())
        return self._save(before, self._leased(after, lease_sec))

    def clear_submitter(self, job_id):
        before = self.get_job(job_id)
        return self._save(before, lifecycle.clear_submitter(before, now_ns=self._clock.wall_ns()))

    def update_status(self, job_id, status, *, attempt=None, holder="operator"):
        before = self.get_job(job_id)
        now_ns = self._clock.wall_ns()
        after = lifecycle.set_status(before, status, attempt=attempt, holder=holder, now_ns=now_ns, token=self._token())
        return self._save(before, after)

    def requeue(self, job_id, *, attempt=None):
        before = self.get_job(job_id)
        return self._save(before, lifecycle.requeue(before, attempt=attempt, now_ns=self._clock.wall_ns()))

    def renew_lease(self, job_id, *, attempt, lease_sec):
        before = self.get_job(job_id)
        after = lifecycle.renew(before, attempt=attempt, now_ns=self._clock.wall_ns())
        return self._save(before, self._leased(after, lease_sec)).after

    def expired_leases(self, *, limit=100):
        return [
            job
            for job in self.jobs.values()
            if job.status is Status.RUNNING
            and job.lease_expires_at is not None
            and lease_expired(self._clock, job.lease_mark, job.lease_expires_at)
        ][:limit]

    def expire_leases(self, *, limit=100):
        changes = []
        for job in self.expired_leases(limit=limit):
            detail = lifecycle.expired_lease_error(job)
            if detail is None:
                changes.append(self._save(job, lifecycle.requeue(job, attempt=None, now_ns=self._clock.wall_ns())))
            else:
                recorded = self._record(job, EventName.ERROR, detail, {})
                changes.append(Change(before=job, after=recorded.after))
        return changes

    def record_event(self, job_id, event, *, detail="", data=None, attempt=None, holder="operator"):
        before = self.get_job(job_id)
        has_events = any(each.attempt == before.attempt for each in self.events[job_id])
        lifecycle.before_event(before, event, attempt=attempt, has_events=has_events)
        return self._record(before, event, detail, data or {}, holder)

    def _record(self, before, event, detail, data, holder="operator"):
        now_ns = self._clock.wall_ns()
        job = before
        if job.status is Status.PENDING:
            job = lifecycle.claim(job, holder=holder, now_ns=now_ns, token=self._token())
        stored = signed_event(job, event, detail, data, now_ns)
        after = lifecycle.after_event(job, event, seq=stored.seq, detail=detail, now_ns=now_ns)
        self.events[job.job_id].append(stored)
        self._save(before, after)
        return Recorded(before=before, after=after, event=stored)

    def events_after(self, job_id, seq=0, *, limit=1000):
        self.get_job(job_id)
        return [event for event in self.events[job_id] if event.seq > seq][:limit]

    def unsent_events(self, *, job_id=None, broker=None, limit=1000):
        ids = [job_id] if job_id is not None else list(self.events)
        return [event for each in ids for event in self.events.get(each, []) if not event.sent][:limit]

    def mark_sent(self, job_id, seqs):
        self.get_job(job_id)
        chosen = set(seqs)
        self.events[job_id] = [
            event.replace(sent=True) if event.seq in chosen else event for event in self.events[job_id]
        ]
