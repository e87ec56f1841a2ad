"""Listening on real brokers: each event once, in order, whatever happens to the broker in between."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import threading
import time

import pytest

from baton.broker.address import broker_address
from baton.config import Settings
from baton.core.event import EventName
from baton.history.log import iter_logged_events, update_logged_status
from baton.history.verify import verify_log
from baton.jobs import verbs as jobs_module
from baton.jobs.verbs import open_jobs
from baton.transport import followed_jobs
from baton.transport.publish import publish_event
from baton.transport.publisher_connection import PublisherConnection
from baton.transport.subscription import Subscription
from baton.wire.payload import signature, signed_event
from support.clock import FakeClock
from support.waiting import wait_until


@pytest.fixture
def settings(tmp_path, monkeypatch, broker):
    monkeypatch.chdir(tmp_path)
    return Settings(env={"HOME": str(tmp_path)} | broker.env)


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


class Listener(threading.Thread):
    """A subscription that runs beside the test, with a registry of its own."""

    def __init__(self, settings, job_ids, **more):
        super().__init__(daemon=True)
        self.seen = []
        self.lines = []
        self.subscription = None
        self._ready = threading.Event()
        self._arguments = (settings, job_ids, {"timeout_sec": 60, "idle_timeout_sec": 60} | more)
        self.start()
        assert self._ready.wait(20)

    def run(self):
        settings, job_ids, more = self._arguments
        with open_jobs(settings) as jobs:
            self.subscription = Subscription(jobs, settings, job_ids, log=self.lines.append, **more)
            self.subscription.connect(wait_sec=10)
            self._ready.set()
            for payload in self.subscription:
                self.seen.append(payload)

    def finish(self):
        self.join(60)
        assert not self.is_alive()
        return [payload["seq"] for payload in self.seen]

    def wait_for(self, count):
        wait_until(lambda: len(self.seen) >= count, f"{count} events, not {len(self.seen)}", interval_sec=0.01)


def test_events_arrive_at_once_and_in_order(jobs, settings):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    for number, event in enumerate(["started", "progress", "progress", "completed"], start=1):
        publish_event(jobs, settings, job.job_id, event)
        if number < 4:
            listener.wait_for(number)
    assert listener.finish() == [1, 2, 3, 4]
    assert listener.subscription.exit_code == 0
    assert "hmac_sig" not in json.dumps(listener.seen)
    assert received(jobs, job) == [1, 2, 3, 4]


def received(jobs, job):
    lines = iter_logged_events(job.job_id, jobs.logs_dir)
    return [line["seq"] for line in lines if line["event"] == "received"]


def test_each_event_is_logged_as_received_once_however_many_listen(jobs, settings):
    job = jobs.register_job("x", agent="a")
    publish_event(jobs, settings, job.job_id, "started")
    listeners = [Listener(settings, [job.job_id]) for _ in range(2)]
    for listener in listeners:
        listener.wait_for(1)
    publish_event(jobs, settings, job.job_id, "progress")
    publish_event(jobs, settings, job.job_id, "completed")
    for listener in [*listeners, Listener(settings, [job.job_id])]:
        assert listener.finish() == [1, 2, 3]
    assert received(jobs, job) == [1, 2, 3]
    assert verify_log(job.job_id, jobs.logs_dir).damage == []


@pytest.mark.parametrize(("end", "code"), [("completed", 0), ("error", 1)])
def test_a_job_that_is_over_already_is_told_at_once(jobs, settings, end, code):
    job = jobs.register_job("x", agent="a")
    jobs.record_event(job.job_id, end)
    listener = Listener(settings, [job.job_id])
    assert listener.finish() == [1]
    assert listener.subscription.exit_code == code


def test_a_cancelled_job_ends_the_listening(jobs, settings):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    jobs.update_status(job.job_id, "cancelled")
    assert listener.finish() == []
    assert listener.subscription.exit_code == 4


def test_events_that_no_broker_brings_are_found_in_the_registry(jobs, settings, broker):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    broker.kill()
    for event in ("started", "progress", "completed"):
        publish_event(jobs, settings, job.job_id, event, tries=1)
    assert listener.finish() == [1, 2, 3]
    assert any("lost the broker" in line for line in listener.lines)


def test_a_state_folder_that_cannot_be_used_leaves_the_registry_to_listen_to(jobs, tmp_path, broker):
    (tmp_path / "file").touch()
    nowhere = {"BATON_STATE_DIR": str(tmp_path / "file")}
    settings = Settings(env={"HOME": str(tmp_path)} | broker.env | nowhere)
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    publish_event(jobs, settings, job.job_id, "completed")
    assert listener.finish() == [1]
    assert "listening to the registry alone" in listener.lines[0]


def test_a_broker_that_comes_back_is_named(jobs, settings, broker):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    broker.kill()
    broker.start()
    wait_until(listener.subscription.connect)
    publish_event(jobs, settings, job.job_id, "completed")
    listener.finish()
    assert "lost the broker" in listener.lines[0]
    assert listener.lines[-1].endswith("is back")


def test_several_jobs_and_the_worst_outcome(jobs, settings):
    ids = [jobs.register_job("x", agent="a").job_id for _ in range(3)]
    listener = Listener(settings, ids)
    for job_id, end in zip(ids, ("completed", "error", "completed"), strict=True):
        publish_event(jobs, settings, job_id, end)
    listener.finish()
    assert {payload["job_id"] for payload in listener.seen} == set(ids)
    assert listener.subscription.exit_code == 1


def test_a_new_attempt_goes_on_in_the_same_story(jobs, settings):
    job = jobs.register_job("x", agent="a", max_attempts=2)
    listener = Listener(settings, [job.job_id])
    publish_event(jobs, settings, job.job_id, "started")
    jobs.release(job.job_id)
    jobs.pick_pending("tmux:a")
    publish_event(jobs, settings, job.job_id, "started", attempt=2)
    publish_event(jobs, settings, job.job_id, "completed", attempt=2)
    assert listener.finish() == [1, 2, 3]
    assert [payload["data"]["attempt"] for payload in listener.seen] == [1, 2, 2]


class TestClocks:
    @pytest.mark.parametrize("limit", ["timeout_sec", "idle_timeout_sec"])
    def test_a_limit_is_held_to_the_tenth_of_a_second(self, jobs, settings, limit, monkeypatch):
        job = jobs.register_job("x", agent="a")
        waits = []
        take = Subscription._take_messages

        def take_and_note(self, wait_sec):
            waits.append(wait_sec)
            return take(self, wait_sec)

        monkeypatch.setattr(Subscription, "_take_messages", take_and_note)
        began = time.monotonic()
        listener = Listener(settings, [job.job_id], **{limit: 0.3})
        listener.finish()
        assert listener.subscription.exit_code == 2
        assert time.monotonic() - began >= 0.3
        assert max(waits) <= 0.3, "it never waits beyond the limit"

    def test_of_several_jobs_the_most_patient_decides(self, jobs, settings):
        ids = [jobs.register_job("x", agent="a", timeout_sec=1, idle_timeout_sec=1).job_id]
        ids.append(jobs.register_job("x", agent="a", timeout_sec=60, idle_timeout_sec=60).job_id)
        clock = FakeClock()
        listener = Listener(settings, ids, timeout_sec=None, idle_timeout_sec=None, clock=clock)
        clock.advance(10)
        with PublisherConnection(broker_address(settings, jobs.get_job(ids[0]))) as hostile:
            hostile.publish(jobs.get_job(ids[0]).events_topic, b"no event")
        wait_until(lambda: listener.subscription.rejected.total() == 1, "it woke up, and nothing was new")
        for job_id in ids:
            publish_event(jobs, settings, job_id, "completed")
        listener.finish()
        assert listener.subscription.exit_code == 0

    def test_silence(self, jobs, settings):
        job = jobs.register_job("x", agent="a")
        listener = Listener(settings, [job.job_id], idle_timeout_sec=0.5)
        listener.finish()
        assert listener.subscription.exit_code == 2
        assert "nothing was heard for 0.5 s" in listener.subscription.timed_out

    def test_the_wall(self, jobs, settings):
        job = jobs.register_job("x", agent="a")
        listener = Listener(settings, [job.job_id], timeout_sec=1)
        publish_event(jobs, settings, job.job_id, "started")
        listener.finish()
        assert listener.subscription.exit_code == 2
        assert "1 s have passed" in listener.subscription.timed_out

    @pytest.mark.timeout(900)
    def test_replays_do_not_feed_the_idle_clock(self, jobs, settings, broker, full, figure, seed):
        """S2: everything ever recorded is sent again, in every order, to its own and to other topics, by somebody who
        may publish: no effect, and the idle clock runs out while it is still being sent."""
        ids = recorded_story(jobs, settings)
        recorded = [
            (jobs.get_job(each).events_topic, event.payload) for each in ids for event in jobs.events_after(each)
        ]
        topics, payloads = zip(*recorded, strict=True)
        elsewhere = [(other, payload) for topic, payload in recorded for other in sorted(set(topics) - {topic})]
        draw = random.Random(seed)
        ways = [
            itertools.cycle(recorded),
            itertools.cycle(recorded[::-1]),
            itertools.cycle(elsewhere),
            ((draw.choice(topics), draw.choice(payloads)) for _ in itertools.count()),
        ]
        share = (100_000 if full else 2_000) // len(ways)
        idle_sec = 10 if full else 2
        began = time.monotonic()
        sent = effects = fed = deaf = listeners = 0
        # Each listener ends by its idle clock while replays still come, and another takes its place.
        with PublisherConnection(broker_address(settings, jobs.get_job(ids[0]))) as hostile:
            for way in ways:
                left = share
                while left > 0 and not fed:
                    listener = Listener(settings, ids, idle_timeout_sec=idle_sec)
                    listener.wait_for(len(recorded))
                    deadline = time.monotonic() + 2 * idle_sec + 5
                    while listener.is_alive() and time.monotonic() < deadline:
                        hostile.publish(*next(way))
                        left, sent = left - 1, sent + 1
                        time.sleep(0.01 if left <= 0 else 0)  # no more than its share, but never a silence
                    awake = listener.is_alive()
                    listener.subscription.stop()
                    listener.finish()
                    listeners += 1
                    fed += awake or "nothing was heard" not in (listener.subscription.timed_out or "")
                    effects += len(listener.seen) - len(recorded)
                    # The broker itself brings the last event of each job again, as it keeps it.
                    deaf += listener.subscription.rejected.total() <= len(ids)
        effects += sum(len(jobs.events_after(each)) for each in ids) - len(recorded)
        text = (
            f"{sent:,} replays to {listeners} listeners in {time.monotonic() - began:.0f} s, {effects} effects, "
            f"{fed} listeners kept awake, {deaf} that heard none"
        )
        held = sent >= share * len(ways) and not (effects or fed or deaf)
        figure(f"S2 replays ({broker.kind})", text, held=held, seed=seed)


def recorded_story(jobs, settings):
    """Three jobs with all that may be sent again: one in its second attempt, one in its first, one that is over."""
    again = jobs.register_job("x", agent="a", max_attempts=2).job_id
    for event in ("started", "progress"):
        publish_event(jobs, settings, again, event)
    jobs.release(again)
    jobs.pick_pending("tmux:a")
    for event in ("started", "progress"):
        publish_event(jobs, settings, again, event, attempt=2)
    going, over = (jobs.register_job("y", agent="a").job_id for _ in range(2))
    for event in ("started", "progress", "progress", "permission_required"):
        publish_event(jobs, settings, going, event)
    for event in ("started", "completed"):
        publish_event(jobs, settings, over, event)
    return [again, going, over]


def test_what_is_hostile_on_the_topic_is_counted_and_ignored(jobs, settings):

    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    good = {
        "schema_version": 1, "seq": 1, "job_id": job.job_id, "event": "completed",
        "timestamp": "2026-06-20T14:48:58Z", "detail": "\x1b[31mforged", "data": {"attempt": 1},
    }  # fmt: skip
    unrecorded = json.loads(json.dumps(good))
    unrecorded["data"]["hmac_sig"] = signature(unrecorded, job.auth_token)
    forged = json.loads(json.dumps(good))
    forged["data"]["hmac_sig"] = "0" * 64
    with PublisherConnection(broker_address(settings, job)) as hostile:
        for payload in (b"", b"\xff", b"{}", b"[" * 5000, b"x" * 70000, json.dumps(good).encode(),
                        json.dumps(forged).encode(), json.dumps(unrecorded).encode()):  # fmt: skip
            hostile.publish(job.events_topic, payload, retain=True)
    publish_event(jobs, settings, job.job_id, "started")
    listener.wait_for(1)
    publish_event(jobs, settings, job.job_id, "error", detail="the truth")
    listener.finish()
    assert [payload["event"] for payload in listener.seen] == ["started", "error"]
    assert listener.subscription.exit_code == 1, "a signed end that is not in the registry is no end"
    assert listener.subscription.rejected["signature"] == 2
    assert listener.subscription.rejected["json"] >= 2
    assert "forged" not in "".join(listener.lines)


def elsewhere(jobs, job, seq, event="progress"):
    """What a publisher sends that has the job's record, and another registry."""
    return signed_event(job.replace(last_seq=seq - 1, attempt=1), EventName(event), "", {}, time.time_ns()).payload


