"""What the runner does about the signals of Claude Code, whose hooks the test sends."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton.jobs.verbs import open_jobs
from support.claude import Claude, install_program
from support.homes import settings_in
from support.sessions import SessionDesk
from support.waiting import wait_until


@pytest.fixture
def desk(tmp_path):
    desk = SessionDesk(str(tmp_path))
    install_program(desk, tmp_path)
    yield desk
    desk.close()


def begin(desk, *options, name="gpu"):
    """A job in a session of its own, with its first turn; and Claude Code in it."""
    job = desk.register("do it", *options, agent="claude-code")
    desk("session", "create", name, "--job", job)
    claude = Claude(desk, name)
    claude.start(f"do it\n\nThis is job {job} of baton")
    return job, claude


def activity(claude):
    with open(os.path.join(claude.folder, "activity.json")) as file:
        return json.load(file)


def test_a_turn_that_ends_well_completes_the_job(desk):
    job, claude = begin(desk)
    tool = claude.tool("make")
    wait_until(lambda: activity(claude)["cause"] == "Bash: make")
    claude.end_tool(tool)
    assert not claude.stop("all done").answer()
    record = desk.until_over(job)
    assert (record["status"], record["detail"]) == ("completed", "all done")
    assert [event for event, _ in desk.story(job)] == ["started", "progress", "completed"]


def test_the_activity_is_in_the_record_of_the_job(desk):
    job, claude = begin(desk)
    claude.tool("make")
    wait_until(lambda: (desk.job(job)["activity"] or {}).get("kind") == "working")
    found = desk.job(job)["activity"]
    assert (found["cause"], found["attempt"]) == ("Bash: make", 1)


def test_results_that_are_missing_send_the_agent_back(desk, tmp_path):
    job, claude = begin(desk, "--expect", "out.txt")
    answer = claude.stop().answer()
    assert answer["decision"] == "block"
    assert "out.txt is missing" in answer["reason"]
    wait_until(lambda: activity(claude)["rule"] == "turn")
    assert desk.job(job)["status"] == "running"
    (tmp_path / "out.txt").write_text("x")
    assert not claude.stop().answer()
    assert desk.until_over(job)["status"] == "completed"


def test_results_that_stay_missing_are_refused(desk):
    job, claude = begin(desk, "--expect", "out.txt")
    for _ in range(3):
        assert claude.stop().answer()["decision"] == "block"
    assert not claude.stop().answer()
    record = desk.until_over(job)
    assert (record["status"], record["ended_by"]) == ("error", "verification")
    assert record["detail"] == "not completed: out.txt is missing"


def test_background_work_keeps_the_job_open_and_alive(desk):
    job, claude = begin(desk)
    shell = {"id": "b1", "type": "shell", "status": "running", "description": "the build", "command": "make"}
    assert not claude.stop("soon", background=[shell]).answer(), "the turn ends at once"
    wait_until(lambda: activity(claude)["rule"] == "background")
    notice = "<task-notification><task-id>b1</task-id><status>completed</status>"
    claude.send("UserPromptSubmit", "t2", prompt=notice)
    assert desk.job(job)["status"] == "running"
    assert not claude.stop("built", turn="t2").answer()
    record = desk.until_over(job)
    assert (record["status"], record["detail"]) == ("completed", "built")


def test_a_verification_during_which_the_agent_works_is_void(desk, tmp_path):
    job, claude = begin(desk, "--validate", "echo x >> began; while test ! -e go; do sleep 0.02; done")
    stop = claude.stop("first")
    wait_until((tmp_path / "began").exists, what="the validation runs")
    claude.send("UserPromptSubmit", "t2", prompt="wait, one more thing")
    (tmp_path / "go").touch()
    assert not stop.answer()
    wait_until(lambda: "not the job's" in activity(claude)["cause"])
    assert desk.job(job)["status"] == "running"
    assert not claude.stop("second", turn="t2").answer()
    record = desk.until_over(job)
    assert (record["status"], record["detail"]) == ("completed", "first")
    assert len((tmp_path / "began").read_text().split()) == 2, "verified again"


def test_publish_is_refused_while_other_work_is_open(desk):
    job, claude = begin(desk)
    claude.tool("sleep 600")
    publish = ["publish", "--job", job, "--event", "completed", "--detail", "done"]
    mine = claude.tool("baton " + " ".join(publish))
    wait_until(lambda: activity(claude)["open_work"] is not None)
    refusal = desk.refused(*publish, BATON_SESSION_DIR=claude.folder)
    assert f"job {job} is not completed: a tool call is open: Bash: sleep 600" in refusal
    claude.send("PostToolUse", tool_name="Bash", tool_use_id="tool1", tool_input={"command": "sleep 600"})
    wait_until(lambda: activity(claude)["open_work"] is None)
    desk(*publish, BATON_SESSION_DIR=claude.folder)
    assert desk.job(job)["status"] == "completed"
    assert mine["tool_use_id"] == "tool2"


def test_a_cleared_conversation_ends_the_job_with_that_reason(desk):
    job, claude = begin(desk)
    claude.send("SessionEnd", reason="clear")
    record = desk.until_over(job)
    assert (record["status"], record["detail"]) == ("error", "the conversation was cleared (/clear)")


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(desk):
    with open_jobs(settings_in(desk.folder, desk.env)) as jobs:
        yield jobs.registry


def open_requests(registry, job, count=1):
    """The open requests of a job, oldest first, when there are so many."""
    wait_until(lambda: len(registry.list_requests(job_id=job)) == count, what=f"{count} open requests")
    return registry.list_requests(job_id=job)


def in_background(desk, *command, code=0):
    """A command that runs while the test goes on; its output, when it has ended as it should."""
    pool = ThreadPoolExecutor(1)
    running = pool.submit(lambda: desk(*command, code=code))
    pool.shutdown(wait=False)
    return running


def test_a_permission_is_given_by_another_process(desk, registry):
    job, claude = begin(desk)
    tool = claude.tool("rm -r build")
    asked = claude.ask(tool)
    (request,) = open_requests(registry, job)
    assert (request.kind, request.tool, request.call) == ("tool", "Bash", {"command": "rm -r build"})
    wait_until(lambda: desk.job(job)["activity"]["kind"] == "waiting")
    approving = in_background(desk, "approve", request.request_id, code=None)  # 1 on a machine that is slow
    assert asked.decision() == {"behavior": "allow"}
    claude.end_tool(tool)
    approving.result()
    wait_until(lambda: registry.get_request(request.request_id).applied == "yes")
    found = registry.get_request(request.request_id)
    assert (found.state, found.answer, found.applied, found.via) == ("answered", "allow", "yes", "cli")
    assert found.sent_at is not None
    assert not claude.stop().answer()
    assert desk.until_over(job)["status"] == "completed"
    assert [event for event, _ in desk.story(job)].count("permission_required") == 1


def test_a_plan_is_approved_as_it_was_shown_and_no_other(desk, registry):
    job, claude = begin(desk)
    folder = os.path.join(desk.folder, ".claude")
    plan, transcript = os.path.join(folder, "plans", "do-it.md"), os.path.join(folder, "projects", "w", "c.jsonl")
    write(plan, "# The plan")
    about = {"type": "plan_mode", "planFilePath": plan}
    write(transcript, json.dumps({"type": "attachment", "isSidechain": False, "attachment": about}) + "\n")
    call = {"tool_name": "ExitPlanMode", "tool_input": {}, "transcript_path": transcript}
    claude.send("PreToolUse", tool_use_id="p1", **call)
    asked = claude.ask({"turn": "t1", **call})
    (request,) = open_requests(registry, job)
    assert (request.kind, request.call["plan"], request.exact) == ("plan", "# The plan", True)
    write(plan, "# Another plan")
    refused = desk("approve", request.request_id, code=1)
    assert "changed after it was shown" in refused.err or "closed" in refused.err
    (again,) = open_requests(registry, job)
    assert (again.call["plan"], asked.is_open) == ("# Another plan", True)
    unused = registry.get_request(request.request_id)
    assert (unused.state, unused.applied) in (("answered", "no"), ("withdrawn", "unknown"))
    approving = in_background(desk, "approve", again.request_id, code=None)  # 1 on a machine that is slow
    assert asked.decision() == {"behavior": "allow", "updatedInput": {}}
    claude.send("PostToolUse", tool_use_id="p1", tool_response={}, **call)
    approving.result()
    wait_until(lambda: registry.get_request(again.request_id).applied == "yes")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def test_an_answer_that_claude_drops_is_not_said_to_be_used(desk, registry):
    """Claude Code 2.1.327 drops an approval of another form without a sign, and its dialog stays."""
    job, claude = begin(desk)
    asked = claude.ask(claude.tool("make"))
    (request,) = open_requests(registry, job)
    dropped = desk("approve", request.request_id, code=1)
    assert asked.decision()["behavior"] == "allow"
    assert "goes on" not in dropped.out
    assert "that it goes on" in dropped.err or "not taken" in dropped.err


def test_of_two_requests_one_answer_leaves_the_other_open(desk, registry):
    job, claude = begin(desk)
    tools = [claude.tool("make install", tool_id) for tool_id in ("a", "b")]
    asked = [claude.ask(tool) for tool in tools]
    first, second = open_requests(registry, job, 2)
    desk("deny", first.request_id, "--reason", "not yet", code=None)
    wait_until(lambda: any(not each.is_open for each in asked))
    (denied,) = [each for each in asked if not each.is_open]
    assert denied.decision() == {"behavior": "deny", "message": "not yet"}
    assert [each.request_id for each in open_requests(registry, job)] == [second.request_id]
    assert activity(claude)["kind"] == "waiting"
    refusal = desk.refused("approve", first.request_id)
    assert "deny" in refusal or "denied" in refusal, refusal


def test_an_answer_at_the_keyboard_closes_the_request(desk, registry):
    job, claude = begin(desk)
    tool = claude.tool("make")
    asked = claude.ask(tool)
    (request,) = open_requests(registry, job)
    claude.end_tool(tool)
    open_requests(registry, job, 0)
    found = registry.get_request(request.request_id)
    assert (found.state, found.answer, found.via) == ("elsewhere", "allow", "agent")
    assert not asked.answer()
    wait_until(lambda: activity(claude)["kind"] == "working")


def test_a_denial_that_a_person_overrides_is_known(desk, registry):
    job, claude = begin(desk)
    tool = claude.tool("make")
    asked = claude.ask(tool)
    (request,) = open_requests(registry, job)
    denying = in_background(desk, "deny", request.request_id, code=None)
    assert asked.decision()["behavior"] == "deny"
    claude.end_tool(tool)  # the tool ran: a person was faster
    wait_until(lambda: registry.get_request(request.request_id).applied == "no", "the evidence")
    denied = denying.result()  # on a slow machine it has not waited so long
    assert denied.code == 1 or "the agent's runner has not taken the answer yet" in denied.out, denied
    found = registry.get_request(request.request_id)
    assert (found.state, found.answer, found.applied) == ("answered", "deny", "no")
    assert found.overridden_by


def test_an_answer_for_the_job_holds_for_equal_calls(desk, registry):
    job, claude = begin(desk)
    tool = claude.tool("make")
    asked = claude.ask(tool)
    (request,) = open_requests(registry, job)
    approving = in_background(desk, "approve", request.request_id, "--for-job", code=None)
    assert asked.decision() == {"behavior": "allow"}
    claude.end_tool(tool)
    approving.result()
    again = claude.tool("make")
    assert claude.ask(again).decision() == {"behavior": "allow"}, "at once"
    claude.end_tool(again)
    claude.ask(claude.tool("make install"))
    (other,) = open_requests(registry, job)
    assert other.call == {"command": "make install"}


# -- jobs that are sent to a running session ---------------------------------------------------------------------------


def sent(desk, *options):
    return desk("submit", "do it", "--to", "gpu", "--detach", *options).text.split()[-1]


def test_a_job_is_typed_only_into_an_idle_session_and_has_its_own_turns(desk):
    desk("session", "create", "gpu", "--agent", "claude-code")
    claude = Claude(desk, "gpu")
    claude.start("hello", "mine")
    job = sent(desk)
    claude.tool("ls", turn="mine")
    assert desk.job(job)["status"] == "pending"
    assert not claude.stop("hi", turn="mine").answer()
    wait_until(lambda: desk.job(job)["status"] == "running", what="the job is typed")
    claude.send("UserPromptSubmit", "t1", prompt=f"do it\n\nThis is job {job} of baton")
    later = sent(desk)
    assert not claude.stop("done", turn="mine").answer(), "a late end of another turn"
    assert desk.job(job)["status"] == "running"
    assert not claude.stop("all done").answer()
    assert desk.until_over(job)["detail"] == "all done"
    wait_until(lambda: desk.job(later)["status"] == "running", what="the next job is typed")
    assert desk.show("gpu")["alive"]


# Takes what is typed into its terminal, and writes it down.
TYPED = f"""\
#!{sys.executable} -SE
import os, tty
tty.setraw(0)
with open("keys", "wb", buffering=0) as file:
    while content := os.read(0, 4096):
        file.write(content)
        os.write(1, content)
