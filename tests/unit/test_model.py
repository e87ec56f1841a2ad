from __future__ import annotations

import json

import pytest

from baton.core.drafts import new_job, repeat_job
from baton.core.errors import InvalidRecord, InvalidValue
from baton.core.job import HIDDEN, Job, new_token

SEED_RECORD = {
    "schema_version": 1,
    "job_id": "abc12345",
    "status": "pending",
    "created_at": "2026-06-19T09:30:00Z",
    "updated_at": "2026-06-19T09:32:00Z",
    "prompt": "정렬 문제 10개를 만들어 sort_problems.md로 저장…",
    "agent": "claude-code",
    "agent_session": "tmux:claude",
    "broker": {"host": "broker.example", "port": 1883, "tls": False, "username": None, "password": None},
    "topic_prefix": "python/mqtt/jobs/abc12345",
    "timeout_sec": 3600,
    "idle_timeout_sec": 120,
    "expected_artifacts": ["sort_problems.md"],
    "last_seq": 0,
    "auth_token": None,
}


def test_a_record_of_the_seeds_loads_and_is_written_unchanged():
    job = Job.parse(SEED_RECORD, "abc12345")
    assert json.dumps(job.record()) == json.dumps(SEED_RECORD)
    assert (job.attempt, job.max_attempts, job.priority) == (0, 1, 0)


def test_unknown_fields_are_kept():
    record = SEED_RECORD | {"colour": "blue", "broker": SEED_RECORD["broker"] | {"ws_path": "/mqtt"}}
    assert Job.parse(record).record() == record


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
        ({"schema_version": "1"}, "schema_version"),
        ({"job_id": "../../x"}, "job_id"),
        ({"job_id": "ABCDEF12"}, "job_id"),
        ({"status": "done"}, "status"),
        ({"status": None}, "status"),
        ({"created_at": "2026-06-19T09:30:00"}, "created_at"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"created_at": 1781861400}, "created_at"),
        ({"updated_at": "2026-02-30T00:00:00Z"}, "updated_at"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "x" * (1024 * 1024 + 1)}, "prompt"),
        ({"agent": ""}, "agent"),
        ({"agent_session": "two\nlines"}, "agent_session"),
        ({"agent_session": "esc\x1b[0m"}, "agent_session"),
        ({"broker": []}, "broker"),
        ({"broker": {"port": "1883"}}, "broker"),
        ({"broker": {"port": 70000}}, "broker"),
        ({"topic_prefix": "a/+/b"}, "topic_prefix"),
        ({"topic_prefix": "python/mqtt/jobs/abc12346"}, "topic_prefix"),
        ({"topic_prefix": "home/door"}, "topic_prefix"),
        ({"timeout_sec": -1}, "timeout_sec"),
        ({"timeout_sec": 0}, "timeout_sec"),
        ({"timeout_sec": 1.5}, "timeout_sec"),
        ({"timeout_sec": True}, "timeout_sec"),
        ({"idle_timeout_sec": None}, "idle_timeout_sec"),
        ({"expected_artifacts": "a.md"}, "expected_artifacts"),
        ({"expected_artifacts": [""]}, "expected_artifacts"),
        ({"expected_artifacts": [1]}, "expected_artifacts"),
        ({"last_seq": -1}, "last_seq"),
        ({"auth_token": 7}, "auth_token"),
        ({"attempt": "1"}, "attempt"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"lease_expires_at": "soon"}, "lease_expires_at"),
        ({"labels": {"a": 1}}, "labels"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_field(change, field):
    with pytest.raises(InvalidRecord) as error:
        Job.parse(SEED_RECORD | change, None)
    assert error.value.field == field
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["schema_version", "job_id", "status", "created_at", "prompt", "agent_session"])
def test_a_missing_field_is_named(field):
    record = {key: value for key, value in SEED_RECORD.items() if key != field}
    with pytest.raises(InvalidRecord, match=f"{field} is missing"):
        Job.parse(record)


