"""What comes after a job, or in the middle of it: send, attach, follow-up, retry, and sessions named by a job."""

from __future__ import annotations

import json
import os
import sqlite3

import pytest

from support.command import BATON
from support.terminal import Terminal
from support.waiting import wait_until

# An agent with a memory: it notes how it was called, remembers the prompt under the id of the conversation, and runs it.
PARROT = """\
#!/bin/sh
echo "$1 $2 $4" >> calls
cat "$3" >> "memory-$2"
exec sh "$3"
"""
TABLE = """\
[agents.parrot]
interactive = ["parrot", "interactive", "{conversation_id}", "{prompt_file}"]
headless = ["parrot", "headless", "{conversation_id}", "{prompt_file}"]
resume_interactive = ["parrot", "resume", "{conversation_id}", "{prompt_file}"]
resume_headless = ["parrot", "resume", "{conversation_id}", "{prompt_file}"]
yolo = ["yolo"]
chooses_id = true
[agents.deaf]
interactive = ["parrot", "interactive", "x", "{prompt_file}"]
resume_interactive = ["parrot", "resume"]
resume_headless = ["parrot", "resume"]
[agents.nameless]
interactive = ["parrot", "interactive", "x", "{prompt_file}"]
resume_interactive = ["parrot", "resume", "{conversation_id}", "{prompt_file}"]
resume_headless = ["parrot", "resume", "{conversation_id}", "{prompt_file}"]
"""


@pytest.fixture
def desk(desk, tmp_path):
    """With agents of the user's own config file."""
    config = tmp_path / ".config" / "baton" / "baton.toml"
    config.parent.mkdir(parents=True)
    config.write_text(TABLE)
    program = tmp_path / "bin" / "parrot"
    program.parent.mkdir()
    program.write_text(PARROT)
    program.chmod(0o755)
    desk.env["PATH"] = f"{program.parent}:{desk.env['PATH']}"
    return desk


def started(desk, *arguments: str) -> str:
    return desk(*arguments, "--detach").text


def over(desk, job: str) -> dict:
    """The record of an ended job, without the cost of a command for each look."""
    with sqlite3.connect(os.path.join(desk.home, "jobs", "registry.db")) as raw:
        wait_until(
            lambda: (
                raw.execute("SELECT status FROM jobs WHERE job_id = ?", [job]).fetchone()[0] in ("completed", "error")
            )
        )
    raw.close()
    return desk.job(job)


def typed(desk, job: str) -> list[str]:
    lines = [json.loads(line) for line in desk("logs", job, "--json").out.splitlines()]
    return [line["detail"] for line in lines if line["event"] == "typed"]


# -- follow-up -------------------------------------------------------------------------------------------------------


def test_a_follow_up_resumes_the_conversation_and_is_started_like_the_first_job(desk, tmp_path):
    (tmp_path / "work").mkdir()
    named = ("--title", "Parrots", "--label", "bird", "--workdir", "work")
    first = over(desk, started(desk, "submit", "echo one", "--agent", "parrot", "--headless", *named))
    assert (first["status"], first["start_options"]) == ("completed", {"headless": True})
    words = ("echo two > out", "--expect", "out", "--timeout", "50")
    second = over(desk, started(desk, "follow-up", first["job_id"][:6], *words))
    assert second["status"] == "completed", desk.story(second["job_id"])
    kept = ("agent", "workdir", "labels", "title")
    assert {name: second[name] for name in kept} == {name: first[name] for name in kept}
    assert (second["title"], second["labels"]) == ("Parrots", ["bird"])
    assert (second["follows"], second["timeout_sec"], second["expected_artifacts"]) == (first["job_id"], 50, ["out"])
    calls = [line.split() for line in (tmp_path / "work" / "calls").read_text().splitlines()]
    conversation = calls[0][1]
    assert calls == [["headless", conversation], ["resume", conversation]]
    remembered = (tmp_path / "work" / f"memory-{conversation}").read_text()
    assert "echo one" in remembered
    assert "echo two > out" in remembered

    again = over(desk, started(desk, "retry", second["job_id"]))
    options = {"headless": True, "resume": True, "conversation_id": conversation}
    assert again["start_options"] == second["start_options"] == options
    assert (again["retry_of"], again["follows"]) == (second["job_id"], None)
    assert desk.job(second["job_id"])["retried_by"] == again["job_id"]
    assert (tmp_path / "work" / "calls").read_text().splitlines()[-1].split() == ["resume", conversation]


def test_a_follow_up_goes_to_the_session_of_the_first_job_while_that_runs(desk, tmp_path):
    desk.create("gpu")
    first = started(desk, "submit", "echo $$ > here", "--session", "gpu", "--expect", "here")
    assert over(desk, first)["status"] == "completed"
    assert "--headless: session 'gpu' runs already" in desk.refused("follow-up", first, "true", "--headless")
    named = ("--title", "Second", "--label", "a", "--label", "b")
    second = over(desk, started(desk, "follow-up", "--job", first, "echo two > there", *named))
    assert (second["title"], second["labels"]) == ("Second", ["a", "b"])
    assert (second["status"], second["follows"], second["claimed_by"].split(":")[1]) == ("completed", first, "gpu")
    assert (tmp_path / "there").read_text() == "two\n"
    assert [each["name"] for each in desk("session", "list", "--json").json] == ["gpu"]


