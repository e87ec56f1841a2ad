"""Show the progress of jobs: a table that is updated in place on a terminal, lines elsewhere.

with open_view(jobs, as_json=False) as view:
    for payload in events:
        view.show(payload)
    view.over(jobs as they are at the end)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from baton.cli.output import STATE_COLOURS, json_text, on_terminal, say, share_width
from baton.cli.request_view import RequestPanel, request_line
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS, Clock, SystemClock, duration_text, parse_time
from baton.core.ending import DONE, ENDS, FAILED, VERIFIED, ending_of
from baton.core.fields import one_line
from baton.core.job import TERMINAL, Job, Status
from baton.core.limits import PAUSING, passed_ns
from baton.core.outcome import outcome_of
from baton.core.outline import (
    WAITING,
    Outline,
    activity_after,
    activity_of,
    asks_at_screen,
    kind_after,
    present_activity,
    present_ns,
    reason_of,
    state_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from baton.config import Settings
    from baton.core.request import Request

# From how many columns of the terminal the time that is left is shown, and also that of the idle limit.
_ROOM_FOR_LEFT, _ROOM_FOR_IDLE_LEFT = 72, 100
_LEAST_TEXT = 12
_FRAMES_IN_SEC = 4
# What a person must look at comes first, what is over comes last.
_ORDER = (
    "waiting", "blocked", "stalled", FAILED, "disputed", "unknown", "limited", "idle", "retrying", "working",
    "starting", "pending", "cancelled", DONE, VERIFIED,
)  # fmt: skip
_SUMMARY = (*ENDS, *(state for state in _ORDER if state not in ENDS))


def open_view(
    jobs: Sequence[Job],
    *,
    as_json: bool,
    read_requests: Callable[[], Sequence[Request]] = lambda: (),
    settings: Settings | None = None,
) -> LiveTable | Lines:
    """Return the view of these jobs for standard output. `read_requests` returns their open requests; with `settings`,
    keys answer them on a terminal."""
    if not on_terminal() or as_json:
        return Lines(as_json=as_json)
    return LiveTable(jobs, read_requests, RequestPanel(settings))


class Lines:
    """Print a line for each event: JSON for programs, text for people."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resource is open."""

    def show(self, payload: dict[str, Any]) -> None:
        detail = one_line(payload["detail"], 1000)
        text = f"{payload['timestamp'][11:19]}  {payload['job_id']}  {payload['event']:<19}  {detail}".rstrip()
        print(json_text(payload) if self._as_json else text, flush=True)
        if (line := request_line(payload)) is not None:
            say(f"baton: {line}")

    def read(self, job: Job) -> None:
        """Do nothing: each line is an event."""

    def end(self, job: Job) -> None:
        """Show the end of a job that ended without an event. A program gets it as a line, a person as a message."""
        if self._as_json:
            print(json_text(outcome_of(job)), flush=True)

    def over(self, jobs: Iterable[Job]) -> None:
        """Show the jobs that ran out of time, and those that go on: the last lines have shown how the others ended."""
        for outcome in map(outcome_of, jobs):
            if self._as_json and outcome["timed_out"] is not None:
                print(json_text(outcome), flush=True)


