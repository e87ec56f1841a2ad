"""What every registry must do with jobs that come after others, or not before a time, and with errors that are retried.
Each test runs on each backend."""

from __future__ import annotations

import json

import pytest

from baton.core.clock import format_time, parse_time
from baton.core.drafts import new_job
from baton.core.errors import InvalidValue, JobBlocked, JobNotFound
from baton.core.event import EventName
from baton.core.job import Job, Status
from baton.core.lifecycle import expired_lease_error
from baton.registry.contract import JobFilter
from support.backends import clocked_registry, spoil

QUEUE = "tmux:claude"
LEASE = 30.0


@pytest.fixture
def draft(clock):
    def build(prompt="do it", **fields) -> Job:
        return new_job(prompt, now_ns=clock.wall_ns(), **({"agent": "claude-code", "agent_session": QUEUE} | fields))

    return build


@pytest.fixture
def add(registry, draft):
    return lambda *args, **fields: registry.register_job(draft(*args, **fields))


@pytest.fixture
def soon(registry):
    """A time so many seconds from now, by the registry's clock."""
    return lambda seconds: format_time(registry._present_ns() + int(seconds * 10**9))


def pick(registry, **more):
    change = registry.pick_pending(QUEUE, **({"holder": "me"} | more))
    return change and change.after


def end(registry, job, event=EventName.COMPLETED, **more):
    return registry.record_event(job.job_id, event, **more).after


