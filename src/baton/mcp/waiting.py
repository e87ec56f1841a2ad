"""Wait for several jobs, by the change numbers of the registry, and say where the next call goes on."""

from __future__ import annotations

import threading
import time

from baton.core.awake_clock import AwakeClock
from baton.core.errors import BatonError
from baton.core.hashing import sha256
from baton.core.job import TERMINAL, Status
from baton.core.outline import STUCK, Outline, asks_at_screen
from baton.core.value import Any, Self
from baton.delegation.looking import Look
from baton.jobs.requests import list_open
from baton.jobs.verbs import Jobs, open_jobs
from baton.mcp.schemas import LONGEST_WAIT_SEC
from baton.mcp.tools import Context, describe, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.config import Settings
    from baton.core.clock import Clock
    from baton.core.job import Job
    from baton.delegation.reconcile import BackgroundMonitor

_LOOK_SEC = 0.2
_REREAD_SEC = 5.0  # leases and requests also end by time, without a change
_PATIENCE_SEC = 2.0  # before this process looks after the jobs itself
_REPORT_SEC = 5.0
_SETTLE_SEC = 1.0  # a request that a rule answers is open for a moment, and nothing that an agent has to know of
_NEEDS_HELP = frozenset({"waiting", "disputed"}) | STUCK


def wait(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return the jobs when one has ended, asks something or is stuck, when all have ended, or at the time limit.

    What an earlier call has reported is not news: only a later end, request or trouble is."""
    timeout = given.get("timeout_sec", LONGEST_WAIT_SEC)
    began = time.monotonic()
    clock = AwakeClock()
    with open_jobs(context.settings) as jobs, _Care(context.settings) as care:
        lost = Look(context.settings)
        lost.settle(jobs)
        seen = _Seen(jobs, given["job_ids"], given.get("cursor", ""), clock)
        reported = began - _REPORT_SEC
        while not seen.has_news(only_trouble=given.get("until") == "all"):
            now = time.monotonic()
            clock.will_read_in(_LOOK_SEC)
            if now - began >= timeout or context.call.cancelled.wait(min(_LOOK_SEC, began + timeout - now)):
                seen.look()  # this process may have stood still, and the job ended meanwhile
                break
            if now - began > _PATIENCE_SEC:
                care.begin()
            lost.settle(jobs)
            if seen.look() or now - reported >= _REPORT_SEC:
                reported = now
                context.call.report(round(now - began, 3), timeout, seen.summary)
        return seen.answer()


class _Seen:
    """Some jobs, as they were last read."""

    def __init__(self, jobs: Jobs, typed: list[str], cursor: str, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock
        self._reported, self._number = _parse(cursor)
        self._since: dict[str, float] = {}  # when each mark was first seen
        first = [jobs.with_id(each, jobs.get_job) for each in dict.fromkeys(typed)]
        self._ids = list(dict.fromkeys(job.job_id for job in first))
        if self._number is None:
            self._number = max(job.change for job in first) + 1  # every later change has a higher number
        self._read()

    def look(self) -> bool:
        """Read what changed. Return whether a job did."""
        changed, self._number = self._jobs.registry.changes_since(self._number or 0)
        is_due = time.monotonic() - self._read_at > _REREAD_SEC
        if is_due or any(job.job_id in self._ids for job in changed):
            before = self._shown
            self._read()
            return self._shown != before
        return False

    def _read(self) -> None:
        self._read_at = time.monotonic()
        self._records = [self._jobs.get_job(each) for each in self._ids]
        self._shown = [self._describe(job) for job in self._records]
        self._marks = {}
        for job, shown in zip(self._records, self._shown, strict=True):
            if job.status in TERMINAL or shown["state"] in _NEEDS_HELP:
                asked = [each.partition(":")[0] for each in shown.get("asks", ())]
                what = " ".join([job.job_id, str(job.attempt), shown["state"], *asked])
                self._marks[job.job_id] = sha256(what.encode()).hexdigest()[:6]
        self._since = {mark: self._since.get(mark, self._read_at) for mark in self._marks.values()}

    def _describe(self, job: Job) -> dict[str, Any]:
        is_running = job.status is Status.RUNNING
        asked = list_open(self._jobs, job.job_id) if is_running else []
        last = self._jobs.last_event(job) if is_running else None
        outline = Outline.of(job, last, tuple(each.summary for each in asked))
        shown = describe(outline, [f"{each.request_id}: {each.summary}" for each in asked], self._clock)
        return shown | (judge(self._jobs, job) if job.status in TERMINAL else {})

    @property
    def is_done(self) -> bool:
        return all(job.status in TERMINAL for job in self._records)

    def has_news(self, *, only_trouble: bool) -> bool:
        """Return whether all jobs have ended, or there is something that the cursor does not name."""
        if self.is_done:
            return True
        settled = time.monotonic() - _SETTLE_SEC
        for job in self._records:
            mark = self._marks.get(job.job_id)
            if mark is None or mark in self._reported:
                continue
            if (not only_trouble) if job.status in TERMINAL else self._since[mark] <= settled:
                return True
        return False

    @property
    def summary(self) -> str:
        """Return how far the jobs are, in one line."""
        ended = sum(job.status in TERMINAL for job in self._records)
        at_work = [f"{each['job_id']} {each['state']}" for each in self._shown if "ok" not in each]
        return f"{ended} of {len(self._records)} jobs have ended; {', '.join(at_work[:5])}"

    def answer(self) -> dict[str, Any]:
        self._jobs.mark_seen(self._records)
        asking = [each["job_id"] for each in self._shown if each.get("asks")]
        now_ns = time.time_ns()
        at_screens = [job.job_id for job in self._records if asks_at_screen(job, now_ns=now_ns)]
        if self.is_done:
            following = "all jobs have ended; call result for what each left"
        elif asking:
            following = f"{', '.join(asking)} asks something: see requests; then call wait again with cursor"
        elif at_screens:
            following = f"a person must attach to {', '.join(at_screens)}; then call wait again with cursor"
        else:
            following = "call wait again with cursor"
        cursor = ".".join([str(self._number), *self._marks.values()])
        return {"done": self.is_done, "jobs": self._shown, "cursor": cursor, "next": following}


def _parse(cursor: str) -> tuple[frozenset[str], int | None]:
    """Return marks of what an earlier call has reported, and the change number that it had reached."""
    if not cursor:
        return frozenset(), None
    number, *marks = cursor.split(".")
    if not number.isdecimal() or len(number) > 18:
        raise BatonError("cursor must be that of an earlier call of wait; leave it out to begin anew")
    return frozenset(marks), int(number)


class _Care:
    """While a call waits long, and no monitor runs, this process finds jobs whose session died, as `baton wait` does:
    for all calls at once, in a thread."""

    _lock = threading.Lock()
    _users = 0
    _monitor: BackgroundMonitor | None = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._began = False

    def __enter__(self) -> Self:
        return self

    def begin(self) -> None:
        if self._began:
            return
        self._began = True
        from baton.delegation.reconcile import BackgroundMonitor

        with _Care._lock:
            _Care._users += 1
            if _Care._users == 1:
                _Care._monitor = BackgroundMonitor(self._settings)
                _Care._monitor.__enter__()

    def __exit__(self, *_: object) -> None:
        if not self._began:
            return
        with _Care._lock:
            _Care._users -= 1
            if _Care._users == 0 and _Care._monitor is not None:
                # In a thread: a session that it began to end, it also ends, and the answer does not wait for that.
                threading.Thread(target=_Care._monitor.__exit__, args=(None, None, None), daemon=True).start()
