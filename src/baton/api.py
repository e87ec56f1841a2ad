"""The verbs of jobs as functions, for a script that makes one call: each opens the registry and closes it again.

Every function takes, as keywords, where to look: `home`, `registry` (a url), `registry_dir`, `logs_dir`, `state_dir`;
and `tmux_socket` and `allow_plaintext`, as the options of the command. What is not given comes from the environment
and the config file, as on the command line.
"""

from __future__ import annotations

from baton.core.errors import BatonError, InvalidValue
from baton.jobs import verbs as _jobs
from baton.storage.homes import load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, TypedDict, Unpack

    from baton.core.event import StoredEvent
    from baton.core.job import Job
    from baton.core.request import Request
    from baton.jobs.results import JobResult
    from baton.registry.contract import JobFilter, Page
    from baton.transport.publish import Published
    from baton.transport.subscription import Subscription
    from baton.wire.payload import Event

    class Where(TypedDict, total=False):
        home: str | None
        registry: str | None
        registry_dir: str | None
        logs_dir: str | None
        state_dir: str | None
        tmux_socket: str | None
        allow_plaintext: bool | None


def open_jobs(**where: Unpack[Where]) -> _jobs.Jobs:
    """Open the registry with its audit log, for a `with` block."""
    return _jobs.open_jobs(load_settings(where))


def register_job(
    prompt: str,
    *,
    agent: str | None = None,
    agent_session: str | None = None,
    broker: Mapping[str, Any] | None = None,
    timeout_sec: int | None = None,
    idle_timeout_sec: int | None = None,
    tool_timeout_sec: int | None = None,
    background_timeout_sec: int | None = None,
    expected_artifacts: Iterable[str] = (),
    workdir: str | None = None,
    max_attempts: int = 1,
    priority: int = 0,
    validate: str | None = None,
    labels: Iterable[str] = (),
    title: str | None = None,
    idempotency_key: str | None = None,
    after: Iterable[str] = (),
    not_before: str | None = None,
    retries: int = 0,
    backoff_sec: int = 0,
    on_limit: str | None = None,
    budget_usd: float | None = None,
    **where: Unpack[Where],
) -> Job:
    """Register a pending job and return it. Raise InvalidValue, and write nothing, if an argument is not valid.

    It starts when the jobs in `after` are completed, and not before `not_before` (such as 2026-06-19T09:30:00Z). After
    an error it is pending again, `retries` times, after a pause of `backoff_sec` that doubles.
    If a job for the same work has this `idempotency_key` already, return that job; raise KeyTaken for other work."""
    from baton.adapters import allowed_silence
    from baton.broker.address import broker_record

    settings = load_settings(where)
    agent, timeout_sec = agent or settings.agent, settings.timeout_sec if timeout_sec is None else timeout_sec
    if idle_timeout_sec is None:
        idle_timeout_sec = allowed_silence(settings, agent, timeout_sec)
    with _jobs.open_jobs(settings) as jobs:
        return jobs.register_job(
            prompt,
            agent=agent,
            agent_session=agent_session,
            broker=broker_record(settings) if broker is None else broker,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
            tool_timeout_sec=settings.tool_timeout_sec if tool_timeout_sec is None else tool_timeout_sec,
            background_timeout_sec=background_timeout_sec or settings.background_timeout_sec,
            expected_artifacts=expected_artifacts,
            workdir=workdir,
            max_attempts=max_attempts,
            priority=priority,
            validate=validate,
            labels=labels,
            title=title,
            idempotency_key=idempotency_key,
            after=jobs.find_predecessors(after),
            not_before=not_before,
            retries=retries,
            backoff_sec=backoff_sec,
            on_limit=on_limit or settings.on_limit,
            budget_usd=budget_usd,
        )


def get_job(job_id: str, **where: Unpack[Where]) -> Job:
    """Return the job; raise JobNotFound if there is none with that id."""
    from baton.delegation.looking import may_be_lost, settle_lost

    settings = load_settings(where)
    with _jobs.open_jobs(settings) as jobs:
        job = jobs.get_job(job_id)
        if not may_be_lost(settings, job):
            return job
        settle_lost(settings, jobs)
        return jobs.get_job(job_id)


def list_jobs(
    condition: JobFilter | None = None, *, limit: int = 50, after: str | None = None, **where: Unpack[Where]
) -> Page:
    """Return one page of jobs, newest first. Pass `page.next` as `after` for the next page."""
    from baton.delegation.looking import settle_lost

    settings = load_settings(where)
    with _jobs.open_jobs(settings) as jobs:
        settle_lost(settings, jobs)
        return jobs.list_jobs(condition, limit=limit, after=after)


