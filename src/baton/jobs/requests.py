"""Open, answer and close the requests of agents: each registry change together with its history line.

`baton.core.request` has the states. A request is answered once, for exactly the call that was shown: by a person, by a
rule, or by an earlier answer for the whole job."""

from __future__ import annotations

import json
import os
import re
import time

from baton.core import fields
from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import AnswerNotUsed, BatonError, InvalidValue, RequestClosed, RequestNotFound, WrongState
from baton.core.fields import FULL_ID_LENGTH, check_id_beginning, check_named, one_line, visible
from baton.core.hashing import sha256
from baton.core.job import Status
from baton.core.outline import asks_at_screen, last_cause
from baton.core.redact import shorten
from baton.core.request import (
    CONSENT,
    INEXACT,
    MAX_CALL_BYTES,
    SCREEN_ONLY,
    Answer,
    Request,
    RequestKind,
    RequestState,
    new_request_id,
)
from baton.core.rules import ALLOW, ASK, DENY, decide
from baton.jobs.caller import answerer_here, origin_of
from baton.jobs.rules import bounds_of, call_for_rules, read_rules
from baton.origin import is_inside_session
from baton.registry.contract import JobFilter
from baton.wire.payload import MAX_DETAIL_BYTES, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from baton.core.job import Job
    from baton.core.outline import Outline
    from baton.core.signal import Asked, Settled
    from baton.jobs.verbs import Jobs
    from baton.registry.contract import RequestChange

SUMMARY_CHARS = 300
EVIDENCE_SEC = 2.0  # that a surface waits for what the agent does with an answer
FOR_AGENTS = "mcp"  # the surface that agents use
_POLL_SEC = 0.05
_DONE = {ALLOW: "allowed", DENY: "denied"}
_LONGEST_TEXT = 64 * 1024  # of a reason, or an answer in a person's own words
_MATCHES = 5  # that a message about an ambiguous id names
_EARLIER = 1000  # requests of a job that are compared with a new one
_TOLD_BY = (
    "command", "cmd", "typed", "checkpoint", "file_path", "notebook_path", "path", "url", "query", "pattern", "prompt",
    "description",
)  # fmt: skip


# -- for the runner ----------------------------------------------------------------------------------------------------


def ask(jobs: Jobs, job: Job, asked: Asked, *, expires_sec: float | None = None) -> Request:
    """Open the request of an agent. Answer it at once if a rule decides, or if the user has allowed this call for the
    job."""
    request = _new_request(job, asked)
    redactor = jobs.redactor(job)
    detail = shorten(redactor.text(request.summary), MAX_DETAIL_BYTES)
    change = jobs.registry.open_request(
        job.job_id,
        request,
        attempt=job.attempt,
        detail=detail,
        data={"tool": redactor.text(request.tool)} | ({"screen_only": True} if request.screen_only else {}),
        expires_sec=expires_sec,
    )
    opened = _log_change(jobs, change, "request_opened", kind=request.kind.value, exact=request.exact, detail=detail)
    decided = _known_answer(jobs, job, opened)
    if decided is None:
        return opened
    try:
        return answer(jobs, opened.request_id, decided)
    except RequestClosed:
        return jobs.registry.get_request(opened.request_id)  # another process was faster


def settle(jobs: Jobs, request_id: str, settled: Settled) -> Request:
    """Note what the agent says became of its question: it was decided there, or our answer was used, or was not."""
    request = jobs.registry.get_request(request_id)
    if request.state is RequestState.OPEN:
        state = RequestState.WITHDRAWN if settled.decision is None else RequestState.ELSEWHERE
        request = _close(jobs, request, state, answer=settled.decision, by=one_line(settled.by, 200))
    if request.state is not RequestState.ANSWERED or settled.decision is None or request.applied != "unknown":
        return request
    if settled.decision == request.answer:
        return jobs.registry.note_applied(request_id, "yes").after
    return not_used(jobs, request_id, f"{settled.decision} by {settled.by or 'the agent'}")