"""


def test_enter_is_pressed_once_more_when_no_turn_begins(desk, tmp_path):
    install_program(desk, tmp_path, TYPED)
    known = {"hasCompletedOnboarding": True, "projects": {str(tmp_path): {"hasTrustDialogAccepted": True}}}
    (tmp_path / ".claude.json").write_text(json.dumps(known))
    desk("session", "create", "gpu", "--agent", "claude-code")
    keys = tmp_path / "keys"
    wait_until(keys.exists, what="the program runs")
    claude = Claude(desk, "gpu")

    def enters():
        return keys.read_bytes().count(b"\r")

    job = sent(desk)
    wait_until(lambda: enters() == 2, what="Enter is pressed again")
    claude.send("UserPromptSubmit", prompt=f"do it\n\nThis is job {job} of baton")
    assert not claude.stop().answer()
    assert desk.until_over(job)["status"] == "completed"
    assert enters() == 2, "not a third time"


def test_a_turn_of_a_person_after_an_interruption_is_not_the_jobs(desk):
    job, claude = begin(desk)
    claude.send("UserPromptSubmit", "mine", prompt="something else")
    assert not claude.stop("that is done", turn="mine").answer()
    wait_until(lambda: activity(claude)["kind"] == "idle")
    assert desk.job(job)["status"] == "running"