class TestAfter:
    def test_a_job_is_picked_when_all_its_predecessors_are_completed(self, registry, add):
        first, second = add("1"), add("2")
        last = add("3", after=[first.job_id, second.job_id], priority=9)
        assert last.waits_for == (first.job_id, second.job_id)
        assert [pick(registry).prompt, pick(registry).prompt, pick(registry)] == ["1", "2", None]
        end(registry, second)
        assert registry.get_job(last.job_id).waits_for == (first.job_id,)
        assert pick(registry) is None
        end(registry, first)
        assert pick(registry).prompt == "3"

    def test_a_chain_is_done_in_its_order(self, registry, add):
        jobs = [add("0")]
        for number in range(1, 6):
            jobs.append(add(str(number), after=[jobs[-1].job_id], priority=number))
        done = []
        while (job := pick(registry)) is not None:
            done.append(job.prompt)
            assert pick(registry) is None
            end(registry, job)
        assert done == ["0", "1", "2", "3", "4", "5"]

    def test_a_completed_predecessor_is_not_waited_for(self, registry, add):
        first = add()
        end(registry, first)
        assert add(after=[first.job_id]).waits_for == ()

    @pytest.mark.parametrize("how", ["picked", "claimed", "set", "published"])
    def test_every_claim_of_a_blocked_job_is_refused(self, registry, add, how):
        blocked = add(after=[add(agent_session="other").job_id])
        verbs = {
            "claimed": lambda: registry.pick_job(blocked.job_id, holder="me"),
            "set": lambda: registry.update_status(blocked.job_id, Status.RUNNING),
            "published": lambda: registry.record_event(blocked.job_id, EventName.STARTED),
        }
        if how == "picked":
            assert pick(registry) is None
        else:
            with pytest.raises(JobBlocked, match=f"after {blocked.after[0]}"):
                verbs[how]()
        assert registry.get_job(blocked.job_id) == blocked

    @pytest.mark.parametrize("bad_end", ["error", "cancelled"])
    def test_a_predecessor_that_fails_ends_all_after_it(self, registry, add, bad_end):
        first = add("1")
        second = add("2", after=[first.job_id])
        third = add("3", after=[second.job_id, add("4").job_id])
        if bad_end == "error":
            end(registry, first, EventName.ERROR)
        else:
            registry.update_status(first.job_id, Status.CANCELLED)
        for job, before in ((second, first), (third, second)):
            ended = registry.get_job(job.job_id)
            assert (ended.status, ended.ended_by, ended.attempt) == (Status.ERROR, "predecessor", 1)
            assert before.job_id in ended.reason
            (event,) = registry.events_after(job.job_id)
            assert (event.event, event.seq) == (EventName.ERROR, 1)
            assert json.loads(event.payload)["data"]["predecessor"] == before.job_id
        assert pick(registry).prompt == "4"

    def test_also_a_predecessor_that_has_failed_before(self, registry, add):
        first = add()
        end(registry, first, EventName.ERROR)
        late = add(after=[first.job_id])
        assert (late.status, late.ended_by) == (Status.ERROR, "predecessor")
        later = add(after=[late.job_id])
        assert (later.status, later.ended_by) == (Status.ERROR, "predecessor")

    def test_a_completion_that_nobody_verified_does_not_count(self, registry, add):
        checked, skipped, unproven = (add(validate="true") for _ in range(3))
        end(registry, checked, outcome={"verified_by": ("validate",)})
        end(registry, skipped, outcome={"unverified": "me@here"})
        end(registry, unproven)
        assert add(after=[checked.job_id, skipped.job_id]).waits_for == ()
        assert add(after=[unproven.job_id]).ended_by == "predecessor"

    def test_many_followers_go_on_in_steps_and_none_is_left(self, registry, draft):
        first = registry.register_job(draft("first", agent_session="other"))
        registry.register_many([draft(str(number), after=[first.job_id]) for number in range(230)])
        end(registry, first)
        while registry.advance_waiting():
            pass
        assert sum(pick(registry) is not None for _ in range(231)) == 230
        assert registry.get_job(first.job_id).look_at is None

    def test_a_long_chain_that_fails_ends_in_bounded_steps(self, registry, draft):
        drafts = [draft("0")]
        for number in range(1, 60):
            drafts.append(draft(str(number), after=[drafts[-1].job_id]))
        jobs = registry.register_many(drafts)
        end(registry, jobs[0], EventName.ERROR)
        assert registry.stats()["pending"] > 0  # one verb ends not all of them
        assert pick(registry) is None
        while registry.advance_waiting():
            pass
        assert registry.stats()["error"] == 60

    def test_an_end_whose_process_died_is_found_by_the_next_claim(self, registry, url, clock, add, monkeypatch):
        first = add("1")
        add("2", after=[first.job_id])
        monkeypatch.setattr(type(registry), "_advance_after", lambda self, job: None)
        end(registry, first)
        monkeypatch.undo()
        other = clocked_registry(url, clock)
        try:
            assert pick(other).prompt == "2"
        finally:
            other.close()

    def test_a_cancelled_follower_waits_for_nothing(self, registry, add):
        first = add()
        follower = add(after=[first.job_id])
        registry.update_status(follower.job_id, Status.CANCELLED)
        end(registry, first)
        assert registry.get_job(follower.job_id).status is Status.CANCELLED
        assert registry.get_job(first.job_id).look_at is None

    def test_a_requeued_job_does_not_wait_again(self, registry, add):
        first = add("1")
        add("2", after=[first.job_id])
        end(registry, first)
        registry.requeue(pick(registry).job_id)
        assert pick(registry).prompt == "2"

    def test_a_submitter_starts_its_job_when_it_is_free(self, registry, add):
        first = add()
        second = add(after=[first.job_id], submitter="h:1:2")
        free = JobFilter(statuses=[Status.PENDING], submitted=True, free=True)
        assert registry.list_jobs(free).jobs == []
        end(registry, first)
        assert [job.job_id for job in registry.list_jobs(free)] == [second.job_id]
        assert registry.pick_job(second.job_id, holder="me").after.attempt == 1

    def test_a_spoiled_follower_does_not_keep_others_back_and_goes_on_when_mended(self, registry, url, add):
        first = add("1")
        spoiled, good = (add(name, after=[first.job_id]) for name in ("spoiled", "good"))
        spoil(url, spoiled.job_id)
        end(registry, first)
        assert pick(registry).job_id == good.job_id
        spoil(url, spoiled.job_id, mend=True)
        registry.advance_stranded()
        assert pick(registry).job_id == spoiled.job_id

    def test_a_predecessor_that_is_gone_ends_the_job(self, registry, add):
        first = add()
        follower = add(after=[first.job_id])
        with registry._writing() as tx:
            tx.remove(first.job_id)
        registry.advance_stranded()
        ended = registry.get_job(follower.job_id)
        assert (ended.status, ended.ended_by) == (Status.ERROR, "predecessor")
        assert first.job_id in ended.reason

    def test_nothing_is_stranded_in_good_order(self, registry, add):
        first = add()
        add(after=[first.job_id])
        assert registry.advance_stranded() == []


