"""The runner's chores, each at its interval."""

from __future__ import annotations

import pytest

from baton.core.errors import RegistryUnavailable
from baton.sessions.chores import Chores, attempt
from support.clock import FakeClock


def test_each_chore_runs_at_its_interval():
    clock, done = FakeClock(), []
    chores = Chores(clock, [(1, lambda: done.append("often")), (2.5, lambda: done.append("seldom"))])
    assert chores.wait_sec() == 1
    chores.run_due()
    assert done == []
    clock.advance(1)
    assert chores.wait_sec() == 0
    chores.run_due()
    chores.run_due()
    assert done == ["often"]
    clock.advance(10)
    chores.run_due()
    assert done == ["often", "often", "seldom"], "what was missed is not made up for"


@pytest.mark.parametrize("error", [RegistryUnavailable("the registry\nis away"), OSError("the registry is away")])
def test_a_failure_is_shown_and_nothing_ends(capsys, error):
    def fail():
        raise error

    attempt(fail)
    assert capsys.readouterr().out == "baton: the registry is away\n"
