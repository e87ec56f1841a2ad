"""One process that uses a queue, by order of `bench/peers.py`: `python driver.py MODULE`, with that program's Python.

It reads one order a line and answers each with one line of JSON:

    fill N          enqueue N jobs, as fast as the program offers
    take N AT       from the time AT of the monotonic clock on, claim and finish N jobs one by one: begin and end
    put N           enqueue N jobs one by one; an answer means that all of them are acknowledged: their names
    state NAME...   what the program's record says about these jobs: done, failed, listed or gone
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Queue(Protocol):
    """What each `on_NAME` module has as `open_queue()`."""

    def fill(self, count: int) -> None:
        """Enqueue that many jobs, without need for speed or order."""

    def take(self) -> bool:
        """Claim the next job, run its empty body and record its end. Return False if there was none."""

    def put(self, job: str) -> Any:
        """Enqueue a job whose body is `ledger.run_body(job)`. Return its id when it is safe."""

    def state(self, job_id: Any) -> str:
        """Return done, failed, listed (waiting or running) or gone."""


def main() -> None:
    queue: Queue = importlib.import_module(sys.argv[1]).open_queue()
    ids: dict[str, Any] = {}
    names = (str(number) for number in itertools.count())
    _answer("ready")
    for line in sys.stdin:
        order, *words = line.split()
        if order == "fill":
            queue.fill(int(words[0]))
            _answer("filled")
        elif order == "take":
            _answer(_take(queue, int(words[0]), float(words[1])))
        elif order == "put":
            new = dict(_put(queue, int(words[0]), names))
            ids |= new
            _answer(list(new))
        else:
            _answer({name: queue.state(ids[name]) for name in words})


def _take(queue: Queue, count: int, begin_at: float) -> list[float]:
    time.sleep(max(0.0, begin_at - time.monotonic()))
    begin = time.monotonic()
    for _ in range(count):
        if not queue.take():
            raise SystemExit("the backlog ran out")
    return [begin, time.monotonic()]


def _put(queue: Queue, count: int, names: Iterator[str]) -> Iterator[tuple[str, Any]]:
    for name in itertools.islice(names, count):
        yield name, queue.put(name)


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
