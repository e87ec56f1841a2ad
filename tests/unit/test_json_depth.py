"""How deep JSON of other programs may be nested: baton decides, not the release of Python."""

from __future__ import annotations

import json

import pytest

from baton.core.fields import MAX_LEVELS, NestedTooDeeply, json_object, parse_json, storable_json


def nested(levels, inner=""):
    return "[" * levels + inner + "]" * levels


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_LEVELS), '{"a":' * MAX_LEVELS + "1" + "}" * MAX_LEVELS, "[" + ",".join([nested(50)] * 100) + "]",
        json.dumps(nested(20000)), json.dumps({"a": '\\"[' * 5000, "b": [["["]]}),
    ],
)  # fmt: skip
def test_what_programs_write_is_read(text):
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_LEVELS + 1), nested(900), nested(5000), nested(20000), nested(200_000), "[" * 900, "[" * 20000, "[" * 200_000,
        '{"a":' * 20000, nested(5000) + "x", "[" * 20000 + "]" * 19999 + "}", nested(MAX_LEVELS, '{"a": [1, {"b": null}]}'),
    ],
)  # fmt: skip
def test_what_is_nested_deeper_is_refused_whatever_python_would_follow(text):
    for form in (text, text.encode()):
        with pytest.raises(NestedTooDeeply):
            parse_json(form)
    assert json_object('{"a": ' + text) == json_object('{"a": ' + text + "}") == {}


@pytest.mark.parametrize(
    "text", ["[" * MAX_LEVELS, "[[x " + "[" * 20000, "x" + "[" * 20000, '"' + "[" * 20000, "", "\ud800"]
)
def test_what_ends_being_json_before_it_is_nested_deeper_is_no_json(text):
    with pytest.raises(ValueError) as refused:
        parse_json(text)
    assert not isinstance(refused.value, NestedTooDeeply)


def test_what_is_stored_can_be_read_again():
    deep = []
    for _ in range(MAX_LEVELS):
        deep = [deep]
    for value in (deep, {"a": {1, 2}}, {"a": float("nan")}):
        with pytest.raises(ValueError):
            storable_json(value)
    parse_json(f'{{"record": {storable_json({"a": json.loads(nested(80))})}}}')
