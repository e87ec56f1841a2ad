"""The verbs of a registry on order: jobs that come after others, or not before a time.

What a job waits for stands in its record, and who waits for a job is found by an index of the store. The end of a job
with followers leaves `look_at` in its record, in the same write. From then on every claim, every end and every sweep of
a monitor advances those after it, in steps of their own: a crash between two of them strands no job.
"""

from __future__ import annotations

from baton.core import lifecycle
from baton.core.errors import InvalidRecord, JobBlocked, JobNotFound, RegistryUnavailable
from baton.core.event import EventName
from baton.core.fields import check_job_id
from baton.core.job import TERMINAL, Status
from baton.registry.contract import Change
from baton.registry.recording import Recording, keep_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from baton.core.job import Job
    from baton.core.result import Result
    from baton.registry.contract import Recorded, Transaction

    Done = TypeVar("Done")

_STEPS = 20  # that one verb takes at most; the next one goes on
_AT_ONCE = 100  # jobs that one step changes at most


class OrderVerbs(Recording):
    """What `Registry` offers for jobs that wait."""

    # Is called with each job that ends because of a predecessor, and its event, after the write.
    on_advanced: Callable[[Recorded], None] = staticmethod(lambda _recorded: None)

    def advance_waiting(self, *, steps: int = _STEPS) -> list[Change]:
        """Let jobs go on whose predecessors are completed, or whose time has come; end those with a predecessor that
        failed. Return what changed. In at most so many steps: call again while it returns anything."""
        changes: list[Change] = []
        for _ in range(steps):
            step = self._advance_next()
            if not step:
                break
            changes += step
        return changes

    def _advance_next(self) -> list[Change] | None:
        """Take one step. Return None when no job is due, without a lock."""
        with self._reading() as tx:
            if not tx.due(1, self._clock.wall_ns()):
                return None
        recorded: list[Recorded] = []
        changes: list[Change] = []
        with self._writing() as tx:
            for job in tx.due(1, self._clock.wall_ns()):
                if job.status is Status.PENDING:
                    changes.append(tx.save(job, lifecycle.unblock(job, now_ns=self._clock.wall_ns())))
                else:
                    changes += self._advance_followers(tx, job, recorded)
        for each in recorded:
            self.on_advanced(each)
        return changes

    def _advance_followers(self, tx: Transaction, ended: Job, recorded: list[Recorded]) -> list[Change]:
        """Advance the jobs that wait for one that has ended; when there are no more, forget to look at it again."""
        changes = []
        followers = tx.followers(ended.job_id, _AT_ONCE)
        for job_id in followers:
            job, is_gone = _find(tx, job_id)  # `advance_stranded` finds an invalid record when the user has fixed it
            if is_gone or (job is not None and not _waits_for(job, ended.job_id)):
                tx.forget_follower(ended.job_id, job_id)
            elif job is not None and ended.status in TERMINAL:
                changes.append(self._advance(tx, job, ended.job_id, ended, recorded))
        if len(followers) < _AT_ONCE:
            changes.append(tx.save(ended, lifecycle.unblock(ended, now_ns=self._clock.wall_ns())))
        return changes

    def _advance(self, tx: Transaction, job: Job, ended_id: str, ended: Job | None, recorded: list[Recorded]) -> Change:
        """Advance a job that waits for one that has ended. None: that one is gone."""
        now_ns = self._clock.wall_ns()
        if ended is not None and lifecycle.is_met(ended):  # guard: failed-predecessor
            after = lifecycle.wait_less(job, ended_id, now_ns=now_ns, present_ns=self._present_ns())
            return tx.save(job, after)
        claimed = lifecycle.claim(lifecycle.free(job), holder="registry", now_ns=now_ns, token=self._new_token())
        why = lifecycle.describe_unmet(ended_id, ended)
        outcome, data = {"ended_by": "predecessor", "reason": why}, {"predecessor": ended_id}
        recorded.append(self._record(tx, job, EventName.ERROR, why, data, "registry", outcome, claimed=claimed))
        return Change(before=recorded[-1].before, after=recorded[-1].after)

    def advance_stranded(self) -> list[Change]:
        """Advance the jobs that no step finds any more: a predecessor was removed by hand, or the record of a job was
        invalid while it should have gone on."""
        recorded: list[Recorded] = []
        changes: list[Change] = []
        with self._reading() as tx:
            if not tx.stranded(1):
                return []
        with self._writing() as tx:
            for predecessor, job_id in tx.stranded(_AT_ONCE):
                ended, is_gone = _find(tx, predecessor)
                job = _find(tx, job_id)[0] if is_gone else None
                if ended is not None:
                    tx.save(ended, lifecycle.follow(ended, now_ns=self._clock.wall_ns()))  # now it is looked at
                elif job is not None and _waits_for(job, predecessor):
                    changes.append(self._advance(tx, job, predecessor, None, recorded))
                elif job is not None:
                    tx.forget_follower(predecessor, job_id)
        for each in recorded:
            self.on_advanced(each)
        return changes + self.advance_waiting()

    def _when_free(self, do: Callable[[], Done]) -> Done:
        """Do what claims a job; if it is blocked, advance the jobs that wait, and try once more."""
        try:
            return do()
        except JobBlocked:
            if not self.advance_waiting():
                raise
            return do()

    def _advance_after(self, job: Job) -> None:
        """Advance the jobs after one that has ended. The end is recorded: what this process may not do, or cannot do
        now, another one does."""
        if job.look_at is None or job.status not in TERMINAL:
            return
        try:
            self.advance_waiting()
        except RegistryUnavailable:
            return

    def _change(
        self,
        job_id: str,
        decide: Callable[[Job, int], Job],
        lease_ns: int | None = None,
        *,
        result: Result | None = None,
    ) -> Change:
        """Replace the job by what `decide` returns for it and the present time; with a lease that begins now."""
        check_job_id(job_id)
        with self._writing() as tx:
            before = tx.get(job_id)
            after = decide(before, self._clock.wall_ns())
            if after is not before:
                keep_result(tx, after, result)
            change = self._save(tx, before, after, lease_ns)
        self._advance_after(change.after)
        return change

    def _register_in_order(self, drafts: Sequence[Job]) -> list[Job]:
        from baton.core.drafts import in_order

        ids = {job.job_id for job in drafts}
        named = {each for job in drafts for each in job.after}
        # In the order of their ids: two processes that lock the same jobs do not wait for each other.
        outside = sorted(named - ids)
        keys = {job.idempotency_key for job in drafts if job.job_id in named} - {None}
        has_unmet = False
        added: dict[str, Job] = {}  # by the id of the draft
        with self._writing(create=True) as tx:
            now_ns = self._present_ns()
            before = {job_id: self._follow(tx, tx.get(job_id)) for job_id in outside}
            for job in in_order(drafts):
                predecessors = [before[each] for each in job.after]
                unmet = [each for each in predecessors if not lifecycle.is_met(each)]
                has_unmet |= any(each.status in TERMINAL for each in unmet)
                after = tuple(dict.fromkeys(each.job_id for each in predecessors))
                draft = lifecycle.arrange(job.replace(after=after), [each.job_id for each in unmet], now_ns=now_ns)
                if job.job_id in named or job.idempotency_key in keys:
                    draft = lifecycle.follow(draft, now_ns=now_ns)
                known = self._add(tx, draft)
                added[job.job_id] = known
                is_new = known.auth_token == draft.auth_token
                before[job.job_id] = known if is_new or job.job_id not in named else self._follow(tx, known)
        if has_unmet:
            self.advance_waiting()
            with self._reading() as tx:
                return [tx.get(added[job.job_id].job_id) for job in drafts]
        return [added[job.job_id] for job in drafts]

    def _follow(self, tx: Transaction, predecessor: Job) -> Job:
        """Note that a job comes after this one, unless it is met already."""
        if lifecycle.is_met(predecessor):
            return predecessor
        return tx.save(predecessor, lifecycle.follow(predecessor, now_ns=self._clock.wall_ns())).after


def _find(tx: Transaction, job_id: str) -> tuple[Job | None, bool]:
    """Return the job, or None and whether it is gone. `list` and `doctor` name an invalid record."""
    try:
        return tx.get(job_id), False
    except JobNotFound:
        return None, True
    except InvalidRecord:
        return None, False


def _waits_for(job: Job, predecessor: str) -> bool:
    return job.status is Status.PENDING and predecessor in job.waits_for
