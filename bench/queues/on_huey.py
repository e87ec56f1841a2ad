"""huey, on SQLite or on Redis. `QUEUE_URL` says which."""

from __future__ import annotations

import os
from typing import Any

from huey import RedisHuey, SqliteHuey

from ledger import run_body


def _open(**options: Any) -> Any:
    url = os.environ["QUEUE_URL"]
    if url.startswith("redis:"):
        return RedisHuey("bench", url=url)
    return SqliteHuey("bench", filename=url, **({"fsync": True, "timeout": 60} | options))


huey = _open()


@huey.task()  # type: ignore[untyped-decorator, unused-ignore]
def body(job: str) -> bool:
    return run_body(job)


@huey.task()  # type: ignore[untyped-decorator, unused-ignore]
def nothing() -> bool:
    return True


class HueyQueue:
    def fill(self, count: int) -> None:
        unsynced = _open(fsync=False)
        for _ in range(count):
            unsynced.storage.enqueue(huey.serialize_task(nothing.s()))

    def take(self) -> bool:
        task = huey.dequeue()
        if task is None:
            return False
        huey.execute(task)
        return True

    def put(self, job: str) -> Any:
        return body(job).id

    def state(self, job_id: Any) -> str:
        if huey.get(job_id, peek=True) is not None:
            return "done"
        return "listed" if any(task.id == job_id for task in huey.pending()) else "gone"


open_queue = HueyQueue
