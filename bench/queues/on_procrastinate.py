"""procrastinate on PostgreSQL. Run as a program, it is what its manual asks for beside the workers: it retries the jobs
of workers that have died."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Status

from ledger import run_body

app = App(connector=PsycopgConnector(conninfo=os.environ["QUEUE_URL"], min_size=1, max_size=2))


@app.task(name="body", queue="bench")  # type: ignore[untyped-decorator, unused-ignore]
def body(job: str) -> bool:
    return run_body(job)


@app.task(name="nothing", queue="bench")  # type: ignore[untyped-decorator, unused-ignore]
def nothing() -> bool:
    return True


class ProcrastinateQueue:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._do(app.open_async())
        self._worker: Any = None

    def _do(self, what: Any) -> Any:
        return self._loop.run_until_complete(what)

    def fill(self, count: int) -> None:
        if not self._do(app.check_connection_async()):
            self._do(app.schema_manager.apply_schema_async())
        if count:
            self._do(nothing.batch_defer_async(*({} for _ in range(count))))

    def take(self) -> bool:
        return bool(self._do(self._take()))

    async def _take(self) -> bool:
        if self._worker is None:
            self._worker = await app.job_manager.register_worker()
        job = await app.job_manager.fetch_job(["bench"], self._worker)
        if job is None:
            return False
        nothing(**job.task_kwargs)
        await app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=False)
        return True

    def put(self, job: str) -> Any:
        return self._do(body.defer_async(job=job))

    def state(self, job_id: Any) -> str:
        status = self._do(app.job_manager.get_job_status_async(job_id))
        return {"succeeded": "done", "failed": "failed"}.get(status.value, "listed")


async def _retry_stalled(until: float) -> None:
    async with app.open_async():
        while time.monotonic() < until:
            for job in await app.job_manager.get_stalled_jobs():
                await app.job_manager.retry_job(job)
            await asyncio.sleep(1)


open_queue = ProcrastinateQueue

if __name__ == "__main__":
    asyncio.run(_retry_stalled(float(os.environ["STORM_UNTIL"])))