@pytest.mark.parametrize("follow_all", [False, True])
def test_a_signed_event_that_is_not_in_this_registry_is_counted_and_named(jobs, settings, follow_all):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [] if follow_all else [job.job_id], follow_all=follow_all, timeout_sec=5)
    with PublisherConnection(broker_address(settings, job)) as publisher:
        for seq in (1, 1):
            publisher.publish(job.events_topic, elsewhere(jobs, job, seq, "started"))
        line = "1 signed event is not in this registry: does its publisher use another one?"
        wait_until(lambda: listener.lines == [line], f"that line, not {listener.lines}")
        for seq in (1, 2, 3, 2):
            publisher.publish(job.events_topic, elsewhere(jobs, job, seq))
    listener.finish()
    assert listener.seen == []
    assert listener.lines[1:] == ["2 signed events are not in this registry: does its publisher use another one?"]
    assert listener.subscription.suspicious() == {"unrecorded": 3}


def test_an_event_that_is_recorded_a_moment_later_is_not_counted(jobs, settings):
    job = jobs.register_job("x", agent="a")
    subscription = Subscription(jobs, settings, [job.job_id], log=pytest.fail)
    assert list(subscription.events.from_messages([(job.events_topic, elsewhere(jobs, job, 1, "started"))])) == []
    jobs.record_event(job.job_id, "started")
    assert [payload["seq"] for payload in subscription.events.from_registry()] == [1]
    assert subscription.suspicious() == {}
    subscription.close()


