"""Jobs after others, at a time and again after an error, as a user types them."""

from __future__ import annotations

import json
import signal
import time

import pytest

import baton as package
from baton.core.clock import parse_time
from support.command import Baton
from support.office import Office
from support.waiting import wait_until


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path, BATON_AGENT="shell")


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


def lines(*jobs):
    return "\n".join(json.dumps(job) for job in jobs)


def read_log(baton, job_id):
    return [json.loads(line) for line in baton("logs", job_id, "--json").text.splitlines()]


def order_of(office):
    return (office.folder / "order").read_text().split()


# -- what is refused, each with one line ----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["register"], ["submit", "--detach", "--queue", "q"]])
def test_what_can_never_start_is_refused_and_not_registered(baton, verb):
    failed, cancelled = (baton("register", "x").text for _ in range(2))
    baton("status", failed, "--set", "running")
    baton("status", failed, "--set", "error")
    baton("cancel", cancelled)
    for options, code, words in (
        (["--after", "deadbeef"], 1, "no job deadbeef"),
        (["--after", failed], 1, f"after job {failed}, which failed, would never start"),
        (["--after", cancelled], 1, f"after job {cancelled}, which was cancelled"),
        (["--after", "no id"], 64, "no id"),
        (["--backoff", "5s"], 64, "give retries, too"),
        (["--retries", "-1"], 64, "at least 0"),
        (["--not-before", "soon"], 64, "--not-before must be a duration"),
        (["--not-before", "2026-01-01T10:00:00"], 64, "--not-before must be a duration"),
    ):
        assert words in baton.refused(*verb, "x", *options, code=code), options
    retried = baton("retry", failed, "--detach").text
    assert f"it was retried as {retried}" in baton.refused(*verb, "x", "--after", failed, code=1)
    assert len(baton("list", "--json").json) == 3


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (lines({"prompt": "1", "title": "a", "after": ["b"]}, {"prompt": "2", "title": "b", "after": ["a"]}), "circle"),
        (lines({"prompt": "1", "title": "a", "after": ["a"]}), "circle"),
        (lines({"prompt": "1", "title": "a", "after": ["nope"]}), "'nope' is neither the id"),
        (lines({"prompt": "1", "title": "a"}, {"prompt": "2", "title": "a"}, {"prompt": "3", "after": "a"}), "several"),
        (lines({"prompt": "1", "after": 7}), "after must be a list"),
        (lines({"prompt": "1", "backoff_sec": 7}), "give retries, too"),
        (lines({"prompt": "1", "not_before": "10 pm"}), "not_before is not a time"),
    ],
)
def test_a_batch_that_cannot_be_done_is_refused_as_a_whole(baton, batch, words):
    assert words in baton.refused("submit", "--batch", "-", stdin=batch, code=64)
    assert baton("list", "--json").json == []


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_a_user_sees_what_a_job_waits_for(baton):
    first = baton("register", "1").text
    second = baton("register", "2", "--after", first[:6]).text
    late = baton("register", "3", "--not-before", "2200-01-01").text
    assert baton("get", second).json["waits_for"] == baton("get", second).json["after"] == [first]
    shown = baton("list").text
    assert f"after {first}" in shown
    assert "not before 2200-01-01T00:00:00Z" in shown
    assert f"after {first}" in baton("explain", second).text
    assert "not before" in baton("explain", late).text
    assert f"waits and cannot start yet: after {first}" in baton.refused("publish", second, "--event", "started")
    assert "cannot start yet" in baton.refused("status", second, "--set", "running")
    assert baton("pick").text == first
    assert "no pending job" in baton.refused("pick", code=3)
    baton("status", first, "--set", "completed")
    assert baton("pick").text == second


def test_the_history_of_a_job_names_the_predecessor_that_failed(office):
    first = office("register", "1").text
    second = office("register", "2", "--after", first).text
    third = office("register", "3", "--after", second).text
    office("publish", first, "--event", "error", "--detail", "no")
    for job, before in ((second, first), (third, second)):
        record = office("get", job).json
        assert (record["status"], record["ended_by"]) == ("error", "predecessor")
        assert before in record["reason"]
        events = [line["event"] for line in read_log(office, job)]
        assert events == ["registered", "status_changed", "status_changed", "published"]
        office("logs", job, "--verify")


