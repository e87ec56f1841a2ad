"""Act on jobs from a board or for an agent, through the services of other packages. Each action is in the audit log of
its job with the surface (`via`): `board`, `web` or `mcp`.

Each function opens the registry of the job's home and closes it again, so it may run in any thread. All of them raise
BatonError with one line for the user. Inside a session the rules of `baton.jobs.caller` hold; boards are for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from baton.board.details import describe_request
from baton.config import Settings
from baton.core.errors import BatonError
from baton.core.job import TERMINAL, Job
from baton.core.outline import asks_at_screen, last_cause
from baton.core.request import DENIED, Answer, Request
from baton.core.signal import ALLOW, DENY
from baton.jobs.caller import refuse_inside_session
from baton.jobs.requests import EVIDENCE_SEC, FOR_AGENTS, answer_by_hand, choose, outcome, wait_for_use
from baton.jobs.verbs import Jobs, open_jobs

CheckTyping = Callable[[Jobs, Job], None]


class Shown:
    """A request as a surface has shown it to the user: an answer holds for this and nothing else."""

    def __init__(self, request_id: str, text_sha256: str) -> None:
        self.request_id = request_id
        self.text_sha256 = text_sha256


def approve(settings: Settings, shown: Shown, *, via: str, for_job: bool = False, inexact: bool = False) -> Request:
    """Allow the call that was shown; RequestClosed, with who answered what and when, if the request is closed."""
    given = Answer(answer=ALLOW, by="", via=via, scope="job" if for_job else "once")
    with open_jobs(settings) as jobs:
        _refuse_unseen(jobs, shown)
        return answer_by_hand(jobs, shown.request_id, given, inexact=inexact)


def deny(settings: Settings, request_id: str, *, via: str, reason: str = "") -> Request:
    """Deny what the agent asks, and give it the reason."""
    with open_jobs(settings) as jobs:
        return answer_by_hand(jobs, request_id, Answer(answer=DENY, by="", via=via, reason=reason or DENIED))


def choose_answer(
    settings: Settings, shown: Shown, typed: Sequence[str], *, via: str, own_words: bool = False
) -> Request:
    """Answer the question that was shown: with a number, a choice, or a text; several questions as NUMBER=CHOICE."""
    with open_jobs(settings) as jobs:
        request = _refuse_unseen(jobs, shown)
        choices = choose(request, typed, own_words=own_words)
        return answer_by_hand(jobs, shown.request_id, Answer(answer=ALLOW, by="", via=via, choices=choices))


def not_proved(settings: Settings, request_id: str, *, timeout_sec: float = EVIDENCE_SEC) -> str | None:
    """Wait a moment for what became of an answer. Return in words that the agent did not use it, or has not shown yet
    that it does; None if it goes on with it."""
    with open_jobs(settings) as jobs:
        (request,) = wait_for_use(jobs, [request_id], timeout_sec=timeout_sec)
    return None if request.applied == "yes" else outcome(request)


def cancel(settings: Settings, job_id: str, *, via: str, reason: str | None = None) -> Job:
    """Cancel a job and stop its agent."""
    from baton.sessions.stop import cancel_job

    _refuse_agents(f"cancelling from the {via}", via)
    with open_jobs(settings) as jobs:
        why = reason or f"cancelled by {jobs.user_here()} on the {via}"
        job = cancel_job(settings, jobs, job_id, reason=why)
        jobs.history.add_action(job_id, "cancel", jobs.user_here(), via)
        return job


def retry(settings: Settings, job_id: str, *, via: str) -> Job:
    """Run an ended job again as a new job, and return that one."""
    from baton import delegation_api

    refuse_inside_session(f"a retry from the {via}")
    job = delegation_api.retry(job_id, detach=True, home=settings.home, state_dir=settings.state_dir)
    with open_jobs(settings) as jobs:
        jobs.history.add_action(job_id, f"retry as {job.job_id}", jobs.user_here(), via)
    return job


def message(
    settings: Settings, job_id: str, text: str, *, via: str, check_typing: CheckTyping = lambda _jobs, _job: None
) -> str:
    """Type a text into the session of a running job, or continue the conversation of an ended one with a new job.
    Return in one line what was done."""
    done = type_message(settings, job_id, text, via=via, check_typing=check_typing)
    if done is not None:
        return done
    from baton import delegation_api

    following = delegation_api.follow_up(job_id, text, detach=True, home=settings.home, state_dir=settings.state_dir)
    with open_jobs(settings) as jobs:
        jobs.history.add_action(job_id, f"message as {following.job_id}", jobs.user_here(), via)
    return f"job {following.job_id} continues the conversation"


def type_message(settings: Settings, job_id: str, text: str, *, via: str, check_typing: CheckTyping) -> str | None:
    """Type a text into the session of a running job, and return in one line what was done; None if the job has ended.

    A text may answer a question on the agent's screen. So inside a session this is refused, and `check_typing` raises
    an error if the surface, or its user, may not answer."""
    from baton.sessions.inventory import Inventory
    from baton.sessions.keyboard import check_text, type_for_job
    from baton.sessions.of_job import not_here, running_session_of

    _refuse_agents(f"a message from the {via}", via)
    check_text(text)
    if not text.strip():
        raise BatonError("the message is empty")
    with open_jobs(settings) as jobs:
        job = jobs.get_job(job_id)
        if job.status not in TERMINAL:
            if asks_at_screen(job, now_ns=time.time_ns()):  # guard: message-answers-no-dialog
                raise BatonError(f"job {job_id} takes no message now, which would answer its screen: {last_cause(job)}")
            check_typing(jobs, job)  # guard: typing-is-answering
            session = running_session_of(Inventory(settings), job)
            if session is None:
                raise not_here(job)
            type_for_job(jobs, job, session, text=text)
            jobs.history.add_action(job_id, "message", jobs.user_here(), via)
            return f"typed into session {session.name}"
    return None


def mark_seen(settings: Settings, job_id: str, *, via: str) -> None:
    """Note that the user was shown the end of a job; of one that goes on, or was seen before, nothing changes."""
    with open_jobs(settings) as jobs:
        job = jobs.get_job(job_id)
        if job.status in TERMINAL and job.seen_at is None:
            jobs.mark_seen([job])
            jobs.history.add_action(job_id, "seen", jobs.user_here(), via)


def _refuse_agents(what: str, via: str) -> None:
    """Refuse what an agent does on a board. Through its own surface it may do what its command line may."""
    if via != FOR_AGENTS:
        refuse_inside_session(what)


def _refuse_unseen(jobs: Jobs, shown: Shown) -> Request:
    """Return the request if it is still what the user was shown."""
    request = jobs.registry.get_request(shown.request_id)
    if describe_request(request)["text_sha256"] != shown.text_sha256:  # guard: board-answers-what-was-shown
        raise BatonError(f"request {shown.request_id} is not what was shown; look at it again, then answer")
    return request
