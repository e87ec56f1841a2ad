"""The whole of baton in one process, from one seed: workers, a wire that loses and repeats and reorders, a broker that
goes away, listeners that crash, a monitor, an operator, clocks that jump. What decides is baton's own code.

A history is a list of steps, each a name and a number from which everything random in it is drawn: any part of a history
can be played again, so that a failing one can be cut down to what it needs.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter

from baton.config import Settings
from baton.core.clock import format_time
from baton.core.drafts import new_job
from baton.core.errors import BatonError
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status
from baton.core.request import Answer, RequestState
from baton.jobs.job_history import JobHistory
from baton.jobs.verbs import Jobs
from baton.transport.subscription import Subscription
from baton.wire.payload import signed_event
from simulation.memory import MemoryRegistry
from support.clock import FakeClock
from support.writing_verbs import question

LABEL = "tmux:sim"
NO_FOLDER = "/dev/null/no-folder"  # nothing can be written there
LEASE_SEC = 30


class Broken(Exception):
    """An invariant that does not hold."""


class NoHistory(JobHistory):
    """A history without files: the audit log is proved elsewhere."""

    def exists(self, job_id):
        return True

    def status(self, job_id):
        return None

    def lines(self, job_id):
        return iter(())

    def _try(self, job_id, write):
        pass


class JobsWithoutFiles(Jobs):
    @property
    def history(self):
        return NoHistory(NO_FOLDER, self.clock, self.warn)


class Worker:
    """Holds a claim, or believes it does."""

    def __init__(self, job_id, attempt):
        self.job_id = job_id
        self.attempt = attempt


class World:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.registry = MemoryRegistry(self.clock, random.Random(seed + 1))
        self.jobs = JobsWithoutFiles(self.registry, NO_FOLDER, clock=self.clock)
        self.settings = Settings(env={"HOME": NO_FOLDER, "MQTT_BROKER": "localhost"})
        self.workers = []
        self.wire = []  # (topic, payload) on their way to the listener
        self.retained = {}
        self.broker_up = True
        self.heard = []  # what the present listener has printed
        self.ever_heard = set()
        self.listener = None
        self.seen = {}  # job: (status, attempt, events) when last looked at
        self.counts = Counter()
        self.recorded_by = {}  # (job, seq): attempt of the worker that was told "accepted"
        self.lease_ends = {}  # (job, attempt): on the clock that never jumps
        self.may_let_go = False  # whether this step is the holder's or the operator's
        self.asked = {}  # request: when it expires, on the clock that never jumps
        self.requests_seen = {}

    # -- steps -------------------------------------------------------------------------------------------------

    def step(self, name, number):
        draw = random.Random(number)
        self.may_let_go = name in ("say", "operator")
        getattr(self, f"do_{name}")(draw)
        self.counts[name] += 1
        self.check()

    def do_register(self, draw):
        there = sorted(self.registry.jobs)
        after = draw.sample(there, min(len(there), draw.choice([0, 0, 1, 2])))
        later = self.clock.wall_ns() + draw.choice([5, 500]) * 10**9
        job = new_job(
            "x",
            now_ns=self.clock.wall_ns(),
            agent="sim",
            agent_session=LABEL,
            max_attempts=draw.randint(1, 3),
            after=after,
            not_before=format_time(later) if draw.random() < 0.2 else None,
            **draw.choice([{}, {}, {"retries": 1}, {"retries": 2, "backoff_sec": 20}]),
        )
        job_id = f"{draw.getrandbits(64):016x}"
        token = f"{draw.getrandbits(128):032x}"
        self.registry.register_many(
            [job.replace(job_id=job_id, topic_prefix=f"python/mqtt/jobs/{job_id}", auth_token=token)]
        )

    def do_die(self, draw):
        """From now on, or not any more, processes die after an end and before they advance the jobs after it."""
        self.registry.dies = draw.random() < 0.5

    def do_pick(self, draw):
        job = self.jobs.pick_pending(LABEL, holder=f"w{len(self.workers)}", lease_sec=LEASE_SEC)
        if job is not None:
            self.workers.append(Worker(job.job_id, job.attempt))
            self._lease_begins(job.job_id, job.attempt)

    def do_say(self, draw):
        """A worker says something; perhaps one that lost its job long ago."""
        if not self.workers:
            return
        worker = draw.choice(self.workers)
        event = draw.choice(["started", "progress", "progress", "permission_required", "completed", "error"])
        job = self.registry.jobs[worker.job_id]
        current = job.status is Status.RUNNING and job.attempt == worker.attempt
        try:
            stored = self.jobs.record_event(
                worker.job_id, event, detail=f"{draw.getrandbits(16)}", attempt=worker.attempt
            )
        except BatonError:
            return
        if not current:
            raise Broken(f"a stale write was accepted: {event} of attempt {worker.attempt} for {job!r}")
        self.recorded_by[worker.job_id, stored.seq] = worker.attempt
        self._send(worker.job_id, draw)

    def do_renew(self, draw):
        if self.workers:
            worker = draw.choice(self.workers)
            job = self.registry.jobs[worker.job_id]
            current = job.status is Status.RUNNING and job.attempt == worker.attempt
            try:
                self.jobs.renew_lease(worker.job_id, attempt=worker.attempt, lease_sec=LEASE_SEC)
            except BatonError:
                return
            if not current:
                raise Broken("a lease was renewed by somebody who does not hold it")
            self._lease_begins(worker.job_id, worker.attempt)

    def do_ask(self, draw):
        """The agent of a worker asks; perhaps of one that lost its job long ago."""
        if not self.workers:
            return
        worker = draw.choice(self.workers)
        job = self.registry.jobs[worker.job_id]
        current = job.status is Status.RUNNING and job.attempt == worker.attempt
        request = question(f"{draw.getrandbits(32):08x}")
        expires_sec = draw.choice([None, 5, 50])
        try:
            change = self.registry.open_request(worker.job_id, request, attempt=worker.attempt, expires_sec=expires_sec)
        except BatonError:
            return
        if not current:
            raise Broken(f"attempt {worker.attempt} asked for {job!r}")
        ends = math.inf if expires_sec is None else self.clock.monotonic + expires_sec * 10**9
        self.asked[change.after.request_id] = ends

    def do_answer(self, draw):
        """Somebody answers, or decides at the keyboard; perhaps what is closed."""
        if not self.asked:
            return
        request_id = draw.choice(sorted(self.asked))
        is_open = self._may_be_answered(request_id)
        answer = draw.choice(["allow", "deny"])
        try:
            if draw.random() < 0.7:
                given = Answer(answer=answer, by=f"user {draw.getrandbits(8)}", via="cli")
                after = self.registry.answer_request(request_id, given).after
            else:
                state = draw.choice([RequestState.ELSEWHERE, RequestState.WITHDRAWN])
                after = self.registry.close_request(request_id, state, answer=answer).after
        except BatonError as error:
            if is_open:
                raise Broken(f"an open request was refused an answer: {error}") from error
            return
        if not is_open and after.state != "withdrawn":
            raise Broken(f"request {request_id} was {after.state}, and was closed before")

    def do_crash_worker(self, draw):
        if self.workers:
            self.workers.remove(draw.choice(self.workers))

    def do_operator(self, draw):
        if not self.registry.jobs:
            return
        job_id = draw.choice(sorted(self.registry.jobs))
        try:
            if draw.random() < 0.5:
                self.jobs.update_status(job_id, draw.choice([status.value for status in Status]))
            else:
                self.jobs.release(job_id)
        except BatonError:
            pass

    def do_monitor(self, draw):
        self._sweep()
        for job_id in {event.job_id for event in self.registry.unsent_events()}:
            self._send(job_id, draw)

    def do_time(self, draw):
        self.clock.advance(draw.choice([0.1, 1, 10, 40, 400]))

    def do_jump(self, draw):
        self.clock.wall += draw.choice([-86400, -3600, 3600, 86400]) * 10**9

    def do_broker(self, draw):
        self.broker_up = not self.broker_up
        if not self.broker_up:
            self.wire.clear()  # what it had not delivered is gone
            if draw.random() < 0.3:
                self.retained.clear()  # a broker that kept nothing on disk

    def do_deliver(self, draw):
        """Some of what is on its way arrives: in any order, some twice, some never."""
        draw.shuffle(self.wire)
        arrived, self.wire = self.wire[:8], self.wire[8:]
        arrived = [message for message in arrived if draw.random() > 0.15]
        arrived += [message for message in arrived if draw.random() < 0.2]
        if self.listener is not None and arrived:
            self._print(self.listener.events.from_messages(arrived))

    def do_forge(self, draw):
        """Somebody else writes to the topics: repeats, alters, invents."""
        events = [event for each in self.registry.events.values() for event in each]
        if self.listener is None or not events:
            return
        event = draw.choice(events)
        job = self.registry.jobs[event.job_id]
        raw = bytearray(event.payload)
        kind = draw.choice(["repeat", "repeat", "alter", "alter", "invent"])
        if kind == "alter":
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(7)
        elif kind == "invent":
            stranger = job.replace(auth_token=f"{draw.getrandbits(128):032x}")
            raw = signed_event(stranger, draw.choice(list(EventName)), "invented", {}, self.clock.wall_ns()).payload
        topic = draw.choice(list(self.registry.jobs.values())).events_topic if draw.random() < 0.3 else job.events_topic
        rejected = self.listener.rejected.total()
        printed = list(self.listener.events.from_messages([(topic, bytes(raw))]))
        if (kind != "repeat" or topic != job.events_topic) and (
            printed or self.listener.rejected.total() != rejected + 1
        ):
            raise Broken(f"the listener took a forged message for a true one ({kind}, for {job!r})")
        self._print(printed)

    def do_listen(self, draw):
        """A listener, new or after a crash: what the last one printed is forgotten."""
        if self.registry.jobs:
            self.listener = Subscription(self.jobs, self.settings, sorted(self.registry.jobs), clock=self.clock)
            self.heard = []
            arrived = list(self.retained.items()) if self.broker_up else []
            self._print(self.listener.events.from_messages(arrived))

    def do_poll(self, draw):
        if self.listener is not None:
            self._print(self.listener.events.from_registry())

    # -- the wire ------------------------------------------------------------------------------------------------

    def _send(self, job_id, draw):
        """As the publisher does: in order, and noted as sent when the broker said so, if its word arrives."""
        job = self.registry.jobs[job_id]
        for event in self.registry.unsent_events(job_id=job_id):
            if not self.broker_up or draw.random() < 0.1:
                return
            self.wire.append((job.events_topic, event.payload))
            if event.event.value in ("completed", "error"):
                self.retained[job.events_topic] = event.payload
            if draw.random() < 0.1:
                return  # the acknowledgement was lost: it will be sent again
            self.jobs.mark_sent(job_id, [event.seq])

    def _print(self, payloads):
        for payload in payloads:
            stored = self.registry.events.get(payload["job_id"], [])[payload["seq"] - 1 : payload["seq"]]
            recorded = [json.loads(event.payload) for event in stored]
            for each in recorded:
                del each["data"]["hmac_sig"]
            if recorded != [payload]:
                raise Broken(f"the listener printed what nobody recorded: {payload}")
            self.heard.append(payload)

    # -- requests ------------------------------------------------------------------------------------------------

    def _may_be_answered(self, request_id):
        """Whether row, job, attempt and time all say so, by what the world knows itself."""
        request = self.registry.requests[request_id]
        job = self.registry.jobs[request.job_id]
        asked = job.status is Status.RUNNING and job.attempt == request.attempt
        return request.state == "open" and asked and self.clock.monotonic <= self.asked[request_id]

    def _check_requests(self):
        shown = {request.request_id for request in self.registry.list_requests()}
        for request_id, request in self.registry.requests.items():
            before = self.requests_seen.get(request_id)
            if before is not None and before.state != "open" and before != request:
                raise Broken(f"request {request_id} was {before.state}, and changed")
            self.requests_seen[request_id] = request
            if (request_id in shown) is not self._may_be_answered(request_id):
                raise Broken(f"request {request_id} is shown as {'open' if request_id in shown else 'closed'}")

    # -- leases --------------------------------------------------------------------------------------------------

    def _lease_begins(self, job_id, attempt):
        self.lease_ends[job_id, attempt] = self.clock.monotonic + LEASE_SEC * 10**9

    def _lease_left(self, job_id, attempt):
        """Nanoseconds until the lease truly ends; for ever where there is none."""
        return self.lease_ends.get((job_id, attempt), math.inf) - self.clock.monotonic

    def _sweep(self):
        """As the monitor does. Whether it took too much is seen by `check`."""
        self.jobs.expire_leases()
        self.jobs.advance_waiting()
        for job_id, job in self.registry.jobs.items():
            if job.status is Status.RUNNING and self._lease_left(job_id, job.attempt) < 0:
                raise Broken(f"{job!r}: its lease is over, and the monitor left it to its holder")

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self):
        for job_id, job in self.registry.jobs.items():
            events = self.registry.events[job_id]
            before = self.seen.get(job_id)
            if before is not None:
                status, attempt, count = before
                if status in TERMINAL and (job.status is not status or len(events) != count):
                    raise Broken(f"{job!r} was {status} and went on")
                if job.attempt < attempt or len(events) < count:
                    raise Broken(f"{job!r} went back")
                lost = status is Status.RUNNING and (job.status, job.attempt) != (status, attempt)
                if lost and not self.may_let_go and self._lease_left(job_id, attempt) > 0:
                    raise Broken(f"{job!r} was taken from attempt {attempt}, whose lease was not over")
            self.seen[job_id] = (job.status, job.attempt, len(events))
            if [event.seq for event in events] != list(range(1, len(events) + 1)):
                raise Broken(f"{job!r}: the numbers of its events are not 1, 2, 3, ...")
            self._check_order(job)
            ends = [event for event in events if event.event.value in ("completed", "error")]
            if len(ends) > 1 or (ends and ends[0] is not events[-1]):
                raise Broken(f"{job!r} has more than one end, or something after it")
            attempts = [event.attempt for event in events]
            if attempts != sorted(attempts):
                raise Broken(f"{job!r}: an older attempt spoke after a newer one")
        self._check_heard()
        self._check_requests()

    def _check_order(self, job):
        """A job that was ever claimed came after all its predecessors, or ended because of one."""
        if job.failed_attempts > job.retries or job.lost_attempts >= job.max_attempts:
            raise Broken(f"{job!r} failed, or lost its holder, more often than it may")
        if not job.attempt or job.ended_by == "predecessor":
            return
        for each in job.after:
            if self.registry.jobs[each].status is not Status.COMPLETED:
                raise Broken(f"{job!r} began before {self.registry.jobs[each]!r} was completed")

    def _check_heard(self):
        last = {}
        for payload in self.heard:
            job_id, seq = payload["job_id"], payload["seq"]
            if seq <= last.get(job_id, 0):
                raise Broken(f"the listener printed #{seq} of {job_id} again, or out of order")
            last[job_id] = seq
            stored = self.registry.events[job_id]
            if seq > len(stored) or stored[seq - 1].event.value != payload["event"]:
                raise Broken(f"the listener printed #{seq} of {job_id}, which nobody recorded so")
        self.last_heard = last

    def settle(self):
        """The faults end; then everything that was recorded must arrive, and every job can end."""
        self.broker_up = True
        self._all_arrives()
        self._all_end()
        self._all_arrives()

    def _all_end(self):
        """Nobody renews any more, so the monitor takes every lease; then one good worker does what is left, and the
        operator ends what he took himself."""
        self.may_let_go = False
        self.registry.dies = False
        self.clock.wall += 100 * 86400 * 10**9  # whatever the date was set to
        self.clock.advance(LEASE_SEC + 1)
        self._sweep()
        self.check()
        self.may_let_go = True
        try:
            for job_id, job in list(self.registry.jobs.items()):
                if job.status is Status.RUNNING:
                    self.jobs.record_event(job_id, "completed", attempt=job.attempt)
            for _ in range(2 * len(self.registry.jobs)):
                job = self.jobs.pick_pending(LABEL, holder="last", lease_sec=LEASE_SEC)
                if job is not None:
                    self.jobs.record_event(job.job_id, "completed", attempt=job.attempt)
        except BatonError as error:
            raise Broken(f"a job cannot end: {error}") from error
        for job in self.registry.jobs.values():
            if job.status not in TERMINAL:
                raise Broken(f"{job!r} never ends")
        self.check()

    def _all_arrives(self):
        if self.listener is None:
            return
        self._print(self.listener.events.from_registry())
        self.check()
        watched = self.listener.outcomes()
        for job_id, outcome in watched.items():
            job, count = self.registry.jobs[job_id], len(self.registry.events[job_id])
            if self.last_heard.get(job_id, 0) != count:
                raise Broken(f"{job!r}: {count} events, the listener knows {self.last_heard.get(job_id, 0)}")
            if (outcome or job.status) is not job.status or (outcome is None) != (job.status not in TERMINAL):
                raise Broken(f"{job!r}: the listener says {outcome}")


STEPS = {
    "die": 2, "register": 6, "pick": 10, "say": 30, "renew": 4, "crash_worker": 2, "operator": 3, "monitor": 5, "time": 8,
    "jump": 1, "broker": 2, "deliver": 12, "forge": 6, "listen": 3, "poll": 6, "ask": 8, "answer": 10,
}  # fmt: skip


def history(seed, length=60):
    draw = random.Random(seed)
    names = draw.choices(list(STEPS), list(STEPS.values()), k=length)
    return [("register", draw.getrandbits(48)), *((name, draw.getrandbits(48)) for name in names)]


def play(seed, steps):
    """What is wrong with this history, or None."""
    world = World(seed)
    try:
        for name, number in steps:
            world.step(name, number)
        world.settle()
    except Broken as broken:
        return str(broken)
    return None


def shortest(seed, steps):
    """The same failure with as few steps as can be: whatever can be left out is."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            without = steps[:start] + steps[start + size :]
            if play(seed, without) is not None:
                steps = without
            else:
                start += size
        size //= 2
    return steps


def told(seed, steps):
    lines = [f"  {number:2d}  {name} {draw}" for number, (name, draw) in enumerate(steps, 1)]
    return os.linesep.join([f"seed {seed}: {play(seed, steps)}", *lines])
