"""Random histories: every backend must answer as the plain model does, and hold the same jobs afterwards."""

from __future__ import annotations

import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from baton.core.clock import format_time
from baton.core.drafts import new_job
from baton.core.errors import BatonError
from baton.core.event import EventName
from baton.core.job import Status
from baton.core.request import Answer, RequestState
from contract.model_registry import ModelRegistry, Refused
from support.backends import clocked_registry, registry_url
from support.clock import FakeClock
from support.writing_verbs import question

LABELS = st.sampled_from(["tmux:a", "tmux:b", "tmux:한"])
LEASES = st.sampled_from([10.0, 100.0])
WHOSE = st.sampled_from(["operator", "holder", "old holder", "nobody yet"])
SMALL = st.integers(0, 50)
LATER = 500_000  # seconds: longer than any jump of the date


class Comparison(RuleBasedStateMachine):
    backend: str
    postgres: object

    @initialize()
    def open(self):
        self.folder = tempfile.mkdtemp(prefix="baton-model-")
        self.clock = FakeClock()
        self.started = self.clock.monotonic
        url = registry_url(self.backend, f"{self.folder}/jobs", self.postgres)
        self.real = clocked_registry(url, self.clock)
        self.model = ModelRegistry()
        self.number = 0
        self.seen: dict[str, int] = {}

    def teardown(self):
        if hasattr(self, "real"):
            self.real.close()
            shutil.rmtree(self.folder)

    def both(self, ask_model, ask_real):
        """The model's answer, when both agree on whether there is one."""
        self.model.now = (self.clock.monotonic - self.started) / 10**9
        refused = answer = None
        try:
            answer = ask_model()
        except Refused as error:
            refused = str(error)
        try:
            real = ask_real()
        except BatonError as error:
            assert type(error).__name__ == refused, error
            return None, None
        assert refused is None, f"only the model refuses: {refused}"
        return answer, real

    def job(self, index):
        ids = list(self.model.jobs)
        return ids[index % len(ids)]

    def attempt(self, job_id, whose):
        present = self.model.jobs[job_id]["attempt"]
        return {"operator": None, "holder": present, "old holder": present - 1, "nobody yet": present + 1}[whose]

    has_jobs = precondition(lambda self: self.model.jobs)
    has_requests = precondition(lambda self: self.model.requests)

    @rule(
        label=LABELS,
        priority=st.integers(-2, 2),
        attempts=st.integers(1, 3),
        submitter=st.sampled_from([None, None, "host:1:2"]),
        after=st.lists(SMALL, max_size=2),
        delay=st.sampled_from([None, None, None, LATER]),
        retries=st.sampled_from([0, 0, 1, 2]),
        backoff=st.sampled_from([0, LATER]),
    )
    def register(self, label, priority, attempts, submitter, after, delay, retries, backoff):
        names = list(dict.fromkeys(self.job(each) for each in after)) if self.model.jobs else []
        backoff = backoff if retries else 0
        draft = new_job(
            "x",
            now_ns=self.clock.wall_ns(),
            agent="a",
            agent_session=label,
            priority=priority,
            max_attempts=attempts,
            submitter=submitter,
            after=names,
            not_before=None if delay is None else format_time(self.real._present_ns() + delay * 10**9),
            retries=retries,
            backoff_sec=backoff,
        )
        self.model.now = (self.clock.monotonic - self.started) / 10**9
        job_id = self.real.register_job(draft).job_id
        self.model.register(job_id, label, priority, attempts, submitter, names, delay, retries, backoff)

    @rule(label=LABELS, lease=st.none() | LEASES)
    def pick(self, label, lease):
        expected, change = self.both(
            lambda: self.model.pick(label, "me", lease),
            lambda: self.real.pick_pending(label, holder="me", lease_sec=lease),
        )
        assert (change and change.after.job_id) == expected

    @has_jobs
    @rule(index=SMALL, lease=st.none() | LEASES)
    def pick_job(self, index, lease):
        job_id = self.job(index)
        self.both(
            lambda: self.model.pick_job(job_id, "me", lease),
            lambda: self.real.pick_job(job_id, holder="me", lease_sec=lease),
        )

    @has_jobs
    @rule(index=SMALL)
    def clear_submitter(self, index):
        job_id = self.job(index)
        self.both(lambda: self.model.clear_submitter(job_id), lambda: self.real.clear_submitter(job_id))

    @has_jobs
    @rule(index=SMALL, status=st.sampled_from(list(Status)), whose=WHOSE)
    def set_status(self, index, status, whose):
        job_id = self.job(index)
        attempt = self.attempt(job_id, whose)
        self.both(
            lambda: self.model.set_status(job_id, status.value, attempt),
            lambda: self.real.update_status(job_id, status, attempt=attempt, holder="setter"),
        )

    @has_jobs
    @rule(index=SMALL, whose=WHOSE)
    def requeue(self, index, whose):
        job_id = self.job(index)
        attempt = self.attempt(job_id, whose)
        self.both(lambda: self.model.requeue(job_id, attempt), lambda: self.real.requeue(job_id, attempt=attempt))

    @has_jobs
    @rule(index=SMALL, whose=WHOSE, lease=LEASES)
    def renew(self, index, whose, lease):
        job_id = self.job(index)
        attempt = self.attempt(job_id, whose) or 0
        self.both(
            lambda: self.model.renew(job_id, attempt, lease),
            lambda: self.real.renew_lease(job_id, attempt=attempt, lease_sec=lease),
        )

    @has_jobs
    @rule(index=SMALL, event=st.sampled_from(list(EventName)), whose=WHOSE)
    def record_event(self, index, event, whose):
        job_id = self.job(index)
        attempt = self.attempt(job_id, whose)
        self.both(
            lambda: self.model.event(job_id, event.value, attempt),
            lambda: self.real.record_event(job_id, event, attempt=attempt, holder="speaker"),
        )

    @has_jobs
    @rule(index=SMALL, whose=WHOSE, expires=st.none() | LEASES)
    def ask(self, index, whose, expires):
        job_id = self.job(index)
        attempt = self.attempt(job_id, whose) or 0
        request, change = self.both(
            lambda: self.model.ask(job_id, attempt, expires),
            lambda: self.real.open_request(job_id, question("aaaa0000"), attempt=attempt, expires_sec=expires),
        )
        if change is not None:
            self.model.requests[change.after.request_id] = request

    def request(self, index):
        ids = list(self.model.requests)
        return ids[index % len(ids)]

    @has_requests
    @rule(index=SMALL, answer=st.sampled_from(["allow", "deny"]), by=st.sampled_from(["me", "you"]))
    def answer(self, index, answer, by):
        request_id = self.request(index)
        self.both(
            lambda: self.model.answer(request_id, answer, by),
            lambda: self.real.answer_request(request_id, Answer(answer=answer, by=by, via="cli")),
        )

    @has_requests
    @rule(index=SMALL, state=st.sampled_from(["elsewhere", "expired", "withdrawn"]))
    def close(self, index, state):
        request_id = self.request(index)
        self.both(
            lambda: self.model.close(request_id, state),
            lambda: self.real.close_request(request_id, RequestState(state)),
        )

    @has_requests
    @rule(index=SMALL, applied=st.sampled_from(["yes", "no"]))
    def apply(self, index, applied):
        request_id = self.request(index)
        self.both(lambda: self.model.apply(request_id, applied), lambda: self.real.note_applied(request_id, applied))

    @has_jobs
    @rule(index=SMALL, whose=WHOSE)
    def next_seq(self, index, whose):
        job_id = self.job(index)
        attempt = self.attempt(job_id, whose)
        expected, seq = self.both(
            lambda: self.model.next_seq(job_id, attempt), lambda: self.real.next_seq(job_id, attempt=attempt)
        )
        assert seq == expected

    @has_jobs
    @rule(index=SMALL, seqs=st.lists(st.integers(1, 6), max_size=3))
    def mark_sent(self, index, seqs):
        job_id = self.job(index)
        self.both(lambda: self.model.mark_sent(job_id, seqs), lambda: self.real.mark_sent(job_id, seqs))

    @rule()
    def expire(self):
        expired = {job.job_id for job in self.real.expired_leases()}
        expected, changes = self.both(self.model.expire, self.real.expire_leases)
        assert expired == expected
        assert {change.after.job_id for change in changes} == expected

    @rule(seconds=st.sampled_from([5, 50, 500, 3 * LATER]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @rule(jump=st.sampled_from([-86400, -3600, 3600, 86400]))
    def somebody_sets_the_date(self, jump):
        """No lease may care. Jobs registered before and after keep their order in the model, so the date only
        goes back by what no two registrations straddle: it is put right again at once."""
        self.clock.wall += jump * 10**9
        try:
            self.expire()
        finally:
            self.clock.wall -= jump * 10**9

    @rule()
    def open_again(self):
        self.real.close()

    @rule()
    def prune_all(self):
        self.clock.advance(1)
        before_ns = self.clock.wall_ns() + 2 * 86400 * 10**9  # also what ended while the date was wrong
        expected, gone = self.both(lambda: self.model.prune(float("inf")), lambda: self.real.prune(before_ns))
        assert set(gone) == expected

    @invariant()
    def both_hold_the_same(self):
        if not hasattr(self, "real"):
            return
        while self.real.advance_waiting():  # a verb takes a bounded number of steps
            pass
        assert self.real.advance_stranded() == []
        page = self.real.list_jobs(limit=1000)
        assert page.bad == []
        self.model.now = (self.clock.monotonic - self.started) / 10**9
        blocked = {
            job_id
            for job_id, job in self.model.jobs.items()
            if job["status"] == "pending" and self.model.is_blocked(job)
        }
        assert {job.job_id for job in page.jobs if job.is_blocked} == blocked
        real = {
            job.job_id: (
                job.status.value,
                job.attempt,
                job.last_seq,
                job.claimed_by,
                job.lease_expires_at is not None,
                job.submitter,
                job.ended_by,
                job.reason is not None,
            )
            for job in page.jobs
        }
        assert real == {
            job_id: (
                job["status"],
                job["attempt"],
                job["seq"],
                job["holder"],
                job["lease"] is not None,
                job["submitter"],
                job["ended_by"],
                job["ended"] is not None,
            )
            for job_id, job in self.model.jobs.items()
        }
        newest_first = sorted(self.model.jobs, key=lambda job_id: -self.model.jobs[job_id]["order"])
        assert [job.job_id for job in page.jobs] == newest_first
        for job_id, job in self.model.jobs.items():
            events = [
                (event.seq, event.event.value, event.attempt, event.sent) for event in self.real.events_after(job_id)
            ]
            assert events == [(e["seq"], e["name"], e["attempt"], e["sent"]) for e in job["events"]]
        self.model.now = (self.clock.monotonic - self.started) / 10**9
        requests = {
            each.request_id: (each.job_id, each.state.value, each.answer, each.answered_by, each.applied)
            for each in self.real.list_requests(open_only=False)
        }
        assert requests == {
            each: (request["job_id"], self.model.state(each), request["answer"], request["by"], request["applied"])
            for each, request in self.model.requests.items()
        }
        open_ones = {each.request_id for each in self.real.list_requests()}
        assert open_ones == {each for each in self.model.requests if self.model.state(each) == "open"}
        # A reader that goes on where it was knows the last change of every job.
        found, self.number = self.real.changes_since(self.number, limit=3)
        while found:
            self.seen |= {outline.job_id: outline.change for outline in found}
            before = self.number
            found, self.number = self.real.changes_since(self.number, limit=3)
            if self.number == before:
                break
        assert {job.job_id: job.change for job in page.jobs}.items() <= self.seen.items()
        unsent = {(event.job_id, event.seq) for event in self.real.unsent_events()}
        assert unsent == {
            (job_id, e["seq"]) for job_id, job in self.model.jobs.items() for e in job["events"] if not e["sent"]
        }


@pytest.mark.timeout(1200)
def test_a_backend_answers_as_the_model_does(backend, request, full):
    machine = type("On" + backend, (Comparison,), {"backend": backend, "postgres": None})
    if backend == "postgresql":
        machine.postgres = request.getfixturevalue("postgres")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=400 if full else 40,
            stateful_step_count=40,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
