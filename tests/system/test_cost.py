"""What jobs cost, and what they may cost, with the installed command."""

from __future__ import annotations

import time

import pytest

from baton.config import Settings
from baton.core.clock import format_micros
from baton.jobs.verbs import open_jobs
from support.command import Baton

USED = {
    "attempt": 1, "input_tokens": 1000, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 20,
    "cost_usd": 0.0123,
}  # fmt: skip
PRICES = '[prices."m"]\ninput = 2.0\noutput = 8\n'


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


def use(baton, job: str, **more: object) -> None:
    """Keep what an attempt has used, as its runner does."""
    registry = baton("config", "show", "--json").json["registry_dir"]["value"]
    with open_jobs(Settings({"registry_dir": registry}, env=baton.env)) as jobs:
        jobs.registry.note_usage(job, {**USED, "at": format_micros(time.time_ns()), **more})


def set_prices(baton, text: str = PRICES) -> None:
    path = baton.folder / ".config" / "baton" / "baton.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    baton.env["XDG_CONFIG_HOME"] = str(baton.folder / ".config")


def test_what_jobs_used_is_shown_for_each_and_summed_up(baton):
    first = baton("register", "--label", "l", "x").text
    second = baton("register", "--agent", "codex", "y").text
    for agent in ("claude-code", "codex"):
        baton("pick", "--agent", agent)
    use(baton, first)
    use(baton, second, cost_usd=None)
    rows = {line.split("\t")[0]: line.split("\t")[-3:-1] for line in baton("list", "--cost").out.splitlines()}
    assert rows == {first: ["1020", "0.0123"], second: ["1020", "unknown"]}
    shown = {each["job_id"]: (each["tokens"], each["cost_usd"]) for each in baton("list", "--cost", "--json").json}
    assert shown == {first: (1020, 0.0123), second: (1020, None)}
    summed = baton("cost")
    assert "total\t\t2\t2000\t40\t0.0123 + 1 unknown" in summed.out
    assert "label\tl\t1\t1000\t20\t0.0123" in summed.out
    assert "cost of 1 attempt is unknown" in summed.err
    report = baton("cost", "--since", "1h", "--json").json
    assert (report["total"]["cost_usd"], report["total"]["unknown"]) == (0.0123, 1)
    assert [each["agent"] for each in report["by_agent"]] == ["claude-code", "codex"]
    assert [each["label"] for each in report["by_label"]] == [None, "l"]
    baton("status", first, "--set", "error")
    result = baton("result", first, "--json").json
    assert (result["tokens"], result["cost_usd"], result["usage"][0]["attempt"]) == (1020, 0.0123, 1)


def test_nothing_was_used_yet(baton):
    baton("register", "x")
    assert baton("cost").out == ""
    assert baton("cost", "--json").json["total"]["attempts"] == 0
    assert "--since" in baton("cost", "--since", "yesterday", code=64).err


def test_a_budget_that_cannot_be_kept_is_refused_before_anything_is_made(baton):
    for agent, why in (("shell", "does not say what it uses"), ("codex", "[prices.")):
        refused = baton("register", "--agent", agent, "--budget", "2", "x", code=64)
        assert why in refused.err
        assert len(refused.err.splitlines()) == 1
    for amount in ("0", "-1", "nan", "inf", "much"):
        assert "--budget" in baton("register", "--budget", amount, "x", code=64).err
    assert baton("list", "--json").json == []
    set_prices(baton)
    assert baton("get", baton("register", "--agent", "codex", "--budget", "2.5", "x").text).json["budget_usd"] == 2.5
    assert baton("get", baton("register", "--budget", "2.5", "x").text).json["budget_usd"] == 2.5


def test_what_a_job_does_at_a_usage_limit_is_chosen(baton):
    def chosen(*options: str) -> str:
        return baton("get", baton("register", *options, "x").text).json["on_limit"]

    assert chosen() == "wait"
    assert chosen("--on-limit", "fail") == "fail"
    baton.env["BATON_ON_LIMIT"] = "fail"
    assert chosen() == "fail"
    assert chosen("--on-limit", "wait") == "wait"
    baton.env["BATON_ON_LIMIT"] = "perhaps"
    assert "BATON_ON_LIMIT" in baton("register", "x", code=64).err


def test_prices_are_those_of_the_user(baton):
    set_prices(baton)
    assert baton("config", "show", "--json").json["prices.m.cached_input"]["value"] == 2.0
    set_prices(baton, '[prices."m"]\ninput = "much"\n')
    assert '[prices."m"]' in baton("list", code=64).err
