"""Show the progress of jobs: a table that is updated in place on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from baton.cli.output import STATUS_COLOURS, json_text
from baton.core.fields import one_line
from baton.core.job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from rich.live import Live
    from rich.table import Table

_LEAST_MESSAGE = 10
_COLOURS = {**STATUS_COLOURS, "started": "cyan", "progress": "cyan", "permission_required": "yellow"}


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

    def over(self, statuses: Mapping[str, str]) -> None:
        """Do nothing: the last lines have shown how each job ended."""


class LiveTable:
    """Show each job in a row: its state, its time, what is left of both limits, and its last message."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._rows = {job.job_id: _Row(job) for job in jobs}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        from baton.cli.terminal import clean_terminals, new_console

        console = new_console()
        self._live = Live(console=console, get_renderable=lambda: self.table(console.width), refresh_per_second=4)
        self._live.start()
        clean_terminals()  # rich has replaced the streams, and reads escape sequences in what is printed
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, payload: dict[str, Any]) -> None:
        self._rows[payload["job_id"]].update(payload)

    def over(self, statuses: Mapping[str, str]) -> None:
        """Show how each job ended: not every end is an event."""
        for job_id, status in statuses.items():
            self._rows[job_id].end(status)

    def table(self, width: int) -> Table:
        """Build the table. Only the last message is cut; columns that do not fit are left out, from the right."""
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        rows = [[Text(cell) for cell in (job_id, *row.cells(now))] for job_id, row in self._rows.items()]
        *columns, messages = zip(*rows, strict=True)
        table = Table(box=None, pad_edge=False)
        for heading, cells in zip(("JOB", "STATE", "TIME", "LEFT", "IDLE LEFT"), columns, strict=True):
            needed = max(len(heading), *(cell.cell_len for cell in cells))
            if table.columns[1:] and needed > width:
                width = 0
                break
            table.add_column(heading, no_wrap=True, min_width=needed)
            width -= needed + 2
        if width >= _LEAST_MESSAGE:
            table.add_column("LAST MESSAGE", no_wrap=True)
            for cell in messages:
                cell.truncate(width, overflow="ellipsis")
        for row in rows:
            row[1].stylize(_COLOURS.get(row[1].plain, ""))
            table.add_row(*row[: len(table.columns)])
        return table


class _Row:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._began = self._last = time.monotonic()
        self._ended: float | None = None
        self.state = "pending"
        self.message = job.prompt

    def update(self, payload: dict[str, Any]) -> None:
        self._last = time.monotonic()
        self.state = payload["event"]
        self.message = payload["detail"] or self.message
        if payload["event"] in ("completed", "error"):
            self._ended = self._last

    def end(self, status: str) -> None:
        self.state = status
        self._ended = self._ended or time.monotonic()

    def cells(self, now: float) -> tuple[str, str, str, str, str]:
        left = idle_left = ""
        if self._ended is None:
            left = _clock(max(0.0, self._job.timeout_sec - (now - self._began)))
            idle_left = _clock(max(0.0, self._job.idle_timeout_sec - (now - self._last)))
        return self.state, _clock((self._ended or now) - self._began), left, idle_left, one_line(self.message, 80)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
