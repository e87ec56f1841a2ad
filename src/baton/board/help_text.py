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
        ("/", "show only jobs with these words; Escape shows all again"),
        ("Space", "mark the job; y, n, c and r then act on all marked jobs, after showing what they do"),
    )),
    ("The selected job", (
        ("Tab, Shift-Tab", "next, previous tab: screen, request, history, explain, result, diff"),
        ("e, d", "explain its state, show its changes"),
        ("J, K, Page Down, Page Up", "scroll the tab"),
        ("Enter", "attach to its session; leave it with C-b d, and the board is back"),
    )),
    ("Answers", (
        ("y, n", "allow, deny the request on the screen; its whole call must have been on the screen"),
        ("1 to 9", "choose the answer to a question"),
        ("a", "type the answer to a question"),
        ("N", "deny with a reason"),
        ("Y", "allow a call that is not known exactly"),
    )),
    ("Actions", (
        ("m", "type a message to the agent; after the end of the job, go on in its conversation"),
        ("c", "cancel the job"),
        ("r", "run an ended job again, as a new job"),
        ("z", "snooze: move the job to the end of the list until it changes"),
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
        parts += [(f" {key}", "bold"), (f" {text}", "dim")]
    return parts


def help_lines() -> list[Line]:
    lines: list[Line] = []
    for heading, keys in _HELP:
        lines += [(heading, "bold"), *((f"  {key:<{_LONGEST}}  {text}", "") for key, text in keys), ("", "")]
    return lines[:-1]
