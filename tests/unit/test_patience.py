"""Whoever waits for jobs also waits for a registry that is away for a moment."""

from __future__ import annotations

import time

import pytest

from baton.config import Settings
from baton.core.errors import RegistryUnavailable
from baton.jobs.verbs import open_jobs
from baton.transport import subscription as subscription_module
from baton.transport.subscription import Subscription
from support.ports import free_port


@pytest.fixture
def settings(tmp_path):
    away = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}
    return Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | away)


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(subscription_module, "_RETRY_SEC", 0.01)


class Outage:
    """Every read fails, from the one with number `first` on, until as many have failed."""

    def __init__(self, monkeypatch, jobs, first, failures):
        self.reads = self.failed = 0
        for name in ("get_job", "events_after", "list_jobs"):
            monkeypatch.setattr(jobs.registry, name, self._failing(getattr(jobs.registry, name), first, failures))

    def _failing(self, read, first, failures):
        def fails(*args, **more):
            self.reads += 1
            if first <= self.reads and self.failed < failures:
                self.failed += 1
                raise RegistryUnavailable("the server is away")
            return read(*args, **more)

        return fails


def told(jobs, ids):
    for event in ("started", "progress", "completed"):
        for job_id in ids:
            jobs.record_event(job_id, event)
    return sorted((job_id, seq) for job_id in ids for seq in (1, 2, 3))


@pytest.mark.parametrize("first", range(1, 7))
def test_no_event_is_lost_wherever_the_outage_begins(jobs, settings, monkeypatch, first):
    ids = [jobs.register_job("x").job_id for _ in range(3)]
    expected = told(jobs, ids)
    lines = []
    subscription = Subscription(jobs, settings, ids, timeout_sec=30, log=lines.append)
    outage = Outage(monkeypatch, jobs, first, 3)
    assert sorted((each["job_id"], each["seq"]) for each in subscription) == expected
    assert subscription.exit_code == 0
    assert outage.failed == 3
    assert [line for line in lines if "broker" not in line] == [
        "the server is away; trying again",
        "the registry is back",
    ]


def test_following_all_goes_on_after_an_outage(jobs, settings, monkeypatch):
    subscription = Subscription(jobs, settings, [], follow_all=True, timeout_sec=30)
    ids = [jobs.register_job("x").job_id for _ in range(2)]
    expected = told(jobs, ids)
    Outage(monkeypatch, jobs, 2, 4)
    heard = []
    for payload in subscription:
        heard.append((payload["job_id"], payload["seq"]))
        if len(heard) == len(expected):
            subscription.stop()
    assert sorted(heard) == expected


def test_one_that_stays_away_is_an_error(jobs, settings, monkeypatch):
    monkeypatch.setattr(subscription_module, "_AWAY_SEC", 0.1)
    subscription = Subscription(jobs, settings, [jobs.register_job("x").job_id], timeout_sec=30)
    Outage(monkeypatch, jobs, 1, 10**9)
    with pytest.raises(RegistryUnavailable, match="the server is away"):
        list(subscription)


def test_the_clock_runs_out_all_the_same(jobs, settings, monkeypatch):
    subscription = Subscription(jobs, settings, [jobs.register_job("x").job_id], timeout_sec=0.3)
    Outage(monkeypatch, jobs, 1, 10**9)
    began = time.monotonic()
    assert list(subscription) == []
    assert time.monotonic() - began < 5
    assert (subscription.exit_code, subscription.timed_out) == (2, "timed out: 0.3 s have passed")


def test_nobody_is_called_silent_for_what_could_not_be_heard(jobs, settings, monkeypatch):
    monkeypatch.setattr(subscription_module, "_RETRY_SEC", 0.4)
    job_id = jobs.register_job("x").job_id
    subscription = Subscription(jobs, settings, [job_id], timeout_sec=30, idle_timeout_sec=1)
    Outage(monkeypatch, jobs, 1, 4)
    began = time.monotonic()
    assert list(subscription) == []
    assert time.monotonic() - began > 4 * 0.4 + 1
    assert subscription.timed_out == "timed out: nothing was heard for 1 s"


def test_it_can_be_stopped_meanwhile(jobs, settings, monkeypatch):
    subscription = Subscription(jobs, settings, [jobs.register_job("x").job_id], timeout_sec=30)
    Outage(monkeypatch, jobs, 1, 10**9)
    monkeypatch.setattr(subscription_module.time, "sleep", lambda _: subscription.stop())
    assert list(subscription) == []
    assert subscription.stopped
