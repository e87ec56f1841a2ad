"""What every registry must do. The suite is the definition; each test runs on each backend."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton.api import verify_event
from baton.core import notification
from baton.core.clock import format_time, parse_time
from baton.core.drafts import new_job
from baton.core.errors import (
    EventRefused,
    IllegalTransition,
    InvalidRecord,
    InvalidValue,
    JobNotFound,
    KeyTaken,
    StaleAttempt,
)
from baton.core.event import EventName
from baton.core.job import Job, Status
from baton.core.lifecycle import expired_lease_error
from baton.core.notification import Wish, due_to
from baton.core.outline import Outline
from baton.core.result import Result
from baton.registry.contract import Entry, JobFilter
from support.backends import clocked_registry, spoil

LABEL = "tmux:claude"
LEASE = 30.0
ANOTHER = {"job_id": "abc12345", "topic_prefix": "python/mqtt/jobs/abc12345"}


@pytest.fixture
def add(registry, clock):
    def register(prompt="do it", **fields) -> Job:
        fields = {"agent": "claude-code", "agent_session": LABEL} | fields
        return registry.register_job(new_job(prompt, now_ns=clock.wall_ns(), **fields))

    return register


def pick(registry, **more):
    """The claimed job, or None."""
    change = registry.pick_pending(LABEL, **({"holder": "me"} | more))
    return change and change.after


class TestRegistering:
    def test_a_registered_job_is_read_back_as_it_was(self, registry, add):
        job = add(
            "정렬 문제 10개\n'; DROP TABLE jobs; --",
            expected_artifacts=["a.md", "b c.md"],
            priority=-3,
            labels=["x"],
            validate="make test",
            workdir="/tmp/w",
            broker={"host": "h", "port": 1, "odd": [1]},
        )
        assert registry.get_job(job.job_id) == job
        assert job.status is Status.PENDING
        assert job.topic_prefix == f"python/mqtt/jobs/{job.job_id}"

    def test_each_job_has_its_own_key(self, add):
        assert len({add().auth_token for _ in range(5)}) == 5

    def test_a_taken_id_is_drawn_again(self, registry, clock):
        draft = new_job("a", now_ns=clock.wall_ns(), agent="x")
        first = registry.register_job(draft)
        second = registry.register_job(draft)
        assert first.job_id == draft.job_id != second.job_id
        assert second.topic_prefix.endswith(second.job_id)
        assert registry.get_job(first.job_id) == first

    def test_many_at_once_keep_their_order(self, registry, clock):
        moment = clock.wall_ns()
        drafts = [new_job(f"job {i}", now_ns=moment, agent="x", agent_session=LABEL) for i in range(20)]
        registry.register_many(drafts)
        assert [pick(registry).prompt for _ in drafts] == [f"job {i}" for i in range(20)]

    def test_many_at_once_with_one_id_get_different_ones(self, registry, clock):
        draft = new_job("same", now_ns=clock.wall_ns(), agent="x")
        jobs = registry.register_many([draft] * 3)
        assert len({job.job_id for job in jobs}) == 3
        assert [registry.get_job(job.job_id) for job in jobs] == jobs

    def test_an_unknown_id_is_not_found(self, registry, add):
        with pytest.raises(JobNotFound, match="deadbeef"):
            registry.get_job("deadbeef")
        add()
        for verb in (
            lambda: registry.get_job("deadbeef"),
            lambda: registry.update_status("deadbeef", Status.CANCELLED),
            lambda: registry.pick_job("deadbeef", holder="me"),
            lambda: registry.clear_submitter("deadbeef"),
            lambda: registry.requeue("deadbeef"),
            lambda: registry.renew_lease("deadbeef", attempt=1, lease_sec=1),
            lambda: registry.record_event("deadbeef", EventName.STARTED),
            lambda: registry.next_seq("deadbeef"),
            lambda: registry.events_after("deadbeef"),
        ):
            with pytest.raises(JobNotFound, match="deadbeef"):
                verb()

    @pytest.mark.parametrize("bad", ["", "../etc", "ABCDEF12", "abc", "a" * 33, "abc1234\n", "abcdefg1", None, 7])
    def test_a_malformed_id_is_refused(self, registry, bad):
        for verb in (
            registry.get_job,
            registry.next_seq,
            registry.requeue,
            registry.events_after,
            registry.clear_submitter,
        ):
            with pytest.raises(InvalidValue, match="job id"):
                verb(bad)


class TestIdempotencyKeys:
    def test_a_second_registration_returns_the_first_job(self, registry, add):
        first = add("x", idempotency_key="nightly")
        assert add("x", idempotency_key="nightly") == first
        claimed = pick(registry)
        registry.update_status(first.job_id, Status.COMPLETED)
        assert add("x", idempotency_key="nightly") == registry.get_job(claimed.job_id)
        assert add("x", idempotency_key="other").job_id != first.job_id
        assert add("x").job_id != first.job_id
        assert registry.stats()["pending"] == 2

    def test_a_registration_of_other_work_is_refused(self, registry, add):
        first = add("x", idempotency_key="nightly")
        with pytest.raises(KeyTaken, match=f"belongs to job {first.job_id}, whose prompt, title differ"):
            add("y", idempotency_key="nightly", title="t")
        assert registry.list_jobs().jobs == [first]

    def test_a_batch_with_a_key_of_other_work_registers_nothing(self, registry, add, clock):
        add("x", idempotency_key="nightly")
        more = [new_job("x", now_ns=clock.wall_ns(), agent="a", idempotency_key=key) for key in ("new", "nightly")]
        with pytest.raises(KeyTaken):
            registry.register_many(more)
        assert registry.stats()["pending"] == 1

    def test_one_key_twice_in_a_batch_is_one_job(self, registry, clock):
        more = [new_job("x", now_ns=clock.wall_ns(), agent="a", idempotency_key="k") for _ in range(2)]
        first, second = registry.register_many(more)
        assert first == second
        assert registry.stats()["pending"] == 1

    def test_the_key_of_a_pruned_job_is_free(self, registry, add, clock):
        first = add("x", idempotency_key="nightly")
        registry.update_status(first.job_id, Status.CANCELLED)
        clock.advance(10)
        assert registry.prune(clock.wall_ns()) == [first.job_id]
        assert add("y", idempotency_key="nightly").job_id != first.job_id

    def test_of_many_at_the_same_time_one_is_registered(self, registry, url, clock):
        def register(_):
            own = clocked_registry(url, clock)
            try:
                return own.register_job(new_job("x", now_ns=1, agent="a", idempotency_key="race")).job_id
            finally:
                own.close()

        registry.register_job(new_job("first", now_ns=0, agent="a"))
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(register, range(16)))) == 1
        assert registry.stats()["pending"] == 2


class TestBeginningsOfIds:
    @pytest.fixture
    def ids(self, registry, clock):
        wanted = ["abcd1234", "abcd1235", "abce0000", "abcd12345678", "00000000"]
        drafts = [new_job("x", now_ns=clock.wall_ns(), agent="x") for _ in wanted]
        changed = [
            draft.replace(job_id=each, topic_prefix=f"python/mqtt/jobs/{each}")
            for draft, each in zip(drafts, wanted, strict=True)
        ]
        registry.register_many(changed)
        return wanted

    def test_they_find_every_job_that_begins_so(self, registry, ids):
        assert registry.find_ids("abcd") == ["abcd1234", "abcd12345678", "abcd1235"]
        assert registry.find_ids("abcd", limit=2) == ["abcd1234", "abcd12345678"]
        assert registry.find_ids("abce") == ["abce0000"]
        assert registry.find_ids("0000") == ["00000000"]
        assert registry.find_ids("ffff") == registry.find_ids("abcf") == []

    def test_an_id_that_is_whole_is_not_the_beginning_of_another(self, registry, ids):
        assert registry.find_ids("abcd1234") == ["abcd1234"]
        assert registry.find_ids("abcd12345") == ["abcd12345678"]

    def test_a_new_registry_has_none(self, registry):
        assert registry.find_ids("abcd1234") == []

    @pytest.mark.parametrize("bad", ["", "abc", "a" * 33, "ABCD", "ab%d", "ab_d", "../abcd1234", "abcd\n", "abcdg"])
    def test_what_cannot_begin_an_id_is_refused(self, registry, bad):
        with pytest.raises(InvalidValue, match="job id"):
            registry.find_ids(bad)


class TestPicking:
    def test_a_job_that_somebody_has_or_that_is_over_is_not_picked_by_its_id(self, registry, add):
        job = add()
        held = registry.pick_job(job.job_id, holder="first").after
        with pytest.raises(IllegalTransition, match="running"):
            registry.pick_job(job.job_id, holder="second")
        assert registry.get_job(job.job_id) == held
        registry.update_status(job.job_id, Status.COMPLETED, attempt=None, holder="first")
        with pytest.raises(IllegalTransition, match="completed"):
            registry.pick_job(job.job_id, holder="second")

    def test_nothing_to_pick(self, registry, add):
        assert pick(registry) is None
        add(agent_session="tmux:other")
        assert pick(registry) is None

    def test_the_oldest_comes_first(self, registry, add):
        ids = [add().job_id for _ in range(5)]
        assert [pick(registry).job_id for _ in range(5)] == ids
        assert pick(registry) is None

    def test_a_higher_priority_comes_before_an_older_job(self, registry, add):
        low, normal, high = add(priority=-1), add(), add(priority=7)
        assert [pick(registry).job_id for _ in range(3)] == [high.job_id, normal.job_id, low.job_id]

    def test_the_same_moment_is_decided_by_the_id(self, registry, clock):
        moment = clock.wall_ns()
        jobs = [registry.register_job(new_job("x", now_ns=moment, agent="x", agent_session=LABEL)) for _ in range(9)]
        assert [pick(registry).job_id for _ in jobs] == sorted(job.job_id for job in jobs)

    def test_a_record_that_does_not_fit_blocks_nobody(self, registry, add, url):
        bad, good = add(), add()
        spoil(url, bad.job_id)
        assert pick(registry).job_id == good.job_id
        assert pick(registry) is None
        assert [error.job_id for error in registry.list_jobs().bad] == [bad.job_id]

    def test_labels_do_not_see_each_other(self, registry, add):
        mine, other = add(), add(agent_session="tmux:claude2")
        assert pick(registry).job_id == mine.job_id
        assert pick(registry) is None
        assert registry.pick_pending("tmux:claude2", holder="me").after.job_id == other.job_id

    def test_a_claim_stamps_the_job(self, registry, add, clock):
        job = add(timeout_sec=60)
        clock.advance(100)
        claimed = pick(registry, holder="host:1")
        assert registry.get_job(job.job_id) == claimed
        assert (claimed.status, claimed.attempt, claimed.claimed_by) == (Status.RUNNING, 1, "host:1")
        assert parse_time(claimed.updated_at) >= parse_time(job.updated_at) + 100 * 10**9
        assert parse_time(claimed.deadline_at) == parse_time(claimed.updated_at) + 60 * 10**9
        assert claimed.lease_expires_at is None
        assert claimed.auth_token == job.auth_token, "the first attempt signs with the key of the registration"

    def test_both_claims_return_the_job_before_and_after(self, registry, add):
        for job, claim in (
            (add(), lambda job: registry.pick_pending(LABEL, holder="me", lease_sec=LEASE)),
            (add(), lambda job: registry.pick_job(job.job_id, holder="me", lease_sec=LEASE)),
        ):
            change = claim(job)
            assert change.before.replace(updated_at=job.updated_at) == job
            assert change.after == registry.get_job(job.job_id)
            assert (change.after.status, change.after.attempt) == (Status.RUNNING, 1)
            assert change.after.lease_expires_at is not None

    @pytest.mark.parametrize("bad", ["", "two\nlines", " x", "x" * 500, "nul\0"])
    def test_a_label_that_cannot_be_one_is_refused(self, registry, bad):
        with pytest.raises(InvalidValue, match="agent_session"):
            registry.pick_pending(bad, holder="me")

    @pytest.mark.parametrize("bad", [0, -1, 1e12, float("nan")])
    def test_a_lease_that_cannot_be_one_is_refused(self, registry, add, bad):
        add()
        with pytest.raises(InvalidValue, match="lease"):
            pick(registry, lease_sec=bad)
        assert registry.stats()["pending"] == 1


class TestSubmitter:
    """A job with a submitter is claimed by its id alone, until the submitter is cleared."""

    def test_it_is_kept_with_the_job(self, registry, add):
        job = add(submitter="host:12:345")
        assert job.submitter == registry.get_job(job.job_id).submitter == "host:12:345"
        assert registry.record_event(job.job_id, EventName.STARTED).after.submitter == "host:12:345"
        assert [each.submitter for each in registry.list_jobs().jobs] == ["host:12:345"]
        assert [entry.job.submitter for entry in registry.export()] == ["host:12:345"]

    def test_the_queue_passes_it_over(self, registry, add):
        add(submitter="host:12:345", priority=9)
        free = add()
        assert pick(registry).job_id == free.job_id
        assert pick(registry) is None

    def test_it_is_claimed_by_its_id_and_waits_again_for_its_submitter_after_a_requeue(self, registry, add, clock):
        job = add(submitter="host:12:345", max_attempts=3)
        assert registry.pick_job(job.job_id, holder="host:12", lease_sec=LEASE).after.attempt == 1
        clock.advance(LEASE + 1)
        (change,) = registry.expire_leases()
        assert (change.after.status, change.after.submitter) == (Status.PENDING, "host:12:345")
        assert pick(registry) is None
        assert registry.pick_job(job.job_id, holder="host:12").after.attempt == 2

    def test_once_cleared_the_queue_returns_it_in_its_place(self, registry, add):
        job, younger = add(submitter="host:12:345"), add()
        change = registry.clear_submitter(job.job_id)
        assert change.before == job
        assert change.after == registry.get_job(job.job_id)
        assert change.after == job.replace(submitter=None, updated_at=change.after.updated_at)
        assert registry.list_jobs().jobs == [younger, change.after]
        assert [pick(registry).job_id, pick(registry).job_id] == [job.job_id, younger.job_id]

    def test_of_a_pending_job_without_one_there_is_nothing_to_clear(self, registry, add):
        job = add()
        change = registry.clear_submitter(job.job_id)
        assert change.before == change.after == job == registry.get_job(job.job_id)

    @pytest.mark.parametrize("status", ["running", "completed", "cancelled"])
    def test_it_stays_with_a_job_that_is_not_pending(self, registry, add, status):
        job = add(submitter="host:12:345")
        if status != "cancelled":
            registry.pick_job(job.job_id, holder="me")
        before = registry.update_status(job.job_id, Status(status)).after
        with pytest.raises(IllegalTransition, match=status):
            registry.clear_submitter(job.job_id)
        assert registry.get_job(job.job_id) == before
        assert before.submitter == "host:12:345"

    def test_fields_of_another_version_beside_it_are_kept(self, registry, add):
        record = add().record() | ANOTHER | {"submitter": "host:12:345", "x_new": [1]}
        registry.import_entries([Entry(job=Job.parse(record), events=())])
        assert pick(registry).job_id != "abc12345"
        assert pick(registry) is None
        after = registry.clear_submitter("abc12345").after
        assert (after.submitter, after.extra) == (None, {"x_new": [1]})
        assert pick(registry).job_id == "abc12345"


ALLOWED = {
    ("pending", "running"),
    ("pending", "cancelled"),
    ("running", "completed"),
    ("running", "error"),
    ("running", "cancelled"),
}


class TestStatus:
    @pytest.mark.parametrize("wanted", list(Status))
    @pytest.mark.parametrize("present", list(Status))
    def test_every_pair(self, registry, add, present, wanted):
        job = add()
        if present is not Status.PENDING:
            if present is not Status.CANCELLED:
                pick(registry)
            registry.update_status(job.job_id, present)
        before = registry.get_job(job.job_id)
        assert before.status is present
        if present is wanted:
            change = registry.update_status(job.job_id, wanted)
            assert change.before == change.after == before
        elif (present, wanted) in ALLOWED:
            change = registry.update_status(job.job_id, wanted)
            assert change.before == before
            assert change.after.status is wanted
            assert registry.get_job(job.job_id) == change.after
            assert (change.after.finished_at is not None) == (wanted in ("completed", "error", "cancelled"))
        else:
            with pytest.raises(IllegalTransition) as error:
                registry.update_status(job.job_id, wanted)
            assert (error.value.current, error.value.wanted) == (present, wanted)
            assert registry.get_job(job.job_id) == before

    def test_setting_running_claims(self, registry, add):
        job = add()
        after = registry.update_status(job.job_id, Status.RUNNING, holder="op").after
        assert (after.attempt, after.claimed_by) == (1, "op")
        assert pick(registry) is None

    def test_fields_that_tell_how_a_job_was_completed_are_set_with_its_status(self, registry, add):
        first, second, third = add(), add(), add()
        for _ in range(3):
            pick(registry)
        verified, skipped = {"verified_by": ("expect: a", "validate: true")}, {"unverified": "me@host"}
        registry.update_status(first.job_id, Status.COMPLETED, outcome=verified)
        registry.record_event(second.job_id, EventName.COMPLETED, outcome=verified)
        registry.record_event(third.job_id, EventName.COMPLETED, outcome=skipped)
        for job in (first, second):
            assert registry.get_job(job.job_id).verified_by == ("expect: a", "validate: true")
        assert registry.get_job(third.job_id).unverified == "me@host"
        registry.update_status(first.job_id, Status.COMPLETED, outcome=skipped)
        assert registry.get_job(first.job_id).unverified is None, "a job that is over does not change"

    def test_a_retry_and_the_job_that_it_retries_name_each_other(self, registry, add):
        first, other = add(), add()
        pick(registry)
        ended = registry.update_status(first.job_id, Status.COMPLETED).after
        options = {"headless": True, "of_a_later_version": [1]}
        again = add(retry_of=first.job_id, start_options=options)
        assert registry.get_job(first.job_id) == ended.replace(retried_by=again.job_id)
        assert registry.get_job(again.job_id) == again
        assert (again.retry_of, again.start_options) == (first.job_id, options)
        assert registry.get_job(other.job_id) == other
        assert add(retry_of="deadbeef").retry_of == "deadbeef", "the first job may be gone"
        third = add(retry_of=first.job_id)
        assert registry.get_job(first.job_id).retried_by == third.job_id, "the newest"

    def test_a_retry_of_a_job_that_runs_changes_nothing_else_of_it(self, registry, add):
        first = add()
        claimed = pick(registry, lease_sec=LEASE)
        again = add(retry_of=first.job_id)
        assert registry.get_job(first.job_id) == claimed.replace(retried_by=again.job_id)
        registry.record_event(first.job_id, EventName.COMPLETED, attempt=1)
        assert registry.get_job(first.job_id).retried_by == again.job_id

    @pytest.mark.parametrize(
        ("status", "ended_by"), [("completed", "agent"), ("error", "agent"), ("cancelled", "cancelled")]
    )
    def test_every_end_says_what_ended_the_job_and_why(self, registry, add, status, ended_by):
        job = add()
        assert (job.ended_by, job.reason) == (None, None)
        pick(registry)
        ended = registry.update_status(job.job_id, Status(status)).after
        assert ended.ended_by == ended_by
        assert ended.reason
        job = add()
        pick(registry)
        outcome = {"ended_by": "timeout", "reason": "정렬\nit took too long"}
        registry.update_status(job.job_id, Status(status), outcome=outcome)
        stored = registry.get_job(job.job_id)
        assert {name: getattr(stored, name) for name in outcome} == outcome

    def test_the_detail_of_the_last_event_is_the_reason(self, registry, add):
        said, silent = add(), add()
        registry.record_event(said.job_id, EventName.ERROR, detail="exit code 7")
        registry.record_event(silent.job_id, EventName.ERROR)
        assert (registry.get_job(said.job_id).ended_by, registry.get_job(said.job_id).reason) == (
            "agent",
            "exit code 7",
        )
        assert registry.get_job(silent.job_id).reason == "it was reported as an error, without a reason"

    def test_the_end_of_a_job_is_seen_once_and_nothing_else_changes(self, registry, add, clock):
        job = add()
        registry.mark_seen(job.job_id)
        assert registry.get_job(job.job_id) == job, "it has not ended"
        ended = registry.update_status(job.job_id, Status.CANCELLED).after
        clock.advance(5)
        registry.mark_seen(job.job_id)
        seen = registry.get_job(job.job_id)
        assert seen == ended.replace(seen_at=seen.seen_at)
        assert parse_time(seen.seen_at) > parse_time(ended.finished_at) + 4 * 10**9
        clock.advance(5)
        registry.mark_seen(job.job_id)
        assert registry.get_job(job.job_id) == seen
        with pytest.raises(JobNotFound):
            registry.mark_seen("deadbeef")

    def test_a_job_that_is_settled_as_not_ended_has_no_end(self, registry, add):
        job = add()
        registry.update_status(job.job_id, Status.CANCELLED, outcome={"reason": "too early"})
        for status in (Status.PENDING, Status.RUNNING):
            registry.settle(job.job_id, status, attempt=1, seq=0)
            stored = registry.get_job(job.job_id)
            assert (stored.finished_at, stored.ended_by, stored.reason, stored.seen_at) == (None,) * 4
        registry.settle(job.job_id, Status.ERROR, attempt=1, seq=0)
        assert registry.get_job(job.job_id).reason == "the user settled it by the audit log"

    def test_a_finished_job_has_no_lease(self, registry, add):
        job = add()
        pick(registry, lease_sec=LEASE)
        assert registry.update_status(job.job_id, Status.COMPLETED).after.lease_expires_at is None
        assert registry.expire_leases() == []


class TestAttempts:
    """The fence: what a holder that lost its job still tries to write is refused."""

    @pytest.fixture
    def lost(self, registry, add):
        """A job that its first holder lost to a second one."""
        job = add(max_attempts=9)
        first = pick(registry)
        registry.requeue(job.job_id)
        second = pick(registry)
        assert (first.attempt, second.attempt) == (1, 2)
        return first

    def test_every_write_of_the_old_holder_is_refused(self, registry, lost):
        before = registry.get_job(lost.job_id)
        for write in (
            lambda: registry.update_status(lost.job_id, Status.COMPLETED, attempt=1),
            lambda: registry.update_status(lost.job_id, Status.RUNNING, attempt=1),
            lambda: registry.requeue(lost.job_id, attempt=1),
            lambda: registry.renew_lease(lost.job_id, attempt=1, lease_sec=LEASE),
            lambda: registry.record_event(lost.job_id, EventName.PROGRESS, attempt=1),
            lambda: registry.next_seq(lost.job_id, attempt=1),
            lambda: registry.update_status(lost.job_id, Status.COMPLETED, attempt=3),
        ):
            with pytest.raises(StaleAttempt, match="stale attempt"):
                write()
        assert registry.get_job(lost.job_id) == before
        assert registry.events_after(lost.job_id) == []

    def test_the_new_holder_may_write(self, registry, lost):
        registry.renew_lease(lost.job_id, attempt=2, lease_sec=LEASE)
        registry.record_event(lost.job_id, EventName.STARTED, attempt=2)
        assert registry.update_status(lost.job_id, Status.COMPLETED, attempt=2).after.status is Status.COMPLETED

    def test_the_new_attempt_has_a_new_key(self, registry, lost):
        assert registry.get_job(lost.job_id).auth_token != lost.auth_token

    def test_a_holder_is_refused_while_its_job_waits_again(self, registry, add):
        job = add()
        pick(registry)
        registry.requeue(job.job_id)
        for write in (
            lambda: registry.update_status(job.job_id, Status.CANCELLED, attempt=1),
            lambda: registry.record_event(job.job_id, EventName.COMPLETED, attempt=1),
            lambda: registry.renew_lease(job.job_id, attempt=1, lease_sec=LEASE),
            lambda: registry.next_seq(job.job_id, attempt=1),
            lambda: registry.requeue(job.job_id, attempt=1),
        ):
            with pytest.raises(StaleAttempt):
                write()
        assert registry.get_job(job.job_id).status is Status.PENDING

    def test_a_job_without_a_key_gets_one_when_it_is_claimed(self, registry, clock, add):
        record = add().record() | ANOTHER | {"auth_token": None}
        registry.import_entries([Entry(job=Job.parse(record), events=())])
        pick(registry)
        assert pick(registry).auth_token

    def test_a_running_job_without_a_key_gets_one_with_its_first_event(self, registry, add):
        record = add().record() | ANOTHER | {"auth_token": None, "status": "running"}
        registry.import_entries([Entry(job=Job.parse(record), events=())])
        event = registry.record_event("abc12345", EventName.PROGRESS).event
        job = registry.get_job("abc12345")
        assert (job.attempt, event.attempt) == (1, 1)
        assert verify_event(event.payload, job.auth_token).seq == 1


class TestRequeue:
    def test_the_job_is_pending_again_and_nobodys(self, registry, add):
        job = add()
        claimed = pick(registry, lease_sec=LEASE)
        change = registry.requeue(job.job_id, attempt=1)
        assert change.before == claimed
        after = registry.get_job(job.job_id)
        assert after == change.after
        assert (after.status, after.attempt, after.claimed_by) == (Status.PENDING, 1, None)
        assert after.lease_expires_at is after.lease_mark is after.deadline_at is None

    def test_it_keeps_its_place(self, registry, add):
        first, _ = add(), add()
        pick(registry)
        registry.requeue(first.job_id)
        assert pick(registry).job_id == first.job_id

    def test_of_a_pending_job_is_nothing_to_do(self, registry, add):
        job = add()
        change = registry.requeue(job.job_id)
        assert change.before == change.after == job

    @pytest.mark.parametrize("status", ["completed", "error", "cancelled"])
    def test_of_a_finished_job_is_refused(self, registry, add, status):
        job = add()
        pick(registry)
        registry.update_status(job.job_id, Status(status))
        with pytest.raises(IllegalTransition) as refused:
            registry.requeue(job.job_id)
        assert refused.value.current == status


class TestLeases:
    def test_a_lease_that_runs_out_requeues_the_job(self, registry, add, clock):
        job = add(max_attempts=2)
        claimed = pick(registry, lease_sec=LEASE)
        assert claimed.lease_expires_at is not None
        clock.advance(LEASE - 1)
        assert registry.expire_leases() == []
        clock.advance(2)
        (change,) = registry.expire_leases()
        assert change.before == claimed
        assert change.after == registry.get_job(job.job_id)
        assert change.after.status is Status.PENDING
        assert pick(registry).attempt == 2

    def test_without_attempts_left_it_ends_as_error_with_an_event(self, registry, add, clock):
        job = add()
        pick(registry, lease_sec=LEASE)
        clock.advance(LEASE + 1)
        (change,) = registry.expire_leases()
        assert change.after.status is Status.ERROR
        assert "lease expired" in change.after.detail
        assert (change.after.ended_by, change.after.reason) == ("lost", change.after.detail)
        (event,) = registry.events_after(job.job_id)
        assert event.event is EventName.ERROR
        assert registry.expire_leases() == []

    def test_a_renewed_lease_lives_on(self, registry, add, clock):
        job = add()
        pick(registry, lease_sec=LEASE)
        for _ in range(5):
            clock.advance(LEASE - 1)
            renewed = registry.renew_lease(job.job_id, attempt=1, lease_sec=LEASE)
            assert renewed == registry.get_job(job.job_id)
        assert registry.expire_leases() == []
        clock.advance(LEASE + 1)
        assert len(registry.expire_leases()) == 1

    def test_a_claim_without_a_lease_never_runs_out(self, registry, add, clock):
        add()
        pick(registry)
        clock.advance(10**6)
        assert registry.expire_leases() == []

    def test_only_the_late_ones_are_taken_at_most_so_many(self, registry, add, clock):
        jobs = [add(max_attempts=2) for _ in range(5)]
        for _ in jobs[:4]:
            pick(registry, lease_sec=LEASE)
        pick(registry, lease_sec=10 * LEASE)
        clock.advance(LEASE + 1)
        assert len(registry.expire_leases(limit=3)) == 3
        assert len(registry.expire_leases(limit=3)) == 1
        assert registry.stats()["running"] == 1

    def test_expired_leases_are_read_without_a_change(self, registry, add, clock):
        again, last, lives = add(max_attempts=2), add(), add()
        for lease_sec in (LEASE, LEASE, 10 * LEASE):
            pick(registry, lease_sec=lease_sec)
        assert registry.expired_leases() == []
        clock.advance(LEASE + 1)
        clock.wall -= 86400 * 10**9  # the date has no part in it
        before = {job.job_id: registry.get_job(job.job_id) for job in (again, last, lives)}
        expired = {job.job_id: job for job in registry.expired_leases()}
        assert expired == {job.job_id: before[job.job_id] for job in (again, last)}
        assert expired_lease_error(expired[again.job_id]) is None
        assert "no attempts left" in expired_lease_error(expired[last.job_id])
        assert len(registry.expired_leases(limit=1)) == 1
        assert {job_id: registry.get_job(job_id) for job_id in before} == before
        assert {change.before.job_id for change in registry.expire_leases()} == set(expired)
        assert registry.expired_leases() == []

    def test_records_that_do_not_fit_block_nobody(self, registry, add, clock, url):
        first, second, good = (add(max_attempts=2) for _ in range(3))
        for _ in range(3):
            pick(registry, lease_sec=LEASE)
            clock.advance(1)
        spoil(url, first.job_id)
        spoil(url, second.job_id)
        clock.advance(LEASE + 1)
        assert [change.after.job_id for change in registry.expire_leases(limit=1)] == [good.job_id]
        assert registry.expire_leases(limit=1) == []
        assert {error.job_id for error in registry.list_jobs().bad} == {first.job_id, second.job_id}

    def test_the_holder_notes_its_worktree(self, registry, add):
        job = add(worktree={"repository": "/r", "base": None}, checkout={"base": "c0ffee"}, workdir="/r/part")
        assert registry.get_job(job.job_id).folder == "/r/part"
        pick(registry, lease_sec=LEASE)
        made = {"base": "c0ffee", "job": job.job_id, "attempt": 1, "path": "/trees/one", "branch": "baton/one"}
        registry.set_checkout(job.job_id, made, attempt=1)
        found = registry.get_job(job.job_id)
        assert (found.checkout, found.folder) == (made, "/trees/one/part")
        registry.requeue(job.job_id)
        with pytest.raises(StaleAttempt):
            registry.set_checkout(job.job_id, made, attempt=1)

    def test_a_finished_job_cannot_be_renewed(self, registry, add):
        job = add()
        pick(registry, lease_sec=LEASE)
        registry.update_status(job.job_id, Status.COMPLETED)
        with pytest.raises(StaleAttempt):
            registry.renew_lease(job.job_id, attempt=1, lease_sec=LEASE)


class TestEvents:
    def test_an_event_for_a_pending_job_claims_it(self, registry, add):
        job = add()
        recorded = registry.record_event(job.job_id, EventName.STARTED, detail="here we go", holder="pane:1")
        after = registry.get_job(job.job_id)
        assert (recorded.before, recorded.after) == (job, after)
        assert (after.status, after.attempt, after.claimed_by) == (Status.RUNNING, 1, "pane:1")
        assert (after.last_seq, after.detail) == (1, "here we go")
        assert pick(registry) is None

    def test_numbers_rise_from_one(self, registry, add):
        job = add()
        names = [EventName.STARTED, EventName.PROGRESS, EventName.PERMISSION_REQUIRED, EventName.COMPLETED]
        recorded = [registry.record_event(job.job_id, name, detail=f"d{i}").event for i, name in enumerate(names)]
        assert [event.seq for event in recorded] == [1, 2, 3, 4]
        assert registry.events_after(job.job_id) == recorded
        assert registry.events_after(job.job_id, 2) == recorded[2:]
        assert registry.events_after(job.job_id, 0, limit=1) == recorded[:1]
        assert registry.get_job(job.job_id).status is Status.COMPLETED

    def test_the_payload_is_the_signed_event(self, registry, add):
        from baton.wire.payload import signature

        job = add()
        event = registry.record_event(job.job_id, EventName.PROGRESS, detail="δ", data={"n": 1, "f": 0.5}).event
        payload = json.loads(event.payload)
        assert list(payload) == sorted(payload)
        assert payload["data"].pop("hmac_sig") == signature(payload, job.auth_token)
        assert payload.pop("timestamp").endswith("Z")
        assert payload == {
            "schema_version": 1,
            "seq": 1,
            "job_id": job.job_id,
            "event": "progress",
            "detail": "δ",
            "data": {"n": 1, "f": 0.5, "attempt": 1},
        }

    @pytest.mark.parametrize("status", ["completed", "error", "cancelled"])
    @pytest.mark.parametrize("event", list(EventName))
    def test_after_the_end_nothing_changes(self, registry, add, status, event):
        job = add()
        pick(registry)
        registry.update_status(job.job_id, Status(status))
        before = registry.get_job(job.job_id)
        with pytest.raises(EventRefused, match=status):
            registry.record_event(job.job_id, event)
        with pytest.raises(EventRefused):
            registry.next_seq(job.job_id)
        assert registry.get_job(job.job_id) == before
        assert registry.events_after(job.job_id) == []

    def test_an_attempt_starts_once(self, registry, add):
        job = add()
        registry.record_event(job.job_id, EventName.STARTED)
        with pytest.raises(EventRefused, match="started"):
            registry.record_event(job.job_id, EventName.STARTED)
        registry.requeue(job.job_id)
        pick(registry)
        assert registry.record_event(job.job_id, EventName.STARTED).event.seq == 2

    def test_a_requeued_job_waits_for_its_next_pick(self, registry, add):
        job = add()
        registry.record_event(job.job_id, EventName.STARTED)
        registry.requeue(job.job_id)
        with pytest.raises(EventRefused, match="picked again"):
            registry.record_event(job.job_id, EventName.PROGRESS)

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"detail": "x" * 5000}, "detail"),
            ({"detail": 7}, "detail"),
            ({"detail": "\ud800"}, "detail"),
            ({"detail": "a\0b"}, "detail"),
            ({"data": {"hmac_sig": "x"}}, "hmac_sig"),
            ({"data": {"auth_token": "x"}}, "auth_token"),
            ({"data": {"attempt": 9}}, "attempt"),
            ({"data": {"x": float("nan")}}, "data"),
            ({"data": {"x": 2**60}}, "data"),
            ({"data": {"x": object()}}, "data"),
            ({"data": {"x": "y" * 70000}}, "event"),
        ],
    )
    def test_an_event_that_cannot_be_sent_is_refused(self, registry, add, arguments, field):
        job = add()
        with pytest.raises(InvalidValue, match=field):
            registry.record_event(job.job_id, EventName.PROGRESS, **arguments)
        assert registry.get_job(job.job_id) == job

    def test_next_seq_leaves_a_gap(self, registry, add):
        job = add()
        assert registry.record_event(job.job_id, EventName.STARTED).event.seq == 1
        assert [registry.next_seq(job.job_id), registry.next_seq(job.job_id)] == [2, 3]
        assert registry.record_event(job.job_id, EventName.PROGRESS).event.seq == 4
        assert [event.seq for event in registry.events_after(job.job_id)] == [1, 4]

    def test_events_are_unsent_until_marked(self, registry, add):
        jobs = [add(), add()]
        for event in (EventName.STARTED, EventName.PROGRESS):
            for job in jobs:
                registry.record_event(job.job_id, event)
        for job in jobs:
            assert [event.seq for event in registry.unsent_events(job_id=job.job_id)] == [1, 2]
        assert len(registry.unsent_events()) == registry.stats()["unsent"] == 4
        assert len(registry.unsent_events(limit=3)) == 3
        registry.mark_sent(jobs[0].job_id, [1])
        registry.mark_sent(jobs[0].job_id, [1, 7])
        registry.mark_sent("deadbeef", [1])
        assert [event.sent for event in registry.events_after(jobs[0].job_id)] == [True, False]
        assert [event.seq for event in registry.unsent_events(job_id=jobs[0].job_id)] == [2]
        registry.mark_sent(jobs[0].job_id, [2])
        assert {event.job_id for event in registry.unsent_events()} == {jobs[1].job_id}

    def test_unsent_events_of_one_broker(self, registry, add):
        here = [add(broker={"host": "here", "port": 1}) for _ in range(2)]
        there = [add(broker={"host": "there", "port": 1}) for _ in range(3)]
        for job in (*there, *here):
            registry.record_event(job.job_id, EventName.STARTED)
        found = registry.unsent_events(broker=here[0].broker, limit=2)
        assert {event.job_id for event in found} == {job.job_id for job in here}
        assert registry.unsent_events(broker=add().broker) == []

    def test_a_registry_without_events_has_none(self, registry, add):
        assert registry.unsent_events() == []
        assert registry.events_after(add().job_id) == []


class TestResults:
    TEXT = "line 1\n  정렬\x00\x1b[31m\u202e \udcff 'quoted'; DROP TABLE results; --\n"

    def end(self, registry, add, **more):
        job = add()
        registry.record_event(job.job_id, EventName.COMPLETED, result=Result(**({"message": self.TEXT} | more)))
        return job

    def test_a_result_is_read_back_as_it_was(self, registry, add):
        job = self.end(registry, add, validation="1 failed", extra={"later": [1]})
        found = registry.get_result(job.job_id)
        assert found == Result(message=self.TEXT, validation="1 failed", attempt=1, extra={"later": [1]})

    def test_a_megabyte_is_kept_whole(self, registry, add):
        text = "é\n" * 333_333
        assert registry.get_result(self.end(registry, add, message=text).job_id).message == text

    def test_a_job_without_a_result_has_none(self, registry, add):
        running, ended = add(), add()
        registry.record_event(running.job_id, EventName.STARTED, result=Result(message="too early"))
        registry.update_status(ended.job_id, Status.CANCELLED)
        assert registry.get_result(running.job_id) is registry.get_result(ended.job_id) is None
        with pytest.raises(JobNotFound):
            registry.get_result("abc12345")

    def test_a_refused_end_keeps_no_result(self, registry, add):
        job = self.end(registry, add)
        with pytest.raises(EventRefused):
            registry.record_event(job.job_id, EventName.ERROR, result=Result(message="late"))
        assert registry.get_result(job.job_id).message == self.TEXT

    def test_a_status_that_a_user_sets_has_a_result_too(self, registry, add):
        job = add()
        registry.record_event(job.job_id, EventName.STARTED)
        registry.update_status(job.job_id, Status.COMPLETED, result=Result(validation="ok"))
        registry.update_status(job.job_id, Status.COMPLETED, result=Result(validation="again"))
        assert registry.get_result(job.job_id) == Result(validation="ok", attempt=1)

    def test_a_message_that_comes_after_the_end_replaces_the_earlier_one(self, registry, add):
        job, other = self.end(registry, add, validation="ok"), add()
        registry.add_message(job.job_id, "the whole answer", attempt=2)
        assert registry.get_result(job.job_id).message == self.TEXT
        registry.add_message(job.job_id, "the whole answer", attempt=1)
        assert registry.get_result(job.job_id) == Result(message="the whole answer", validation="ok", attempt=1)
        registry.update_status(other.job_id, Status.CANCELLED)
        registry.add_message(other.job_id, "too late", attempt=0)
        assert registry.get_result(other.job_id) is None

    def test_the_result_of_an_earlier_attempt_is_not_the_jobs(self, registry, add):
        job = self.end(registry, add)
        registry.settle(job.job_id, Status.PENDING, attempt=1, seq=1)
        registry.pick_job(job.job_id, holder="me")
        assert registry.get_result(job.job_id) is None
        registry.update_status(job.job_id, Status.CANCELLED)
        assert registry.get_result(job.job_id) is None

    def test_it_is_exported_and_imported(self, registry, add, clock):
        job = self.end(registry, add)
        (entry,) = registry.export()
        assert entry.result == Result(message=self.TEXT, attempt=1)
        registry.mark_sent(job.job_id, [1])
        clock.advance(10)
        registry.prune(clock.wall_ns())
        registry.import_entries([entry.replace(result=None)])
        assert registry.get_result(job.job_id) is None, "prune has left it"
        registry.import_entries([entry])
        assert list(registry.export()) == [entry]

    def test_large_results_are_exported_and_imported_in_parts(self, registry, add, monkeypatch):
        jobs = [self.end(registry, add), add(), self.end(registry, add), add(), add()]
        monkeypatch.setattr("baton.registry.entries._BATCH_BYTES", 10)
        entries = list(registry.export())
        assert [entry.job.job_id for entry in entries] == [job.job_id for job in jobs]
        registry.import_entries(entries)
        assert list(registry.export()) == entries

    def test_an_invalid_result_is_named(self, registry, add):
        job = self.end(registry, add)
        spoil(registry.url, job.job_id, result=True)
        with pytest.raises(InvalidRecord, match="result"):
            registry.get_result(job.job_id)
        assert isinstance(next(iter(registry.export())), InvalidRecord)
        assert registry.get_job(job.job_id).status is Status.COMPLETED


class TestListing:
    def test_nothing_registered(self, registry):
        page = registry.list_jobs()
        assert (page.jobs, page.bad, page.next) == ([], [], None)
        assert set(registry.stats().values()) == {0}

    def test_newest_first_in_pages_that_do_not_shift(self, registry, add):
        jobs = [add() for _ in range(7)]
        seen, after = [], None
        for expected in (3, 3, 1):
            page = registry.list_jobs(limit=3, after=after)
            assert len(page.jobs) == expected
            seen += page.jobs
            after = page.next
            add("registered meanwhile")
        assert after is None
        assert seen == jobs[::-1]

    def test_what_a_holder_has_left_since(self, registry, add, clock):
        old, new, earlier, unheard = add(), add(), add(), add()
        registry.record_event(earlier.job_id, EventName.ERROR)
        registry.record_event(new.job_id, EventName.STARTED)
        clock.advance(1)
        since_ns = clock.wall_ns()

        def ids(**conditions):
            return [job.job_id for job in registry.list_jobs(JobFilter(left_from_ns=since_ns, **conditions)).jobs]

        assert ids() == []
        registry.record_event(old.job_id, EventName.STARTED)
        registry.update_status(unheard.job_id, Status.CANCELLED)
        assert ids() == []  # one that runs, and one without events
        registry.requeue(old.job_id)
        assert ids() == [old.job_id]
        registry.update_status(new.job_id, Status.CANCELLED)
        assert ids() == [new.job_id, old.job_id]
        assert ids(statuses=[Status.CANCELLED]) == [new.job_id]

    def test_filters(self, registry, add, clock):
        old = add(agent="codex", agent_session="tmux:codex")
        clock.advance(1000)
        middle_ns = clock.wall_ns()
        clock.advance(1000)
        new = add()
        claimed = pick(registry)
        assert claimed.job_id == new.job_id

        def ids(**conditions):
            return [job.job_id for job in registry.list_jobs(JobFilter(**conditions)).jobs]

        assert ids() == [new.job_id, old.job_id]
        assert ids(statuses=[Status.RUNNING]) == [new.job_id]
        assert ids(statuses=[Status.RUNNING, Status.PENDING]) == [new.job_id, old.job_id]
        assert ids(agent="codex") == ids(agent_session="tmux:codex") == [old.job_id]
        assert ids(created_from_ns=middle_ns) == [new.job_id]
        assert ids(created_until_ns=middle_ns) == [old.job_id]
        assert ids(agent="codex", statuses=[Status.RUNNING]) == []

    def test_only_jobs_with_a_submitter(self, registry, add):
        add()
        add(labels=["submitter"])
        record = add().record() | ANOTHER | {"x_new": {"submitter": "not this one"}}
        registry.import_entries([Entry(job=Job.parse(record), events=())])
        job = add(submitter="host:12:345")
        listed = registry.list_jobs(JobFilter(submitted=True, statuses=[Status.PENDING])).jobs
        assert [each.job_id for each in listed] == [job.job_id]
        registry.clear_submitter(job.job_id)
        assert registry.list_jobs(JobFilter(submitted=True)).jobs == []

    def test_only_jobs_with_a_label(self, registry, add):
        def ids(label):
            listed = registry.list_jobs(JobFilter(label=label)).jobs
            outlined = registry.list_outlines(JobFilter(label=label)).jobs
            assert [job.job_id for job in listed] == [job.job_id for job in outlined]
            return [job.job_id for job in listed]

        one, two = add(labels=["release", "b%"]), add(labels=['a"release"', "日本", "x\\"])
        add()
        assert ids("release") == [one.job_id]
        assert ids("b%") == [one.job_id]
        assert ids("日本") == ids("x\\") == [two.job_id]
        assert ids("rel") == ids("Release") == ids("b_") == ids("") == []

    def test_only_ends_that_the_user_has_not_seen(self, registry, add):
        def unseen(**more):
            return [job.job_id for job in registry.list_jobs(JobFilter(unseen=True, **more)).jobs]

        pending, completed, failed, cancelled = (add() for _ in range(4))
        registry.record_event(completed.job_id, EventName.COMPLETED)
        registry.record_event(failed.job_id, EventName.ERROR, detail="no")
        registry.update_status(cancelled.job_id, Status.CANCELLED)
        assert unseen() == [failed.job_id, completed.job_id]
        assert unseen(statuses=[Status.ERROR]) == [failed.job_id]
        shown = {job.job_id: job.seen for job in registry.list_outlines().jobs}
        assert shown == {pending.job_id: True, completed.job_id: False, failed.job_id: False, cancelled.job_id: True}
        seen = {"seen_at": "2026-06-19T09:30:00Z"}
        registry._change(failed.job_id, lambda job, _now: job.replace(**seen))
        assert unseen() == [completed.job_id]

    def test_an_outline_says_the_same_as_the_record(self, registry, add):
        add("long " * 1000, labels=["a", "b"], title="Title")
        running, waiting, again, silent = (add(agent_session=f"q{number}") for number in range(4))
        for job in (running, waiting, again):
            registry.record_event(job.job_id, EventName.STARTED)
        registry.record_event(waiting.job_id, EventName.PERMISSION_REQUIRED, detail="may I?")
        registry.requeue(again.job_id)
        registry.pick_job(again.job_id, holder="me", lease_sec=5)
        registry.pick_job(silent.job_id, holder="me")
        outcome = {"reason": "why", "ended_by": "agent"}
        registry.record_event(add().job_id, EventName.ERROR, detail="no", outcome=outcome)
        page, outlines = registry.list_jobs(), registry.list_outlines()
        events = {running.job_id: EventName.STARTED, waiting.job_id: EventName.PERMISSION_REQUIRED}
        assert outlines.jobs == [Outline.of(job, events.get(job.job_id)) for job in page.jobs]
        assert outlines.next is None
        first = registry.list_outlines(limit=2)
        assert first.jobs == outlines.jobs[:2]
        assert registry.list_outlines(limit=9, after=first.next).jobs == outlines.jobs[2:]

    @pytest.mark.parametrize("bad", ["x", "1", "1-", "-abc12345", "1-../../x"])
    def test_a_cursor_that_is_none_is_refused(self, registry, bad):
        with pytest.raises(InvalidValue, match="cursor"):
            registry.list_jobs(after=bad)

    def test_a_limit_below_one_is_refused(self, registry):
        with pytest.raises(InvalidValue, match="limit"):
            registry.list_jobs(limit=0)

    def test_stats_count_by_status(self, registry, add):
        for _ in range(4):
            add()
        pick(registry)
        registry.update_status(pick(registry).job_id, Status.COMPLETED)
        assert registry.stats() == {
            "pending": 2,
            "running": 1,
            "completed": 1,
            "error": 0,
            "cancelled": 0,
            "unsent": 0,
        }


class TestNotifications:
    WISH = Wish(user="ana@desk", kinds=frozenset({"failed", "completed"}))

    def due(self, registry):
        return [due for job in registry.list_jobs(JobFilter(notify_due=True)).jobs for due in due_to(job, "ana@desk")]

    def claim(self, registry, due, sender, dead=()):
        def decide(job):
            return notification.claim(job, key=due.key, sender=sender, is_dead=dead.__contains__)

        change = registry.change_notifications(due.job.job_id, decide)
        return change.before != change.after

    def settle(self, registry, due, sender, done=(), failed=False):
        def decide(job):
            return notification.settle(job, key=due.key, sender=sender, done=done, failed=failed)

        registry.change_notifications(due.job.job_id, decide)

    def test_an_end_that_a_user_wants_to_know_of_is_due_with_it(self, registry, add, clock):
        registry.wish = self.WISH
        failed, completed, cancelled, lost, running = (add() for _ in range(5))
        registry.record_event(failed.job_id, EventName.ERROR)
        registry.record_event(completed.job_id, EventName.STARTED)
        registry.update_status(completed.job_id, Status.COMPLETED)
        registry.update_status(cancelled.job_id, Status.CANCELLED)
        registry.pick_job(lost.job_id, holder="x", lease_sec=LEASE)
        registry.pick_job(running.job_id, holder="x")
        clock.advance(LEASE + 1)
        registry.expire_leases()
        found = {due.id: due.kind for due in self.due(registry)}
        assert found == {
            f"{failed.job_id}:1:failed": "failed",
            f"{completed.job_id}:1:completed": "completed",
            f"{lost.job_id}:1:failed": "failed",
        }
        (one,) = due_to(registry.get_job(failed.job_id), "ana@desk")
        assert due_to(one.job, "bob@desk") == []

    def test_without_a_wish_none_is_due(self, registry, add):
        registry.wish = self.WISH.replace(kinds=frozenset({"waiting"}))
        registry.record_event(add().job_id, EventName.ERROR)
        registry.wish = None
        registry.record_event(add().job_id, EventName.ERROR)
        assert self.due(registry) == []

    def test_one_process_sends_it_and_the_next_only_if_that_has_died(self, registry, add):
        registry.wish = self.WISH
        registry.record_event(add().job_id, EventName.ERROR)
        (due,) = self.due(registry)
        ended = due.job.updated_at

        def claim(sender, dead=()):
            return self.claim(registry, due, sender, dead)

        assert claim("1/1")
        assert not claim("2/2")
        assert claim("2/2", dead=("1/1",))
        self.settle(registry, due, "1/1")
        assert len(self.due(registry)) == 1, "another process sends it now"
        assert registry.get_job(due.job.job_id).updated_at == ended
        self.settle(registry, due, "2/2")
        assert self.due(registry) == []
        assert not claim("3/3")
        assert registry.get_job(due.job.job_id).notify_due == {}

    def test_one_that_fails_stays_due_a_few_times(self, registry, add):
        registry.wish = self.WISH
        registry.record_event(add().job_id, EventName.ERROR)
        for tries in range(5):
            (due,) = self.due(registry)
            assert (due.tries, due.done) == (tries, frozenset({"bell"} if tries else ()))
            assert self.claim(registry, due, "1/1")
            self.settle(registry, due, "1/1", done=["bell"], failed=True)
        assert self.due(registry) == []


class TestPruning:
    def test_only_old_finished_jobs_whose_events_were_sent_go(self, registry, add, clock):
        done, unsent, waiting = add(), add(), add()
        for job in (done, unsent):
            registry.record_event(job.job_id, EventName.COMPLETED)
        registry.mark_sent(done.job_id, [1])
        clock.advance(1000)
        late = add()
        registry.update_status(late.job_id, Status.CANCELLED)
        before_ns = clock.wall_ns() - 500 * 10**9
        assert registry.prunable(before_ns) == [done.job_id]
        assert registry.prune(before_ns) == [done.job_id]
        assert registry.prune(before_ns) == []
        with pytest.raises(JobNotFound):
            registry.get_job(done.job_id)
        assert registry.stats()["unsent"] == 1
        for job in (unsent, waiting, late):
            registry.get_job(job.job_id)

    def test_at_most_so_many(self, registry, add, clock):
        for _ in range(5):
            registry.update_status(add().job_id, Status.CANCELLED)
        clock.advance(10)
        assert len(registry.prune(clock.wall_ns(), limit=2)) == 2
        assert len(registry.prune(clock.wall_ns(), limit=9)) == 3


class TestUnknownFields:
    def test_they_are_kept_through_every_change(self, registry, add):
        record = add().record() | ANOTHER | {"x_new": {"deep": [1, None]}, "other": "kept"}
        registry.import_entries([Entry(job=Job.parse(record), events=())])
        registry.record_event("abc12345", EventName.STARTED)
        registry.update_status("abc12345", Status.ERROR)
        assert registry.get_job("abc12345").extra == {"x_new": {"deep": [1, None]}, "other": "kept"}


def test_export_gives_everything_oldest_first(registry, add, clock):
    jobs = [add() for _ in range(3)]
    registry.record_event(jobs[1].job_id, EventName.STARTED)
    registry.mark_sent(jobs[1].job_id, [1])
    entries = list(registry.export())
    assert [entry.job for entry in entries] == [registry.get_job(job.job_id) for job in jobs]
    assert [[event.sent for event in entry.events] for entry in entries] == [[], [True], []]


def test_a_closed_registry_opens_again(registry, add):
    job = add()
    registry.close()
    registry.close()
    assert registry.get_job(job.job_id) == job


def test_times_are_kept_to_the_nanosecond(registry):
    moment = 1_781_861_400 * 10**9 + 123_456_789
    job = registry.register_job(new_job("x", now_ns=moment, agent="x"))
    assert registry.get_job(job.job_id).created_at == format_time(moment) == "2026-06-19T09:30:00.123456789Z"
