"""The query of the boards: jobs of all homes, ordered by who needs the user."""

from __future__ import annotations

import os
import shutil

import pytest

from baton.board import actions, details
from baton.board.query import Board, Need, describe
from baton.board.tabs import TabReader
from baton.core.awake_clock import AwakeClock
from baton.core.errors import BatonError, RequestClosed
from baton.core.signal import Asked
from baton.jobs import requests
from baton.jobs.verbs import open_jobs
from support.asking import set_activity
from support.clock import LaterClock
from support.homes import settings_in


@pytest.fixture
def env(tmp_path, monkeypatch):
    """Three folders of one user, whose homes are made by the first job."""
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    return tmp_path


def jobs_in(env, name):
    return open_jobs(settings_in(env / name, dict(os.environ)))


def start(jobs, prompt, **fields):
    job = jobs.register_job(prompt, **fields)
    return jobs.pick_job(job.job_id, lease_sec=60)


def ask(jobs, job, call, tool="Bash", **more):
    asked = Asked(key=os.urandom(4).hex(), kind="tool", tool=tool, call=call, **more)
    return requests.ask(jobs, job, asked)


def board_of(env):
    board = Board(settings_in(env / "one", dict(os.environ)))
    board.refresh()
    return board


def test_jobs_of_all_homes_come_in_the_order_of_need(env):
    with jobs_in(env, "one") as one, jobs_in(env, "two") as two:
        one.register_job("pending")
        two.update_status(start(two, "completed").job_id, "completed")
        one.update_status(start(one, "failed").job_id, "error")
        start(one, "working")
        two.update_status(two.register_job("cancelled").job_id, "cancelled")
        asking = start(two, "asking")
        ask(two, asking, {"command": "rm -rf build"})
        stalled = start(one, "stalled")
        since = stalled.updated_at
        one.registry.set_activity(stalled.job_id, {"kind": "stalled", "since": since, "cause": "silence"}, attempt=1)
        limited = start(two, "limited")
        two.registry.set_activity(limited.job_id, {"kind": "limited", "since": since, "cause": "5 pm"}, attempt=1)
    board = board_of(env)
    assert [card.title for card in board.cards] == [
        "asking", "failed", "stalled", "limited", "completed", "working", "pending", "cancelled"
    ]  # fmt: skip
    assert [card.need for card in board.cards] == list(Need)[:8]
    first = board.cards[0]
    assert first.reason == "Bash: rm -rf build"
    assert first.requests[0].call == {"command": "rm -rf build"}
    assert first.folder == str(env / "two")
    counts = board.counts
    assert counts["waiting"] == counts["failed"] == counts["done"] == 1
    assert counts["homes"] == 2
    assert describe(first)["requests"] == [first.requests[0].request_id]


def test_a_runner_that_stood_still_with_the_board_is_not_lost(env):
    with jobs_in(env, "one") as jobs:
        set_activity(jobs.registry, start(jobs, "work"), "working", lease_sec=30)
        real = LaterClock()
        board = Board(settings_in(env / "one", dict(os.environ)), AwakeClock(real))
        states = []
        for pause in (0, 3600, 29, 2):
            board.will_look_in(0 if pause == 3600 else pause)
            real.advance(pause)
            board.refresh()
            states.append(board.cards[0].state)
        assert states == ["working", "working", "working", "unknown"], "it has as long as before to renew its lease"
        assert [card.state for card in board_of(env).cards] == ["working"], "by its date, the lease has not ended"
        board.close()


def test_a_refresh_reads_only_what_changed(env, monkeypatch):
    with jobs_in(env, "one") as jobs:
        many = [jobs.register_job(f"job {number}") for number in range(5)]
        board = board_of(env)
        revision, position = board.revision, board.position
        (home,) = board._homes.values()
        read, seen = home.jobs.registry.changes_since, []

        def changes_since(number, *, limit):
            found = read(number, limit=limit)
            seen.append(len(found[0]))
            return found

        monkeypatch.setattr(home.jobs.registry, "changes_since", changes_since)
        assert not board.refresh()
        assert board.revision == revision
        jobs.update_status(many[2].job_id, "cancelled")
        assert board.refresh()
        assert seen == [1]
    changed, removed = board.changed_since(revision)
    assert [card.job_id for card in changed] == [many[2].job_id]
    assert removed == []
    # Another process resumes by the change numbers.
    assert [card.job_id for card in board_of(env).cards_after(position)] == [many[2].job_id]
    assert len(board.cards_after("nonsense")) == 5
    board.close()


