"""A session with a job in it: whatever happens to the agent, the job's story has one end, and the right one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
import time

import pytest

from baton.jobs.verbs import open_jobs
from baton.sessions.processes import started_at
from support.brokers import Broker
from support.claude import install_program
from support.homes import settings_in
from support.waiting import wait_until

WAITS = "echo $$ > pid.txt; exec sleep 600"


def in_session(desk, prompt, *more, name="gpu", options=()):
    job = desk.register(prompt, *more)
    desk("session", "create", name, "--job", job, *options)
    return job


def pid_of_agent(desk):
    path = os.path.join(desk.folder, "pid.txt")

    def read():
        try:
            with open(path) as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    return int(wait_until(read))


def ended_once(desk, job, status, detail, ended_by="agent"):
    """The job ended that way, and was said to have ended that way, exactly once."""
    record = desk.until_over(job)
    assert (record["status"], record["detail"], record["ended_by"]) == (status, detail, ended_by)
    assert record["reason"] == detail
    # The log follows the registry.
    wait_until(lambda: desk.story(job)[-1][0] == status, f"{status} in the log of {job}")
    story = desk.story(job)
    assert [event for event, _ in story] == ["started", status], story
    assert story[-1] == (status, detail)
    desk.until_state("gpu", desk.row("gpu")["state"])
    return story


def test_the_exit_code_of_a_command_is_its_verdict(desk):
    job = in_session(desk, "exit 0")
    story = ended_once(desk, job, "completed", "the command ended with exit code 0")
    assert story[0] == ("started", "shell in session gpu")
    desk.until_state("gpu", "terminated")
    job = in_session(desk, "exit 3")
    ended_once(desk, job, "error", "the command ended with exit code 3")
    session = desk.until_state("gpu", "terminated")
    assert (session["exit"], session["reason"]) == ("exit code 3", "the agent ended (exit code 3)")
    assert session["job_id"] is None
    assert session["made_for"] == job


def test_a_command_that_ended_by_itself_was_not_stopped_however_slowly_its_end_is_recorded(desk):
    """The runner looks at the job each second, also between the record of its end and the line in its log."""
    job = in_session(desk, "until [ -e go ]; do sleep 0.05; done")
    with open(os.path.join(desk.home, "delegate_job_logs", job, "events.ndjson"), "rb") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        open(os.path.join(desk.folder, "go"), "w").close()
        desk.until_over(job)
        time.sleep(1.5)  # the runner looks each second: nothing may come of it
    session = desk.until_state("gpu", "terminated")
    assert session["reason"] == "the agent ended (exit code 0)"


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (40, "40")])
def test_an_agent_that_is_killed(desk, number, name):
    job = in_session(desk, WAITS)
    os.kill(pid_of_agent(desk), number)
    ended_once(desk, job, "error", f"the command ended with signal {name}")
    assert desk.until_state("gpu", "terminated")["exit"] == f"signal {name}"


def test_a_session_killed_in_tmux(desk):
    job = in_session(desk, WAITS)
    pid_of_agent(desk)
    desk.tmux.end("gpu")
    ended_once(desk, job, "error", "the session was stopped: the session was ended from outside (SIGHUP)", "lost")
    desk.until_state("gpu", "terminated")
    wait_until(lambda: not desk.processes(), what="agent and runner have ended")


def test_a_runner_that_is_asked_to_end(desk):
    job = in_session(desk, WAITS)
    agent = pid_of_agent(desk)
    os.kill(desk.row("gpu")["pane_pid"], signal.SIGTERM)
    ended_once(desk, job, "error", "the session was stopped: the session was ended from outside (SIGTERM)", "lost")
    assert started_at(agent) is None


@pytest.mark.parametrize(("mode", "state"), [("graceful", "stopped"), ("hard", "terminated")])
def test_a_session_that_is_stopped(desk, mode, state):
    job = in_session(desk, WAITS)
    pid_of_agent(desk)
    assert desk("session", "stop", "gpu", "--mode", mode, "--reason", "no need").text == f"gpu\t{state}"
    assert desk.job(job)["status"] == "error", "before `stop` returns"
    ended_once(desk, job, "error", "the session was stopped: no need", "cancelled")
    assert desk.row("gpu")["state"] == state


def test_a_session_that_stops_itself(desk):
    for mode, state in (("graceful", "stopped"), ("hard", "terminated")):
        job = in_session(desk, f"baton session stop gpu --mode {mode} --reason enough", name="gpu")
        assert desk.until_over(job)["detail"] == "the session was stopped: enough"
        desk.until_state("gpu", state)


def test_a_stopped_runner_is_ended_all_the_same(desk):
    """`stop` waits for the runner to tell the end; one that cannot is killed, and the end is told for it."""
    job = in_session(desk, WAITS)
    agent = pid_of_agent(desk)
    runner = desk.row("gpu")["pane_pid"]
    os.kill(runner, signal.SIGSTOP)
    desk("session", "stop", "gpu", "--mode", "hard")
    assert started_at(runner) is None
    assert started_at(agent) is None
    ended_once(desk, job, "error", "the session was stopped: stopped by `baton session stop --mode hard`", "cancelled")


def test_a_soft_stop_leaves_the_job_to_its_agent(desk):
    job = in_session(desk, "echo $$ > pid.txt; until [ -e go ]; do sleep 0.05; done")
    agent = pid_of_agent(desk)
    desk("session", "stop", "gpu", "--mode", "soft")
    assert started_at(agent)
    assert desk.job(job)["status"] == "running"
    open(os.path.join(desk.folder, "go"), "w").close()
    ended_once(desk, job, "completed", "the command ended with exit code 0")
    wait_until(lambda: not desk.processes())
    assert desk.state("gpu") == "archived"


def test_a_job_that_is_cancelled_elsewhere_ends_its_session(desk):
    for options in ((), ("--headless",)):
        job = in_session(desk, WAITS, options=options)
        agent = pid_of_agent(desk)
        desk("cancel", job)
        wait_until(lambda agent=agent: started_at(agent) is None)
        wait_until(lambda: desk.row("gpu")["state"] != "running")
        assert "cancelled" in desk.row("gpu")["reason"]
        assert [event for event, _ in desk.story(job)] == ["started"]
        assert desk.job(job)["ended_by"] == "cancelled"
        os.unlink(os.path.join(desk.folder, "pid.txt"))


def test_a_job_that_takes_too_long(desk):
    job = in_session(desk, WAITS, "--timeout", "1")
    agent = pid_of_agent(desk)
    ended_once(desk, job, "error", "the job took longer than 1 s", "timeout")
    assert started_at(agent) is None


def test_a_job_is_not_taken_up_twice(desk):
    for act, status in ((["pick", "--agent", "shell"], "running"), (["cancel"], "cancelled")):
        job = desk.register(":")
        desk(*act, *([job] if act == ["cancel"] else []))
        refusal = desk.refused("session", "create", "gpu", "--job", job)
        assert f"job {job} is {status} already" in refusal
        assert desk.job(job)["status"] == status, "it is not ours to end"
        assert desk.job(job)["last_seq"] == 0
    assert desk("session", "list", "--all").out == ""


def test_two_sessions_for_one_job_are_one_session(desk):
    import subprocess

    from support.command import BATON

    for number in range(4):
        job = desk.register("sleep 600")
        crew = [
            subprocess.Popen(
                [BATON, "session", "create", f"{side}{number}", "--job", job],
                cwd=desk.folder, env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for side in "ab"
        ]  # fmt: skip
        told = sorted((each.returncode, err) for each in crew for _, err in [each.communicate(timeout=60)])
        assert [code for code, _ in told] == [0, 1], told
        assert f"job {job} is running already" in told[1][1]
        assert desk.job(job)["status"] == "running"
        assert [event for event, _ in desk.story(job)] == ["started"]
    assert desk("session", "list").out.count("running") == 4


def test_a_workdir_that_is_gone(desk, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    job = desk.register(":", "--workdir", str(work))
    work.rmdir()
    assert f"workdir {work} is not a folder" in desk.refused("session", "create", "gpu", "--job", job, code=64)
    assert desk.job(job)["status"] == "pending", "somebody else may still do it"


def test_an_agent_that_says_itself_how_it_went(desk):
    job = in_session(
        desk,
        'baton publish --event progress --detail half; baton publish --event completed --detail "all of it"; exit 3',
    )
    assert desk.until_over(job)["detail"] == "all of it"
    desk.until_state("gpu", desk.row("gpu")["state"])
    assert [event for event, _ in desk.story(job)] == ["started", "progress", "completed"]


def test_results_that_are_not_there(desk):
    job = in_session(desk, "exit 0", "--expect", "report.txt")
    record = desk.until_over(job)
    assert record["status"] == "error"
    assert "report.txt" in record["detail"]
    assert [event for event, _ in desk.story(job)] == ["started", "error"]
    job = in_session(
        desk, "echo done > report.txt", "--expect", "report.txt", "--validate", "grep done report.txt", name="next"
    )
    ended_once(desk, job, "completed", "the command ended with exit code 0")


def test_the_lease_is_renewed_while_the_agent_works(desk):
    job = desk.register(WAITS)
    desk("session", "create", "gpu", "--job", job, BATON_LEASE_SEC="2")
    pid_of_agent(desk)
    first = desk.job(job)["lease_expires_at"]
    wait_until(lambda: desk.job(job)["lease_expires_at"] > first, what="a later end of the lease")


def test_a_job_that_another_has_by_now_ends_the_session(desk):
    job = desk.register(WAITS, "--max-attempts", "2")
    desk("session", "create", "gpu", "--job", job, BATON_LEASE_SEC="2")
    agent = pid_of_agent(desk)
    desk("release", job)
    desk("pick", "--agent", "shell")
    wait_until(lambda: started_at(agent) is None, what="the agent was ended when the lease could not be renewed")
    # Stopped, if the runner saw that the job was pending before another process picked it.
    wait_until(lambda: desk.row("gpu")["state"] in ("stopped", "terminated"))
    assert re.search("stale attempt|its job is pending", desk.row("gpu")["reason"])
    record = desk.job(job)
    assert (record["status"], record["attempt"]) == ("running", 2), "the other one's job is left alone"
    assert [event for event, _ in desk.story(job)] == ["started"]


# -- what an agent leaves running ----------------------------------------------------------------------------

HIDERS = {
    "setsid": "setsid sleep 600 & ",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 & ",
    "double fork": "(setsid sh -c 'sleep 600 & exec sleep 600' &) ; ",
    "deaf": "setsid sh -c 'trap \"\" TERM HUP INT; sleep 600; sleep 600' & ",
}


@pytest.mark.parametrize("hider", HIDERS)
def test_stop_ends_what_the_agent_left_running(desk, hider):
    desk.create("gpu", "--prompt", f"{HIDERS[hider]} echo $$ > pid.txt; wait; exec sleep 600")
    pid_of_agent(desk)
    session = desk.row("gpu")["session_id"]
    mine = wait_until(lambda: found if len(found := marked(desk, session)) >= 2 else None)
    began = time.monotonic()
    ended = desk("session", "stop", "gpu", "--grace", "1", "--json").json["ended"]
    assert time.monotonic() - began < 15
    assert {each.pid for each in mine} <= {each["pid"] for each in ended}
    assert marked(desk, session) == []


@pytest.mark.parametrize("hider", HIDERS)
def test_what_the_agent_left_running_ends_with_it(desk, hider):
    desk.create("gpu", "--prompt", HIDERS[hider] + "exit 0")
    session = desk.until_state("gpu", "terminated")["session_id"]
    assert marked(desk, session) == []


SLOW = """
import os, signal, time
told = open("told.txt", "w", buffering=1)
def hear(number, _):
    print(signal.Signals(number).name, file=told)
