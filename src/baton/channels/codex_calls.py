"""Read the tool calls and the questions of Codex, and write the answers."""

from __future__ import annotations

from baton.channels.choices import objects, read_questions
from baton.core.clock import SECOND_NS
from baton.core.fields import one_line
from baton.core.request import RequestKind
from baton.core.signal import ALLOW, DENY, Asked, Limited, Usage
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.core.request import Answer

COMMAND = "item/commandExecution/requestApproval"
FILES = "item/fileChange/requestApproval"
PERMISSIONS = "item/permissions/requestApproval"
INPUT = "item/tool/requestUserInput"
FORM = "mcpServer/elicitation/request"
ASKING = (COMMAND, FILES, PERMISSIONS, INPUT, FORM)
# Kinds of COMMAND: a tool call; text for a running terminal; a command about which a person must decide each time.
PLAIN, TYPED, HUMAN = "command", "writeStdin", "humanCommand"

# The model may choose the shell: one of another folder is a program of its own, and belongs to the command.
_SHELLS = frozenset(folder + name for folder in ("", "/bin/", "/usr/bin/") for name in ("bash", "sh", "zsh"))
# What the types of tool calls are called here.
_TOOLS = {
    "commandExecution": "shell",
    "fileChange": "edit",
    "webSearch": "search",
    "imageView": "image",
    "collabAgentToolCall": "subagent",
}
# What counts, of a call of these types.
_ARGUMENTS = ("query", "path", "tool", "server", "arguments", "prompt")


def usage(message_id: str, used: Mapping[str, Any], model: str) -> Usage:
    """Return what one answer of the model used, as Codex counts it: cached tokens are part of the input."""
    return Usage(
        message_id=message_id,
        input_tokens=int(used["inputTokens"]),
        cached_tokens=int(used.get("cachedInputTokens") or 0),
        cache_write_tokens=int(used.get("cacheWriteInputTokens") or 0),
        output_tokens=int(used["outputTokens"]),
        model=model,
    )


class Question(Value):
    """A question that is open. `answer` is ours, once it is written. `resolved_ns` is when Codex closed it: what was
    decided may follow. `again_ns` is until when Codex may ask it again, after a new connection."""

    key: str
    request_id: Any
    method: str
    params: Mapping[str, Any]
    answer: str | None = None
    response: Mapping[str, Any] | None = None
    resolved_ns: int | None = None
    again_ns: int | None = None

    @property
    def item_id(self) -> str | None:
        found = self.params.get("itemId")
        return found if isinstance(found, str) else None

    @property
    def kind(self) -> str:
        """Return the kind of a question about a command; releases before 0.166 name none."""
        return str(self.params.get("kind") or PLAIN) if self.method == COMMAND else ""

    @property
    def is_typed(self) -> bool:
        """Return whether it is about text for a program that runs: its item is the tool call that began the program."""
        return self.kind == TYPED

    @property
    def is_of_item(self) -> bool:
        """Return whether the tool call that waits says what was decided."""
        return self.method == FILES or self.kind == PLAIN


def tool_name(item: Mapping[str, Any]) -> str | None:
    """Return the name of the tool of an item; None if the item is no tool call."""
    kind = item.get("type")
    if kind in ("mcpToolCall", "dynamicToolCall"):
        return ":".join(str(item[name]) for name in ("server", "namespace", "tool") if item.get(name))
    return _TOOLS.get(str(kind))


def tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool call."""
    if item.get("type") == "commandExecution":
        return _command(item)
    if item.get("type") == "fileChange":
        return _changes(item)
    return {name: item[name] for name in _ARGUMENTS if item.get(name) is not None}


def _command(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command as the model wrote it: Codex runs each by a shell, and shows that, too."""
    line = about["command"]
    words = _words(line)
    if len(words) == 3 and words[0] in _SHELLS and words[1] in ("-c", "-lc"):  # guard: codex-shell
        line = words[2]
    call = {"command": line, "cwd": about.get("cwd")}
    return {name: value for name, value in call.items() if value is not None}