def pick_pending(
    agent_session: str, *, holder: str | None = None, lease_sec: float | None = None, **where: Unpack[Where]
) -> Job | None:
    """Claim the next pending job of that queue; return None if there is none. No two callers get the same job."""
    with open_jobs(**where) as jobs:
        return jobs.pick_pending(agent_session, holder=holder, lease_sec=lease_sec)


def update_status(job_id: str, status: str, *, attempt: int | None = None, **where: Unpack[Where]) -> Job:
    """Set a status that may follow the present one; raise IllegalTransition otherwise."""
    with open_jobs(**where) as jobs:
        return jobs.update_status(job_id, status, attempt=attempt)


def next_seq(job_id: str, *, attempt: int | None = None, **where: Unpack[Where]) -> int:
    """Take the job's next event number without recording an event."""
    with open_jobs(**where) as jobs:
        return jobs.next_seq(job_id, attempt=attempt)


def record_event(
    job_id: str,
    event: str,
    *,
    detail: str = "",
    data: Mapping[str, Any] | None = None,
    attempt: int | None = None,
    **where: Unpack[Where],
) -> StoredEvent:
    """Record a signed event of the job. It is unsent until a publisher sends it."""
    with open_jobs(**where) as jobs:
        return jobs.record_event(job_id, event, detail=detail, data=data, attempt=attempt)


def publish_event(
    job_id: str,
    event: str,
    *,
    detail: str = "",
    data: Mapping[str, Any] | None = None,
    attempt: int | None = None,
    verify: bool = True,
    **where: Unpack[Where],
) -> Published:
    """Record the event and send it.

    If no broker can be reached, the event is safe in the registry, `sent` is False, and `trouble` is the reason. Raise
    NotVerified for `completed` while the expected results are missing."""
    from baton.transport.publish import publish_event as publish

    settings = load_settings(where)
    with _jobs.open_jobs(settings) as jobs:
        return publish(jobs, settings, job_id, event, detail=detail, data=data, attempt=attempt, verify=verify)


def subscribe(
    *job_ids: str,
    follow_all: bool = False,
    timeout_sec: float | None = None,
    idle_timeout_sec: float | None = None,
    **where: Unpack[Where],
) -> Subscription:
    """Return an iterator over the events of these jobs: payloads without their signature, each once and in order.

    It ends when the jobs have ended or a limit is reached (by default the largest limits of the jobs). Then its
    `exit_code`, `outcomes()` and `timed_out` say how it ended."""
    from baton.transport.subscription import Subscription

    settings = load_settings(where)
    jobs = _jobs.open_jobs(settings)
    try:
        return Subscription(
            jobs,
            settings,
            job_ids,
            follow_all=follow_all,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
            owns_jobs=True,
        )
    except BaseException:
        jobs.registry.close()
        raise


def result(job_id: str, **where: Unpack[Where]) -> JobResult:
    """Return what an ended job left: the agent's last message, its files, the end of the validation's output.

    Raise BatonError if the job has not ended."""
    from baton.core.job import TERMINAL
    from baton.delegation.looking import settle_lost
    from baton.jobs.results import JobResult, result_record

    settings = load_settings(where)
    with _jobs.open_jobs(settings) as jobs:
        settle_lost(settings, jobs)
        job = jobs.get_job(job_id)
        if job.status not in TERMINAL:
            raise BatonError(f"job {job_id} is still {job.status}; baton.wait waits for its end")
        jobs.mark_seen([job])
        return JobResult(**result_record(job, jobs.get_result(job_id), settings.home))


def read_output(job_id: str, **where: Unpack[Where]) -> Iterator[bytes]:
    """Return an iterator over the output of the job's last attempt so far, in pieces: what its agent printed.

    Raise BatonError if there is none in this home: the job ran on another host, or was not started yet."""
    from baton.core.job import TERMINAL
    from baton.jobs.output import OutputReader
    from baton.sessions.inventory import Inventory

    settings = load_settings(where)
    with _jobs.open_jobs(settings) as jobs:
        job = jobs.get_job(job_id)
    reader = OutputReader(settings.home, job)
    if not reader.exists() and job.status in TERMINAL:
        Inventory(settings).wait_for_end_of(job_id)
    if not reader.exists():
        raise BatonError(f"job {job_id} is {job.status} and has no output here; it is kept where the job ran")
    return reader.read()