class TestBatches:
    def test_jobs_of_a_batch_come_after_each_other_in_any_order(self, registry, draft):
        first, second, third = draft("1"), draft("2"), draft("3")
        batch = [
            third.replace(after=(second.job_id, first.job_id)),
            second.replace(after=(first.job_id,)),
            first,
        ]
        registered = registry.register_many(batch)
        assert [job.prompt for job in registered] == ["3", "2", "1"]
        done = []
        while (job := pick(registry)) is not None:
            done.append(job.prompt)
            end(registry, job)
        assert done == ["1", "2", "3"]

    def test_a_taken_id_is_followed(self, registry, draft):
        taken = registry.register_job(draft("taken", agent_session="other"))
        first = draft("1").replace(job_id=taken.job_id, topic_prefix=taken.topic_prefix)
        first, second = registry.register_many([first, draft("2", after=[first.job_id])])
        assert second.after == second.waits_for == (first.job_id,)
        assert first.job_id != taken.job_id

    def test_a_known_key_is_followed(self, registry, draft):
        known = registry.register_job(draft("1", idempotency_key="k"))
        again = draft("1", idempotency_key="k")
        follower = draft("2", after=[again.job_id], idempotency_key="f")
        first, second = registry.register_many([again, follower])
        assert first.job_id == known.job_id
        assert second.after == (known.job_id,)
        again = draft("1", idempotency_key="k")
        assert registry.register_many([again, draft("2", after=[again.job_id], idempotency_key="f")])[1] == second
        end(registry, known)
        assert pick(registry).prompt == "2"

    def test_a_circle_is_refused_and_nothing_is_registered(self, registry, draft):
        first, second = draft("1", title="a"), draft("2", title="b")
        for batch in (
            [first.replace(after=(second.job_id,)), second.replace(after=(first.job_id,))],
            [first.replace(after=(first.job_id,))],
        ):
            with pytest.raises(InvalidValue, match="circle"):
                registry.register_many([draft("0"), *batch])
        assert registry.stats()["pending"] == 0

    def test_an_unknown_predecessor_is_refused_and_nothing_is_registered(self, registry, draft):
        with pytest.raises(JobNotFound, match="deadbeef"):
            registry.register_many([draft("0"), draft("1", after=["deadbeef"])])
        assert registry.stats()["pending"] == 0


class TestTimes:
    def test_a_job_is_picked_when_its_time_has_come(self, registry, clock, add, soon):
        add("later", not_before=soon(60), priority=9)
        add("now")
        assert [pick(registry).prompt, pick(registry)] == ["now", None]
        add("now too")
        clock.advance(61)
        assert [pick(registry).prompt, pick(registry).prompt] == ["later", "now too"]

    def test_a_time_in_the_past_does_not_matter(self, registry, add, soon):
        job = add(not_before=soon(-60))
        assert not job.is_blocked
        assert pick(registry).job_id == job.job_id

    def test_a_time_and_a_predecessor_both_count(self, registry, clock, add, soon):
        first = add("1")
        last = add("2", after=[first.job_id], not_before=soon(60))
        end(registry, first)
        assert pick(registry) is None
        with pytest.raises(JobBlocked, match="not before"):
            registry.pick_job(last.job_id, holder="me")
        clock.advance(61)
        assert registry.pick_job(last.job_id, holder="me").after.attempt == 1

    def test_a_requeued_job_may_get_a_time(self, registry, clock, add):
        job = add()
        pick(registry)
        registry.requeue(job.job_id, attempt=1, not_before_ns=registry._present_ns() + 60 * 10**9)
        assert pick(registry) is None
        clock.advance(61)
        assert pick(registry).attempt == 2


