"""R5: the broker dies and comes back while events are published: none is lost, none is applied twice."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest

from baton.config import Settings
from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from baton.transport.publish import publish_event, send_unsent
from baton.transport.subscription import Subscription
from support.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Callable


JOBS = 3
PACE_SEC = 0.01  # a broker that is away for a minute is not buried under what one publisher can say in that time


@pytest.mark.timeout(900)
def test_a_broker_that_dies_loses_nothing(broker, tmp_path, figure, full, seed):
    chance, began = Random(seed), time.monotonic()
    settings = Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | broker.env)
    with open_jobs(settings) as jobs:
        ids = [jobs.register_job("x", agent="a").job_id for _ in range(JOBS)]
    enough = str(tmp_path / "enough")
    outages = [0.0] * (20 if full else 3) + ([1.0, 10.0, 60.0] if full else [1.0])
    chance.shuffle(outages)
    with Crew() as crew:
        crew.fork(_listen, settings, ids)
        crew.hear_word("listening")
        crew.fork(_publish, settings, ids, 1000 if full else 300, enough)
        published, seen, codes = defaultdict(list), defaultdict(list), []

        def take(words: list) -> None:
            match words:
                case ["published", job_id, seq, sent]:
                    published[job_id].append((seq, sent))
                case ["seen", job_id, seq]:
                    seen[job_id].append(seq)
                case ["ended", *rest]:
                    codes.append(rest)

        for down_sec in outages:
            _hear_for(crew, take, chance.uniform(0.2, 0.8))
            broker.kill()
            _hear_for(crew, take, down_sec)
            broker.start()
        _hear_for(crew, take, 0.5)
        os.close(os.open(enough, os.O_CREAT))
        for words in crew.hear_out(120):
            take(words)
        failures = crew.failures
    lost = twice = disordered = unsent = 0
    with open_jobs(settings) as jobs:
        for job_id in ids:
            events = jobs.events_after(job_id, limit=10**6)
            recorded = [event.seq for event in events]
            acknowledged = [seq for seq, _ in published[job_id]]
            lost += len(set(acknowledged) - set(recorded)) + len(set(recorded) - set(seen[job_id]))
            twice += len(seen[job_id]) - len(set(seen[job_id])) + len(recorded) - len(set(recorded))
            disordered += seen[job_id] != sorted(seen[job_id])
            send_unsent(jobs, settings, jobs.get_job(job_id))
            numbers = [json.loads(event.payload)["data"].get("number", 0) for event in events[:-1]]
            disordered += numbers != sorted(numbers)
            assert verify_log(job_id, jobs.logs_dir).damage == []
            assert jobs.get_job(job_id).status == "completed"
        unsent = len(jobs.unsent_events())
    every = [sent for each in published.values() for _, sent in each]
    text = (
        f"{len(every):,} events ({every.count(False):,} while it was away), {len(outages)} kills, "
        f"away for {', '.join(f'{sec:g}' for sec in sorted(outages) if sec)} s: {lost} lost, {twice} twice, "
        f"{disordered} jobs out of order, {unsent} unsent, in {time.monotonic() - began:.0f} s"
    )
    ended = [each[0] for each in codes] == [0]
    if failures or not ended:
        text += f"; listeners: {codes} {failures}"
    held = ended and not (failures or lost or twice or disordered or unsent)
    figure(f"R5 broker outages ({broker.kind})", text, held=held, seed=seed)


def _hear_for(crew: Crew, take: Callable[[list], None], seconds: float) -> None:
    """Listens for all of that time, also when nobody says anything for a while."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for words in crew.hear(left):
            take(words)


def _listen(say: Callable[..., None], settings: Settings, ids: list[str]) -> None:
    with open_jobs(settings) as jobs:
        subscription = Subscription(jobs, settings, ids, timeout_sec=800, idle_timeout_sec=60)
        assert subscription.connect(wait_sec=20)
        say("listening")
        for payload in subscription:
            say("seen", payload["job_id"], payload["seq"])
        say("ended", subscription.exit_code, dict(subscription.rejected))


def _publish(say: Callable[..., None], settings: Settings, ids: list[str], count: int, enough: str) -> None:
    """Says what it published only after it was told that the registry has it."""
    with open_jobs(settings) as jobs:

        def publish(job_id: str, event: str, **data: int) -> None:
            published = publish_event(jobs, settings, job_id, event, data=data, tries=1)
            say("published", job_id, published.event.seq, published.sent)

        for job_id in ids:
            publish(job_id, "started")
        number = 0
        while number < count or not os.path.exists(enough):
            number += 1
            publish(ids[number % len(ids)], "progress", number=number)
            time.sleep(PACE_SEC)  # the pace of the load
        for job_id in ids:
            publish(job_id, "completed")
