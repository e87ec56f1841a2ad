"""Define requests: questions of an agent that a person or a rule answers. Pure functions from one request to the next.

    open ──► answered | elsewhere | expired | withdrawn

Exactly one change leaves `open`. Every registry decides with these functions, in the statement that writes.
"""

from __future__ import annotations

from enum import StrEnum

from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_OPEN = 100  # of one job
MAX_CALL_BYTES = 256 * 1024  # of a call that is exact


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
    a question, objects with `question`, `choices` (texts) and `several` (more than one may be chosen). `applied` is
    "yes", "no" or "unknown": it is set by evidence from the agent alone."""

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
