"""Define requests: questions of an agent that a person or a rule answers. Pure functions from one request to the next.

    open ──► answered | elsewhere | expired | withdrawn

Exactly one change leaves `open`. Every registry decides with these functions, in the statement that writes.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum

from baton.core import fields
from baton.core.clock import format_time
from baton.core.errors import InvalidRecord, InvalidValue, RequestClosed, WrongState
from baton.core.job import Status
from baton.core.job_checks import lease_mark
from baton.core.signal import ALLOW, DENY, Consent
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.core.fields import Check
    from baton.core.job import Job

MAX_OPEN = 100  # of one job
MAX_CALL_BYTES = 256 * 1024  # of a call that is exact
SCREEN_ONLY = {"only": "screen"}  # among the options of a request that only the agent's own screen takes the answer of
CONSENT, INEXACT = "consent", "inexact"  # keys of further options: what the agent says, and why a call is not exact
REQUEST_ID = re.compile(r"[0-9a-f]{8}", re.ASCII)
SCOPES = ("once", "job")
MORE_THAN_SHOWN = "the agent may do more than is shown"
DENIED = "The user denied this."  # the reason of a denial without one


class RequestKind(StrEnum):
    TOOL = "tool"
    PLAN = "plan"
    QUESTION = "question"
    BUDGET = "budget"


class RequestState(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    ELSEWHERE = "elsewhere"  # on the agent's own screen
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class Answer(Value):
    """A decision. `answer` is "allow" or "deny". `choices` answers a question: the chosen text by question. `scope` is
    "job" when later equal calls of the job are allowed, too. `via` is the surface: cli, rule, board, mcp, agent. `rule`
    is the rule that decided."""

    answer: str
    by: str
    via: str
    reason: str = ""
    choices: Mapping[str, str] = {}
    scope: str = "once"
    rule: str | None = None


class Request(Value):
    """A question of an agent. Times are RFC 3339 text, as in a job; `expires_mark` is as `lease_mark` of a job.

    `key` names the question within the session: the runner gives the answer to the channel under it. `options` are, for
    a question, objects with `question`, `choices` (texts) and `several` (more than one may be chosen); one of them may
    be SCREEN_ONLY. `applied` is "yes", "no" or "unknown": it is set by evidence from the agent alone."""

    request_id: str
    job_id: str
    attempt: int
    key: str
    kind: RequestKind
    agent_ref: str | None
    tool: str
    call: Any
    call_sha256: str | None
    exact: bool
    summary: str
    options: tuple[Mapping[str, Any], ...]
    asked_at: str
    expires_at: str | None = None
    expires_mark: str | None = None
    state: RequestState = RequestState.OPEN
    answer: str | None = None
    choices: Mapping[str, str] = {}
    reason: str = ""
    scope: str = "once"
    answered_by: str | None = None
    via: str | None = None
    rule: str | None = None
    answered_at: str | None = None
    sent_at: str | None = None
    applied: str = "unknown"
    overridden_by: str | None = None

    @property
    def screen_only(self) -> bool:
        """Return whether the agent takes the answer at its own screen alone."""
        return SCREEN_ONLY in self.options

    @property
    def consent(self) -> Consent:
        """Return what the agent says about the question."""
        given = [each[CONSENT] for each in self.options if isinstance(each.get(CONSENT), dict)]
        found = given[0] if given else {}
        return Consent(
            person_only=found.get("person_only") is True,
            default_no=found.get("default_no") is True,
            once=found.get("once") is True,
            rule=str(found.get("rule") or ""),
            why=str(found.get("why") or ""),
        )

    @property
    def offers_for_job(self) -> bool:
        """Return whether the answer may cover later equal calls of the job."""
        consent = self.consent
        return self.exact and not consent.once and not consent.person_only

    @property
    def why_inexact(self) -> str:
        """Return why the call is not exact; "" if it is."""
        if self.exact:
            return ""
        return next((str(each[INEXACT]) for each in self.options if INEXACT in each), MORE_THAN_SHOWN)

    @property
    def questions(self) -> list[Mapping[str, Any]]:
        """Return the questions, each with its choices."""
        return [each for each in self.options if "question" in each]

    @classmethod
    def parse(cls, record: object, stored_as: str) -> Request:
        """Return the request in a decoded record of the store. Raise InvalidRecord with the field that is not valid;
        `stored_as` names the job."""
        try:
            values = fields.members(record, _CHECKS)
        except ValueError as error:
            raise InvalidRecord(stored_as, "requests", str(error)) from None
        if values["job_id"] != stored_as:
            raise InvalidRecord(stored_as, "requests", "names another job")
        return cls(**values)

    def record(self) -> dict[str, Any]:
        """Return the request as it is stored."""
        plain = {"kind": self.kind.value, "state": self.state.value, "options": list(self.options)}
        return self.as_dict() | plain | {"choices": dict(self.choices)}


def notes(request: Request) -> list[str]:
    """Return what a user must know before the answer, in lines. A line may hold any character."""
    consent, found = request.consent, []
    if not request.exact:
        found.append(f"not exact: {request.why_inexact}")
    if consent.rule:
        found.append(f"asked by {consent.rule}")
    if consent.why:
        found.append(f"why it asks: {consent.why}")
    if consent.person_only:
        found.append("a person must answer this: no allow rule does")
    if consent.default_no:
        found.append("the agent's own default is no")
    if consent.once:
        found.append("the agent does not offer to allow this always: it is allowed once")
    return found


class Asker(Value):
    """What decides, of a job, whether its requests are open."""

    status: Status
    attempt: int


def new_request_id() -> str:
    return os.urandom(4).hex()


def check_request_id(value: object) -> str:
    """Return the id, or raise InvalidValue. Call it before an id becomes part of a path or a query."""
    if isinstance(value, str) and REQUEST_ID.fullmatch(value):  # guard: request-id-in-path
        return value
    shown = repr(value[:40]) if isinstance(value, str) else fields.kind(value)
    raise InvalidValue("request id", f"must be 8 characters of 0-9 and a-f, not {shown}")


def is_open(request: Request, job: Job | Asker, expired: bool) -> bool:
    """Return whether the request may still be answered: it closes with its job, and with its time, before its row is
    written. `expired`: by the clock of the registry."""
    return request.state is RequestState.OPEN and _is_asked(request, job) and not expired


def _is_asked(request: Request, job: Job | Asker) -> bool:
    return job.status is Status.RUNNING and job.attempt == request.attempt


def present(request: Request, job: Job | Asker, expired: bool) -> Request:
    """Return the request in the state that it has, whatever its row says."""
    if request.state is not RequestState.OPEN or is_open(request, job, expired):
        return request
    return request.replace(state=RequestState.EXPIRED if _is_asked(request, job) else RequestState.WITHDRAWN)


def refuse_more(job_id: str, open_ones: int) -> None:
    """Raise when a job has as many open requests as it may have."""
    if open_ones >= MAX_OPEN:  # guard: most-open-requests
        raise WrongState("job", f"{job_id} has {open_ones} open requests, and may have no more: answer some of them")


def answer(request: Request, job: Job | Asker, given: Answer, *, expired: bool, now_ns: int) -> Request:
    """Return the answered request. Raise RequestClosed, with who answered what and when, if it is not open."""
    _refuse_closed(request, job, expired)
    if given.answer not in (ALLOW, DENY):
        raise InvalidValue("answer", f"must be {ALLOW} or {DENY}, not {given.answer!r}")
    if given.scope not in SCOPES:
        raise InvalidValue("scope", f"must be one of {', '.join(SCOPES)}, not {given.scope!r}")
    asked = {each["question"] for each in request.questions}
    for question in given.choices:
        if question not in asked:
            raise InvalidValue("answer", f"names a question that request {request.request_id} does not ask")
    return request.replace(
        state=RequestState.ANSWERED,
        answer=given.answer,
        choices=dict(given.choices),
        reason=given.reason,
        scope=given.scope,
        answered_by=given.by,
        via=given.via,
        rule=given.rule,
        answered_at=format_time(now_ns),
    )


def close(
    request: Request,
    job: Job | Asker,
    state: RequestState,
    *,
    expired: bool,
    now_ns: int,
    decision: str | None = None,
    by: str = "",
    via: str = "agent",
) -> Request:
    """Return the request without an answer of ours: decided elsewhere, expired or withdrawn. Of a request whose job has
    ended, or has another attempt, `withdrawn` only writes down what is so."""
    if state in (RequestState.OPEN, RequestState.ANSWERED):
        raise InvalidValue("state", f"{state.value} does not close a request")
    asked = _is_asked(request, job)
    if state is RequestState.EXPIRED and request.state is RequestState.OPEN and asked and not expired:
        raise WrongState("request", f"{request.request_id} has not expired")
    if asked and expired and state is not RequestState.EXPIRED:
        _refuse_closed(request, job, expired)
    if request.state is not RequestState.OPEN or not (asked or state is RequestState.WITHDRAWN):
        _refuse_closed(request, job, expired)
    decided = {"answer": decision, "answered_by": by or None, "via": via} if state is RequestState.ELSEWHERE else {}
    return request.replace(state=state, answered_at=format_time(now_ns), **decided)


def sent(request: Request, *, now_ns: int) -> Request:
    """Return the request after its answer was written to the agent."""
    if request.state is not RequestState.ANSWERED:
        raise WrongState("request", f"{request.request_id} is {request.state.value}: it has no answer to send")
    return request if request.sent_at is not None else request.replace(sent_at=format_time(now_ns))


def set_applied(request: Request, was_applied: str, overridden_by: str | None = None) -> Request:
    """Return the request with what the agent did with its answer: "yes", or "no" and what decided instead. The first
    evidence stands."""
    if was_applied not in ("yes", "no"):
        raise InvalidValue("applied", f"must be yes or no, not {was_applied!r}")
    if request.state is not RequestState.ANSWERED:
        raise WrongState("request", f"{request.request_id} is {request.state.value}: it has no answer to apply")
    if request.applied != "unknown":
        return request
    return request.replace(applied=was_applied, overridden_by=overridden_by if was_applied == "no" else None)


def _refuse_closed(request: Request, job: Job | Asker, expired: bool) -> None:
    if is_open(request, job, expired):  # guard: request-answered-once
        return
    refuse_closed(present(request, job, expired))


def refuse_closed(now: Request) -> None:
    """Raise RequestClosed, with who answered what and when, if a request in its present state is not open."""
    if now.state is RequestState.OPEN:
        return
    when = f" at {now.answered_at}" if now.answered_at is not None else ""
    who = f" by {now.answered_by}" if now.answered_by else ""
    why = {
        RequestState.ANSWERED: f"was answered already: {now.answer}{who} ({now.via}){when}",
        RequestState.ELSEWHERE: f"was decided on the agent's own screen{when}: {now.answer or 'no longer asked'}",
        RequestState.EXPIRED: f"has expired at {now.expires_at}, which is not consent",
        RequestState.WITHDRAWN: f"is closed: job {now.job_id} does not ask it any more",
    }
    raise RequestClosed(now, why[now.state])


def _objects(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, dict) for each in value):
        raise ValueError("must be a list of objects")
    fields.unknown_fields({"options": list(value)}, ())
    return tuple(value)


def _choices(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError("must be an object of texts")
    return value


def _exactly_one_of(*allowed: str) -> Check:
    def check(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return check


def _request_id(value: object) -> str:
    if not (isinstance(value, str) and REQUEST_ID.fullmatch(value)):
        raise ValueError("must be 8 characters of 0-9 and a-f")
    return value


_LONG = 1024 * 1024  # bytes of a plan, or of what a person answers to a question
_KINDS, _STATES = tuple(kind.value for kind in RequestKind), tuple(state.value for state in RequestState)
_CHECKS: dict[str, Check] = {
    "request_id": _request_id,
    "job_id": fields.job_id,
    "attempt": fields.whole(1),
    "key": fields.text,
    "kind": lambda value: RequestKind(_exactly_one_of(*_KINDS)(value)),
    "agent_ref": fields.optional(fields.text),
    "tool": fields.text,
    "call": lambda value: value,
    "call_sha256": fields.optional(fields.label),
    "exact": fields.boolean,
    "summary": fields.text,
    "options": _objects,
    "asked_at": fields.time,
    "expires_at": fields.optional(fields.time),
    "expires_mark": fields.optional(lease_mark),
    "state": lambda value: RequestState(_exactly_one_of(*_STATES)(value)),
    "answer": fields.optional(_exactly_one_of(ALLOW, DENY)),
    "choices": _choices,
    "reason": lambda value: fields.text(value, _LONG),
    "scope": _exactly_one_of(*SCOPES),
    "answered_by": fields.optional(fields.text),
    "via": fields.optional(fields.text),
    "rule": fields.optional(fields.text),
    "answered_at": fields.optional(fields.time),
    "sent_at": fields.optional(fields.time),
    "applied": _exactly_one_of("yes", "no", "unknown"),
    "overridden_by": fields.optional(fields.text),
}
