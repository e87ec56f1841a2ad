"""Whether the work that a job asked for is really there."""

from __future__ import annotations

import os

from baton.clock import SECOND_NS, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from baton.model import Job

VALIDATE_TIMEOUT_SEC: Final = 600


def missing_results(job: Job, *, timeout_sec: float = VALIDATE_TIMEOUT_SEC) -> list[str]:
    """What keeps the job from being completed, in words an agent can act on; empty when nothing does."""
    folder = job.workdir or os.getcwd()
    since_ns = _claimed_ns(job) if job.extra.get("fresh_artifacts") else None
    problems = [problem for name in job.expected_artifacts if (problem := _problem_with(name, folder, since_ns))]
    if not problems and job.validate:
        problems += _failed_validation(job.validate, folder, timeout_sec)
    return problems


def outside(name: str, folder: str) -> bool:
    """Whether a name leads out of the folder, also by a link."""
    inside = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(inside, name))
    return path != inside and not path.startswith(inside.rstrip("/") + "/")


def _claimed_ns(job: Job) -> int | None:
    """When the present attempt began, less what the file system's coarse clock may lag behind."""
    if job.deadline_at is None:
        return None
    return parse_time(job.deadline_at) - job.timeout_sec * SECOND_NS - SECOND_NS // 10


def _problem_with(name: str, folder: str, since_ns: int | None) -> str | None:
    if outside(name, folder):
        return f"{name} lies outside the work folder"
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return f"{name} is missing"
    if os.path.isdir(path):
        return None if os.listdir(path) else f"{name} is an empty folder"
    if os.path.getsize(path) == 0:
        return f"{name} is empty"
    if since_ns is not None and os.stat(path).st_mtime_ns < since_ns:
        return f"{name} was there before and has not changed"
    return None


def _failed_validation(command: str, folder: str, timeout_sec: float) -> list[str]:
    from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired, run

    try:
        # The command is the user's own line for a shell, given at registration.
        done = run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            timeout=timeout_sec,
            check=False,
        )
    except TimeoutExpired:
        return [f"the validation did not end within {timeout_sec:g} s"]
    except OSError as error:
        return [f"the validation could not run: {error.strerror}"]
    if done.returncode == 0:
        return []
    last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
    return [f"the validation failed with exit code {done.returncode}" + (f": {last[0][:200]}" if last else "")]