def test_a_home_that_cannot_be_read_is_named_and_comes_back(env, monkeypatch):
    with jobs_in(env, "one") as one, jobs_in(env, "two") as two:
        one.register_job("here")
        two.register_job("away")
        registry = two.registry.url.removeprefix("sqlite:")
    os.rename(registry, registry + ".away")
    os.mkdir(registry)
    board = board_of(env)
    assert [card.title for card in board.cards] == ["here"]
    assert list(board.troubles) == [str(env / "two")]
    os.rmdir(registry)
    os.rename(registry + ".away", registry)
    monkeypatch.setattr(board, "_looked_at", None)
    assert board.refresh()
    assert {card.title for card in board.cards} == {"here", "away"}
    assert board.troubles == {}


def test_the_jobs_of_a_home_that_goes_away_stay_as_they_were_seen(env, monkeypatch):
    with jobs_in(env, "one") as one, jobs_in(env, "two") as two:
        one.register_job("here")
        job = two.register_job("away")
        home = two.home
    board = board_of(env)
    os.rename(home, home + ".away")
    for _ in range(2):
        monkeypatch.setattr(board, "_looked_at", None)
        board.refresh()
        assert {card.title for card in board.cards} == {"here", "away"}
        assert "is gone" in board.troubles[str(env / "two")]
    shutil.copytree(home + ".away", home)  # not the files that the board had open
    with jobs_in(env, "two") as two:
        two.update_status(job.job_id, "cancelled")
    monkeypatch.setattr(board, "_looked_at", None)
    board.refresh()
    assert {card.title: card.state for card in board.cards} == {"here": "pending", "away": "cancelled"}
    assert board.troubles == {}
    board.close()


def test_a_home_that_is_gone_is_named(env):
    with jobs_in(env, "one") as one, jobs_in(env, "two") as two:
        one.register_job("here")
        two.register_job("gone")
        shutil.rmtree(two.home)
    board = board_of(env)
    assert [card.title for card in board.cards] == ["here"]
    assert "is gone" in board.troubles[str(env / "two")]


def test_pruned_jobs_leave_the_board(env, monkeypatch):
    with jobs_in(env, "one") as jobs:
        job = jobs.register_job("old")
        jobs.update_status(job.job_id, "cancelled")
        board = board_of(env)
        jobs.prune(2**62)
        monkeypatch.setattr("baton.board.query._RELOAD_SEC", -1)
        revision = board.revision
        assert board.refresh()
    assert board.cards == []
    assert [key.partition("-")[2] for key in board.changed_since(revision)[1]] == [job.job_id]
    with pytest.raises(BatonError, match="not on the board"):
        board.get("x")


def test_a_snoozed_job_goes_to_the_end_until_its_state_changes(env):
    with jobs_in(env, "one") as jobs:
        job = start(jobs, "asking")
        ask(jobs, job, {"command": "ls"})
        jobs.register_job("pending")
        board = board_of(env)
        key = board.cards[0].key
        board.snooze(key, 3600)
        assert board.refresh()
        assert [card.title for card in board.cards] == ["pending", "asking"]
        assert board_of(env).get(key).need is Need.SNOOZED  # another board of the user
        ask(jobs, job, {"command": "ls /"})
        board.refresh()
        assert board.cards[0].key == key
        assert board.cards[0].need is Need.WAITING
        board.snooze(key, 3600)
        board.wake(key)
        board.refresh()
        assert board.get(key).need is Need.WAITING


