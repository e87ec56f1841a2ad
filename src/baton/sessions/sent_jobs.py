"""Take the jobs that were sent to a running session by its name, one after the other, and type them into its pane."""

import os
import sys
import time
from functools import partial
from threading import Thread

from baton.adapters.contract import Agent
from baton.config import Settings
from baton.core.activity import LIMITED
from baton.core.clock import SECOND_NS, Clock
from baton.core.errors import BatonError
from baton.core.job import Job, Status
from baton.core.parking import end_of_limit
from baton.registry.contract import JobFilter
from baton.sessions.chores import attempt
from baton.sessions.instructions import go_on_prompt, job_prompt
from baton.sessions.inventory import Inventory
from baton.sessions.job_at_work import JobAtWork
from baton.sessions.notify import send_of_job
from baton.sessions.reporter import Reporter
from baton.sessions.session import Session, job_label
from baton.sessions.terminal import has_terminal, print_line
from baton.sessions.tmux import Tmux
from baton.storage.files import replace_file

_BETWEEN_PRESSES_SEC = 0.3  # Copilot takes two for one when they come faster, and for single ones when slower
_BEGIN_NS = 2 * SECOND_NS  # an agent that took Enter says long before that its turn has begun


class SentJobs:
    """`holder` is the name under which this session claims jobs."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        agent: Agent,
        folder: str,
        reporter: Reporter,
        job: JobAtWork,
        holder: str,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._agent = agent
        self._folder = folder
        self._reporter = reporter
        self._job = job
        self._holder = holder
        self._clock = clock
        self._typed_ns: int | None = None  # until a turn begins
        self._goes_on_next = False
        self._limit_ns = 0  # the end of the last usage limit after which the agent went on

    def check(self, session: Session, agent_pid: int, slack_sec: float) -> Session:
        """End the present job when it exceeds a limit; take the next one when it has ended. Return the session."""
        if self._reporter.status() is Status.RUNNING:
            limit = self._job.exceeded_limit(slack_sec)
            if limit is not None:
                self._reporter.failed(self._job.late_reason(limit), ended_by=limit.ended_by)
                self._interrupt(session)
            else:
                self._submit_again(session)
                self._interrupt_or_go_on(session)
            return session
        if self._reporter.was_ended_from_outside():
            self._interrupt(session)
        return self._take_next(session, agent_pid)

    def _interrupt(self, session: Session) -> None:
        """Make the agent stop working on a job that has ended, and leave it running."""
        assert session.pane_id is not None
        for number in range(self._agent.interrupt_presses):
            if number:
                time.sleep(_BETWEEN_PRESSES_SEC)
            attempt(partial(Tmux(session.socket).press, session.pane_id, [self._agent.interrupt_key]))

    def _interrupt_or_go_on(self, session: Session) -> None:
        """Interrupt an agent whose job waits for a budget; let it go on when the user has allowed more, or when a usage
        limit is over."""
        verdict, job = self._job.work.verdict(), self._reporter.job
        assert job is not None
        if self._job.is_to_interrupt and self._job.work.facts.open_turn is not None:
            self._interrupt(session)
        elif self._job.goes_on:
            self._job.goes_on = False
            self._go_on(session, job, "You may spend more now.")
        elif verdict.outcome == LIMITED and verdict.until_ns != self._limit_ns:
            assert verdict.until_ns is not None
            over_ns = end_of_limit(verdict.until_ns) + int(self._agent.carries_on_sec * SECOND_NS)
            if self._clock.wall_ns() >= over_ns:  # until then, a second prompt would come beside the agent's own
                self._limit_ns, self._goes_on_next = verdict.until_ns, True  # once
                # Claude Code shows a dialog until then. The text comes with the next look: the key would change it.
                attempt(partial(Tmux(session.socket).press, session.pane_id or "", [self._agent.interrupt_key]))
        elif self._goes_on_next and self._job.is_free:
            self._goes_on_next = False
            self._go_on(session, job, "The usage limit is over.")

    def _go_on(self, session: Session, job: Job, why: str) -> None:
        assert session.pane_id is not None
        attempt(partial(Tmux(session.socket).paste, session.pane_id, go_on_prompt(job, why), enter=True))

    def _take_next(self, session: Session, agent_pid: int) -> Session:
        label = job_label(session.agent_id)
        # What is typed while the agent works, or before a shell is at its prompt, is taken at an unknown time.
        is_free = has_terminal(agent_pid) if self._agent.exit_is_verdict else self._job.is_free
        pending = JobFilter(statuses=[Status.PENDING], agent_session=label)
        job = None
        if is_free and self._reporter.jobs.list_jobs(pending, limit=1).jobs:
            job = self._reporter.jobs.pick_pending(label, holder=self._holder, lease_sec=self._settings.lease_sec)
        if job is None and self._reporter.job is None:
            return session
        if self._reporter.job is not None and self._settings.notify is not None:
            send = partial(send_of_job, self._settings, self._reporter.job.job_id, print_line)
            Thread(target=attempt, args=(send,), daemon=True).start()  # it may take seconds
        self._job.begin(job)
        job_id = job.job_id if job else None
        session = self._inventory.change(session, lambda current: current.replace(job_id=job_id))
        if job is not None:
            self._type(session, job, agent_pid)
        return session

    def _type(self, session: Session, job: Job, agent_pid: int) -> None:
        file = os.path.join(self._folder, f"job-{job.job_id}")
        publish = [sys.executable, "-P", "-m", "baton", "publish", "--job", job.job_id, "--attempt", str(job.attempt)]
        text, files = self._agent.job_input(job_prompt(self._agent, job), file, [*publish, "--event"])
        for path, content in files.items():
            replace_file(path, content.encode())
        self._reporter.started(session, agent_pid)
        assert session.pane_id is not None
        try:
            Tmux(session.socket).paste(session.pane_id, text, enter=True)
            self._typed_ns = self._clock.monotonic_ns()
        except BatonError as error:
            self._reporter.failed(str(error), ended_by="refused")  # the session can take the next job

    def _submit_again(self, session: Session) -> None:
        """Press Enter once more if no turn has begun: a program that has just started may lose the key. With nothing
        typed, it does nothing; a dialog would take it for a yes."""
        if self._typed_ns is None or self._clock.monotonic_ns() - self._typed_ns < _BEGIN_NS:
            return
        self._typed_ns = None
        if self._job.work.waits_for_prompt:
            assert session.pane_id is not None
            attempt(partial(Tmux(session.socket).press, session.pane_id, ["Enter"]))
