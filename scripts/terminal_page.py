"""Turn what `tmux capture-pane -e` prints into a page that shows it as a terminal does, in colour."""

from __future__ import annotations

import html
import re
from typing import Any, NamedTuple

_BACK, _TEXT = "#15171d", "#d8dce4"
_COLOURS = ("#15171d", "#f07178", "#7ec47a", "#e5c060", "#6ea0f5", "#c88ce6", "#5cc8d2", "#d8dce4")
_BRIGHT = ("#6e7684", "#ff878c", "#96dc91", "#fad278", "#8cb9ff", "#dca5fa", "#78dce6", "#ffffff")
# What each code of SGR (select graphic rendition) changes.
_CHANGES: dict[int, dict[str, Any]] = {
    0: {"colour": None, "back": None, "bold": False, "dim": False, "reverse": False},
    1: {"bold": True}, 2: {"dim": True}, 22: {"bold": False, "dim": False}, 7: {"reverse": True},
    27: {"reverse": False}, 39: {"colour": None}, 49: {"back": None},
    **{code: {"colour": colour} for code, colour in (*enumerate(_COLOURS, 30), *enumerate(_BRIGHT, 90))},
    **{code: {"back": colour} for code, colour in (*enumerate(_COLOURS, 40), *enumerate(_BRIGHT, 100))},
}  # fmt: skip
_DIM = 0.55  # of the colour; the rest is the background
_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: {back}; }}
pre {{ display: inline-block; margin: 0; padding: 14px 18px; font: 15px/19px "DejaVu Sans Mono", monospace; }}
span {{ display: inline-block; height: 19px; vertical-align: top; }}
</style><pre id="terminal">{lines}</pre>"""


class Style(NamedTuple):
    """How a character looks. A colour of None is that of the terminal."""

    colour: str | None = None
    back: str | None = None
    bold: bool = False
    dim: bool = False
    reverse: bool = False

    def after(self, code: int) -> Style:
        """Return the style after a code of SGR."""
        if code not in _CHANGES:
            raise SystemExit(f"screenshots: the terminal uses the style {code}, which has no picture")
        return self._replace(**_CHANGES[code])

    @property
    def css(self) -> str:
        colour, back = self.colour or _TEXT, self.back or _BACK
        if self.reverse:
            colour, back = back, colour
        if self.dim:
            colour = _mix(colour, back)
        return f"color:{colour};background:{back};font-weight:{700 if self.bold else 400}"


def _mix(colour: str, back: str) -> str:
    pairs = [(int(colour[at : at + 2], 16), int(back[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(_DIM * one + (1 - _DIM) * other):02x}" for one, other in pairs)


def terminal_page(lines: list[str]) -> str:
    """Return the page of a captured screen."""
    style, shown = Style(), []
    for line in lines:
        parts = []
        for codes, text in re.findall(r"\x1b\[([0-9;]*)m|([^\x1b]+)", line):
            for code in [] if text else codes.split(";"):
                style = style.after(int(code or 0))
            if text:
                parts.append(f'<span style="{style.css}">{html.escape(text)}</span>')
        shown.append("".join(parts) or " ")
    return _PAGE.format(back=_BACK, lines="\n".join(shown))