class LiveTable:
    """Show each job in a row, those first that a person must look at; below them, how many are in which state.

    Leaving the `with` block draws it for the last time, with the whole reason of each failure."""

    def __init__(
        self,
        jobs: Iterable[Job],
        read_requests: Callable[[], Sequence[Request]] = lambda: (),
        panel: RequestPanel | None = None,
    ) -> None:
        self._clock = AwakeClock()
        self._rows = {job.job_id: _Row(job, self._clock) for job in jobs}
        self._read_requests = read_requests
        self._panel = panel or RequestPanel(None)
        self._live: Live | None = None
        self._left = False

    def __enter__(self) -> Self:
        from rich.live import Live

        from baton.cli.terminal import clean_terminals, new_console

        console = new_console()
        self._live = Live(
            console=console,
            get_renderable=lambda: self.frame(console.width, console.height),
            refresh_per_second=_FRAMES_IN_SEC,
        )
        self._live.start()
        clean_terminals()  # rich has replaced the streams, and reads escape sequences in what is printed
        return self

    def __exit__(self, *_: object) -> None:
        self._panel.close()
        if self._live is not None:
            self._left = True
            self._live.stop()
            self._live = None

    def show(self, payload: dict[str, Any]) -> None:
        """Show an event of a job."""
        self._rows[payload["job_id"]].add_event(payload)
        if "request_id" in payload.get("data", {}) or payload["event"] in (Status.COMPLETED, Status.ERROR):
            self._panel.update(self._read_requests())

    def read(self, job: Job) -> None:
        """Show a job as it was just read."""
        self._rows[job.job_id].update(job)

    def end(self, job: Job) -> None:
        """Show the end of a job that ended without an event."""
        self.over([job])

    def over(self, jobs: Iterable[Job]) -> None:
        """Show the jobs as they are now: not every end is an event."""
        for job in jobs:
            self._rows[job.job_id].update(job)

    def frame(self, width: int, height: int) -> Group:
        """Build what is drawn. The last line is short, so that ^C after it stays on the line."""
        from rich.console import Group
        from rich.text import Text

        self._clock.will_read_in(1 / _FRAMES_IN_SEC)
        rows = sorted(self._rows.values(), key=lambda row: _ORDER.index(row.state) if row.state in _ORDER else 0)
        asked = [] if self._left else self._panel.lines(width, height - 3 - min(len(rows), max(height // 3, 1)))
        if not asked and not self._left:
            asked = _blocked_lines(rows, width)[: max(height - 4, 0)]
        room = max(height - 3 - len(asked), 1)
        shown = rows if len(rows) <= room else rows[: max(room - 1, 1)]
        parts: list[Table | Text] = [_table(shown, width)]
        if more := rows[len(shown) :]:
            parts.append(Text(f"and {len(more)} more: {_counts(more)}"))
        parts += [Text(line) for line in asked]
        if self._left:
            parts += [part for row in rows if row.state == FAILED and (part := row.failure())]
        parts.append(Text(one_line(_summary(rows), max(width - 4, 10))))
        return Group(*parts)


def summarize(jobs: Iterable[Job]) -> str:
    """Return how the jobs ended: `3 completed, 1 failed, 1 cancelled in 2m10s`."""
    return _summary([_Row(job, SystemClock()) for job in jobs])


class _Row:
    def __init__(self, job: Job, clock: Clock) -> None:
        self._job = job
        self._clock = clock
        self.began_ns: int | None = None
        self.ended_ns: int | None = None
        self._last_ns = 0
        self._message = ""
        self._open_requests = 0
        self._said: str | None = None  # the state after the last event, of a job whose runner writes no activity
        self._end = ""
        self.update(job)

    @property
    def state(self) -> str:
        if self._end or self._said is None:
            return self._end or "pending"
        if self._open_requests:
            return "waiting"
        written = present_activity(self._job, now_ns=present_ns(self._job, self._clock))
        if written is None:
            return self._said
        return kind_after(written["kind"], "permission_required" if self._said == "waiting" else None)

    def add_event(self, payload: dict[str, Any]) -> None:
        event, then_ns = payload["event"], parse_time(payload["timestamp"])
        if self.began_ns is None or event == "started":
            self.began_ns = then_ns
        self._last_ns = then_ns
        self._open_requests = payload.get("data", {}).get(
            "open_requests", 0 if event == "started" else self._open_requests
        )
        if event != "started":  # that only names the session
            self._message = payload["detail"] or self._message
        if event in (Status.COMPLETED, Status.ERROR):
            self.ended_ns = then_ns
            if self._job.status not in TERMINAL:  # else `update` knows more
                self._end = FAILED if event == Status.ERROR else DONE
        else:
            self._said = activity_after(event)

    def update(self, job: Job) -> None:
        self._job = job
        if job.status in TERMINAL or job.disputed is not None:
            self._end = state_of(job, activity_of(Outline.of(job), now_ns=0))
        if self.began_ns is None and job.deadline_at is not None:
            self.began_ns = parse_time(job.deadline_at) - job.timeout_sec * SECOND_NS
        if job.status is Status.RUNNING and self._said is None:
            self._last_ns = parse_time(job.last_event_at or job.updated_at)
            self._said = activity_after(None if job.last_event_at is None else "")
        if job.finished_at is not None:
            self.ended_ns = parse_time(job.finished_at)

    @property
    def title(self) -> str:
        return one_line(self._job.title or self._job.prompt, 200)

    def cells(self, now_ns: int) -> list[str]:
        taken = left = idle_left = ""
        if self.began_ns is not None:
            seconds = max(((self.ended_ns or now_ns) - self.began_ns) // SECOND_NS, 0)
            taken = _clock(seconds)
            if self.ended_ns is None:
                left = _clock(max(self._job.timeout_sec - seconds, 0))
                idle_left = self._idle_left()
        state = self.state
        ending = ending_of(self._job)
        message = one_line(self._why(state) or self._message if ending is None else ending.note, 200)
        return [self._job.job_id, state, taken, left, idle_left, self.title, message]

    def _why(self, state: str) -> str:
        """Return why the job is in this state, by what its runner has written."""
        is_written = self._job.activity is not None and self._job.activity["kind"] == state
        return reason_of(Outline.of(self._job), state) if is_written else ""

    @property
    def wants_person_at_screen(self) -> bool:
        """Return whether only a person at the agent's own screen lets the job go on."""
        return self.state == "blocked" or (self.state == WAITING and not self._open_requests and self._is_at_screen)

    @property
    def _is_at_screen(self) -> bool:
        return asks_at_screen(self._job, now_ns=present_ns(self._job, self._clock))

    def at_screen(self) -> str:
        """Return what the agent shows that only a person at its own screen can answer, and what to do."""
        job_id, state = self._job.job_id, self.state
        why = one_line(self._why(state) or self._message, 400)
        if state == WAITING:
            return f"job {job_id} waits: {why}"
        return f"job {job_id} is blocked: {why}; `baton attach {job_id}` and answer there"

    def _idle_left(self) -> str:
        """Return how long the agent may still be silent."""
        written = present_activity(self._job, now_ns=present_ns(self._job, self._clock))
        if self.state == "waiting" or (written is not None and written["kind"] in PAUSING):
            return "paused"
        last_ns = max(self._last_ns, 0 if written is None else parse_time(written["since"]))
        return _clock(max(self._job.idle_timeout_sec - max(passed_ns(self._clock, last_ns) // SECOND_NS, 0), 0))

    def failure(self) -> Any:
        """Return the whole reason of a failure, to be wrapped."""
        from rich.text import Text

        job_id = self._job.job_id
        reason = " ".join((reason_of(Outline.of(self._job), "") or self._message).split())
        more = f"; `baton result {job_id}` shows more" if "\n" in (self._job.reason or "").strip() else ""
        return Text(f"{job_id} failed: {reason}{more}") if reason else None


def _table(rows: Sequence[_Row], width: int) -> Table:
    """Build the table of these jobs. Columns that do not fit are left out; only titles and messages are cut."""
    from rich.table import Table
    from rich.text import Text

    now_ns = time.time_ns()
    cells = [[Text(cell) for cell in row.cells(now_ns)] for row in rows]
    headings = ("JOB", "STATE", "TIME", "LEFT", "IDLE LEFT", "TITLE", "LAST MESSAGE")
    needed = [max(len(heading), *(line[column].cell_len for line in cells)) for column, heading in enumerate(headings)]
    fixed = [0, 1]
    rest = width - sum(needed[column] + 2 for column in fixed)
    for column, least_width in ((2, 0), (3, _ROOM_FOR_LEFT), (4, _ROOM_FOR_IDLE_LEFT)):
        has_room = width >= least_width and rest - needed[column] - 2 >= _LEAST_TEXT
        if has_room and any(line[column] for line in cells):
            fixed.append(column)
            rest -= needed[column] + 2
    for column, room in zip((5, 6), share_width(rest, needed[5], needed[6], _LEAST_TEXT), strict=True):
        if room > 0:
            fixed.append(column)
            for line in cells:
                line[column].truncate(room, overflow="ellipsis")
    table = Table(box=None, pad_edge=False)
    for column in fixed:
        table.add_column(headings[column], no_wrap=True, min_width=needed[column] if column < 5 else None)
    for line in cells:
        line[1].stylize(STATE_COLOURS.get(line[1].plain, ""))
        table.add_row(*(line[column] for column in fixed))
    return table


def _blocked_lines(rows: Sequence[_Row], width: int) -> list[str]:
    """Return what a person must do for the first job whose agent shows a dialog, wrapped: its row is cut."""
    from textwrap import wrap

    blocked = [row for row in rows if row.wants_person_at_screen]
    return wrap(blocked[0].at_screen(), max(width, 10), break_on_hyphens=False) if blocked else []


def _counts(rows: Iterable[_Row]) -> str:
    """Return how many jobs are in which state: `3 completed, 1 failed`."""
    counts = Counter(row.state for row in rows)
    return ", ".join(f"{counts[state]} {state}" for state in _SUMMARY if counts[state])


def _summary(rows: Sequence[_Row]) -> str:
    """Return how many jobs are in which state, and the time from the first start to the last end, or until now."""
    began = [row.began_ns for row in rows if row.began_ns is not None]
    if not began:
        return _counts(rows)
    over = all(row.ended_ns is not None for row in rows)
    end_ns = max(row.ended_ns or 0 for row in rows) if over else time.time_ns()
    return f"{_counts(rows)} {'in' if over else 'after'} {duration_text(end_ns - min(began))}"


def _clock(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
