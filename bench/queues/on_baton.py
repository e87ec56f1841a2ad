"""baton, by `baton.open_jobs()`: the registry with its audit log. Run as a program, it is a worker in the storm."""

from __future__ import annotations

import os
import time
from typing import Any

import baton
from ledger import run_body

QUEUE = "bench"
LEASE_SEC = float(os.environ.get("STORM_LEASE_SEC", "10"))
ATTEMPTS = 100


class BatonQueue:
    def __init__(self) -> None:
        self._jobs = baton.open_jobs()

    def fill(self, count: int) -> None:
        from baton.core.drafts import new_job

        now_ns = time.time_ns()
        self._jobs.register_many(
            [new_job("true", now_ns=now_ns, agent="shell", agent_session=QUEUE) for _ in range(count)]
        )

    def take(self) -> bool:
        return self.work(lambda _: None)

    def work(self, body: Any) -> bool:
        """Claim a job, run the body with its prompt and record its end, if there is a job."""
        job = self._jobs.pick_pending(QUEUE, lease_sec=LEASE_SEC)
        if job is None:
            return False
        body(job.prompt)
        self._jobs.record_event(job.job_id, "completed", attempt=job.attempt)
        return True

    def put(self, job: str) -> Any:
        registered = self._jobs.register_job(job, agent="shell", agent_session=QUEUE, max_attempts=ATTEMPTS)
        return registered.job_id

    def state(self, job_id: Any) -> str:
        status = self._jobs.get_job(job_id).status
        return {"completed": "done", "error": "failed"}.get(status.value, "listed")


open_queue = BatonQueue

if __name__ == "__main__":
    worker = BatonQueue()
    while time.monotonic() < float(os.environ["STORM_UNTIL"]):
        if not worker.work(run_body):
            time.sleep(0.05)
