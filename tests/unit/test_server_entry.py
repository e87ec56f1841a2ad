"""The entry of the MCP server in the text of an agent's settings: added and removed, and every other byte stays."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.cli.server_entry import add_to_json, add_to_toml, remove_from_json, remove_from_toml
from baton.config import KNOWN
from baton.core.errors import BatonError

ENTRY = {"command": "baton", "args": ["mcp"]}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"a":1}\n',
        '{\n  "a": [1, 2]\n}\n',
        '{\n\t"mcpServers": {\n\t\t"x": {"command": "y"}\n\t},\n\t"z": 1.50\n}',
        '{"mcpServers":{"x":{}}}',
        '{\r\n    "mcpServers": {\r\n        "x": {}\r\n    }\r\n}\r\n',
        '\n\n {"a": "\\ud83d\\ude00 \\u0000 } ,{", "b": {"mcpServers": {}} }  \n',
        '{"n": 1e400, "m": -0.0, "mcpServers": {"x": {"env": {}}}}',
    ],
)
def test_json_is_the_same_byte_for_byte_after_both(text):
    added = add_to_json(text)
    assert json.loads(added.text)["mcpServers"]["baton"] == ENTRY
    assert "baton" in added.part
    assert add_to_json(added.text) == (added.text, "", False)
    assert remove_from_json(added.text).text == text
    assert remove_from_json(text).text == text


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_OTHERS = st.dictionaries(st.text().filter(lambda name: name != "mcpServers"), _VALUES, min_size=1)
_SERVERS = st.none() | st.dictionaries(st.text().filter(lambda name: name != "baton"), _VALUES, min_size=1)


@given(_OTHERS, _SERVERS, st.sampled_from([None, 0, 1, 2, "\t"]), st.booleans())
@settings(max_examples=50, deadline=None)
def test_any_json_is_the_same_after_both(others, servers, indent, ascii_only):
    value = others if servers is None else {**others, "mcpServers": servers}
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    added = add_to_json(text)
    assert json.loads(added.text) == {**others, "mcpServers": {**(servers or {}), "baton": ENTRY}}
    assert remove_from_json(added.text).text == text


def test_a_new_file_goes_again():
    added = add_to_json(None)
    assert added.text == '{\n  "mcpServers": {\n    "baton": {"command": "baton", "args": ["mcp"]}\n  }\n}\n'
    assert remove_from_json(added.text).text is None
    block = add_to_toml(None)
    assert remove_from_toml(block.text).text is None
    assert add_to_toml("\n") == block


def test_what_stands_behind_the_entry_stays():
    text = '{"mcpServers": {"baton": {"command": "baton", "args": ["mcp"]}, "x": {}}, "y": 1}'
    assert remove_from_json(text).text == '{"mcpServers": {"x": {}}, "y": 1}'
    only = '{"mcpServers": {"baton": {"command": "baton", "args": ["mcp"]}}, "y": 1}'
    assert remove_from_json(only).text == '{"y": 1}'


def test_what_claude_mcp_add_writes_is_the_same_server():
    text = json.dumps({"mcpServers": {"baton": {"type": "stdio", **ENTRY, "env": {}}}}, indent=2)
    assert add_to_json(text) == (text, "", False)
    assert remove_from_json(text).text is None


@pytest.mark.parametrize(
    "server", [{"command": "other"}, {**ENTRY, "env": {"A": "b"}}, {**ENTRY, "args": ["mcp", "x"]}, "baton", [], None]
)
def test_another_server_of_that_name_is_left_alone(server):
    text = json.dumps({"mcpServers": {"baton": server}})
    assert add_to_json(text) == remove_from_json(text) == (text, "", True)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "nul", '{"a": 1,}', '{"a": NaN}', '{"a": 1, "a": 2}', '{"mcpServers": []}', "{} // comment",
     "\ufeff{}", '{"a": ' + "[" * 100_000, '{"mcpServers": null}', "{'a': 1}"],
)  # fmt: skip
def test_json_that_is_not_strict_is_refused(text):
    for change in (add_to_json, remove_from_json):
        with pytest.raises(BatonError, match="is not JSON that baton can change"):
            change(text)


@pytest.mark.parametrize(
    "text",
    ["model = 'x'\n", "# a comment\n\n[a]\nb = 2\n", "[mcp_servers.other]\ncommand = 'x'\n", "a = nan\nb = 1e5\r\n",
     "x = 1979-05-27T07:32:00Z\r\n[[y]]\r\nz = '''\r\n# baton mcp: end\r\n'''\r\n"],
)  # fmt: skip
def test_toml_is_the_same_byte_for_byte_after_both(text):
    added = add_to_toml(text)
    assert added.text.startswith(text)
    server = tomllib.loads(added.text)["mcp_servers"]["baton"]
    assert (server["command"], server["args"]) == ("baton", ["mcp"])
    assert add_to_toml(added.text) == (added.text, "", False)
    assert remove_from_toml(added.text).text == text
    assert remove_from_toml(text).text == text


def test_codex_passes_on_every_variable_that_baton_reads():
    server = tomllib.loads(add_to_toml(None).text)["mcp_servers"]["baton"]
    assert set(server) == {"command", "args", "env_vars"}
    settings_of_baton = {variable for variable, _, _ in KNOWN.values() if variable}
    assert settings_of_baton | {"BATON_JOB_ID", "BATON_SESSION_ID", "XDG_STATE_HOME"} <= set(server["env_vars"])


def test_a_block_of_an_older_version_is_brought_up_to_date(monkeypatch):
    before, after = "a = 1\n", "\n[b]\nc = 2\n"
    with monkeypatch.context() as older:
        older.setattr("baton.cli.server_entry._TABLE", '[mcp_servers.baton]\ncommand = "baton"\n')
        old = add_to_toml(before).text
    new = add_to_toml(old + after)
    assert new.text == add_to_toml(before).text + after
    assert remove_from_toml(old + after).text == before + after


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('args = ["mcp"]', 'args = ["mcp", "x"]'),
        lambda text: text.replace("# baton mcp: begin", "# begin"),
        lambda text: text.replace('command = "baton"', "").replace("[mcp_servers.baton]", "[x]"),
    ],
)
def test_a_table_that_the_user_changed_is_left_alone(change):
    text = change(add_to_toml("a = 1\n").text)
    assert add_to_toml(text) == remove_from_toml(text) == (text, "", True)


def test_a_key_that_would_move_to_another_table_is_not_moved():
    text = add_to_toml("[features]\nx = 1\n").text + "enabled = false\n"
    with pytest.raises(BatonError, match="without a change of its other content"):
        remove_from_toml(text)


@pytest.mark.parametrize(
    "text",
    ["a = ", "a = 1\na = 2", "mcp_servers = {}", "mcp_servers = 1", "[[mcp_servers]]\n", "\ufeffa = 1", "a = '\x00'"],
)
def test_toml_that_cannot_take_the_table_is_refused(text):
    with pytest.raises(BatonError, match="is not TOML that baton can change"):
        add_to_toml(text)
