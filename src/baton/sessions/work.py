"""Keep the facts about what a session's agent does, and what they mean: its activity and the verdict on its job."""

from __future__ import annotations

from baton.adapters.contract import Mode
from baton.channels.contract import Channel, Silent
from baton.core import activity as rules
from baton.core.activity import Activity, Facts, Limits, Verdict
from baton.core.clock import SECOND_NS, Clock, format_micros
from baton.core.job import DEFAULT_IDLE_TIMEOUT_SEC, Job
from baton.core.job_checks import ON_LIMIT
from baton.core.signal import Heard, Said, Signal, Usage
from baton.core.spending import Price, Spent, usage_entry
from baton.core.value import Any
from baton.jobs.activity_file import Snapshot, write_snapshot
from baton.sessions.instructions import mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.adapters.contract import Agent
    from baton.sessions.reporter import Reporter

_FIRST_NS = SECOND_NS // 2  # a job that ends before that writes no activity
_EVERY_NS = 2 * SECOND_NS
_WAITING = "waiting"
_USUAL = ("starting", "working")  # at the start


class Work:
    """The facts about the session's present job. Signals are folded into them; nothing else changes them."""

    def __init__(
        self, agent: Agent, mode: Mode, reporter: Reporter, folder: str, clock: Clock, prices: Mapping[str, Price]
    ) -> None:
        self._agent = agent
        self._is_alone = mode is Mode.HEADLESS  # no person types beside the job
        self._reporter = reporter
        self._folder = folder
        self._clock = clock
        self._prices = prices
        self._channel: Channel | None = None
        self.facts = Facts.of_job("", clock.monotonic_ns())
        self._preparing = ""  # what is made before the agent starts; no idle clock runs
        self.begin(None)

    def use(self, channel: Channel) -> None:
        """Take this channel for the one by which the agent, which starts now, says what it does: its silence begins."""
        self._channel = channel
        began = {"last_work": "the agent was started", "last_work_source": "runner"}
        self.facts = self.facts.replace(last_work_ns=self._clock.monotonic_ns(), **began)

    def begin(self, job: Job | None, *, again: bool = False) -> None:
        """Begin the facts anew, for this job. Without a job, every turn of the session counts. `again`: the job goes on
        in a new program, and what it has spent counts on."""
        now_ns, spent = self._clock.monotonic_ns(), self.facts.spent
        self.facts = Facts.of_job(
            "" if job is None or self._is_alone else mark(job),
            now_ns,
            turn_expected=not self._agent.exit_is_verdict,
            after=self.facts,
        )
        if again:
            self.facts = self.facts.replace(spent=spent)
        else:
            self._spent_stored = Spent()
            self._run_stored: dict[str, Any] | None = None
        self._limits = _limits_of(job)
        self._has_conditions = job is not None and bool(job.expected_artifacts or job.validate)
        self._stored: Activity | None = None
        self._written_kind = ""
        self._store_ns = now_ns + _FIRST_NS
        self._write_ns = 0
        self._changed = True
        self._due_ns: int | None = now_ns
        self._open_work: str | None = None

    def note(self, signal: Signal, source: str) -> None:
        """Fold a signal of the runner itself, heard now."""
        self.fold(Heard(signal=signal, source=source, at_ns=self._clock.monotonic_ns()))

    def fold(self, heard: Heard) -> None:
        self.facts = rules.fold(self.facts, heard)
        self._change(at_once=not isinstance(heard.signal, Said | Usage))

    def go_on(self, turn: str) -> None:
        """Note that the agent was sent back to a turn that it held."""
        self.facts = rules.go_on(self.facts, turn, self._clock.monotonic_ns())
        self._change(at_once=True)

    def prepare(self, what: str) -> None:
        """Note what is made before the agent starts; "" when that is done."""
        self._preparing = what
        self._change(at_once=True)

    def _change(self, *, at_once: bool) -> None:
        self._changed = True
        if at_once:
            self._write_ns = 0
        self._due_ns = self._write_ns if self._due_ns is None else min(self._due_ns, self._write_ns)

    @property
    def is_idle(self) -> bool:
        """Return whether the agent waits for a prompt, as far as it says what it does."""
        facts = self.facts
        is_asking = bool(facts.open_requests) or facts.attention is not None
        return facts.open_turn is None and not facts.open_tools and not is_asking

    @property
    def waits_for_prompt(self) -> bool:
        """Return whether an agent that says when a turn begins has begun none since the job did, and shows no dialog
        that baton knows of."""
        facts = self.facts
        silent = self._agent.exit_is_verdict or isinstance(self._channel, Silent)
        return not silent and self.is_idle and not facts.begun and facts.blocked is None and facts.gone is None

    def activity(self) -> Activity:
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        found = rules.activity(self.facts, now_ns=now_ns, limits=self._limits, wall_ns=wall_ns)
        if self._preparing:
            return found.replace(kind="starting", cause=self._preparing, rule="no-turn", idle_since_ns=None)
        if found.rule == "no-turn" and isinstance(self._channel, Silent):
            return found.replace(kind="unknown", cause=f"{self._agent.name} does not say what it is doing")
        return found

    def may_be_alive(self, found: Activity) -> bool:
        """Return whether an agent that is silent may work all the same: its turn is open, or it has no channel."""
        if self._agent.exit_is_verdict:
            return False  # what it prints is a sign of work, and was heard
        return found.rule == "silence" or (found.rule == "no-turn" and isinstance(self._channel, Silent))

    def verdict(self) -> Verdict:
        return rules.verdict(
            self.facts,
            now_ns=self._clock.monotonic_ns(),
            limits=self._limits,
            wall_ns=self._clock.wall_ns(),
            has_conditions=self._has_conditions,
        )

    def keep(self) -> None:
        """Write the activity into the session's folder at each change, and into the registry at a change of kind."""
        self._due_ns = None
        job = self._reporter.job
        if job is None:
            return
        now_ns, activity = self._clock.monotonic_ns(), self.activity()
        call = rules.publisher_call(self.facts, job.job_id)
        open_work = rules.open_besides(self.facts, now_ns=now_ns, limits=self._limits, tool_id=call)
        is_news = self._stored is None or self._stored.kind != activity.kind
        is_other = activity.kind != self._written_kind  # the time alone may have changed it
        if (self._changed and now_ns >= self._write_ns) or open_work != self._open_work or is_other:
            self._changed, self._open_work, self._written_kind = False, open_work, activity.kind
            self._write_ns = now_ns + _EVERY_NS
            self._write(job)
        elif self._changed:
            self._due_ns = self._write_ns
        if is_news and (now_ns >= self._store_ns or self._is_urgent(activity)):
            self.store(activity)
        elif is_news:
            self._due_ns = min(self._due_ns or self._store_ns, self._store_ns)
        due_ns = rules.attention_due_ns(self.facts)
        if due_ns is not None and due_ns > now_ns:
            self._due_ns = due_ns if self._due_ns is None else min(self._due_ns, due_ns)
        if self._is_run_news(job) and now_ns >= self._store_ns:
            self._store_run()
        elif self._is_run_news(job):
            self._due_ns = min(self._due_ns or self._store_ns, self._store_ns)

    def _is_urgent(self, activity: Activity) -> bool:
        """Return whether a change of kind is written at once: a request was opened or closed, which is a write anyway,
        the turn is over, or the beginning is unusual."""
        if self._stored is None:
            return activity.kind not in _USUAL
        return activity.kind == "idle" or _WAITING in (activity.kind, self._stored.kind)

    def store(self, activity: Activity | None = None, *, lease_sec: float | None = None) -> None:
        """Write the activity into the registry; with `lease_sec`, renew the lease of the job, too."""
        activity = activity or self.activity()
        now_ns = self._clock.monotonic_ns()
        self._store_ns = now_ns + _EVERY_NS
        if activity.rule == "program":
            activity = activity.replace(cause="")  # that it runs says nothing about why it ended
        record = rules.activity_record(activity, now_ns=now_ns, wall_ns=self._clock.wall_ns(), attempt=0)
        self._reporter.set_activity(record, lease_sec=lease_sec)
        self._stored = activity
        if lease_sec is not None:
            self.store_usage()

    def store_usage(self) -> None:
        """Write what the job has used in this attempt, and what it runs, into the registry, if that has changed. It may
        have ended."""
        self._store_run()
        job, spent = self._reporter.job, self.facts.spent
        if job is None or spent == self._spent_stored:
            return
        entry = usage_entry(job.attempt, spent, self._prices, format_micros(self._clock.wall_ns()))
        if entry is not None:
            self._reporter.jobs.registry.note_usage(job.job_id, entry)
        self._spent_stored = spent

    def _is_run_news(self, job: Job) -> bool:
        return rules.run_record(self.facts, attempt=job.attempt) not in (None, self._run_stored)

    def _store_run(self) -> None:
        """Write which release of the agent works, in which mode and with which model, if that has changed."""
        job = self._reporter.job
        if job is not None and self._is_run_news(job):
            run = rules.run_record(self.facts, attempt=job.attempt)
            assert run is not None
            self._reporter.jobs.registry.note_run(job.job_id, run)
            self._run_stored = run

    def wait_sec(self) -> float | None:
        """Return how long until `keep` has something to write; None while it has nothing."""
        return None if self._due_ns is None else max(0, self._due_ns - self._clock.monotonic_ns()) / SECOND_NS

    def _write(self, job: Job) -> None:
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        doing = self.activity()
        record = rules.facts_record(self.facts, now_ns=now_ns, wall_ns=wall_ns, limits=self._limits, doing=doing)
        if self._preparing:
            record["facts"] = []  # no program runs yet
        about = {"open_work": self._open_work, "channel": {} if self._channel is None else self._channel.facts()}
        write_snapshot(self._folder, Snapshot(job_id=job.job_id, attempt=job.attempt, **record | about))


def _limits_of(job: Job | None) -> Limits:
    if job is None:
        return Limits(idle_sec=DEFAULT_IDLE_TIMEOUT_SEC)
    return Limits(
        idle_sec=job.idle_timeout_sec,
        tool_sec=job.tool_timeout_sec,
        background_sec=job.background_timeout_sec,
        waits_at_limit=job.on_limit == ON_LIMIT[0],
    )
