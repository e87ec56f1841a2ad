"""The commands as Python functions: the same conditions, outcomes and exceptions. This file is checked by mypy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

import baton
from support.office import Office
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """One home, broker and tmux server for all tests: each has a folder of its own in it."""
    with Office(tmp_path_factory.mktemp("python")) as office:
        yield office


@pytest.fixture(autouse=True)
def folder(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The work folder of a test. The process has the environment of the office, as a script there would have it."""
    for name in os.environ.keys() - office.env.keys() - {"PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"}:
        monkeypatch.delenv(name)
    for name, value in office.env.items():
        monkeypatch.setenv(name, value)
    folder = Path(office.folder) / tmp_path.name
    folder.mkdir()
    monkeypatch.chdir(office.folder)
    return folder


WAITS = "touch begun; while ! test -e go; do sleep 0.05; done"


def test_a_job_is_submitted_and_its_outcome_returned(folder: Path) -> None:
    seen: list[baton.Event] = []
    outcome = baton.submit(
        "baton publish --event progress --detail half; echo 42 > answer.txt",
        workdir=str(folder), expect=["answer.txt"], validate="grep 42 answer.txt", on_event=seen.append,
        title="the answer", idempotency_key="answer",
    )  # fmt: skip
    assert_type(outcome, baton.Outcome)
    assert (outcome.status, outcome.exit_code, outcome.ok, outcome.problem) == ("completed", 0, True, None)
    assert outcome.check() is outcome
    assert outcome.job.title == "the answer"
    with pytest.raises(baton.KeyTaken, match=outcome.job.job_id):
        baton.register_job("other", agent="shell", idempotency_key="answer")
    assert [each.event for each in seen] == ["started", "progress", "completed"]
    assert (seen[1].detail, seen[1].attempt, seen[1].job_id) == ("half", 1, outcome.job.job_id)
    assert isinstance(seen[1].event, baton.EventName)
    kept = baton.get_job(outcome.job.job_id)
    assert kept.seen_at is not None
    assert kept.replace(seen_at=None) == outcome.job


def test_what_a_job_left_is_read(folder: Path) -> None:
    job = baton.submit(
        f"{WAITS}; echo a line; echo 42 > answer.txt", workdir=str(folder), expect=["answer.txt"],
        validate="echo checked", detach=True,
    )  # fmt: skip
    with pytest.raises(baton.BatonError, match="is still running"):
        baton.result(job.job_id)
    (folder / "go").touch()
    assert baton.wait(job.job_id).ok
    result = baton.result(job.job_id)
    assert_type(result, baton.JobResult)
    assert (result.status, result.validation, result.attempts, result.workdir) == (
        "completed",
        "checked",
        1,
        str(folder),
    )
    assert [(each["path"], each["size"]) for each in result.artifacts] == [("answer.txt", 3)]
    assert b"a line\n" in b"".join(baton.read_output(job.job_id))


def test_a_failure_is_an_outcome_and_check_raises_it(folder: Path) -> None:
    outcome = baton.submit("echo done", workdir=str(folder), expect=["report.md"])
    assert (outcome.status, outcome.exit_code, outcome.ok) == ("error", 1, False)
    assert "report.md is missing" in (outcome.reason or "")
    with pytest.raises(baton.JobFailed, match=r"is error: .*report\.md is missing") as error:
        outcome.check()
    assert (error.value.exit_code, error.value.outcome) == (1, outcome)


def test_a_job_that_is_out_of_time_has_an_exit_code_of_its_own(folder: Path) -> None:
    outcome = baton.submit("sleep 100", workdir=str(folder), timeout_sec=1)
    assert (outcome.status, outcome.exit_code, outcome.ended_by) == ("error", 2, "timeout")


def test_several_tasks_end_in_their_order(folder: Path) -> None:
    outcomes = baton.submit_many(
        [{"prompt": "exit 3"}, {"prompt": "echo b > b.txt", "expect": ["b.txt"]}],
        parallel=2, workdir=str(folder), labels=["mine"],
    )  # fmt: skip
    assert_type(outcomes, list[baton.Outcome])
    assert [(each.exit_code, each.job.prompt[:4], each.job.labels) for each in outcomes] == [
        (1, "exit", ("mine",)), (0, "echo", ("mine",)),
    ]  # fmt: skip
    assert baton.submit_many([]) == []