def requests(job_id: str | None = None, **where: Unpack[Where]) -> list[Request]:
    """Return the open requests of a job, or of all jobs, oldest first: what agents ask, each with its whole call."""
    from baton.jobs.requests import list_open

    with open_jobs(**where) as jobs:
        return list_open(jobs, job_id)


def approve(request_id: str, *, for_job: bool = False, inexact: bool = False, **where: Unpack[Where]) -> Request:
    """Allow what an agent asks; with `for_job` also later calls of its job that are equal. Return the request as it is
    when the agent has shown what it does with the answer, at most 2 s later: it goes on if `applied` is "yes".

    Raise AnswerNotUsed if the agent did something else, RequestClosed, which says who answered what and when, if the
    request is closed. Raise BatonError for the id of a job, and for a call that is not exact, unless `inexact`."""
    scope = "job" if for_job else "once"
    return _answer(request_id, lambda _: {"answer": "allow", "scope": scope}, inexact=inexact, to_allow=True, **where)


def deny(request_id: str, *, reason: str = "", **where: Unpack[Where]) -> Request:
    """Deny what an agent asks, and give the agent the reason. Return the request; raise RequestClosed as `approve`."""
    return _answer(request_id, lambda _: {"answer": "deny", "reason": reason}, **where)


def answer(request_id: str, *choices: str, own_words: bool = False, **where: Unpack[Where]) -> Request:
    """Answer the question of an agent: with a choice by number or text, or `own_words`; several questions each as
    `1=CHOICE`. Return the request; raise RequestClosed as `approve`, InvalidValue for a choice that does not exist."""
    from baton.jobs.requests import choose

    return _answer(
        request_id,
        lambda request: {"answer": "allow", "choices": choose(request, choices, own_words=own_words)},
        **where,
    )


def _answer(
    request_id: str,
    decide: Callable[[Request], dict[str, Any]],
    *,
    inexact: bool = False,
    to_allow: bool = False,
    **where: Unpack[Where],
) -> Request:
    from baton.core.request import Answer
    from baton.jobs.requests import answer_by_hand, find_request, use_answer

    with open_jobs(**where) as jobs:
        request = find_request(jobs, request_id, to_allow=to_allow)
        given = Answer(by="", via="python", **decide(request))
        return use_answer(jobs, answer_by_hand(jobs, request.request_id, given, inexact=inexact))


def verify_event(payload: bytes, auth_token: str) -> Event:
    """Return the event in a payload that is valid and signed with that key; raise Rejected otherwise."""
    for name, value, kind in (("payload", payload, bytes), ("auth_token", auth_token, str)):
        if not isinstance(value, kind):
            raise InvalidValue(name, f"must be {kind.__name__}, not {type(value).__name__}")
    from baton.wire.payload import check_signature, parse_event

    event = parse_event(payload)
    check_signature(event, auth_token)
    return event


def renew_lease(job_id: str, *, attempt: int, lease_sec: float, **where: Unpack[Where]) -> Job:
    """Extend the holder's lease to `lease_sec` from now. Raise StaleAttempt if it has lost the job."""
    with open_jobs(**where) as jobs:
        return jobs.renew_lease(job_id, attempt=attempt, lease_sec=lease_sec)


def release(job_id: str, *, attempt: int, **where: Unpack[Where]) -> Job:
    """Return the holder's job to pending."""
    with open_jobs(**where) as jobs:
        return jobs.release(job_id, attempt=attempt)


def requeue(job_id: str, *, reason: str = "requeued", **where: Unpack[Where]) -> Job:
    """Take a running job from its holder and return it to pending."""
    with open_jobs(**where) as jobs:
        return jobs.release(job_id, reason=reason)


def events_after(job_id: str, seq: int = 0, *, limit: int = 1000, **where: Unpack[Where]) -> list[StoredEvent]:
    """Return the job's events with a higher number, in order."""
    with open_jobs(**where) as jobs:
        return jobs.events_after(job_id, seq, limit=limit)


def unsent_events(*, job_id: str | None = None, limit: int = 1000, **where: Unpack[Where]) -> list[StoredEvent]:
    """Return the events that no broker has acknowledged yet, in order for each job."""
    with open_jobs(**where) as jobs:
        return jobs.unsent_events(job_id=job_id, limit=limit)


def mark_sent(job_id: str, seqs: Iterable[int], **where: Unpack[Where]) -> None:
    """Mark these events as acknowledged by a broker."""
    with open_jobs(**where) as jobs:
        jobs.mark_sent(job_id, seqs)


def stats(**where: Unpack[Where]) -> dict[str, int]:
    """Return the number of jobs by status, and of `unsent` events."""
    with open_jobs(**where) as jobs:
        return jobs.stats()
