"""`baton requests`, `approve`, `deny`, `answer`, as a user types them. The runner's part is played by the test."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import baton
from baton.core.errors import BatonError
from baton.core.signal import Asked, Consent, Settled
from baton.jobs.requests import ask, sent, settle, withdraw
from baton.jobs.verbs import open_jobs
from support.office import Office
from support.waiting import wait_until

CALL = {"command": "echo \x1b[2J\u202e; ls\nrm -rf /home/me/x", "description": "tidy up"}


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    with Office(tmp_path_factory.mktemp("office")) as office:
        yield office


class Agent:
    """A job at work whose agent asks."""

    def __init__(self, office, **more):
        self.office = office
        with open_jobs(office.settings) as jobs:
            job = jobs.register_job("tidy up the tree", agent="claude-code", workdir=str(office.folder), **more)
            self.job = jobs.pick_job(job.job_id)
        self.job_id = self.job.job_id
        self.asked = 0

    def ask(self, call=CALL, *, kind="tool", tool="Bash", **more):
        self.asked += 1
        with open_jobs(self.office.settings) as jobs:
            return ask(jobs, self.job, Asked(key=f"k{self.asked}", kind=kind, tool=tool, call=call, **more))

    def get(self, request):
        with open_jobs(self.office.settings) as jobs:
            return jobs.registry.get_request(request.request_id)

    def say(self, request, decision, by="hook"):
        """Wait for the answer, and give evidence of what was done."""
        wait_until(lambda: self.get(request).answer is not None, "for the answer")
        with open_jobs(self.office.settings) as jobs:
            return settle(jobs, request.request_id, Settled(key=request.key, decision=decision, by=by))

    def end(self):
        with open_jobs(self.office.settings) as jobs:
            jobs.update_status(self.job_id, "cancelled")


@pytest.fixture
def agent(office):
    agent = Agent(office)
    yield agent
    agent.end()


def test_open_requests_are_listed_and_one_is_shown_whole(office, agent):
    assert office("requests").text == ""
    first = agent.ask()
    second = agent.ask({"questions": []}, kind="question", tool="AskUserQuestion",
                       options=({"question": "Which\x07 one?", "choices": ["A", "B"], "several": False},))  # fmt: skip
    rows = [line.split("\t") for line in office("requests").text.splitlines()]
    assert [row[:2] + row[3:5] for row in rows] == [
        [first.request_id, "tool", agent.job_id, "claude-code"],
        [second.request_id, "question", agent.job_id, "claude-code"],
    ]
    assert rows[0][5] == "Bash: echo <U+001B>[2J<U+202E>; ls ⏎ rm -rf /home/me/x"
    shown = office("requests", first.request_id[:6])
    assert "    | rm -rf /home/me/x" in shown.out.splitlines()
    assert "    | echo <U+001B>[2J<U+202E>; ls" in shown.out.splitlines()
    assert f"baton approve {first.request_id}" in shown.err
    assert "question 1: Which<U+0007> one?" in office("requests", second.request_id).out
    assert office("requests", first.request_id, "--json").json["call"] == CALL
    listed = office("requests", "--all-homes", "--json").json
    assert [each["request_id"] for each in listed] == [first.request_id, second.request_id]
    assert listed[0]["agent"] == "claude-code"


def test_an_approval_is_used_and_a_second_answer_is_refused(office, agent):
    request = agent.ask()
    running = office.start("approve", request.request_id, "--for-job")
    agent.say(request, "allow")
    assert running.end().code == 0
    assert "allowed; the agent goes on" in running.out
    found = agent.get(request)
    assert (found.scope, found.via, found.applied) == ("job", "cli", "yes")
    refused = office.refused("deny", request.request_id)
    assert found.answered_by in refused
    assert "allow" in refused
    assert agent.get(request) == found
    assert "no open request" in office.refused("approve", agent.job_id)
    assert office("requests").text == ""
    assert "allowed" in office("requests", "--all").text


def test_a_denial_that_was_overridden_is_reported_with_exit_code_1(office, agent):
    request = agent.ask()
    running = office.start("deny", agent.job_id, "--reason", "not now")  # the job has one open request
    agent.say(request, "allow", by="user_temporary")
    done = running.end()
    assert done.code == 1
    assert "your denial was not used: allow by user_temporary" in running.err
    audit = [line for line in office.audit(agent.job_id) if line["event"] == "request_overridden"]
    assert audit[0]["overridden_by"] == "allow by user_temporary"
    assert "not used" in office("requests", request.request_id).out


def test_without_evidence_nothing_says_that_the_agent_goes_on(office, agent):
    request = agent.ask()
    done = office("approve", request.request_id, code=1)
    assert "goes on" not in done.out + done.err
    assert f"request {request.request_id}: allowed; the agent's runner has not taken the answer yet" in done.err
    other = agent.ask({"command": "other"})
    running = office.start("approve", other.request_id)
    wait_until(lambda: agent.get(other).answer is not None, "for the answer")
    with open_jobs(office.settings) as jobs:
        sent(jobs, other.request_id)
    done = running.end()
    assert (done.code, done.out) == (1, "")
    assert "the agent has the answer, but nothing shows yet that it goes on" in done.err
    third = agent.ask({"command": "third"})
    denied = office("deny", third.request_id)  # a denial holds, whatever the agent does
    assert "denied; the agent's runner has not taken the answer yet" in denied.out


def test_the_id_of_a_job_approves_nothing_without_a_terminal(office, agent):
    request = agent.ask()
    refused = office.refused("approve", agent.job_id)
    assert f"`baton approve {request.request_id}` allows it" in refused
    assert "rm -rf /home/me/x" in refused
    assert agent.get(request) == request
    assert "no open request" in office.refused("approve", Agent(office).job_id)


def test_on_a_terminal_the_id_of_a_job_shows_the_call_and_asks(office, agent):
    request = agent.ask()
    running = office.start("approve", agent.job_id, terminal=True)
    running.says("[y/N]")
    assert "    | rm -rf /home/me/x" in running.screen
    running.type("n\r")
    assert running.end().code == 1
    assert agent.get(request) == request
    running = office.start("approve", agent.job_id, terminal=True)
    running.says("[y/N]")
    running.type("y\r")
    agent.say(request, "allow")
    assert running.end().code == 0
    assert "allowed; the agent goes on" in running.out


def test_a_call_that_is_asked_meanwhile_is_not_the_one_that_was_shown(office, agent):
    request = agent.ask()
    running = office.start("approve", agent.job_id, terminal=True)
    running.says("[y/N]")
    with open_jobs(office.settings) as jobs:
        withdraw(jobs, request.request_id)
    other = agent.ask({"command": "rm -rf /"})
    running.type("y\r")
    assert running.end().code == 1
    assert agent.get(other) == other


def test_what_the_agent_would_not_allow_is_asked_once_more(office, agent):
    consent = Consent(
        default_no=True, once=True, rule="the rule Bash(git push:*) of your settings", why="it is \x1b[2Jfar"
    )
    request = agent.ask(consent=consent)
    shown = office("requests", request.request_id).out
    for line in ("asked by the rule Bash(git push:*) of your settings", "why it asks: it is <U+001B>[2Jfar",
                 "the agent's own default is no", "it is allowed once"):  # fmt: skip
        assert line in shown
    assert "omit --for-job" in office.refused("approve", request.request_id, "--for-job")
    running = office.start("approve", agent.job_id, terminal=True)
    running.says(f"allow request {request.request_id}?")
    running.type("y\r")
    running.says("allow it all the same?")
    assert agent.get(request) == request
    running.type("y\r")
    agent.say(request, "allow")
    assert running.end().code == 0


def test_python_returns_what_is_known_and_raises_if_the_answer_was_not_used(office, agent):
    here = {"home": office.settings.home, "state_dir": office.settings.state_dir}
    request = agent.ask()
    with pytest.raises(BatonError, match="the id of a job allows nothing"):
        baton.approve(agent.job_id, **here)
    assert baton.approve(request.request_id, **here).applied == "unknown"
    other = agent.ask({"command": "other"})
    with ThreadPoolExecutor(1) as pool:
        denying = pool.submit(baton.deny, other.request_id, **here)
        agent.say(other, "allow", by="user_temporary")
        with pytest.raises(baton.AnswerNotUsed, match="your denial was not used: allow by user_temporary") as raised:
            denying.result()
    assert raised.value.request.applied == "no"


def test_a_question_is_answered_by_its_choices(office, agent):
    options = ({"question": "Which one?", "choices": ["Left", "Right"], "several": False},)
    request = agent.ask({"questions": []}, kind="question", tool="AskUserQuestion", options=options)
    assert "'3' does not exist; there are 1 Left, 2 Right" in office.refused("answer", request.request_id, "3", code=64)
    assert "baton answer" in office.refused("approve", request.request_id)
    assert agent.get(request) == request
    running = office.start("answer", request.request_id, "2", "--json")
    agent.say(request, "allow")
    assert running.end().code == 0
    assert json.loads(running.out)["choices"] == {"Which one?": "Right"}


def test_what_is_not_there_is_refused_and_changes_nothing(office, agent):
    requests = [agent.ask(), agent.ask({"command": "other"})]
    assert "no request" in office.refused("approve", "00000000ffff")
    assert "64" in str(office("approve", "x!", code=64).code)
    assert "may be any of" in office.refused("deny", agent.job_id)
    inexact = agent.ask("a title", exact=False)
    assert "--inexact" in office.refused("approve", inexact.request_id)
    assert "(not exact)" in office("requests").text
    assert [agent.get(each) for each in requests] == requests
    other = Agent(office)
    late = other.ask()
    other.end()
    assert "closed" in office.refused("approve", late.request_id)


def test_followed_requests_are_printed_when_they_open_and_close(office, agent):
    running = office.start("requests", "--follow", "--json")
    request = agent.ask()
    wait_until(lambda: request.request_id in running.out, "for the request")
    agent.end()
    wait_until(lambda: running.out.count(request.request_id) == 2, "for its end")
    running.signal(signal.SIGINT)
    assert running.end().code == 130


def test_an_agent_answers_only_if_a_rule_names_it_and_never_for_itself_or_below(tmp_path):
    script = """
    wait_for() { while ! test -e $1; do sleep 0.05; done; }
    try() { baton deny $(cat $1) > $2 2>&1; echo "exit $?" >> $2; }
    wait_for unnamed.go; try other unnamed
    wait_for named.go; try own own.out; try below below.out; unshare -c baton deny $(cat other) > unknown 2>&1
    echo "exit $?" >> unknown; BATON_JOB_ID=$(cat other.job) try own forged; (unset BATON_JOB_ID; try other named)
    """
    with Office(tmp_path) as office:
        other = Agent(office)
        job_id = office.detached("--agent", "shell", script, "--label", "reviewer")
        office.wait_for_status(job_id, "running")
        own, below = Agent.__new__(Agent), Agent(office, parent=Agent(office, parent=job_id).job_id)
        own.office, own.asked = office, 0
        with open_jobs(office.settings) as jobs:
            own.job = jobs.get_job(job_id)
        request = other.ask()
        for name, content in (
            ("own", own.ask().request_id), ("below", below.ask().request_id), ("other", request.request_id),
            ("other.job", other.job_id), ("unnamed.go", ""),
        ):  # fmt: skip
            (tmp_path / name).write_text(content)

        def outcome(name):
            path = tmp_path / name
            return wait_until(lambda: path.exists() and "exit" in path.read_text() and path.read_text(), f"for {name}")

        assert "no [[answerer]]" in outcome("unnamed")
        os.makedirs(tmp_path / ".config" / "baton")
        (tmp_path / ".config" / "baton" / "rules.toml").write_text(
            '[[answerer]]\nagent = "shell"\nlabel = "reviewer"\n'
        )
        (tmp_path / "named.go").touch()
        assert "does not answer for itself" in outcome("own.out")
        assert "does not answer for itself" in outcome("below.out")
        assert "its own job is not known" in outcome("unknown")
        assert "does not answer for itself" in outcome("forged")
        wait_until(lambda: other.get(request).answer, "for the answer")
        other.say(request, "deny")
        assert "exit 0" in outcome("named")
        assert other.get(request).answered_by == f"shell in job {job_id}"
        office.wait_for_status(job_id, "completed")
