"""What a request consists of, who answers it, and what becomes of it: the service over a real registry."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

import pytest

from baton.core.errors import BatonError, InvalidValue, RequestClosed, RequestNotFound, WrongState
from baton.core.request import Answer, RequestState, notes
from baton.core.signal import Asked, Consent, Settled
from baton.jobs.requests import (
    answer,
    answer_by_hand,
    answer_of,
    ask,
    choose,
    expire_due,
    expiry,
    find_request,
    list_open,
    outcome,
    public_record,
    sent,
    settle,
    summarize,
    wait_for_use,
    withdraw,
)  # fmt: skip
from baton.jobs.verbs import Jobs
from support.backends import clocked_registry
from support.clock import FakeClock

ALLOW = Answer(answer="allow", by="me@here", via="cli")
DENY = Answer(answer="deny", by="me@here", via="cli", reason="no")
BASH = {"command": "git push", "description": "publish it"}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    clock = FakeClock()
    warnings = []
    registry = clocked_registry(f"sqlite:{tmp_path}/registry.db", clock)
    with Jobs(registry, str(tmp_path / "logs"), clock=clock, warn=warnings.append) as jobs:
        jobs.warnings = warnings
        yield jobs


@pytest.fixture
def job(jobs, tmp_path):
    (tmp_path / "work").mkdir()
    job = jobs.register_job("work", agent="claude-code", workdir=str(tmp_path / "work"))
    return jobs.pick_job(job.job_id)


def asked(call=BASH, *, key="k1", kind="tool", tool="Bash", **more):
    return Asked(key=key, kind=kind, tool=tool, call=call, **more)


def question(*, several=False, choices=("Red", "Blue")):
    options = ({"question": "Which colour?", "choices": list(choices), "several": several},)
    return asked({"questions": []}, kind="question", tool="AskUserQuestion", options=options)


def rules(tmp_path, text):
    folder = tmp_path / ".config" / "baton"
    folder.mkdir(parents=True)
    (folder / "rules.toml").write_text(text)


def lines(jobs, job, event):
    return [line for line in jobs.history.lines(job.job_id) if line["event"] == event]


# -- what it consists of -----------------------------------------------------------------------------------------------


def test_a_request_has_the_exact_call_and_its_hash(jobs, job):
    request = ask(jobs, job, asked(agent_ref="sub"))
    assert (request.call, request.exact, request.agent_ref) == (BASH, True, "sub")
    form = json.dumps(BASH, sort_keys=True, separators=(",", ":"))
    assert request.call_sha256 == hashlib.sha256(form.encode()).hexdigest()
    assert request.summary == "Bash: git push"
    assert jobs.registry.get_request(request.request_id) == request
    assert list_open(jobs, job.job_id) == [request]
    record = public_record(request, "claude-code")
    assert "key" not in record
    json.dumps(record)


@pytest.mark.parametrize(
    "call", [{"command": "x" * (256 * 1024)}, {"n": 2**60}, {"x": "\ud800"}, {"x": float("nan")}, {"f": {1: 2}}]
)
def test_a_call_that_is_too_long_or_has_no_canonical_form_is_not_exact(jobs, job, call):
    request = ask(jobs, job, asked(call))
    assert (request.exact, request.call_sha256) == (False, None)
    assert isinstance(request.call, str)
    assert len(request.call.encode()) <= 256 * 1024
    with pytest.raises(BatonError, match="--inexact"):
        answer(jobs, request.request_id, ALLOW)
    assert list_open(jobs)
    with pytest.raises(BatonError, match="omit --for-job"):
        answer(jobs, request.request_id, ALLOW.replace(scope="job"), inexact=True)
    assert answer(jobs, request.request_id, ALLOW, inexact=True).answer == "allow"


@pytest.mark.parametrize("backend", ["sqlite", "file"])
@pytest.mark.parametrize("by", ["half of \ud83d", "x" * 5000, "a\0b", " "])
def test_what_an_agent_names_as_the_decider_can_be_stored(tmp_path, monkeypatch, backend, by):
    monkeypatch.setenv("HOME", str(tmp_path))
    clock = FakeClock()
    registry = clocked_registry(f"{backend}:{tmp_path}/registry", clock)
    with Jobs(registry, str(tmp_path / "logs"), clock=clock, warn=print) as jobs:
        job = jobs.pick_job(jobs.register_job("work", agent="codex", workdir=str(tmp_path)).job_id)
        request = ask(jobs, job, asked())
        assert settle(jobs, request.request_id, Settled(key="k1", decision="allow", by=by)).state == "elsewhere"
        assert jobs.registry.get_request(request.request_id).answer == "allow"


def test_a_call_known_by_a_title_is_not_exact_and_can_be_denied(jobs, job):
    request = ask(jobs, job, asked("Edit some file", exact=False))
    assert request.exact is False
    assert answer(jobs, request.request_id, DENY).answer == "deny"


@pytest.mark.parametrize(
    ("kind", "tool", "call", "summary"),
    [
        ("tool", "Bash", {"command": "a\nb"}, "Bash: a ⏎ b"),
        ("tool", "Bash", {"command": "x\x1b[2J\u202ey"}, "Bash: x<U+001B>[2J<U+202E>y"),
        ("tool", "Edit", {"file_path": "/a/b", "new_string": "x"}, "Edit: /a/b"),
        ("tool", "WebFetch", {"url": "https://x", "prompt": "y"}, "WebFetch: https://x"),
        ("tool", "shell", {"command": ["git", "push"]}, "shell: git push"),
        ("tool", "mcp__x", {"a": 1}, 'mcp__x: {"a": 1}'),
        ("tool", "X", {}, "X"),
        ("tool", "X", "a title", "X: a title"),
        ("plan", "ExitPlanMode", {"plan": "# Do it\nnow"}, "plan: # Do it ⏎ now"),
    ],
)
def test_a_summary_says_the_tool_and_what(kind, tool, call, summary):
    assert summarize(kind, tool, call) == summary


def test_a_long_summary_is_cut():
    assert len(summarize("tool", "Bash", {"command": "\x1b" * 10_000})) == 300


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_answer_counts_once_and_a_second_one_learns_who_was_first(jobs, job):
    request = ask(jobs, job, asked())
    done = answer(jobs, request.request_id, ALLOW)
    assert (done.state, done.answer, done.answered_by, done.via) == (RequestState.ANSWERED, "allow", "me@here", "cli")
    assert answer_of(done) == ALLOW
    with pytest.raises(RequestClosed, match=r"allow.*me@here"):
        answer(jobs, request.request_id, DENY)
    assert jobs.registry.get_request(request.request_id) == done
    assert list_open(jobs) == []
    closed = lines(jobs, job, "request_closed")[0]
    assert closed["answer"] == "allow"
    assert (closed["by"], closed["via"], closed["call_sha256"]) == ("me@here", "cli", request.call_sha256)


def test_history_and_events_are_redacted_and_the_request_is_not(jobs, job):
    secret = "curl -H 'Authorization: Bearer sk-aBcDeF0123456789aBcDeF' /home/me/x"
    request = ask(jobs, job, asked({"command": secret}))
    answer(jobs, request.request_id, DENY.replace(reason=f"not {secret}"))
    assert request.call["command"] == secret
    assert secret in request.summary
    written = json.dumps(list(jobs.history.lines(job.job_id)))
    written += "".join(each.payload.decode() for each in jobs.events_after(job.job_id))
    assert "sk-aBcDeF" not in written
    assert "/home/me" not in written
    opened, closed = lines(jobs, job, "request_opened"), lines(jobs, job, "request_closed")
    assert [len(opened), len(closed)] == [1, 1]


def test_an_answer_for_the_job_covers_equal_calls_and_nothing_wider(jobs, job):
    first = ask(jobs, job, asked())
    answer(jobs, first.request_id, ALLOW.replace(scope="job"))
    same = ask(jobs, job, asked(dict(reversed(BASH.items())), key="k2"))
    assert (same.state, same.answer, same.answered_by, same.via) == (RequestState.ANSWERED, "allow", "me@here", "rule")
    assert first.request_id in same.rule
    assert ask(jobs, job, asked(BASH | {"timeout": 1}, key="k3")).state is RequestState.OPEN
    assert ask(jobs, job, asked(key="k4", tool="Other")).state is RequestState.OPEN
    jobs.release(job.job_id)
    again = jobs.pick_job(job.job_id)
    assert ask(jobs, again, asked(key="k5")).state is RequestState.OPEN


def test_an_answer_once_covers_no_other_call(jobs, job):
    answer(jobs, ask(jobs, job, asked()).request_id, ALLOW)
    assert ask(jobs, job, asked(key="k2")).state is RequestState.OPEN


# -- rules -------------------------------------------------------------------------------------------------------------

RULES = """
[[rule]]
decision = "allow"
command = ["git", "push"]
[[rule]]
decision = "deny"
tool = "WebFetch"
[[rule]]
decision = "ask"
command = ["rm"]
"""


def test_a_rule_answers_at_once_and_is_named(jobs, job, tmp_path):
    rules(tmp_path, RULES)
    allowed = ask(jobs, job, asked())
    assert (allowed.state, allowed.answer, allowed.via) == (RequestState.ANSWERED, "allow", "rule")
    assert allowed.rule == "allow command git push"
    denied = ask(jobs, job, asked({"url": "https://x"}, key="k2", tool="WebFetch"))
    assert denied.answer == "deny"
    assert "do not do it another way" in denied.reason
    assert ask(jobs, job, asked({"command": "git push; ls"}, key="k3")).state is RequestState.OPEN
    assert ask(jobs, job, asked({"command": "rm x"}, key="k4")).state is RequestState.OPEN
    assert ask(jobs, job, asked(key="k5", exact=False)).state is RequestState.OPEN
    assert ask(jobs, job, asked(key="k6", kind="plan")).state is RequestState.OPEN
    assert lines(jobs, job, "request_closed")[0]["rule"] == allowed.rule


def test_what_a_person_must_answer_is_matched_by_no_allow_rule(jobs, job, tmp_path):
    rules(tmp_path, RULES)
    consent = Consent(person_only=True)
    opened = ask(jobs, job, asked(consent=consent))
    assert (opened.state, opened.consent) == (RequestState.OPEN, consent)
    with pytest.raises(BatonError, match="be allowed for the job"):
        answer(jobs, opened.request_id, ALLOW.replace(scope="job"))
    denied = ask(jobs, job, asked({"url": "https://x"}, key="k2", tool="WebFetch", consent=consent))
    assert denied.answer == "deny", "a rule that denies is a person's no"
    with pytest.raises(BatonError, match="must be answered by a person"):
        answer_by_hand(jobs, opened.request_id, ALLOW.replace(via="mcp"))
    assert answer_by_hand(jobs, opened.request_id, ALLOW).answer == "allow"


def test_an_earlier_answer_for_the_job_does_not_answer_what_a_person_must_answer(jobs, job):
    answer(jobs, ask(jobs, job, asked()).request_id, ALLOW.replace(scope="job"))
    assert ask(jobs, job, asked(key="k2")).answer == "allow"
    assert ask(jobs, job, asked(key="k3", consent=Consent(person_only=True))).state is RequestState.OPEN


def test_an_answer_for_the_job_is_not_offered_where_the_agent_suppresses_it(jobs, job):
    opened = ask(jobs, job, asked(consent=Consent(once=True)))
    assert not opened.offers_for_job
    with pytest.raises(BatonError, match="omit --for-job"):
        answer(jobs, opened.request_id, ALLOW.replace(scope="job"))
    assert answer(jobs, opened.request_id, ALLOW).scope == "once"


def test_what_the_agent_says_about_its_question_survives_the_store(jobs, job):
    consent = Consent(default_no=True, rule="the rule Bash(git push:*) of your settings", why="it leaves the folder")
    found = jobs.registry.get_request(ask(jobs, job, asked(consent=consent)).request_id)
    assert found.consent == consent
    assert found.questions == []
    assert notes(found) == [
        "asked by the rule Bash(git push:*) of your settings",
        "why it asks: it leaves the folder",
        "the agent's own default is no",
    ]
    inexact = ask(jobs, job, asked(key="k2", exact=False, why_inexact="the plan file is gone"))
    assert notes(inexact) == ["not exact: the plan file is gone"]
    assert notes(ask(jobs, job, asked(key="k3"))) == []


@pytest.mark.parametrize(
    "options", [({"consent": "yes"},), ({"consent": {"person_only": "yes", "rule": 1}},), ({"consent": []}, {"x": 1})]
)
def test_a_consent_of_another_shape_in_the_store_is_read(jobs, job, options):
    found = ask(jobs, job, asked()).replace(options=options)
    assert found.consent.person_only is False
    assert isinstance(found.consent.rule, str)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"applied": "yes"}, "allowed; the agent goes on"),
        ({"applied": "no", "overridden_by": "deny by user_reject"}, "your answer was not used: deny by user_reject"),
        (
            {"sent_at": "2026-01-01T00:00:00Z"},
            "allowed; the agent has the answer, but nothing shows yet that it goes on",
        ),
        ({}, "allowed; the agent's runner has not taken the answer yet"),
    ],
)
def test_only_evidence_says_that_the_agent_goes_on(jobs, job, changes, words):
    answered = answer(jobs, ask(jobs, job, asked()).request_id, ALLOW)
    assert outcome(answered.replace(**changes)).startswith(words)


def test_the_id_of_a_job_allows_nothing(jobs, job):
    request = ask(jobs, job, asked())
    with pytest.raises(BatonError, match=f"`baton approve {request.request_id}` allows it"):
        find_request(jobs, job.job_id, to_allow=True)
    assert find_request(jobs, request.request_id[:6], to_allow=True) == request


@pytest.mark.parametrize("text", ["[[rule", RULES + "[[rule]]\ndecision = 'perhaps'"])
def test_a_rules_file_that_cannot_be_parsed_allows_nothing(jobs, job, tmp_path, text):
    rules(tmp_path, text)
    assert ask(jobs, job, asked()).state is RequestState.OPEN
    assert len(jobs.warnings) == 1
    assert "every request is asked" in jobs.warnings[0]


PATHS = '[[rule]]\ndecision = "allow"\npath = "."\n'


def child(jobs, parent, workdir):
    """A running job that the agent of another job has started in a folder."""
    job = jobs.register_job("work", agent="claude-code", workdir=str(workdir), parent=parent)
    return jobs.pick_job(job.job_id)


def writes(jobs, job, path, key="w"):
    return ask(jobs, job, asked({"file_path": str(path), "content": "x"}, key=key, tool="Write")).answer


def test_rules_for_paths_hold_only_within_the_folders_of_the_jobs_above(jobs, job, tmp_path):
    rules(tmp_path, PATHS)
    inside, outside = tmp_path / "work" / "sub" / "x", tmp_path / "elsewhere" / "x"
    wide = child(jobs, job.job_id, "/")
    wider = child(jobs, wide.job_id, tmp_path)
    assert [writes(jobs, each, inside) for each in (job, wide, wider)] == ["allow", "allow", "allow"]
    assert [writes(jobs, each, outside, "k2") for each in (wide, wider)] == [None, None]
    assert writes(jobs, child(jobs, None, tmp_path), outside, "k3") == "allow"  # the user started it


def test_rules_for_paths_do_not_hold_below_a_job_that_is_not_known(jobs, job, tmp_path):
    rules(tmp_path, PATHS)
    assert writes(jobs, child(jobs, "abcdef01", tmp_path / "work"), tmp_path / "work" / "x") is None


def test_a_link_in_place_of_the_folder_of_a_job_leads_nowhere_else(jobs, job, tmp_path):
    rules(tmp_path, PATHS)
    (tmp_path / "far").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "far")
    assert writes(jobs, child(jobs, job.job_id, tmp_path / "work" / "link"), "x") is None


@pytest.mark.parametrize("path", ["HEAD", "config", "hooks/x", "objects/x", "new"])
@pytest.mark.parametrize("beside", [("HEAD", "objects", "refs"), ("HEAD", "commondir")])
def test_no_rule_allows_a_file_of_a_repository_without_a_work_tree(jobs, job, tmp_path, beside, path):
    rules(tmp_path, PATHS)
    for folder, names in (("bare", beside), ("plain", beside[1:])):
        for name in names:
            (tmp_path / "work" / folder / name).mkdir(parents=True)
    assert writes(jobs, job, f"bare/{path}") is None
    assert writes(jobs, job, f"bare/sub/{path}", "k2") is None
    assert writes(jobs, job, "bare", "k4") is None
    assert writes(jobs, job, f"plain/{path}", "k3") == (None if path == "HEAD" else "allow")


def test_git_takes_a_folder_without_head_for_no_repository(tmp_path):
    for name in ("objects", "refs"):
        (tmp_path / name).mkdir()
    (tmp_path / "config").write_text("[core]\nbare = true\n")

    def is_repository():
        git = ["git", "-C", str(tmp_path), "rev-parse", "--is-bare-repository"]
        return subprocess.run(git, capture_output=True, check=False, env={"PATH": os.environ["PATH"]}).returncode == 0

    assert not is_repository()
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    assert is_repository()


@pytest.mark.parametrize("name", ["BATON_CONFIG", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "GIT_CONFIG_GLOBAL", "BASH_ENV"])
def test_no_rule_allows_a_file_that_the_environment_names_as_settings(jobs, job, tmp_path, monkeypatch, name):
    rules(tmp_path, PATHS)
    assert writes(jobs, job, "conf/x") == "allow"
    monkeypatch.setenv(name, str(tmp_path / "work" / "conf" / "x"))
    assert writes(jobs, job, "conf/x", "k2") is None
    assert writes(jobs, job, "conf/y", "k3") == "allow"


def test_no_rule_allows_the_settings_that_a_relative_path_names(jobs, job, tmp_path, monkeypatch):
    rules(tmp_path, PATHS)
    monkeypatch.setenv("BATON_CONFIG", "conf/x")
    assert writes(jobs, job, "conf/x") is None
    assert writes(jobs, job, "conf/y", "k2") == "allow"


def test_no_rule_allows_the_file_or_the_link_that_holds_the_rules_or_the_settings(jobs, job, tmp_path, monkeypatch):
    rules(tmp_path, PATHS)
    work, settings = tmp_path / "work", tmp_path / ".config" / "baton"
    (settings / "rules.toml").rename(work / "my-rules")
    (settings / "rules.toml").symlink_to(work / "my-rules")
    (work / "my-settings").touch()
    (settings / "baton.toml").symlink_to(work / "my-settings")
    assert [writes(jobs, job, name, name) for name in ("my-rules", "my-settings", "other")] == [None, None, "allow"]
    (work / "link").symlink_to(work / "target")
    monkeypatch.setenv("BATON_CONFIG", str(work / "link"))
    assert [writes(jobs, job, name, name) for name in ("link", "target", "x")] == [None, None, "allow"]


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "chosen"), [("1", "Red"), ("Blue", "Blue"), ("blue", "Blue")])
def test_a_choice_is_made_by_number_or_text(jobs, job, typed, chosen):
    request = ask(jobs, job, question())
    choices = choose(request, [typed])
    assert choices == {"Which colour?": chosen}
    assert answer(jobs, request.request_id, ALLOW.replace(choices=choices)).choices == choices


@pytest.mark.parametrize("typed", [["3"], ["0"], ["Green"], [""], ["1", "2"], [], ["1,2"]])
def test_a_choice_that_does_not_exist_is_refused(jobs, job, typed):
    with pytest.raises(InvalidValue):
        choose(ask(jobs, job, question()), typed)


def test_several_choices_own_words_and_a_question_without_choices(jobs, job):
    assert choose(ask(jobs, job, question(several=True)), ["2, red"]) == {"Which colour?": "Blue, Red"}
    own = ask(jobs, job, question().replace(key="k2"))
    assert choose(own, ["a dark one"], own_words=True) == {"Which colour?": "a dark one"}
    free = ask(jobs, job, question(choices=()).replace(key="k3"))
    assert choose(free, ["7"]) == {"Which colour?": "7"}
    with pytest.raises(InvalidValue):
        choose(free, [" "])


def test_each_of_several_questions_is_answered_once(jobs, job):
    options = tuple({"question": f"Q{n}?", "choices": ["Yes", "No"], "several": False} for n in (1, 2))
    request = ask(jobs, job, question().replace(options=options))
    assert choose(request, ["2=no", "1=1"]) == {"Q1?": "Yes", "Q2?": "No"}
    for typed in (["1=yes"], ["1=yes", "1=no"], ["yes", "no"], ["1=yes", "3=no"], ["1=yes", "2=no", "2=no"]):
        with pytest.raises(InvalidValue):
            choose(request, typed)


def test_a_question_is_not_approved_and_a_tool_not_answered(jobs, job):
    request = ask(jobs, job, question())
    with pytest.raises(BatonError, match="baton answer"):
        answer(jobs, request.request_id, ALLOW)
    with pytest.raises(WrongState, match="baton approve"):
        choose(ask(jobs, job, asked(key="k2")), ["1"])
    with pytest.raises(InvalidValue):
        answer(jobs, request.request_id, ALLOW.replace(answer="maybe"))


# -- what becomes of it ------------------------------------------------------------------------------------------------


def test_a_decision_at_the_agents_screen_closes_the_request_elsewhere(jobs, job):
    request = ask(jobs, job, asked())
    done = settle(jobs, request.request_id, Settled(key="k1", decision="allow", by="user_temporary"))
    assert (done.state, done.answer, done.via) == (RequestState.ELSEWHERE, "allow", "agent")
    assert done.answered_by == "user_temporary"
    with pytest.raises(RequestClosed):
        answer(jobs, request.request_id, DENY)
    assert lines(jobs, job, "request_closed")[0]["via"] == "agent"
    assert settle(jobs, request.request_id, Settled(key="k1", decision="deny")) == done


def test_evidence_says_that_an_answer_was_used(jobs, job):
    request = ask(jobs, job, asked())
    answer(jobs, request.request_id, ALLOW)
    assert sent(jobs, request.request_id).sent_at
    assert settle(jobs, request.request_id, Settled(key="k1", decision=None)).applied == "unknown"
    done = settle(jobs, request.request_id, Settled(key="k1", decision="allow", by="hook"))
    assert (done.applied, done.overridden_by) == ("yes", None)
    assert lines(jobs, job, "request_overridden") == []


def test_contrary_evidence_overrides_an_answer_for_good(jobs, job):
    request = ask(jobs, job, asked())
    answer(jobs, request.request_id, DENY)
    done = settle(jobs, request.request_id, Settled(key="k1", decision="allow", by="user_temporary"))
    assert (done.state, done.answer, done.applied) == (RequestState.ANSWERED, "deny", "no")
    assert done.overridden_by == "allow by user_temporary"
    assert settle(jobs, request.request_id, Settled(key="k1", decision="deny")) == done
    line = lines(jobs, job, "request_overridden")[0]
    assert (line["answer"], line["by"], line["overridden_by"]) == ("deny", "me@here", "allow by user_temporary")


def test_a_request_that_is_no_longer_asked_is_withdrawn(jobs, job):
    request = ask(jobs, job, asked())
    assert settle(jobs, request.request_id, Settled(key="k1", decision=None)).state is RequestState.WITHDRAWN
    other = ask(jobs, job, asked(key="k2"))
    assert withdraw(jobs, other.request_id).state is RequestState.WITHDRAWN
    assert withdraw(jobs, other.request_id).state is RequestState.WITHDRAWN


def test_an_expired_request_is_denied_in_the_words_of_the_contract(jobs, job):
    request = ask(jobs, job, asked(), expires_sec=30)
    forever = ask(jobs, job, asked(key="k2"))
    assert expire_due(jobs, job.job_id) == []
    jobs.clock.advance(31)
    assert [each.request_id for each in list_open(jobs)] == [forever.request_id]
    with pytest.raises(RequestClosed):
        answer(jobs, request.request_id, ALLOW)
    (expired,) = expire_due(jobs, job.job_id)
    assert (expired.request_id, expired.state) == (request.request_id, RequestState.EXPIRED)
    given = expiry(expired)
    assert given.answer == "deny"
    assert given.reason == "No answer came within 30 s. This is not consent; do not do it another way."
    assert expire_due(jobs, job.job_id) == []


def test_waiting_ends_when_the_agent_has_shown_what_became_of_the_answer(jobs, job):
    request = ask(jobs, job, asked())
    answer(jobs, request.request_id, ALLOW)
    assert wait_for_use(jobs, [request.request_id], timeout_sec=0)[0].applied == "unknown"
    settle(jobs, request.request_id, Settled(key="k1", decision="allow"))
    assert wait_for_use(jobs, [request.request_id], timeout_sec=60)[0].applied == "yes"


# -- which request -----------------------------------------------------------------------------------------------------


def test_a_request_is_found_by_its_id_its_beginning_or_its_job(jobs, job):
    request = ask(jobs, job, asked())
    for typed in (request.request_id, request.request_id[:4], job.job_id, job.job_id[:4]):
        assert find_request(jobs, typed) == request
    ask(jobs, job, asked(key="k2"))
    with pytest.raises(BatonError, match=r"may be any of.*Bash: git push.*Bash: git push"):
        find_request(jobs, job.job_id)
    with pytest.raises(InvalidValue):
        find_request(jobs, "xyz")
    other = jobs.register_job("other")
    with pytest.raises(BatonError, match="no open request"):
        find_request(jobs, other.job_id)
    with pytest.raises(RequestNotFound):
        find_request(jobs, "0" * 32)
