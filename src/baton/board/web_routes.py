"""Answer the requests of the page: read from the board, and act. Each function takes and returns JSON values."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping

from baton.board import actions, details
from baton.board.query import Board, Card, describe
from baton.board.timeline import timeline
from baton.board.web_access import Refused
from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.errors import BatonError
from baton.core.fields import UNEXPECTED_SHAPE, one_line, printable, printable_lines
from baton.core.hashing import sha256
from baton.core.outline import public_record
from baton.core.request import REQUEST_ID
from baton.core.value import Any

VIA = "web"
_KEY = re.compile(r"[0-9a-f]{8}-[0-9a-f]{8,32}", re.ASCII)
_SNOOZE_SEC = 3600
_FRESH_SEC = 0.1  # a board that was read so short ago is not read again for the next browser
_LONGEST_PROMPT = 100_000
_SHOWN_FIELDS = (
    "job_id", "status", "agent", "attempt", "workdir", "timeout_sec", "labels", "reason", "ended_by", "created_at",
    "finished_at", "detail", "retry_of", "retried_by", "follows", "verified_by", "unverified", "claimed_by",
)  # fmt: skip


class SharedBoard:
    """The board for many threads. One of them reads, and wakes those that wait for a change."""

    def __init__(self, settings: Settings) -> None:
        self._board = Board(settings, AwakeClock())
        self._changed = threading.Condition()
        self._read_at = 0.0
        self._version = 0  # also counts changes of what cannot be read
        self._refreshing = threading.Lock()

    def refresh(self) -> None:
        """Read the registries, unless another thread has just done so."""
        with self._refreshing:
            if time.monotonic() - self._read_at < _FRESH_SEC:
                return
            with self._changed:
                if self._board.refresh():
                    self._version += 1
                    self._changed.notify_all()
            self._read_at = time.monotonic()

    def will_look_in(self, sec: float) -> None:
        """Note when this process looks again; see `Board.will_look_in`."""
        self._board.will_look_in(sec)

    def close(self) -> None:
        with self._changed:
            self._board.close()

    def wait(self, version: int, seconds: float) -> int:
        """Wait until there is another version, at most this long; return the present one."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, seconds)
            return self._version

    def whole(self) -> dict[str, Any]:
        """Return everything that the list shows."""
        with self._changed:
            cards = [describe(card) for card in self._board.cards]
            return self._about() | {"cards": cards, "removed": []}

    def after(self, position: str) -> dict[str, Any]:
        """Return what may have changed since a position that a browser got, from this server or one before it."""
        with self._changed:
            return self._about() | {"cards": [describe(card) for card in self._board.cards_after(position)]}

    def since(self, revision: int) -> dict[str, Any]:
        """Return what changed since a revision of this board."""
        with self._changed:
            cards, removed = self._board.changed_since(revision)
            return self._about() | {"cards": [describe(card) for card in cards], "removed": removed}

    def _about(self) -> dict[str, Any]:
        board = self._board
        return {
            "position": board.position,
            "revision": board.revision,
            "version": self._version,
            "total": len(board.cards),
            "troubles": [{"folder": printable(where), "why": why} for where, why in board.troubles.items()],
            "cost": board.cost_per_day(),
            "now": time.time_ns() // 1_000_000,
        }

    def find(self, key: str) -> tuple[Card, Settings]:
        """Return the card of a job and the settings of its home; Refused if there is none."""
        if not _KEY.fullmatch(key):
            raise Refused(404, "there is no such job")
        with self._changed:
            try:
                return self._board.get(key), self._board.settings_for(key)
            except BatonError as error:
                raise Refused(404, str(error)) from None

    def snooze(self, key: str, seconds: float) -> None:
        with self._changed:
            if seconds > 0:
                self._board.snooze(key, seconds)
            else:
                self._board.wake(key)
        self._read_at = 0.0


# -- reading -----------------------------------------------------------------------------------------------------------


def readable(work: Callable[[], Any], shapes: tuple[type[Exception], ...] = UNEXPECTED_SHAPE) -> Any:
    """Return what the work returns. Refused, with one line for the user, if a file of a home cannot be read, or another
    program has written it in another shape, which these errors say."""
    try:
        return work()
    except OSError as error:
        where = error.filename or "a file of the home"
        raise Refused(409, one_line(f"{where}: {error.strerror or error}", 300)) from None
    except shapes as error:
        raise Refused(409, one_line(f"a file of the home is not valid ({error})", 300)) from None