def test_a_detached_job_is_waited_for_cancelled_and_retried(folder: Path, office: Office) -> None:
    job = baton.submit(WAITS, workdir=str(folder), detach=True, max_attempts=2)
    assert_type(job, baton.Job)
    assert (job.status, job.attempt) == ("running", 1)
    # This process lives on, and does not look after the job: another may start its next attempt.
    from baton.delegation.attempts import submitter_is_dead

    assert submitter_is_dead(job, office.settings.host)
    wait_until((folder / "begun").exists, "for the agent")
    with pytest.raises(baton.TimedOut, match=r"0\.2 s have passed") as late:
        baton.wait(job.job_id, timeout_sec=0.2)
    assert (late.value.exit_code, late.value.job_ids) == (2, [job.job_id])
    with pytest.raises(baton.BatonError, match=r"is running: with a retry, two agents .*force=True"):
        baton.retry(job.job_id)
    session = baton.get_session(job.job_id)
    assert (session.name, session.state) == (f"job-{job.job_id}-1", "running")
    assert baton.cancel(job.job_id, reason="enough").status is baton.Status.CANCELLED
    outcome = baton.wait(job.job_id)
    assert (outcome.status, outcome.exit_code, outcome.ended_by, outcome.reason) == (
        "cancelled", 4, "cancelled", "enough",
    )  # fmt: skip
    with pytest.raises(baton.IllegalTransition):
        baton.update_status(job.job_id, "completed")
    (folder / "go").touch()
    again = baton.retry(job.job_id)
    assert_type(again, baton.Outcome)
    assert (again.exit_code, again.job.prompt, again.job.max_attempts) == (0, WAITS, 2)
    assert again.job.job_id != job.job_id
    assert (again.job.retry_of, baton.get_job(job.job_id).retried_by) == (job.job_id, again.job.job_id)
    with pytest.raises(baton.AgentUnusable, match=r"shell keeps no conversation"):
        baton.follow_up(job.job_id, "and more")


def test_events_are_typed_and_end_with_the_job(folder: Path) -> None:
    job = baton.submit(WAITS, workdir=str(folder), detach=True)
    seen = []
    for event in baton.events(job.job_id, timeout_sec=30):
        assert_type(event, baton.Event)
        seen.append((event.seq, event.event, event.attempt))
        (folder / "go").touch()
    assert seen == [(1, baton.EventName.STARTED, 1), (2, baton.EventName.COMPLETED, 1)]
    assert [event.seq for event in baton.events(job.job_id)] == [1, 2]
    with pytest.raises(baton.JobNotFound):
        baton.events("00000000")


def test_events_of_a_job_that_goes_on_end_with_an_error() -> None:
    job = baton.register_job("x", agent="nobody")
    with pytest.raises(baton.TimedOut) as late:
        list(baton.events(job.job_id, timeout_sec=0.2))
    assert late.value.job_ids == [job.job_id]
    baton.cancel(job.job_id)
    assert list(baton.events(job.job_id)) == []


