"""The board on a terminal: one screen in the colours of the terminal itself."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.binding import BindingType

from baton.board.query import Board
from baton.board.screen import BoardScreen
from baton.config import Settings
from baton.core.awake_clock import AwakeClock


class TerminalBoard(App[None]):
    """Runs until the user quits. Without a palette, toasts or animations: nothing covers a request."""

    CSS = """
    BoardScreen { layout: vertical; }
    BoardScreen #list { height: 2fr; }
    BoardScreen #detail { height: 3fr; padding: 0 1; }
    BoardScreen #typing { height: 1; border: none; padding: 0 1; background: ansi_default; }
    BoardScreen #typing, BoardScreen #trouble, BoardScreen #small { display: none; }
    BoardScreen.small > * { display: none; }
    BoardScreen.small #small { display: block; }
    Reading { layout: vertical; }
    Reading #text { height: 1fr; padding: 1 2; }
    """
    TITLE = "baton board"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, settings: Settings) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._board = Board(settings, AwakeClock())

    def get_default_screen(self) -> BoardScreen:
        return BoardScreen(self._board)


def run_board(settings: Settings) -> None:
    """Show the board on this terminal until the user quits."""
    TerminalBoard(settings).run()
