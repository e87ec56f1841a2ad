"""R11: many processes answer the same requests at once. Each request has one answer, every other process learns who
gave it, and the agent gets that one."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing

import pytest

from baton.core.drafts import new_job
from baton.core.errors import RequestClosed
from baton.core.request import Answer, Request, RequestKind, new_request_id
from baton.registry import open_url
from support.backends import registry_url
from support.crew import Crew
from support.memory import folder_in_memory

PROCESSES = 16
OF_A_JOB = 10


@pytest.mark.timeout(1800)
def test_of_many_answers_one_counts(backend, request, figure, full, seed):
    server = request.getfixturevalue("postgres") if backend == "postgresql" else None
    size = 10_000 if full else 500
    with folder_in_memory() as folder:
        url = registry_url(backend, os.path.join(folder, "jobs"), server)
        asked = _ask_in_a_process(url, size)
        won, lost, got, failures = _answer(url, asked)
        with closing(open_url(url)) as registry:
            kept = {each.request_id: each for each in registry.list_requests(open_only=False, limit=size + 1)}
            left_open = registry.list_requests()

    winners = Counter(request_id for request_id, _, _ in won)
    first = {request_id: (who, answer) for request_id, who, answer in won}
    twice = sum(count > 1 for count in winners.values())
    unanswered = size - len(winners) + len(left_open)
    misled = sum(first.get(request_id) != (who, answer) for request_id, who, answer in lost)
    differing = sum((each.answered_by, each.answer) != first.get(each.request_id) for each in kept.values())
    wrong = sum(first.get(request_id) != (who, answer) for request_id, who, answer in got)
    figure(
        f"R11 answers ({backend})",
        f"{len(kept):,} requests, {PROCESSES} processes, {len(lost):,} answers refused: {twice} answered twice, "
        f"{unanswered} unanswered, {misled + differing} informed of another answer, "
        f"{wrong + size - len(got)} agents with another or none"
        + "".join(f"\n{trace.strip().splitlines()[-1]}" for trace in failures[:3]),
        held=len(kept) == size
        and len(lost) == size * (PROCESSES - 1)
        and len(got) == size
        and not (twice or unanswered or misled or differing or wrong or failures),
        seed=seed,
    )


def _ask_in_a_process(url: str, size: int) -> list[str]:
    """In a process of its own, so that none is forked from one that has the registry open."""

    def ask(say) -> None:
        with closing(open_url(url)) as registry:
            for _ in range(size // OF_A_JOB):
                draft = new_job("x", now_ns=time.time_ns(), agent="crash")
                job = registry.pick_job(registry.register_job(draft).job_id, holder="agent").after
                ids = [
                    registry.open_request(job.job_id, _question(number), attempt=1).after.request_id
                    for number in range(OF_A_JOB)
                ]
                say("asked", *ids)

    with Crew() as crew:
        crew.fork(ask)
        return [request_id for words in crew.hear_out(600) for request_id in words[1:]]


def _question(number: int) -> Request:
    return Request(
        request_id=new_request_id(),
        job_id="00000000",
        attempt=1,
        key=str(number),
        kind=RequestKind.TOOL,
        agent_ref=None,
        tool="Bash",
        call={"command": f"step {number}"},
        call_sha256=None,
        exact=True,
        summary=f"Bash: step {number}",
        options=(),
        asked_at="2026-01-01T00:00:00Z",
    )


def _answer(url: str, asked: list[str]) -> tuple[list, list, list, list[str]]:
    """Return what the winners, the losers and the agent say: the request, who answered it, and how."""

    def answer(say, number: int) -> None:
        mine = Answer(answer="allow" if number % 2 else "deny", by=f"user {number}", via="cli")
        with closing(open_url(url)) as registry:
            for request_id in asked:
                try:
                    given = registry.answer_request(request_id, mine).after
                    say("won", request_id, given.answered_by, given.answer)
                except RequestClosed as error:
                    say("lost", request_id, error.request.answered_by, error.request.answer)

    def deliver(say) -> None:
        with closing(open_url(url)) as registry:
            for request_id in asked:
                while True:
                    stamp = registry.answers_stamp()
                    found = registry.get_request(request_id)
                    if found.state == "answered":
                        break
                    while registry.answers_stamp() == stamp:
                        time.sleep(0.002)  # as a runner does
                registry.note_sent(request_id)
                say("got", request_id, found.answered_by, found.answer)

    with Crew() as crew:
        crew.fork(deliver)
        for number in range(PROCESSES):
            crew.fork(answer, number)
        heard = [tuple(words) for words in crew.hear_out(1200)]
    told = [[words[1:] for words in heard if words[0] == kind] for kind in ("won", "lost", "got")]
    return told[0], told[1], told[2], crew.failures
