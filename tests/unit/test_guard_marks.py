"""Each guard that `make guards` removes is marked in the sources, and its rule can remove it."""

import os
import textwrap

import pytest

from guards.marks import condition, drop, find_marks, insert_before, replace, without_guard
from guards.remove_guards import GUARDS, ROOT, mark_of

MARKS = find_marks(os.path.join(ROOT, "src", "baton"))


def test_no_guard_is_lost_and_each_has_a_name_of_its_own():
    assert len({guard.name for guard in GUARDS}) == len(GUARDS) >= 45


def test_every_mark_belongs_to_a_guard():
    assert {mark.name for mark in MARKS} - {guard.name for guard in GUARDS} == set()


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_is_marked_once_and_can_be_removed(guard):
    mark = mark_of(guard.name, MARKS)
    with open(mark.path) as file:
        text = file.read()
    assert without_guard(text, mark.line, guard.rule) != text


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_the_tests_of_a_guard_exist(guard):
    files = [word for word in guard.tests.split() if word.startswith("tests/")]
    assert files
    assert [file for file in files if not os.path.exists(os.path.join(ROOT, file))] == []


def test_a_missing_or_doubled_mark_is_a_failure():
    with pytest.raises(RuntimeError, match="stands 0 times"):
        mark_of("no-such-guard", MARKS)
    with pytest.raises(RuntimeError, match="stands 2 times"):
        mark_of(MARKS[0].name, [*MARKS, MARKS[0]])


def removed(source, rule, tmp_path):
    text = textwrap.dedent(source)
    (tmp_path / "module.py").write_text(text)
    (mark,) = find_marks(str(tmp_path))
    return without_guard(text, mark.line, rule)


def test_a_condition_of_several_lines_is_replaced_whole(tmp_path):
    source = """
    if a:
        b()
    elif (
        c
        and d
    ):  # guard: x
        e()
    """
    assert removed(source, condition("False"), tmp_path) == "\nif a:\n    b()\nelif False:\n    e()\n"


def test_a_mark_alone_on_its_line_stands_for_the_next_one(tmp_path):
    source = """
    # guard: x
    # because of y
    f(
        1,
    )
    """
    assert removed(source, drop, tmp_path) == "\n# guard: x\n# because of y\npass\n"


def test_a_with_is_dropped_and_its_body_stays(tmp_path):
    assert removed("with lock:  # guard: x\n    f()\n", drop, tmp_path) == "if True:\n    f()\n"


def test_a_statement_is_inserted_before_the_marked_one(tmp_path):
    source = "class A:\n    def f(self):\n        self.a = 1\n        return 2  # guard: x\n"
    assert "        self.a = 3\n        return 2" in removed(source, insert_before("self.a = 3"), tmp_path)
    with pytest.raises(ValueError, match=r"self\.b does not occur"):
        removed(source, insert_before("self.b = 3"), tmp_path)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (condition("False"), "not an if"),
        (replace("2", "3"), "exactly once"),
        (replace("1", "1"), "changes nothing"),
        (replace("1", "("), "does not compile"),
    ],
)
def test_a_rule_that_does_not_fit_is_a_failure(rule, complaint, tmp_path):
    with pytest.raises(ValueError, match=complaint):
        removed("a = 1  # guard: x\n", rule, tmp_path)
