"""The verbs of sessions as functions, each of which may be called from any thread.

A session is named by its name or by the id of its job. Where to look is given by the keywords of `baton.api`.
"""

from typing import TYPE_CHECKING, Any, Unpack

from baton.adapters.contract import Mode
from baton.core.errors import InvalidValue
from baton.core.fields import one_line
from baton.jobs.caller import refuse_inside_session
from baton.jobs.verbs import open_jobs
from baton.sessions import attach, launch, stop
from baton.sessions.inventory import Inventory
from baton.sessions.keyboard import check_text, type_for_job, type_into
from baton.sessions.of_job import named_session
from baton.sessions.session import Session, State
from baton.sessions.tmux import live_pane
from baton.storage.homes import load_settings

if TYPE_CHECKING:
    from baton.api import Where


def create_session(
    name: str,
    *,
    agent: str | None = None,
    workdir: str = ".",
    prompt: str | None = None,
    job_id: str | None = None,
    headless: bool = False,
    yolo: bool = False,
    replace: bool = False,
    **where: "Unpack[Where]",
) -> Session:
    """Start an agent in a new tmux session, and return the session once the agent runs.

    `prompt` is sent first. With `job_id`, the session runs this pending job and ends with it. `replace` removes a
    stopped session of that name."""
    if yolo:
        refuse_inside_session("yolo")
    if job_id is not None and prompt is not None:
        raise InvalidValue("prompt", "is that of the job; leave it out")
    if headless and job_id is None and prompt is None:
        raise InvalidValue("headless", "needs a task: a prompt or a job_id")
    settings, job = load_settings(where), None
    if job_id is not None:
        with open_jobs(settings) as jobs:
            job = jobs.get_job(job_id)
        agent, workdir = agent or job.agent, job.workdir or workdir
    return launch.create_session(
        settings,
        Inventory(settings),
        name,
        agent=agent or settings.agent,
        workdir=workdir,
        mode=Mode.HEADLESS if headless else Mode.INTERACTIVE,
        prompt=prompt,
        job=job,
        yolo=yolo,
        replace=replace,
    )


def list_sessions(*, ended: bool = False, **where: "Unpack[Where]") -> list[Session]:
    """Return the running sessions; with `ended`, all of them. A session that died is running until a monitor looks."""
    inventory = Inventory(load_settings(where))
    return inventory.all() if ended else inventory.all(State.RUNNING)


def get_session(name: str, **where: "Unpack[Where]") -> Session:
    """Return the session of this name, or the one that runs or last ran the job of this id; raise SessionNotFound."""
    settings = load_settings(where)
    return named_session(settings, Inventory(settings), name)


def stop_session(
    name: str,
    *,
    mode: str = "graceful",
    reason: str = "",
    grace_sec: float = stop.GRACE_SEC,
    **where: "Unpack[Where]",
) -> Session:
    """Stop a session and every process that its agent started, and return the session; its conversation is kept.

    `mode`: `graceful` asks the agent to end and gives it `grace_sec`, `hard` kills it, `soft` leaves it running and
    only archives the session."""
    if mode not in tuple(stop.StopMode):
        raise InvalidValue("mode", f"must be one of {', '.join(stop.StopMode)}, not {mode!r}")
    if not 0 <= grace_sec <= 3600:
        raise InvalidValue("grace_sec", "must be from 0 to 3600 seconds")
    settings, session = load_settings(where), get_session(name, **where)
    with open_jobs(settings) as jobs:
        stopped = stop.stop_session(
            settings,
            Inventory(settings),
            jobs,
            session.name,
            mode=stop.StopMode(mode),
            reason=one_line(reason, 200),
            grace_sec=grace_sec,
        )
    return stopped.session


def resume_session(name: str, *, prompt: str | None = None, **where: "Unpack[Where]") -> Session:
    """Start the agent of an ended session again, with its conversation, and send it `prompt` first."""
    settings, session = load_settings(where), get_session(name, **where)
    return launch.resume_session(settings, Inventory(settings), session.name, prompt=prompt)


def attach_command(name: str, *, read_only: bool = False, **where: "Unpack[Where]") -> list[str]:
    """Return the command that shows a running session in a terminal. Run it without TMUX in the environment."""
    session = get_session(name, **where)
    return attach.attach_command(live_pane(session)[0], session.name, read_only=read_only)


def send_text(name: str, text: str, *, enter: bool = True, **where: "Unpack[Where]") -> None:
    """Type a text into a running session, and press Enter. While it has a job, the audit log of the job says so."""
    check_text(text)
    session = get_session(name, **where)
    if session.job_id is None:
        type_into(session, text=text, enter=enter)
        return
    with open_jobs(load_settings(where)) as jobs:
        type_for_job(jobs, jobs.get_job(session.job_id), session, text=text, enter=enter)


def capture_screen(name: str, *, lines: int | None = None, **where: "Unpack[Where]") -> str:
    """Return what a running session shows, with `lines` lines of the scrollback. It may contain control characters."""
    if lines is not None and not 0 < lines <= 1_000_000:
        raise InvalidValue("lines", "must be from 1 to 1000000")
    tmux, pane_id = live_pane(get_session(name, **where))
    return tmux.capture(pane_id, lines)


def explain(job_id: str, **where: "Unpack[Where]") -> dict[str, Any]:
    """Return what a job is doing (`state`, `since`, `cause`), the `rule` that decided it, and every fact behind it, as
    `baton explain --json` prints it. Raise JobNotFound if there is no job with that id."""
    from baton.sessions.explanation import explain_job

    settings = load_settings(where)
    with open_jobs(settings) as jobs:
        return explain_job(settings, jobs, jobs.get_job(job_id))