def test_what_cannot_be_followed_is_refused_before_anything_is_made(desk):
    command = over(desk, started(desk, "submit", "true", "--agent", "shell"))["job_id"]
    refusal = desk.refused("follow-up", command, "echo more")
    assert f"shell keeps no conversation, so nothing can follow job {command}; `baton retry {command}`" in refusal
    for agent, why in (("deaf", "takes no prompt when it resumes"), ("nameless", "which conversation it was")):
        job = over(desk, started(desk, "submit", "true", "--agent", agent))["job_id"]
        assert why in desk.refused("follow-up", job, "true")
        if agent == "deaf":
            assert why in desk.refused("session", "resume", job, "--prompt", "true")
    stranger = desk("register", "true", "--agent", "parrot").text
    assert f"job {stranger} is pending: a follow-up begins when it has ended" in desk.refused(
        "follow-up", stranger, "x"
    )
    desk("cancel", stranger)
    assert f"no session of job {stranger}, so its conversation" in desk.refused("follow-up", stranger, "x")
    assert "no job 0000ffff" in desk.refused("follow-up", "0000ffff", "x")
    assert "give the task" in desk.refused("follow-up", stranger, code=64)
    assert len(desk("list", "--json").json) == 4


def test_a_conversation_is_open_once(desk, tmp_path):
    first = over(desk, started(desk, "submit", "true", "--agent", "parrot"))["job_id"]
    second = started(desk, "follow-up", first, "until test -e go; do sleep 0.05; done")
    refusal = desk.refused("follow-up", first, "true")
    assert f"the conversation of job {first} is open: job {second} has it; follow that one" in refusal
    assert f"job {second} is running: a follow-up begins" in desk.refused("follow-up", second, "true")
    assert "has this conversation open" in desk.refused("session", "resume", first)
    (tmp_path / "go").touch()
    assert over(desk, second)["status"] == "completed"


# -- retry -----------------------------------------------------------------------------------------------------------


def test_a_retry_is_started_as_the_job_was_and_both_name_each_other(desk, tmp_path):
    options = ("--agent", "parrot", "--headless", "--yolo", "--validate", "false", "--max-attempts", "2")
    first = over(desk, started(desk, "submit", "true", *options))
    assert (first["status"], first["retry_of"], first["retried_by"]) == ("error", None, None)
    told = desk("retry", first["job_id"], "--detach")
    assert f"it runs with --yolo, as job {first['job_id']} did" in told.err
    again = over(desk, told.text)
    assert (again["retry_of"], desk.job(first["job_id"])["retried_by"]) == (first["job_id"], again["job_id"])
    kept = ("start_options", "validate", "max_attempts", "agent", "workdir", "timeout_sec")
    assert {name: again[name] for name in kept} == {name: first[name] for name in kept}
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    began = [(mode, more) for mode, _, *more in calls if mode != "resume"]  # it is sent back, too
    assert began == [("headless", ["yolo"])] * 2
    inside = f"env -u BATON_SESSION_ID {BATON} retry {first['job_id']} > answer 2>&1"
    inside += f"; {BATON} retry {started(desk, 'submit', 'true', '--agent', 'shell')} --detach --force > again"
    caller = over(desk, started(desk, "submit", inside, "--agent", "shell"))
    assert "--yolo is refused inside a session" in (tmp_path / "answer").read_text()
    by_agent = over(desk, (tmp_path / "again").read_text().strip())
    assert by_agent["parent"] == caller["job_id"]
    assert over(desk, started(desk, "retry", by_agent["job_id"]))["parent"] is None, "a person did that"


# -- attach, and sessions by the id of a job -----------------------------------------------------------------------


def test_sessions_are_named_by_a_job_and_an_ended_job_offers_what_is_left(desk):
    job = started(desk, "submit", "echo ready; sleep 600", "--agent", "parrot")
    name = f"job-{job}-1"
    desk.until_shown(name, "ready")
    assert desk("session", "show", job).json["name"] == name
    assert desk("session", "list", job[:5]).text.split("\t")[0] == name
    assert "ready" in desk("session", "capture", job).out
    with Terminal([BATON, "session", "attach", job], cwd=desk.folder, env=desk.env) as terminal:
        terminal.see("ready")
        terminal.type("\x02", "d")
        terminal.end()
    assert desk("session", "stop", job, "--mode", "hard").text == f"{name}\tterminated"
    assert over(desk, job)["status"] == "error"
    assert desk("session", "list", job).text.split("\t")[:2] == [name, "terminated"]
    line = desk.refused("attach", job)
    offer = f"`baton result {job}` shows its answer, `baton session resume {job}` opens its conversation again"
    assert line.startswith(f"baton: job {job} failed ")
    assert line.endswith(f"s ago: {offer}\n")

    assert desk("session", "resume", job, "--prompt", "echo back; sleep 600").text == name
    desk.until_shown(name, "back")
    with Terminal([BATON, "attach", job], cwd=desk.folder, env=desk.env) as terminal:
        terminal.see("back")
        terminal.type("\x02", "d")
        terminal.end()
    assert "no session on this host runs job" in desk.refused("session", "show", desk("register", "x").text)
    for word in ("nothing", "0000", "0000ffff"):
        assert f"no session {word!r}" in desk.refused("session", "show", word)


