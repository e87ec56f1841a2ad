"""rq on Redis."""

from __future__ import annotations

import logging
import os
from typing import Any

from redis import Redis
from rq import Queue, Retry, SimpleWorker
from rq.exceptions import NoSuchJobError
from rq.job import Job

from ledger import run_body


def body(job: str) -> bool:
    return run_body(job)


def nothing() -> bool:
    return True


class RqQueue:
    """The steps of rq's worker without its process for each job, which would be the larger part of the time."""

    def __init__(self) -> None:
        logging.disable(logging.WARNING)
        self._redis = Redis.from_url(os.environ["QUEUE_URL"])
        self._queue = Queue("bench", connection=self._redis)
        self._worker = SimpleWorker([self._queue], connection=self._redis)
        self._worker.register_birth()

    def fill(self, count: int) -> None:
        self._queue.enqueue_many([Queue.prepare_data(nothing) for _ in range(count)])

    def take(self) -> bool:
        found = Queue.dequeue_any([self._queue], None, connection=self._redis)
        if found is None:
            return False
        self._worker.execute_job(*found)
        return True

    def put(self, job: str) -> Any:
        return self._queue.enqueue(body, job, retry=Retry(max=100), result_ttl=3600).id

    def state(self, job_id: Any) -> str:
        try:
            status = Job.fetch(job_id, connection=self._redis).get_status()
        except NoSuchJobError:
            return "gone"
        return {"finished": "done", "failed": "failed"}.get(str(status.value), "listed")


open_queue = RqQueue
