"""Processes by more than their number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from baton.sessions import processes
from baton.sessions.processes import (
    HOME_MARKER,
    MARKER,
    Process,
    ProcessId,
    command_line,
    end_processes,
    marked_processes,
    started_at,
)
from support.open_files import no_more_files
from support.waiting import wait_until

HOME = "0123456789abcdef"


@pytest.fixture
def children():
    """Starts processes of this test; none outlives it."""
    started = []

    def start(*argv, **env):
        process = subprocess.Popen(
            argv, env=os.environ | {HOME_MARKER: HOME} | env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(20)
        process.stdout.close()


def of_session(session):
    return marked_processes(session, home="/nowhere", home_id=HOME)


def seen(process):
    return Process(id=ProcessId(pid=process.pid, started=started_at(process.pid)), command="x")


def test_calls_that_a_runner_makes_of_other_programs_are_not_processes_of_its_agent(children):
    calls = "import subprocess, sys\nprint(flush=True)\nwhile True: subprocess.run(['sleep', '0.05'])"
    runner = children(sys.executable, "-c", calls)
    runner.stdout.readline()
    for _ in range(20):
        assert marked_processes("abc", runner.pid, home="/nowhere", home_id=HOME) == []
    stays = "import subprocess\nwith subprocess.Popen(['sleep', '600']) as process: print(process.pid, flush=True)"
    runner = children(sys.executable, "-c", stays)
    pid = int(runner.stdout.readline())
    try:
        found = marked_processes("abc", runner.pid, home="/nowhere", home_id=HOME)
        assert [each.pid for each in found] == [pid], "it was found once it had lived too long for a call"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_process_is_its_number_and_its_start(children):
    process = children("sleep", "600")
    found = seen(process)
    assert found.id.is_alive()
    assert not found.id.replace(started=found.id.started - 1).is_alive(), "another one of that number"
    process.kill()
    wait_until(lambda: not found.id.is_alive(), what="what is left of a process is no process")
    assert process.returncode is None, "nobody has waited for it yet"
    assert started_at(process.pid) is None
    process.wait()
    assert started_at(process.pid) is None


def test_no_process_counts_as_ended_because_its_state_could_not_be_opened(children):
    process = children("sleep", "600")
    found = seen(process)
    with no_more_files():
        for look in (found.id.is_alive, lambda: command_line(found.id)):
            with pytest.raises(OSError, match="Too many open files"):
                look()


def test_a_name_with_brackets_and_spaces_is_read_past(children, tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    process = children(str(program), "600")
    assert started_at(process.pid) == started_at(process.pid) > started_at(1)


def commands(found):
    return sorted(each.command for each in found)


def test_those_of_a_session_are_found_wherever_they_hide(children):
    session = os.urandom(8).hex()
    assert of_session(session) == []
    children("setsid", "sleep", "600", **{MARKER: session})
    children("sh", "-c", "nohup sleep 600 & wait", **{MARKER: session})
    children("sleep", "600", **{MARKER: session + "0"})
    children("sleep", "600", **{f"NOT_{MARKER}": session})
    children("sleep", "600", OTHER=f"{MARKER}={session}")
    wanted = ["sh", "sleep", "sleep"]  # before exec, a child still has the name of its parent
    found = wait_until(lambda: found if commands(found := of_session(session)) == wanted else None)
    ended = end_processes(lambda: of_session(session), grace_sec=5)
    assert {each.pid for each in ended} == {each.pid for each in found}
    assert of_session(session) == []


def test_those_of_a_copy_of_the_home_are_not_found(children):
    session = os.urandom(8).hex()
    children("sleep", "600", **{MARKER: session, HOME_MARKER: HOME[::-1], "BATON_HOME": "/nowhere"})
    mine = children("sleep", "601", **{MARKER: session})
    wait_until(lambda: [each.pid for each in of_session(session)] == [mine.pid])


def test_those_that_0_1_0_started_are_found_by_the_path_of_the_home():
    session = os.urandom(8).hex()
    started = {
        path: subprocess.Popen(["sleep", "600"], env={MARKER: session, "BATON_HOME": path})
        for path in ("/a/.hermes", "/copy/.hermes")
    }
    try:
        for path, process in started.items():
            wait_until(
                lambda p=path, found=process.pid: (
                    [each.pid for each in marked_processes(session, home=p, home_id=HOME)] == [found]
                )
            )
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def test_a_runner_is_known_by_the_folder_in_its_command_line(children, tmp_path):
    process = children(sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path))
    runner = seen(process).id
    wait_until(lambda: str(tmp_path) in command_line(runner))
    assert command_line(runner.replace(started=1)) == [], "another process with its pid"
    process.kill()
    wait_until(lambda: command_line(runner) == [])


@pytest.mark.parametrize("variables", [0, 60])
def test_one_that_is_just_becoming_another_program_is_found(children, tmp_path, variables):
    """In the middle of exec a process has no environment to read, and the rest of a long one cannot be read."""
    script = tmp_path / "restless"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o755)
    session = os.urandom(8).hex()
    before = {f"FILL_{number}": "x" * 1000 for number in range(variables)}
    restless = children(str(script), **before, **{MARKER: session})
    looks = 400
    assert sum(len(of_session(session)) for _ in range(looks)) == looks
    assert [each.pid for each in end_processes(lambda: of_session(session), grace_sec=0)] == [restless.pid]


def test_an_environment_is_read_again_until_the_kernel_says_that_there_is_none(children, monkeypatch):
    """Two execs in a row hid it twice."""
    session = os.urandom(8).hex()
    process = children("sleep", "600", **{MARKER: session})
    hidden = [b"", b""]

    def read(pid, name, real=processes._read):
        return hidden.pop() if hidden and (pid, name) == (str(process.pid), "environ") else real(pid, name)

    monkeypatch.setattr(processes, "_read", read)
    assert [each.pid for each in of_session(session)] == [process.pid]
    assert hidden == []


def test_a_program_without_variables_is_not_waited_for(monkeypatch):
    process = subprocess.Popen(["sleep", "600"], env={})
    try:
        wait_until(lambda: processes._has_no_environment(str(process.pid)))
        monkeypatch.setattr(processes.time, "sleep", lambda _: pytest.fail("waited"))
        assert processes._environment(str(process.pid)) == b""
    finally:
        process.kill()
        process.wait()


def test_we_are_never_among_them(monkeypatch, tmp_path):
    session = os.urandom(8).hex()
    code = (
        "from baton.sessions.processes import marked_processes; "
        f"print(len(marked_processes({session!r}, home='', home_id={HOME!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {MARKER: session, HOME_MARKER: HOME},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0\n"


DEAF = "import signal, time\nfor each in {deaf}: signal.signal(each, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("deaf", "ends_by"),
    [([], signal.SIGTERM), ([signal.SIGTERM], signal.SIGHUP), ([signal.SIGTERM, signal.SIGHUP], signal.SIGKILL)],
)
def test_it_is_asked_then_told_then_killed(children, deaf, ends_by):
    process = children(sys.executable, "-c", DEAF.format(deaf=[int(each) for each in deaf]))
    process.stdout.readline()
    found = seen(process)
    began = time.monotonic()
    assert end_processes(lambda: [found] if found.id.is_alive() else [], grace_sec=1) == [found]
    assert process.wait(20) == -ends_by
    assert time.monotonic() - began < 4


def test_without_grace_it_is_killed_at_once(children):
    process = children("sleep", "600")
    found = seen(process)
    end_processes(lambda: [found] if found.id.is_alive() else [], grace_sec=0)
    assert process.wait(20) == -signal.SIGKILL


def test_one_that_is_stopped_hears_it(children):
    process = children("sleep", "600")
    found = seen(process)
    os.kill(process.pid, signal.SIGSTOP)
    end_processes(lambda: [found] if found.id.is_alive() else [], grace_sec=5)
    assert process.wait(20) == -signal.SIGTERM


def test_another_one_of_that_number_is_left_alone(children, monkeypatch):
    monkeypatch.setattr("baton.sessions.processes._GIVE_UP_SEC", 0.3)
    process = children("sleep", "600")
    other = Process(id=ProcessId(pid=process.pid, started=1), command="x")
    assert end_processes(lambda: [other], grace_sec=0) == [other], "it gives up in the end"
    assert process.poll() is None


def test_what_comes_meanwhile_is_ended_too(children):
    """A process that starts another one when it is asked to end."""
    session = os.urandom(8).hex()
    script = "trap 'setsid sleep 600 & exit' TERM; echo ready; while :; do sleep 0.05; done"
    process = children("sh", "-c", script, **{MARKER: session})
    process.stdout.readline()
    ended = end_processes(lambda: of_session(session), grace_sec=5)
    assert len(ended) >= 2
    assert of_session(session) == []