def test_a_session_made_by_hand_for_a_job_is_found_too(desk):
    job = desk.register("true")
    desk("session", "create", "mine", "--job", job)
    over(desk, job)
    desk.until_state("mine", "terminated")
    assert desk("session", "show", job).json["name"] == "mine"
    line = desk.refused("attach", job)
    assert line.startswith(f"baton: job {job} completed ")
    assert "session resume" not in line, "the shell has no conversation"
    desk.create("mine")
    desk("session", "stop", "mine")
    assert "no session on this host" in desk.refused("session", "show", job), "another session has that name now"


# -- send ------------------------------------------------------------------------------------------------------------


def test_a_text_arrives_as_it_is_and_is_in_the_audit_log_without_secrets(desk, tmp_path):
    job = started(desk, "submit", "echo ready; cat > got", "--agent", "shell")
    desk.until_shown(f"job-{job}-1", "ready")
    hostile = "-rf; $(touch canary) `touch canary` #{pid} #(touch canary) \x1b[31mred\n--key Enter\n\t'quoted\""
    secret = "password=hunter2secret"
    desk("send", job[:6], "--json", "--", hostile)
    desk("send", job, "--no-enter", "-", stdin=secret)
    desk("send", "--job", job, "--no-enter", "!")
    assert desk("send", job, "--key", "Enter", "--json").json["keys"] == ["Enter"]
    for wrong in (("--json", "x", "y"), ("--json", "-x"), ("x", "y")):
        assert "unrecognized arguments" in desk.refused("send", job, *wrong, code=64)
    desk("send", job, "--key", "C-d")
    assert over(desk, job)["status"] == "completed"
    assert (tmp_path / "got").read_text() == f"{hostile}\n{secret}!\n"
    assert not (tmp_path / "canary").exists()
    told = typed(desk, job)
    assert told[0].startswith("-rf; $(touch canary)")
    assert "\x1b" not in told[0]
    assert told[1:] == ["password=<secret>", "!", "keys Enter", "keys C-d"]
    assert "typed           keys C-d" in desk("logs", job).out
    refusal = f"job {job} is completed, so nothing is typed; `baton follow-up {job} TEXT`"
    assert refusal in desk.refused("send", job, "too late")


def test_nothing_is_typed_where_it_would_not_arrive(desk, tmp_path):
    job = started(desk, "submit", "until test -e go; do sleep 0.05; done", "--agent", "parrot", "--headless")
    assert "is headless: its agent reads no keyboard" in desk.refused("send", job, "x")
    for key in ("Entr", "C-", "X-c", "F13", "Enter ", "\x1b", ""):
        assert "there is no key" in desk.refused("send", job, "--key", key, code=64)
    assert "either a TEXT" in desk.refused("send", job, code=64)
    assert "either a TEXT" in desk.refused("send", job, "x", "--key", "Enter", code=64)
    pending = desk("register", "true").text
    assert f"no session on this host runs job {pending}: it is pending" in desk.refused("send", pending, "x")
    assert desk("pick", "--holder", "there:s:12").text == pending
    assert "it is running, held by there:s:12" in desk.refused("send", pending, "x")
    (tmp_path / "go").touch()
    over(desk, job)
    assert typed(desk, job) == []


def test_an_agent_types_into_no_session_of_a_job(desk, tmp_path):
    """A key could answer a question that is for a person."""
    desk.create("free")
    busy = started(desk, "submit", "echo ready; cat > got", "--agent", "shell")
    desk.until_shown(f"job-{busy}-1", "ready")
    baton = f"env -u BATON_SESSION_ID {BATON}"
    script = f"{baton} send {busy} x > one 2>&1; {baton} session send {busy} x > two 2>&1; "
    script += f"{baton} session send free 'echo $((40 + 2))-sent' > three 2>&1"
    over(desk, started(desk, "submit", script, "--agent", "shell"))
    for name in ("one", "two"):
        answer = (tmp_path / name).read_text()
        assert "typing into the session of a job is refused inside a session; ask the user" in answer
    assert (tmp_path / "three").read_text() == ""
    desk.until_shown("free", "42-sent")
    desk("cancel", busy)
    assert typed(desk, busy) == []
