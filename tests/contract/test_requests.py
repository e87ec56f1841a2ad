"""What every registry must do with requests, activities and change numbers. Each test runs on each backend."""

from __future__ import annotations

import json
import threading

import pytest

from baton.core.clock import parse_time
from baton.core.drafts import new_job
from baton.core.errors import (
    InvalidRecord,
    InvalidValue,
    JobNotFound,
    RequestClosed,
    RequestNotFound,
    StaleAttempt,
    WrongState,
)
from baton.core.event import EventName
from baton.core.job import Job, Status
from baton.core.outline import activity_of
from baton.core.request import MAX_OPEN, Answer, Request, RequestKind, RequestState, new_request_id
from baton.registry import open_url
from support.backends import clocked_registry

ALLOW = Answer(answer="allow", by="me@host", via="cli")
DENY = Answer(answer="deny", by="you@host", via="cli", reason="too dangerous")


@pytest.fixture
def add(registry, clock):
    def register(**fields) -> Job:
        return registry.register_job(new_job("x", now_ns=clock.wall_ns(), agent="a", **fields))

    return register


@pytest.fixture
def running(registry, add):
    def claim(*, lease_sec=30, **fields) -> Job:
        return registry.pick_job(add(**fields).job_id, holder="me", lease_sec=lease_sec).after

    return claim


def question(**fields) -> Request:
    request = Request(
        request_id=new_request_id(),
        job_id="abcdef01",
        attempt=1,
        key="toolu_1",
        kind=RequestKind.TOOL,
        agent_ref=None,
        tool="Bash",
        call={"command": "rm -rf \udcff 한 \u202e", "n": [1, None, 2.5]},
        call_sha256="ab" * 32,
        exact=True,
        summary="Bash: rm",
        options=(),
        asked_at="2026-01-01T00:00:00Z",
    )
    return request.replace(**fields)


def ask(registry, job, **more) -> Request:
    return registry.open_request(job.job_id, question(), attempt=job.attempt, **more).after


class TestAsking:
    def test_a_request_is_read_back_as_it_was(self, registry, running, clock):
        job, before_ns = running(), clock.wall_ns()
        change = registry.open_request(job.job_id, question(), attempt=1, detail="asks", data={"tool": "Bash"})
        request = change.after
        assert (request.job_id, request.attempt, request.state) == (job.job_id, 1, "open")
        assert before_ns < parse_time(request.asked_at) < clock.wall_ns()
        assert registry.get_request(request.request_id) == request
        assert registry.list_requests() == registry.list_requests(job_id=job.job_id) == [request]
        assert request.call == question().call
        assert change.before is None
        assert change.job == registry.get_job(job.job_id)
        assert change.event.event is EventName.PERMISSION_REQUIRED
        payload = json.loads(registry.events_after(job.job_id)[-1].payload)
        assert payload["detail"] == "asks"
        assert payload["data"]["request_id"] == request.request_id
        assert (payload["data"]["kind"], payload["data"]["open_requests"]) == ("tool", 1)
        assert payload["data"]["tool"] == "Bash"

    def test_only_the_present_holder_may_ask(self, registry, running, add):
        job = running(max_attempts=3)
        registry.requeue(job.job_id)
        for attempt in (1, 2):
            with pytest.raises(StaleAttempt):
                registry.open_request(job.job_id, question(), attempt=attempt)
        again = registry.pick_job(job.job_id, holder="me").after
        with pytest.raises(StaleAttempt):
            ask(registry, job)
        assert ask(registry, again).attempt == 2
        with pytest.raises(JobNotFound):
            registry.open_request("deadbeef", question(), attempt=1)
        assert registry.get_job(job.job_id).last_seq == 1

    def test_a_taken_id_is_drawn_again(self, registry, running):
        job, draft = running(), question()
        first = registry.open_request(job.job_id, draft, attempt=1).after
        second = registry.open_request(job.job_id, draft, attempt=1)
        assert first.request_id == draft.request_id != second.after.request_id
        assert json.loads(second.event.payload)["data"]["request_id"] == second.after.request_id
        assert registry.list_requests() == [first, second.after]

    def test_a_job_has_at_most_so_many_open_ones(self, registry, running, clock):
        job, other = running(), running()
        for number in range(MAX_OPEN):
            ask(registry, job, expires_sec=10 if number == 0 else None)
        with pytest.raises(WrongState, match=f"{job.job_id} has 100 open requests"):
            ask(registry, job)
        ask(registry, other)
        assert registry.get_job(job.job_id).last_seq == MAX_OPEN
        clock.advance(11)
        ask(registry, job)

    def test_a_request_that_is_not_valid_is_refused(self, registry, running):
        job = running()
        for wrong in ({"request_id": "../../x"}, {"kind": RequestKind.TOOL, "tool": "a\0b"}, {"options": ("x",)}):
            with pytest.raises(InvalidRecord):
                registry.open_request(job.job_id, question(**wrong), attempt=1)
        assert registry.list_requests() == []
        assert registry.get_job(job.job_id).last_seq == 0

    def test_ids_are_found_by_their_beginning(self, registry, running):
        job = running()
        for request_id in ("abcd0001", "abcd0002", "abce0000"):
            registry.open_request(job.job_id, question(request_id=request_id), attempt=1)
        assert registry.find_requests("abcd") == ["abcd0001", "abcd0002"]
        assert registry.find_requests("abcd0002") == ["abcd0002"]
        assert registry.find_requests("ffff") == []
        assert registry.find_requests("abcd", limit=1) == ["abcd0001"]
        for wrong in ("", "abc", "ABCD", "abcd00011", "../x"):
            with pytest.raises(InvalidValue, match="request id"):
                registry.find_requests(wrong)

    def test_an_unknown_request_is_not_found(self, registry, running):
        running()
        for verb in (
            registry.get_request,
            lambda it: registry.answer_request(it, ALLOW),
            lambda it: registry.close_request(it, RequestState.WITHDRAWN),
            registry.note_sent,
            lambda it: registry.note_applied(it, "yes"),
        ):
            with pytest.raises(RequestNotFound, match="deadbeef"):
                verb("deadbeef")
            with pytest.raises(InvalidValue, match="request id"):
                verb("../../etc")

    def test_an_empty_registry_has_none(self, registry):
        assert registry.list_requests() == []
        assert registry.find_requests("abcd") == []
        with pytest.raises(RequestNotFound):
            registry.get_request("deadbeef")


