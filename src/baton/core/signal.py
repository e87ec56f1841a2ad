"""Define the signals: what an agent, or its process, says about its work. Every channel speaks this vocabulary alone.

A signal is a claim of its source at a time. `baton.core.fold` folds signals into facts, and only facts decide:
`baton.core.activity`. Times are nanoseconds of the runner's monotonic clock, except where a field says otherwise. Ids
are those of the agent: they compare within one session.
"""

from __future__ import annotations

from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# How a turn ends.
WELL, FAILED, INTERRUPTED = "well", "failed", "interrupted"
# What began a turn: a prompt that a person or baton sent; background work that has ended; the end of a usage limit,
# after which the agent prompts itself.
PROMPT, BACKGROUND, CARRIED_ON = "prompt", "background", "carried-on"
# How a request was decided.
ALLOW, DENY = "allow", "deny"


class TurnStarted(Value):
    """The agent began to work on a prompt. `origin` is PROMPT, BACKGROUND or CARRIED_ON. `prompt` is the whole text:
    a turn is of a job if it contains the mark of the job. A turn of BACKGROUND is of the job whose turn started that
    work, one of CARRIED_ON of the job whose turn was the last."""

    turn: str
    origin: str = PROMPT
    prompt: str = ""


class TurnEnded(Value):
    """The agent ended its turn. `how` is WELL, FAILED or INTERRUPTED; `why` is in the program's own words. `message` is
    what it said last. `held`: the agent waits until the runner calls `Channel.end_turn`. The `turn` "" is the one that
    is open. `refused_tools` are tools that it was not allowed to use in that turn."""

    turn: str = ""
    how: str = WELL
    why: str = ""
    message: str | None = None
    held: bool = False
    refused_tools: tuple[str, ...] = ()


class ToolStarted(Value):
    """The agent called a tool. `call` is the exact arguments. `agent_ref` is the subagent that called it, if any."""

    tool_id: str
    name: str
    call: Any
    turn: str = ""
    agent_ref: str | None = None


class ToolEnded(Value):
    """A tool call is over: it returned, failed, or was refused. `killed`: a signal of the system ended its program."""

    tool_id: str
    ok: bool = True
    why: str = ""
    killed: bool = False


class Consent(Value):
    """What the agent says about its question. It binds every surface: `person_only`: a person must answer, no allow
    rule does. `default_no`: one key is not enough to allow it. `once`: an answer never covers later calls. `rule` is
    the rule of the agent's own settings that asked, `why` the agent's reason to ask."""

    person_only: bool = False
    default_no: bool = False
    once: bool = False
    rule: str = ""
    why: str = ""


class Asked(Value):
    """The agent waits for a decision. `key` names the question within the session; `Channel.answer` takes it.

    `kind` is one of `baton.core.request.RequestKind`. `tool_id` is the tool call that waits, where the agent says it.
    `options` are the questions with their choices (`baton.core.request`). `exact` is False for a call that is known by
    a title only, or in part: `why_inexact` says why. `screen_only`: the agent takes the answer at its own screen
    alone."""

    key: str
    kind: str
    tool: str
    call: Any
    tool_id: str | None = None
    agent_ref: str | None = None
    options: tuple[Mapping[str, Any], ...] = ()
    exact: bool = True
    screen_only: bool = False
    why_inexact: str = ""
    consent: Consent = Consent()


class Settled(Value):
    """A question was decided on the agent's own side, or what became of our answer is known. `decision` is ALLOW or
    DENY; None: it is no longer asked. `by` says what decided, as the agent names it: user_temporary, user_reject,
    config, hook."""

    key: str
    decision: str | None
    by: str = ""


class BackgroundTask(Value):
    """Work that goes on after the turn that started it. `kind` is shell or subagent."""

    task_id: str
    kind: str
    what: str


class BackgroundWork(Value):
    """The list of background work as it is now."""

    tasks: tuple[BackgroundTask, ...]


class Retrying(Value):
    """The model service failed, and the agent tries again: try `number` of `most` (0: unknown). `assumed`: the agent
    does not say so, it is only silent."""

    number: int
    most: int
    why: str
    assumed: bool = False


class Limited(Value):
    """A usage limit is reached. `until_ns` is wall-clock time since 1970; None: unknown."""

    until_ns: int | None
    why: str


class Usage(Value):
    """What a message cost. Each `message_id` counts once. None: unknown. `input_tokens` are all that the model read: of
    these, `cached_tokens` came from a cache and `cache_write_tokens` went into one. `covers_all`: the cost is that of
    all messages so far that came without one. `of_turn`: False for a message beside the work, such as a title for the
    conversation: it does not prove that the model answers the turn."""

    message_id: str
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    model: str = ""
    covers_all: bool = False
    of_turn: bool = True


class Paused(Value):
    """The runner has interrupted the work until the user decides. `why` says about what."""

    why: str


class Resumed(Value):
    """The user has decided that the work goes on. `by` names the surface."""

    by: str = ""


class Conversation(Value):
    """The id of the agent's conversation. `ended`: why that conversation is over, such as "clear"; "other" means that
    the program was ended from outside."""

    conversation_id: str
    ended: str | None = None


class Stated(Value):
    """What the agent says about itself: its release, its permission mode, its model; "" where it does not say it.
    `assumed`: its program says so when it is asked for its version, not the one that runs."""

    release: str = ""
    mode: str = ""
    model: str = ""
    assumed: bool = False


class Blocked(Value):
    """A dialog before the work: trust, login, update. `what_to_do` is for the user."""

    by: str
    what_to_do: str


class Unblocked(Value):
    """No dialog is open before the work, or none any more."""


class Attention(Value):
    """The agent calls for a person at its own screen. `what` is in its own words; None: it does so no longer. `stands`:
    the agent says itself when that is over; otherwise the next work of the turn ends it."""

    what: str | None
    stands: bool = False


class Noted(Value):
    """What the agent says about itself, which no rule reads: its permission mode, its own status. The last value of
    each `fact` is kept."""

    fact: str
    value: str


class Said(Value):
    """The agent said something, or did something that is neither a tool nor a turn. `is_work`: a sign of work, not only
    of life."""

    text: str
    is_work: bool = True


class Gone(Value):
    """The agent's program has ended. `why` says how; `ok`: with exit code 0."""

    why: str
    ok: bool


Signal = (
    TurnStarted | TurnEnded | ToolStarted | ToolEnded | Asked | Settled | BackgroundWork | Retrying | Limited | Usage
    | Paused | Resumed | Conversation | Stated | Blocked | Unblocked | Attention | Noted | Said | Gone
)  # fmt: skip


def stated(release: object = "", mode: object = "", model: object = "") -> Iterator[Stated]:
    """Yield what an agent says about itself, if it says anything. The values come from another program."""
    given = {"release": release, "mode": mode, "model": model}
    found = {name: text for name, text in given.items() if isinstance(text, str)}
    if any(found.values()):
        yield Stated().replace(**found)


class Heard(Value):
    """A signal with where it came from (hook, telemetry, transcript, stream, process, pane) and when."""

    signal: Signal
    source: str
    at_ns: int
