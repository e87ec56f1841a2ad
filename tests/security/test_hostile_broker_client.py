"""S3: somebody else on the broker may do there whatever he likes: the registry's truth stays, and arrives."""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from baton.broker.address import broker_address
from baton.config import Settings
from baton.core.errors import BrokerUnavailable
from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from baton.transport import publisher_connection as packets
from baton.transport.publish import publish_event
from baton.transport.publisher_connection import PublisherConnection
from baton.transport.subscription import Subscription
from support.crew import Crew
from support.resident import memory_mb
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.core.job import Job

FLOOD_BYTES_PER_SEC = 40_000_000
MOST_GROWTH_MB = 100
PATIENCE_SEC = 25


@pytest.mark.timeout(300)
def test_a_hostile_client_changes_nothing(broker, tmp_path, figure, full, seed):
    chance, began = Random(seed), time.monotonic()
    settings = Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | broker.env)
    with open_jobs(settings) as jobs:
        over, going = (jobs.register_job("x", agent="a") for _ in range(2))
        for event in ("started", "progress", "completed"):
            assert publish_event(jobs, settings, over.job_id, event).sent
        over = jobs.get_job(over.job_id)
        story_before = jobs.events_after(over.job_id)
        replays = [event.payload for event in story_before]
    enough = str(tmp_path / "enough")
    wrong: list[str] = []
    with Crew() as crew:
        listener = crew.fork(_listen, settings, going.job_id)
        _, client_id, before_mb = crew.hear_word("listening")
        crew.fork(_rewrite_and_take_over, settings, over, going, client_id, enough)
        crew.fork(_flood, broker.port, going, replays, chance.random(), enough)
        crew.hear_word("flooding")
        crew.fork(_publish, settings, going.job_id, 60 if full else 3)
        heard = _hear_the_end(crew, (65 if full else 8) + PATIENCE_SEC)
        os.close(os.open(enough, os.O_CREAT))
        if "ended" not in heard:
            wrong.append(f"the listener has not ended after {len(heard['seen'])} events")
            crew.kill(listener)
        for words in crew.hear_out(PATIENCE_SEC):
            heard.setdefault(words[0], []).append(words[1:])
        wrong += crew.failures
    seen = [seq for (seq,) in heard["seen"]]
    code, rejected, lost, growth_mb = None, {}, 0, 0.0
    if "ended" in heard:
        ((code, rejected, lost, peak_mb),) = heard["ended"]
        growth_mb = peak_mb - before_mb
    with Crew() as crew:
        crew.fork(_listen, settings, over.job_id)
        told = [words for words in crew.hear_out(PATIENCE_SEC) if words[0] != "listening"]
        wrong += crew.failures
    if [words[1] for words in told if words[0] == "seen"] != [1, 2, 3] or told[-1][:2] != ["ended", 0]:
        wrong.append(f"of the job that was over already it was told {told}")
    with open_jobs(settings) as jobs:
        recorded = [event.seq for event in jobs.events_after(going.job_id)]
        if jobs.get_job(over.job_id) != over or jobs.events_after(over.job_id) != story_before:
            wrong.append("the job that was over has changed")
        if recorded != [seq for (seq,) in heard["published"]] or jobs.get_job(going.job_id).status != "completed":
            wrong.append(f"published {heard['published']}, recorded {recorded}")
        for job in (over, going):
            wrong += verify_log(job.job_id, jobs.logs_dir).damage
    if seen != recorded or code != 0:
        wrong.append(f"exit {code} after {seen} of {recorded}")
    if growth_mb > MOST_GROWTH_MB:
        wrong.append("memory is not bounded")
    ((sent, megabytes),) = heard.get("flooded", [(0, 0)])
    ((rewritten, taken),) = heard.get("rewritten", [(0, 0)])
    text = (
        f"{sent:,} hostile messages ({megabytes} MB), {sum(rejected.values()):,} of them heard and refused, "
        f"{rewritten} retained messages rewritten, {taken} take-overs of the client id ({lost} times thrown out); "
        f"{len(seen)} of {len(recorded)} events arrived, exit {code}, memory {before_mb:.0f} MB + {growth_mb:.0f} MB, "
        f"in {time.monotonic() - began:.0f} s {wrong or ''}"
    )
    held = not wrong and sent > 0 and sum(rejected.values()) > 0 and rewritten > 0 and taken > 0
    figure(f"S3 hostile client ({broker.kind})", text.strip(), held=held, seed=seed)


def test_a_listener_that_is_behind_can_be_closed(broker, tmp_path, figure, seed):
    """A reader that stands still (`baton subscribe | less`) while somebody floods the topic: leaving must work."""
    settings = Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | broker.env)
    with open_jobs(settings) as jobs:
        job = jobs.register_job("x", agent="a")
    with Crew() as crew:
        crew.fork(_stand_still_and_leave, settings, job, broker.port)
        crew.hear_word("full")
        began = time.monotonic()
        closed = next(crew.hear(15), None) == ["closed"]
        seconds = time.monotonic() - began
        failures = crew.failures
    text = f"closed {seconds:.1f} s after it was asked to" if closed else f"not closed within 15 s {failures or ''}"
    figure(f"S3 closing in a flood ({broker.kind})", text, held=closed and not failures)


def _stand_still_and_leave(say: Callable[..., None], settings: Settings, job: Job, port: int) -> None:
    with open_jobs(settings) as jobs:
        subscription = Subscription(jobs, settings, [job.job_id])
        assert subscription.connect(wait_sec=20)
        message = _qos0(job.events_topic, b"{}")
        waiting = subscription._queue
        deadline = time.monotonic() + 20
        with _flooding_connection(port, "flood") as connection:
            while not waiting.full() and time.monotonic() < deadline:
                connection.sendall(message * 1000)
                time.sleep(0.05)  # the broker needs time to pass them on, and its memory is limited
            connection.sendall(message * 1000)
        wait_until(lambda: waiting.not_full._waiters, "one message more than there is room for")
        say("full")
        subscription.close()
        say("closed")


