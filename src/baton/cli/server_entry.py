"""Add the entry of the MCP server `baton mcp` to the text of an agent's settings, and remove it; keep all other bytes.

Claude Code and Gemini read JSON, Codex reads TOML. Codex starts a server with a few variables of its environment only:
the entry names those of baton.
"""

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, NamedTuple

from baton.config import KNOWN
from baton.core.errors import BatonError
from baton.core.fields import no_duplicates, parse_json
from baton.core.hashing import sha256

_NAME = "baton"
_JSON_LINE = '"baton": {"command": "baton", "args": ["mcp"]}'
_SERVER = {"command": "baton", "args": ["mcp"]}
# `claude mcp add` writes these, too; they are the defaults.
_DEFAULTS: dict[str, Any] = {"type": "stdio", "env": {}}
_VARIABLES = sorted(
    {variable for variable, _, _ in KNOWN.values() if variable is not None}
    | {"BATON_ATTEMPT", "BATON_CONFIG", "BATON_HOME_ID", "BATON_JOB_ID", "BATON_SESSION_DIR", "BATON_SESSION_ID"}
    | {"TMUX_TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}
)
_ROWS = [", ".join(f'"{each}"' for each in _VARIABLES[start : start + 4]) for start in range(0, len(_VARIABLES), 4)]
_LIST = "".join(f"  {row},\n" for row in _ROWS)
_TABLE = f'[mcp_servers.{_NAME}]\ncommand = "baton"\nargs = ["mcp"]\nenv_vars = [\n{_LIST}]\n'
_BEGIN, _END = "# baton mcp: begin", "# baton mcp: end"
_BLOCK = re.compile(rf"(?:^\r?\n)?^{_BEGIN} ([0-9a-f]{{16}})\r?\n(.*?)^{_END}(?:\r?\n|\Z)", re.MULTILINE | re.DOTALL)
_SPACE = frozenset(" \t\r\n")


class Edit(NamedTuple):
    """A change of a file. `text` None: nothing remains of it. `part` is what is added or removed; "" if nothing is.
    `is_foreign`: the server of that name is not the one that baton adds, or was changed since."""

    text: str | None
    part: str = ""
    is_foreign: bool = False


class _Member(NamedTuple):
    """A member of a JSON object; `after` is the end of the bracket or comma before it."""

    name: str
    after: int
    start: int
    value: int
    end: int


def add_to_json(text: str | None) -> Edit:
    """Add the server to `mcpServers`; `text` None: the file does not exist."""
    if text is None:
        return Edit(_add_line("{\n}\n"), _JSON_LINE)
    servers = _json_servers(text)
    if _NAME in servers:
        return Edit(text, is_foreign=not _is_own(servers[_NAME]))
    return Edit(_check_meaning(text, _add_line(text), _parse_json, "mcpServers", added=_SERVER), _JSON_LINE)


def remove_from_json(text: str) -> Edit:
    """Remove the server, then `mcpServers` and the file if they hold nothing else."""
    servers = _json_servers(text)
    if not _is_own(servers.get(_NAME)):
        return Edit(text, is_foreign=_NAME in servers)
    start = _start(text)
    without = _remove_member(text, _value_of(text, start, "mcpServers"), _NAME)
    if not _members(without, _value_of(without, start, "mcpServers"))[0]:
        without = _remove_member(without, start, "mcpServers")
    _check_meaning(text, without, _parse_json, "mcpServers", added=None)
    return Edit(without if _members(without, start)[0] else None, _JSON_LINE)


def add_to_toml(text: str | None) -> Edit:
    """Append the table of the server in a marked block, or bring an older block up to date."""
    newline = "\r\n" if "\r\n" in (text or "") else "\n"
    block = f"{_BEGIN} {_hash(_TABLE)}\n{_TABLE}{_END}\n".replace("\n", newline)
    if text is None or not text.strip():
        return Edit(block, _TABLE)
    present = _parse_toml(text)
    found = _BLOCK.search(text)
    if found is None and _NAME not in present.get("mcp_servers", {}):
        gap = newline if text.endswith("\n") else newline * 2
        after = text + gap + block
    elif found is None or not _is_unchanged(found):
        return Edit(text, is_foreign=True)
    elif found[2].replace("\r\n", "\n") == _TABLE:
        return Edit(text)
    else:
        after = text[: found.start()] + (newline if found[0][0] in "\r\n" else "") + block + text[found.end() :]
    added = tomllib.loads(_TABLE)["mcp_servers"][_NAME]
    return Edit(_check_meaning(text, after, _parse_toml, "mcp_servers", added=added), _TABLE)


def remove_from_toml(text: str) -> Edit:
    """Remove the marked block, and the file if it holds nothing else."""
    present = _parse_toml(text)
    found = _BLOCK.search(text)
    if found is None or not _is_unchanged(found):
        return Edit(text, is_foreign=found is not None or _NAME in present.get("mcp_servers", {}))
    after = text[: found.start()] + text[found.end() :]
    _check_meaning(text, after, _parse_toml, "mcp_servers", added=None)
    return Edit(after if after.strip() else None, found[2].replace("\r\n", "\n"))


def _is_own(server: Any) -> bool:
    return isinstance(server, dict) and {**_DEFAULTS, **server} == {**_DEFAULTS, **_SERVER}


def _is_unchanged(block: re.Match[str]) -> bool:
    return block[1] == _hash(block[2].replace("\r\n", "\n"))


def _hash(table: str) -> str:
    return str(sha256(table.encode()).hexdigest())[:16]


def _check_meaning(
    before: str, after: str, parse: Callable[[str], dict[str, Any]], table: str, *, added: dict[str, Any] | None
) -> str:
    """Return the new text if it means the same as the old one, but for the server."""
    old, new = parse(before), parse(after)
    entry = new.get(table, {}).get(_NAME)
    for found in (old, new):
        found[table] = {name: server for name, server in found.get(table, {}).items() if name != _NAME}
    if old != new or entry != added:  # guard: settings-kept
        raise BatonError("cannot be changed without a change of its other content; add or remove the server by hand")
    return after


# -- TOML --------------------------------------------------------------------------------------------------------------


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(text, parse_float=str)  # NaN as text, which equals itself
    except (ValueError, RecursionError) as error:
        raise BatonError(f"is not TOML that baton can change: {error}") from None
    if not isinstance(found.get("mcp_servers", {}), dict):
        raise BatonError("is not TOML that baton can change: mcp_servers is not a table")
    return found


# -- JSON --------------------------------------------------------------------------------------------------------------


def _parse_json(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text, _DECODER.decode)
    except ValueError as error:
        by_hand = f"add to mcpServers by hand: {_JSON_LINE}"
        raise BatonError(f"is not JSON that baton can change: {error}; {by_hand}") from None
    if not isinstance(found, dict) or not isinstance(found.get("mcpServers", {}), dict):
        raise BatonError("is not JSON that baton can change: it and its mcpServers must be objects")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=no_duplicates, parse_constant=_refuse_constant)