for each in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, hear)
print(os.getpid(), file=open("pid.txt", "w"), flush=True)
while not os.path.getsize("told.txt"):
    time.sleep(0.02)  # a signal interrupts it
end = time.monotonic() + 2.5
while time.monotonic() < end:
    time.sleep(0.02)  # it takes its time
"""


def test_an_agent_that_takes_its_time_is_asked_once(desk, tmp_path):
    """By `stop`, not by the runner as well: to many programs, being asked twice means to drop everything."""
    (tmp_path / "slow.py").write_text(SLOW)
    job = in_session(desk, f"exec {sys.executable} -I slow.py")
    pid_of_agent(desk)
    desk("session", "stop", "gpu", "--grace", "20", "--reason", "enough")
    assert (tmp_path / "told.txt").read_text().split() == ["SIGTERM", "SIGHUP"]
    ended_once(desk, job, "error", "the session was stopped: enough", "cancelled")
    assert desk.row("gpu")["exit"] == "exit code 0"


def marked(desk, session_id):
    from baton.sessions.processes import marked_processes

    with open(os.path.join(desk.home, "sessions", session_id, "manifest.json")) as file:
        home_id = json.load(file)["home_id"]
    return marked_processes(session_id, home=desk.home, home_id=home_id or "")


def test_a_session_made_inside_a_session_outlives_it(desk):
    desk.create("outer", "--prompt", "baton session create inner --agent shell; echo made > pid.txt; sleep 600")
    wait_until(lambda: os.path.exists(os.path.join(desk.folder, "pid.txt")))
    assert desk.state("inner") == "running"
    desk("session", "stop", "outer", "--mode", "hard")
    assert desk.show("inner")["alive"]
    desk("session", "send", "inner", "echo $((40 + 2))-lives")
    desk.until_shown("inner", "42-lives")


def test_the_local_broker_outlives_the_session_that_started_it(desk):
    del desk.env["MQTT_BROKER"], desk.env["MQTT_PORT"]
    try:
        desk.create("gpu", "--prompt", "baton broker up; echo up > pid.txt; exec sleep 600")
        wait_until(lambda: os.path.exists(os.path.join(desk.folder, "pid.txt")))
        before = desk("broker", "status", "--json").json
        desk("session", "stop", "gpu")
        assert desk("broker", "status", "--json").json == before
    finally:
        desk("broker", "down", code=None)


# Speaks ACP. Says that it is done before it is; does the work only when it is sent back.
HASTY = """\
#!/usr/bin/env python3
import json, os, sys, time
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
while line := sys.stdin.readline():
    heard = json.loads(line)
    if heard.get("method") != "session/prompt":
        say(id=heard["id"], result={"protocolVersion": 1, "sessionId": "5ccfab13-aa99-4fb3-9d02-3bf961b5e7be"})
        continue
    if "missing" in line:
        open("out.txt", "w").write("x")
    while not os.path.exists("heard"):
        time.sleep(0.02)
    session, chunk = heard["params"]["sessionId"], {"sessionUpdate": "agent_message_chunk"}
    chunk["content"] = {"type": "text", "text": "done"}
    say(method="session/update", params={"sessionId": session, "update": chunk})
    say(id=heard["id"], result={"stopReason": "end_turn"})
