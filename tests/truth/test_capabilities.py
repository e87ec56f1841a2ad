"""The table of what baton can do with each agent says what the rows of `make truth` showed."""

from __future__ import annotations

import pytest

from truth import rows_of_people, rows_of_screens, rows_of_services, rows_of_work  # noqa: F401  they fill the catalogue
from truth.capabilities import contradictions
from truth.programs import ALL
from truth.results import read


@pytest.mark.parametrize("agent", ALL)
def test_the_newest_results_show_what_the_table_says(agent):
    assert contradictions(agent, read()) == []


def test_a_wrong_result_and_a_missing_one_contradict_the_table():
    results = read()
    wrong = [each._replace(wrong=True) if each.row.label == "T9-terminal" else each for each in results]
    assert len(contradictions("claude-code", wrong)) == 1
    missing = [each for each in results if each.row.label != "T28-terminal"]
    assert len(contradictions("claude-code", missing)) == 1


def test_another_version_contradicts_the_table():
    results = [each._replace(version="0.0.1") for each in read()]
    assert contradictions("claude-code", results) == ["claude-code: version 0.0.1 was run, the table says 2.1.197"]


def test_an_answer_that_the_table_does_not_promise_contradicts_it():
    results = read()
    by_screen = next(each for each in results if each.row.scenario == "T9-terminal" and each.row.agent == "gemini")
    unclaimed = by_screen._replace(row=by_screen.row._replace(number="T11", name="approve"))
    assert "T11-approve is right" in " ".join(contradictions("gemini", [*results, unclaimed]))