def not_used(jobs: Jobs, request_id: str, why: str) -> Request:
    """Note that the answer to a request was not used."""
    by = one_line(why, 200)
    change = jobs.registry.note_applied(request_id, "no", overridden_by=by)
    return _log_change(jobs, change, "request_overridden", **_answer_line(jobs, change), overridden_by=by)


def withdraw(jobs: Jobs, request_id: str) -> Request:
    """Close a request that the agent no longer asks."""
    return _close(jobs, jobs.registry.get_request(request_id), RequestState.WITHDRAWN)


def expire_due(jobs: Jobs, job_id: str) -> list[Request]:
    """Close the requests of a job whose time is over, and return them. `expiry` is the answer to give to the agent."""
    found = jobs.registry.list_requests(job_id=job_id, open_only=False)
    due = [each for each in found if each.state is RequestState.EXPIRED and each.answered_at is None]
    closed = [_close(jobs, request, RequestState.EXPIRED) for request in due]
    return [request for request in closed if request.state is RequestState.EXPIRED]


def expiry(request: Request) -> Answer:
    """Return the answer that the agent gets to an expired request: silence is not consent."""
    assert request.expires_at is not None
    seconds = round((parse_time(request.expires_at) - parse_time(request.asked_at)) / SECOND_NS)
    reason = f"No answer came within {seconds} s. This is not consent; do not do it another way."
    return Answer(answer=DENY, by="", via="agent", reason=reason)


def answer_of(request: Request) -> Answer:
    """Return the answer of an answered request, for the channel."""
    assert request.answer is not None
    return Answer(
        answer=request.answer,
        by=request.answered_by or "",
        via=request.via or "",
        reason=request.reason,
        choices=request.choices,
        scope=request.scope,
        rule=request.rule,
    )


def sent(jobs: Jobs, request_id: str) -> Request:
    """Note that the answer was written to the agent. Of an expired request there is nothing to note."""
    request = jobs.registry.get_request(request_id)
    return jobs.registry.note_sent(request_id) if request.state is RequestState.ANSWERED else request


# -- for people --------------------------------------------------------------------------------------------------------


def list_open(jobs: Jobs, job_id: str | None = None) -> list[Request]:
    """Return the open requests of a job, or of all jobs, oldest first."""
    return jobs.registry.list_requests(job_id=job_id)


def list_at_screens(jobs: Jobs) -> list[Outline]:
    """Return the running jobs whose agents wait for a person at their own screens, without a request, oldest first."""
    running = (job for page in jobs.outlines(JobFilter(statuses=[Status.RUNNING])) for job in page.jobs)
    now_ns = time.time_ns()
    return sorted((job for job in running if asks_at_screen(job, now_ns=now_ns)), key=since_ns)


def since_ns(job: Outline) -> int:
    """Return since when the agent of a job does what its runner has written."""
    return job.created_ns if job.activity is None else parse_time(job.activity["since"])


def find_request(jobs: Jobs, typed: str, *, to_allow: bool = False) -> Request:
    """Return the request that a user typed: by its id, or by the id of a job with exactly one open request. The first
    characters of an id are enough where no other begins so. `to_allow`: the id of a job is refused with the line to
    type, since it does not say which call the user has seen."""
    request = _find_request(jobs, typed)
    if to_allow and not request.request_id.startswith(typed):  # guard: allow-by-job
        about = f"job {request.job_id} asks: {one_line(request.summary, 200)}"
        hint = f"`baton requests {request.request_id}` shows it whole, `baton approve {request.request_id}` allows it"
        raise BatonError(f"{about}; {hint}; the id of a job allows nothing, since another call may be asked meanwhile")
    return request


