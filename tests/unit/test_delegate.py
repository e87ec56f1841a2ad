"""Jobs that others see to while somebody waits for them."""

from __future__ import annotations

import json
import time

import pytest

from baton.cli.wait import run as wait
from baton.config import Settings
from baton.delegate import Delegation, order
from baton.jobs import open_jobs
from baton.model import EventName
from baton.mqtt.publisher import record
from baton.mqtt.subscriber import Subscription
from support.brokers import free_port


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_PORT", str(free_port()))
    return Settings()


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


def end(jobs, job_id, event=EventName.COMPLETED):
    record(jobs, job_id, event, detail="so it is", attempt=jobs.pick_job(job_id).attempt)


def prune(jobs):
    for event in jobs.unsent_events():
        jobs.mark_sent(event.job_id, [event.seq])
    return jobs.prune(time.time_ns() + 10**9)


def before(monkeypatch, owner, name, do):
    """Does something whenever that is called, before it is."""
    called = getattr(owner, name)

    def both(*arguments, **options):
        do()
        return called(*arguments, **options)

    monkeypatch.setattr(owner, name, both)


def test_wait_tells_how_a_job_ended_that_was_pruned_meanwhile(jobs, monkeypatch, capsys):
    good, bad = (jobs.register_job("x", agent_session="q").job_id for _ in range(2))
    end(jobs, good)
    end(jobs, bad, EventName.ERROR)
    before(monkeypatch, Subscription, "connect", lambda: prune(jobs))
    assert wait("wait", [good, bad, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {good: "completed", bad: "error"}


def test_wait_says_of_a_job_that_is_gone_that_nobody_knows(jobs, monkeypatch, capsys):
    job = jobs.register_job("x", agent_session="q").job_id
    end(jobs, job)
    before(monkeypatch, Subscription, "connect", lambda: prune(jobs))
    monkeypatch.setattr("baton.audit.read_logged_status", lambda *_: None)
    assert wait("wait", [job]) == 1
    assert capsys.readouterr().out == f"{job}\tgone\n"


def test_a_delegation_outlives_the_pruning_of_its_job(settings, jobs, monkeypatch):
    delegation = Delegation(settings, jobs, [order(settings, "x", label="q")])
    job = delegation.jobs[0].job_id
    before(monkeypatch, delegation.subscription, "connect", lambda: jobs.get_job(job).attempt or end(jobs, job))
    before(monkeypatch, delegation, "_keep", lambda: prune(jobs))
    assert [payload["event"] for payload in delegation] == ["completed"]
    assert (delegation.exit_code, delegation.problems()) == (0, {})
    delegation.subscription.timed_out = "timed out"
    delegation._out_of_time()
    delegation.cancel()
