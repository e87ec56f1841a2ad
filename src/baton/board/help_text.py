"""The keys of the terminal board, in a line and on a page."""

from __future__ import annotations

from baton.board.text_view import Line

_KEYS = ("j/k move", "w next", "Enter attach", "y/n answer", "m message", "c cancel", "? help", "q quit")
_MORE_KEYS = (
    "j/k move", "w next that needs you", "Tab tabs", "Enter attach", "y/n answer", "m message", "c cancel", "r retry",
    "z snooze", "Space mark", "/ filter", "? help", "q quit",
)  # fmt: skip

_HELP = (
    ("The list", (
        ("j, k, arrows", "move the cursor"),
        ("g, G", "go to the first, the last job"),
        ("w", "go to the next job that needs you"),
        ("/", "show only jobs with these words; Escape shows all"),
        ("Space", "mark it: y, n, c, r, z then act on all marked jobs"),
    )),
    ("The selected job", (
        ("Tab, Shift-Tab", "next, previous tab"),
        ("e, d", "explain its state, show its changes"),
        ("J, K, PgDn, PgUp", "scroll the tab"),
        ("Enter", "attach to its session; C-b d comes back to the board"),
    )),
    ("Answers", (
        ("y, n", "allow, deny the request whose whole call was shown"),
        ("1 to 9", "choose the answer to a question"),
        ("a", "type the answer to a question"),
        ("N", "deny with a reason"),
        ("Y", "allow a call that is not known exactly"),
    )),
    ("Actions", (
        ("m", "write to the agent; of an ended job, continue it"),
        ("c", "cancel the job"),
        ("r", "run an ended job again, as a new job"),
        ("z", "snooze for an hour, or until the job changes"),
        ("q", "quit; agents go on without the board"),
    )),
)  # fmt: skip
_LONGEST = max(len(key) for _, keys in _HELP for key, _ in keys)


def keys_line(width: int) -> list[Line]:
    """Return the most important keys in a line of this width, each key before what it does."""
    keys = _MORE_KEYS if sum(len(each) + 2 for each in _MORE_KEYS) < width else _KEYS
    parts: list[Line] = []
    for each in keys:
        key, _, text = each.partition(" ")
        parts += [(f"{'  ' if parts else ' '}{key}", "bold"), (f" {text}", "dim")]
    return parts


def help_lines() -> list[Line]:
    lines: list[Line] = []
    for heading, keys in _HELP:
        lines += [(heading, "bold"), *((f"  {key:<{_LONGEST}}  {text}", "") for key, text in keys), ("", "")]
    return lines[:-1]
