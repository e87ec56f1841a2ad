"""What an agent spends: tokens and dollars, each message once, unknown where no price is known."""

from __future__ import annotations

import pytest

from baton.core.drafts import new_job
from baton.core.errors import InvalidValue
from baton.core.job import Status
from baton.core.parking import is_parked, kept_conversation, parking, was_parked
from baton.core.signal import Usage
from baton.core.spending import (
    Price,
    Spent,
    Tokens,
    count,
    find_price,
    merge_usage,
    total_usage,
    usage_entry,
    usd_text,
)
from baton.sessions.budget import Budget

SECOND_NS = 10**9
NOW = 1_800_000_000 * SECOND_NS
PRICES = {"m": Price.parse({"input": 2, "output": 8, "cached_input": 0.5}, "m")}


def spend(*signals: Usage) -> Spent:
    spent, counted = Spent(), {}
    for each in signals:
        spent, counted = count(spent, counted, each)
    return spent


def message(name: str = "1", **given) -> Usage:
    return Usage(message_id=name, **{"input_tokens": 100, "output_tokens": 10, "model": "m"} | given)


def test_the_same_message_counts_once_whatever_comes_between():
    twice = spend(message("1"), message("2"), message("1"), message("2", output_tokens=15), message("1"))
    assert twice.tokens == Tokens(input=200, output=25)


def test_the_cost_is_that_of_the_agent_where_it_says_one():
    assert spend(message(cost_usd=0.5)).total_usd(PRICES) == 0.5
    assert spend(message(cost_usd=0.5), message("2", cost_usd=0.25)).total_usd({}) == 0.75


def test_the_users_price_counts_caches_apart():
    spent = spend(message(cached_tokens=40, cache_write_tokens=10))
    assert spent.total_usd(PRICES) == pytest.approx((50 * 2 + 40 * 0.5 + 10 * 2 + 10 * 8) / 1e6)


def test_a_cost_without_a_price_is_unknown_and_so_is_the_sum():
    assert spend().total_usd(PRICES) is None
    assert spend(message(model="other")).total_usd(PRICES) is None
    assert spend(message(cost_usd=0.5), message("2", model="other")).total_usd(PRICES) is None
    assert spend(message(model="other")).without_price(PRICES) == ["other"]


def test_a_sum_of_the_agent_covers_the_messages_before_it():
    spent = spend(
        message("1", model="other"), message("sum", input_tokens=0, output_tokens=5, cost_usd=0.1, covers_all=True)
    )
    assert (spent.total_usd({}), spent.tokens.total) == (0.1, 115)
    assert spend(message("1", model="other"), message("x", cost_usd=0.1)).total_usd({}) is None


def test_a_message_may_say_its_cost_later():
    assert spend(message(), message(cost_usd=0.5)).total_usd({}) == 0.5


@pytest.mark.parametrize("name", ["m", "m[1m]", "vendor/m", "vendor/m[high]"])
def test_a_model_is_found_without_what_agents_add_to_its_name(name):
    assert find_price(PRICES, name) is PRICES["m"]
    assert find_price(PRICES, "n") is None


@pytest.mark.parametrize(
    "table",
    [7, {}, {"input": 1}, {"input": -1, "output": 1}, {"input": True, "output": 1}, {"input": 1, "output": 1, "x": 1}],
)
def test_a_price_that_is_none_is_refused(table):
    with pytest.raises(InvalidValue, match="prices"):
        Price.parse(table, '[prices."m"]')


def test_the_record_keeps_each_attempt_and_adds_them_up():
    first = usage_entry(1, spend(message(cost_usd=0.5)), {}, "2026-11-18T01:00:00Z")
    second = usage_entry(2, spend(message(cost_usd=0.25)), {}, "2026-11-18T02:00:00Z")
    known = merge_usage(merge_usage((), second), first)
    assert [each["attempt"] for each in known] == [1, 2]
    assert total_usage(known) | {"at": ""} == {
        "tokens": 220, "input_tokens": 200, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 20,
        "cost_usd": 0.75, "at": "",
    }  # fmt: skip
    assert total_usage(merge_usage(known, {**second, "cost_usd": None}))["cost_usd"] is None
    assert merge_usage(known, {**second, "input_tokens": 1}) == known, "an older figure"
    assert total_usage(()) == {"tokens": None, "cost_usd": None}
    assert usage_entry(1, Spent(), {}, "") is None


def test_amounts_for_people():
    assert [usd_text(each) for each in (0, 0.0123, 0.000001, 0.5, 12.345)] == [
        "0.00",
        "0.0123",
        "0.000001",
        "0.50",
        "12.35",
    ]


# -- budgets -----------------------------------------------------------------------------------------------------------


def running(**changes):
    return new_job("x", now_ns=NOW, agent="codex").replace(status=Status.RUNNING, attempt=1, **changes)


def test_a_job_within_its_budget_is_not_asked_about():
    budget = Budget(None, running(budget_usd=1.0), PRICES, asks_late=False)
    assert budget.question(Spent()) is None
    assert budget.question(spend(message(cost_usd=0.99))) is None
    assert budget.left_usd(spend(message(cost_usd=0.75))) == 0.25
    assert Budget(None, running(), PRICES, asks_late=False).question(spend(message(cost_usd=99.0))) is None