def test_following_every_job(jobs, settings):
    early = jobs.register_job("x", agent="a")
    jobs.record_event(early.job_id, "started")
    listener = Listener(settings, [], follow_all=True, timeout_sec=4)
    late = jobs.register_job("y", agent="a")
    publish_event(jobs, settings, late.job_id, "started")
    publish_event(jobs, settings, early.job_id, "completed")
    publish_event(jobs, settings, late.job_id, "error")
    listener.finish()
    seen = [(payload["job_id"], payload["seq"]) for payload in listener.seen]
    assert sorted(seen) == sorted([(early.job_id, 1), (early.job_id, 2), (late.job_id, 1), (late.job_id, 2)])


def test_following_without_a_broker_misses_no_job(jobs, settings, broker):
    broker.kill()
    waiting = jobs.register_job("x", agent="a")
    listener = Listener(settings, [], follow_all=True, timeout_sec=12)
    short = [jobs.register_job("y", agent="a").job_id for _ in range(3)]
    for job_id in (waiting.job_id, *short):
        jobs.record_event(job_id, "completed")
    listener.wait_for(4)
    many = [jobs.register_job("y", agent="a").job_id for _ in range(3)]
    for job_id in many:
        jobs.record_event(job_id, "started")
        jobs.record_event(job_id, "error")
    listener.wait_for(10)
    listener.subscription.stop()
    listener.finish()
    told = [(payload["job_id"], payload["seq"]) for payload in listener.seen]
    assert len(told) == len(set(told)) == 10


