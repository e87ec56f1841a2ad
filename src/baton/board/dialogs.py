"""Screens of the terminal board above its list: what an action is about to do, and the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from baton.board.looks import cells, fit
from baton.board.text_view import Line, TextView

RULE = "─"  # a text of these is cut without an ellipsis


class Bar(Widget):
    """One line of texts with their styles, which are never read as markup."""

    DEFAULT_CSS = "Bar { height: 1; width: 100%; }"

    def __init__(self, parts: Sequence[Line] = (), *, id: str) -> None:  # noqa: A002  as Textual calls it
        super().__init__(id=id)
        self._parts = tuple(parts)

    def show_parts(self, *parts: Line) -> None:
        if parts != self._parts:
            self._parts = parts
            self.refresh()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        room = self.size.width
        segments = []
        for text, style in self._parts:
            shown = text if cells(text) <= room else fit(text, room) if text[0] != RULE else text[:room]
            segment = Segment(shown, base + Style.parse(style))
            room = max(room - cells(shown), 0)
            segments.append(segment)
        return Strip(segments).adjust_cell_length(self.size.width, base)


class Reading(Screen[bool]):
    """A text to read. Enter accepts what it describes, once all of it has been on the screen; Escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)"),
        Binding("k,up", "move(-1)"),
        Binding("space,pagedown", "page(1)"),
        Binding("pageup", "page(-1)"),
        Binding("enter", "accept"),
        Binding("escape,q,n,question_mark", "refuse"),
    ]

    def __init__(self, title: str, lines: Sequence[Line], accept: str = "") -> None:
        """`accept` says what Enter does; without it, there is nothing to accept."""
        super().__init__()
        self._head, self._lines, self._accept = title, lines, accept

    def compose(self) -> ComposeResult:
        yield Bar([(f" {self._head} ", "bold reverse")], id="head")
        yield TextView(id="text")
        yield Bar([self._keys()], id="foot")

    def on_screen_resume(self) -> None:
        self.query_one(TextView).show_lines(self._head, self._lines)

    def _keys(self) -> Line:
        leave = "Escape: back"
        return (
            f" Enter: {self._accept}   {leave}   j k Space: scroll" if self._accept else f" {leave}   j k: scroll"
        ), ""

    def action_move(self, lines: int) -> None:
        self.query_one(TextView).scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        view = self.query_one(TextView)
        view.scroll_relative(y=pages * max(view.size.height - 1, 1), animate=False)

    def action_accept(self) -> None:
        view = self.query_one(TextView)
        if not self._accept:
            self.dismiss(False)
        elif view.whole_since is None:  # guard: bulk-shown-first
            more = f"{view.lines_not_shown} lines have not been on the screen: scroll down first (Space)"
            self.query_one("#foot", Bar).show_parts((f" {more}", "bold"))
        else:
            self.dismiss(True)

    def action_refuse(self) -> None:
        self.dismiss(False)
