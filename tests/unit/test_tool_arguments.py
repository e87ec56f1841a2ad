"""Which files a tool call names, in the words of each agent, and which calls name none."""

from __future__ import annotations

import json
import os

import pytest

from baton.core.rules import Rule, decide
from baton.core.tool_arguments import read_call

INSIDE = [Rule(decision="allow", path="src")]
SECRET = [Rule(decision="allow", path="."), Rule(decision="deny", path="secret")]


def decision(rules, tool, arguments, *, exact=True):
    call = read_call(
        "any", tool, arguments, exact=exact, workdir="/w", resolve=os.path.normpath, user_home="/u", reserved=()
    )
    found = decide(rules, call, now_ns=0)
    return None if found is None else found.decision


def patch(*lines):
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def codex_files(*changes):
    files = [each["path"] for each in changes]
    return {"files": files, "changes": [{"kind": {"type": "update"}, "diff": "@@\n-a\n+b", **each} for each in changes]}


# In the words of each agent: a tool, its arguments with one file, and, if it takes several, with a second one.
SHAPES = {
    "claude Write": ("Write", lambda path: {"file_path": path, "content": "x"}),
    "claude Edit": (
        "Edit",
        lambda path: {"file_path": path, "old_string": "a", "new_string": "b", "replace_all": False},
    ),
    "claude Read": ("Read", lambda path: {"file_path": path, "offset": 1, "limit": 2}),
    "claude NotebookEdit": (
        "NotebookEdit",
        lambda path: {"notebook_path": path, "new_source": "x", "cell_type": "code", "edit_mode": "insert"},
    ),
    "claude Grep": ("Grep", lambda path: {"pattern": "x", "path": path, "output_mode": "content", "-n": True}),
    "codex edit": ("edit", lambda path: codex_files({"path": path})),
    "codex move": ("edit", lambda path: codex_files({"path": "src/a", "kind": {"type": "update", "move_path": path}})),
    "codex-acp": ("edit", lambda path: {"changes": {path: {"type": "update", "unified_diff": "@@"}}}),
    "codex-acp move": (
        "edit",
        lambda path: {"changes": {"src/a": {"type": "update", "unified_diff": "@@", "move_path": path}}},
    ),
    "opencode write": ("edit", lambda path: {"filePath": path, "content": "x"}),
    "opencode edit": ("edit", lambda path: {"filePath": path, "oldString": "a", "newString": "b", "replaceAll": True}),
    "opencode multiedit": (
        "edit",
        lambda path: {"filePath": "src/a", "edits": [{"filePath": path, "oldString": "a", "newString": "b"}]},
    ),
    "opencode add": ("edit", lambda path: {"patchText": patch(f"*** Add File: {path}", "+x")}),
    "opencode update": ("edit", lambda path: {"patchText": patch(f"*** Update File: {path}", "@@", "-a", "+b")}),
    "opencode delete": ("edit", lambda path: {"patchText": patch("*** Add File: src/a", f"*** Delete File: {path}")}),
    "opencode move": ("edit", lambda path: {"patchText": patch("*** Update File: src/a", f"*** Move to: {path}")}),
    "opencode heredoc": (
        "edit",
        lambda path: {"patchText": f"cat <<'EOF'\n{patch(f'*** Add File: {path}', '+x')}\nEOF"},
    ),
    "opencode crlf": ("edit", lambda path: {"patchText": patch(f"*** Add File: {path}", "+x").replace("\n", "\r\n")}),
    "codex apply_patch": ("apply_patch", lambda path: {"input": patch(f"  *** Add File: {path}", "+x")}),
    "gemini write_file": ("write_file", lambda path: {"file_path": path, "content": "x"}),
    "gemini replace": (
        "replace",
        lambda path: {"file_path": path, "instruction": "i", "old_string": "a", "new_string": "b"},
    ),
    "gemini list": ("list_directory", lambda path: {"dir_path": path, "ignore": ["x"]}),
    "gemini absolute": ("read_file", lambda path: {"absolute_path": path, "start_line": 1, "end_line": 2}),
    "qwen lsp": ("lsp", lambda path: {"filePath": path, "line": 1, "character": 2}),
    "copilot create": ("create", lambda path: {"path": path, "file_text": "x"}),
    "copilot edit": ("edit", lambda path: {"path": path, "old_str": "a", "new_str": "b"}),
    "copilot view": ("view", lambda path: {"path": path, "view_range": [1, 2]}),
    "copilot acp": ("edit", lambda path: {"fileName": path, "diff": "@@", "intention": "i", "newFileContents": "x"}),
    "cursor": ("edit_file", lambda path: {"target_file": path, "instruction": "i", "contents": "x"}),
    "move": ("move", lambda path: {"source": "src/a", "destination": path}),
    "move away": ("move", lambda path: {"source": path, "destination": "src/a"}),
    "locations": ("edit", lambda path: {"locations": [{"path": "src/a", "line": 1}, {"path": path}], "content": "x"}),
    "files": ("edit", lambda path: {"files": [{"path": path, "content": "x"}]}),
    "diff": ("patch", lambda path: {"patch": f"--- a/src/a\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"}),
    "diff without prefix": ("patch", lambda path: {"patch": f"--- {path}\t2026\n+++ src/a\n@@ -1 +1 @@\n-a\n+b\n"}),
}
PREFIXED = {"diff"}  # `b/src` counts, too, for a tool that does not strip the folder