class TestAnswering:
    def test_an_answer_is_kept_and_announced(self, registry, running, clock):
        job = running()
        first, second = ask(registry, job), ask(registry, job)
        before_ns = clock.wall_ns()
        change = registry.answer_request(first.request_id, DENY)
        assert change.before == first
        answered = change.after
        assert (answered.state, answered.answer, answered.reason) == ("answered", "deny", "too dangerous")
        assert (answered.answered_by, answered.via, answered.scope) == ("you@host", "cli", "once")
        assert before_ns < parse_time(answered.answered_at) < clock.wall_ns()
        assert registry.get_request(first.request_id) == answered
        assert registry.list_requests() == [second]
        assert registry.list_requests(open_only=False) == [answered, second]
        assert registry.list_requests(open_only=False, limit=1) == [answered]
        assert change.job == registry.get_job(job.job_id)
        payload = json.loads(change.event.payload)
        assert payload["event"] == "progress"
        assert payload["detail"] == f"request {first.request_id}: denied"
        assert {key: payload["data"][key] for key in ("request_id", "request_state", "open_requests")} == {
            "request_id": first.request_id,
            "request_state": "answered",
            "open_requests": 1,
        }

    def test_a_second_answer_is_refused_and_says_who_was_first(self, registry, running):
        job = running()
        request = ask(registry, job)
        first = registry.answer_request(request.request_id, ALLOW).after
        with pytest.raises(RequestClosed, match=r"answered already: allow by me@host \(cli\) at ") as refused:
            registry.answer_request(request.request_id, DENY)
        assert refused.value.request == first == registry.get_request(request.request_id)
        assert registry.get_job(job.job_id).last_seq == 2

    def test_a_wrong_answer_changes_nothing(self, registry, running):
        job = running()
        asked = registry.open_request(
            job.job_id, question(options=({"question": "Which?", "choices": ["a", "b"]},)), attempt=1
        ).after
        for wrong in (
            ALLOW.replace(answer="perhaps"),
            ALLOW.replace(scope="ever"),
            ALLOW.replace(choices={"What?": "a"}),
        ):
            with pytest.raises(InvalidValue):
                registry.answer_request(asked.request_id, wrong)
        assert registry.list_requests() == [asked]
        answered = registry.answer_request(asked.request_id, ALLOW.replace(choices={"Which?": "b"})).after
        assert registry.get_request(asked.request_id).choices == answered.choices == {"Which?": "b"}

    @pytest.mark.parametrize("end", ["cancelled", "completed", "requeued", "another attempt", "lease"])
    def test_a_request_closes_with_its_job(self, registry, running, clock, end):
        job = running(max_attempts=2)
        request = ask(registry, job)
        if end in ("requeued", "another attempt"):
            registry.requeue(job.job_id)
            if end == "another attempt":
                registry.pick_job(job.job_id, holder="me")
        elif end == "lease":
            clock.advance(31)
            registry.expire_leases()
        elif end == "completed":
            registry.record_event(job.job_id, EventName.COMPLETED)
        else:
            registry.update_status(job.job_id, Status.CANCELLED)
        assert registry.list_requests() == registry.list_requests(job_id=job.job_id) == []
        now = request.replace(state=RequestState.WITHDRAWN)
        assert registry.get_request(request.request_id) == now
        assert registry.list_requests(open_only=False) == [now]
        for refused in (
            lambda: registry.answer_request(request.request_id, ALLOW),
            lambda: registry.close_request(request.request_id, RequestState.ELSEWHERE, answer="allow"),
        ):
            with pytest.raises(RequestClosed, match="is closed"):
                refused()
        before = registry.get_job(job.job_id)
        change = registry.close_request(request.request_id, RequestState.WITHDRAWN)
        assert (change.after.state, change.event) == ("withdrawn", None)
        assert registry.get_job(job.job_id) == before

    def test_a_request_expires_by_the_clock_of_the_lease(self, registry, running, clock):
        job = running()
        request = ask(registry, job, expires_sec=10)
        with pytest.raises(WrongState, match="has not expired"):
            registry.close_request(request.request_id, RequestState.EXPIRED)
        clock.wall += 86400 * 10**9
        assert registry.list_requests() == [request]
        clock.wall -= 86400 * 10**9
        clock.advance(11)
        assert registry.list_requests() == []
        assert registry.list_outlines().jobs[0].open_requests == ()
        assert registry.get_request(request.request_id).state == "expired"
        with pytest.raises(RequestClosed, match=r"has expired at .*, which is not consent"):
            registry.answer_request(request.request_id, ALLOW)
        for state in (RequestState.ELSEWHERE, RequestState.WITHDRAWN):
            with pytest.raises(RequestClosed, match="has expired"):
                registry.close_request(request.request_id, state)
        change = registry.close_request(request.request_id, RequestState.EXPIRED)
        assert change.after == registry.get_request(request.request_id)
        assert json.loads(change.event.payload)["data"]["request_state"] == "expired"
        with pytest.raises(RequestClosed, match="has expired"):
            registry.close_request(request.request_id, RequestState.EXPIRED)

    def test_a_decision_at_the_keyboard_closes_it_as_elsewhere(self, registry, running):
        job = running()
        request = ask(registry, job)
        change = registry.close_request(
            request.request_id, RequestState.ELSEWHERE, answer="deny", by="user_reject", via="agent"
        )
        after = registry.get_request(request.request_id)
        assert change.after == after
        assert (after.state, after.answer, after.answered_by, after.via) == (
            "elsewhere", "deny", "user_reject", "agent",
        )  # fmt: skip
        assert json.loads(change.event.payload)["data"]["request_state"] == "elsewhere"
        with pytest.raises(RequestClosed, match=r"on the agent's own screen at .*: deny"):
            registry.answer_request(request.request_id, ALLOW)
        with pytest.raises(InvalidValue, match="does not close"):
            registry.close_request(ask(registry, job).request_id, RequestState.ANSWERED)

    def test_what_became_of_an_answer_is_noted_once(self, registry, running, clock):
        job = running()
        request = ask(registry, job)
        with pytest.raises(WrongState):
            registry.note_sent(request.request_id)
        with pytest.raises(WrongState):
            registry.note_applied(request.request_id, "yes")
        registry.answer_request(request.request_id, DENY)
        seq = registry.get_job(job.job_id).last_seq
        sent = registry.note_sent(request.request_id)
        clock.advance(1)
        assert registry.note_sent(request.request_id) == sent
        change = registry.note_applied(request.request_id, "no", "user_temporary")
        assert (change.before, change.after.applied, change.after.overridden_by) == (sent, "no", "user_temporary")
        again = registry.note_applied(request.request_id, "yes")
        assert again.before == again.after == registry.get_request(request.request_id) == change.after
        with pytest.raises(InvalidValue):
            registry.note_applied(request.request_id, "perhaps")
        assert registry.get_job(job.job_id).last_seq == seq
        registry.record_event(job.job_id, EventName.COMPLETED)
        other = running()
        late = ask(registry, other)
        registry.answer_request(late.request_id, ALLOW)
        registry.record_event(other.job_id, EventName.COMPLETED)
        assert registry.note_applied(late.request_id, "yes").after.applied == "yes"

    def test_eight_threads_answer_and_one_is_first(self, url, registry, running):
        request = ask(registry, running())
        start = threading.Barrier(8)
        told: list[object] = []

        def answer(number):
            other = open_url(url)
            start.wait()
            try:
                told.append(other.answer_request(request.request_id, ALLOW.replace(by=f"user {number}")))
            except RequestClosed as error:
                told.append(error)
            other.close()

        threads = [threading.Thread(target=answer, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [each for each in told if not isinstance(each, RequestClosed)]
        assert len(told) == 8
        assert len(won) == 1
        assert all(each.request == won[0].after for each in told if each is not won[0])


class TestKeeping:
    def test_requests_are_pruned_with_their_job(self, registry, running, clock, url):
        job = running()
        request = ask(registry, job)
        registry.record_event(job.job_id, EventName.COMPLETED)
        registry.mark_sent(job.job_id, [1, 2])
        clock.advance(10)
        assert registry.prune(clock.wall_ns()) == [job.job_id]
        with pytest.raises(RequestNotFound):
            registry.get_request(request.request_id)
        assert registry.list_requests(open_only=False) == []
        assert registry.find_requests(request.request_id) == []

    def test_requests_are_exported_and_imported(self, registry, running, clock, tmp_path):
        job = running()
        open_one, answered = ask(registry, job), ask(registry, job, expires_sec=100)
        answered = registry.answer_request(answered.request_id, DENY).after
        for scheme in (f"sqlite:{tmp_path}/other/registry.db", f"file:{tmp_path}/files"):
            other = clocked_registry(scheme, clock)
            other.import_entries(registry.export())
            assert list(other.export()) == list(registry.export())
            assert other.get_request(open_one.request_id) == open_one
            assert other.list_requests(open_only=False) == [open_one, answered]
            assert other.changes_since(0)[0][0].job_id == job.job_id
            assert other.answer_request(open_one.request_id, ALLOW).after.state == "answered"
            other.close()

    def test_an_invalid_request_does_not_hide_others(self, registry, running, url):
        job = running()
        bad, good = ask(registry, job), ask(registry, job)
        scheme, _, path = url.partition(":")
        if scheme == "file":
            with open(f"{path}/{job.job_id}.request-{bad.request_id}", "w") as file:
                file.write("nonsense")
        else:
            with registry._writing() as tx:
                tx.change(
                    "UPDATE requests SET call = :call WHERE request_id = :id", {"call": "no", "id": bad.request_id}
                )
        assert registry.list_requests() == [good]
        with pytest.raises(InvalidRecord, match="requests"):
            registry.get_request(bad.request_id)
        assert [outline.job_id for outline in registry.list_outlines().jobs] == [job.job_id]
        assert registry.get_job(job.job_id).job_id == job.job_id


class TestActivity:
    WORKING = {"kind": "working", "since": "2026-01-01T00:00:00Z", "cause": "Bash"}  # noqa: RUF012

    def test_it_is_stored_without_an_event_and_without_a_new_time(self, registry, running, clock):
        job = running(lease_sec=None)
        clock.advance(5)
        after = registry.set_activity(job.job_id, self.WORKING, attempt=1)
        assert after == registry.get_job(job.job_id) == job.replace(activity={**self.WORKING, "attempt": 1})
        outline = registry.list_outlines().jobs[0]
        assert outline.activity == after.activity
        assert activity_of(outline, now_ns=clock.wall_ns()) == "working"
        assert activity_of(outline.replace(lease_expires_ns=1), now_ns=clock.wall_ns()) == "unknown"
        assert activity_of(outline.replace(attempt=2), now_ns=clock.wall_ns()) == "unknown"
        assert registry.events_after(job.job_id) == []

    def test_it_may_renew_the_lease(self, registry, running, clock):
        job = running()
        clock.advance(20)
        kept = registry.set_activity(job.job_id, self.WORKING, attempt=1, lease_sec=30)
        assert kept.updated_at == job.updated_at
        clock.advance(20)
        assert registry.expired_leases() == []
        renewed = registry.renew_lease(
            job.job_id, attempt=1, lease_sec=30, activity={**self.WORKING, "kind": "waiting"}
        )
        assert renewed.activity["kind"] == "waiting"
        assert registry.renew_lease(job.job_id, attempt=1, lease_sec=30).activity == renewed.activity

    def test_another_attempt_may_not(self, registry, running):
        job = running(max_attempts=2)
        registry.set_activity(job.job_id, self.WORKING, attempt=1)
        with pytest.raises(StaleAttempt):
            registry.set_activity(job.job_id, self.WORKING, attempt=2)
        assert registry.requeue(job.job_id).after.activity is None
        with pytest.raises(StaleAttempt):
            registry.set_activity(job.job_id, self.WORKING, attempt=1)
        with pytest.raises(InvalidValue, match="activity"):
            again = registry.pick_job(job.job_id, holder="me").after
            registry.set_activity(job.job_id, {"kind": "working", "since": "now"}, attempt=again.attempt)
        assert registry.record_event(job.job_id, EventName.COMPLETED).after.activity is None

    def test_a_job_without_one_is_described_by_its_events(self, registry, running, clock):
        job = running(lease_sec=None)
        assert activity_of(registry.list_outlines().jobs[0], now_ns=clock.wall_ns()) == "starting"
        registry.record_event(job.job_id, EventName.STARTED)
        assert activity_of(registry.list_outlines().jobs[0], now_ns=clock.wall_ns()) == "working"
        ask(registry, job)
        outline = registry.list_outlines().jobs[0]
        assert activity_of(outline, now_ns=clock.wall_ns()) == "waiting"
        assert outline.open_requests == ("Bash: rm",)


class TestChanges:
    def test_every_write_has_a_higher_number(self, registry, add, clock):
        job = add(max_attempts=3)
        numbers = [job.change]
        job_id = job.job_id
        activity = TestActivity.WORKING
        asked = []
        for write in (
            lambda: registry.pick_job(job_id, holder="me", lease_sec=30),
            lambda: registry.set_activity(job_id, activity, attempt=1),
            lambda: registry.renew_lease(job_id, attempt=1, lease_sec=30),
            lambda: registry.record_event(job_id, EventName.STARTED),
            lambda: asked.append(registry.open_request(job_id, question(), attempt=1).after.request_id),
            lambda: registry.answer_request(asked[0], ALLOW),
            lambda: registry.note_sent(asked[0]),
            lambda: registry.note_applied(asked[0], "yes"),
            lambda: registry.requeue(job_id),
            lambda: registry.pick_pending("tmux:a", holder="me", lease_sec=30),
            lambda: (clock.advance(31), registry.expire_leases()),
            lambda: registry.update_status(job_id, Status.CANCELLED),
            lambda: registry.mark_seen(job_id),
        ):
            write()
            numbers.append(registry.get_job(job_id).change)
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0

    def test_a_verb_returns_the_number_of_its_write(self, registry, add):
        job = add()
        assert job.change == registry.get_job(job.job_id).change
        change = registry.pick_job(job.job_id, holder="me")
        assert change.after.change == registry.get_job(job.job_id).change > job.change
        assert registry.record_event(job.job_id, EventName.STARTED).after.change > change.after.change

    def test_a_reader_goes_on_where_it_was(self, registry, add):
        jobs = [add() for _ in range(3)]
        found, number = registry.changes_since(0)
        assert {outline.job_id for outline in found} == {job.job_id for job in jobs}
        assert registry.changes_since(number) == ([], number)
        registry.pick_job(jobs[1].job_id, holder="me")
        found, following = registry.changes_since(number)
        assert [(outline.job_id, outline.status) for outline in found] == [(jobs[1].job_id, "running")]
        assert following > number
        registry.pick_job(jobs[0].job_id, holder="me")
        registry.record_event(jobs[2].job_id, EventName.STARTED)
        registry.record_event(jobs[0].job_id, EventName.STARTED)
        seen, number = set(), following
        for _ in range(3):
            found, number = registry.changes_since(number, limit=1)
            seen |= {outline.job_id for outline in found}
        assert seen == {jobs[0].job_id, jobs[2].job_id}
        assert registry.changes_since(number) == ([], number)

    def test_a_number_of_a_newer_copy_gives_everything_again(self, registry, add):
        add()
        found, number = registry.changes_since(10**15)
        assert len(found) == 1
        assert number < 10**15

    def test_many_jobs_of_one_write_come_at_once_or_one_after_the_other(self, registry, clock):
        registry.register_many([new_job("x", now_ns=clock.wall_ns(), agent="a") for _ in range(25)])
        seen, number, reads = set(), 0, 0
        while True:
            found, number = registry.changes_since(number, limit=10)
            if not found:
                break
            seen |= {outline.job_id for outline in found}
            reads += 1
            assert reads < 10
        assert len(seen) == 25

    def test_no_number_comes_again_after_the_last_job_is_gone(self, registry, add, clock):
        job = add()
        registry.update_status(job.job_id, Status.CANCELLED)
        number = registry.changes_since(0)[1]
        clock.advance(1)
        assert registry.prune(clock.wall_ns()) == [job.job_id]
        registry.close()
        new = add()
        assert [outline.job_id for outline in registry.changes_since(number)[0]] == [new.job_id]

    def test_an_empty_registry_has_no_changes(self, registry):
        found, number = registry.changes_since(0)
        assert found == []
        assert registry.changes_since(number)[0] == []

    def test_a_reader_misses_nothing_that_many_writers_write(self, url, registry, add):
        """The last number that the reader sees of each job must be the last that its writer wrote."""
        jobs = [add() for _ in range(4)]
        written: dict[str, int] = {}
        busy = threading.Barrier(5)

        def write(job):
            other = open_url(url)
            attempt = other.pick_job(job.job_id, holder="me").after.attempt
            busy.wait()
            for turn in range(25):
                activity = TestActivity.WORKING | {"cause": str(turn)}
                written[job.job_id] = other.set_activity(job.job_id, activity, attempt=attempt).change
            other.close()

        threads = [threading.Thread(target=write, args=[job]) for job in jobs]
        for thread in threads:
            thread.start()
        reader = open_url(url)
        seen: dict[str, int] = {}
        number = 0
        busy.wait()
        while True:
            alive = any(thread.is_alive() for thread in threads)
            found, number = reader.changes_since(number, limit=2)
            seen |= {outline.job_id: outline.change for outline in found}
            if not alive and not found:
                break
            if not alive and seen == written:
                break
        reader.close()
        for thread in threads:
            thread.join()
        assert seen == written

    def test_a_change_that_is_committed_late_is_not_missed(self, url, registry, add, backend):
        """On PostgreSQL, a transaction may take its number first and commit last."""
        early, late = add(), add()
        number = registry.changes_since(0)[1]
        other = open_url(url)
        if backend == "postgresql":
            with other._writing() as tx:
                job = tx.get(early.job_id)
                tx.save(job, job.replace(title="first number"))
                registry.pick_job(late.job_id, holder="me")
                found, number = registry.changes_since(number)
                assert [outline.job_id for outline in found] == [late.job_id]
        else:
            registry.pick_job(late.job_id, holder="me")
            number = registry.changes_since(number)[1]
            other.pick_job(early.job_id, holder="me")
        found, number = registry.changes_since(number)
        assert early.job_id in {outline.job_id for outline in found}
        assert registry.changes_since(number) == ([], number)
        other.close()

    def test_the_stamp_differs_after_a_write_of_another_process(self, url, registry, running):
        job = running()
        other = open_url(url)
        request = ask(registry, job)
        stamp = registry.answers_stamp()
        assert registry.answers_stamp() == stamp
        other.answer_request(request.request_id, ALLOW)
        assert registry.answers_stamp() != stamp
        other.close()
