"""Describe the nine tools for agents: what each does, takes and returns; and check the arguments of a call.

An agent reads all of this before its first call, and pays for it: the whole list is at most 8,000 bytes.
"""

from __future__ import annotations

from baton.core.errors import InvalidValue
from baton.core.value import Any

LONGEST_WAIT_SEC = 45
MOST_JOBS = 100  # of one call of wait
MOST_LISTED = 200
LEAST_CHARS, MOST_CHARS = 1_000, 200_000
_KIND = {"string": "a text", "boolean": "true or false", "integer": "a whole number", "number": "a number"}


def _is(kind: str, about: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind} | more | ({"description": about} if about else {})


def _texts(about: str = "", **more: Any) -> dict[str, Any]:
    return _is("array", about, items={"type": "string"}, **more)


def _object(required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": required.split()} if required else {})


def _tool(
    name: str,
    about: str,
    takes: dict[str, Any],
    returns: dict[str, Any],
    *,
    reads: bool = False,
    destroys: bool = False,
    repeats: bool = False,
    reaches_out: bool = False,
) -> dict[str, Any]:
    hints = {"readOnlyHint": reads, "destructiveHint": destroys, "idempotentHint": repeats or reads}
    return {
        "name": name,
        "description": about,
        "inputSchema": takes,
        "outputSchema": returns,
        "annotations": hints | {"openWorldHint": reaches_out},
    }


_TEXT, _FLAG = _is("string"), _is("boolean")
_JOB = _object("job_id status state", job_id=_TEXT, status=_TEXT, state=_TEXT, reason=_TEXT, ok=_FLAG, asks=_texts())
_JOBS = _is("array", items=_JOB)
_JOB_ID = _TEXT

TOOLS = [
    _tool(
        "submit",
        "Hand a task to a coding agent. Returns a job id at once; the job goes on without you. Then call wait.",
        _object(
            "prompt",
            prompt=_is("string", "the whole task"),
            agent=_is("string", "see agents; default: the user's choice"),
            workdir=_is("string", "in this folder (default)"),
            title=_TEXT,
            labels=_texts(),
            expect=_texts("files the job must write"),
            validate=_is("string", "command that must succeed at the end, if the user allows it"),
            worktree=_is("boolean", "work on a new git branch, apart from other jobs"),
            base=_is("string", "commit, branch or job to begin with"),
            after=_texts("jobs that must complete first"),
            to=_is("string", "live agent that gets it"),
            headless=_is("boolean", "without a screen"),
            timeout_sec=_is("integer", "default: 3600"),
            retries=_is("integer"),
            budget_usd=_is("number", "ask the user beyond this cost"),
            idempotency_key=_is("string", "the same key and arguments return the same job"),
        ),
        _object("job_id status next", job_id=_TEXT, status=_TEXT, notes=_texts("may need the user"), next=_TEXT),
        destroys=True,
        reaches_out=True,
    ),
    _tool(
        "wait",
        "Wait until a job ends, asks something or is stuck, at most 45 s. While done is false, call again with cursor: "
        "nothing is missed.",
        _object(
            "job_ids",
            job_ids=_texts(minItems=1, maxItems=MOST_JOBS),
            until=_is("string", "any end (default) or all", enum=["any", "all"]),
            cursor=_is("string", "from the last call"),
            timeout_sec=_is("number", minimum=0, maximum=LONGEST_WAIT_SEC),
        ),
        _object("done jobs cursor next", done=_FLAG, jobs=_JOBS, cursor=_TEXT, next=_TEXT),
        reads=True,
    ),
    _tool(
        "list",
        "List the jobs of this folder, the newest first.",
        _object(
            "",
            status=_is("string", "pending, running, completed, error, cancelled"),
            agent=_TEXT,
            label=_TEXT,
            limit=_is("integer", minimum=1, maximum=MOST_LISTED),
            cursor=_TEXT,
        ),
        _object("jobs", jobs=_JOBS, cursor=_TEXT),
        reads=True,
    ),
    _tool(
        "result",
        "Get what an ended job left: the agent's last message (of agent shell, its output), files, branch, cost.",
        _object(
            "job_id",
            job_id=_JOB_ID,
            output=_is("boolean", "what it printed, also while it runs"),
            max_chars=_is("integer", minimum=LEAST_CHARS, maximum=MOST_CHARS),
        ),
        _object(
            "job_id status text cut", job_id=_TEXT, status=_TEXT, ok=_FLAG, text=_TEXT,
            cut=_FLAG, reason=_TEXT, validation=_TEXT, branch=_TEXT, commits=_texts(),
            cost_usd=_is("number"),
        ),
        reads=True,
    ),
    _tool(
        "message",
        "Type a text to the agent of a running job, or continue the conversation of an ended one as a new job.",
        _object("job_id text", job_id=_JOB_ID, text=_TEXT),
        _object("job_id done", job_id=_TEXT, done=_TEXT),
        destroys=True,
        reaches_out=True,
    ),
    _tool(
        "cancel",
        "Cancel a job and stop its agent. Its files stay.",
        _object("job_id", job_id=_JOB_ID, reason=_TEXT),
        _object("job_id status", job_id=_TEXT, status=_TEXT),
        destroys=True,
        repeats=True,
    ),
    _tool(
        "requests",
        "Show what agents ask: permissions, plans, questions, budgets. text is the exact call.",
        _object("", id=_is("string", "of a request or job: show all of it")),
        _object(
            "requests",
            requests=_is("array", items=_object(
                "request_id job_id kind text cut exact", request_id=_TEXT, job_id=_TEXT, kind=_TEXT, text=_TEXT,
                cut=_FLAG, exact=_FLAG,
            )),
            at_screens=_texts(),
        ),
        reads=True,
    ),
    _tool(
        "answer",
        "Answer a request as the user wants it. In a session it is refused, unless the user's rules name your agent; "
        "always for your own jobs.",
        _object(
            "request_id decision",
            request_id=_TEXT,
            decision=_is("string", enum=["allow", "deny"]),
            choices=_texts("for a question: a number or text; for several 1=CHOICE, 2=CHOICE"),
            own_words=_is("boolean", "choices is free text"),
            for_job=_is("boolean", "equal calls, too"),
            inexact=_is("boolean", "although not exact"),
            reason=_TEXT,
        ),
        _object("request_id used outcome", request_id=_TEXT, used=_TEXT, outcome=_TEXT),
        destroys=True,
    ),
    _tool(
        "agents",
        "Show which agents can take work, and live agents (for to).",
        _object(""),
        _object(
            "agents live",
            agents=_is("array", items=_object("name installed", name=_TEXT, installed=_FLAG, default=_FLAG)),
            live=_is("array", items=_object("name", name=_TEXT)),
        ),
        reads=True,
    ),
]  # fmt: skip
NAMES = [tool["name"] for tool in TOOLS]


def check_arguments(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call without those that are null; InvalidValue if they do not fit the tool."""
    schema = next(tool["inputSchema"] for tool in TOOLS if tool["name"] == name)
    properties, given = schema["properties"], {key: value for key, value in given.items() if value is not None}
    for key, value in given.items():
        if key not in properties:  # guard: mcp-unknown-argument
            known = f"it takes {', '.join(properties)}" if properties else "it takes none"
            raise InvalidValue(key[:40], f"is not an argument of {name}; {known}")
        _check(key, value, properties[key])
    for key in schema.get("required", ()):
        if key not in given:
            raise InvalidValue(key, f"is missing in the arguments of {name}")
    return given


def _check(key: str, value: Any, schema: dict[str, Any]) -> None:
    kind = schema["type"]
    if kind == "array":
        if not isinstance(value, list):
            raise InvalidValue(key, "must be a list")
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10_000):
            raise InvalidValue(
                key, f"must have {schema.get('minItems', 0)} to {schema.get('maxItems', 10_000)} entries"
            )
        for each in value:
            _check(key, each, schema["items"])
        return
    types: dict[str, Any] = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise InvalidValue(key, f"must be {_KIND[kind]}")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidValue(key, f"must be one of {', '.join(schema['enum'])}")
    if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise InvalidValue(key, f"must be from {schema['minimum']} to {schema['maximum']}")