def test_an_answer_holds_for_what_was_shown(env):
    with jobs_in(env, "one") as jobs:
        job = start(jobs, "asking")
        request = ask(jobs, job, {"command": "echo \u202edrawkcab\x1b[2J\u3164\ufe0f\u2800"})
        board = board_of(env)
        card = board.cards[0]
        settings = board.settings_for(card.key)
        shown = details.describe_request(card.requests[0])
        assert "<U+202E>" in shown["text"]
        assert "<U+001B>" in shown["text"]
        assert "<U+3164><U+FE0F><U+2800>" in shown["text"]  # printable, and nothing to see
        other = actions.Shown(request.request_id, "0" * 64)
        with pytest.raises(BatonError, match="not what was shown"):
            actions.approve(settings, other, via="web")
        actions.approve(settings, actions.Shown(request.request_id, shown["text_sha256"]), via="web")
        with pytest.raises(RequestClosed, match="allow by"):
            actions.deny(settings, request.request_id, via="web")
        assert "has not taken the answer" in actions.not_proved(settings, request.request_id, timeout_sec=0)
        requests.not_used(jobs, request.request_id, "denied at the keyboard")
        expected = "your answer was not used: denied at the keyboard"
        assert actions.not_proved(settings, request.request_id) == expected
    closed = [line for line in details.history(settings, job.job_id) if line["event"] == "request_closed"]
    assert [line["via"] for line in closed] == ["web"]


def test_actions_are_in_the_audit_log_with_their_surface(env):
    with jobs_in(env, "one") as jobs:
        job, ended = jobs.register_job("to cancel"), jobs.register_job("to see")
        jobs.update_status(start(jobs, "x").job_id, "completed")
        jobs.pick_job(ended.job_id)
        jobs.update_status(ended.job_id, "completed")
    board = board_of(env)
    settings = board.settings_for(board.cards[0].key)
    assert actions.cancel(settings, job.job_id, via="board").status == "cancelled"
    actions.mark_seen(settings, ended.job_id, via="board")
    for job_id, action in ((job.job_id, "cancel"), (ended.job_id, "seen")):
        lines = [line for line in details.history(settings, job_id) if line["event"] == "action"]
        assert [(line["action"], line["via"]) for line in lines] == [(action, "board")]
    board.refresh()
    assert details.result(settings, ended.job_id)["status"] == "completed"
    assert details.explain(settings, job.job_id)["state"] == "cancelled"
    assert details.view(settings, job.job_id).kind == "none"
    with pytest.raises(BatonError, match="no worktree"):
        details.diff(settings, job.job_id)


def test_a_file_that_is_not_there_has_no_size_in_the_result(env):
    with jobs_in(env, "one") as jobs:
        job = start(jobs, "x", expected_artifacts=["report.md", "there.md"], workdir=str(env / "one"))
        jobs.update_status(job.job_id, "error")
    (env / "one" / "there.md").write_text("four")
    board = board_of(env)
    (card,) = board.cards
    shown = [text for text, _ in TabReader(board).read(card.key, "result").lines]
    assert "file      report.md, missing here, or a folder" in shown
    assert "file      there.md, 4 bytes" in shown


def test_actions_are_refused_inside_a_session(env, monkeypatch):
    with jobs_in(env, "one") as jobs:
        job = jobs.register_job("x")
    board = board_of(env)
    settings = board.settings_for(board.cards[0].key)
    monkeypatch.setenv("BATON_SESSION_ID", "0" * 16)
    for act in (actions.cancel, actions.retry):
        with pytest.raises(BatonError, match="refused inside a session"):
            act(settings, job.job_id, via="web")
    with pytest.raises(BatonError, match="refused inside a session"):
        actions.message(settings, job.job_id, "hello", via="web")


def test_cost_is_summed_by_day_without_unknown_costs(env):
    entry = {"attempt": 1, "input_tokens": 10, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 5}
    with jobs_in(env, "one") as jobs:
        for day, cost in (("2026-11-17", 0.5), ("2026-11-17", None), ("2026-11-18", 0.25)):
            job = start(jobs, "x")
            jobs.registry.note_usage(job.job_id, {**entry, "cost_usd": cost, "at": f"{day}T10:00:00Z"})
    assert board_of(env).cost_per_day() == [
        {"day": "2026-11-17", "usd": 0.5, "tokens": 30, "unknown": 1},
        {"day": "2026-11-18", "usd": 0.25, "tokens": 15, "unknown": 0},
    ]
