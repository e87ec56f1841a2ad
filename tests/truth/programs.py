"""What differs between the agent programs for a person at their screens, and what none of their signals tells."""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """An agent program. Texts are patterns; keys are those of tmux."""

    agent: str
    process: str  # in the command line of the process that is the agent
    tool: str  # what baton calls its shell tool
    dialog: str  # asks for a permission
    yes: tuple[str, ...]
    no: tuple[str, ...] | None  # None: it has no such answer that ends the turn
    interrupt: tuple[str, ...]
    prompt: str  # waits for input
    trust: str = ""  # asks whether the folder is trusted
    busy: str = ""  # works on a turn, where its screen comes later than its work
    begins_sec: float = 4.0  # that it takes itself, from the beginning of a turn to its first request to the model
    asks_sec: float = 0.0  # that it takes itself, from the model's answer to its question or its tool
    hides: bool = False  # shows a question only to a person who looks
    at_once: int = 2  # rows that run at the same time
    trusts: tuple[str, ...] = ("Enter",)  # says that the folder is trusted


PROGRAMS = {
    each.agent: each
    for each in (
        Program("claude-code", "claude", "Bash", "Do you want to", ("1",), ("3",), ("Escape",), "\u276f", "trust", at_once=4,
                trusts=("Down", "Enter")),
        Program("codex", "app-server", "exec|shell|command", "Would you like to run", ("1",), ("3",), ("Escape",), "\u203a",
                "rust", "esc to interrupt"),
        Program("opencode", "serve", "bash|execute", "Permission required", ("Enter",), None, ("Escape", "Escape"), "Ask anything|OpenCode",
                busy="esc interrupt", begins_sec=10.0),  # it loads its plugins in its first turn
        Program("copilot", "copilot", "bash|shell|execute", "Do you want to run", ("1",), None, ("Escape", "Escape"), "\u276f",
                "Confirm folder trust", hides=True),
        Program("qwen", "qwen", "[Ss]hell|Bash|command|execute", "Allow execution of", ("1",), ("4",), ("Escape",), "Type your message",
                asks_sec=4.0, at_once=1),  # 0.9 GB each
        Program("gemini", "gemini", "[Ss]hell|command|execute", "Allow execution of", ("1",), ("3",), ("Escape",), "Type your message",
                "Do you trust"),
    )
}  # fmt: skip

ALL = tuple(PROGRAMS)


class Untold(NamedTuple):
    """A cell of the table for which the program gives no signal. `states` are what baton may say instead, by what is so;
    `fact` is what shows that there is no signal."""

    states: dict[str, tuple[str, ...]]
    fact: str


_SILENT = "it sends nothing by ACP while it tries a failed request again: an update comes only with the answer"
_SILENT_HTTP = "its server sends nothing while it repeats a request that was answered 5xx (`request_max_retries`)"
_SILENT_FILE = "neither its hooks nor its output file say anything while it tries a failed request again"
_SILENT_HOOKS = "it runs no hook and writes no line while it tries a failed request again, for minutes"
_SCREEN_ALONE = "it says so on its screen alone: it takes no turn, runs no hook and writes no log"
_BUSY = "it says that it is busy while a menu is open in the middle of a turn, and the turn goes on beneath it"
UNTOLD: dict[tuple[str, str], Untold] = {
    ("claude-code", "T42-terminal"): Untold({"waiting": ("working",)}, _BUSY),
    ("copilot", "T52-logged-out-terminal"): Untold({"error": ("starting",)}, _SCREEN_ALONE),
    ("codex", "T17-terminal"): Untold({"retrying": ("working",)}, _SILENT_HTTP),
    ("codex", "T17-headless"): Untold({"retrying": ("working",)}, _SILENT_HTTP),
    ("qwen", "T17-terminal"): Untold({"retrying": ("working",)}, _SILENT_FILE),
    ("qwen", "T17-headless"): Untold({"retrying": ("working",)}, _SILENT),
    ("qwen", "T18-429-terminal"): Untold({"retrying": ("working",)}, _SILENT_FILE),
    ("qwen", "T18-429-headless"): Untold({"retrying": ("working", "stalled")}, _SILENT),
    ("gemini", "T17-headless"): Untold({"retrying": ("working",)}, _SILENT),
    ("gemini", "T17-terminal"): Untold({"retrying": ("working",)}, _SILENT_HOOKS),
    ("gemini", "T18-429-terminal"): Untold({"retrying": ("working",)}, _SILENT_HOOKS),
    ("gemini", "T18-429-headless"): Untold({"retrying": ("working", "stalled")}, _SILENT),
    ("gemini", "T18-dead-terminal"): Untold({"retrying": ("working",)}, _SILENT_HOOKS),
    ("gemini", "T18-dead-headless"): Untold({"retrying": ("working", "stalled")}, _SILENT),
}
