"""The catalogue of options: each option is defined once, and its help line gives its default."""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from pathlib import Path

import pytest

import baton
from baton.cli.main import VERBS, describe, load_verb

CLI = Path(baton.__file__).parent / "cli"
DEFINES_AN_OPTION = {"Option", "_flag", "_value", "add_argument"}

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
        yield verb, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{verb} {name}", child) for name, child in action.choices.items())


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
    assert {file for file, _ in defined} == {"options.py"}
    assert [name for name, times in defined.items() if times > 1] == []


def test_one_line_adds_options_to_a_parser():
    added = [path.name for path in CLI.glob("*.py") for name, _ in calls(path) if name == "add_argument"]
    assert added == ["parser.py"]


def test_the_line_of_a_verb_names_all_its_actions():
    for verb in (verb for verb, (_, text) in VERBS.items() if text):
        if actions := load_verb(verb).actions:
            assert VERBS[verb][1].partition(": ")[2].split(", ") == [action.name for action in actions], verb


@pytest.mark.parametrize(("verb", "parser"), list(parsers()))
def test_a_help_line_stands_alone_and_gives_its_default(verb, parser):
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        where = (verb, action.option_strings or action.dest, action.help)
        assert action.help[:1].islower(), where
        assert not action.help.startswith(("and ", "... ", "the same ")), where
        if action.option_strings and not action.required and action.option_strings[0] not in WITHOUT_A_DEFAULT:
            assert "(default: " in action.help or action.help.endswith("as this command always does"), where
        if action.default not in (None, False, [], "", ".", argparse.SUPPRESS):
            default = f"{action.default:g}" if isinstance(action.default, float) else action.default
            assert f"(default: {default}" in action.help, where
