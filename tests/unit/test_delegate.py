"""Jobs that others see to while somebody waits for them."""

from __future__ import annotations

import json
import time

import pytest

from baton.cli.main import run_verb
from baton.core.errors import InvalidValue
from baton.core.event import EventName
from baton.delegation.submit import Delegation, build_submission
from baton.jobs.report import report
from baton.jobs.verbs import open_jobs
from baton.storage.homes import load_settings
from baton.transport.subscription import Subscription
from support.ports import free_port


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_PORT", str(free_port()))
    return load_settings()


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


def end(jobs, job_id, event=EventName.COMPLETED):
    report(jobs, job_id, event, detail="so it is", attempt=jobs.pick_job(job_id).attempt)


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
    assert run_verb("wait", [good, bad, "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["job_id"]: each["status"] for each in lines} == {good: "completed", bad: "error"}
    assert {each["reason"] for each in lines} == {None}


def test_wait_says_of_a_job_that_is_gone_that_nobody_knows(jobs, monkeypatch, capsys):
    job = jobs.register_job("x", agent_session="q").job_id
    end(jobs, job)
    before(monkeypatch, Subscription, "connect", lambda: prune(jobs))
    monkeypatch.setattr("baton.history.log.read_logged_status", lambda *_: None)
    assert run_verb("wait", [job]) == 1
    assert capsys.readouterr().out == f"{job}\tgone\n"


def test_a_full_disk_takes_the_copy_of_what_was_said_and_no_more(settings, jobs, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    delegation = Delegation(settings, jobs, [build_submission(settings, "x", queue="q")])
    end(jobs, delegation.jobs[0].job_id)
    monkeypatch.setattr("baton.storage.files.write_all", full)
    assert [payload["event"] for payload in delegation] == ["completed"]


@pytest.mark.parametrize("name", ["TIMEOUT_SEC", "IDLE_TIMEOUT_SEC"])
def test_a_limit_of_nothing_is_refused_and_not_replaced(settings, monkeypatch, name):
    monkeypatch.setenv(f"BATON_{name}", "0")
    with pytest.raises(InvalidValue, match=name.lower()):
        build_submission(load_settings(), "x", queue="q")


@pytest.mark.parametrize("name", ["expect", "labels"])
@pytest.mark.parametrize("value", ["out.txt", 5])
def test_what_has_to_be_a_list_is_one(settings, name, value):
    with pytest.raises(InvalidValue, match=f"{name} must be a list"):
        build_submission(settings, "x", queue="q", **{name: value})


def test_the_words_kept_with_a_job_are_kept_with_the_next_try(settings, jobs, monkeypatch, capsys):
    job = jobs.register_job("x", agent="shell", agent_session="q", labels=["nightly", "gpu"])
    end(jobs, job.job_id, EventName.ERROR)
    assert run_verb("retry", [job.job_id, "--detach"]) == 0
    again = capsys.readouterr().out.strip()
    assert again != job.job_id
    assert jobs.get_job(again).labels == ("nightly", "gpu")


def test_a_delegation_outlives_the_pruning_of_its_job(settings, jobs, monkeypatch):
    delegation = Delegation(settings, jobs, [build_submission(settings, "x", queue="q")])
    job = delegation.jobs[0].job_id
    before(monkeypatch, delegation.subscription, "connect", lambda: jobs.get_job(job).attempt or end(jobs, job))
    before(monkeypatch, delegation, "_append_output", lambda: prune(jobs))
    assert [payload["event"] for payload in delegation] == ["completed"]
    assert (delegation.exit_code, delegation.problems) == (0, {})
    delegation._end_late_jobs("timed out")
    delegation.cancel()
