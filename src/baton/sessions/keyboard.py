"""Type into the session of an agent. What is typed while the session has a job is in the audit log of the job."""

from collections.abc import Sequence

from baton.adapters.contract import Mode
from baton.core.errors import InvalidValue, SessionGone
from baton.core.job import Job
from baton.jobs.caller import refuse_inside_session
from baton.jobs.verbs import Jobs
from baton.sessions.session import Session
from baton.sessions.tmux import live_pane


def check_text(text: str) -> None:
    """Raise InvalidValue for a text that cannot be typed."""
    if "\0" in text:
        raise InvalidValue("text", "must not contain a NUL character")


def type_into(session: Session, *, text: str | None = None, keys: Sequence[str] = (), enter: bool = True) -> None:
    """Type a text into a running session without a job, or press keys."""
    if session.mode is Mode.HEADLESS:
        raise SessionGone(f"session {session.name!r} is headless: its agent reads no keyboard, so nothing is typed")
    tmux, pane_id = live_pane(session)
    if text is None:
        tmux.press(pane_id, keys)
    else:
        tmux.paste(pane_id, text, enter=enter)


def type_for_job(
    jobs: Jobs, job: Job, session: Session, *, text: str | None = None, keys: Sequence[str] = (), enter: bool = True
) -> None:
    """Type into the session of a job, and record that in its audit log."""
    refuse_inside_session("typing into the session of a job")  # a key may answer a question of its agent
    type_into(session, text=text, keys=keys, enter=enter)
    what = jobs.redactor(job).text(text) if text is not None else f"keys {' '.join(keys)}"
    jobs.history.add_typed(job.job_id, what, jobs.user_here())