def test_a_failed_attempt_is_a_requeue_in_the_history(office):
    job = office("register", "1", "--retries", "1", "--backoff", "1h").text
    office("pick")
    office("publish", job, "--event", "error", "--detail", "no luck")
    record = office("get", job).json
    assert (record["status"], record["failed_attempts"], record["reason"]) == ("pending", 1, None)
    assert "not before" in office("list").text
    log = read_log(office, job)
    assert [line["event"] for line in log] == ["registered", "status_changed", "requeued", "published"]
    assert log[-1]["payload"]["event"] == "progress"
    assert log[-1]["payload"]["data"]["attempt_failed"] == 1


# -- what runs -------------------------------------------------------------------------------------------------------


def test_a_batch_runs_in_its_order_and_tries_again(office):
    batch = lines(
        {"title": "c", "prompt": "echo c >> order", "after": ["a", "b"]},
        {"title": "a", "prompt": "echo a >> order"},
        {"title": "b", "prompt": "echo b >> order; test $(wc -l < order) -eq 3", "after": ["a"], "retries": 1},
    )
    office.submit("--batch", "-", stdin=batch)
    assert order_of(office) == ["a", "b", "b", "c"]


def test_submit_does_not_time_out_while_its_job_is_blocked(office):
    first = office("register", "--queue", "by hand", "x").text
    submit = office.start("submit", "true", "--after", first, "--timeout", "3", "--idle-timeout", "2")
    (second,) = wait_until(lambda: [job["job_id"] for job in office.jobs("pending") if job["after"]])
    wait = office.start("wait", second)
    # Longer than both limits of the job: only time can show that neither is counted.
    wait_until(lambda: _age_sec(office, second) > 3.5, "for the limits to pass")
    assert submit.process.poll() is wait.process.poll() is None
    office("publish", first, "--event", "completed")
    assert submit.process.wait(30) == wait.process.wait(30) == 0, submit.err


def _age_sec(office, job_id):
    return (time.time_ns() - parse_time(office.job(job_id)["created_at"])) / 1e9


def test_a_detached_job_that_waits_is_started_by_a_process_in_the_background(office):
    first = office("register", "--queue", "by hand", "x").text
    second = office.detached("echo b >> order", "--after", first)
    assert office.job(second)["status"] == "pending"
    office("publish", first, "--event", "completed")
    office.wait_for_status(second, "completed")


def test_the_monitor_starts_a_job_whose_submitter_died_while_it_waited(office):
    first = office("register", "--queue", "by hand", "x").text
    submit = office.start("submit", "echo b >> order", "--after", first)
    (second,) = wait_until(lambda: [job["job_id"] for job in office.jobs("pending") if job["after"]])
    submit.process.send_signal(signal.SIGKILL)
    submit.process.wait()
    monitor = office.start("monitor", "--interval", "0.2")
    monitor.says("watching")
    assert office.job(second)["status"] == "pending"
    office("publish", first, "--event", "completed")
    office.wait_for_status(second, "completed")


def test_a_worker_waits_for_what_is_blocked_in_its_queue(office):
    first = office("register", "echo a >> order").text
    office("register", "echo b >> order", "--after", first, "--retries", "1")
    office("register", "echo c >> order; test $(wc -l < order) -ge 4", "--retries", "1", "--backoff", "1s")
    office("worker", "--agent", "shell", "--until-empty")
    assert sorted(order_of(office)) == ["a", "b", "c", "c"]
    assert order_of(office).index("a") < order_of(office).index("b")


def test_a_retry_comes_after_the_retries_of_its_predecessors(office):
    first = office("register", "--queue", "q", "echo a >> order").text
    second = office("register", "--queue", "q", "echo b >> order", "--after", first).text
    office("publish", first, "--event", "error")
    assert f"baton retry {first} {second}" in office.refused("retry", second, "--detach")
    new_second, new_first = office("retry", second, first, "--detach").text.split()
    assert office.job(new_second)["waits_for"] == [new_first]


def test_python_orders_jobs(office):
    where = {"home": str(office.settings.home)}
    first = package.register_job("x", agent="shell", agent_session="q", **where)
    late = package.register_job("y", agent="shell", after=[first.job_id], retries=2, backoff_sec=3, **where)
    assert (late.waits_for, late.retries, late.backoff_sec) == ((first.job_id,), 2, 3)
    with pytest.raises(package.JobNotFound):
        package.register_job("y", agent="shell", after=["deadbeef"], **where)
    with pytest.raises(package.BatonError, match="baton monitor"):
        package.submit("true", agent="shell", after=[first.job_id], detach=True, workdir=str(office.folder), **where)
