"""What reads other people's bytes, against the corpus that fuzzing left and against what Hypothesis makes up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"
VALID = {name: sorted(CORPUS.glob(f"{name}/valid*")) for name in TARGETS}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("2026-06-20T14:48:58Z")
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name):
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) >= 5
    for path in inputs:
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@given(raw=st.binary(max_size=400))
def test_any_bytes(name, raw):
    TARGETS[name](raw)


@pytest.mark.parametrize("name", ["event", "agent_record", "job_record"])
@given(data=st.data())
def test_a_valid_input_with_some_values_changed(name, data):
    value = json.loads(data.draw(st.sampled_from(VALID[name])).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = value
        while isinstance(inner := place[key := data.draw(st.sampled_from(sorted(place)))], dict) and inner:
            if data.draw(st.booleans()):
                break
            place = inner
        place[key] = data.draw(VALUES)
    TARGETS[name](json.dumps(value).encode())