@pytest.mark.parametrize("shape", SHAPES)
def test_every_path_that_a_call_names_has_to_be_inside(shape):
    tool, build = SHAPES[shape]
    assert decision(INSIDE, tool, build("src/b")) == (None if shape in PREFIXED else "allow")
    for path in ("other/b", "/etc/passwd", "../b", "src/../../b", "src/.git/config", "file:///w/src/b", "~/b"):
        assert decision(INSIDE, tool, build(path)) is None, path
        assert decision([Rule(decision="allow", tool=tool)], tool, build(path)) is None, path


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_deny_rule_sees_every_path_that_a_call_names(shape, exact):
    tool, build = SHAPES[shape]
    for path in ("secret/b", "/w/secret", "src/../secret/b", "SECRET/b", "file:///w/secret/b", " secret/b"):
        assert decision(SECRET, tool, build(path), exact=exact) == "deny", path
    assert decision(SECRET, tool, build("src/b"), exact=exact) != "deny"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("edit", {"patchText": patch("*** Add File: src/a", "*** Put File - /etc/x")}),
        ("edit", {"patchText": patch("*** Add File: src/a\r*** Add File: ../../etc/x")}),
        ("edit", {"patchText": patch("*** Add File: src/a\r/../../../etc/x")}),
        ("edit", {"patchText": "no patch"}),
        ("edit", {"patchText": ["src/a"]}),
        ("edit", {"patchText": ""}),
        ("edit", {"patch": '--- a\n+++ "src/\\x2e\\x2e/a"\n'}),
        ("edit", codex_files({"path": "src/a"}) | {"grantRoot": "/w/src"}),
        ("edit", {"grantRoot": "/w/src"}),
        ("edit", {"changes": [3]}),
        ("edit", {"files": {"src/a": "x"}}),
        ("edit", {"path": 3}),
        ("edit", {"path": ["src/a", 3]}),
        ("edit", {"content": "x"}),
        ("edit", {"edits": [{"old_string": "a", "new_string": "b"}]}),
        ("edit", {"path": "src/a", "mode": "force"}),
        ("edit", {"path": "src/a", "paths_of_more": ["/etc/x"]}),
        ("edit", {"path": "src/a", "file_path_2": "/etc/x"}),
        ("edit", {"path": "src/a", "edits": [{"xpath": "/etc/x"}]}),
        ("edit", {"path": "src/a", "edits": [{"command": "rm x"}]}),
        ("edit", "src/a"),
        ("edit", [{"path": "src/a"}]),
        ("read_many_files", {"include": ["/etc/*"], "paths": ["src/a"]}),
        ("read_many_files", {"paths": ["src/*"]}),
        ("read_many_files", {"paths": ["src/a"], "include": ["*.py"]}),
        ("edit", {"path": "@src/a"}),
        ("glob", {"path": "src", "pattern": ".github/*"}),
        ("edit", {"patchText": patch("*** Add File: src/a\t/../../../etc/x")}),
        ("glob", {"path": "src", "pattern": "{x,/etc/*}"}),
        ("glob", {"path": "src", "pattern": "../*"}),
        ("glob", {"path": "src", "pattern": ["~/x"]}),
        ("fetch", {"url": "file:///etc/passwd"}),
        ("fetch", {"url": "FILE:///w/src/a"}),
        ("fetch", {"uri": "https://example.org"}),
        ("permissions", {"permissions": {"fileSystem": {"write": ["/w/src"]}}, "cwd": "/w/src", "reason": "x"}),
        ("Agent", {"prompt": "x", "mode": "bypassPermissions"}),
        ("search", {"query": {"file": "src/a"}}),
        ("search", {"query": [{"deep": {"er": 1}}]}),
        ("edit", {"path": "src/a", "content": {"path": "/etc/x"}}),
        ("mcp__x__y", {"target": "src/a"}),
        ("mcp__x__y", {"PATH": "src/a"}),
        ("mcp__x__y", {"path ": "src/a"}),
    ],
)
def test_a_call_with_an_argument_that_rules_do_not_know_is_asked(tool, arguments):
    assert (
        decision([*INSIDE, Rule(decision="allow", path="."), Rule(decision="allow", tool=tool)], tool, arguments)
        is None
    )


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("WebSearch", {"query": "x", "allowed_domains": ["a"], "blocked_domains": None}),
        ("WebFetch", {"url": "https://example.org/x", "prompt": "/etc/passwd"}),
        ("webfetch", {"url": "http://example.org", "format": "text", "timeout": 3}),
        ("TodoWrite", {"todos": [{"content": "x", "status": "pending", "activeForm": "x", "id": "1"}]}),
        ("Glob", {"pattern": "**/*.py"}),
        ("Grep", {"pattern": "def x", "-A": 3, "glob": "*.py", "type": "py", "head_limit": 3}),
        ("Task", {"description": "d", "prompt": "p", "subagent_type": "general"}),
        ("mcp:x", {"serverName": "x", "message": "m", "requestedSchema": {"type": "object", "properties": {}}}),
        ("mcp__x__y", {}),
    ],
)
def test_a_call_whose_arguments_are_all_known_to_be_harmless_is_allowed_by_its_tool(tool, arguments):
    assert decision([Rule(decision="allow", tool=tool)], tool, arguments) == "allow"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("mcp__x__y", {"target": "secret/a"}),
        ("mcp__x__y", {"deep": {"er": [{"thing": "/w/secret/a"}]}}),
        ("mcp__x__y", {"objects": {"secret/a": 1}}),
        ("edit", {"files": {"secret/a": "x"}}),
        ("edit", {"permission": "edit", "patterns": ["secret/a"], "filepath": "secret/a", "diff": "x"}),
        (
            "external_directory",
            {"permission": "external_directory", "patterns": ["x"], "input": {"filePath": "secret/a"}},
        ),
        ("edit", {"path": "src/a", "content": [{"type": "diff", "path": "secret/a", "oldText": "", "newText": "x"}]}),
        ("edit", {"path": "src/a", "diff": "--- a/src/a\n+++ b/secret/a\n"}),
        ("edit", {"path": "src/a", "paths": ["src/a", "secret/a"], "description": "Edit"}),
        ("edit", {"grantRoot": "/w/secret"}),
        ("permissions", {"permissions": {"fileSystem": {"write": ["/w/secret"]}}}),
        ("fetch", {"url": "file:///w/secret/a"}),
        ("glob", {"pattern": "secret/*"}),
        ("glob", {"pattern": "/w/x/../secret"}),
        ("glob", {"path": ".", "pattern": "secret/*"}),
        ("read_many_files", {"include": ["secret/*"]}),
        ("edit", patch("*** Add File: secret/a", "+x")),
        ("Write", json.dumps({"file_path": "secret/a", "content": "x" * 300_000})[: 256 * 1024]),
        ("shell", {"command": "ls", "cwd": "secret"}),
    ],
)
def test_a_deny_rule_sees_a_path_in_any_argument(tool, arguments):
    for exact in (True, False):
        assert decision(SECRET, tool, arguments, exact=exact) == "deny"