def test_following_begins_with_more_than_a_page(jobs, settings, monkeypatch):
    monkeypatch.setattr(jobs_module, "_PAGE", 3)
    ids = [jobs.register_job("x", agent="a").job_id for _ in range(8)]
    for job_id in ids:
        jobs.record_event(job_id, "started")
    listener = Listener(settings, [], follow_all=True, timeout_sec=20)
    listener.wait_for(8)
    listener.subscription.stop()
    listener.finish()
    assert {payload["job_id"] for payload in listener.seen} == set(ids)


def test_a_job_that_was_told_is_not_told_again_when_it_was_forgotten(jobs, settings, monkeypatch):
    monkeypatch.setattr(followed_jobs, "_LATE_NS", 0)
    listener = Listener(settings, [], follow_all=True, timeout_sec=30)
    over = jobs.register_job("x", agent="a")
    publish_event(jobs, settings, over.job_id, "completed")
    listener.wait_for(1)
    wait_until(lambda: listener.subscription.events._since_ns > time.time_ns() - 10**9)
    others = [jobs.register_job("x", agent="a").job_id for _ in range(3)]
    for job_id in others:
        publish_event(jobs, settings, job_id, "started")
    listener.wait_for(4)
    wait_until(lambda: over.job_id not in listener.subscription.events.cursors)
    with PublisherConnection(broker_address(settings, over)) as hostile:
        hostile.publish(over.events_topic, jobs.events_after(over.job_id)[0].payload)
    wait_until(lambda: listener.subscription.rejected["over"] == 1)
    listener.subscription.stop()
    assert len(listener.finish()) == 4


