"""The demonstration: in half a minute, on a machine with nothing of ours, and nothing of it is left."""

from __future__ import annotations

import glob
import os
import signal
import time

import pytest

from support.office import Office
from support.waiting import wait_until


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path, MQTT_BROKER="broker.invalid", MQTT_TLS="1", BATON_LEASE_SEC="7") as office:
        before = set(glob.glob("/tmp/baton-demo-*"))
        yield office
        # Somebody else may be looking at it, too; that also ends.
        wait_until(lambda: not set(glob.glob("/tmp/baton-demo-*")) - before, "for its folder to go", 15)
        assert os.listdir(tmp_path) in ([], ["bin"])


def test_it_shows_what_it_promises_and_leaves_nothing(office):
    began = time.monotonic()
    shown = office("demo").out
    assert time.monotonic() - began < 60
    assert shown.count("unbroken") == 3
    assert "validated" in shown
    assert "answer.txt is missing" in shown
    assert "baton submit --agent shell" in shown
    assert office.processes() == {}


def test_on_a_terminal_it_shows_the_table(office):
    done = office.start("demo", terminal=True).end()
    assert done.code == 0, done
    assert "IDLE LEFT" in done.out


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("Three agents", signal.SIGINT),
        ("started", signal.SIGINT),
        ("works until its session is killed", signal.SIGINT),
        ("started", signal.SIGTERM),
    ],
)
def test_interrupted_in_the_middle_it_leaves_nothing_either(office, moment, number):
    demo = office.start("demo")
    demo.says(moment)
    demo.signal(number)
    time.sleep(0.05)  # two signals at the same time would be one
    demo.signal(number)  # somebody impatient
    assert demo.end().code == (130 if number == signal.SIGINT else 143)
    assert office.processes() == {}


def test_without_tmux_it_says_so_in_one_line(office, tmp_path):
    (tmp_path / "bin").mkdir()
    assert "tmux is not installed" in office.refused("demo", PATH=str(tmp_path / "bin"))
