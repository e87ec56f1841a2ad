"""Continue the conversation of an ended job with a new job."""

import time
from typing import Any

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.errors import BatonError, SessionGone
from baton.core.job import TERMINAL, Job
from baton.delegation.submit import Submission, build_job, checked_submission
from baton.delegation.targets import target_session
from baton.sessions.inventory import Inventory
from baton.sessions.of_job import session_of
from baton.sessions.session import Session, State

_ENDING_SEC = 30.0


def follow_submission(settings: Settings, first: Job, prompt: str, **given: Any) -> Submission:
    """Build a job in the conversation of an ended job; `given` is that of `build_submission`, without agent and work
    folder: a conversation has its own. A session that still runs gets the job. Otherwise a new session resumes the
    conversation, as its last session was started."""
    if first.status not in TERMINAL:  # guard: follow-ended-only
        what = f"job {first.job_id} is {first.status}: a follow-up begins when it has ended"
        raise BatonError(f"{what}; `baton send {first.job_id} TEXT` types into its session now")
    inventory = Inventory(settings)
    session = _ended_or_free(inventory, first)
    kept: dict[str, Any] = {"agent": session.agent, "workdir": session.workdir, "title": first.title}
    kept["worktree"] = False  # it has the one of the first job
    if not given.get("label"):
        kept["labels"] = list(first.labels)
    start_options: dict[str, Any] = {}
    if session.state is State.RUNNING:
        for name in ("headless", "yolo"):
            if given.get(name):
                raise BatonError(f"--{name}: session {session.name!r} runs already and has its own; leave it out")
        kept["queue"] = target_session(settings, session.name).queue
    else:
        _check_conversation(settings, inventory, first, session)
        wishes = {"headless": session.mode is Mode.HEADLESS or given.get("headless"), "yolo": session.yolo}
        start_options = {name: True for name, wish in wishes.items() if wish or given.get(name)}
        start_options |= {"resume": True, "conversation_id": session.conversation_id}
        start_options |= {name: first.start_options[name] for name in ("within",) if name in first.start_options}
    job = build_job(settings, prompt, **kept | {name: value for name, value in given.items() if value is not None})
    links: dict[str, Any] = {"follows": first.job_id, "start_options": start_options}
    if first.worktree is not None and (first.checkout or {}).get("path"):
        links |= {"workdir": first.workdir, "worktree": first.worktree, "checkout": first.checkout}
    return checked_submission(settings, job.replace(**links))


def _ended_or_free(inventory: Inventory, first: Job) -> Session:
    """Return the session of an ended job: one that has ended, or one that runs and takes jobs. A session that was made
    for the job ends a moment after it."""
    deadline = time.monotonic() + _ENDING_SEC
    while True:
        session = session_of(inventory, first)
        if session is None:
            there = f" (it was held by {first.claimed_by})" if first.claimed_by else ""
            raise SessionGone(
                f"this home has no session of job {first.job_id}{there}, so its conversation cannot be continued; "
                "`baton submit` begins a new one"
            )
        if session.state is State.RUNNING and not session.has_live_runner():
            what = f"session {session.name!r} of job {first.job_id} has died"
            raise SessionGone(f"{what}; `baton monitor --once` records how it ended, then try again")
        if session.state is not State.RUNNING or session.made_for is None:
            return session
        if time.monotonic() > deadline:
            raise SessionGone(f"session {session.name!r} of job {first.job_id} has not ended yet; try again later")
        time.sleep(0.05)


def _check_conversation(settings: Settings, inventory: Inventory, first: Job, session: Session) -> None:
    """Raise an error that names the first job if its conversation cannot be continued."""
    agent = find_agent(settings, session.agent)
    if session.state is State.ARCHIVED and inventory.runner_of(session) is not None:
        raise SessionGone(f"session {session.name!r} is archived and still runs; `baton session resume {session.name}`")
    if not agent.keeps_conversation:
        again = f"`baton retry {first.job_id}` runs it again, `baton submit` runs a new one"
        raise agent.unusable(f"keeps no conversation, so nothing can follow job {first.job_id}; {again}")
    agent.check_resume(session.conversation_id, "")
    for other in inventory.all(State.RUNNING):
        if other.conversation_id is not None and other.conversation_id == session.conversation_id:
            job = other.job_id or other.made_for
            where = f"job {job} has it; follow that one" if job else f"session {other.name!r} has it"
            raise BatonError(f"the conversation of job {first.job_id} is open: {where}")