def test_jobs_that_are_over_are_forgotten_but_not_how_they_ended(jobs, settings, monkeypatch):
    monkeypatch.setattr(followed_jobs, "_LATE_NS", 0)
    listener = Listener(settings, [], follow_all=True, timeout_sec=30)
    failed, removed, running = (jobs.register_job("x", agent="a").job_id for _ in range(3))
    publish_event(jobs, settings, failed, "error")
    publish_event(jobs, settings, running, "started")
    publish_event(jobs, settings, removed, "completed")
    listener.wait_for(3)
    jobs.prune(time.time_ns() + 10**9)
    events = listener.subscription.events
    wait_until(lambda: list(events.cursors) == [running])
    assert list(events._refreshed) in ([], [running])
    listener.subscription.stop()
    listener.finish()
    assert listener.subscription.exit_code == 1


def test_an_unsigned_word_about_a_job_makes_nobody_follow_it(jobs, settings):
    job = jobs.register_job("x", agent="a")
    jobs.record_event(job.job_id, "started")
    jobs.release(job.job_id)
    with open_jobs(settings) as own:
        subscription = Subscription(own, settings, [], follow_all=True, timeout_sec=5)
        payload = json.loads(jobs.events_after(job.job_id)[0].payload)
        payload["data"]["hmac_sig"] = "0" * 64
        told = subscription.events.from_messages([(job.events_topic, json.dumps(payload).encode())])
        assert list(told) == []
        assert subscription.rejected == {"signature": 1}
        assert subscription.outcomes() == {}


@pytest.mark.parametrize("follow_all", [False, True])
def test_an_event_on_the_topic_of_another_job_is_no_news(jobs, settings, follow_all):
    """However true it is: who may write to one topic only must not be heard about the others."""
    job, other = jobs.register_job("x", agent="a"), jobs.register_job("y", agent="a")
    jobs.record_event(job.job_id, "started")
    payload = jobs.events_after(job.job_id)[0].payload
    with open_jobs(settings) as own:
        ids = [] if follow_all else [job.job_id, other.job_id]
        subscription = Subscription(own, settings, ids, follow_all=follow_all, timeout_sec=5)
        assert list(subscription.events.from_messages([(other.events_topic, payload)])) == []
        assert subscription.rejected == {"topic": 1}
        told = subscription.events.from_messages([(job.events_topic, payload)])
        assert [event["seq"] for event in told] == [1]
        assert subscription.rejected == {"topic": 1}


