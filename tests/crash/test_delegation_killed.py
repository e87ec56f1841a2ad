"""Everything that takes part in a delegation is killed in the middle of it, one at a time: the job reaches a true end or
is taken up again, never both, and is never `running` for ever. And the monitor's half of R6."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from baton.core.clock import parse_time
from support.office import Office
from support.waiting import wait_until

LEASE_SEC = 2
WORK = "echo $$ > agent; while ! test -e enough; do sleep 0.05; done; echo done > out"
VALIDATE = "echo x >> validated"

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long
WAIT_FOR_ALL_KINDS = 0x40000000
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path, BATON_LEASE_SEC=str(LEASE_SEC)) as office:
        yield office


def begin(office):
    """A submitted job in the middle of its work, and a monitor."""
    monitor = office.start("monitor", "--interval", "0.3")
    monitor.says("watching")
    submit = office.start("submit", WORK, "--expect", "out", "--validate", VALIDATE)
    submit.says("started")
    wait_until((office.folder / "agent").exists)
    return monitor, submit, office.the_job()["job_id"]


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def the_agent(office, *_):
    kill(int((office.folder / "agent").read_text()))


def the_runner(office, _monitor, _submit, job_id):
    kill(office.session_of(job_id)["pane_pid"])


def the_pane(office, _monitor, _submit, job_id):
    office.tmux("kill-pane", "-t", office.session_of(job_id)["pane_id"])


def the_tmux_server(office, *_):
    kill(int(office.tmux("display-message", "-p", "#{pid}")))


def the_subscriber(_office, _monitor, submit, _job_id):
    submit.kill()


def the_broker(office, *_):
    kill(next(iter(office.processes("nats-server"))))


def the_monitor(_office, monitor, *_):
    monitor.kill()


def published(office, job_id):
    return [line["payload"]["event"] for line in office.audit(job_id) if line["event"] == "published"]


def ends_of(office, job_id):
    return [line for line in office.audit(job_id) if line["event"] == "status_changed" and line["to"] != "running"]


def check(office, job_id, status):
    """One end, and only one; in the audit log too; nothing at work any more."""
    job = office.wait_for_status(job_id, "completed", "error", "cancelled")
    assert job["status"] == status, job
    wait_until(lambda: not office.sessions() and not office.agents(), "for an empty house")
    said = wait_until(lambda: (said := published(office, job_id))[-1:] == [status] and said, "for the log to follow")
    log = office.audit(job_id)
    ends = [line["to"] for line in log if line["event"] == "status_changed" and line["to"] in ("completed", "error")]
    assert ends == [status]
    assert said.count("completed") + said.count("error") == 1
    assert office("logs", job_id, "--verify").code == 0
    validated = office.folder / "validated"
    assert (validated.read_text().count("x") if validated.exists() else 0) == (status == "completed")


@pytest.mark.parametrize(
    ("victim", "status", "code"),
    [
        (the_agent, "error", 1),
        (the_runner, "error", 1),
        (the_pane, "error", 1),
        (the_tmux_server, "error", 1),
        (the_subscriber, "completed", None),
        (the_broker, "completed", 0),
        (the_monitor, "completed", 0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_is_killed_in_the_middle_of_a_job(office, figure, victim, status, code):
    monitor, submit, job_id = begin(office)
    began = time.monotonic()
    victim(office, monitor, submit, job_id)
    if status == "completed":
        (office.folder / "enough").write_text("")
    check(office, job_id, status)
    took = time.monotonic() - began
    if code is not None:
        assert submit.end().code == code
    if victim is the_monitor:
        office.start("monitor", "--interval", "0.3")
    wait_until(lambda: office.unsent() == 0, "until all is sent")
    figure(f"SIGKILL of {victim.__name__.replace('_', ' ')}", f"{status}, {took:.1f} s later", held=took < 30)


@pytest.mark.parametrize("victim", [the_agent, the_runner, the_tmux_server], ids=lambda each: each.__name__)
def test_without_a_monitor_whoever_waits_for_the_job_notices(office, victim):
    submit = office.start("submit", WORK, "--expect", "out")
    submit.says("started")
    wait_until((office.folder / "agent").exists)
    victim(office, None, submit, job_id := office.the_job()["job_id"])
    assert submit.end().code == 1
    check(office, job_id, "error")


def test_without_a_monitor_also_wait_notices(office):
    job_id = office.detached(WORK)
    waiting = office.start("wait", job_id)
    kill(office.session_of(job_id)["pane_pid"])
    assert waiting.end().code == 1
    check(office, job_id, "error")


def test_a_killed_workers_job_is_finished_all_the_same(office, figure):
    office.start("monitor", "--interval", "0.3")
    job_id = office("register", WORK, "--expect", "out", "--validate", VALIDATE).text
    worker = office.start("worker", "--concurrency", "2")
    wait_until((office.folder / "agent").exists)
    worker.kill()
    last_ns = parse_time(office.job(job_id)["lease_expires_at"])
    wait_until(lambda: time.time_ns() > last_ns, "the end of the last lease that the worker saw")
    job = office.job(job_id)
    assert job["status"] == "running"
    assert parse_time(job["lease_expires_at"]) > last_ns, "the runner renews it without the worker"
    (office.folder / "enough").write_text("")
    check(office, job_id, "completed")
    figure("SIGKILL of the worker", "completed", held=office.job(job_id)["attempt"] == 1)


def test_the_runner_of_a_workers_job_is_killed(office, figure):
    office.start("monitor", "--interval", "0.3")
    job_id = office("register", WORK).text
    worker = office.start("worker", "--max-jobs", "1")
    wait_until((office.folder / "agent").exists)
    began = time.monotonic()
    kill(office.session_of(job_id)["pane_pid"])
    check(office, job_id, "error")
    assert worker.end().code == 0
    figure("SIGKILL of a worker's runner", f"error, {time.monotonic() - began:.1f} s later", held=True)


def test_a_holder_that_died_before_it_began_is_followed_by_the_next(office, figure):
    office.start("monitor", "--interval", "0.3")
    job_id = office("register", "echo $BATON_ATTEMPT > out", "--expect", "out", "--max-attempts", "2").text
    assert office("pick", "--lease", "1").text == job_id
    worker = office.start("worker", "--max-jobs", "1")
    assert worker.end().code == 0
    check_attempt(office, job_id)
    figure("A holder that died before it began", "taken up again, completed on attempt 2", held=True)


def check_attempt(office, job_id):
    job = office.job(job_id)
    assert (job["status"], job["attempt"]) == ("completed", 2)
    assert (office.folder / "out").read_text() == "2\n"


def test_a_runner_that_hangs_is_followed_by_the_next_and_changes_nothing_when_it_wakes(office, figure):
    office.start("monitor", "--interval", "0.3").says("watching")
    work = "test $BATON_ATTEMPT = 1 && { touch first; sleep 1234; }; echo $BATON_ATTEMPT > out"
    submit = office.start("submit", work, "--expect", "out", "--max-attempts", "2")
    wait_until((office.folder / "first").exists)
    job_id = office.the_job()["job_id"]
    session = office.session_of(job_id)
    wait_until_begun(office, session)
    with hung(session["pane_pid"]):
        assert submit.end().code == 0, submit.err
    check_attempt(office, job_id)
    wait_until(lambda: not office.sessions() and not office.agents())
    assert [line["to"] for line in office.audit(job_id) if line["event"] == "status_changed"] == [
        "running", "running", "completed",
    ]  # fmt: skip
    figure("A runner that hangs past its lease", "taken up again, completed on attempt 2", held=True)


@contextmanager
def hung(pid):
    """None of its threads gets any further. A mere SIGSTOP would not do: tmux wakes what it started."""
    threads = wait_until(lambda: hang(pid), "for a moment at which it holds no lock")
    try:
        yield
    finally:
        let_go(threads)


def hang(pid):
    """The threads that are held; none when it would have been held with a lock of its own, which nobody could take."""
    threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    for thread in threads:
        trace(PTRACE_SEIZE, thread)
        trace(PTRACE_INTERRUPT, thread)
    wait_until(lambda: all(state(thread) == "t" for thread in threads), "for the last of its threads")
    if not any(f"WRITE {pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
        return threads
    let_go(threads)
    return []


def let_go(threads):
    for thread in reversed(threads):
        try:
            trace(PTRACE_DETACH, thread)
        except ProcessLookupError:  # killed meanwhile: nobody else learns of its end before us
            os.waitpid(thread, WAIT_FOR_ALL_KINDS)


def trace(request, thread):
    if LIBC.ptrace(request, thread, None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def state(thread):
    return re.search(r"^State:\t(.)", Path(f"/proc/{thread}/status").read_text(), re.MULTILINE)[1]


def test_jobs_whose_submitter_was_killed_before_they_began_do_not_wait_for_ever(office, figure):
    (office.folder / "batch").write_text('{"prompt": "sleep 1234"}\n{"prompt": "true"}\n')
    submit = office.start("submit", "--batch", "batch", "--parallel", "1")
    submit.says("started")
    submit.kill()
    first, second = (office.jobs(status)[0]["job_id"] for status in ("running", "pending"))
    said = office("monitor", "--once", BATON_LEASE_SEC="60").out
    assert second not in said  # it may be about to begin it
    (library,) = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    later = {"LD_PRELOAD": library, "FAKETIME": "+40s", "DONT_FAKE_MONOTONIC": "1"}
    said = office("monitor", "--once", **later).out
    assert f"job {second}: the process that submitted it ended before it began: ended as error" in said
    assert office.job(second)["status"] == "error"
    assert office.job(first)["status"] == "running"
    office("cancel", first)
    wait_until(lambda: not office.sessions())
    figure("SIGKILL of the submitter of a batch", "what had not begun is an error, what had goes on", held=True)


RETRIED = "echo $BATON_ATTEMPT >> attempts; test $BATON_ATTEMPT = 3 || sleep 1234; echo done > out"


def kill_the_runners(office, job_id, attempts):
    for attempt in attempts:
        wait_until(lambda wanted=str(attempt): wanted in attempted(office), f"for attempt {attempt}")
        session = next(each for each in office.sessions() if each["name"] == f"job-{job_id}-{attempt}")
        wait_until_begun(office, session)
        kill(session["pane_pid"])
        yield session


def wait_until_begun(office, session):
    """Before, its starter waits for it, longer than a test does."""
    wait_until((office.folder / ".hermes" / "sessions" / session["session_id"] / "begun.json").exists)


def attempted(office):
    path = office.folder / "attempts"
    return path.read_text().split() if path.exists() else []


def requeues(office, job_id):
    return [line["reason"] for line in office.audit(job_id) if line["event"] == "requeued"]


def test_a_detached_job_whose_runner_is_killed_is_retried_by_the_monitor(office, figure):
    office.start("monitor", "--interval", "0.3").says("watching")
    (office.folder / "there").mkdir()
    job_id = office.detached(
        f"pwd > ../pwd; cd ..; {RETRIED}", "--max-attempts", "3", "--workdir", "there", "--headless"
    )
    first, second = kill_the_runners(office, job_id, (1, 2))
    job = office.wait_for_status(job_id, "completed", "error", "cancelled")
    assert (job["status"], job["attempt"]) == ("completed", 3)
    for each in ("agent", "mode", "yolo", "workdir", "socket", "made_for"):
        assert first[each] == second[each], each
    assert (office.folder / "pwd").read_text() == f"{office.folder}/there\n"
    assert requeues(office, job_id) == ["the agent was killed: its tmux session is gone"] * 2
    assert office("logs", job_id, "--verify").code == 0
    wait_until(lambda: not office.sessions() and not office.agents(), "for an empty house")
    figure("SIGKILL of a detached job's runner, twice", "completed on attempt 3", held=True)


def test_a_detached_job_is_an_error_once_it_has_no_attempts_left(office):
    office.start("monitor", "--interval", "0.3").says("watching")
    job_id = office.detached(RETRIED, "--max-attempts", "2")
    assert len(list(kill_the_runners(office, job_id, (1, 2)))) == 2
    job = office.wait_for_status(job_id, "error", "completed")
    assert (job["status"], job["attempt"], job["detail"]) == (
        "error",
        2,
        "the agent was killed: its tmux session is gone",
    )
    assert job["ended_by"] == "lost"
    assert attempted(office) == ["1", "2"]


def test_without_a_monitor_wait_retries_a_detached_job(office):
    job_id = office.detached(RETRIED, "--max-attempts", "3")
    waiting = office.start("wait", job_id)
    assert len(list(kill_the_runners(office, job_id, (1, 2)))) == 2
    assert waiting.end().code == 0
    assert attempted(office) == ["1", "2", "3"]


def test_while_submit_lives_it_retries_its_job_itself(office):
    office.start("monitor", "--interval", "0.3").says("watching")
    submit = office.start("submit", RETRIED, "--max-attempts", "3", "--expect", "out")
    wait_until(lambda: attempted(office))
    assert len(list(kill_the_runners(office, office.the_job()["job_id"], (1, 2)))) == 2
    assert submit.end().code == 0
    assert attempted(office) == ["1", "2", "3"]


def test_a_worker_takes_a_submitted_job_after_the_death_of_its_submitter_and_not_before(office, figure):
    (office.folder / "batch").write_text('{"prompt": "sleep 1234"}\n{"prompt": "echo x > out", "expect": ["out"]}\n')
    submit = office.start("submit", "--batch", "batch", "--parallel", "1")
    submit.says("started")
    (second,) = (job["job_id"] for job in office.jobs("pending"))
    assert office.job(second)["agent_session"] == "tmux:shell"
    assert "0 done" in office("worker", "--until-empty").err
    assert office("pick", code=3).out == ""
    worker = office.start("worker", "--max-jobs", "1")
    worker.says("taking jobs")
    submit.kill()
    assert worker.end().code == 0
    assert f"job {second}: attempt 1 begins" in worker.err
    assert office.job(second)["status"] == "completed"
    office("cancel", office.jobs("running")[0]["job_id"])
    wait_until(lambda: not office.sessions())
    figure("SIGKILL of the submitter of a batch, with a worker", "the worker takes what had not begun", held=True)


def test_of_two_monitors_one_is_killed_and_the_other_takes_over(office, figure):
    first = office.start("monitor", "--interval", "0.5")
    first.says("watching")
    second = office.start("monitor", "--interval", "0.5")
    second.says("standing by")
    job_id = office.detached(WORK)
    first.kill()
    began = time.monotonic()
    second.says("watching")
    took = time.monotonic() - began
    kill(office.session_of(job_id)["pane_pid"])
    check(office, job_id, "error")
    assert f"session job-{job_id}-1: its session is gone from tmux: terminated" in second.out
    figure("Two monitors, one killed", f"the other took over after {took:.2f} s (interval 0.5 s)", held=took < 1.5)


def test_killed_monitors_lose_nothing_and_validate_nothing_twice(office, figure, full, seed):
    """Some jobs end by themselves, some lose their runner; monitors that see to them are killed in mid-sweep."""
    chance, began = Random(seed), time.monotonic()
    jobs = {}
    kills = 0
    while kills < (300 if full else 20):
        monitor = office.start("monitor", "--interval", "0.05")
        number = len(jobs)
        dies = chance.random() < 0.5
        end = "kill -9 $PPID; sleep 1234" if dies else f"echo x > out.{number}"
        work = f"while ! test -e go.{number}; do sleep 0.05; done; {end}"
        job_id = office.detached(
            work, "--expect", f"out.{number}", "--validate", f"echo x >> validated.{number}",
            *(("--agent", "shell") if chance.random() < 0.5 else ()),
        )  # fmt: skip
        jobs[job_id] = (number, "error" if dies else "completed")
        (office.folder / f"go.{number}").touch()
        time.sleep(chance.uniform(0, 0.6))  # it is killed at any moment
        monitor.kill()
        kills += 1
    last = office.start("monitor", "--interval", "0.3")
    wrong, gaps = [], 0
    for job_id, (number, status) in jobs.items():
        job = office.wait_for_status(job_id, "completed", "error")
        path = office.folder / f"validated.{number}"
        validated = path.read_text().count("x") if path.exists() else 0
        ends = ends_of(office, job_id)
        if not ends:  # killed between registry and log: whoever looks at the log fills the gap
            office("logs", job_id)
            ends, gaps = ends_of(office, job_id), gaps + 1
        if job["status"] != status or validated != (status == "completed") or len(ends) != 1:
            wrong.append(f"{job_id}: {job['status']} instead of {status}, validated {validated} times, {ends}")
    wait_until(lambda: not office.sessions() and not office.agents(), "for an empty house")
    wait_until(lambda: office.unsent() == 0, "until all is sent")
    last.kill()
    text = f"{kills} kills, {len(jobs)} jobs, {gaps} gaps in logs filled, {len(wrong)} wrong in {time.monotonic() - began:.0f} s {wrong[:3] or ''}"
    figure("R6 killed monitors", text.strip(), held=not wrong, seed=seed)
