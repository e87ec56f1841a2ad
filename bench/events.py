"""Holds publishing and listening to their limits of speed, on real brokers that it starts and stops itself.

    python bench/events.py                everything, in about five minutes
    python bench/events.py publish        only these parts; `--help` names them

Exit code 1 when a limit is missed. What is compared is measured in turns on the same broker, so that a busy machine
slows down both sides; a part that misses a limit is measured once more, and the table says so. The brokers run on
what `baton broker init` writes, those without TLS on the same with its TLS lines taken out; nats-server syncs every
message to the disk before it acknowledges it. Everything lies in a temporary folder on a real disk (TMPDIR says
where, unless that is memory), and is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from queue import Queue
from statistics import median
from typing import TYPE_CHECKING

from baton.broker.local import _free_port, running_broker, server_program, stop_broker
from baton.broker.production import write_set
from baton.config import Settings
from baton.core.clock import SECOND_NS
from baton.core.drafts import new_job
from baton.core.event import EventName
from baton.core.lifecycle import claim
from baton.history.received import Received
from baton.jobs.verbs import open_jobs
from baton.registry.contract import Entry
from baton.storage.homes import load_settings
from baton.transport.publish import publish_event
from baton.transport.publisher_connection import PublisherConnection
from baton.transport.subscription import Subscription
from baton.wire.payload import signed_event
from table import Folder, Row, Runner, at_most, chosen_parts, in_turns, ms, run_parts, size, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from baton.core.event import StoredEvent
    from baton.core.job import Job

HERE = os.path.dirname(os.path.abspath(__file__))
BATON = os.path.join(os.path.dirname(sys.executable), "baton")
KINDS = {"nats": "nats-server", "mosquitto": "Mosquitto"}
LABEL = "tmux:claude"
DETAIL = "wrote seven of ten exercises, now the solutions"
PUBLISHES = size(31, 2)
BEHIND_IT = size(5000, 10)
DELIVERIES = size(200, 3)
EVENTS = (size(200_000, 200), size(1_000_000, 1_000))
AT_ONCE = 10_000
LEAST_A_SECOND = 5_000
MEGABYTE = 1024 * 1024


# -- brokers and jobs ----------------------------------------------------------------------------------------


class Broker:
    """A running broker; `env` is what a role needs in its environment."""

    def __init__(self, folder: Folder, kind: str, *, tls: bool) -> None:
        self.name = f"{KINDS[kind]}{', TLS' if tls else ''}"
        self.port = _free_port()
        self._set = folder.new(kind)
        self._tls = tls
        write_set(kind, self._set, hosts=["127.0.0.1"], port=self.port, mtls=False)
        config = os.path.join(self._set, f"{kind}.conf")
        with open(config, encoding="utf-8") as file:
            text = file.read()
        text = text.replace("127.0.0.1:4222", f"127.0.0.1:{_free_port()}")  # another one may run here
        if not tls:
            text = re.sub(r"(?m)^(?:\s*tls \{.*\}|(?:cafile|certfile|keyfile|tls_version) .*)\n", "", text)
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        program = server_program() if kind == "nats" else shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        as_user: dict[str, Any] = {}
        if kind == "mosquitto" and os.geteuid() == 0:
            as_user = self._hand_over(folder.path)
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen([program, "-c", config], stdout=quiet, stderr=quiet, **as_user)

    def _hand_over(self, parent: str) -> dict[str, Any]:
        """Mosquitto gives up root by itself, and could not read its files any more."""
        user = pwd.getpwnam("mosquitto")
        os.chmod(parent, 0o711)
        for path, _, names in os.walk(self._set):
            for each in (path, *(os.path.join(path, name) for name in names)):
                os.chown(each, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def env(self, role: str) -> dict[str, str]:
        with open(os.path.join(self._set, f"{role}.env"), encoding="utf-8") as file:
            words = shlex.split(file.read())
        lines = dict(word.split("=", 1) for word in words if word != "export")
        # Mosquitto is a process of another user.
        return lines if self._tls else lines | {"MQTT_TLS": "0", "BATON_ALLOW_PLAINTEXT": "1"}

    def wait(self) -> None:
        from baton.broker.address import broker_address
        from baton.core.errors import BrokerUnavailable

        address = broker_address(Settings(env={"HOME": "/", **self.env("worker")}), None)
        deadline = time.monotonic() + 10
        while True:
            try:
                with PublisherConnection(address):
                    return
            except BrokerUnavailable:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def brokers(
    folder: Folder, *, tls: tuple[bool, ...] = (False,), kinds: tuple[str, ...] = tuple(KINDS)
) -> Iterator[list[Broker]]:
    started: list[Broker] = []
    try:
        for kind in kinds:
            started.extend(Broker(folder, kind, tls=each) for each in tls)
        for broker in started:
            broker.wait()
        yield started
    finally:
        for broker in started:
            broker.stop()


def started_job(settings: Settings) -> Job:
    """A job that is running and whose first event is said."""
    with open_jobs(settings) as jobs:
        jobs.register_job("Sort these.", agent="claude-code", agent_session=LABEL, idle_timeout_sec=3600)
        job = jobs.pick_pending(LABEL)
        assert job is not None
        jobs.record_event(job.job_id, "started", attempt=job.attempt)
        return jobs.get_job(job.job_id)


# -- the parts -----------------------------------------------------------------------------------------------


def fresh_publishers(folder: Folder) -> Iterator[Row | str]:
    """`baton publish` as a fresh process, against paho and mosquitto_pub"""
    with brokers(folder) as all_brokers:
        for broker in all_brokers:
            yield from _publishers_on(folder, broker)


def _publishers_on(folder: Folder, broker: Broker) -> Iterator[Row | str]:
    where = folder.new("publish")
    env = broker.env("worker")
    settings = load_settings(env={"HOME": where, **env}, here=where)
    job = started_job(settings)
    assert job.auth_token is not None
    run = Runner(where, {**env, "BENCH_TOKEN": job.auth_token})
    old_job = started_job(settings)
    with open_jobs(settings) as jobs:
        said = [{"seq": seq, "event": "progress"} for seq in range(1, BEHIND_IT + 1)]
        jobs.history.add_received(old_job, said, Received())  # lines of its history, as a listener leaves them
    payload = signed_event(job, EventName.PROGRESS, DETAIL, {}, time.time_ns()).payload.decode()
    mosquitto_pub = shutil.which("mosquitto_pub")
    assert mosquitto_pub is not None, "mosquitto_pub is not installed"
    ours = [BATON, "publish", "--event", "progress", "--detail", DETAIL, "--require-broker"]
    commands = {
        "baton": [*ours, job.job_id],
        "baton, long job": [*ours, old_job.job_id],
        "paho": [sys.executable, os.path.join(HERE, "paho_publish.py"), job.job_id, "2", DETAIL],
        "mosquitto_pub": [
            mosquitto_pub, "-h", env["MQTT_BROKER"], "-p", env["MQTT_PORT"], "-u", env["MQTT_USERNAME"],
            "-P", env["MQTT_PASSWORD"], "-q", "1", "-t", job.events_topic, "-m", payload,
        ],
        "python": [sys.executable, "-c", "pass"],
    }  # fmt: skip
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        run(command)  # compiles the modules
    seconds = in_turns(
        PUBLISHES,
        *(lambda name=name, command=command: cpu[name].append(run(command)) for name, command in commands.items()),
    )
    baton, long_job, paho, pub, bare = seconds
    with open_jobs(settings) as jobs:
        for each in (job, old_job):
            assert jobs.get_job(each.job_id).last_seq == PUBLISHES + 2
            assert not jobs.unsent_events(job_id=each.job_id), "an event was not sent"
    against = f"paho, no registry {ms(paho)}"
    yield Row(f"baton publish, fresh process ({broker.name})", ms(baton), against, *at_most(0.6, baton, paho))
    yield Row(f"  {BEHIND_IT:,} lines into the job's history", ms(long_job), against, *at_most(0.6, long_job, paho))
    own, theirs = median(cpu["baton"]), median(cpu["paho"])
    yield Row("  CPU time of the first", ms(own), f"paho {ms(theirs)}", f"{own / theirs:.2f}x the time")
    yield Row(
        "  the first, against the smallest in C", ms(baton), f"mosquitto_pub {ms(pub)}", f"{baton / pub:.1f}x the time"
    )
    yield Row("  and against an empty Python", ms(baton), f"python -c pass {ms(bare)}", f"{baton / bare:.2f}x the time")
    if broker.name == KINDS["nats"]:
        yield run.import_note("baton publish", commands["baton"])


def deliveries(folder: Folder) -> Iterator[Row]:
    """from the call of publish_event to the line a listener prints, in one process"""
    with brokers(folder, tls=(False, True)) as all_brokers:
        for broker in all_brokers:
            calls, arrivals = _deliveries_on(folder, broker)
            p50, p99 = _percentiles(arrivals)
            returned, _ = _percentiles(calls)
            yield Row(f"publish call to printed line, p50 ({broker.name})", ms(p50), f"the call returns {ms(returned)}")
            yield Row("  p99", ms(p99))


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return median(ordered), ordered[len(ordered) * 99 // 100]


def _deliveries_on(folder: Folder, broker: Broker) -> tuple[list[float], list[float]]:
    """The seconds until each call returned, and until each line was printed."""
    where = folder.new("deliver")
    writing = load_settings(env={"HOME": where, **broker.env("worker")}, here=where)
    reading = load_settings(env={"HOME": where, **broker.env("orchestrator")}, here=where)
    job = started_job(writing)
    printed: Queue[tuple[int, float]] = Queue()
    ready = threading.Event()

    def listen() -> None:
        with open_jobs(reading) as jobs, open(os.devnull, "w", encoding="utf-8") as out:
            subscription = Subscription(jobs, reading, [job.job_id])
            if subscription.connect(10):
                ready.set()
            for payload in subscription:
                print(json.dumps(payload, ensure_ascii=False), file=out, flush=True)
                printed.put((payload["seq"], time.perf_counter()))
                if payload["seq"] == DELIVERIES + 1 + _WARM_UP:
                    return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert ready.wait(10), f"{broker.name} did not let us listen"
    assert printed.get(timeout=10)[0] == 1  # from the registry
    calls, arrivals = [], []
    with open_jobs(writing) as jobs:
        for _ in range(DELIVERIES + _WARM_UP):
            start = time.perf_counter()
            published = publish_event(jobs, writing, job.job_id, "progress", detail=DETAIL)
            calls.append(time.perf_counter() - start)
            assert published.sent, published.trouble
            seq, at = printed.get(timeout=10)
            assert seq == published.event.seq
            arrivals.append(at - start)
    listener.join(10)
    return calls[_WARM_UP:], arrivals[_WARM_UP:]


_WARM_UP = 5


def listening(folder: Folder) -> Iterator[Row]:
    """200,000 and 1,000,000 signed events through one listener"""
    with brokers(folder, kinds=("mosquitto",)) as (broker,):
        few, many = (_listen(folder, broker, count) for count in EVENTS)
    for found in (few, many):
        count, tenths = found["count"], found["tenths"]
        yield Row(
            f"listener, {count:,} events of one job, verified and logged",
            f"{found['rate']:,.0f} events/s",
            f"first tenth {tenths[0]:,.0f}/s, last {tenths[-1]:,.0f}/s" if tenths else "",
            "" if count == found["wanted"] else "stopped: too slow",
            f">= {LEAST_A_SECOND:,}/s",
            found["rate"] >= LEAST_A_SECOND,
        )
        yield Row("  a second of CPU time, feeding included", f"{count / found['cpu']:,.0f} events/s")
        yield Row(
            "  memory after them",
            f"{found['after'] / MEGABYTE:.1f} MB",
            f"before {found['before'] / MEGABYTE:.1f} MB, at most {found['most'] / MEGABYTE:.1f} MB",
            f"{found['grown'] / MEGABYTE:+.1f} MB",
            "<= +20 MB",
            found["grown"] <= 20 * MEGABYTE,
        )
    more = many["grown"] - few["grown"]
    yield Row(
        f"  {many['count'] // few['count']} times as many events: more memory",
        f"{more / MEGABYTE:+.1f} MB",
        f"a number for each: {(many['count'] - few['count']) * 51 / MEGABYTE:+.1f} MB",
        "",
        "<= +5 MB",
        more <= 5 * MEGABYTE,
    )
    slower = many["rate"] / few["rate"]
    yield Row("  and speed", f"{slower:.2f}x", "", "", ">= 0.80x", slower >= 0.8)


def _listen(folder: Folder, broker: Broker, count: int) -> dict[str, Any]:
    """What a listener to so many events, in a process of its own, says about itself."""
    where = folder.new("listen")
    settings = load_settings(env={"HOME": where}, here=where)
    path = os.path.join(where, "payloads")
    job = _recorded_job(settings, path, count)
    run = Runner(where, broker.env("orchestrator"))
    child = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--listener", job.job_id, path, str(count)],
        cwd=where, env=run.env, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(child.stdout)
    grown = found["after"] - found["before"]
    return found | {"wanted": count, "rate": found["count"] / found["seconds"], "grown": grown}


def _recorded_job(settings: Settings, path: str, count: int) -> Job:
    """A running job with events 1 to count + 1 in its registry, and the payloads of all but the first in a file."""
    now_ns = time.time_ns()
    job = claim(new_job("Sort these.", now_ns=now_ns, agent="a"), holder="h", now_ns=now_ns, token="")
    full = job.replace(last_seq=count + 1)

    def event(seq: int) -> StoredEvent:
        name = EventName.PROGRESS if seq > 1 else EventName.STARTED
        then_ns = now_ns + seq * SECOND_NS // 1000
        return signed_event(job.replace(last_seq=seq - 1), name, f"{DETAIL} {seq}", {"step": seq}, then_ns)

    with open_jobs(settings) as jobs, open(path, "wb") as file:
        jobs.registry.import_entries([Entry(job=full, events=[event(1)])])
        for first in range(2, count + 2, AT_ONCE):
            events = [event(seq) for seq in range(first, min(first + AT_ONCE, count + 2))]
            jobs.registry.import_entries([Entry(job=full, events=events)])
            file.writelines(each.payload + b"\n" for each in events)
    return job


def listener(job_id: str, path: str, wanted: int) -> None:
    """A process of its own, so that what it holds is the listener's: payloads come from a file into the queue that
    paho's thread fills, and go the whole way from there. The registry has them all; that it shows no more than was
    announced makes every batch a read of its own, as it is when a worker speaks."""
    settings, give_up_sec = load_settings(), wanted / LEAST_A_SECOND * 1.25
    with open_jobs(settings) as jobs:
        subscription = Subscription(jobs, settings, [job_id], log=lambda line: print(line, file=sys.stderr))
        topic = jobs.get_job(job_id).events_topic
        announced, recorded = 1, jobs.events_after

        def events_so_far(job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
            return recorded(job_id, seq, limit=min(limit, announced - seq))

        jobs.events_after = events_so_far  # type: ignore[method-assign]
        assert subscription.connect(10), "the broker does not let us listen"

        def feed() -> None:
            nonlocal announced
            with open(path, "rb") as file:
                for line in file:
                    announced += 1
                    subscription._queue.put((topic, line[:-1]))

        events = iter(subscription)
        assert next(events)["seq"] == 1  # from the registry
        before = most = _resident()
        marks, used = [time.perf_counter()], time.process_time()
        threading.Thread(target=feed, daemon=True).start()
        for count, payload in enumerate(events, start=1):
            assert payload["seq"] == count + 1
            if count % (wanted // 10) == 0:
                marks.append(time.perf_counter())
                most = max(most, _resident())
            if count == wanted or (count % 1000 == 0 and time.perf_counter() - marks[0] > give_up_sec):
                break
        seconds, used = time.perf_counter() - marks[0], time.process_time() - used
        after = _resident()
        events.close()  # type: ignore[attr-defined]  # a generator
        odd = subscription.suspicious()
        assert not odd, odd
    tenths = [wanted / 10 / (end - start) for start, end in pairwise(marks)]
    found = {"count": count, "seconds": seconds, "cpu": used, "tenths": tenths}
    json.dump(found | {"before": before, "after": after, "most": most}, sys.stdout)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def local_broker(folder: Folder) -> Iterator[Row]:
    """the local broker, from nothing to accepting a connection"""
    accepting, answering, again = [], [], []
    for _ in range(size(5, 1)):
        state = folder.new("state")
        try:
            accepting.append(timed(partial(running_broker, state)))
            address = running_broker(state).address(reading=False)
            answering.append(accepting[-1] + timed(partial(PublisherConnection, address)))
            again.append(timed(partial(running_broker, state)))
        finally:
            stop_broker(state)
    took = median(accepting)
    yield Row(
        "local broker, from nothing to accepting a connection",
        ms(took),
        f"worst of five {ms(max(accepting))}",
        "",
        "<= 300 ms",
        took <= 0.3,
    )
    yield Row("  to its answer to the first login", ms(median(answering)))
    yield Row("  found again while it runs", ms(median(again)))


PARTS: dict[str, Callable[[Folder], Iterator[Row | str]]] = {
    "publish": fresh_publishers,
    "deliver": deliveries,
    "listen": listening,
    "broker": local_broker,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Holds publishing and listening to their limits of speed.")
    parser.add_argument("--listener", nargs=3, help=argparse.SUPPRESS)
    options = chosen_parts(parser, PARTS)
    if options.listener:
        job_id, path, count = options.listener
        listener(job_id, path, int(count))
        return 0
    return run_parts(PARTS, options.part)


if __name__ == "__main__":
    sys.exit(main())