def test_following_begins_with_the_past_of_what_is_not_over_in_order_of_time(jobs, settings):
    over, *going = (jobs.register_job("x", agent="a") for _ in range(4))
    publish_event(jobs, settings, over.job_id, "started")
    publish_event(jobs, settings, over.job_id, "completed")  # the broker keeps it, and brings it to who comes late
    said = [
        (job.job_id, publish_event(jobs, settings, job.job_id, event).event.seq)
        for event in ("started", "progress", "progress")
        for job in random.sample(going, 3)
    ]
    listener = Listener(settings, [], follow_all=True, timeout_sec=3)
    listener.finish()
    assert [(payload["job_id"], payload["seq"]) for payload in listener.seen] == said
    assert listener.subscription.rejected["over"] == 1
    assert listener.lines == []


def test_other_registries_on_the_same_broker_are_no_news(jobs, settings, tmp_path):

    mine = jobs.register_job("x", agent="a")
    listener = Listener(settings, [], follow_all=True, timeout_sec=3)
    with open_jobs(Settings({"home": str(tmp_path / "other")}, env={"HOME": str(tmp_path)})) as others:
        theirs = others.register_job("y", agent="a")
        publish_event(others, settings, theirs.job_id, "started")
    with PublisherConnection(broker_address(settings, mine)) as publisher:
        publisher.publish(theirs.events_topic, b"not for us")
        publisher.publish("python/mqtt/jobs/nonsense/events", b"not for us")
        publisher.publish(mine.events_topic, b"for us")
    listener.finish()
    assert listener.seen == []
    assert listener.subscription.rejected == {"job": 3, "json": 1}
    assert listener.subscription.suspicious() == {"json": 1}
    assert len(listener.lines) == 1


def unreadable(jobs, job_id, seq):
    """Makes of a recorded event what an older version might have written and this one refuses."""
    raw = sqlite3.connect(jobs.registry.path)
    changed = raw.execute(
        """UPDATE events SET payload = CAST(replace(payload, '"data":{', '"data":{"x":100000000000000000000,') AS BLOB)"""
        " WHERE job_id = ? AND seq = ?",
        (job_id, seq),
    ).rowcount
    assert changed == 1
    raw.commit()
    raw.close()


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_recorded_event_that_cannot_be_read_is_passed_over(jobs, settings, which):
    job = jobs.register_job("x", agent="a")
    for event in ("started", "progress", "completed"):
        jobs.record_event(job.job_id, event)
    unreadable(jobs, job.job_id, which)
    listener = Listener(settings, [job.job_id])
    assert listener.finish() == [seq for seq in (1, 2, 3) if seq != which]
    assert listener.subscription.exit_code == 0
    assert [line for line in listener.lines if f"#{which}" in line] == listener.lines[:1]
    assert "100000000000000000000" not in listener.lines[0]


def test_a_worker_of_an_older_attempt_puts_nothing_into_the_story(jobs, settings):
    """It still has its key, and a listener may not know yet that this key is an old one."""
    job = jobs.register_job("x", agent="a", max_attempts=2)
    publish_event(jobs, settings, job.job_id, "started")
    listener = Listener(settings, [job.job_id])
    listener.wait_for(1)
    old = jobs.get_job(job.job_id)
    jobs.release(job.job_id)
    jobs.pick_pending("tmux:a")
    forged = signed_event(old, EventName.PROGRESS, "forged", {}, time.time_ns())
    with PublisherConnection(broker_address(settings, job)) as hostile:
        hostile.publish(job.events_topic, forged.payload)
        hostile.publish(job.events_topic, b"no event")  # a broker keeps the order: when this is refused, that was heard
        wait_until(lambda: listener.subscription.rejected["json"] == 1)
    publish_event(jobs, settings, job.job_id, "permission_required", detail="the truth")
    publish_event(jobs, settings, job.job_id, "completed")
    assert listener.finish() == [1, 2, 3]
    assert [payload["detail"] for payload in listener.seen] == ["", "the truth", ""]