@pytest.mark.parametrize("record", [None, [], "x", 1])
def test_what_is_not_a_record_is_refused(record):
    with pytest.raises(InvalidRecord):
        Job.parse(record)


def test_a_record_under_another_name_is_refused():
    with pytest.raises(InvalidRecord, match="names another job"):
        Job.parse(SEED_RECORD, "abc12346")


def test_secrets_are_hidden_unless_asked_for():
    job = new_job("x", now_ns=1, agent="a", broker={"password": "hunter2"})
    assert job.public()["auth_token"] == job.public()["broker"]["password"] == HIDDEN
    assert job.public(show_secrets=True)["auth_token"] == job.auth_token
    assert job.auth_token not in repr(job)


def test_a_job_cannot_be_changed():
    job = Job.parse(SEED_RECORD)
    with pytest.raises(AttributeError, match="immutable"):
        job.status = "running"
    with pytest.raises(TypeError, match="no field"):
        job.replace(colour="blue")


def test_a_key_is_256_random_bits_in_url_safe_base64():
    keys = {new_token() for _ in range(200)}
    assert len(keys) == 200
    assert all(
        len(key) == 43 and set(key) <= set("-_" + "".join(map(chr, [*range(48, 58), *range(65, 91), *range(97, 123)])))
        for key in keys
    )


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"timeout_sec": -5}, "timeout_sec"),
        ({"agent_session": "a\nb"}, "agent_session"),
        ({"priority": 10**10}, "priority"),
        ({"workdir": 5}, "workdir"),
        ({"start_options": {"headless": "yes"}}, "start_options"),
        ({"start_options": {"conversation_id": "a\nb"}}, "start_options"),
        ({"start_options": {"later": float("nan")}}, "start_options"),
    ],
)
def test_a_new_job_names_the_argument_that_does_not_fit(arguments, field):
    with pytest.raises(InvalidValue) as error:
        new_job(**({"prompt": "x", "now_ns": 1, "agent": "a"} | arguments))
    assert error.value.field == field


# -- the same work again -------------------------------------------------------------------------------------------

FATE = {
    "job_id", "status", "created_at", "updated_at", "topic_prefix", "last_seq", "auth_token", "attempt", "claimed_by",
    "lease_expires_at", "lease_mark", "deadline_at", "last_event_at", "finished_at", "detail", "submitter", "verified_by",
    "unverified", "disputed",
}  # fmt: skip


def test_a_repeated_job_has_every_field_except_what_became_of_the_first():
    ended = {
        "schema_version": 1, "job_id": "abcd1234", "status": "completed", "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:01:00Z", "prompt": "work", "agent": "shell", "agent_session": "q",
        "broker": {"host": "h", "port": 1, "tls": True, "username": "u", "password": "p", "own": 1},
        "topic_prefix": "python/mqtt/jobs/abcd1234", "timeout_sec": 5, "idle_timeout_sec": 6,
        "expected_artifacts": ["out"], "last_seq": 7, "auth_token": "secret", "workdir": "/w", "attempt": 2,
        "max_attempts": 3, "priority": 4, "claimed_by": "host:1", "lease_expires_at": "2026-01-01T00:00:00Z",
        "lease_mark": "boot/1", "deadline_at": "2026-01-01T00:00:00Z", "last_event_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:00:00Z", "detail": "done", "validate": "true", "labels": ["l"],
        "submitter": "host:1:2", "verified_by": ["expect: out"], "unverified": "me@host", "disputed": "why", "of_a_later_version": [1],
        "start_options": {"headless": True, "yolo": True, "of_a_later_version": "x"},
    }  # fmt: skip
    first = Job.parse(ended)
    again = repeat_job(first, now_ns=0)
    same = {name for name in ended if again.public(show_secrets=True)[name] == first.public(show_secrets=True)[name]}
    assert set(ended) - same == FATE
    assert (again.status, again.attempt, again.last_seq, again.verified_by) == ("pending", 0, 0, ())
    assert repeat_job(first, now_ns=0, submitter="host:3:4").submitter == "host:3:4"
