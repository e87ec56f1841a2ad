"""A worker keeps taking the jobs of its queue: its own only, so many at a time, and none is lost when it ends."""

from __future__ import annotations

import re
import signal

import pytest

from support.office import Office, together
from support.waiting import wait_until


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path, BATON_LEASE_SEC="3") as office:
        yield office


def register(office, *prompts, label="tmux:shell", **env):
    return [office("register", each, "--agent-session", label, **env).text for each in prompts]


def statuses(office, job_ids):
    return [office.job(job_id)["status"] for job_id in job_ids]


def test_it_takes_the_jobs_of_its_own_queue_until_that_is_empty(office, tmp_path):
    (tmp_path / "gone").mkdir()
    mine = register(office, "echo a >> order", "echo b >> order; exit 3", "echo c >> order", label="mine")
    lost = office("register", "true", "--agent-session", "mine", "--workdir", "gone").text
    last = register(office, "echo d >> order", label="mine")
    other = register(office, "echo x >> order", label="other")
    (tmp_path / "gone").rmdir()
    done = office("worker", "--agent-session", "mine", "--until-empty")
    lines = done.err.splitlines()
    assert re.fullmatch(r"baton: 3 done, 2 failed in (\d+m)?\d+s", lines[-1]), lines
    failed = rf"baton: job {mine[1]}: error after \d+s: the command ended with exit code 3"
    assert any(re.fullmatch(failed, line) for line in lines), lines
    assert done.err.count("is not a folder") == 1
    assert (tmp_path / "order").read_text().split() == ["a", "b", "c", "d"]
    assert statuses(office, [*mine, lost, *last]) == ["completed", "error", "completed", "error", "completed"]
    assert "is not a folder" in office.job(lost)["detail"]
    assert statuses(office, other) == ["pending"]
    wait_until(lambda: not office.sessions())


def test_so_many_at_a_time_and_never_more(office, tmp_path):
    job_ids = register(office, *(together(number, 3) for number in range(6)))
    office("worker", "--concurrency", "3", "--until-empty")
    assert set(statuses(office, job_ids)) == {"completed"}
    assert max(int(count) for count in (tmp_path / "counts").read_text().split()) == 3


def test_it_ends_when_a_migration_has_moved_its_registry(office, tmp_path):
    register(office, "true", label="other")
    worker = office.start("worker")
    worker.says("taking jobs")
    office("registry", "migrate", "--to", f"sqlite:{tmp_path}/new.db")
    ended = worker.end()
    assert ended.code == 1
    assert ended.err.count("this registry was moved to") == 1


def test_the_monitor_ends_too(office, tmp_path):
    register(office, "true", label="other")
    monitor = office.start("monitor", "--interval", "0.05")
    monitor.says("watching")
    office("registry", "migrate", "--to", f"sqlite:{tmp_path}/new.db")
    ended = monitor.end()
    assert ended.code == 1
    assert f"the jobs were moved to sqlite:{tmp_path}/new.db; start the monitor again" in ended.err


def test_it_ends_after_so_many(office):
    job_ids = register(office, "true", "true", "true")
    office("worker", "--max-jobs", "2", "--concurrency", "2")
    assert sorted(statuses(office, job_ids)) == ["completed", "completed", "pending"]


def test_sigterm_lets_what_is_at_work_end_and_takes_no_more(office, tmp_path):
    first, second = register(office, "touch begun; while ! test -e enough; do sleep 0.05; done", "true")
    worker = office.start("worker")
    wait_until((tmp_path / "begun").exists)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stopping when" in worker.err)
    assert worker.process.poll() is None
    (tmp_path / "enough").write_text("")
    assert worker.end().code == 0
    assert statuses(office, [first, second]) == ["completed", "pending"]


def test_a_second_sigterm_hands_back_what_is_at_work(office, tmp_path):
    (job_id,) = register(office, "touch begun; test $BATON_ATTEMPT = 2 || sleep 1234")
    worker = office.start("worker")
    wait_until((tmp_path / "begun").exists)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stopping when" in worker.err)
    worker.signal(signal.SIGTERM)
    done = worker.end()
    assert done.code == 0
    assert f"job {job_id}: requeued" in done.err
    job = office.job(job_id)
    assert (job["status"], job["attempt"], job["claimed_by"]) == ("pending", 1, None)
    wait_until(lambda: not office.agents())
    wait_until(lambda: not office.sessions())
    office("worker", "--max-jobs", "1")
    job = office.job(job_id)
    assert (job["status"], job["attempt"]) == ("completed", 2)
    assert [line["reason"] for line in office.audit(job_id) if line["event"] == "requeued"] == ["the worker stopped"]


