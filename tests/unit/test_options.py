"""The catalogue of options: each option is defined once, and its help line gives its default."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import baton
from baton.cli.main import VERBS, describe, load_verb
from baton.cli.parser import HELP

CLI = Path(baton.__file__).parent / "cli"
DEFINES_AN_OPTION = {"Option", "_flag", "_value"}

# One of the two is required; --graceful is --mode graceful.
WITHOUT_A_DEFAULT = {"--mosquitto", "--nats", "--graceful"}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def parsers():
    for verb in (verb for verb, (_, text) in VERBS.items() if text):
        parser = describe(verb)
        yield from ((each.name, each) for each in (parser, *parser.actions.values()))


def test_each_option_is_defined_once_in_the_catalogue():
    defined = Counter(
        (path.name, argument.value)
        for path in CLI.glob("*.py")
        for name, call in calls(path)
        if name in DEFINES_AN_OPTION
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant)
    )
    assert {"--json", "--job", "--timeout", "name"} <= {name for _, name in defined}
    assert {file for file, _ in defined} == {"options.py", "parser.py"}
    assert [name for file, name in defined if file == "parser.py"] == ["-h"]
    assert [name for name, times in defined.items() if times > 1] == []


def test_the_line_of_a_verb_names_all_its_actions():
    for verb in (verb for verb, (_, text) in VERBS.items() if text):
        if actions := load_verb(verb).actions:
            assert VERBS[verb][1].partition(": ")[2].split(", ") == [action.name for action in actions], verb


@pytest.mark.parametrize(("verb", "parser"), list(parsers()))
def test_a_help_line_stands_alone_and_gives_its_default(verb, parser):
    for option in parser.options:
        text, default = option.settings["help"], option.settings.get("default")
        if option is HELP or not text:
            continue
        where = (verb, option.names, text)
        assert text[:1].islower(), where
        assert not text.startswith(("and ", "... ", "the same ")), where
        if not option.is_positional and not option.is_required and option.names[0] not in WITHOUT_A_DEFAULT:
            assert "(default: " in text or text.endswith("as this command always does"), where
        if default not in (None, False, [], "", "."):
            assert f"(default: {f'{default:g}' if isinstance(default, float) else default}" in text, where
