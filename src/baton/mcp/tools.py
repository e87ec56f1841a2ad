"""Carry out the tools. Each call opens what it needs and closes it again, so calls run side by side.

Every action is in the audit log of its job with `via: mcp`. All of them raise BatonError with one line for the agent.
"""

from __future__ import annotations

from baton.config import Settings
from baton.core.clock import SystemClock
from baton.core.errors import BatonError
from baton.core.fields import one_line
from baton.core.job import TERMINAL, Status, agent_name, check_status, grade_of
from baton.core.outline import WAITING, Outline, activity_of, present_ns, reason_of, state_of, without_runner
from baton.core.value import Any
from baton.delegation.looking import settle_lost
from baton.jobs.verbs import Jobs, open_jobs
from baton.mcp.schemas import check_arguments
from baton.registry.contract import JobFilter
from baton.storage.homes import load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton.core.clock import Clock
    from baton.core.job import Job
    from baton.mcp.server import Call

VIA = "mcp"
_LISTED = 20
_CHARS = 20_000  # of a result, if the agent names no other number
_SHOWN_CALL = 4_000  # characters of a call in the list of requests


class Context:
    """What a call has beside its arguments. `where`: the options of `baton mcp` that say which home is used. `folder`:
    the one in which the server was started."""

    __slots__ = ("call", "folder", "settings", "where")

    def __init__(self, where: Mapping[str, Any], folder: str, call: Call) -> None:
        self.where = where
        self.folder = folder
        self.settings: Settings = load_settings(where)
        self.call = call


def carry_out(name: str, given: dict[str, Any], where: Mapping[str, Any], folder: str, call: Call) -> dict[str, Any]:
    """Return what the tool answers, as its output schema describes it."""
    arguments = check_arguments(name, given)
    return _TOOLS[name](Context(where, folder, call), arguments)


def describe(job: Outline, asks: Sequence[str] = (), clock: Clock | None = None) -> dict[str, Any]:
    """Return what an agent needs to know of a job. `asks`: its open requests, each with its id; `clock`: that of a
    process that watches the job."""
    activity = activity_of(job, now_ns=present_ns(job, clock or SystemClock()))
    found: dict[str, Any] = {
        "job_id": job.job_id,
        "status": job.status.value,
        "state": state_of(job, activity),
        "agent": job.agent,
        "title": one_line(job.title or job.prompt, 100),
    }
    if reason := reason_of(job, activity):
        found["reason"] = one_line(reason, 500)
    if job.labels:
        found["labels"] = list(job.labels)
    if asks:
        found["asks"] = list(asks)
    return found | _checked(job)


def _checked(job: Outline) -> dict[str, Any]:
    """Return what vouches for a job that ended well, and whether it changed anything, as far as that is known."""
    about = {"grade": grade_of(job.status, job.verified_by), "changed": job.changed}
    return {name: value for name, value in about.items() if value is not None}


def judge(jobs: Jobs, job: Job) -> dict[str, Any]:
    """Return whether an ended job counts as done, as `baton wait` decides it, and why not."""
    from baton.core.ending import ending_of
    from baton.core.outcome import exit_code_of
    from baton.jobs.verification import doubt

    counts, problem = doubt(jobs, job) if job.status == "completed" else (True, None)
    found: dict[str, Any] = {"ok": counts and exit_code_of(job.status, job.ended_by) == 0}
    ending, more = ending_of(job), (job.reason or "").partition("\n")[2] if job.status is Status.ERROR else ""
    reason = problem or f"{ending.note if ending is not None else ''} {more}"
    found |= {"reason": one_line(reason, 2000)} if reason.strip() else {}
    return found | ({"ended_by": job.ended_by} if job.ended_by else {})


# -- jobs --------------------------------------------------------------------------------------------------------------