def _words(line: str) -> list[str]:
    """Return the words of a command; none if its quotes are not closed."""
    from shlex import split

    try:
        return split(line)
    except ValueError:
        return []


def _typed_text(params: Mapping[str, Any], item: Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """Return what is to be typed into which terminal, and whether that is known exactly. `item` began the terminal."""
    line = str(params.get("command") or "")
    words = _words(line)
    is_exact = len(words) == 4 and words[:2] == ["write_stdin", "--session-id"]
    call = {"typed": words[3], "terminal": words[2]} if is_exact else {"typed": line}
    runs = None if item is None or item.get("type") != "commandExecution" else command_line(item)
    call |= {name: str(value) for name, value in (("runs", runs), ("launched in", params.get("cwd"))) if value}
    return call, is_exact


def types(question: Question, text: str) -> bool:
    """Return whether this is the text that the question is about, as far as that is known."""
    call, is_exact = _typed_text(question.params, None)
    return not is_exact or call["typed"] == text


def _checkpoint(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command about which a person must decide each time: the id of the question belongs to the call, so that
    no answer covers another one."""
    line = params.get("command")
    command = _command(params)["command"] if isinstance(line, str) else None
    named = {"checkpoint": command or params.get("reason"), "reason": params.get("reason"), "cwd": params.get("cwd")}
    named["approval"] = params.get("approvalId") or params.get("itemId")
    return {name: value for name, value in named.items() if value is not None}


def _changes(item: Mapping[str, Any]) -> dict[str, Any]:
    changes = item["changes"]
    moved = [each["kind"].get("move_path") for each in changes if isinstance(each.get("kind"), dict)]
    return {"files": [*(each["path"] for each in changes), *filter(None, moved)], "changes": changes}


def read_question(question: Question, item: Mapping[str, Any] | None, agent_ref: str | None) -> Asked:
    """Return what is asked. `item` is the tool call that waits, if it is known."""
    method, params = question.method, question.params
    tool_id = question.item_id if question.is_of_item or question.method != COMMAND else None
    same: dict[str, Any] = {"key": question.key, "tool_id": tool_id, "agent_ref": agent_ref}
    if method == COMMAND:
        tool, call, is_exact = _read_command(question, item)
        return Asked(kind=RequestKind.TOOL, tool=tool, call=call, exact=is_exact, **same)
    if method == FILES:
        root = {"grantRoot": params["grantRoot"]} if params.get("grantRoot") else {}
        call = _changes(item) if item is not None else {}
        return Asked(kind=RequestKind.TOOL, tool="edit", call=call | root, exact=item is not None, **same)
    if method == PERMISSIONS:
        call = {name: params.get(name) for name in ("permissions", "cwd", "reason")}
        return Asked(kind=RequestKind.TOOL, tool="permissions", call=call, **same)
    if method == INPUT:
        options = read_questions(params)
        if not options:
            raise ValueError("it asks nothing")
        return Asked(
            kind=RequestKind.QUESTION, tool="question", call={"questions": list(options)}, options=options, **same
        )
    call = {name: params.get(name) for name in ("serverName", "message", "requestedSchema", "url") if params.get(name)}
    kind = RequestKind.QUESTION if _has_fields(params) else RequestKind.TOOL
    return Asked(kind=kind, tool=f"mcp:{params.get('serverName')}", call=call, **same)


def _read_command(question: Question, item: Mapping[str, Any] | None) -> tuple[str, dict[str, Any], bool]:
    """Return the tool and the call that a question about a command shows, and whether the call is exact."""
    params = question.params
    if question.is_typed:  # guard: codex-typed-text
        return "typed text", *_typed_text(params, item)
    if question.kind == HUMAN:
        return "human command", _checkpoint(params), True
    if question.kind != PLAIN:
        known = {name: params[name] for name in ("kind", "reason", "cwd") if params.get(name) is not None}
        return one_line(question.kind, 40), known | {"asked": params.get("command")}, False
    # What the command gets beside the sandbox belongs to the call.
    more = {name: params[name] for name in ("networkApprovalContext", "additionalPermissions") if params.get(name)}
    if not isinstance(params.get("command"), str):
        return "shell", more, bool(more)
    return "shell", _command(params) | more, True


def is_secret(question: Question) -> bool:
    """Return whether the answer is a secret, which is kept nowhere."""
    asked = question.params.get("questions")
    return isinstance(asked, list) and any(isinstance(each, dict) and each.get("isSecret") for each in asked)


def _has_fields(params: Mapping[str, Any]) -> bool:
    """Return whether a form has to be filled in, or a page visited: more than to say yes."""
    schema = params.get("requestedSchema")
    return not isinstance(schema, dict) or bool(schema.get("properties"))


def response_to(question: Question, answer: Answer) -> dict[str, Any] | None:
    """Return the response that carries this answer; None if Codex offers none of this direction."""
    return _allowing(question, answer) if answer.answer == ALLOW else refusal(question)


def _allowing(question: Question, answer: Answer) -> dict[str, Any] | None:
    method, params = question.method, question.params
    if method in (COMMAND, FILES):
        offered = params.get("availableDecisions")
        is_offered = not isinstance(offered, list) or "accept" in offered
        return {"decision": "accept"} if is_offered else None
    if method == PERMISSIONS:
        wanted = params.get("permissions")
        return None if wanted is None else {"permissions": wanted, "scope": "turn"}
    if method == INPUT:
        ids = {str(each.get("question")): each.get("id") for each in objects(params.get("questions"))}
        given = {ids.get(question): text for question, text in answer.choices.items()}
        return None if None in given else {"answers": {name: {"answers": [text]} for name, text in given.items()}}
    return None if _has_fields(params) else {"action": "accept", "content": {}}


def refusal(question: Question) -> dict[str, Any]:
    """Return the response that refuses."""
    if question.method in (COMMAND, FILES):
        return {"decision": "decline"}
    if question.method == PERMISSIONS:
        return {"permissions": {}}
    return {"answers": {}} if question.method == INPUT else {"action": "decline"}


def decision_of(item: Mapping[str, Any]) -> str:
    """Return what was decided about a tool call that is over."""
    return DENY if item.get("status") == "declined" else ALLOW


def error_text(error: object, otherwise: str = "") -> str:
    """Return what Codex says about an error, with the status of the model service; never nothing."""
    otherwise = otherwise or "an error"
    if not isinstance(error, dict):
        return str(error or otherwise)
    text = str(error.get("additionalDetails") or error.get("message") or otherwise)
    about = error.get("codexErrorInfo")
    details = next(iter(about.values()), None) if isinstance(about, dict) else None
    status = details.get("httpStatusCode") if isinstance(details, dict) else None
    return text if status is None or str(status) in text else f"{status} {text}"


def command_line(item: Mapping[str, Any]) -> str:
    """Return the command of a tool call."""
    return str(tool_call(item).get("command") or "")


def limit_of(error: object, known: Mapping[str, Any]) -> list[Limited]:
    """Return the usage limit that an error is about, if it is one, with the reset that Codex named among the `known`
    limits of the account."""
    if not isinstance(error, dict) or error.get("codexErrorInfo") != "usageLimitExceeded":
        return []
    windows = [known.get(name) for name in ("primary", "secondary")]
    full = [each for each in windows if isinstance(each, dict) and (each.get("usedPercent") or 0) >= 100]
    resets = [each["resetsAt"] for each in full if isinstance(each.get("resetsAt"), int | float)]
    return [Limited(until_ns=int(max(resets) * SECOND_NS) if resets else None, why=error_text(error))]
