"""Record events. `report` is the only way to record one, and the only place that verifies `completed`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from baton.core import lifecycle
from baton.core.errors import BatonError, InvalidValue, NotVerified
from baton.core.event import EventName, StoredEvent, check_event_name
from baton.core.job import Job, Status
from baton.core.redact import Redactor, shorten, without_keys
from baton.core.value import Any
from baton.jobs.verbs import Jobs
from baton.wire.payload import MAX_DETAIL_BYTES


def report(
    jobs: Jobs,
    job_id: str,
    event: str,
    *,
    detail: str = "",
    data: Mapping[str, Any] | None = None,
    attempt: int | None = None,
    verify: bool | None = True,
    ended_by: str = "agent",
    reason: str | None = None,
    message: str | None = None,
    validation: str | None = None,
    parked: Mapping[str, Any] | None = None,
    confirm: Callable[[], None] | None = None,
) -> tuple[Job, StoredEvent]:
    """Record an event of a job, with the status it brings and its history lines. Return the job after it and the event.

    The event is signed and unsent. Paths and secrets are removed from `detail` and `data`; a long `detail` is cut.
    `verify` is for `completed`, as in `verify_results`; None skips the check without a note.
    An error of a job with retries left is recorded as progress, and the job is pending again.
    Of an event that ends the job: `ended_by` and `reason` are for the record, `message` and `validation` for the result
    (`baton.core.result`). Without them, the reason is the detail as it was given; so is the message of `completed`.
    `parked`, of an error at a usage limit: the job is pending again, and goes on after it (`baton.core.parking`).
    They hold all but baton's own keys: they stay with the user.
    `confirm` is called between the verification and the record, by the runner, which knows whether the agent works.
    """
    name = check_event_name(event)
    if not isinstance(detail, str):
        raise InvalidValue("detail", f"must be text, not {type(detail).__name__}")
    if not isinstance(data, Mapping | None):
        raise InvalidValue("data", f"must be values by name, not {type(data).__name__}")
    job = jobs.get_job(job_id)
    redactor = jobs.redactor(job)
    # Before the validation, which may write files.
    outcome: dict[str, Any] = {"changed": has_changes(job)} if name.is_terminal else {}
    if verify is not None and name is EventName.COMPLETED:
        # First, so that no validation runs for a job that has ended or for a holder that lost it.
        lifecycle.check_event(job, name, attempt=attempt, has_events=False)
        if confirm is None and "BATON_SESSION_DIR" in os.environ:
            from baton.jobs.activity_file import refuse_open_work

            refuse_open_work(job)
        verified, validation = verify_results(jobs, job, redactor, skip=not verify)
        outcome |= verified
        if confirm is not None:
            confirm()
    result = None
    if name.is_terminal:
        from baton.core.result import new_result

        outcome |= {"ended_by": ended_by, "parked": parked} if parked else {"ended_by": ended_by}
        given = detail if reason is None else reason
        if reason := shorten(without_keys(given, jobs.keys(job)).strip(), MAX_DETAIL_BYTES):
            outcome["reason"] = reason
        if message is None and name is EventName.COMPLETED:
            message = detail
        result = new_result(message, validation, jobs.keys(job))
    detail = shorten(redactor.text(detail, 2 * MAX_DETAIL_BYTES), MAX_DETAIL_BYTES)  # guard: redact-detail
    try:
        data = redactor.value(data or {})
    except RecursionError:
        raise InvalidValue("data", "cannot be sent: nested too deeply") from None
    holder = jobs.holder_here()
    recorded = jobs.registry.record_event(
        job_id, name, detail=detail, data=data, attempt=attempt, holder=holder, outcome=outcome, result=result
    )
    is_retried = name is EventName.ERROR and recorded.after.status is Status.PENDING
    what = "parked" if parked else "attempt failed"
    jobs.history.add_change(recorded.before, recorded.after, f"{what}: {detail}" if is_retried else None)
    jobs.history.add_event(recorded.event)
    return recorded.after, recorded.event


def has_changes(job: Job) -> bool | None:
    """Return whether a job has left a change in its worktree; None if it has none, or it cannot be looked at here."""
    path, folder = (job.checkout or {}).get("path"), job.folder
    if job.worktree is None or path is None or folder is None:
        return None
    from baton.worktrees import contents, trees

    try:
        tree = trees.read(path)
        expected = [os.path.relpath(os.path.join(folder, name), path) for name in job.expected_artifacts]
        return None if tree is None else contents.has_changes(tree, expected)
    except (BatonError, OSError, ValueError):
        return None  # it is on another host, was removed, or git does not understand it


def verify_results(jobs: Jobs, job: Job, redactor: Redactor, *, skip: bool) -> tuple[dict[str, Any], str | None]:
    """Check the results of a job that is to be completed. Return the fields of the record that say how it was verified,
    and what its validation printed.

    Raise NotVerified while a result is missing. `skip`: do not check, and note who skipped it. Agents may not."""
    from baton.core.result import hide_keys
    from baton.jobs.caller import refuse_inside_session
    from baton.jobs.verification import Findings, check_results, checks_of

    if skip:
        refuse_inside_session("--no-verify")
    if not (checks := checks_of(job)):
        return {}, None
    found = Findings(problems=[]) if skip else check_results(job)
    skipped_by = jobs.user_here() if skip else None
    redacted = [redactor.text(problem) for problem in found.problems]  # guard: redact-validation
    jobs.history.add_validation(job.job_id, redacted, skipped_by=skipped_by)
    validation = None if found.validation is None else hide_keys(found.validation, jobs.keys(job))
    if found.problems:
        why = f"not completed: {hide_keys('; '.join(found.problems), jobs.keys(job))}"
        raise NotVerified(f"job {job.job_id} is {why}; fix this and publish again", why, validation)
    return ({"unverified": skipped_by} if skip else {"verified_by": tuple(checks)}), validation