def job_page(board: SharedBoard, key: str) -> dict[str, Any]:
    """Return what the page shows of one job at first: its record, its open requests, and its timeline."""
    card, settings = board.find(key)
    job = details.read_job(settings, card.job_id)
    record = public_record(job, now_ns=time.time_ns())
    shown = {name: record.get(name) for name in _SHOWN_FIELDS}
    prompt = job.prompt[:_LONGEST_PROMPT]
    return {
        "card": describe(card),
        "job": shown | {"prompt": prompt, "prompt_is_cut": len(prompt) < len(job.prompt)},
        "requests": [details.describe_request(each) for each in card.requests],
        "timeline": _timeline(settings, card.job_id),
        "has_diff": (job.checkout or {}).get("path") is not None,
    }


def _timeline(settings: Settings, job_id: str) -> dict[str, Any]:
    """Return the timeline of a job; without its history, an empty one that says why."""
    try:
        found: dict[str, Any] = readable(lambda: timeline(details.history(settings, job_id), time.time_ns()))
    except (BatonError, Refused) as error:
        return timeline((), time.time_ns()) | {"why": str(error)}
    return found


def requests_of(board: SharedBoard, key: str) -> list[dict[str, Any]]:
    """Return the open requests of a job, with their whole calls."""
    card, _ = board.find(key)
    return [details.describe_request(each) for each in card.requests]


def answer_outcome(board: SharedBoard, key: str, request_id: str) -> dict[str, Any]:
    """Return in words if the agent has not shown within a moment that it uses an answer."""
    _, settings = board.find(key)
    if not REQUEST_ID.fullmatch(request_id):
        raise Refused(404, "there is no such request")
    return {"not_proved": actions.not_proved(settings, request_id)}


def live_view(board: SharedBoard, key: str, known: str) -> dict[str, Any]:
    """Return what the agent shows now; `same` if it is what the browser knows by its hash."""
    card, settings = board.find(key)
    found = details.view(settings, card.job_id)
    text = printable_lines(found.text)
    digest = sha256(f"{found.kind} {text}".encode(errors="replace")).hexdigest()[:16]
    if digest == known:
        return {"same": True, "hash": digest}
    return {"kind": found.kind, "text": text, "note": found.note, "hash": digest}


READERS: dict[str, Callable[[Settings, str], Any]] = {
    "history": details.history,
    "explain": details.explain,
    "result": details.result,
    "diff": details.diff,
}


# -- acting ------------------------------------------------------------------------------------------------------------


def act(
    board: SharedBoard, key: str, verb: str, body: Mapping[str, Any], check_right: Callable[[str], None]
) -> dict[str, Any]:
    """Carry out an action on a job, and return what was done, for the user. `check_right` raises Refused without it."""
    card, settings = board.find(key)
    job_id = card.job_id
    if verb == "cancel":
        actions.cancel(settings, job_id, via=VIA)
        done = f"cancelled {job_id}"
    elif verb == "retry":
        done = f"retried as {actions.retry(settings, job_id, via=VIA).job_id}"
    elif verb == "message":
        text = _text(body, "text")
        done = actions.message(settings, job_id, text, via=VIA, check_typing=lambda *_: check_right("answer"))
    elif verb == "seen":
        actions.mark_seen(settings, job_id, via=VIA)
        done = "marked as seen"
    elif verb in ("snooze", "wake"):
        board.snooze(key, _SNOOZE_SEC if verb == "snooze" else 0)
        done = "snoozed for an hour" if verb == "snooze" else "back on the board"
    else:
        raise Refused(404, "there is no such action")
    return {"done": done}


def answer(board: SharedBoard, key: str, request_id: str, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request: for exactly the text that the page has shown."""
    _, settings = board.find(key)
    if not REQUEST_ID.fullmatch(request_id):
        raise Refused(404, "there is no such request")
    if verb == "deny":
        actions.deny(settings, request_id, via=VIA, reason=_text(body, "reason", default=""))
        return {"done": f"denied request {request_id}"}
    shown = actions.Shown(request_id, _text(body, "text_sha256"))
    if verb == "approve":
        for_job, inexact = (body.get(name) is True for name in ("for_job", "inexact"))
        actions.approve(settings, shown, via=VIA, for_job=for_job, inexact=inexact)
        return {"done": f"approved request {request_id}"}
    if verb != "answer":
        raise Refused(404, "there is no such action")
    typed = body.get("choices")
    if not isinstance(typed, list) or not typed or not all(isinstance(each, str) for each in typed):
        raise Refused(400, "choices must be a list of texts")
    actions.choose_answer(settings, shown, typed, via=VIA, own_words=body.get("own_words") is True)
    return {"done": f"answered request {request_id}"}


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise Refused(400, f"{name} must be a text")
    return value