"""


def test_a_headless_agent_that_is_sent_back_leaves_no_traceback_on_the_pane(desk, tmp_path):
    """It is sent back while another thread has the registry open, to send what was said before."""
    install_program(desk, tmp_path, HASTY, "gemini")
    broker = Broker("mosquitto")
    try:
        desk.env |= {"MQTT_PORT": str(broker.port)}
        job = desk.register("x", "--expect", "out.txt", agent="gemini")
        desk("session", "create", "gpu", "--job", job, "--headless")
        with open_jobs(settings_in(desk.folder, desk.env)) as jobs:
            wait_until(lambda: jobs.events_after(job, 0) and not jobs.unsent_events(), what="`started` was sent")
        (tmp_path / "heard").touch()
        assert desk.until_over(job)["status"] == "completed"
        desk.until_state("gpu", "terminated")
        shown = desk.screen("gpu")
    finally:
        broker.remove()
    assert shown.count("done") == 2, shown
    assert "Traceback" not in shown, shown
    assert "ProgrammingError" not in shown, shown
    story = [event for event, _ in desk.story(job)]
    assert [event for event in story if event != "progress"] == ["started", "completed"], story


# Speaks ACP. Reports progress while the registry is away.
TALKS = """\
#!/usr/bin/env python3
import json, os, sys, time
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)
while line := sys.stdin.readline():
    heard = json.loads(line)
    if heard.get("method") != "session/prompt":
        say(id=heard["id"], result={"protocolVersion": 1, "sessionId": "5ccfab13-aa99-4fb3-9d02-3bf961b5e7be"})
        continue
    def tell(what, **more):
        update = {"sessionUpdate": what, **more}
        say(method="session/update", params={"sessionId": heard["params"]["sessionId"], "update": update})
    open("ready", "w").close()
    until("gone")
    tell("tool_call", toolCallId="1", title="at", kind="execute", status="in_progress", rawInput={"work": 1})
    until("back")
    tell("tool_call_update", toolCallId="1", status="completed")
    tell("agent_message_chunk", content={"type": "text", "text": "done"})
    say(id=heard["id"], result={"stopReason": "end_turn"})
"""


def test_an_agent_goes_on_when_its_progress_cannot_be_recorded(desk, tmp_path):
    install_program(desk, tmp_path, TALKS, "gemini")
    job = desk.register("x", agent="gemini")
    desk("session", "create", "gpu", "--job", job, "--headless")
    wait_until((tmp_path / "ready").exists, what="the agent runs")
    store = os.path.join(desk.home, "jobs")
    os.rename(store, store + ".away")
    (tmp_path / "gone").touch()
    desk.until_shown("gpu", f"baton: no job {job}")
    os.rename(store + ".away", store)
    (tmp_path / "back").touch()
    record = desk.until_over(job)
    assert (record["status"], record["detail"]) == ("completed", "done")
