"""Whether the work that a job asked for is really there."""

from __future__ import annotations

import os
import time

from baton.core.clock import SECOND_NS, parse_time
from baton.storage.files import outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen
    from typing import Final

    from baton.core.job import Job

VALIDATE_TIMEOUT_SEC: Final = 600
_TAIL_BYTES: Final = 4096
_PIPE_BYTES: Final = 65536


def missing_results(job: Job, *, redact: Callable[[str], str], timeout_sec: float = VALIDATE_TIMEOUT_SEC) -> list[str]:
    """What keeps the job from being completed, in words an agent can act on; empty when nothing does. `redact` takes
    secrets out of what the validation printed."""
    try:
        folder = job.workdir or os.getcwd()
    except OSError:
        return ["the work folder is gone"]
    since_ns = _claimed_ns(job) if job.extra.get("fresh_artifacts") else None
    problems = [problem for name in job.expected_artifacts if (problem := _problem_with(name, folder, since_ns))]
    if not problems and job.validate:
        problems += _failed_validation(job.validate, folder, timeout_sec, redact)
    return problems


def _claimed_ns(job: Job) -> int | None:
    """When the present attempt began, less what the file system's coarse clock may lag behind."""
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


def _failed_validation(command: str, folder: str, timeout_sec: float, redact: Callable[[str], str]) -> list[str]:
    try:
        code, tail = _run(command, folder, timeout_sec)
    except TimeoutError:
        return [f"the validation did not end within {timeout_sec:g} s"]
    except OSError as error:
        return [f"the validation could not run: {error.strerror}"]
    if code == 0:  # guard: validation-exit-code
        return []
    last = tail.decode(errors="replace").strip().splitlines()[-1:]
    return [f"the validation failed with exit code {code}" + (f": {redact(last[0])[:200]}" if last else "")]


def _run(command: str, folder: str, timeout_sec: float) -> tuple[int, bytes]:
    """The exit code of a line for the shell, and the end of what it printed. What it leaves in the background is not
    waited for; what has not ended in time (TimeoutError) is killed, all of it, and so it is when we are interrupted."""
    import signal
    from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired

    deadline = time.monotonic() + timeout_sec
    # The command is the user's own line, given at registration.
    process = Popen(
        ["/bin/sh", "-c", command], cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    try:
        with process.stdout as output:
            tail = _last_bytes(process, output.fileno(), deadline)
        return process.wait(max(deadline - time.monotonic(), 0)), tail
    except TimeoutExpired:
        raise TimeoutError from None
    finally:
        if process.returncode is None:  # not reaped yet, so the group is still its own
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_bytes(process: Popen[bytes], output: int, deadline: float) -> bytes:
    """The end of what the process prints until it has ended or has closed its output."""
    import select

    tail = b""
    while True:
        ended = process.poll() is not None
        if select.select([output], [], [], 0 if ended else 0.02)[0]:
            read = os.read(output, _PIPE_BYTES)
            if not read:
                return tail
            tail = (tail + read)[-_TAIL_BYTES:]
        if ended:
            return tail  # what it had left to say fits into one pipe; more is from somebody in the background
        if time.monotonic() > deadline:
            raise TimeoutError
