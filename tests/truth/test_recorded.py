"""The recorded messages of every row of `make truth`, replayed: the states are those that were so. Without any one kind
of signal, a row is wrong."""

from __future__ import annotations

import os

import pytest

from truth.recording import FOLDER, load
from truth.replay import KINDS, wrong

RECORDINGS = {name.removesuffix(".json"): os.path.join(FOLDER, name) for name in sorted(os.listdir(FOLDER))}
# The row that is wrong without this kind of signal.
TELLTALE = {
    "TurnStarted": "T1-terminal",
    "TurnEnded": "T1-terminal",
    "ToolStarted": "T22-terminal",
    "ToolEnded": "T16-terminal",
    "Asked": "T8-terminal",
    "Settled": "T9-terminal",
    "BackgroundWork": "T3-terminal",
    "Retrying": "T17-terminal",
    "Limited": "T19-terminal",
    "Usage": "T1-terminal",
    "Conversation": "T15-terminal",
    "Attention": "T36-terminal",
    "Blocked": "T21-trust-terminal",
    "Said": "T33-text-headless",
    "Gone": "T24-kill9-terminal",
}


@pytest.mark.parametrize("label", RECORDINGS)
def test_the_recorded_messages_of_a_row_say_what_was_so(label):
    assert wrong(load(RECORDINGS[label])) == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_kind_of_signal_a_row_is_wrong(kind):
    assert wrong(load(RECORDINGS[TELLTALE[kind]]), frozenset({kind})) != []