def test_what_the_broker_kept_of_an_older_attempt_is_no_forgery(jobs, settings):
    job = jobs.register_job("x", agent="a", max_attempts=2)
    listener = Listener(settings, [job.job_id])
    listener.subscription.stop()
    listener.finish()
    for event in ("started", "progress"):
        publish_event(jobs, settings, job.job_id, event)
    jobs.release(job.job_id)
    jobs.pick_pending("tmux:a")
    publish_event(jobs, settings, job.job_id, "started", attempt=2)
    listener = Listener(settings, [job.job_id])
    listener.wait_for(3)
    wait_until(lambda: listener.subscription.rejected.total() == 3)
    publish_event(jobs, settings, job.job_id, "completed", attempt=2)
    assert listener.finish() == [1, 2, 3, 4]
    assert set(listener.subscription.rejected) == {"seq"}
    assert listener.lines == []
    assert not any(line["event"] == "rejected" for line in iter_logged_events(job.job_id, jobs.logs_dir))


@pytest.mark.parametrize(("end", "code"), [("completed", 0), ("error", 1)])
def test_of_a_job_that_was_pruned_the_audit_log_knows_the_end(jobs, settings, end, code):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    with open_jobs(settings) as others:
        end_and_prune(others, job.job_id, end)
    listener.finish()
    assert listener.subscription.exit_code == code
    assert listener.subscription.outcomes() == {job.job_id: end}


def end_and_prune(jobs, job_id, end):
    """In one step, as far as a listener can see."""
    raw = sqlite3.connect(jobs.registry.path)
    update_logged_status(job_id, "running", end, now_ns=time.time_ns(), logs_dir=jobs.logs_dir)
    raw.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))
    raw.commit()
    raw.close()


def test_a_job_that_vanished_without_an_end_is_named(jobs, settings):
    job = jobs.register_job("x", agent="a")
    listener = Listener(settings, [job.job_id])
    end_and_prune(jobs, job.job_id, "running")
    listener.finish()
    assert listener.subscription.exit_code == 1
    assert listener.subscription.outcomes() == {job.job_id: None}
    assert f"job {job.job_id} is gone" in listener.lines[-1]


def test_two_users_of_one_host_do_not_throw_each_other_out(jobs, settings, tmp_path, broker):
    job = jobs.register_job("x", agent="a")
    homes = {"home": settings.home}
    listeners = [
        Listener(Settings(homes, env={"HOME": str(tmp_path / name)} | broker.env), [job.job_id]) for name in "ab"
    ]
    for event in ("started", "progress", "completed"):
        publish_event(jobs, settings, job.job_id, event)
    for listener in listeners:
        assert listener.finish() == [1, 2, 3]
        assert listener.lines == []


def test_two_listeners_to_one_job_do_not_throw_each_other_out(jobs, settings):
    job = jobs.register_job("x", agent="a")
    listeners = [Listener(settings, [job.job_id]) for _ in range(3)]
    for event in ("started", "progress", "completed"):
        publish_event(jobs, settings, job.job_id, event)
    for listener in listeners:
        assert listener.finish() == [1, 2, 3]
        assert not any("lost the broker" in line for line in listener.lines)


def test_a_word_about_a_job_that_is_gone_ends_no_listening(jobs, settings):
    """Somebody without a key claims news of a job that was pruned meanwhile."""

    gone = jobs.register_job("x", agent="a")
    jobs.record_event(gone.job_id, "started")
    listener = Listener(settings, [], follow_all=True, timeout_sec=4)
    listener.wait_for(1)
    publish_event(jobs, settings, gone.job_id, "completed")
    listener.wait_for(2)
    jobs.prune(time.time_ns() + 10**9)
    claim = {
        "schema_version": 1, "seq": 9, "job_id": gone.job_id, "event": "progress",
        "timestamp": "2026-06-20T14:48:58Z", "detail": "", "data": {"attempt": 99, "hmac_sig": "0" * 64},
    }  # fmt: skip
    with PublisherConnection(broker_address(settings, gone)) as hostile:
        hostile.publish(gone.events_topic, json.dumps(claim).encode())
    other = jobs.register_job("y", agent="a")
    publish_event(jobs, settings, other.job_id, "started")
    listener.finish()
    assert listener.seen[-1]["job_id"] == other.job_id
    assert listener.subscription.rejected["job"] == 1