@pytest.mark.parametrize(
    ("tool", "include", "wanted"),
    [
        ("grep_search", "*.py", "allow"), ("grep", ["*.py", "*.js"], "allow"), ("grep_search", "src/a", "allow"),
        ("grep_search", "other/a", None), ("grep_search", "src/*", None), ("edit", "other", None), ("edit", "src/b", "allow"),
        ("read_many_files", ["other/a"], None), ("read_many_files", ["src/a"], "allow"), ("read_many_files", "*", None),
    ],
)  # fmt: skip
def test_what_is_included_is_a_file_unless_a_search_goes_through_a_folder(tool, include, wanted):
    assert decision(INSIDE, tool, {"path": "src", "include": include}) == wanted


def test_a_text_that_is_searched_for_is_no_path():
    assert decision([Rule(decision="deny", path="secret")], "Grep", {"pattern": "secret"}) is None
    assert decision([Rule(decision="deny", path="secret")], "Write", {"file_path": "a", "content": "secret"}) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "ls", "cmd": "rm x"},
        {"command": "ls", "script": ["rm", "x"]},
        {"command": 3, "cmd": "rm x"},
        {"permission": "external_directory", "input": {"command": "rm x"}},
        {"steps": [{"command": "rm x"}]},
        json.dumps({"command": "rm x; " + "y" * 300_000}),
    ],
)
def test_a_deny_rule_sees_every_command_of_a_call(arguments):
    assert decision([Rule(decision="deny", command=("rm",))], "Bash", arguments) == "deny"
    assert decision([Rule(decision="allow", command=("ls",))], "Bash", arguments) is None


@pytest.mark.parametrize("beside", ["run_in_background", "is_background", "description", "timeout"])
def test_what_every_agent_writes_beside_a_command_is_known(beside):
    allowed = [Rule(decision="allow", command=("git", "status"))]
    assert decision(allowed, "shell", {"command": "git status", beside: False, "workdir": "/w"}) == "allow"
    assert decision(allowed, "shell", {"command": "git status", beside: False, "workdir": "/x"}) is None


def test_a_call_that_is_nested_without_end_or_names_too_many_files_is_asked():
    deep = {"path": "src/a"}
    for _ in range(50):
        deep = {"edits": [deep]}
    assert decision(INSIDE, "edit", deep) is None
    assert decision(INSIDE, "edit", {"paths": ["src/a"] * 1001}) is None
    assert decision(INSIDE, "edit", {"paths": ["src/a"] * 1000}) == "allow"
