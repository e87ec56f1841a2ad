"""A registry in memory: the verbs are baton's own, only the store is a dictionary."""

from __future__ import annotations

from contextlib import contextmanager

from baton.core.clock import parse_time
from baton.core.errors import JobNotFound, RequestNotFound
from baton.core.job import Status
from baton.core.request import present
from baton.registry.contract import Change, Page
from baton.registry.verbs import Registry


class MemoryRegistry(Registry):
    """The store and its one transaction: a simulation has one thread, and no verb of it fails in the middle."""

    where = "memory"
    url = "memory:"
    multi_host = False
    lock_path = None

    def __init__(self, clock, random):
        super().__init__(clock)
        self.jobs = {}
        self.events = {}
        self.requests = {}
        self.dies = False  # whether a process dies between the end of a job and what follows from it
        self._random = random

    def _new_token(self):
        return f"{self._random.getrandbits(128):032x}"

    def close(self):
        pass

    def _advance_after(self, job):
        if not self.dies:
            super()._advance_after(job)

    @contextmanager
    def _reading(self):
        yield MemoryTransaction(self.jobs, self.events, self.requests)

    @contextmanager
    def _writing(self, *, create=False):
        yield MemoryTransaction(self.jobs, self.events, self.requests)

    def _claim_first(self, agent_session, holder, lease_ns):
        self.advance_waiting()
        waiting = [
            job
            for job in self.jobs.values()
            if job.status is Status.PENDING and job.agent_session == agent_session and job.submitter is None
            if not job.is_blocked
        ]
        if not waiting:
            return None
        first = min(waiting, key=lambda job: (-job.priority, parse_time(job.created_at), job.job_id))
        with self._writing() as tx:
            return self._save(tx, first, self._claim(first, holder, self._clock.wall_ns()), lease_ns)


class MemoryTransaction:
    def __init__(self, jobs, events, requests):
        self._jobs = jobs
        self._events = events
        self._requests = requests

    def get(self, job_id):
        if job_id not in self._jobs:
            raise JobNotFound(job_id, "memory")
        return self._jobs[job_id]

    def add(self, job):
        self._events.setdefault(job.job_id, [])
        return job if self._jobs.setdefault(job.job_id, job) is job else None

    def save(self, before, after, event=None, request=None):
        assert self._jobs[after.job_id] is before
        self._jobs[after.job_id] = after
        if event is not None:
            self._events[after.job_id].append(event)
        if request is not None:
            assert self._requests.get(request.after.request_id) == request.before
            self._requests[request.after.request_id] = request.after
        return Change(before=before, after=after)

    def job_of_request(self, request_id):
        if request_id not in self._requests:
            raise RequestNotFound(request_id, "memory")
        return self._requests[request_id].job_id

    def request(self, request_id):
        return self._requests[request_id]

    def requests(self, job_id, open_only, limit, *, calls=True):
        found = [
            present(request, self._jobs[request.job_id], False)
            for request in self._requests.values()
            if job_id in (None, request.job_id)
        ]
        return [request for request in found if request.state == "open" or not open_only][:limit]

    def request_ids_from(self, beginning, limit):
        return [request_id for request_id in self._requests if request_id.startswith(beginning)][:limit]

    def keep_result(self, job_id, result):
        assert job_id in self._jobs

    def due(self, limit, now_ns):
        found = [job for job in self._jobs.values() if job.look_at is not None and parse_time(job.look_at) <= now_ns]
        return sorted(found, key=lambda job: (job.look_at, job.job_id))[:limit]

    def followers(self, job_id, limit):
        return sorted(job.job_id for job in self._jobs.values() if job_id in job.waits_for)[:limit]

    def forget_follower(self, job_id, follower):
        assert job_id not in self._jobs[follower].waits_for

    def leased(self):
        return [job for job in self._jobs.values() if job.status is Status.RUNNING and job.lease_expires_at]

    def page(self, where, limit, start):
        jobs = sorted(self._jobs.values(), key=lambda job: (parse_time(job.created_at), job.job_id), reverse=True)
        return Page(jobs=[job for job in jobs if where.matches(job)][:limit], bad=[], next=None)

    def events(self, job_id, after, limit, attempt=None):
        events = [event for event in self._events.get(job_id, []) if event.seq > after]
        return [event for event in events if attempt in (None, event.attempt)][:limit]

    def unsent(self, job_id, broker, limit):
        ids = self._events if job_id is None else [job_id]
        return [event for each in ids for event in self._events.get(each, []) if not event.sent][:limit]

    def mark_sent(self, job_id, seqs):
        chosen = set(seqs)
        self._events[job_id] = [
            event.replace(sent=event.sent or event.seq in chosen) for event in self._events.get(job_id, [])
        ]
