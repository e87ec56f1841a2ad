"""Decide whether a key on the terminal board may answer the request that it was pressed for, and what it answers."""

from __future__ import annotations

from baton.core.request import Request, RequestKind

STEADY_SEC = 0.5  # a key that comes sooner after a change was meant for what was on the screen before


def why_not_now(
    pressed_at: float, *, whole_since: float | None, lines_not_shown: int, list_moved_at: float
) -> str | None:
    """Return why a key that answers is not used; None if it is. All times are of the clock of key events."""
    if whole_since is None:  # guard: board-whole-call
        many = "1 line of it has" if lines_not_shown == 1 else f"{lines_not_shown} lines of it have"
        return f"nothing was sent: {many} not been on the screen; J scrolls"
    if pressed_at - list_moved_at < STEADY_SEC:  # guard: board-list-moved
        return "nothing was sent: the list moved just before the key; look, and press it again"
    if pressed_at - whole_since < STEADY_SEC:  # guard: board-just-shown
        return "nothing was sent: the request has only just come; read it, and press it again"
    return None


def why_not_this_key(request: Request, key: str) -> str | None:
    """Return why this key does not answer a request; None if it does. `n` denies every request."""
    if request.screen_only:
        return "the agent takes this answer at its own screen alone: press Enter to attach, and answer there"
    if key == "n":
        return None
    if request.kind is RequestKind.QUESTION:
        return _why_no_choice(request, key)
    if key == "y" and not request.exact:
        return f"the call is not known exactly, {request.why_inexact}; Y allows it all the same"
    return None if key in ("y", "Y") else "a number answers a question; y or n answers this request"


def why_once_more(request: Request, key: str, pressed_before: str | None) -> str | None:
    """Return why this key must be pressed once more; None if it counts. `pressed_before` is the request for which this
    was said last."""
    if key == "n" or not request.consent.default_no or pressed_before == request.request_id:  # guard: board-default-no
        return None
    return f"nothing was sent yet: the agent's own default is no; press {key} once more to allow it all the same"


def _why_no_choice(request: Request, key: str) -> str | None:
    questions = request.questions
    if len(questions) != 1 or questions[0].get("several"):
        return "this needs more than one key: press a, and type the answer"
    choices = questions[0].get("choices") or ()
    if key.isdecimal() and 0 < int(key) <= len(choices):
        return None
    return f"this is a question: press {f'1 to {min(len(choices), 9)}, or ' if choices else ''}a to type an answer"
