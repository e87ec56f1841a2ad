"""Say how a job ended: verified by which check, done by its own word, failed by what. Every surface shows this.

verified    its check passed, or its files are there
done        it ended well by its own word: unchecked, or nothing was changed in its worktree
failed      by what, and for a lost agent how to run it again
cancelled   by whom
"""

from __future__ import annotations

from baton.core.fields import first_line
from baton.core.job import EXPECT, RAN, TERMINAL, VALIDATE, VALIDATED, Job, Status, grade_of
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.core.outline import Outline

VERIFIED, DONE, FAILED, CANCELLED = "verified", "done", "failed", "cancelled"
ENDS_WELL = (VERIFIED, DONE)
ENDS = (*ENDS_WELL, FAILED, CANCELLED)
_REFUSED = "not completed: "  # begins the reason of a job whose results were refused
NOTHING_CHANGED = "changed nothing"


class Ending(Value):
    """How a job ended: one of ENDS, and in one line what decided that."""

    word: str
    note: str

    @property
    def text(self) -> str:
        """Return both, such as `verified: pytest -q passed`."""
        return f"{self.word}: {self.note}" if self.note else self.word


def ending_of(job: Job | Outline) -> Ending | None:
    """Return how a job ended; None before its end."""
    if job.status not in TERMINAL:
        return None
    if job.status is Status.CANCELLED:
        return Ending(word=CANCELLED, note=first_line(job.reason or ""))
    if job.status is Status.ERROR:
        return Ending(word=FAILED, note=_failure(job))
    checks = _checks_text(job.verified_by)
    is_checked = grade_of(job.status, job.verified_by) in (RAN, VALIDATED)
    if job.changed is False:
        return Ending(word=DONE, note=f"{NOTHING_CHANGED}; {checks}" if is_checked else f"{NOTHING_CHANGED}, unchecked")
    if is_checked:
        return Ending(word=VERIFIED, note=checks)
    skipped = f"skipped by {job.unverified}" if job.unverified is not None else "only the word of its agent"
    return Ending(word=DONE, note=f"unchecked: {skipped}")


def describe_end(job: Job) -> str:
    """Return a line about an ended job for a person: its id, how it ended, and what decided that."""
    found = ending_of(job)
    return f"job {job.job_id} is {job.status}" if found is None else f"job {job.job_id} {found.text}"


def _failure(job: Job | Outline) -> str:
    reason = first_line(job.reason or job.detail or "")
    if job.ended_by == "verification":
        return f"check: {reason.removeprefix(_REFUSED)}"
    if job.ended_by == "lost":
        return f"{reason}; `baton retry {job.job_id}` runs it again"
    return reason


def _checks_text(checks: Sequence[str]) -> str:
    """Return what the checks of a job have shown, such as `make test passed, out.txt is there`."""
    commands = [first_line(each.removeprefix(VALIDATE)) for each in checks if each.startswith(VALIDATE)]
    files = [first_line(each.removeprefix(EXPECT)) for each in checks if each.startswith(EXPECT)]
    found = [f"{each} passed" for each in commands]
    if files:
        found.append(f"{files[0]} is there" if len(files) == 1 else f"its {len(files)} files are there")
    return ", ".join(found)
