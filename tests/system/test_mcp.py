"""The nine tools of `baton mcp`, with the installed command, real tmux, and agents that the tests play."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from baton.core.request import Answer
from baton.jobs.verbs import open_jobs
from baton.mcp.schemas import check_arguments
from baton.storage.homes import load_settings
from support import acp_agent
from support.asking import ask, running
from support.command import Baton
from support.homes import home_of
from support.mcp import LEGACY, META, MODERN, McpClient, allow, of_version
from support.repositories import git
from support.sessions import SessionDesk
from support.waiting import wait_until

TOOLS = ["submit", "wait", "list", "result", "message", "cancel", "requests", "answer", "agents"]


class Desk(SessionDesk):
    """Sessions of `shell`, and of the agent `parrot`, which follows the script in its folder."""

    def configure(self) -> None:
        home_of(self.folder, self.env)
        command = json.dumps([sys.executable, acp_agent.__file__])
        with open(os.path.join(self.home, "baton.toml"), "w", encoding="utf-8") as file:
            file.write(f"[agents.parrot]\nacp = {command}\n")
        allow(self.folder, "shell", "validate")

    def script(self, *turns: list) -> None:
        with open(os.path.join(self.folder, "acp.json"), "w", encoding="utf-8") as file:
            json.dump({"turns": turns}, file)

    def client(self, **more) -> McpClient:
        return McpClient(self.folder, self.env, **more)

    def actions(self, job_id: str) -> list[str]:
        lines = [json.loads(line) for line in self("logs", job_id, "--json").out.splitlines()]
        return [line["action"] for line in lines if line["event"] == "action" and line["via"] == "mcp"]


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path))
    desk.configure()
    yield desk
    desk.close()


@pytest.fixture
def client(desk):
    with desk.client() as client:
        yield client


# -- the protocol ------------------------------------------------------------------------------------------------------


def test_both_generations_list_the_same_tools_in_8000_bytes(desk):
    listed = []
    for modern in (False, True):
        with desk.client(modern=modern) as client:
            answer = client.ask("tools/list")
            assert len(json.dumps(answer, separators=(",", ":"))) <= 8000
            listed.append(answer["result"]["tools"])
            assert [tool["name"] for tool in listed[-1]] == TOOLS
            assert ("ttlMs" in answer["result"]) == modern
    assert listed[0] == listed[1]
    for tool in listed[0]:
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object"
        assert tool["outputSchema"]["required"]
        hints = {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
        assert tool["annotations"].keys() == hints
    reading = {tool["name"] for tool in listed[0] if tool["annotations"]["readOnlyHint"]}
    assert reading == {"wait", "list", "result", "requests", "agents"}


@pytest.mark.parametrize("asked", [LEGACY, "2024-11-05", "2025-11-25", MODERN, "1.0"])
def test_initialize_agrees_on_the_version_that_is_supported(desk, asked):
    with McpClient(desk.folder, desk.env).start() as client:
        found = client.ask("initialize", protocolVersion=asked, capabilities={}, clientInfo={})["result"]
    assert found["protocolVersion"] == LEGACY
    assert found["capabilities"] == {"tools": {}}
    assert found["serverInfo"]["name"] == "baton"
    assert "idempotency_key" in found["instructions"]


def test_a_client_without_initialize_discovers_the_server(desk):
    client = desk.client(modern=True)
    found = client.ask("server/discover")["result"]
    assert found["supportedVersions"] == [MODERN, LEGACY]
    assert found["resultType"] == "complete"
    assert found["_meta"][f"{META}serverInfo"]["name"] == "baton"
    assert (found["ttlMs"] > 0, found["cacheScope"]) == (True, "public")
    refused = client.ask("tools/list", of_version("1900-01-01"))["error"]
    assert refused["code"] == -32022
    assert refused["data"] == {"supported": [MODERN, LEGACY], "requested": "1900-01-01"}
    client.modern = False
    assert client.ask("tools/list")["error"]["code"] == -32602
    assert client.ask("tools/list", {f"{META}protocolVersion": MODERN})["error"]["code"] == -32602
    assert client.ask("tools/list", {f"{META}protocolVersion": 7})["error"]["code"] == -32602
    assert client.ask("ping")["result"] == {}
    assert client.ask("ping", of_version(MODERN))["error"]["code"] == -32601
    client.close()


def test_errors_of_the_protocol_and_of_a_tool_are_told_apart(client):
    assert client.ask("tools/call", name="yolo", arguments={})["error"]["code"] == -32602
    assert client.ask("tools/call", name="list", arguments=[])["error"]["code"] == -32602
    assert client.ask("tools/call", name=7)["error"]["code"] == -32602
    assert client.ask("tools/list", cursor="x")["error"]["code"] == -32602
    assert client.ask("resources/list")["error"]["code"] == -32601
    assert "is missing" in client.refused("submit")
    assert "is not an argument of submit" in client.refused("submit", prompt="x", yolo=True)
    assert "must be a whole number" in client.refused("list", limit="3")
    assert "must be from 1 to 200" in client.refused("list", limit=0)
    assert "must be a list" in client.refused("wait", job_ids="abcd1234")
    assert "1 to 100 entries" in client.refused("wait", job_ids=[])
    assert "must be one of any, all" in client.refused("wait", job_ids=["abcd1234"], until="never")
    assert "no job abcd1234" in client.refused("result", job_id="abcd1234")
    assert "cursor" in client.refused("list", cursor="nonsense")


def test_null_arguments_count_as_left_out():
    assert check_arguments("submit", {"prompt": "x", "agent": None}) == {"prompt": "x"}


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_waited_for_and_read(desk, client):
    made = client.call(
        "submit", prompt="echo hello; echo x > out.txt", agent="shell", title="Say hello", labels=["demo"],
        expect=["out.txt"], validate="test -e out.txt", idempotency_key="k1",
    )  # fmt: skip
    assert made["job_id"] in made["next"]
    found = client.until_ended(made["job_id"])
    (job,) = found["jobs"]
    assert (job["status"], job["ok"], job["title"], job["agent"]) == ("completed", True, "Say hello", "shell")
    left = client.call("result", job_id=made["job_id"][:5])
    assert (left["ok"], left["text"].strip(), left["cut"], left["attempts"]) == (True, "hello", False, 1)
    assert left["artifacts"][0]["path"] == "out.txt"
    (listed,) = client.call("list", label="demo", status="completed")["jobs"]
    assert (listed["job_id"], listed["labels"]) == (made["job_id"], ["demo"])
    assert client.call("list", agent="codex") == {"jobs": []}
    again = client.call(
        "submit", prompt="echo hello; echo x > out.txt", agent="shell", title="Say hello", labels=["demo"],
        expect=["out.txt"], validate="test -e out.txt", idempotency_key="k1",
    )  # fmt: skip
    assert again["job_id"] == made["job_id"]
    assert "k1" in client.refused("submit", prompt="echo other", agent="shell", idempotency_key="k1")
    assert desk.actions(made["job_id"]) == ["submit", "submit"]


def test_a_failed_job_says_why(client):
    made = client.call("submit", prompt="echo sorry; exit 3", agent="shell")
    (job,) = client.until_ended(made["job_id"])["jobs"]
    assert (job["status"], job["state"], job["ok"]) == ("error", "failed", False)
    assert "3" in job["reason"]
    left = client.call("result", job_id=made["job_id"])
    assert (left["ok"], left["ended_by"], left["text"].strip()) == (False, "agent", "sorry")


def test_what_cannot_work_is_refused_in_one_line(desk, client):
    assert client.refused("submit", prompt="x", agent="nonesuch").startswith("there is no agent 'nonesuch'")
    assert client.refused("submit", prompt="", agent="shell").startswith("prompt ")
    assert "lies outside" in client.refused("submit", prompt="x", agent="shell", expect=["/etc/passwd"])
    assert "abcd1234" in client.refused("submit", prompt="x", agent="shell", after=["abcd1234"])
    assert desk("list", "--json").json == []


def test_pages_of_a_list(desk, client):
    ids = [desk.register("sleep 9") for _ in range(3)]
    first = client.call("list", limit=2)
    second = client.call("list", limit=2, cursor=first["cursor"])
    assert [job["job_id"] for page in (first, second) for job in page["jobs"]] == ids[::-1]
    assert "cursor" not in second


def test_a_job_starts_after_another_without_a_monitor(desk, client):
    first = client.call("submit", prompt="echo one > first", agent="shell", idempotency_key="a")["job_id"]
    second = client.call("submit", prompt="cat first", agent="shell", after=[first], idempotency_key="b")["job_id"]
    found = client.until_ended(first, second, until="all")
    assert [job["ok"] for job in found["jobs"]] == [True, True]
    assert client.call("result", job_id=second)["text"].strip() == "one"
    wait_until(lambda: not [each for each in desk.processes() if "submit" in each.command])


def test_a_wait_returns_in_time_and_tells_nothing_twice(desk, client):
    with open(os.path.join(desk.folder, "go"), "w", encoding="utf-8"):
        pass
    quick = client.call("submit", prompt="until [ -e quick ]; do sleep 0.05; done", agent="shell")["job_id"]
    slow = client.call("submit", prompt="until [ -e slow ]; do sleep 0.05; done", agent="shell")["job_id"]
    began = time.monotonic()
    found = client.call("wait", job_ids=[quick, slow], timeout_sec=0.5)
    assert (found["done"], found["next"]) == (False, "call wait again with cursor")
    assert 0.4 < time.monotonic() - began < 5
    open(os.path.join(desk.folder, "quick"), "w").close()
    found = client.call("wait", job_ids=[quick, slow], cursor=found["cursor"])
    assert [job["status"] for job in found["jobs"]] == ["completed", "running"]
    # Its end was told: the next call waits for the other one.
    later = client.call("wait", job_ids=[quick, slow], cursor=found["cursor"], timeout_sec=1)
    assert not later["done"]
    open(os.path.join(desk.folder, "slow"), "w").close()
    assert client.until_ended(quick, slow)["done"]
    assert client.call("wait", job_ids=[quick, slow], cursor=later["cursor"])["done"]
    assert "cursor must be" in client.refused("wait", job_ids=[quick], cursor="x.y")


def test_calls_go_on_beside_a_wait_that_reports_and_is_cancelled(desk, client):
    job = client.call("submit", prompt="until [ -e go ]; do sleep 0.05; done", agent="shell")["job_id"]
    waits = client.begin_call("wait", {"progressToken": "p1"}, job_ids=[job])
    other = client.begin_call("wait", job_ids=[job])
    assert client.call("list")["jobs"][0]["job_id"] == job
    assert not client.has_answer(waits)
    wait_until(lambda: client.progress)
    assert client.progress[0]["progressToken"] == "p1"
    assert job in client.progress[0]["message"]
    client.notify("notifications/cancelled", requestId=waits, reason="enough")
    open(os.path.join(desk.folder, "go"), "w").close()
    assert client.end_call(other, "wait")["done"]
    assert not client.has_answer(waits)
    values = [each["progress"] for each in client.progress]
    assert values == sorted(set(values))


def test_a_job_whose_session_dies_ends_the_wait(desk, client):
    job = client.call("submit", prompt="sleep 600", agent="shell")["job_id"]
    wait_until(lambda: desk.job(job)["status"] == "running")
    (runner,) = desk.runners()
    os.kill(runner.pid, signal.SIGKILL)
    (found,) = client.until_ended(job)["jobs"]
    assert (found["ok"], found["ended_by"]) == (False, "lost")


def test_a_running_job_gets_a_message_and_is_cancelled(desk, client):
    made = client.call("submit", prompt="read line; echo got $line; exec sleep 600", agent="shell")["job_id"]
    wait_until(lambda: desk.job(made)["status"] == "running")
    assert "still running" in client.refused("result", job_id=made)
    sent = client.call("message", job_id=made, text="good morning")
    assert (sent["job_id"], sent["done"][:5]) == (made, "typed")
    wait_until(lambda: "got good morning" in client.call("result", job_id=made, output=True)["text"])
    assert client.call("cancel", job_id=made, reason="not needed")["status"] == "cancelled"
    (found,) = client.until_ended(made)["jobs"]
    assert (found["ok"], found["reason"]) == (False, "not needed")
    assert desk.actions(made) == ["submit", "message", "cancel"]


def test_a_long_result_is_cut_and_says_so(client):
    job = client.call("submit", prompt="seq 1 5000", agent="shell")["job_id"]
    client.until_ended(job)
    found = client.call("result", job_id=job, max_chars=1000)
    assert (len(found["text"]), found["cut"]) == (1000, True)
    assert found["text"].rstrip().endswith("5000")


def test_a_job_works_in_a_worktree_of_its_own(desk, client):
    os.makedirs(repository := os.path.join(desk.folder, "repo"))
    git(repository, "init", "-q", "-b", "main")
    for name in ("name", "email"):
        git(repository, "config", f"user.{name}", "test")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    made = client.call("submit", prompt="echo x > new.txt; git add new.txt; git commit -qm second", agent="shell",
                       workdir="repo", worktree=True, title="Add new.txt")["job_id"]  # fmt: skip
    client.until_ended(made)
    left = client.call("result", job_id=made)
    assert (left["ok"], left["branch"]) == (True, f"baton/{made}-1"), left
    assert len(left["commits"]) == 1
    assert not os.path.exists(os.path.join(repository, "new.txt"))
    more = {"workdir": "repo", "worktree": True, "after": [made]}
    following = client.call("submit", prompt="cat new.txt", agent="shell", **more)["job_id"]
    client.until_ended(following)
    assert client.call("result", job_id=following)["text"].strip() == "x"


def test_a_live_agent_gets_a_job(desk, client, tmp_path):
    desk.create("gpu")
    assert "gpu" in [each["name"].removeprefix("HOUMAO-") for each in client.call("agents")["live"]]
    job = client.call("submit", prompt="echo to $BATON_SESSION_ID", to="gpu")["job_id"]
    assert client.until_ended(job)["jobs"][0]["ok"] is True
    assert "nonesuch" in client.refused("submit", prompt="x", to="nonesuch")
    there = Baton(tmp_path / "elsewhere")
    os.makedirs(there.folder)
    there.env = desk.env
    there("session", "create", "other", "--agent", "shell")
    assert "do not find it" in client.refused("submit", prompt="x", to="other")
    assert there("list", "--json").json == []


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_request_is_shown_and_answered(desk, client):
    desk.script(
        [["ask", 7, "t1", "make deploy"], ["answers", 1], ["tool_over", "t1"], ["say", "Done!"], ["end", "end_turn"]]
    )
    job = client.call("submit", prompt="do it", agent="parrot")["job_id"]
    found = client.call("wait", job_ids=[job])
    while not found["jobs"][0].get("asks"):
        found = client.call("wait", job_ids=[job], cursor=found["cursor"])
    assert found["jobs"][0]["state"] == "waiting"
    assert "requests" in found["next"]
    (request,) = client.call("requests")["requests"]
    assert request["job_id"] == job
    assert "make deploy" in request["text"]
    assert client.call("requests", id=job)["requests"] == client.call("requests", id=request["request_id"])["requests"]
    quiet = client.call("wait", job_ids=[job], cursor=found["cursor"], timeout_sec=0.5)
    assert quiet["jobs"][0]["asks"]
    refused = client.refused("answer", request_id=job, decision="allow")
    assert f"`baton approve {request['request_id']}`" in refused
    done = client.call("answer", request_id=request["request_id"], decision="allow")
    assert ("goes on" in done["outcome"]) is (done["used"] == "yes")
    assert client.until_ended(job)["jobs"][0]["ok"] is True
    assert client.call("result", job_id=job)["text"] == "Done!"
    assert "answered" in client.refused("answer", request_id=request["request_id"], decision="deny")
    closed = [json.loads(line) for line in desk("logs", job, "--json").out.splitlines()]
    assert [line["via"] for line in closed if line["event"] == "request_closed"] == ["mcp"]


def test_a_request_that_is_answered_at_once_is_not_reported(desk, client):
    """A rule answers in a moment. An agent that is asked about it would only be disturbed."""
    with open_jobs(load_settings(env=desk.env, here=desk.folder)) as jobs:
        job = running(jobs, "work")
        waits = client.begin_call("wait", {"progressToken": 1}, job_ids=[job.job_id])
        wait_until(lambda: client.progress)
        request = ask(jobs.registry, job)
        wait_until(lambda: "waiting" in client.progress[-1]["message"])
        jobs.registry.answer_request(request.request_id, Answer(answer="allow", by="", via="rule"))
        wait_until(lambda: "waiting" not in client.progress[-1]["message"])
        assert not client.has_answer(waits)
        asked = ask(jobs.registry, job, key="k2")
        found = client.end_call(waits, "wait")
        assert found["jobs"][0]["asks"] == [f"{asked.request_id}: {asked.summary}"]
        jobs.update_status(job.job_id, "cancelled")


def test_an_ended_conversation_continues_as_a_new_job(desk, client):
    desk.script([["say", "First."], ["end", "end_turn"]], [["say", "Second."], ["end", "end_turn"]])
    job = client.call("submit", prompt="begin", agent="parrot")["job_id"]
    client.until_ended(job)
    following = client.call("message", job_id=job, text="go on")["job_id"]
    assert following != job
    client.until_ended(following)
    assert desk.job(following)["follows"] == job
    assert desk.actions(job) == ["submit", f"message as {following}"]


ASKS = [["ask", 7, "t1", "make deploy"], ["answers", 1], ["tool_over", "t1"], ["say", "Done!"], ["end", "end_turn"]]


def calls_in_a_session(desk, client, *calls: tuple[str, dict], **job) -> tuple[str, list[dict]]:
    """Let the agent of a job start the server and make these calls, as Claude Code in a session does. Return the job,
    and what each call returned."""
    messages = [{"id": 0, "method": "initialize", "params": {"protocolVersion": LEGACY}}]
    messages += [
        {"id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    with open(os.path.join(desk.folder, "calls.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages)
    command = f"{desk.program} mcp < calls.jsonl > answers.jsonl"
    agent = client.call("submit", prompt=command, agent="shell", **job)["job_id"]
    assert client.until_ended(agent)["jobs"][0]["ok"] is True
    with open(os.path.join(desk.folder, "answers.jsonl"), encoding="utf-8") as file:
        answers = {each["id"]: each["result"] for each in map(json.loads, file)}
    return agent, [answers[number] for number in range(1, len(calls) + 1)]


def request_of(desk, client) -> dict:
    """The request of an agent that its user has started."""
    desk.script(ASKS)
    client.call("submit", prompt="do it", agent="parrot")
    wait_until(lambda: client.call("requests")["requests"])
    (request,) = client.call("requests")["requests"]
    return request


def test_an_agent_that_the_rules_name_answers_for_others(desk, client):
    with open(os.path.join(desk.folder, ".config", "baton", "rules.toml"), "w", encoding="utf-8") as file:
        file.write('[[answerer]]\nagent = "shell"\nlabel = "reviewer"\n')
    request = request_of(desk, client)
    answer = ("answer", {"request_id": request["request_id"], "decision": "allow"})
    _, (refused,) = calls_in_a_session(desk, client, answer)
    assert refused["isError"] is True
    agent, (answered,) = calls_in_a_session(desk, client, answer, labels=["reviewer"])
    assert answered["structuredContent"]["request_id"] == request["request_id"], answered
    client.until_ended(request["job_id"])
    lines = [json.loads(line) for line in desk("logs", request["job_id"], "--json").out.splitlines()]
    (closed,) = [line for line in lines if line["event"] == "request_closed"]
    assert (closed["via"], closed["by"]) == ("mcp", f"shell in job {agent}")


def test_an_agent_in_a_session_does_not_answer_type_or_skip_permissions(desk, client):
    request = request_of(desk, client)
    agent, answers = calls_in_a_session(
        desk, client,
        ("answer", {"request_id": request["request_id"], "decision": "allow"}),
        ("message", {"job_id": request["job_id"], "text": "y"}),
        ("submit", {"prompt": "true", "agent": "shell", "yolo": True}),
        ("submit", {"prompt": "true", "agent": "shell"}),
    )  # fmt: skip
    assert [each.get("isError") for each in answers] == [True, True, True, None]
    texts = [each["content"][0]["text"] for each in answers]
    assert "answerer" in texts[0]
    assert "refused inside a session" in texts[1]
    assert "yolo is not an argument" in texts[2]
    assert client.call("requests")["requests"]
    below = answers[3]["structuredContent"]["job_id"]
    assert desk.job(below)["parent"] == agent
    client.call("cancel", job_id=request["job_id"])
    client.until_ended(below)


# -- homes -------------------------------------------------------------------------------------------------------------


def test_an_untrusted_folder_is_named_with_the_way_out(desk, tmp_path):
    clone = tmp_path / "clone"
    os.makedirs(clone / ".hermes" / "jobs")
    with McpClient(clone, desk.env) as client:
        for tool, arguments in (("list", {}), ("submit", {"prompt": "x"}), ("agents", {})):
            assert "baton trust" in client.refused(tool, **arguments)


def test_the_options_of_the_command_name_the_home(desk, tmp_path):
    other = str(tmp_path / "other")
    with McpClient(desk.folder, desk.env, "--home", other) as client:
        job = client.call("submit", prompt="echo there", agent="shell")["job_id"]
        assert client.until_ended(job)["jobs"][0]["ok"] is True
        assert client.call("result", job_id=job)["text"].strip() == "there"
    assert job not in desk("list", "--json").out
    assert job in desk("list", "--json", "--home", other).out


def test_agents_are_listed_with_what_is_installed(client):
    found = {each["name"]: each for each in client.call("agents")["agents"]}
    assert found["shell"]["installed"] is True
    assert found["parrot"]["installed"] is True
    assert {"claude-code", "codex", "gemini"} <= found.keys()
    assert [name for name, each in found.items() if each["default"]] == ["claude-code"]