def test_each_approval_allows_the_budget_once_more():
    budget = Budget(None, running(budget_usd=1.0), PRICES, asks_late=False)
    asked = budget.question(spend(message(cost_usd=1.0)))
    assert (asked.kind, asked.call["allowed_usd"], asked.call["spent_usd"]) == ("budget", 2.0, 1.0)
    budget.allow(asked)
    assert budget.question(spend(message(cost_usd=1.5))) is None
    assert budget.question(spend(message(cost_usd=4.0))).call["allowed_usd"] == 5.0


def test_earlier_attempts_count_toward_the_budget():
    earlier = usage_entry(1, spend(message(cost_usd=0.9)), {}, "2026-11-18T01:00:00Z")
    budget = Budget(_NoRequests, running(budget_usd=1.0, usage=(earlier,)).replace(attempt=2), PRICES, asks_late=False)
    assert budget.question(spend(message(cost_usd=0.05))) is None
    assert budget.question(spend(message(cost_usd=0.1))) is not None


class _Family:
    """The jobs that a budget looks at: what each has used, and no request."""

    def __init__(self, *jobs):
        self._jobs = {job.job_id: job for job in jobs}
        self.registry = _NoRequests.registry

    def get_job(self, job_id):
        return self._jobs[job_id]

    def each_job(self, _where):
        return list(self._jobs.values())


def used(usd, attempt=1):
    return usage_entry(attempt, spend(message(cost_usd=usd)), {}, "2026-11-18T01:00:00Z")


def family(*, child_usd=0.6, budget_usd=1.0):
    starter = running(budget_usd=budget_usd, usage=(used(0.3),))
    child = running(above=(starter.job_id,), parent=starter.job_id, usage=(used(child_usd),))
    return starter, child, running(usage=(used(50.0),))


def test_what_the_jobs_below_cost_counts():
    starter, child, other = family()
    budget = Budget(_Family(starter, child, other), starter, PRICES, asks_late=False)
    budget.look()
    assert budget.left_usd(spend(message(cost_usd=0.3))) == pytest.approx(0.1)
    assert budget.question(spend(message(cost_usd=0.3))) is None
    asked = budget.question(spend(message(cost_usd=0.4)))
    assert (asked.call["spent_usd"], asked.call["allowed_usd"]) == (1.0, 2.0)
    budget.allow(asked)
    assert budget.question(spend(message(cost_usd=0.4))) is None


def test_a_job_keeps_to_the_budget_of_one_above_it():
    """That one may have ended: no runner of its own looks any more."""
    starter, child, other = family()
    budget = Budget(_Family(starter, child, other), child, PRICES, asks_late=False)
    budget.look()
    assert budget.question(spend(message(cost_usd=0.6))) is None
    asked = budget.question(spend(message(cost_usd=0.7)))
    assert asked.call["budget_of"] == starter.job_id
    assert f"that job {starter.job_id} and all jobs below it may cost" in asked.call["description"]
    budget.allow(asked)
    assert budget.question(spend(message(cost_usd=0.7))) is None


def test_an_unknown_cost_below_is_not_0():
    starter, child, _ = family()
    child = child.replace(usage=({**used(0.6), "cost_usd": None},))
    budget = Budget(_Family(starter, child), starter, PRICES, asks_late=False)
    budget.look()
    assert "its cost is unknown" in budget.question(Spent()).call["description"]


class _NoRequests:
    class registry:
        @staticmethod
        def list_requests(**_: object) -> list:
            return []


def test_a_model_without_a_price_is_asked_about_unless_its_program_keeps_the_budget():
    spent = spend(message(model="other"))
    asked = Budget(None, running(budget_usd=1.0), PRICES, asks_late=False).question(spent)
    assert "no price for other" in asked.call["description"]
    assert Budget(None, running(budget_usd=1.0), PRICES, asks_late=True).question(spent) is None


# -- parking -----------------------------------------------------------------------------------------------------------


def park(job, seconds: float, *, has_answered: bool = True) -> dict:
    return parking(job, NOW + int(seconds * SECOND_NS), NOW, why="limit", has_answered=has_answered)


def until_sec(parked: dict) -> float:
    from baton.core.clock import parse_time

    return (parse_time(parked["until"]) - NOW) / SECOND_NS


def test_a_job_waits_until_the_reset():
    assert until_sec(park(running(), 95)) == 95
    assert until_sec(park(running(), -5)) == 0
    assert until_sec(park(running(), 120)) == 180, "named to the minute: it may be the last second of it"


def test_a_reset_that_was_wrong_is_waited_for_longer_each_time():
    job, waited = running(), []
    for _ in range(9):
        parked = park(job, -5, has_answered=False) | {"conversation_id": "c", "host": "h"}
        waited.append(until_sec(parked))
        job = job.replace(parked=parked, attempt=job.attempt + 1)
    assert waited == [0, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert until_sec(park(job, -5)) == 0, "the model has answered meanwhile"


def test_the_conversation_goes_on_in_the_next_attempt_on_its_host_alone():
    job = running(parked=park(running(), 9) | {"conversation_id": "c", "host": "h"})
    pending = job.replace(status=Status.PENDING)
    assert is_parked(pending)
    assert kept_conversation(pending, "h") == "c"
    assert kept_conversation(pending, "other") is None
    following = job.replace(attempt=2)
    assert was_parked(following)
    assert kept_conversation(following, "h") == "c"
    assert kept_conversation(job.replace(attempt=3), "h") is None