def _find_request(jobs: Jobs, typed: str) -> Request:
    check_id_beginning(typed)
    ids = jobs.registry.find_requests(typed) if len(typed) <= FULL_ID_LENGTH else []
    if typed in ids:
        return jobs.registry.get_request(typed)
    found = {each: jobs.registry.get_request(each) for each in ids[: _MATCHES + 1]}
    of_jobs = jobs.registry.find_ids(typed, limit=_MATCHES + 1)
    for job_id in of_jobs[:_MATCHES]:
        found |= {each.request_id: each for each in list_open(jobs, job_id)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        shown = ", ".join(f"{each.request_id} ({each.summary[:60]})" for each in list(found.values())[:_MATCHES])
        more = ", ..." if len(found) > _MATCHES else ""
        raise BatonError(f"{typed} may be any of {shown}{more}; give the id of a request")
    if of_jobs:
        job = jobs.get_job(of_jobs[0])
        if asks_at_screen(job, now_ns=time.time_ns()):
            raise BatonError(f"job {job.job_id} has no request that a command could answer: {last_cause(job)}")
        hint = "`baton requests --all` shows those that are closed"
        raise BatonError(f"job {of_jobs[0]} has no open request; {hint}")
    raise RequestNotFound(typed, jobs.place)


def answer(jobs: Jobs, request_id: str, given: Answer, *, inexact: bool = False) -> Request:
    """Answer an open request; raise RequestClosed, which says who answered what and when, if it is closed.

    `inexact`: the user accepts that a call is not known exactly."""
    request = jobs.registry.get_request(request_id)
    if request.state is RequestState.OPEN:
        if request.screen_only:
            where = f"attach to the session of job {request.job_id} (`baton session list`) and answer there"
            raise BatonError(f"the agent takes the answer to request {request_id} at its own screen alone; {where}")
        _check_answer(request, given, inexact=inexact)
    change = jobs.registry.answer_request(request_id, given)
    return _log_change(jobs, change, "request_closed", state=change.after.state.value, **_answer_line(jobs, change))


def answer_by_hand(jobs: Jobs, request_id: str, given: Answer, *, inexact: bool = False) -> Request:
    """Answer an open request for the user who calls this process, or for an agent that the user's rules name. Raise
    BatonError for other agents, as `baton.jobs.caller` decides; otherwise as `answer`."""
    request = jobs.registry.get_request(request_id)
    who = answerer_here(jobs, jobs.get_job(request.job_id))
    is_agent = given.via == FOR_AGENTS or is_inside_session()
    is_reserved = request.consent.person_only and request.kind is RequestKind.TOOL
    if is_agent and is_reserved and given.answer == ALLOW:  # guard: person-only-answered-by-agent
        raise BatonError(f"request {request_id} must be answered by a person; ask the user to answer it")
    return answer(jobs, request_id, given.replace(by=who), inexact=inexact)


def public_record(request: Request, agent: str | None = None) -> dict[str, Any]:
    """Return a request as JSON for its user: with the whole call, without what only the runner needs."""
    hidden = ("key", "expires_mark")
    record = {name: value for name, value in request.as_dict().items() if name not in hidden}
    record |= {"kind": request.kind.value, "state": request.state.value, "choices": dict(request.choices)}
    record |= {"options": [dict(each) for each in request.options], "agent": agent}
    return record | {"why_inexact": request.why_inexact or None, "consent": request.consent.as_dict()}


def call_lines(call: object) -> list[str]:
    """Return the whole call, a line for each line of its texts. What belongs to a text begins with `|`. A line may hold
    any character: `visible` shows what it is."""
    if not isinstance(call, dict):
        return call.split("\n") if isinstance(call, str) else [json.dumps(call, ensure_ascii=False)]
    lines = []
    for name, value in call.items():
        if isinstance(value, str):
            parts = value.split("\n")
            lines += [f"{name}: {value}"] if len(parts) == 1 else [f"{name}:", *(f"  | {part}" for part in parts)]
        else:
            lines += f"{name}: {json.dumps(value, ensure_ascii=False, indent=2)}".split("\n")
    return lines


def choose(request: Request, typed: Sequence[str], *, own_words: bool = False) -> dict[str, str]:
    """Return the choice for each question of a request, from what the user typed: a number, a choice, or, for a
    question without choices or with `own_words`, any text. With several questions, each as NUMBER=CHOICE."""
    if request.kind is not RequestKind.QUESTION:
        raise WrongState("request", f"{request.request_id} is no question; use `baton approve` or `baton deny`")
    questions = [dict(each) for each in request.questions]
    if len(questions) == 1:
        if len(typed) != 1:
            raise InvalidValue("CHOICE", "must be one choice or one text; put a text in quotes")
        given = {1: typed[0]}
    else:
        given = dict(_parse_numbered(each, len(questions)) for each in typed)
        missing = [str(number) for number in range(1, len(questions) + 1) if number not in given]
        if missing or len(given) != len(typed):
            raise InvalidValue("CHOICE", f"must answer each question once, as 1=CHOICE 2=CHOICE; of {len(questions)}")
    return {
        str(question["question"]): _chosen(question, given[number], own_words=own_words)
        for number, question in enumerate(questions, 1)
    }


def use_answer(jobs: Jobs, request: Request) -> Request:
    """Wait a moment for what the agent does with an answer. Raise AnswerNotUsed if it did something else; otherwise
    return the request as it is then, whose `applied` says what is known."""
    (found,) = wait_for_use(jobs, [request.request_id], timeout_sec=EVIDENCE_SEC)
    if found.applied == "no":
        raise AnswerNotUsed(found, outcome(found))
    return found


def outcome(request: Request) -> str:
    """Return in words what became of the answer to a request: that the agent goes on, only if it has shown that."""
    done = "answered" if request.choices else _DONE[request.answer or DENY]
    if request.applied == "yes":
        return f"{done}; the agent goes on"
    if request.applied == "no":
        what = "denial" if request.answer == DENY else "answer"
        return f"your {what} was not used: {request.overridden_by or 'the agent decided otherwise'}"
    hint = f"`baton explain {request.job_id}`"
    if request.sent_at is not None:
        return f"{done}; the agent has the answer, but nothing shows yet that it goes on ({hint})"
    return f"{done}; the agent's runner has not taken the answer yet ({hint})"


def wait_for_use(jobs: Jobs, request_ids: Sequence[str], *, timeout_sec: float) -> list[Request]:
    """Wait until the agent has shown what became of each answer, at most this long. Return the requests as they are."""
    until = time.monotonic() + timeout_sec
    while True:
        found = [jobs.registry.get_request(each) for each in request_ids]
        if all(each.applied != "unknown" for each in found) or time.monotonic() >= until:
            return found
        time.sleep(_POLL_SEC)


# -- what a request consists of ----------------------------------------------------------------------------------------


def _new_request(job: Job, asked: Asked) -> Request:
    call, digest = _storable(asked.call)
    return Request(
        request_id=new_request_id(),
        job_id=job.job_id,
        attempt=job.attempt,
        key=asked.key,
        kind=RequestKind(asked.kind),
        agent_ref=asked.agent_ref and one_line(asked.agent_ref, 200),
        tool=one_line(asked.tool, 200),
        call=call,
        call_sha256=digest,
        exact=asked.exact and digest is not None,
        summary=summarize(asked.kind, asked.tool, asked.call, asked.options),
        options=(*(_strict(dict(each)) for each in asked.options), *_marks(asked)),
        asked_at=job.updated_at,  # the registry sets it
    )


def _marks(asked: Asked) -> Iterator[Mapping[str, Any]]:
    """Yield what else the agent says of its question, as options: readers of earlier releases know no other field."""
    if asked.screen_only:
        yield SCREEN_ONLY
    if asked.why_inexact:
        yield {INEXACT: one_line(asked.why_inexact, SUMMARY_CHARS)}
    said = {name: _strict(value) for name, value in asked.consent.as_dict().items() if value}
    if said:
        yield {CONSENT: said}


def _strict(value: Any) -> Any:
    """Return a JSON value whose texts are valid UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_strict(str(key)): _strict(each) for key, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, list | tuple) else value


def _storable(call: Any) -> tuple[Any, str | None]:
    """Return a call as it is stored, and its hash. A call that is too long, or has no canonical form, is stored as text
    and has no hash."""
    try:
        form = canonical(call)
        if len(form) <= MAX_CALL_BYTES:  # guard: request-exact
            return call, sha256(form).hexdigest()
    except (ValueError, RecursionError):
        form = b""  # a number beyond 2^53, a lone surrogate, NaN
    try:
        text = form.decode() or json.dumps(call, default=str)
    except (ValueError, RecursionError):
        text = "(a call that is nested too deeply to be shown)"
    return shorten(_strict(text), MAX_CALL_BYTES), None


def summarize(kind: str, tool: str, call: Any, options: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return what is asked as one line: the tool, and the command, file, address or question."""
    given = call if isinstance(call, dict) else {}
    if kind == RequestKind.QUESTION and options:
        what = " / ".join(str(each.get("question")) for each in options)
    elif kind == RequestKind.PLAN:
        what = str(given.get("plan") or "")
    else:
        texts = (given[name] for name in _TOLD_BY if isinstance(given.get(name), str | list) and given[name])
        found = next(texts, None) if given else call
        what = " ".join(map(str, found)) if isinstance(found, list) else str(found or "")
        if not what and given:
            what = json.dumps(given, ensure_ascii=False, default=str)
    label = {RequestKind.QUESTION: "question", RequestKind.PLAN: "plan"}.get(RequestKind(kind), tool)
    line = f"{label}: {what.strip()[: 4 * SUMMARY_CHARS]}" if what.strip() else str(label)
    line = visible(re.sub(r"[ \t]*\r?\n\s*", " ⏎ ", line))
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"


# -- answers -----------------------------------------------------------------------------------------------------------


def _known_answer(jobs: Jobs, job: Job, request: Request) -> Answer | None:
    """Return the answer that the user has given already: by a rule, or to an equal call of this attempt for the whole
    job."""
    if request.kind is not RequestKind.TOOL or request.screen_only:
        return None
    origin = origin_of(job)  # as the user had it when the session was started
    env = os.environ if origin is None else origin.environment
    book = read_rules(env, jobs.warn)
    rule = None
    if book.rules:
        call = call_for_rules(
            job.agent, request.tool, request.call, exact=request.exact, workdir=job.folder, env=env, home=jobs.home,
            bounds=bounds_of(jobs, job),
        )  # fmt: skip
        rule = decide(book.rules, call, now_ns=jobs.clock.wall_ns())
    if request.consent.person_only and (rule is None or rule.decision == ALLOW):  # guard: person-only-rule
        return None
    if rule is not None and rule.decision != ASK:
        why = f"denied by the user's rule: {rule.describe()}; do not do it another way" if rule.decision == DENY else ""
        return Answer(answer=rule.decision, by="", via="rule", reason=why, rule=rule.describe())
    if request.exact:
        for earlier in jobs.registry.list_requests(job_id=job.job_id, open_only=False, limit=_EARLIER):
            if _covers(earlier, request):
                by = earlier.answered_by or ""
                return Answer(answer=ALLOW, by=by, via="rule", rule=f"request {earlier.request_id} for the job")
    return None


def _covers(earlier: Request, request: Request) -> bool:
    """Return whether the answer to an earlier request allows an equal one."""
    is_equal = (earlier.call_sha256, earlier.tool) == (request.call_sha256, request.tool)
    same_attempt = earlier.attempt == request.attempt
    return is_equal and same_attempt and earlier.scope == "job" and earlier.answer == ALLOW  # guard: for-job-scope


def _check_answer(request: Request, given: Answer, *, inexact: bool) -> None:
    if given.answer not in (ALLOW, DENY):
        raise InvalidValue("answer", f"must be allow or deny, not {given.answer[:40]!r}")
    check_named("reason", lambda value: fields.text(value, _LONGEST_TEXT), given.reason)
    for choice in given.choices.values():
        check_named("answer", lambda value: fields.text(value, _LONGEST_TEXT), choice)
    if given.answer == DENY:
        return
    shown = f"`baton requests {request.request_id}` shows it"
    if not request.exact and not inexact:  # guard: inexact-answer
        why = f"request {request.request_id} is not exact: {one_line(request.why_inexact, 200)} ({shown})"
        raise BatonError(f"{why}; allow it all the same with --inexact")
    if given.scope == "job" and not request.exact:
        raise BatonError(f"request {request.request_id} is not exact, so no later call can be compared; omit --for-job")
    if given.scope == "job" and not request.offers_for_job:  # guard: for-job-offered
        raise BatonError(f"the agent does not let request {request.request_id} be allowed for the job; omit --for-job")
    if request.kind is RequestKind.QUESTION and not given.choices:
        raise BatonError(f"request {request.request_id} is a question ({shown}); use `baton answer`")


def _parse_numbered(typed: str, count: int) -> tuple[int, str]:
    number, equals, text = typed.partition("=")
    if not equals or not number.isdecimal() or not 1 <= int(number) <= count:
        raise InvalidValue("CHOICE", f"must be NUMBER=CHOICE with a question from 1 to {count}, not {typed[:40]!r}")
    return int(number), text


def _chosen(question: Mapping[str, Any], typed: str, *, own_words: bool) -> str:
    """Return the choice that a user typed, by its number or its text."""
    choices = [str(each) for each in question.get("choices") or ()]
    if own_words or not choices:
        if not typed.strip():
            raise InvalidValue("TEXT", "must not be empty")
        return typed
    parts = [typed] if not question.get("several") or typed in choices else [each.strip() for each in typed.split(",")]
    found = []
    for part in parts:
        same = [each for each in choices if each == part] or [each for each in choices if each.lower() == part.lower()]
        if part.isdecimal() and not same and 1 <= int(part) <= len(choices):
            same = [choices[int(part) - 1]]
        if len(same) != 1:
            listed = ", ".join(f"{number} {each}" for number, each in enumerate(choices, 1))
            raise InvalidValue(
                "CHOICE", f"{part[:40]!r} does not exist; there are {visible(listed)}; --text answers in your own words"
            )
        found += same
    return ", ".join(dict.fromkeys(found))


# -- the registry and the history --------------------------------------------------------------------------------------


def _close(jobs: Jobs, request: Request, state: RequestState, *, answer: str | None = None, by: str = "") -> Request:
    """Close a request; return it as it is after that, also if another process has closed it before."""
    try:
        change = jobs.registry.close_request(request.request_id, state, answer=answer, by=by, via="agent")
    except RequestClosed:
        return jobs.registry.get_request(request.request_id)
    return _log_change(jobs, change, "request_closed", state=state.value, **_answer_line(jobs, change))


def _answer_line(jobs: Jobs, change: RequestChange) -> dict[str, Any]:
    """Return the fields of a history line that say how a request was answered, without secrets."""
    request, redactor = change.after, jobs.redactor(change.job)
    return {
        "answer": request.answer,
        "by": request.answered_by,
        "via": request.via,
        "rule": request.rule and redactor.text(request.rule),
        "scope": request.scope if request.scope != "once" else None,
        "reason": redactor.text(request.reason),
        "choices": redactor.value(dict(request.choices)),
    }


def _log_change(jobs: Jobs, change: RequestChange, event: str, **more: Any) -> Request:
    """Add the history lines of a change; return the request after it."""
    jobs.history.add_request(change.after, event, **more)
    if change.event is not None:
        jobs.history.add_event(change.event)
    return change.after
