"""Read the user's rules, and resolve the paths of a tool call for them.

The rules are in one file of the user: a home, a repository or an agent cannot bring rules of its own."""

from __future__ import annotations

import os

from baton.config import rules_file, state_folder
from baton.core.rule_file import LONGEST_FILE, parse_rules
from baton.core.rules import Call, RuleBook, read_call
from baton.own_files import why_shared
from baton.storage.files import open_given_file, read_open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def read_rules(env: Mapping[str, str], warn: Callable[[str], None]) -> RuleBook:
    """Return the rules of the user. A file that cannot be used allows nothing: warn, and return no rules."""
    path = rules_file(env)
    try:
        return parse_rules(read_text(path))
    except FileNotFoundError:
        return RuleBook()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        warn(f"{path} {why}; no rule is used until it is fixed, every request is asked")
        return RuleBook()


def read_text(path: str) -> str:
    """Return the text of a rules file. OSError or ValueError for a file that others could have written."""
    if not path:
        raise FileNotFoundError
    with open_given_file(path) as file:  # it may be a link: many users keep their settings in a repository
        if (why := why_shared(path, os.fstat(file.fileno()))) is not None:  # guard: rules-of-others
            raise ValueError(why)
        content = read_open_file(file, path, LONGEST_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError("is not valid UTF-8") from None


def call_for_rules(
    agent: str,
    tool: str,
    arguments: Any,
    *,
    exact: bool,
    workdir: str | None,
    env: Mapping[str, str],
    home: str | None = None,
) -> Call:
    """Return what rules decide about, with every path resolved on this machine."""
    reserved = [os.path.dirname(rules_file(env)), state_folder(env), home]
    return read_call(
        agent,
        tool,
        arguments,
        exact=exact,
        workdir=workdir,
        resolve=os.path.realpath,
        user_home=env.get("HOME", ""),
        reserved=[os.path.realpath(each) for each in reserved if each],
    )