class TestRetries:
    def test_an_error_is_final_after_the_last_retry(self, registry, add):
        job = add(retries=2)
        for attempt in (1, 2):
            assert pick(registry).attempt == attempt
            recorded = registry.record_event(job.job_id, EventName.ERROR, detail="no", attempt=attempt)
            assert (recorded.event.event, recorded.after.status) == (EventName.PROGRESS, Status.PENDING)
            data = json.loads(recorded.event.payload)["data"]
            assert (data["attempt_failed"], data["retries_left"]) == (attempt, 2 - attempt)
            assert recorded.after.ended_by is recorded.after.finished_at is recorded.after.claimed_by is None
        assert pick(registry).attempt == 3
        assert end(registry, job, EventName.ERROR, attempt=3).status is Status.ERROR
        assert [event.event.value for event in registry.events_after(job.job_id)] == ["progress", "progress", "error"]

    def test_the_pause_grows(self, registry, clock, add):
        job = add(retries=2, backoff_sec=60)
        for pause in (60, 120):
            pick(registry)
            began = registry._present_ns()
            after = end(registry, job, EventName.ERROR)
            assert abs(parse_time(after.not_before) - began - pause * 10**9) < 10**9
            clock.advance(pause - 1)
            assert pick(registry) is None
            clock.advance(2)
        assert pick(registry).attempt == 3

    @pytest.mark.parametrize("ended_by", ["lost", "refused", "limit", "budget"])
    def test_other_ends_are_not_retried(self, registry, add, ended_by):
        job = add(retries=5)
        pick(registry)
        assert end(registry, job, EventName.ERROR, outcome={"ended_by": ended_by}).status is Status.ERROR

    def test_errors_and_lost_holders_are_counted_apart(self, registry, clock, add):
        job = add(retries=1, max_attempts=2)
        pick(registry, lease_sec=LEASE)
        clock.advance(LEASE + 1)
        registry.expire_leases()
        pick(registry, lease_sec=LEASE)
        assert end(registry, job, EventName.ERROR).status is Status.PENDING
        last = pick(registry, lease_sec=LEASE)
        assert (last.attempt, last.lost_attempts, last.failed_attempts) == (3, 1, 1)
        assert expired_lease_error(last) is not None
        clock.advance(LEASE + 1)
        registry.expire_leases()
        assert registry.get_job(job.job_id).ended_by == "lost"

    def test_a_released_job_has_lost_no_holder(self, registry, clock, add):
        job = add(max_attempts=2)
        for attempt in (1, 2, 3):
            assert pick(registry, lease_sec=LEASE).attempt == attempt
            registry.requeue(job.job_id, attempt=attempt)
        pick(registry, lease_sec=LEASE)
        clock.advance(LEASE + 1)
        registry.expire_leases()
        assert registry.get_job(job.job_id).status is Status.PENDING

    def test_followers_wait_for_the_last_try(self, registry, add):
        first = add("1", retries=1)
        follower = add("2", after=[first.job_id])
        pick(registry)
        end(registry, first, EventName.ERROR)
        assert registry.get_job(follower.job_id).is_blocked
        pick(registry)
        end(registry, first)
        assert pick(registry).prompt == "2"


class TestPruning:
    def test_what_an_unfinished_job_names_is_kept(self, registry, clock, add):
        first = add("1")
        end(registry, first)
        last = add("2", after=[first.job_id])
        follow_up = add("3", follows=first.job_id)
        for event in registry.unsent_events():
            registry.mark_sent(event.job_id, [event.seq])
        clock.advance(1000)
        later = clock.wall_ns()
        assert registry.prunable(later) == registry.prune(later) == []
        end(registry, last)
        assert registry.prune(later) == []
        registry.update_status(follow_up.job_id, Status.CANCELLED)
        assert registry.prune(later) == [first.job_id]


def test_a_migration_carries_the_order(registry, clock, add, tmp_path):
    first = add("1")
    second = add("2", after=[first.job_id], retries=3, backoff_sec=5)
    add("3", not_before="2200-01-01T00:00:00Z")
    other = clocked_registry(f"sqlite:{tmp_path}/other/registry.db", clock)
    try:
        other.import_entries(registry.export())
        assert other.get_job(second.job_id) == second
        assert pick(other).prompt == "1"
        end(other, first)
        assert [pick(other).prompt, pick(other)] == ["2", None]
    finally:
        other.close()
