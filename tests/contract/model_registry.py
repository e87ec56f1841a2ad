"""A registry as plain as can be: one dictionary, no storage, no code of the package's own.

Hypothesis drives it beside each real backend; where the two answer differently, one of them is wrong.
"""

from __future__ import annotations

TERMINAL = ("completed", "error", "cancelled")
MAY_FOLLOW = {
    "pending": ("running", "cancelled"),
    "running": ("completed", "error", "cancelled"),
}


class Refused(Exception):
    """Carries the name of the error a real registry raises."""


class ModelRegistry:
    def __init__(self):
        self.jobs = {}
        self.requests = {}
        self.now = 0.0
        self.registered = 0

    def register(
        self, job_id, label, priority, max_attempts, submitter=None, after=(), delay=None, retries=0, backoff=0
    ):
        self.registered += 1
        self.jobs[job_id] = {
            "status": "pending",
            "attempt": 0,
            "seq": 0,
            "label": label,
            "priority": priority,
            "holder": None,
            "order": self.registered,
            "max_attempts": max_attempts,
            "lease": None,
            "events": [],
            "ended": None,
            "ended_by": None,
            "submitter": submitter,
            "after": after,
            "not_before": None if delay is None else self.now + delay,
            "retries": retries,
            "backoff": backoff,
            "failed": 0,
            "lost": 0,
        }
        if any(self.jobs[each]["status"] in ("error", "cancelled") for each in after):
            self._end_follower(self.jobs[job_id])

    def is_blocked(self, job):
        """Whether a pending job has a predecessor that is not completed, or a time that has not come."""
        waits = any(self.jobs[each]["status"] != "completed" for each in job["after"])
        return waits or (job["not_before"] is not None and job["not_before"] > self.now)

    def pick(self, label, holder, lease):
        waiting = [
            (-job["priority"], job["order"], job_id)
            for job_id, job in self.jobs.items()
            if job["status"] == "pending" and job["label"] == label and job["submitter"] is None
            if not self.is_blocked(job)
        ]
        if not waiting:
            return None
        job_id = min(waiting)[2]
        self._claim(self.jobs[job_id], holder)
        self.jobs[job_id]["lease"] = None if lease is None else self.now + lease
        return job_id

    def pick_job(self, job_id, holder, lease):
        job = self.jobs[job_id]
        if job["status"] != "pending":
            raise Refused("IllegalTransition")
        self._claim(job, holder)
        job["lease"] = None if lease is None else self.now + lease

    def clear_submitter(self, job_id):
        job = self.jobs[job_id]
        if job["status"] != "pending":
            raise Refused("IllegalTransition")
        job["submitter"] = None

    def set_status(self, job_id, wanted, attempt):
        job = self._fenced(job_id, attempt)
        if job["status"] == wanted:
            return
        if wanted not in MAY_FOLLOW.get(job["status"], ()):
            raise Refused("IllegalTransition")
        if wanted == "running":
            self._claim(job, "setter")
        else:
            self._end(job, wanted)

    def requeue(self, job_id, attempt):
        job = self.jobs[job_id]
        if job["status"] == "pending" and attempt is None:
            return
        self._fenced(job_id, attempt)
        if job["status"] != "running":
            raise Refused("IllegalTransition")
        job.update(status="pending", holder=None, lease=None)

    def renew(self, job_id, attempt, lease):
        job = self.jobs[job_id]
        if job["status"] != "running" or job["attempt"] != attempt:
            raise Refused("StaleAttempt")
        job["lease"] = self.now + lease

    def expire(self):
        late = [
            job_id
            for job_id, job in self.jobs.items()
            if job["status"] == "running" and job["lease"] is not None and job["lease"] < self.now
        ]
        for job_id in late:
            job = self.jobs[job_id]
            if job["lost"] + 1 < job["max_attempts"]:
                job.update(status="pending", holder=None, lease=None, lost=job["lost"] + 1)
            else:
                self._add_event(job, "error")
                self._end(job, "error", "lost")
        return set(late)

    def event(self, job_id, name, attempt):
        job = self.jobs[job_id]
        if job["status"] in TERMINAL:
            raise Refused("EventRefused")
        self._fenced(job_id, attempt)
        if job["status"] == "pending" and job["attempt"] > 0:
            raise Refused("EventRefused")
        if name == "started" and any(event["attempt"] == job["attempt"] for event in job["events"]):
            raise Refused("EventRefused")
        if job["status"] == "pending":
            self._claim(job, "speaker")
        if name == "error" and job["failed"] < job["retries"]:
            self._add_event(job, "progress")
            job.update(status="pending", holder=None, lease=None, failed=job["failed"] + 1)
            if job["backoff"]:
                job["not_before"] = self.now + job["backoff"] * 2 ** (job["failed"] - 1)
            return
        self._add_event(job, name)
        if name in ("completed", "error"):
            self._end(job, name)

    def ask(self, job_id, attempt, expires):
        job = self.jobs[job_id]
        if job["status"] != "running" or job["attempt"] != attempt:
            raise Refused("StaleAttempt")
        self._add_event(job, "permission_required")
        return {
            "job_id": job_id,
            "attempt": attempt,
            "row": "open",
            "answer": None,
            "by": None,
            "expires": None if expires is None else self.now + expires,
            "applied": "unknown",
        }

    def state(self, request_id):
        """Open only while the row is, its job runs, in the attempt that asked, and in time."""
        request = self.requests[request_id]
        if request["row"] != "open":
            return request["row"]
        if not self._is_asked(request):
            return "withdrawn"
        expired = request["expires"] is not None and request["expires"] < self.now
        return "expired" if expired else "open"

    def answer(self, request_id, answer, by):
        if self.state(request_id) != "open":
            raise Refused("RequestClosed")
        request = self.requests[request_id]
        request.update(row="answered", answer=answer, by=by)
        self._add_event(self.jobs[request["job_id"]], "progress")

    def close(self, request_id, wanted):
        request, now = self.requests[request_id], self.state(request_id)
        if request["row"] != "open":
            raise Refused("RequestClosed")
        if not self._is_asked(request):
            if wanted != "withdrawn":
                raise Refused("RequestClosed")
        elif wanted == "expired" and now != "expired":
            raise Refused("WrongState")
        elif wanted != "expired" and now != "open":
            raise Refused("RequestClosed")
        request["row"] = wanted
        if self._is_asked(request):
            self._add_event(self.jobs[request["job_id"]], "progress")

    def apply(self, request_id, applied):
        request = self.requests[request_id]
        if request["row"] != "answered":
            raise Refused("WrongState")
        if request["applied"] == "unknown":
            request["applied"] = applied

    def _is_asked(self, request):
        job = self.jobs[request["job_id"]]
        return job["status"] == "running" and job["attempt"] == request["attempt"]

    def next_seq(self, job_id, attempt):
        job = self._fenced(job_id, attempt)
        if job["status"] in TERMINAL:
            raise Refused("EventRefused")
        job["seq"] += 1
        return job["seq"]

    def mark_sent(self, job_id, seqs):
        for event in self.jobs[job_id]["events"]:
            event["sent"] = event["sent"] or event["seq"] in seqs

    def prune(self, before):
        named = {each for job in self.jobs.values() if job["status"] not in TERMINAL for each in job["after"]}
        gone = {
            job_id
            for job_id, job in self.jobs.items()
            if job_id not in named
            if job["ended"] is not None and job["ended"] < before and all(e["sent"] for e in job["events"])
        }
        for job_id in gone:
            del self.jobs[job_id]
        self.requests = {each: request for each, request in self.requests.items() if request["job_id"] in self.jobs}
        return gone

    def _fenced(self, job_id, attempt):
        job = self.jobs[job_id]
        if attempt is not None and (attempt != job["attempt"] or job["status"] == "pending"):
            raise Refused("StaleAttempt")
        return job

    def _claim(self, job, holder):
        if self.is_blocked(job):
            raise Refused("JobBlocked")
        job.update(status="running", attempt=job["attempt"] + 1, holder=holder)

    def _add_event(self, job, name):
        job["seq"] += 1
        job["events"].append({"seq": job["seq"], "name": name, "attempt": job["attempt"], "sent": False})

    def _end(self, job, status, ended_by=None):
        ended_by = ended_by or ("cancelled" if status == "cancelled" else "agent")
        job.update(status=status, lease=None, ended=self.now, ended_by=ended_by)
        (job_id,) = (each for each, other in self.jobs.items() if other is job)
        for follower in list(self.jobs.values()):
            if status != "completed" and follower["status"] == "pending" and job_id in follower["after"]:
                self._end_follower(follower)

    def _end_follower(self, job):
        """A predecessor failed: no holder had the job, and it ends all the same."""
        job.update(status="running", attempt=job["attempt"] + 1, holder="registry")
        self._add_event(job, "error")
        self._end(job, "error", "predecessor")