def test_several_threads_submit_and_wait_at_once(folder: Path) -> None:
    found: list[baton.Outcome] = []

    def work(number: int) -> None:
        found.append(baton.submit(f"echo {number} > {number}.txt", workdir=str(folder), expect=[f"{number}.txt"]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.exit_code for outcome in found] == [0, 0]
    ids = [outcome.job.job_id for outcome in found]
    assert [outcome.job.job_id for outcome in baton.wait_all(ids)] == ids


def test_a_worker_runs_a_queue_and_can_be_stopped(folder: Path) -> None:
    jobs = [
        baton.register_job(prompt, agent="shell", agent_session="python", workdir=str(folder))
        for prompt in ("true", "exit 4")
    ]
    lines: list[str] = []
    assert baton.run_worker("python", until_empty=True, workdir=str(folder), log=lines.append) == {
        "completed": 1,
        "error": 1,
    }
    assert [baton.wait(job.job_id).exit_code for job in jobs] == [0, 1]
    assert any(line.startswith(f"job {jobs[0].job_id}: completed after ") for line in lines)
    stop = threading.Event()
    stop.set()
    assert baton.run_worker("python", stop=stop) == {}
    for wrong in ({"concurrency": 0}, {"max_jobs": 0}, {"workdir": "gone"}):
        with pytest.raises(baton.InvalidValue, match=next(iter(wrong))):
            baton.run_worker("python", **wrong)


def test_a_session_is_created_used_stopped_and_resumed(folder: Path) -> None:
    session = baton.create_session("desk", workdir=str(folder))
    assert_type(session, baton.Session)
    assert [each.name for each in baton.list_sessions()] == ["desk"]
    with pytest.raises(baton.NameInUse):
        baton.create_session("desk", workdir=str(folder))
    baton.send_text("desk", "echo $((6 * 7))")
    wait_until(lambda: "\n42" in baton.capture_screen("desk"), "for the answer")
    command = baton.attach_command("desk", read_only=True)
    assert command[0] == "tmux"
    assert command[-4:] == ["-E", "-r", "-t", "=desk"]
    outcome = baton.submit("echo here > here.txt", session="desk", expect=["here.txt"])
    assert (outcome.exit_code, outcome.job.workdir) == (0, str(folder))
    assert (folder / "here.txt").exists()
    stopped = baton.stop_session("desk", reason="enough")
    assert (stopped.state, stopped.reason) == ("stopped", "enough")
    assert baton.list_sessions() == []
    with pytest.raises(baton.SessionGone):
        baton.attach_command("desk")
    assert baton.resume_session("desk").state == "running"
    baton.stop_session("desk", mode="hard")
    assert baton.get_session("desk").state == "terminated"
    assert "desk" in [each.name for each in baton.list_sessions(ended=True)]
    with pytest.raises(baton.SessionNotFound):
        baton.get_session("nowhere")


REFUSED: list[tuple[str, Callable[[], object], type[baton.BatonError]]] = [
    ("agent", lambda: baton.submit("x", agent="no-such-agent"), baton.BatonError),
    ("outside the work folder", lambda: baton.submit("x", expect=["../x"]), baton.InvalidValue),
    ("is not a folder", lambda: baton.submit("x", workdir="gone"), baton.InvalidValue),
    ("excludes to and queue", lambda: baton.submit("x", session="a", queue="b"), baton.InvalidValue),
    ("leave it out", lambda: baton.submit("x", session="a", agent="shell"), baton.InvalidValue),
    ("'nowhere'", lambda: baton.submit("x", session="nowhere"), baton.SessionNotFound),
    ("nowhere", lambda: baton.submit("x", to="nowhere"), baton.AgentNotFound),
    ("colour", lambda: baton.submit("x", colour="red"), baton.InvalidValue),  # type: ignore[call-overload]
    ("parallel", lambda: baton.submit_many([{"prompt": "x"}], parallel=0), baton.InvalidValue),
    ("expect", lambda: baton.submit_many([{"prompt": "x"}, {"prompt": "x", "expect": "y"}]), baton.InvalidValue),
    ("00000000", lambda: baton.wait("00000000"), baton.JobNotFound),
    ("00000000", lambda: baton.result("00000000"), baton.JobNotFound),
    ("00000000", lambda: baton.read_output("00000000"), baton.JobNotFound),
    ("00000000", lambda: baton.retry("00000000"), baton.JobNotFound),
    ("00000000", lambda: baton.cancel("00000000"), baton.JobNotFound),
    ("00000000", lambda: baton.follow_up("00000000", "x"), baton.JobNotFound),
    ("workdir", lambda: baton.follow_up("00000000", "x", workdir="/"), baton.InvalidValue),
    ("mode", lambda: baton.stop_session("x", mode="gently"), baton.InvalidValue),
    ("needs a task", lambda: baton.create_session("x", headless=True), baton.InvalidValue),
]


@pytest.mark.parametrize(("words", "call", "error"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_a_command_refuses_is_refused(
    words: str, call: Callable[[], object], error: type[baton.BatonError], office: Office
) -> None:
    before = len(office.jobs())
    with pytest.raises(error, match=words):
        call()
    assert len(office.jobs()) == before


def test_what_is_typed_while_a_session_has_a_job_is_in_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = baton.submit("read line; echo $line > typed.txt", workdir=str(folder), expect=["typed.txt"], detach=True)
    with monkeypatch.context() as inside:
        inside.setenv("BATON_SESSION_ID", "0" * 16)
        with pytest.raises(baton.BatonError, match="refused inside a session"):
            baton.send_text(job.job_id, "no")
    baton.send_text(job.job_id, "yes")
    assert baton.wait(job.job_id).ok
    assert (folder / "typed.txt").read_text() == "yes\n"
    assert [line["detail"] for line in baton.iter_logged_events(job.job_id) if line["event"] == "typed"] == ["yes"]


def test_yolo_is_refused_inside_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_SESSION_ID", "0" * 16)
    for call in (
        lambda: baton.submit("x", yolo=True),
        lambda: baton.create_session("x", yolo=True),
        lambda: baton.run_worker(yolo=True),
    ):
        with pytest.raises(baton.BatonError, match="refused inside a session"):
            call()


def test_an_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import baton; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "baton"]
