"""The list of the terminal board: one line for each job, in the order of need, with a cursor and marks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from baton.board.looks import COLOURS, DIM, SYMBOLS, age, cells, clean_line, fit, fit_path, share, short_folder
from baton.board.query import Board, Card, Need
from baton.core.clock import SECOND_NS

_STATE, _AGE, _AGENT, _HOME = 9, 4, 12, 24  # columns at most; a home may take a quarter of the screen on top of that
_WIDE = 110  # columns of the list from which a home is shown whole


class Row(NamedTuple):
    """One job as it is shown. Every text is one clean line."""

    key: str
    state: str
    age: str
    agent: str
    title: str
    reason: str
    home: str
    is_quiet: bool  # snoozed, or over and seen
    wants_user: bool
    words: str = ""  # what a filter finds, in lower case


def row_of(card: Card, now_ns: int) -> Row:
    """Return the line of a job."""
    job, home = card.job, clean_line(short_folder(card.folder))
    words = (card.title, card.reason, card.state, job.agent, card.folder, home, job.job_id, *job.labels)
    return Row(
        key=card.key,
        state=card.state,
        age=age(card.since_ns, now_ns),
        agent=clean_line(job.agent, 40),
        title=clean_line(card.title),
        reason=clean_line(card.reason),
        home=home,
        is_quiet=card.need >= Need.DONE,
        wants_user=card.need.wants_user,
        words=" ".join(words).lower(),
    )


class Rows:
    """The lines of all jobs. A line is made again when its card is another one, or its age has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Card, Row]] = {}
        self._revision, self._second = -1, 0
        self._rows: list[Row] = []

    def read(self, board: Board) -> list[Row]:
        """Return the lines of the board in its order."""
        now_ns = time.time_ns()
        if (self._revision, self._second) != (board.revision, now_ns // SECOND_NS):
            is_same = self._revision == board.revision
            self._revision, self._second = board.revision, now_ns // SECOND_NS
            self._known = {card.key: (card, self._row(card, now_ns)) for card in board.cards}
            rows = [row for _, row in self._known.values()]
            self._rows = self._rows if is_same and rows == self._rows else rows
        return self._rows

    def _row(self, card: Card, now_ns: int) -> Row:
        before = self._known.get(card.key)
        if before is None or before[0] is not card:
            return row_of(card, now_ns)
        age_now = age(card.since_ns, now_ns)
        return before[1] if before[1].age == age_now else before[1]._replace(age=age_now)


class JobList(Widget):
    """Rows with a cursor. The cursor stays on its job when the order changes."""

    DEFAULT_CSS = "JobList { height: 1fr; width: 100%; }"

    class Moved(Message):
        """The cursor is on another job."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  as Textual calls it
        super().__init__(id=id)
        self.rows: Sequence[Row] = ()
        self.marked: set[str] = set()
        self.moved_at = 0.0  # when the order that the user sees last changed by itself
        self._cursor = 0
        self._top = 0
        self._left: str | None = None
        self._widths = (0, 0, 0, 0, 0, 0)

    # -- what it shows -------------------------------------------------------------------------------------------------

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows, and note when that moves a row that was on the screen."""
        if rows == self.rows:
            return
        before, selected, seen = [each.key for each in self.visible_rows], self.selected, self._cursor - self._top
        self.rows = rows
        places = {row.key: place for place, row in enumerate(rows)}
        self.marked &= places.keys()
        place = None if selected is None or selected.key == self._left else places.get(selected.key)
        if selected is not None and places.get(selected.key) != self._cursor:
            self._left = None
        self._cursor = min(self._cursor, max(len(rows) - 1, 0)) if place is None else place
        if self._top:
            self._top = self._cursor - seen
        self._keep_in_view()
        if [each.key for each in self.visible_rows] != before:
            self.moved_at = time.monotonic()
        now = self.selected
        if (selected and selected.key) != (now and now.key):
            self.post_message(self.Moved())
        self._measure()
        self.refresh()

    @property
    def room(self) -> int:
        """How many rows fit below the headings."""
        return max(self.size.height - 1, 1)

    @property
    def visible_rows(self) -> Sequence[Row]:
        return self.rows[self._top : self._top + self.room]

    @property
    def selected(self) -> Row | None:
        return self.rows[self._cursor] if self._cursor < len(self.rows) else None

    @property
    def place(self) -> int:
        """The number of the selected row."""
        return self._cursor

    # -- moving --------------------------------------------------------------------------------------------------------

    def move_to(self, place: int) -> None:
        """Put the cursor on this row, or the nearest one."""
        place = max(min(place, len(self.rows) - 1), 0)
        if place != self._cursor:
            self._cursor = place
            self._keep_in_view()
            self.post_message(self.Moved())
            self.refresh()

    def leave(self, key: str) -> None:
        """Do not follow this job when it moves to another place: the cursor goes on to the job behind it."""
        self._left = key

    def mark(self) -> None:
        """Mark the selected job, or take its mark away, and go to the next one."""
        if self.selected is not None:
            self.marked ^= {self.selected.key}
            self.move_to(self._cursor + 1)
            self.refresh()

    def clear_marks(self) -> None:
        self.marked.clear()
        self.refresh()

    def _keep_in_view(self) -> None:
        self._top = max(min(self._top, self._cursor, len(self.rows) - self.room), self._cursor - self.room + 1, 0)

    def on_resize(self) -> None:
        self._keep_in_view()
        self._measure()

    def on_click(self, event: events.Click) -> None:
        if 0 < event.y <= len(self.visible_rows):
            self.move_to(self._top + event.y - 1)

    def on_mouse_scroll_down(self) -> None:
        self.move_to(self._cursor + 1)

    def on_mouse_scroll_up(self) -> None:
        self.move_to(self._cursor - 1)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Share the width among the columns. The texts get what the short columns leave."""
        width = self.size.width
        agent = min(max((cells(row.agent) for row in self.rows), default=5), _AGENT)
        room = max(width - (2 + 2 + _STATE + 1 + _AGE + 2 + agent + 2) - 4, 0)
        wanted = [
            max((cells(getattr(row, name)) for row in self.rows), default=0) for name in ("title", "reason", "home")
        ]
        home = min(max(wanted[2], 4), room // 4 if width >= _WIDE else min(room // 4, _HOME))
        title, reason = share(room - home, [max(wanted[0], 5), wanted[1]])
        self._widths = (_STATE, _AGE, agent, title, reason, home)

    def render_line(self, y: int) -> Strip:
        base, width = self.rich_style, self.size.width
        if y == 0:
            return self._strip(
                self._cells("  ", "", "STATE", "AGE", "AGENT", "TITLE", "DETAIL", "HOME"), base + Style.parse(DIM)
            )
        place = self._top + y - 1
        if place >= len(self.rows):
            return Strip.blank(width, base)
        row = self.rows[place]
        mark = "*" if row.key in self.marked else " "
        pointer = ">" if place == self._cursor else " "
        texts = self._cells(
            pointer + mark, SYMBOLS.get(row.state, " "), row.state, row.age, row.agent, row.title, row.reason, row.home
        )
        if place == self._cursor:
            return self._strip(texts, base + Style(reverse=True, bold=True))
        if row.is_quiet:
            return self._strip(texts, base + Style.parse(DIM))
        colour = base + Style.parse(COLOURS.get(row.state, ""))
        head, state, *others = texts
        dim = base + Style.parse(DIM)
        styles = [dim, base, base, base, dim]
        segments = [Segment(head, base), Segment(state, colour)]
        segments += [Segment(text, style) for text, style in zip(others, styles, strict=True)]
        return Strip(segments).adjust_cell_length(width, base)

    def _cells(
        self, front: str, symbol: str, state: str, age: str, agent: str, title: str, reason: str, home: str
    ) -> list[str]:
        """Return the texts of a line, each with the spaces behind it."""
        widths = self._widths
        gap = "  "
        return [
            f"{front:<2}",
            f"{fit(symbol, 1)} {fit(state, widths[0])} ",
            f"{age:>{widths[1]}}{gap}",
            fit(agent, widths[2]) + gap,
            fit(title, widths[3]) + (gap if widths[4] else ""),
            fit(reason, widths[4]) + (gap if widths[5] else ""),
            fit_path(home, widths[5]),
        ]

    def _strip(self, texts: Sequence[str], style: Style) -> Strip:
        return Strip([Segment("".join(texts), style)]).adjust_cell_length(self.size.width, style)