def test_a_killed_workers_jobs_are_finished_and_the_next_takes_the_rest(office, tmp_path):
    work = "touch begun.{0}; while ! test -e enough; do sleep 0.05; done; echo {0} >> done"
    job_ids = register(office, *(work.format(number) for number in range(3)))
    worker = office.start("worker", "--concurrency", "2")
    wait_until(lambda: all((tmp_path / f"begun.{number}").exists() for number in (0, 1)))
    worker.kill()
    (tmp_path / "enough").write_text("")
    office("worker", "--until-empty")
    for job_id in job_ids:
        office.wait_for_status(job_id, "completed")
    assert sorted((tmp_path / "done").read_text().split()) == ["0", "1", "2"]
    wait_until(lambda: not office.sessions())


def test_two_workers_do_every_job_of_one_queue_exactly_once(office, tmp_path):
    job_ids = register(office, *(f"echo {number} >> done" for number in range(8)))
    workers = [office.start("worker", "--concurrency", "2", "--until-empty") for _ in range(2)]
    assert [worker.end().code for worker in workers] == [0, 0]
    assert set(statuses(office, job_ids)) == {"completed"}
    assert sorted((tmp_path / "done").read_text().split()) == [str(number) for number in range(8)]


def test_a_cancelled_job_makes_room_for_the_next(office, tmp_path):
    first, second = register(office, "touch begun; sleep 1234", "true")
    worker = office.start("worker", "--until-empty")
    wait_until((tmp_path / "begun").exists)
    office("cancel", first)
    assert worker.end().code == 0
    assert statuses(office, [first, second]) == ["cancelled", "completed"]


def test_what_cannot_work_is_refused_at_once(office, tmp_path):
    register(office, "true")
    for arguments, words in (
        (("--agent", "hal"), "hal"),
        (("--concurrency", "0"), "--concurrency must be at least 1"),
        (("--max-jobs", "0"), "--max-jobs must be at least 1"),
        (("--drain", "nan"), "--drain must be"),
        (("--workdir", "/gone"), "/gone is not a folder"),
    ):
        assert words in office.refused("worker", *arguments, code=64)
    (tmp_path / "bin").mkdir()
    assert "codex" in office.refused("worker", "--agent", "codex", PATH=str(tmp_path / "bin"))  # it is not installed
    assert office.the_job()["status"] == "pending"


def test_it_survives_a_registry_that_is_away_for_a_moment(office, tmp_path, postgres):
    shared = {"BATON_REGISTRY": postgres.new_url()}
    (first,) = register(office, "touch begun; sleep 1", **shared)
    worker = office.start("worker", "--max-jobs", "2", **shared)
    wait_until((tmp_path / "begun").exists)
    postgres.stop()
    worker.says("trying again")
    postgres.start()
    (second,) = register(office, "true", **shared)
    assert worker.end().code == 0
    jobs = {job["job_id"]: job["status"] for job in office("list", "--json", **shared).json}
    assert jobs[second] == "completed"
    assert jobs[first] in ("completed", "error", "pending")


def test_until_empty_does_not_end_while_a_lost_job_is_back_in_the_queue(office, tmp_path):
    """The worker has found the queue empty before its last job returned there."""
    work = "test -e again || { touch again; sleep 1.5; kill -9 $PPID; sleep 60; }"
    job = office("register", work, "--max-attempts", "2").text
    office("worker", "--concurrency", "2", "--until-empty")
    assert statuses(office, [job]) == ["completed"]
    assert office.job(job)["attempt"] == 2


def test_until_empty_does_not_end_while_its_last_job_has_added_another(office, tmp_path):
    first = office("register", "sleep 1.5; baton register --agent shell 'touch second'").text
    office("worker", "--concurrency", "2", "--until-empty")
    assert set(statuses(office, [first, *(job["job_id"] for job in office.jobs())])) == {"completed"}
    assert (tmp_path / "second").exists()
