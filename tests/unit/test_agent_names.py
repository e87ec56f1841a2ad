from __future__ import annotations

import pytest

from baton.core.errors import InvalidValue
from baton.live_agents.names import Names, check_agent_id, derived_id, nearest


@pytest.mark.parametrize("typed", ["gpu", "HOUMAO-gpu"])
def test_both_spellings_are_one_name_with_one_id(typed):
    canonical = Names().canonical(typed)
    assert canonical == "HOUMAO-gpu"
    assert derived_id(canonical) == derived_id("HOUMAO-gpu")


def test_the_derived_id_is_the_same_everywhere():
    assert derived_id("HOUMAO-gpu") == "fd3858170c0befd715be727570005359"


@pytest.mark.parametrize(
    "typed",
    ["", " ", "a b", "../x", "/x", "a/b", "-gpu", "_gpu", ".", "..", "gpu\n", "gpü", "a" * 65, "a" * 10_000, "x\0y"],
)
def test_what_is_no_name_is_refused(typed):
    with pytest.raises(InvalidValue, match="agent name must be"):
        Names().canonical(typed)
    with pytest.raises(InvalidValue, match="agent id must be"):
        check_agent_id(typed)


@pytest.mark.parametrize("typed", ["HOUMAO", "HOUMAO-", "houmao", "Houmao-"])
def test_the_bare_prefix_is_no_name(typed):
    with pytest.raises(InvalidValue, match="add a name, such as gpu"):
        Names().canonical(typed)


@pytest.mark.parametrize("typed", ["houmao-gpu", "HOUMAO-HOUMAO-gpu", "HOUMAO-houmao-gpu", "Houmao-x"])
def test_what_only_looks_like_the_prefix_is_refused(typed):
    with pytest.raises(InvalidValue, match="must not begin with"):
        Names().canonical(typed)


def test_the_prefix_can_be_another():
    assert Names("team-").canonical("gpu") == Names("team-").canonical("team-gpu") == "team-gpu"
    assert Names("team-").canonical("HOUMAO-gpu") == "team-HOUMAO-gpu"
    with pytest.raises(InvalidValue, match="agent_name_prefix"):
        Names("../")
    with pytest.raises(InvalidValue, match="agent_name_prefix"):
        Names("")


@pytest.mark.parametrize("value", ["HOUMAO", "houmao", "HOUMAO-gpu", "Houmao-x", "HOUMAO-"])
def test_an_id_of_ones_choice_must_not_read_like_a_name(value):
    with pytest.raises(InvalidValue, match="reads like a name"):
        Names().explicit_id(value)
    assert Names().explicit_id("second") == "second"
    assert Names("fd").explicit_id(derived_id("HOUMAO-gpu")) == "fd3858170c0befd715be727570005359"


def test_the_nearest_name_is_the_one_that_was_meant():
    known = ["HOUMAO-gpu", "HOUMAO-reviewer", "HOUMAO-db"]
    assert nearest("HOUMAO-reveiwer", known) == "HOUMAO-reviewer"
    assert nearest("HOUMAO-GPU", known) == "HOUMAO-gpu"
    assert nearest("HOUMAO-frontend", known) is None
    assert nearest("HOUMAO-gpu", known) is None
