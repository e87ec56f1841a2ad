"""`import baton`: the verbs under the seeds' names, on a real registry."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import baton


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_job_from_registration_to_its_end():
    job = baton.register_job("Sort it", agent="codex", expected_artifacts=["a.md"], max_attempts=2)
    assert baton.get_job(job.job_id) == job
    assert [each.job_id for each in baton.list_jobs().jobs] == [job.job_id]
    claimed = baton.pick_pending("tmux:codex", lease_sec=60)
    assert claimed.job_id == job.job_id
    assert baton.pick_pending("tmux:codex") is None
    assert baton.renew_lease(job.job_id, attempt=1, lease_sec=5).lease_expires_at
    assert baton.record_event(job.job_id, "started", attempt=1).seq == 1
    assert baton.next_seq(job.job_id) == 2
    assert [event.seq for event in baton.unsent_events()] == [1]
    baton.mark_sent(job.job_id, [1])
    assert baton.unsent_events(job_id=job.job_id) == []
    assert baton.release(job.job_id, attempt=1).status is baton.Status.PENDING
    assert baton.pick_pending("tmux:codex").attempt == 2
    assert baton.requeue(job.job_id).status == "pending"
    assert baton.pick_pending("tmux:codex").attempt == 3
    with pytest.raises(baton.StaleAttempt):
        baton.update_status(job.job_id, "completed", attempt=1)
    with pytest.raises(baton.NotVerified, match=r"a\.md is missing"):
        baton.update_status(job.job_id, "completed", attempt=3)
    with open("a.md", "w") as file:
        file.write("sorted")
    assert baton.update_status(job.job_id, "completed", attempt=3).status == "completed"
    assert [event.event for event in baton.events_after(job.job_id)] == ["started"]
    assert baton.stats()["completed"] == 1
    kinds = [line["event"] for line in baton.iter_logged_events(job.job_id)]
    assert kinds == [
        "registered", "status_changed", "published", "requeued", "status_changed", "requeued", "status_changed",
        "validated", "validated", "status_changed",
    ]  # fmt: skip
    assert baton.verify_log(job.job_id).damage == []
    assert os.path.samefile(baton.LOGS_DIR, ".hermes/delegate_job_logs")
    assert baton.list_logged_jobs() == [job.job_id]


def test_an_event_for_a_pending_job_leaves_both_changes_in_the_log():
    job = baton.register_job("x")
    baton.record_event(job.job_id, "completed", detail="quick")
    lines = [(line["event"], line.get("from"), line.get("to")) for line in baton.iter_logged_events(job.job_id)]
    assert lines == [
        ("registered", None, None),
        ("status_changed", "pending", "running"),
        ("status_changed", "running", "completed"),
        ("published", None, None),
    ]


def test_a_command_may_be_silent_as_long_as_it_may_take():
    assert baton.register_job("x", agent="shell", timeout_sec=77).idle_timeout_sec == 77
    assert baton.register_job("x", agent="shell", idle_timeout_sec=9).idle_timeout_sec == 9
    assert baton.register_job("x", agent="codex", timeout_sec=770).idle_timeout_sec == 120


def test_in_a_folder_that_is_gone(tmp_path):
    code = (
        "import baton, os; os.rmdir(os.getcwd()); job = baton.register_job('x', workdir='/')\n"
        "print(baton.record_event(job.job_id, 'started').seq)"
    )
    (tmp_path / "gone").mkdir()
    # A process of its own, in which little is loaded yet.
    told = subprocess.check_output(
        [sys.executable, "-c", code],
        cwd=tmp_path / "gone",
        env=os.environ | {"BATON_HOME": f"{tmp_path}/home"},
        text=True,
    )
    assert told == "1\n"


def test_many_calls_on_one_open_registry(tmp_path):
    with baton.open_jobs(home=str(tmp_path / "elsewhere")) as jobs:
        ids = [jobs.register_job(f"job {i}", agent="a").job_id for i in range(5)]
        assert [jobs.pick_pending("tmux:a").job_id for _ in ids] == ids
    assert baton.stats()["running"] == 0
    assert baton.stats(home=str(tmp_path / "elsewhere"))["running"] == 5


@pytest.mark.parametrize(
    "arguments", [{"prompt": ""}, {"prompt": "x", "timeout_sec": -1}, {"prompt": "x", "agent": "a\nb"}]
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path, arguments):
    with pytest.raises(baton.InvalidValue):
        baton.register_job(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_unknown_words_get_typed_errors():
    job = baton.register_job("x")
    with pytest.raises(baton.InvalidValue, match="status"):
        baton.update_status(job.job_id, "done")
    with pytest.raises(baton.InvalidValue, match="event"):
        baton.record_event(job.job_id, "finished")
    with pytest.raises(baton.JobNotFound):
        baton.get_job("deadbeef")
    with pytest.raises(baton.IllegalTransition):
        baton.update_status(job.job_id, "completed")
    with pytest.raises(baton.InvalidValue, match="registry"):
        baton.stats(registry="nonsense")


def test_publishing_listening_and_verifying(tmp_path, monkeypatch):
    from baton.broker.local import stop_broker

    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    try:
        job = baton.register_job("x", expected_artifacts=["a.md"], workdir=str(tmp_path))
        assert baton.publish_event(job.job_id, "started", detail="hello").sent
        with pytest.raises(baton.NotVerified, match=r"a\.md"):
            baton.publish_event(job.job_id, "completed")
        (tmp_path / "a.md").write_text("x")
        published = baton.publish_event(job.job_id, "completed", attempt=1)
        listening = baton.subscribe(job.job_id, timeout_sec=20)
        assert [event["event"] for event in listening] == ["started", "completed"]
        assert (listening.exit_code, listening.outcomes()) == (0, {job.job_id: baton.Status.COMPLETED})
        late = baton.subscribe(baton.register_job("y").job_id, timeout_sec=0.2)
        assert list(late) == []
        assert (late.exit_code, list(late.outcomes().values())) == (2, [None])
        assert "0.2 s have passed" in late.timed_out
        with pytest.raises(baton.JobNotFound):
            baton.subscribe("deadbeef")
        assert baton.verify_event(published.event.payload, job.auth_token).seq == 2
        with pytest.raises(baton.BatonError) as refusal:
            baton.verify_event(published.event.payload, "another key")
        assert isinstance(refusal.value, baton.Rejected)
        event = baton.verify_event(published.event.payload, job.auth_token)
        assert repr(event) == f"<Event {job.job_id} seq=2 completed attempt=1>"
        assert f"{job.job_id} seq=2 completed" in repr(published)
    finally:
        stop_broker(str(tmp_path / "state"))


def test_arguments_of_another_type_are_refused_by_name():
    job = baton.register_job("x")
    for wrong in ({"detail": None}, {"detail": b"x"}, {"data": ["x"]}, {"data": "x"}):
        with pytest.raises(baton.InvalidValue, match=next(iter(wrong))):
            baton.publish_event(job.job_id, "started", **wrong)
    assert baton.events_after(job.job_id) == []
    with pytest.raises(baton.InvalidValue, match="payload must be bytes, not str"):
        baton.verify_event("{}", "key")
    with pytest.raises(baton.InvalidValue, match="auth_token must be str, not NoneType"):
        baton.verify_event(b"{}", None)
