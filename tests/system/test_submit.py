"""One command hands work to an agent and returns when it is truly done; what is said about it is true in every case."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import time

import psycopg
import pytest

from baton.core.errors import RegistryUnavailable
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.launch import create_session
from support.command import BATON, Baton
from support.office import Office, together
from support.ports import free_port
from support.waiting import wait_until


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


def events_of(result):
    return [json.loads(line)["event"] for line in result.out.splitlines()]


# -- how it ends ---------------------------------------------------------------------------------------------


def test_work_that_is_done_is_exit_code_0_and_the_last_line_names_the_log(office, tmp_path):
    done = office.submit("echo hi > out.txt", "--expect", "out.txt", "--json")
    assert events_of(done) == ["started", "completed"]
    job = office.the_job()
    assert job["status"] == "completed"
    log = os.path.realpath(tmp_path / ".hermes" / "delegate_job_logs" / job["job_id"])
    assert done.err.splitlines()[-1] == f"log: {log}"
    assert office("logs", job["job_id"], "--verify").code == 0
    with open(tmp_path / ".hermes" / "jobs" / f"{job['job_id']}.subscriber.out") as file:
        assert file.read() == done.out
    wait_until(lambda: not office.sessions())


def test_the_file_that_is_missing_is_named(office):
    done = office.submit("true", "--expect", "out.txt", code=1)
    assert "out.txt is missing" in done.out
    assert office.the_job()["status"] == "error"


def test_a_file_that_was_there_before_is_no_result_unless_that_is_allowed(office, tmp_path):
    (tmp_path / "out.txt").write_text("old")
    os.utime(tmp_path / "out.txt", (time.time() - 60,) * 2)
    done = office.submit("true", "--expect", "out.txt", code=1)
    assert "out.txt was there before and has not changed" in done.out
    office.submit("true", "--expect", "out.txt", "--allow-existing")


def test_the_validation_decides(office):
    office.submit("echo 3 > n", "--validate", "grep -q 3 n")
    done = office.submit("echo 4 > n", "--validate", "grep 3 n || echo it is not 3 && false", code=1)
    assert "it is not 3" in done.out
    assert office.jobs()[0]["ended_by"] == "verification"


def test_a_command_that_fails_is_an_error_with_its_exit_code(office):
    done = office.submit("exit 7", code=1)
    assert "exit code 7" in done.out
    job = office.the_job()
    assert (job["status"], job["ended_by"], job["reason"]) == ("error", "agent", job["detail"])


@pytest.mark.parametrize(
    ("limit", "words", "ended_by", "reason"),
    [
        ("--timeout", "3 s have passed", "timeout", "the job took longer than 3 s"),
        ("--idle-timeout", "nothing was heard of the job for 3 s", "idle", "nothing was heard of the job for 3 s"),
    ],
)
def test_work_that_takes_too_long_is_ended_with_everything_it_started(office, limit, words, ended_by, reason):
    done = office.submit("setsid sleep 1234 & sleep 1235", limit, "3s", code=2)
    assert words in done.err + done.out, "the runner enforces the idle limit, and reports it"
    job = office.the_job()
    assert (job["status"], job["ended_by"], job["detail"]) == ("error", ended_by, job["reason"])
    assert job["reason"].startswith(reason), "the last known cause may follow"
    wait_until(lambda: not office.agents())
    wait_until(lambda: not office.sessions())


def test_what_is_cancelled_from_another_terminal_is_exit_code_4_and_ended(office):
    running = office.start("submit", "sleep 1234")
    job_id = wait_until(lambda: office.jobs("running"))[0]["job_id"]
    running.says("started")
    office("cancel", job_id)
    assert running.end().code == 4
    wait_until(lambda: not office.agents())
    assert (office.job(job_id)["status"], office.job(job_id)["ended_by"]) == ("cancelled", "cancelled")
    assert office.session_of(job_id)["state"] == "stopped"


def test_an_agent_that_says_it_is_done_too_early_is_refused_and_may_mend_it(office):
    work = "baton publish --event completed || echo x > late.txt; baton publish --event completed --detail mended"
    done = office.submit(work, "--expect", "late.txt", "--json")
    assert events_of(done) == ["started", "completed"]
    assert json.loads(done.out.splitlines()[-1])["detail"] == "mended"
    validated = [line["ok"] for line in office.audit(office.the_job()["job_id"]) if line["event"] == "validated"]
    assert validated == [False, True]


# -- detached ------------------------------------------------------------------------------------------------


def test_detached_work_goes_on_and_wait_gives_its_exit_code(office, tmp_path):
    good = office.detached("sleep 0.5; echo hi > out.txt", "--expect", "out.txt")
    bad = office("submit", "--detach", "--json", "exit 1").json["job_id"]
    assert office("wait", good).out == f"{good}\tcompleted\tverified: out.txt is there\n"
    why = "the command ended with exit code 1"
    assert office("wait", "--job", bad, code=1).out == f"{bad}\terror\t{why}\n"
    lines = [json.loads(line) for line in office("wait", good, bad, "--json", code=1).out.splitlines()]
    assert [(each["job_id"], each["status"], each["timed_out"]) for each in lines] == [
        (good, "completed", None),
        (bad, "error", None),
    ]
    assert lines[1]["reason"] == office.job(bad)["reason"]
    assert lines[1]["finished_at"]
    assert office.job(good)["seen_at"]
    wait_until(lambda: not office.sessions())


def test_waiting_gives_up_and_the_work_goes_on(office):
    job_id = office.detached("sleep 1234")
    assert "1 s have passed" in office("wait", job_id, "--timeout", "1", code=2).err
    assert office.job(job_id)["status"] == "running"
    office("cancel", job_id)
    assert office("wait", job_id, code=4).out.startswith(f"{job_id}\tcancelled\tcancelled by ")
    wait_until(lambda: not office.sessions())


def test_once_more_with_retry(office, tmp_path):
    office.submit("test -e ready && echo x > out", "--expect", "out", "--timeout", "50", code=1)
    first = office.the_job()
    (tmp_path / "ready").write_text("")
    done = office("retry", "--job", first["job_id"], "--json")
    assert events_of(done)[-1] == "completed"
    again = next(each for each in office.jobs() if each["job_id"] != first["job_id"])
    assert {name: again[name] for name in ("prompt", "timeout_sec", "expected_artifacts", "workdir", "agent")} == {
        name: first[name] for name in ("prompt", "timeout_sec", "expected_artifacts", "workdir", "agent")
    }
    assert office.job(first["job_id"])["status"] == "error"


def test_a_job_at_work_is_retried_only_with_force(office, tmp_path):
    job = office.detached("echo x >> began; until test -e go; do sleep 0.05; done", "--expect", "began")
    wait_until((tmp_path / "began").exists)
    refusal = office.refused("retry", job)
    assert f"job {job} is running: with a retry, two agents would do the same work" in refusal
    assert len(office.jobs()) == 1
    forced = office("retry", job, "--force", "--detach")
    assert f"job {job} is still running: two agents will do the same work" in forced.err
    wait_until(lambda: (tmp_path / "began").read_text() == "x\nx\n")
    (tmp_path / "go").touch()
    for each in (job, forced.text):
        office.wait_for_status(each, "completed")


def test_a_job_that_waits_is_retried_only_with_force(office):
    job = office("register", "true").text
    assert f"job {job} is pending" in office.refused("retry", job)


# -- somebody who is there already ---------------------------------------------------------------------------


def test_a_running_session_does_what_it_is_given(office, tmp_path):
    office("session", "create", "helper")
    done = office.submit("pwd > where; echo $$ >> where", "--session", "helper", "--expect", "where", "--json")
    assert events_of(done) == ["started", "completed"]
    assert (tmp_path / "where").read_text().startswith(str(tmp_path))
    assert office.submit("false", "--session", "helper", code=1)
    assert [each["name"] for each in office.sessions()] == ["helper"]
    office("session", "stop", "helper")
    assert "is stopped" in office.refused("submit", "x", "--session", "helper")


def test_a_live_agent_of_another_home_gets_it_by_its_name(office, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    there = Baton(folder)
    there.env = office.env
    there("session", "create", "gpu")
    done = office.submit("pwd > where", "--to", "gpu", "--expect", "where", "--json")
    assert events_of(done) == ["started", "completed"]
    assert f"belongs to {os.path.realpath(f'{folder}/.hermes')}: the job is registered there" in done.err
    assert (folder / "where").read_text() == f"{folder}\n"
    assert [job["status"] for job in there("list", "--json").json] == ["completed"]
    given = office.submit("true", "--to", "gpu", "--agent-def-dir", str(tmp_path), "--json")
    assert events_of(given) == ["started", "completed"]
    for path, why in (("relative", "is not absolute"), (f"{tmp_path}/gone", "is not a folder")):
        refusal = office.refused("submit", "x", "--to", "gpu", "--agent-def-dir", path)
        assert f"--agent-def-dir '{path}' {why}" in refusal
    there("session", "stop", "gpu")
    assert "gpu" in office.refused("submit", "x", "--to", "gpu")


def test_a_live_agent_on_another_host_gets_it_through_the_shared_registry(office, tmp_path, postgres):
    url = postgres.new_url()
    shared = {"BATON_REGISTRY": url, "BATON_DIRECTORY": url}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    there = Baton(folder)
    there.env = office.env | shared | {"BATON_HOST": "build-7"}
    there("session", "create", "gpu")
    done = office.submit("pwd > where", "--to", "gpu", "--expect", "where", "--json", **shared)
    assert events_of(done) == ["started", "completed"]
    assert json.loads(done.out.splitlines()[0])["data"]["host"] == "build-7"
    assert (folder / "where").read_text() == f"{folder}\n"
    assert "needs a registry on PostgreSQL" in office.refused("submit", "x", "--to", "gpu", BATON_DIRECTORY=url)
    there("session", "stop", "gpu")


# -- many at once --------------------------------------------------------------------------------------------


def batch(tmp_path, *orders):
    (tmp_path / "batch").write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in orders))
    return ("submit", "--batch", str(tmp_path / "batch"))


def test_a_batch_runs_so_many_at_a_time_and_in_order(office, tmp_path):
    """Each says how many are at work together with it."""
    orders = [{"prompt": together(number, 2)} for number in range(6)]
    done = office(*batch(tmp_path, *orders), "--parallel", "2", "--json")
    assert sorted(events_of(done)) == ["completed"] * 6 + ["started"] * 6
    assert {job["status"] for job in office.jobs()} == {"completed"}
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert max(counts) == 2
    order = (tmp_path / "order").read_text().split()
    assert sorted(order[:2]) == ["0", "1"]
    assert sorted(order) == ["0", "1", "2", "3", "4", "5"]
    assert done.err.count("log: ") == 6


def test_the_exit_code_of_a_batch_is_the_worst(office, tmp_path):
    office(*batch(tmp_path, {"prompt": "true"}, {"prompt": "false"}), code=1)


def test_one_bad_line_is_refused_before_anything_begins(office, tmp_path):
    for bad, words in (
        ("{", "line 2 is not JSON"),
        ({"promt": "x"}, "line 2: prompt is missing"),
        ({"prompt": "x", "speed": 9}, "line 2: speed is not a field of a job"),
        ({"prompt": "x", "agent": "hal"}, "line 2:"),
        ({"prompt": "x", "workdir": "/gone"}, "line 2: workdir /gone is not a folder"),
        ({"prompt": "x", "timeout_sec": "soon"}, "line 2:"),
        ({"prompt": "x", "expect": ["../up"]}, "line 2:"),
        ({"prompt": "x", "expect": [7]}, "line 2:"),
        ({"prompt": ""}, "line 2:"),
    ):
        assert words in office.refused(*batch(tmp_path, {"prompt": "echo x > out"}, bad), code=64), bad
    assert "contains no job" in office.refused(*batch(tmp_path, ""), code=64)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".hermes" / "jobs").exists() or office.jobs() == []


def test_cancelling_one_of_a_batch_makes_room_for_the_next(office, tmp_path):
    running = office.start(*batch(tmp_path, {"prompt": "sleep 1234"}, {"prompt": "true"}), "--parallel", "1")
    running.says("started")
    office("cancel", office.jobs("running")[0]["job_id"])
    assert running.end().code == 4
    assert sorted(job["status"] for job in office.jobs()) == ["cancelled", "completed"]


# -- on a terminal -------------------------------------------------------------------------------------------


def test_on_a_terminal_there_is_a_table_that_ends_clean(office):
    running = office.start("submit", "sleep 1; echo hi > out", "--expect", "out", terminal=True)
    running.says("IDLE LEFT")
    done = running.end()
    assert done.code == 0, done
    assert "working" in done.out
    assert "verified" in done.out
    raw = running.raw
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h") == 1  # the cursor is back
    assert "log: " in done.out.splitlines()[-1]


@pytest.mark.parametrize("columns", ["80", "40"])
def test_on_a_narrow_terminal_the_last_words_give_way_and_not_the_id_or_the_state(office, columns):
    running = office.start("submit", f"sleep 1 # {'long ' * 30}", terminal=True, COLUMNS=columns)
    done = running.end()
    rows = [line.split() for line in done.out.splitlines() if line[:1] in "0123456789abcdef" and "  " in line]
    assert {row[0] for row in rows} == {office.the_job()["job_id"]}, done
    assert {row[1] for row in rows} <= {"pending", "starting", "working", "done"}, done
    assert rows[-1][1] == "done"


def test_on_a_terminal_a_cancelled_job_is_shown_as_that(office):
    running = office.start("submit", "sleep 1234", terminal=True)
    running.says("working")
    office("cancel", office.the_job()["job_id"])
    done = running.end()
    assert done.code == 4
    assert "cancelled" in done.out


def test_ctrl_c_and_enter_lets_it_go_on(office, tmp_path):
    running = office.start("submit", "while ! test -e enough; do sleep 0.1; done", terminal=True)
    running.says("working")
    running.type("\x03")
    running.says("let it go on without you")
    running.type("\n")
    done = running.end()
    job_id = office.the_job()["job_id"]
    assert done.code == 130
    assert f"baton wait {job_id}" in done.out
    assert office.job(job_id)["status"] == "running"
    (tmp_path / "enough").write_text("")
    office("wait", job_id)
    wait_until(lambda: not office.sessions())


def test_ctrl_c_and_c_cancels_it(office):
    running = office.start("submit", "sleep 1234", terminal=True)
    running.says("working")
    running.type("\x03")
    running.says("let it go on without you (Enter), or cancel it (c, then Enter)?")
    running.type("c\n")
    assert running.end().code == 4
    assert office.the_job()["status"] == "cancelled"
    wait_until(lambda: not office.agents())
    wait_until(lambda: not office.sessions())


def test_ctrl_c_in_wait_says_that_the_job_goes_on(office):
    job_id = office.detached("sleep 1234")
    waiting = office.start("wait", job_id, terminal=True)
    waiting.says("working")
    waiting.type("\x03")
    waiting.says(f"it goes on; wait for it: baton wait {job_id}")
    assert waiting.end().code == 130
    assert office.job(job_id)["status"] == "running"
    office("cancel", job_id)
    wait_until(lambda: not office.sessions())


def test_ctrl_c_without_a_terminal_lets_it_go_on(office):
    running = office.start("submit", "sleep 1234")
    running.says("started")
    running.signal(signal.SIGINT)
    done = running.end()
    job_id = office.the_job()["job_id"]
    assert done.code == 130
    assert f"baton wait {job_id}" in done.err
    office("cancel", job_id)
    wait_until(lambda: not office.sessions())


@pytest.mark.parametrize("how", [[], ["--detach"]])
@pytest.mark.parametrize("seen", ["registry", "history"])
def test_ctrl_c_at_any_moment_of_the_start_leaves_no_job_that_no_process_starts(office, tmp_path, seen, how):
    logs = tmp_path / ".hermes" / "delegate_job_logs"
    office("list")  # make the home
    for number in range(3):
        before = len(office.jobs())
        moments = {
            "registry": lambda: len(office.jobs()) > before,  # noqa: B023
            "history": lambda: len(os.listdir(logs)) > before if logs.exists() else False,  # noqa: B023
        }
        running = office.start("submit", f"sleep 1234 # {number}", *how)
        while not moments[seen]():
            assert running.process.poll() is None
        running.signal(signal.SIGINT)
        done = running.end()
        job = office.jobs()[0]
        begun = job["job_id"] in done.out or f"baton wait {job['job_id']}" in done.err
        assert begun or f"had not begun and is cancelled: {job['job_id']}" in done.err, done
        office.wait_for_status(job["job_id"], "running" if begun else "cancelled")
        office("cancel", job["job_id"])
    wait_until(lambda: not office.sessions())


def test_explain_says_that_no_process_will_start_a_job_whose_submitter_was_killed(office, tmp_path):
    running = office.start(*batch(tmp_path, {"prompt": "sleep 1234"}, {"prompt": "true"}), "--parallel", "1")
    running.says("started")
    (pending,) = office.jobs("pending")
    assert "will start it" not in office("explain", pending["job_id"]).out
    running.kill()
    waited = office("wait", "--timeout", "1", pending["job_id"], code=2).err
    assert f"job {pending['job_id']}: no process will start it: the process that submitted it has ended" in waited
    said = office("explain", pending["job_id"]).out
    assert "no process will start it: the process that submitted it has ended" in said
    for verb in ("cancel", "retry"):
        assert f"`baton {verb} {pending['job_id']}`" in said
    assert "`baton monitor`" in said
    office("cancel", *(job["job_id"] for job in office.jobs()))
    wait_until(lambda: not office.sessions())


def test_ctrl_c_in_a_batch_withdraws_what_has_not_begun(office, tmp_path):
    running = office.start(*batch(tmp_path, {"prompt": "sleep 1"}, {"prompt": "true"}), "--parallel", "1")
    running.says("started")
    running.signal(signal.SIGINT)
    done = running.end()
    assert done.code == 130
    first = office.jobs("running")[0]["job_id"]
    second = office.jobs("cancelled")[0]["job_id"]
    assert f"had not begun and is cancelled: {second}" in done.err
    assert f"baton wait {first}" in done.err
    office("wait", first)
    wait_until(lambda: not office.sessions())


def test_ctrl_c_in_a_batch_says_beforehand_that_what_has_not_begun_is_cancelled(office, tmp_path):
    orders = [{"prompt": "sleep 1234"}, {"prompt": "true"}, {"prompt": "true"}]
    running = office.start(*batch(tmp_path, *orders), "--parallel", "1", terminal=True)
    running.says("working")
    running.type("\x03")
    running.says("let it go on without you (Enter; 2 jobs not begun are cancelled), or cancel all (c, then Enter)?")
    running.type("c\n")
    assert running.end().code == 4
    assert [job["status"] for job in office.jobs()] == ["cancelled"] * 3
    wait_until(lambda: not office.sessions())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_withdraws_what_has_not_begun_and_tells_what_goes_on(office, tmp_path, number, code):
    running = office.start(*batch(tmp_path, {"prompt": "sleep 1"}, {"prompt": "true"}), "--parallel", "1")
    running.says("started")
    running.signal(number)
    done = running.end()
    assert done.code == code, done
    first = office.jobs("running")[0]["job_id"]
    second = office.jobs("cancelled")[0]["job_id"]
    assert done.err.splitlines() == [
        f"had not begun and is cancelled: {second}", f"it goes on; wait for it: baton wait {first}",
    ]  # fmt: skip
    office("wait", first)
    wait_until(lambda: not office.sessions())


@pytest.mark.parametrize("at_the_question", [False, True])
def test_a_closed_terminal_withdraws_what_has_not_begun(office, tmp_path, at_the_question):
    orders = [{"prompt": "while ! test -e enough; do sleep 0.1; done"}, {"prompt": "true"}]
    running = office.start(*batch(tmp_path, *orders), "--parallel", "1", terminal=True)
    running.says("working")
    if at_the_question:
        running.type("\x03")
        running.says("let it go on without you")
    running.hang_up()
    assert running.process.wait(20) == 129
    assert sorted(job["status"] for job in office.jobs()) == ["cancelled", "running"]
    (tmp_path / "enough").write_text("")
    office("wait", office.jobs("running")[0]["job_id"])
    wait_until(lambda: not office.sessions())


def test_what_is_started_with_nohup_stays_when_the_terminal_is_closed(office):
    office.prefix = ["nohup"]
    running = office.start("submit", "sleep 1")
    running.says("started")
    running.signal(signal.SIGHUP)
    assert running.end().code == 0
    office.prefix = []


def test_attach_shows_the_session_and_lets_one_type(office):
    job_id = office.detached("echo look here; read answer; echo $answer > out", "--expect", "out")
    running = office.start("attach", job_id, terminal=True)
    running.says("look here")
    running.type("42\r")
    office("wait", job_id)
    running.end()
    assert "42" in (office.folder / "out").read_text()
    assert " completed " in office.refused("attach", "--job", job_id)


def test_an_agent_that_asks_at_once_has_the_terminal(office):
    asking = [office.detached("read answer || exit 9") for _ in range(5)]
    assert {office.job(job_id)["status"] for job_id in asking} == {"running"}
    for job_id in asking:
        office("cancel", job_id)
    wait_until(lambda: not office.sessions())


def test_attach_without_a_terminal_says_what_else_there_is(office):
    job_id = office.detached("sleep 1234")
    assert "baton session capture" in office.refused("attach", job_id, code=64)
    office("cancel", job_id)
    wait_until(lambda: not office.sessions())


# -- what cannot work ----------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_in_one_line_before_anything_is_made(office):
    for arguments, words in (
        (("x", "--agent", "hal"), "hal"),
        (("x", "--yolo"), "--yolo means nothing for it"),
        (("x", "--session", "nobody"), "nobody"),
        (("x", "--to", "nobody"), "nobody"),
        (("x", "--workdir", "/gone"), "/gone is not a folder"),
        (("x", "--expect", "../up.txt"), "outside the work folder"),
        (("x", "--expect", "/etc/passwd"), "outside the work folder"),
        (("",), "prompt"),
        (("x", "--timeout", "0"), "--timeout must be more than 0"),
        (("x", "--prompt-file", "/gone"), "give the task"),
        (("x", "--session", "a", "--to", "b"), "one of them"),
        (("x", "--agent-def-dir", "/tmp"), "--agent-def-dir belongs to the agent of --to"),
        (("--prompt-file", "/gone"), "/gone"),
        (("--batch", "/gone"), "/gone"),
        ((), "give the task"),
    ):
        said = office("submit", *arguments, code=None)
        assert said.code in (1, 64), said
        assert said.err.startswith("baton: ")
        assert said.err.count("\n") == 1
        assert words in said.err
    assert office.jobs() == []


def test_a_validation_that_is_no_command_is_an_error_that_says_so(office):
    done = office.submit("true", "--validate", "no-such-command-here", code=1)
    assert "no-such-command-here" in done.out
    assert "not found" in done.out
    assert office.the_job()["status"] == "error"


def test_a_very_long_prompt_arrives_whole(office, tmp_path):
    text = "cat > out <<'END'\n" + "x" * 1_000_000 + "\nEND\n"
    office.submit("-", "--expect", "out", stdin=text)
    assert len((tmp_path / "out").read_text()) == 1_000_001
    (tmp_path / "prompt").write_text(text)
    office.submit("--prompt-file", "prompt", "--expect", "out")


def test_with_the_broker_away_all_the_time_it_is_done_all_the_same(office):
    away = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}
    done = office.submit("echo hi > out", "--expect", "out", "--json", **away)
    assert events_of(done) == ["started", "completed"]
    assert "127.0.0.1" in done.err
    assert office.the_job()["status"] == "completed"
    assert office.unsent() == 2
    wait_until(lambda: not office.processes("runner"))


def test_a_registry_that_is_away_for_a_moment_is_waited_for(office, tmp_path, postgres):
    shared = {"BATON_REGISTRY": postgres.new_url()}
    work = "touch begun; while ! test -e enough; do sleep 0.1; done; echo x > out"
    running = office.start("submit", work, "--expect", "out", "--json", **shared)
    running.says("started")
    wait_until((tmp_path / "begun").exists)
    postgres.stop()
    running.says("trying again")
    postgres.start()
    (tmp_path / "enough").write_text("")
    done = running.end()
    assert done.code == 0, done
    assert events_of(done) == ["started", "completed"]


def test_who_listens_or_waits_also_waits_for_it(office, postgres):
    shared = {"BATON_REGISTRY": postgres.new_url()}
    job = office("register", "x", **shared).text
    running = [office.start(*verb, job, **shared) for verb in (("subscribe",), ("wait",))]
    office("publish", job, "--event", "started", **shared)
    running[0].says("started")
    with psycopg.connect(postgres.url, autocommit=True) as server:  # one of `wait` itself, one of its reconciler
        query = "SELECT count(*) >= 3 FROM pg_stat_activity WHERE application_name = 'baton'"
        wait_until(lambda: server.execute(query).fetchone()[0], "both listen")
    postgres.stop()
    running[0].says("trying again")
    postgres.start()
    office("publish", job, "--event", "completed", **shared)
    listened, waited = (each.end() for each in running)
    assert (listened.code, events_of(listened)) == (0, ["started", "completed"]), listened
    ended = f"{job}\tcompleted\tdone: unchecked: only the word of its agent"
    assert (waited.code, waited.text) == (0, ended), waited


@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_without_tmux_it_is_refused_before_anything_is_made(office, tmp_path, how):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "env"):
        os.symlink(f"/bin/{name}", tmp_path / "bin" / name)
    said = office.refused("submit", "true", *how, PATH=str(tmp_path / "bin"))
    assert said.startswith("baton: tmux is not installed")
    assert office.jobs() == []


def test_a_folder_that_goes_away_meanwhile_is_an_error(office, tmp_path):
    (tmp_path / "work").mkdir()
    done = office.submit("rm -rf ../work; true", "--workdir", "work", "--expect", "x", code=1)
    assert "x is missing" in done.out


def test_two_at_the_same_moment_do_not_get_in_each_others_way(office, tmp_path):
    both = [office.start("submit", f"echo hi > out{n}", "--expect", f"out{n}") for n in (1, 2)]
    assert [each.end().code for each in both] == [0, 0]


# -- what new users ran into -----------------------------------------------------------------------------------


def test_a_validation_that_takes_long_does_not_cost_the_job(office):
    """The runner goes on renewing its lease beside it."""
    office.submit("true", "--validate", "sleep 5", BATON_LEASE_SEC="2")
    assert office.the_job()["attempt"] == 1


def test_a_validation_ends_with_its_job(office):
    office.submit("true", "--validate", "sleep 1236", "--timeout", "3", code=2)
    assert office.the_job()["status"] == "error"
    wait_until(lambda: not office.agents())


def test_what_a_command_said_last_is_told_and_can_be_read_afterwards(office):
    done = office.submit("echo first; echo the disk is on fire >&2; exit 5", code=1)
    assert "exit code 5: first the disk is on fire" in done.out
    session = office("session", "list", "--all", "--json").json[0]["name"]
    shown = office("session", "capture", session)
    assert shown.out.splitlines()[:2] == ["first", "the disk is on fire"]
    assert "this is its last screen" in shown.err


def test_a_command_that_says_nothing_is_not_taken_for_dead(office):
    assert office("submit", "sleep 1", "--json").code == 0
    job = office.the_job()
    assert job["idle_timeout_sec"] == job["timeout_sec"]


def test_a_sent_job_that_takes_too_long_is_interrupted_and_the_session_lives_on(office, tmp_path):
    office("session", "create", "gpu")
    office.submit("sleep 1238; echo z > late.txt", "--session", "gpu", "--timeout", "2", code=2)
    office.submit("echo ok > quick.txt", "--session", "gpu", "--expect", "quick.txt")
    assert not office.processes("sleep 1238")
    assert not (tmp_path / "late.txt").exists(), "the shell went on with the interrupted line before the next one"
    office("session", "stop", "gpu")


def test_cancelling_a_sent_job_does_not_end_the_session(office, tmp_path):
    office("session", "create", "gpu")
    job = office("submit", "sleep 1237", "--session", "gpu", "--detach").text
    wait_until(lambda: office("status", job).text == "running")
    office("cancel", job)
    office.submit("echo ok > next.txt", "--session", "gpu", "--expect", "next.txt")
    assert [session["name"] for session in office.sessions()] == ["gpu"]
    office("session", "stop", "gpu")


def test_a_session_that_was_let_go_of_can_be_taken_back(office):
    office("session", "create", "gpu")
    office("session", "stop", "gpu", "--mode", "soft")
    wait_until(lambda: not office.sessions())
    office("session", "resume", "gpu")
    office.submit("true", "--session", "gpu")
    office("session", "stop", "gpu")


def test_what_a_session_cannot_be_told_is_refused(office, tmp_path):
    office("session", "create", "gpu")
    for option in (["--agent", "codex"], ["--workdir", "."], ["--headless"], ["--yolo"]):
        assert "leave it out" in office.refused("submit", "x", "--session", "gpu", *option, code=64)
    office("agent", "publish", "mine", "--session", "gpu")
    assert "published by hand" in office.refused("submit", "x", "--to", "mine")
    (tmp_path / "binary").write_bytes(b"\xd0\xff")
    assert "not valid UTF-8" in office.refused("submit", "--prompt-file", "binary", code=64)
    runner = office("session", "show", "gpu").json["pane_pid"]
    os.kill(runner, signal.SIGKILL)
    wait_until(lambda: "has died" in office("submit", "x", "--session", "gpu", code=1).err)
    office("monitor", "--once")


def test_doctor_sees_a_log_that_was_touched(office, tmp_path):
    office.submit("true")
    job = office.the_job()["job_id"]
    path = tmp_path / ".hermes" / "delegate_job_logs" / job / "events.ndjson"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert f"tampered with: {job}" in office("doctor", code=1).out


@pytest.mark.parametrize("columns", [80, 60])
def test_what_a_person_sees_on_a_real_terminal(office, tmp_path, columns):
    """More jobs than lines, one that waits, one that failed, and Ctrl-C: drawn by tmux, read from its screen."""
    reason = "the file of the project is locked by another process since yesterday evening, and stays so"
    orders = [
        {"prompt": f"echo '{reason}' >&2; exit 3"},
        {"prompt": "baton publish --event permission_required --detail 'may I delete it'; sleep 1234 # Tidy up"},
    ]
    # A module of Python sets both in the tests.
    plain = ["env", "-u", "COLUMNS", "-u", "LINES"]
    command = shlex.join([*plain, BATON, *batch(tmp_path, *orders, *({"prompt": "true # Later"} for _ in range(30)))])
    env = [f"-e{name}={value}" for name, value in office.env.items() if name != "TERM"]
    size = ["-x", str(columns), "-y", "24", "-c", str(tmp_path)]
    office.tmux("-u", "new-session", "-d", *size, *env, "-s", "screen", f"{command} --parallel 1; sleep 1234")

    def screen():
        return office.tmux("capture-pane", "-p", "-S", "-", "-t", "screen").splitlines()

    seen = wait_until(lambda: any("may I" in line for line in screen()) and screen())
    assert [line.split()[1] for line in seen[1:4]] == ["waiting", "failed", "pending"]
    assert "Tidy" not in seen[1], "cut"
    assert "baton publish" in seen[1]
    assert re.fullmatch(r"and 12 more: 12 pending", seen[21])
    assert re.fullmatch(r"1 failed, 1 waiting, 30 pending after \d+s", seen[22])
    assert len(seen) == 23
    office.tmux("send-keys", "-t", "screen", "C-c")
    wait_until(lambda: "cancel all (c, then Enter)?" in "".join(screen()))
    office.tmux("send-keys", "-t", "screen", "c", "Enter")
    wait_until(lambda: any(re.fullmatch(r"1 failed, 31 cancelled in \d+s", line) for line in screen()))
    seen = screen()
    assert sum("STATE" in line for line in seen) == 1, seen
    assert not any("^C" in line for line in seen)
    assert f"failed: the command ended with exit code 3: {reason} 1 failed" in " ".join(" ".join(seen).split())
    office.tmux("kill-session", "-t", "screen")
    wait_until(lambda: not office.agents())


def test_a_job_that_its_runner_may_not_claim_is_not_at_fault(office, tmp_path, monkeypatch):
    """A migration waits for running jobs meanwhile, and is given up then."""
    job_id = office("register", "true").text
    monkeypatch.setenv("HOME", str(tmp_path))
    with open_jobs(office.settings) as jobs:
        job, inventory = jobs.get_job(job_id), Inventory(office.settings)
        with jobs.registry.draining(), pytest.raises(RegistryUnavailable, match="drained for a migration"):
            create_session(office.settings, inventory, "one", agent="shell", workdir=str(tmp_path), job=job)
    assert office.job(job_id)["status"] == "pending"
    office("worker", "--until-empty")
    assert office.job(job_id)["status"] == "completed"