def _submit(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    import json

    from baton.mcp.detached import run_detached
    from baton.mcp.limits import Limits

    given = Limits(context.settings, context.folder).bind(given)
    target = ["--to", given.pop("to")] if "to" in given else []
    command = ["submit", "--batch", "-", *target, "--detach", "--json"]
    answer, notes = run_detached(context.where, command, json.dumps(given))
    with open_jobs(context.settings) as jobs:
        job = jobs.get_job(str(json.loads(answer)["job_id"]))
        jobs.history.add_action(job.job_id, "submit", jobs.user_here(), VIA)
    found = describe(Outline.of(job)) | ({"notes": notes} if notes else {})
    return found | {"next": f"call wait with job_ids [{job.job_id}]"}


def _wait(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    from baton.mcp.waiting import wait

    return wait(context, given)


def _list(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    condition = JobFilter(
        statuses=[check_status(given["status"])] if "status" in given else [],
        agent=agent_name(given["agent"]) if "agent" in given else None,
        label=given.get("label"),
    )
    with open_jobs(context.settings) as jobs:
        limit, cursor = given.get("limit", _LISTED), given.get("cursor")
        unsettled = settle_lost(context.settings, jobs)
        page = jobs.registry.list_outlines(condition, limit=limit, after=cursor)
        asks: dict[str, list[str]] = {}
        for request in jobs.registry.list_requests() if any(job.open_requests for job in page.jobs) else ():
            asks.setdefault(request.job_id, []).append(f"{request.request_id}: {request.summary}")
    shown = [without_runner(job, why) if (why := unsettled.get(job.job_id)) else job for job in page.jobs]
    found = {"jobs": [describe(job, asks.get(job.job_id, ())) for job in shown]}
    return found | ({"cursor": page.next} if page.next is not None else {})


def _result(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    from baton.jobs.results import result_record

    settings, wants_output = context.settings, given.get("output", False)
    with open_jobs(settings) as jobs:
        settle_lost(settings, jobs)
        job = jobs.with_id(given["job_id"], jobs.get_job)
        has_ended = job.status in TERMINAL
        if not has_ended and not wants_output:
            raise BatonError(f"job {job.job_id} is still {job.status}; call wait, or pass output=true")
        jobs.mark_seen([job])
        kept = jobs.get_result(job.job_id)
        found: dict[str, Any] = {"job_id": job.job_id, "status": job.status.value}
        if has_ended:
            record = result_record(job, kept, settings.home)
            names = ("artifacts", "validation", "worktree", "commits", "tokens", "cost_usd", "duration_sec", "attempts")
            found |= {name: record[name] for name in (*names, "workdir") if record[name] not in (None, [])}
            found |= judge(jobs, job) | {"state": state_of(job, "")} | _checked(Outline.of(job))
    branch = (job.checkout or {}).get("branch")
    found |= {"branch": branch} if branch else {}
    text, is_cut = _text_of(settings, job, kept.message if kept is not None else None, wants_output=wants_output)
    longest = given.get("max_chars", _CHARS)
    if len(text) > longest:
        is_message = text == (kept.message if kept is not None else None)
        text, is_cut = text[:longest] if is_message else text[-longest:], True
    return found | {"text": text, "cut": is_cut}


def _text_of(settings: Settings, job: Job, message: str | None, *, wants_output: bool) -> tuple[str, bool]:
    """Return the last message of the agent, or what it printed where that is its result or is wanted; and whether the
    beginning is missing."""
    from baton.adapters import find_agent
    from baton.board.details import view
    from baton.core.fields import printable_lines

    try:
        prints = find_agent(settings, job.agent).exit_is_verdict
    except BatonError:
        prints = False  # the agent is not in the settings any more
    if message is not None and not wants_output and not prints:
        return message, False
    shown = view(settings, job.job_id, screen=False)
    if shown.kind == "none" and message is not None:
        return message, False
    return printable_lines(shown.text), bool(shown.note) and shown.kind == "output"


def _message(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    from baton.board.actions import type_message
    from baton.mcp.limits import Limits, check_screen
    from baton.sessions.inventory import Inventory
    from baton.sessions.of_job import session_of

    with open_jobs(context.settings) as jobs:
        job = jobs.with_id(given["job_id"], jobs.get_job)
    session, job_id = session_of(Inventory(context.settings), job), job.job_id
    Limits(context.settings, context.folder).check_message(job, session)
    done = type_message(context.settings, job_id, given["text"], via=VIA, check_typing=check_screen)
    if done is not None:
        return {"job_id": job_id, "done": done}
    import json

    from baton.mcp.detached import run_detached

    answer, _ = run_detached(context.where, ["follow-up", job_id, "-", "--detach", "--json"], given["text"])
    following = str(json.loads(answer)["job_id"])
    with open_jobs(context.settings) as jobs:
        jobs.history.add_action(job_id, f"message as {following}", jobs.user_here(), VIA)
    return {"job_id": following, "done": f"job {following} continues the conversation of job {job_id}"}


def _cancel(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    from baton.board.actions import cancel

    with open_jobs(context.settings) as jobs:
        job_id = jobs.with_id(given["job_id"], jobs.get_job).job_id
        reason = given.get("reason") or f"cancelled by {jobs.user_here()} through MCP"
    job = cancel(context.settings, job_id, via=VIA, reason=reason)
    return {"job_id": job.job_id, "status": job.status.value}


# -- requests ----------------------------------------------------------------------------------------------------------


def _requests(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    from baton.board.details import describe_request
    from baton.jobs.requests import find_request, list_at_screens, list_open

    with open_jobs(context.settings) as jobs:
        settle_lost(context.settings, jobs)
        at_screens = [] if "id" in given else [_at_screen(each) for each in list_at_screens(jobs)]
        of_jobs = jobs.registry.find_ids(given["id"], limit=2) if "id" in given else []
        if "id" in given and len(of_jobs) != 1:
            found = [find_request(jobs, given["id"])]
        else:
            found = list_open(jobs, of_jobs[0] if of_jobs else None)
    shown = []
    for request in found:
        record = describe_request(request)
        is_cut = "id" not in given and len(record["text"]) > _SHOWN_CALL
        text = record["text"][:_SHOWN_CALL] if is_cut else record["text"]
        names = ("request_id", "job_id", "kind", "summary", "exact", "screen_only", "questions", "asked_at")
        shown.append({name: record[name] for name in names} | {"text": text, "cut": is_cut})
    return {"requests": shown} | ({"at_screens": at_screens} if at_screens else {})


def _at_screen(job: Outline) -> str:
    return one_line(f"{job.job_id}: {reason_of(job, WAITING)}", 500)


def _answer(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    from baton.core.request import DENIED, Answer
    from baton.core.signal import ALLOW, DENY
    from baton.jobs.requests import answer_by_hand, choose, find_request, outcome, use_answer

    with open_jobs(context.settings) as jobs:
        is_approval = given["decision"] != "deny" and "choices" not in given
        request = find_request(jobs, given["request_id"], to_allow=is_approval)
        if given["decision"] == "deny":
            decided = Answer(answer=DENY, by="", via=VIA, reason=given.get("reason") or DENIED)
        elif "choices" in given:
            choices = choose(request, given["choices"], own_words=given.get("own_words", False))
            decided = Answer(answer=ALLOW, by="", via=VIA, choices=choices)
        else:
            decided = Answer(answer=ALLOW, by="", via=VIA, scope="job" if given.get("for_job") else "once")
        request = answer_by_hand(jobs, request.request_id, decided, inexact=given.get("inexact", False))
        request = use_answer(jobs, request)
    used = {"request_id": request.request_id, "job_id": request.job_id, "used": request.applied}
    return used | {"outcome": outcome(request)}


# -- agents ------------------------------------------------------------------------------------------------------------


def _agents(context: Context, _given: dict[str, Any]) -> dict[str, Any]:
    from shutil import which

    from baton.adapters import agent_names, find_agent
    from baton.live_agents import open_directory
    from baton.live_agents.record import State

    settings, found = context.settings, []
    for name in agent_names(settings):
        agent = find_agent(settings, name)
        is_there = which(agent.program) is not None
        shown = {"name": name, "installed": is_there, "default": name == agent_name(settings.agent)}
        found.append(shown | ({} if is_there else {"install": agent.install}))
    with open_directory(settings) as directory:
        fresh = [entry.record for entry in directory.all() if entry.state is State.FRESH and entry.record is not None]
    live = [{"name": each.agent_name, "agent": each.tool, "host": each.host or settings.host} for each in fresh]
    return {"agents": found, "live": live}


_TOOLS: dict[str, Callable[[Context, dict[str, Any]], dict[str, Any]]] = {
    "submit": _submit,
    "wait": _wait,
    "list": _list,
    "result": _result,
    "message": _message,
    "cancel": _cancel,
    "requests": _requests,
    "answer": _answer,
    "agents": _agents,
}
