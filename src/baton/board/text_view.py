"""Show a text in a part of the screen, wrapped and scrolled, and note which of its lines have been on the screen."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from baton.board.looks import cut

Line = tuple[str, str]  # a text in which every character is printable, and the name of its style


def wrap(text: str, width: int) -> list[str]:
    """Return the text in pieces of at most this many columns, with every character. A piece ends at a space, if there
    is one in its second half."""
    pieces: list[str] = []
    start = 0
    while True:
        piece = cut(text[start : start + width], width) or text[start : start + 1]
        end = start + len(piece)
        if end >= len(text):
            return [*pieces, piece]
        space = piece.rfind(" ", width // 2)
        if space >= 0:
            end = start + space + 1
        pieces.append(text[start:end])
        start = end


class TextView(ScrollView, can_focus=False):
    """Lines of text that are never read as markup. With `follow`, the end stays in view while the text grows."""

    DEFAULT_CSS = "TextView { overflow-x: hidden; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002  as Textual calls it
        super().__init__(id=id)
        self.source: Sequence[Line] = ()
        self._subject: object = None
        self._follow = False
        self._width = 0
        self._lines: list[Line] = []
        self._painted: set[int] = set()
        self._whole_since: float | None = None

    def show_lines(self, subject: object, lines: Sequence[Line], *, follow: bool = False) -> None:
        """Show these lines. The place in the text is kept while the subject stays the same."""
        same_subject = subject == self._subject
        if same_subject and lines == self.source:
            return
        was_at_end = self.is_at_end
        self._subject, self.source, self._follow = subject, lines, follow
        self._wrap_lines()
        if follow and (was_at_end or not same_subject):
            self.scroll_end(animate=False, force=True, immediate=True)
        elif not same_subject:
            self.scroll_home(animate=False, force=True, immediate=True)

    @property
    def is_at_end(self) -> bool:
        return self.scroll_offset.y >= self.max_scroll_y

    @property
    def line_count(self) -> int:
        return len(self._lines)

    @property
    def whole_since(self) -> float | None:
        """Since when every line has been on the screen at least once, by the clock of key events; None: not yet."""
        return self._whole_since

    @property
    def lines_not_shown(self) -> int:
        return len(self._lines) - len(self._painted)

    def _wrap_lines(self) -> None:
        self._width = max(self.scrollable_content_region.width, 1)
        self._lines = [(part, style) for text, style in self.source for part in wrap(text, self._width)]
        self._painted, self._whole_since = set(), None
        self.virtual_size = Size(self._width, len(self._lines))
        self.refresh()

    def on_resize(self) -> None:
        if self.scrollable_content_region.width != self._width:
            self._wrap_lines()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        number = self.scroll_offset.y + y
        if not 0 <= number < len(self._lines):
            return Strip.blank(self.size.width, base)
        self._note_painted(number)
        text, style = self._lines[number]
        strip = Strip([Segment(text, base + Style.parse(style))])
        return strip.adjust_cell_length(self.size.width, base)

    def _note_painted(self, number: int) -> None:
        self._painted.add(number)
        if self._whole_since is None and len(self._painted) == len(self._lines):
            self._whole_since = time.monotonic()