def _json_servers(text: str) -> dict[str, Any]:
    return dict(_parse_json(text).get("mcpServers", {}))


def _add_line(text: str) -> str:
    start = _start(text)
    members, _ = _members(text, start)
    if all(each.name != "mcpServers" for each in members):
        text = _add_member(text, start, '"mcpServers": {}')
    return _add_member(text, _value_of(text, start, "mcpServers"), _JSON_LINE)


def _add_member(text: str, start: int, member: str) -> str:
    """Add a member at the end of the object that starts here, laid out like the members before it."""
    members, close = _members(text, start)
    if members:
        last = members[-1]
        return f"{text[: last.end]},{text[last.after : last.start] or ' '}{member}{text[last.end :]}"
    if "\n" not in text.strip():
        return text[: start + 1] + member + text[close:]
    line = text.rfind("\n", 0, start) + 1
    indent = text[line : line + len(text[line:]) - len(text[line:].lstrip(" \t"))]
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{text[: start + 1]}{newline}{indent}{_unit(text)}{member}{newline}{indent}{text[close:]}"


def _unit(text: str) -> str:
    """Return by how much the members of the file are indented."""
    members, _ = _members(text, _start(text))
    lead = text[members[0].after : members[0].start] if members else ""
    return lead.rpartition("\n")[2] if "\n" in lead else "  "


def _remove_member(text: str, start: int, name: str) -> str:
    members, close = _members(text, start)
    number = next(number for number, each in enumerate(members) if each.name == name)
    if len(members) == 1:
        return text[: start + 1] + text[close:]
    if number == 0:
        return text[: members[0].start] + text[members[1].start :]
    return text[: members[number - 1].end] + text[members[number].end :]


def _start(text: str) -> int:
    return _end_of_space(text, 0)


def _value_of(text: str, start: int, name: str) -> int:
    return next(each.value for each in _members(text, start)[0] if each.name == name)


def _members(text: str, start: int) -> tuple[list[_Member], int]:
    """Return the members of the object that starts here, and where its last bracket is. The text is valid JSON."""
    decoder = json.JSONDecoder()
    members: list[_Member] = []
    after = start + 1
    while text[position := _end_of_space(text, after)] != "}":
        name, end = decoder.raw_decode(text, position)
        value = _end_of_space(text, _end_of_space(text, end) + 1)
        _, end = decoder.raw_decode(text, value)
        members.append(_Member(name, after, position, value, end))
        after = _end_of_space(text, end)
        if text[after] == "}":
            return members, after
        after += 1
    return members, position


def _end_of_space(text: str, start: int) -> int:
    while text[start : start + 1] in _SPACE:
        start += 1
    return start
