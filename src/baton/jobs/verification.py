"""Verify the results of a job: the files it must leave behind, and the command that validates them."""

from __future__ import annotations

import os

from baton.core.clock import SECOND_NS, parse_time
from baton.core.job import EXPECT, VALIDATE
from baton.core.result import MAX_VALIDATION_BYTES, last_lines
from baton.core.value import Value
from baton.jobs.caller import origin_of
from baton.jobs.job_history import SKIPPED
from baton.origin import is_inside_session
from baton.storage.files import outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

VALIDATE_TIMEOUT_SEC = 600
_LAST_LINE = 200
_CHECK_CHARS = 1000
_PIPE_BYTES = 65536
_LOOK_SEC = 0.02


class Findings(Value):
    """What is missing before a job may be completed, in words an agent can act on, and the end of what its validation
    printed; None if that did not run to its end."""

    problems: list[str]
    validation: str | None = None


def check_results(job: Job, *, timeout_sec: float = VALIDATE_TIMEOUT_SEC) -> Findings:
    """Look for the files that the job must leave behind; if all are there, run its validation."""
    # Not with the environment of an agent: its PATH could name other programs than the user's.
    origin = origin_of(job)  # guard: validation-environment
    if origin is None and (job.validate or job.folder is None) and is_inside_session():  # guard: hidden-environment
        why = "the environment of its session cannot be read from here; end, and baton verifies the work"
        return Findings(problems=[why])
    try:
        folder = job.folder or (origin.workdir if origin else os.getcwd())
    except OSError:
        return Findings(problems=["the work folder is gone"])
    since_ns = _claimed_ns(job) if job.extra.get("fresh_artifacts") else None
    problems = [problem for name in job.expected_artifacts if (problem := _problem_with(name, folder, since_ns))]
    if problems or not job.validate:
        return Findings(problems=problems)
    return _validate(job, folder, origin.environment if origin else dict(os.environ), timeout_sec)


def checks_of(job: Job) -> list[str]:
    """Return what `check_results` checks, for the record of the job."""
    checks = [f"{EXPECT}{name}" for name in job.expected_artifacts]
    if job.validate:
        checks.append(f"{VALIDATE}{job.validate}")
    return [check[:_CHECK_CHARS] for check in checks]


def doubt(jobs: Jobs, job: Job) -> tuple[bool, str | None]:
    """Return whether a completed job counts as completed, and what to warn of."""
    if job.verified_by or not checks_of(job):
        return True, None
    skipped_by = job.unverified
    if skipped_by is None:  # 0.1.0 noted only in the history how a job was verified
        lines = [line for line in jobs.history.lines(job.job_id) if line.get("event") == "validated"]
        last = lines[-1] if lines else {}
        if last.get("ok"):
            return True, None
        if last.get("detail") != SKIPPED:
            return False, "no check of its results is recorded"
        skipped_by = "a user"
    return True, f"its results were not verified: skipped by {skipped_by}"


def _claimed_ns(job: Job) -> int | None:
    """Return when the present attempt began, less the lag of the file system's coarse clock."""
    if job.deadline_at is None:
        return None
    return parse_time(job.deadline_at) - job.timeout_sec * SECOND_NS - SECOND_NS // 10


def _problem_with(name: str, folder: str, since_ns: int | None) -> str | None:
    if outside(name, folder):  # guard: artifact-outside-workdir
        return f"{name} lies outside the work folder"
    path = os.path.join(folder, name)
    if not os.path.exists(path):  # guard: missing-artifact
        return f"{name} is missing"
    if os.path.isdir(path):
        return None if os.listdir(path) else f"{name} is an empty folder"
    if os.path.getsize(path) == 0:  # guard: empty-artifact
        return f"{name} is empty"
    if since_ns is not None and os.stat(path).st_mtime_ns < since_ns:  # guard: unchanged-artifact
        return f"{name} was there before and has not changed"
    return None


def _validate(job: Job, folder: str, environment: dict[str, str], timeout_sec: float) -> Findings:
    assert job.validate is not None
    about = {"BATON_JOB_ID": job.job_id, "BATON_WORKDIR": folder, "BATON_EXPECTED": "\n".join(job.expected_artifacts)}
    if (job.checkout or {}).get("path"):  # `baton merge` would commit what Python writes beside the sources
        environment = {"PYTHONDONTWRITEBYTECODE": "1"} | environment
    try:
        code, tail = _run(job.validate, folder, timeout_sec, environment | about)
    except TimeoutError:
        return Findings(problems=[f"the validation did not end within {timeout_sec:g} s"])
    except OSError as error:
        return Findings(problems=[f"the validation could not run: {error.strerror}"])
    printed = last_lines(tail.decode(errors="replace"))
    if code == 0:  # guard: validation-exit-code
        return Findings(problems=[], validation=printed)
    last = printed.strip().splitlines()[-1:]
    why = f"the validation failed with exit code {code}" + (f": {last[0][:_LAST_LINE]}" if last else "")
    return Findings(problems=[why], validation=printed)


def _run(command: str, folder: str, timeout_sec: float, environment: dict[str, str]) -> tuple[int, bytes]:
    """Run a shell command; return its exit code and the end of its output. It does not wait for background processes.
    After the time limit (TimeoutError) or an interruption it kills the whole process group."""
    import signal
    from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired

    from baton.core.awake_clock import AwakeClock

    clock = AwakeClock()
    until_ns = clock.monotonic_ns() + int(timeout_sec * SECOND_NS)
    # The command comes from the user, at registration.
    process = Popen(
        ["/bin/sh", "-c", command], cwd=folder, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        with process.stdout as output:
            tail = _last_bytes(process, output.fileno(), lambda: clock.monotonic_ns() > until_ns)
        while True:  # it may have closed its output, and go on
            try:
                return process.wait(_LOOK_SEC), tail
            except TimeoutExpired:
                if clock.monotonic_ns() > until_ns:
                    raise TimeoutError from None
    finally:
        if process.returncode is None:  # not reaped yet: the group id cannot be of other processes
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_bytes(process: Popen[bytes], output: int, is_late: Callable[[], bool]) -> bytes:
    """Read until the process has ended or has closed its output; return the end of what it printed."""
    import select

    tail = b""
    while True:
        ended = process.poll() is not None
        if select.select([output], [], [], 0 if ended else _LOOK_SEC)[0]:
            read = os.read(output, _PIPE_BYTES)
            if not read:
                return tail
            tail = (tail + read)[-MAX_VALIDATION_BYTES:]
        if ended:
            return tail  # its last output fits into one pipe; more comes from a background process
        if is_late():
            raise TimeoutError
