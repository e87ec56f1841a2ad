"""Show the open requests of followed jobs, and take the keys that answer them on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time

from baton.cli.output import say
from baton.cli.terminal import cut_text, text_width
from baton.core.clock import SECOND_NS
from baton.core.errors import BatonError
from baton.core.fields import one_line, visible
from baton.core.request import Answer, Request, RequestKind, notes
from baton.core.signal import ALLOW, DENY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from baton.config import Settings

_LEAST_SHOWN_NS = SECOND_NS // 2  # a key that comes sooner was meant for what was on the screen before
_LINES_AROUND = 2  # above and below the call
_LEAD = " " * 4  # before the rest of a line that was too long


def how_to_answer(request_id: str, kind: str, *, screen_only: bool = False) -> str:
    """Return the commands that answer a request, or where it is answered if no command does."""
    if screen_only:
        return "attach to its session (`baton session list`) and answer there: no command can"
    if kind == RequestKind.QUESTION:
        return f"`baton requests {request_id}` shows the choices, `baton answer {request_id} CHOICE` answers"
    return f"`baton approve {request_id}` allows it, `baton deny {request_id}` denies it"


def request_line(payload: dict[str, Any]) -> str | None:
    """Return the line that says how to answer the request which an event has opened; None for other events."""
    data = payload.get("data", {})
    if payload["event"] != "permission_required" or "request_id" not in data:
        return None
    what = one_line(payload["detail"], 200)
    request_id, kind = one_line(str(data["request_id"]), 8), str(data.get("kind", ""))
    how = how_to_answer(request_id, kind, screen_only=data.get("screen_only") is True)
    return f"job {payload['job_id']} waits for an answer: {what}; {how}"


class RequestPanel:
    """The oldest open request, whole, with the keys that answer it. The main thread updates it, that of the table draws
    it, and that of the keyboard answers: the request whose whole call has been on the screen, and no other."""

    def __init__(self, settings: Settings | None) -> None:
        """`settings`: where answers are written; without them, there are no keys."""
        self._settings = settings
        self._requests: Sequence[Request] = ()
        self._shown: tuple[Request, int] | None = None  # since when it has been on the screen as a whole
        self._keys: _Keys | None = None
        self._once_more: str | None = None  # the request whose key has to be pressed again: its default is no

    def update(self, requests: Sequence[Request]) -> None:
        """Show these open requests."""
        self._requests = sorted(requests, key=lambda request: request.asked_at)
        if self._requests and self._keys is None and self._settings is not None:
            self._keys = _start_keys(self._press)
        elif not self._requests:
            self.close()

    def close(self) -> None:
        """Give the keyboard back to the terminal."""
        keys, self._keys, self._shown = self._keys, None, None
        if keys is not None:
            keys.stop()

    def lines(self, width: int, room: int) -> list[str]:
        """Return what is drawn in so many columns and lines."""
        if not self._requests or room < 1:
            self._shown = None
            return []
        request = self._requests[0]
        more = f"; {len(self._requests) - 1} more: `baton requests`" if len(self._requests) > 1 else ""
        by = " of a subagent, which the agent's own screen may not show" if request.agent_ref is not None else ""
        top = cut_text(one_line(f"job {request.job_id} waits for an answer{by}: {request.summary}"), width)
        body = _wrap(_whole_text(request), width)
        is_whole = len(body) + _LINES_AROUND <= room
        keys = _keys_of(request) if is_whole and self._keys is not None else {}
        if not keys:
            self._shown = None
            how = how_to_answer(request.request_id, request.kind, screen_only=request.screen_only) + more
            if is_whole:
                return [top, *body, cut_text(how, width)]
            whole = f"`baton requests {request.request_id}` shows the whole call"
            return [top, cut_text(how, width), *([] if request.kind is RequestKind.QUESTION else [whole])][:room]
        if self._shown is None or self._shown[0].request_id != request.request_id:
            self._shown = request, time.monotonic_ns()
        pressed = "y allows it, n denies it" if "y" in keys else f"press {', '.join(keys)}"
        if request.request_id == self._once_more:
            pressed = "the agent's own default is no: press the key once more to allow it all the same"
        return [top, *body, cut_text(f"{pressed} ({request.request_id}){more}", width)]

    def _press(self, key: str) -> None:
        shown = self._shown
        if shown is None or time.monotonic_ns() - shown[1] < _LEAST_SHOWN_NS:  # guard: answer-what-was-shown
            return
        answer = _keys_of(shown[0]).get(key.lower())
        if answer is None:
            return
        request, before = shown[0], self._once_more
        self._once_more = None
        is_enough = answer.answer != ALLOW or not request.consent.default_no or before == request.request_id
        if not is_enough:  # guard: key-default-no
            self._once_more, self._shown = request.request_id, (request, time.monotonic_ns())
            return
        self._shown = None
        self._answer(request, answer)

    def _answer(self, request: Request, answer: Answer) -> None:
        assert self._settings is not None
        from baton.jobs import requests
        from baton.jobs.verbs import open_jobs

        try:
            with open_jobs(self._settings) as jobs:
                requests.answer_by_hand(jobs, request.request_id, answer)
        except (BatonError, OSError) as error:
            say(f"baton: {error}")
            return
        say(f"baton: request {request.request_id}: {', '.join(answer.choices.values()) or answer.answer}")
        # Not here: the next key may come meanwhile.
        threading.Thread(target=_say_if_unproved, args=(self._settings, request.request_id), daemon=True).start()


def _say_if_unproved(settings: Settings, request_id: str) -> None:
    """Wait a moment for what the agent does with an answer, and say it if it does not go on with that."""
    from baton.jobs import requests
    from baton.jobs.verbs import open_jobs

    try:
        with open_jobs(settings) as jobs:
            (found,) = requests.wait_for_use(jobs, [request_id], timeout_sec=requests.EVIDENCE_SEC)
    except (BatonError, OSError) as error:
        say(f"baton: {error}")
        return
    if found.applied != "yes":
        say(f"baton: request {request_id}: {requests.outcome(found)}")


def _keys_of(request: Request) -> dict[str, Answer]:
    """Return the keys that answer a request, each with its answer; none for one that only a command can answer."""
    if not request.exact or request.screen_only:
        return {}
    if request.kind is not RequestKind.QUESTION:
        return {key: Answer(answer=each, by="", via="cli") for key, each in (("y", ALLOW), ("n", DENY))}
    if len(request.questions) != 1 or request.questions[0].get("several"):
        return {}
    question, choices = request.questions[0]["question"], request.questions[0]["choices"][:9]
    return {
        str(number): Answer(answer=ALLOW, by="", via="cli", choices={question: choice})
        for number, choice in enumerate(choices, 1)
    }


def _whole_text(request: Request) -> list[str]:
    """Return the whole call in lines, with every character visible; of a question, the question with its choices."""
    from baton.jobs.requests import call_lines

    if request.kind is not RequestKind.QUESTION:
        lines = [request.tool, *notes(request), *call_lines(request.call)]
    else:
        lines = notes(request)
        for each in request.questions:
            choices = [f"  {number}. {choice}" for number, choice in enumerate(each["choices"], 1)]
            lines += [each["question"], *choices]
    return [visible(line) for line in lines]


def _wrap(text: Sequence[str], width: int) -> list[str]:
    """Return the text in lines of at most this width, with nothing left out. The rest of a line is indented: it cannot
    be taken for a line of its own."""
    lead = _LEAD if width > 2 * len(_LEAD) else ""
    lines = []
    for line in text:
        while text_width(line) > width:
            end = len(line)
            while end > 1 and text_width(line[:end]) > width:
                end = min(end - 1, width)
            lines.append(line[:end])
            line = lead + line[end:]  # noqa: PLW2901
        lines.append(line)
    return lines


class _Keys:
    """Reads single keys from the terminal, in a thread, until it is stopped."""

    def __init__(self, press: Callable[[str], None]) -> None:
        import termios

        self._press = press
        self._before = termios.tcgetattr(0)
        modes = termios.tcgetattr(0)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(0, termios.TCSAFLUSH, modes)  # what was typed before is not an answer
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        import select

        while True:
            ready, _, _ = select.select([0, self._woken], [], [])
            if self._woken in ready:
                return
            if os.tcgetpgrp(0) != os.getpgrp():  # in the background, reading would stop the process
                if select.select([self._woken], [], [], 0.5)[0]:
                    return
                continue
            key = os.read(0, 1)
            if not key:
                return
            self._press(key.decode("ascii", "replace"))

    def stop(self) -> None:
        import signal
        import termios

        os.write(self._wake, b".")
        self._thread.join(5)
        usual = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # in the background, it would stop the process
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        except termios.error as error:
            say(f"baton: the terminal could not be set back: {error.args[-1]}")
        signal.signal(signal.SIGTTOU, usual)
        os.close(self._woken)
        os.close(self._wake)


def _start_keys(press: Callable[[str], None]) -> _Keys | None:
    """Read keys, if this process has the keyboard and was not called by an agent: an agent does not answer."""
    from baton.origin import is_inside_session

    try:
        has_keyboard = sys.stdin is not None and sys.stdin.isatty() and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return None
    return _Keys(press) if has_keyboard and not is_inside_session() else None
