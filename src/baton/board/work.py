"""Do what a key of the terminal board asks for, and say in one line what became of it."""

from __future__ import annotations

from baton.board import actions, details
from baton.board.actions import Shown
from baton.board.query import Board, Need
from baton.config import Settings
from baton.sessions.attach import Client, client_of
from baton.sessions.inventory import Inventory
from baton.sessions.of_job import not_here, running_session_of
from baton.sessions.tmux import live_pane

VIA = "board"
_SNOOZE_SEC = 3600.0


class Work:
    """The actions of the board. A key names the job."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def _place(self, key: str) -> tuple[Settings, str]:
        return self._board.settings_for(key), self._board.get(key).job_id

    def approve(self, key: str, shown: Shown, *, inexact: bool = False) -> str:
        settings, _ = self._place(key)
        return f"allowed: {actions.approve(settings, shown, via=VIA, inexact=inexact).summary}"

    def deny(self, key: str, request_id: str, reason: str = "") -> str:
        settings, _ = self._place(key)
        return f"denied: {actions.deny(settings, request_id, via=VIA, reason=reason).summary}"

    def choose(self, key: str, shown: Shown, text: str, *, own_words: bool) -> str:
        settings, _ = self._place(key)
        typed = [text] if own_words or "=" not in text else text.split()
        answered = actions.choose_answer(settings, shown, typed, via=VIA, own_words=own_words)
        return f"answered: {', '.join(answered.choices.values())}"

    def not_proved(self, key: str, request_id: str) -> str | None:
        """Return that the agent did not use an answer, or has not shown yet that it does; None if it goes on."""
        return actions.not_proved(self._board.settings_for(key), request_id, timeout_sec=0.0)

    def cancel(self, key: str) -> str:
        settings, job_id = self._place(key)
        actions.cancel(settings, job_id, via=VIA)
        return f"job {job_id} is cancelled"

    def retry(self, key: str) -> str:
        settings, job_id = self._place(key)
        return f"job {job_id} runs again as {actions.retry(settings, job_id, via=VIA).job_id}"

    def message(self, key: str, text: str) -> str:
        settings, job_id = self._place(key)
        return actions.message(settings, job_id, text, via=VIA)

    def mark_seen(self, key: str) -> None:
        settings, job_id = self._place(key)
        actions.mark_seen(settings, job_id, via=VIA)

    def snooze(self, key: str) -> str:
        """Snooze a job for an hour, or wake it."""
        card = self._board.get(key)
        if card.need is Need.SNOOZED:
            self._board.wake(key)
            return f"job {card.job_id} is back in its place"
        self._board.snooze(key, _SNOOZE_SEC)
        return f"job {card.job_id} is at the end of the list for an hour, or until it changes; z brings it back"

    def client_for(self, key: str) -> Client:
        """Return the tmux client that shows the session of a running job on this terminal."""
        settings, job_id = self._place(key)
        job = details.read_job(settings, job_id)
        session = running_session_of(Inventory(settings), job)
        if session is None:
            raise not_here(job)
        tmux, _ = live_pane(session)
        return client_of(tmux, session.name)
