"""Tests wait for conditions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.waiting import poll, wait_until

TESTS = Path(__file__).parents[1]


def test_the_value_of_the_condition_is_returned():
    values = iter([0, None, "found"])
    assert wait_until(lambda: next(values), interval_sec=0) == "found"


def test_what_was_waited_for_is_named_when_it_does_not_come():
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the end"):
        wait_until(lambda: None, "the end", 0.01)
    assert poll(list, 0.01) == []


def sleeps():
    for path in TESTS.rglob("*.py"):
        if path.parent.name == "data" or path == TESTS / "support" / "waiting.py":
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
                yield f"{path.relative_to(TESTS)}:{node.lineno}", text.splitlines()[node.lineno - 1]


def test_a_sleep_says_why_no_condition_can_replace_it():
    assert [place for place, line in sleeps() if "  # " not in line] == []
