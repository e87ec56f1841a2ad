"""R7: in whatever order, and however often, the events of a job arrive, a listener passes on the same story."""

from __future__ import annotations

import time
from itertools import permutations
from random import Random

import pytest

from baton.config import Settings
from baton.core import lifecycle
from baton.core.drafts import new_job
from baton.core.errors import Rejected
from baton.core.event import EventName, StoredEvent
from baton.core.job import Job, Status
from baton.transport import followed_jobs
from baton.transport.subscription import Subscription
from baton.wire.payload import parse_event, signed_event
from support.clock import FakeClock

NOW_NS = 1_750_000_000 * 10**9
RANDOM_ORDERS = 50_000
ONE_ATTEMPT = ("started", "progress", "permission_required", "progress", "progress", "completed")
TWO_ATTEMPTS = ("started", "progress", "requeued", "started", "progress", "permission_required", "error")
HISTORIES = {"one attempt": ONE_ATTEMPT, "two attempts": TWO_ATTEMPTS}


class Story:
    """The six events of a job, and the job as the registry has it after each number of them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        job = new_job("x", now_ns=NOW_NS, agent="a", max_attempts=2)
        self.jobs: list[Job] = [job]
        self.events: list[StoredEvent] = []
        for name in names:
            if name == "requeued":
                job = lifecycle.requeue(job, attempt=job.attempt, now_ns=NOW_NS)
                continue
            if job.status is Status.PENDING:
                job = lifecycle.claim(job, holder="h", now_ns=NOW_NS, token=f"token {len(self.events)}")
            event = signed_event(job, EventName(name), "", {}, NOW_NS)
            status = {"completed": Status.COMPLETED, "error": Status.ERROR}.get(name, job.status)
            job = job.replace(last_seq=event.seq, status=status)
            self.events.append(event)
            self.jobs.append(job)
        self.outcome = job.status
        assert [event.seq for event in self.events] == [1, 2, 3, 4, 5, 6]

    @property
    def topic(self) -> str:
        return self.jobs[0].events_topic


class SmallRegistry:
    """The registry and the audit log of one story, of which the first `visible` events have happened."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.visible = 0
        self.received: list[int] = []
        self.history = self

    def get_job(self, job_id: str) -> Job:
        return self._story.jobs[self.visible]

    def events_after(self, job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        return self._story.events[seq : self.visible]

    def add_received(self, job, payloads: list[dict], known: object) -> None:
        self.received += [payload["seq"] for payload in payloads]

    def add_rejected(self, job_id: str, reason: str) -> None:
        pass


# What the registry knows when a message is heard; `heard` are the numbers heard so far, this one included.
KNOWN = {
    "everything recorded": lambda heard: 6,
    "recorded as sent": max,  # an event is recorded before it is sent, and those before it were recorded earlier
    "recorded late": lambda heard: len(set(heard)) - 1,  # worse than any backend: the wire is ahead of the registry
}


class Ticking(FakeClock):
    def monotonic_ns(self) -> int:
        self.advance(1)  # a second between any two looks at the clock
        return self.monotonic


def heard_in(order: tuple[int, ...], story: Story, known, settings: Settings):
    """What a listener makes of messages that arrive in that order, and then of the registry."""
    registry = SmallRegistry(story)
    subscription = Subscription(registry, settings, [story.jobs[0].job_id], clock=Ticking())
    passed, odd = [], []
    for position, seq in enumerate(order, start=1):
        registry.visible = known(order[:position])
        old, refused = seq in passed, subscription.rejected.total()
        new = [
            payload["seq"]
            for payload in subscription.events.from_messages([(story.topic, story.events[seq - 1].payload)])
        ]
        if old and subscription.rejected.total() != refused + 1:
            odd.append(f"{seq} came again and was not refused")
        if 6 in new and registry.visible < 6:
            odd.append("the end was told before the registry had it")
        passed += new
    registry.visible = 6
    passed += [payload["seq"] for payload in subscription.events.from_registry()]
    (outcome,) = subscription.outcomes().values()
    return passed, outcome, subscription.exit_code, odd


def every_order() -> list[tuple[int, ...]]:
    """All 15,120 distinct orders of six events of which one comes twice."""
    orders = set()
    for twice in range(1, 7):
        orders.update(permutations((1, 2, 3, 4, 5, 6, twice)))
    assert len(orders) == 6 * 2520
    return sorted(orders)


def random_order(chance: Random) -> tuple[int, ...]:
    """Worse than a duplicate: any number of messages, each any event, so that some come often and some never."""
    return tuple(chance.choices(range(1, 7), k=chance.randrange(1, 15)))


@pytest.fixture
def settings(tmp_path):
    return Settings(env={"HOME": str(tmp_path)})


@pytest.fixture(autouse=True)
def _same_bytes_same_answer(monkeypatch):
    """Reading and verifying are functions of the bytes alone, with tests of their own: a payload that comes for the
    hundred-thousandth time is not computed again, which leaves time for every order instead of some."""

    def remembered(function, key):
        answers = {}

        def answer(*arguments):
            if (known := key(*arguments)) not in answers:
                try:
                    answers[known] = function(*arguments), None
                except Rejected as why:
                    answers[known] = None, (why.reason, str(why))
            result, refusal = answers[known]
            if refusal:
                raise Rejected(*refusal)
            return result

        return answer

    monkeypatch.setattr(followed_jobs, "parse_event", remembered(followed_jobs.parse_event, lambda raw: raw))
    signed = remembered(followed_jobs.check_signature, lambda event, token: (event.signature, token))
    monkeypatch.setattr(followed_jobs, "check_signature", signed)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("history", HISTORIES)
def test_every_order_tells_the_same_story(history, known, settings, figure, full, seed):
    story, chance, began = Story(HISTORIES[history]), Random(seed), time.monotonic()
    right = ([1, 2, 3, 4, 5, 6], story.outcome, 0 if story.outcome is Status.COMPLETED else 1, [])
    orders = every_order()
    if full:
        orders += [random_order(chance) for _ in range(RANDOM_ORDERS)]
    wrong = [order for order in orders if heard_in(order, story, KNOWN[known], settings) != right]
    text = f"{len(orders):,} orders in {time.monotonic() - began:.1f} s, {len(wrong)} told otherwise"
    figure(f"R7 every order ({history}, {known})", f"{text} {wrong[:1] or ''}".strip(), held=not wrong, seed=seed)


def judged(job, event):
    """Why a listener that knows the job like this has no use for that event; None when it has."""
    cursor = followed_jobs.JobCursor(job)
    cursor.settle()
    try:
        cursor.check(parse_event(event.payload))
    except Rejected as error:
        return error.reason
    return None


def test_an_event_of_another_attempt_is_not_of_this_one_even_with_its_key():
    job = lifecycle.claim(new_job("x", now_ns=NOW_NS, agent="a"), holder="h", now_ns=NOW_NS, token="token")
    said = signed_event(job, EventName.PROGRESS, "", {}, NOW_NS)
    assert judged(job, said) is None
    assert judged(job.replace(attempt=2), said) == "attempt"


def test_nothing_is_news_after_the_end():
    job = lifecycle.claim(new_job("x", now_ns=NOW_NS, agent="a"), holder="h", now_ns=NOW_NS, token="token")
    said = signed_event(job, EventName.PROGRESS, "", {}, NOW_NS)
    assert judged(job.replace(status=Status.COMPLETED), said) == "lifecycle"
