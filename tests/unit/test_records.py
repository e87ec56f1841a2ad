"""Records are immutable, and mypy checks how they are built."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys

import pytest

import baton
from baton.core.value import Value


class Point(Value):
    x: int
    y: int = 0


def test_a_default_is_used_where_no_value_is_given():
    assert Point(x=1) == Point(x=1, y=0)
    assert Point(x=1, y=2).y == 2
    assert Point.fields() == ("x", "y")


# Each is an annotation of a field `x`, in a function with the local names `Local` and, filled only later, `Later`.
ANNOTATIONS = [
    "int", "int | None", "'a string' | int", "dict[str, list[int]]", "Callable[[int], str]", "Literal['a', 1]",
    "Annotated[int, len]", "typing.Any", "y", "Local", "Local | Later", "Missing", "Missing.Inner[int] | None",
    "Missing | None", "None | Missing", "'a string' | Missing", "Missing['a', 1]", "dict[str, Missing]", "Missing(1)",
    "str | None if Missing else int", "(Missing, str)",
]  # fmt: skip
_IN_A_FUNCTION = """
import typing
from collections.abc import Callable
from typing import Annotated, Literal
from baton.core.value import Value

def make():
    class Local: ...
    class Record(Value):
        y: int = 1
        x: {annotation}
        if y:
            z: {annotation} = 2
        else:
            never: int
        def method(self): return Local, Later
    Later = Local
    return Record

Record = make()
"""


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_fields_are_found_whatever_their_annotation(annotation):
    evaluated = sys.version_info < (3, 14)  # where the module does not say otherwise
    for future in ("", "from __future__ import annotations"):
        names = {"__name__": "some_module"}
        code = compile(future + _IN_A_FUNCTION.format(annotation=annotation), "some_module", "exec", dont_inherit=True)
        if evaluated and not future and re.search("Missing|Later|string", annotation):
            with pytest.raises((NameError, TypeError)):
                exec(code, names)
            continue
        exec(code, names)
        record = names["Record"]
        assert record.fields() == ("y", "x", "z")
        assert record(x=0).as_dict() == {"y": 1, "x": 0, "z": 2}


def test_a_missing_or_unknown_field_is_refused():
    with pytest.raises(TypeError, match="needs the field x"):
        Point(y=1)
    with pytest.raises(TypeError, match="has no field z"):
        Point(x=1, z=2)


def test_a_record_never_changes():
    point = Point(x=1)
    with pytest.raises(AttributeError, match="immutable"):
        point.x = 2
    assert point.replace(x=2) == Point(x=2)
    assert point == Point(x=1)


def records():
    """Every record class of baton, by module."""
    for module in pkgutil.walk_packages(baton.__path__, "baton."):
        if module.name.startswith(("baton.skills", "baton.__main__")):
            continue
        importlib.import_module(module.name)
    found = [each for each in Value.__subclasses__() if each.__module__.startswith("baton.")]
    assert len(found) > 20
    return sorted(found, key=lambda each: (each.__module__, each.__name__))


def required(record):
    return [name for name in record.fields() if name not in record._defaults]


def test_mypy_reports_each_wrongly_built_record(tmp_path):
    """For each record: a missing field, an unknown one, and one of a wrong type. Each line must be an error."""
    lines = ["from typing import Any", "anything: Any = None", "class Strange: ..."]
    expected = {}

    def build(record, arguments, error):
        given = ", ".join(f"{name}={value}" for name, value in arguments.items())
        lines.append(f"{record.__module__}.{record.__name__}({given})")
        expected[len(lines)] = (f"{record.__name__}: {error}", error)

    for record in records():
        if not record.fields():  # for mypy, it takes any field, as `Value` does
            with pytest.raises(TypeError, match="has no field unknown_field"):
                record(unknown_field=1)
            continue
        lines.append(f"import {record.__module__}")
        good = dict.fromkeys(record.fields(), "anything")
        if required(record):
            missing = required(record)[0]
            build(record, {name: value for name, value in good.items() if name != missing}, "Missing named argument")
        build(record, good | {"unknown_field": "anything"}, "Unexpected keyword argument")
        typed = [
            name for name in record.fields() if str(record.__annotations__[name]) not in ("object", "Any", str(object))
        ]
        build(record, good | {typed[0]: "Strange()"}, "has incompatible type")
    path = tmp_path / "builds.py"
    path.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", f"--cache-dir={tmp_path / 'cache'}", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": os.path.dirname(os.path.dirname(baton.__file__))},
    )
    reported = {}
    for line in done.stdout.splitlines():
        place, _, message = line.partition(": error: ")
        if message and place.startswith("builds.py:"):
            reported[int(place.split(":")[1])] = message
    unnoticed = [what for number, (what, error) in expected.items() if error not in reported.get(number, "")]
    assert unnoticed == [], done.stdout + done.stderr
    assert set(reported) == set(expected)