def _hear_the_end(crew: Crew, seconds: float) -> dict[str, list[list]]:
    heard: dict[str, list[list]] = {"seen": [], "published": []}
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for words in crew.hear(left):
            heard.setdefault(words[0], []).append(words[1:])
            if words[0] == "ended":
                return heard
        if crew.failures:
            break
    return heard


# -- the honest ones ---------------------------------------------------------------------------------------------


def _listen(say: Callable[..., None], settings: Settings, job_id: str) -> None:
    lines: list[str] = []
    with open_jobs(settings) as jobs:
        subscription = Subscription(jobs, settings, [job_id], timeout_sec=200, idle_timeout_sec=100, log=lines.append)
        assert subscription.connect(wait_sec=20)
        say("listening", subscription._connections[0]._client_id, memory_mb("VmRSS"))
        for payload in subscription:
            say("seen", payload["seq"])
        lost = sum("lost the broker" in line for line in lines)
        say("ended", subscription.exit_code, dict(subscription.rejected), lost, memory_mb("VmHWM"))


def _publish(say: Callable[..., None], settings: Settings, job_id: str, seconds: float) -> None:
    """The job goes on in the middle of it, and ends while the flood is still coming."""
    until = time.monotonic() + seconds
    with open_jobs(settings) as jobs:
        say("published", publish_event(jobs, settings, job_id, "started", tries=1).event.seq)
        while time.monotonic() < until:
            say("published", publish_event(jobs, settings, job_id, "progress", tries=1).event.seq)
            time.sleep(0.1)  # the pace of the load
        say("published", publish_event(jobs, settings, job_id, "completed", tries=1).event.seq)


# -- the hostile one ---------------------------------------------------------------------------------------------


def _rewrite_and_take_over(
    say: Callable[..., None], settings: Settings, over: Job, going: Job, client_id: str, enough: str
) -> None:
    """Erases what the broker keeps of the finished job, or lays an end of his own there, and throws the listener
    out by taking its name, again and again."""
    address = broker_address(settings, going)
    rewritten = taken = 0
    while not os.path.exists(enough):
        try:
            with PublisherConnection(address) as hostile:
                for job in (over, going):
                    hostile.publish(job.events_topic, b"", retain=True)
                    hostile.publish(job.events_topic, _forged(job, over.last_seq + 1, "error"), retain=True)
                    rewritten += 2
            with PublisherConnection(address, client_id=client_id) as hostile:
                taken += 1
                select.select([hostile._socket], [], [], 2)  # until the listener takes its name back
        except BrokerUnavailable:
            pass  # busy with the flood
        time.sleep(0.5)  # the pace of the attack
    say("rewritten", rewritten, taken)


def _flood(say: Callable[..., None], port: int, going: Job, replays: list[bytes], seed: float, enough: str) -> None:
    """As much as the broker takes, up to a rate that fits into the memory of a broker that has to keep it."""
    rubbish = list(_rubbish(going, replays, Random(seed)))
    messages = [_qos0(going.events_topic, each) for each in rubbish]
    batches = [messages[start : start + 100] for start in range(0, len(messages), 100)]
    sent = sent_bytes = 0
    say("flooding")
    began = time.monotonic()
    while not os.path.exists(enough):
        try:
            with _flooding_connection(port, f"flood-{sent}") as connection:
                for batch in itertools.cycle(batches):
                    if os.path.exists(enough):
                        break
                    content = b"".join(batch)
                    connection.sendall(content)
                    sent, sent_bytes = sent + len(batch), sent_bytes + len(content)
                    left = began + sent_bytes / FLOOD_BYTES_PER_SEC - time.monotonic()
                    time.sleep(max(left, 0))  # the rate of the flood
        except OSError:
            time.sleep(0.05)  # thrown out; once more
    say("flooded", sent, sent_bytes // 1_000_000)


def _flooding_connection(port: int, client_id: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(packets.connect_packet(client_id, None, None, 0))
    connection.recv(4)
    return connection


def _qos0(topic: str, payload: bytes) -> bytes:
    return packets._packet(0x30, packets._text(topic) + payload)


def _rubbish(job: Job, replays: list[bytes], chance: Random) -> Iterator[bytes]:
    """No event among it is signed with the job's key, but much of it looks as if."""
    for seq in range(1, 200):
        yield _forged(job, seq, chance.choice(["started", "progress", "completed", "error"]))
        yield _forged(job, seq, "completed", attempt=chance.randrange(2, 1000))
        yield chance.randbytes(chance.randrange(1000))
        yield chance.choice(replays)
        yield chance.choice([b"", b"{}", b"[" * 30_000, b'{"a":' * 12_000, b"null", b"\xff" * 100])
        # As long as is allowed, and as much work to verify as such a payload can be.
        filling = {f"{chance.randrange(10**6)}": chance.random() for _ in range(1_500)}
        yield _forged(job, seq, "progress", **filling)
        yield b"x" * chance.choice([65_537, 200_000])


def _forged(job: Job, seq: int, event: str, **data: object) -> bytes:
    payload = {
        "schema_version": 1, "seq": seq, "job_id": job.job_id, "event": event, "timestamp": "2026-06-20T14:48:58Z",
        "detail": "\x1b[31mforged", "data": {"attempt": 1, **data, "hmac_sig": "0" * 64},
    }  # fmt: skip
    return json.dumps(payload).encode()
