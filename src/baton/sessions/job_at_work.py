"""Act on what the agent's signals mean for the session's present job: report, ask, verify, send back."""

from __future__ import annotations

from functools import partial
from math import inf

from baton.adapters.contract import Agent, Mode
from baton.channels.contract import Channel, Silent
from baton.config import Settings
from baton.core.activity import DONE, FAILED, LIMITED, Verdict
from baton.core.clock import SECOND_NS, Clock
from baton.core.errors import NotVerified, RegistryUnavailable
from baton.core.facts import describe_call
from baton.core.fields import one_line
from baton.core.job import Job
from baton.core.limits import Limit
from baton.core.request import DENIED, Answer
from baton.core.signal import (
    ALLOW,
    WELL,
    Asked,
    Conversation,
    Heard,
    Paused,
    Resumed,
    Retrying,
    Said,
    Settled,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
)  # fmt: skip
from baton.sessions.asking import Asking
from baton.sessions.budget import Budget
from baton.sessions.chores import attempt
from baton.sessions.hearing import Ear
from baton.sessions.pane_output import JobOutput
from baton.sessions.reporter import Reporter
from baton.sessions.terminal import print_line
from baton.sessions.verification import Verification, Void
from baton.sessions.work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = ("gone", "program", "turn", "silence")
_DETAIL = 300  # characters of what the agent says, in an event
_AGAIN_NS = 2 * SECOND_NS
_END_NS = 10 * SECOND_NS  # in which a program ends after `Channel.finish`; some agents stay


class JobAtWork:
    """The job that the session's agent works on. `remember` keeps the id of the agent's conversation, which
    `conversation` returns; `shows_life` says
    whether its screen has changed within so many seconds; `is_watched` says whether a person may look at it;
    `is_stopping` says whether the session is to be stopped; `may_continue` says whether the agent, once it was
    interrupted, can go on in its conversation. `parks`: the session was made for its job, so a usage limit ends it, and
    the next session goes on with the job. `begun` is called with each job that becomes the present one."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        mode: Mode,
        reporter: Reporter,
        output: JobOutput,
        folder: str,
        clock: Clock,
        *,
        send: Callable[[Job], object],
        wake: Callable[[], None],
        remember: Callable[[str], None],
        conversation: Callable[[], str | None],
        shows_life: Callable[[float], bool],
        is_watched: Callable[[], bool],
        is_stopping: Callable[[], bool],
        may_continue: Callable[[], bool],
        parks: bool,
        begun: Callable[[Job | None], None],
    ) -> None:
        self._settings = settings
        self._reporter = reporter
        self._output = output
        self._folder = folder
        self._clock = clock
        self._send = send
        self._wake = wake
        self._remember = remember
        self._conversation = conversation
        self._parks = parks
        self._begun = begun
        self._shows_life = shows_life
        self._is_stopping = is_stopping
        self._may_continue = may_continue
        self._channel: Channel = Silent()
        self._mode = mode
        self.ear = Ear(wake, clock)
        self.work = Work(agent, mode, reporter, folder, clock, settings.prices)
        note = partial(self.work.note, source="runner")
        self.asking = Asking(reporter, clock, note, is_watched, self._answer_budget)
        self._asks_late = agent.keeps_budget(mode)
        self._budget = Budget(reporter.jobs, None, settings.prices, asks_late=self._asks_late)
        self._asked: Asked | None = None  # about the budget
        self.goes_on = False  # whether an agent that was interrupted is to go on
        self._looked_ns: int | None = None
        self._verification: Verification | None = None
        self._again_ns = 0
        self._finished_ns: int | None = None
        self._held: str | None = None  # the turn that the agent holds open
        self.refused: NotVerified | None = None  # why the results were refused, if the agent could not be sent back

    def begin(self, job: Job | None) -> None:
        """Take this job as the present one, or none."""
        attempt(self.work.store_usage)  # of the job before: its last figures may have come after its end
        self.asking.close()
        self._begun(job)
        self._reporter.begin(job)
        self.work.begin(job)
        self.refused = self._asked = self._looked_ns = None
        self.goes_on = False
        self._budget = Budget(self._reporter.jobs, job, self._settings.prices, asks_late=self._asks_late)
        attempt(self._budget.look)

    def check_budget(self) -> None:
        """Look what other jobs have spent of the same budgets, and ask the user if nothing is left."""
        self._budget.look()
        self._check_budget()

    def begin_again(self) -> None:
        """Begin the facts anew: the program is started again, to fix the results."""
        self.refused, self.goes_on = None, False
        self.work.begin(self._reporter.job, again=True)

    def use(self, channel: Channel) -> None:
        """Talk by this channel from now on, to the agent that starts now."""
        self._channel = self.asking.channel = channel
        self._finished_ns = None
        self.work.use(channel)

    @property
    def is_free(self) -> bool:
        """Return whether the agent takes a text that is typed now for its next prompt, as far as it says."""
        return self.work.is_idle and self._channel.takes_text()

    def step(self) -> None:
        """Handle what was heard since the last step."""
        heard = self.ear.take()
        for each in heard:
            attempt(partial(self._handle, each))
        if heard or (self._verification is not None and self._verification.is_done):
            attempt(self.decide)
        if heard or self.work.wait_sec() == 0:
            attempt(self.work.keep)
        attempt(self.asking.check)

    def wait_sec(self) -> float:
        """Return how long until the next step has something to do by itself; infinity if only a signal brings it."""
        wait_sec = self.work.wait_sec()
        return inf if wait_sec is None else wait_sec

    def _handle(self, heard: Heard) -> None:
        self.work.fold(heard)
        signal = heard.signal
        if isinstance(signal, Asked):
            self._tell(f"asks: {signal.tool}")
            self.asking.ask(signal)
        elif isinstance(signal, Settled):
            self.asking.settle(signal)
        elif isinstance(signal, Conversation) and signal.ended is None:
            self._remember(signal.conversation_id)
        elif isinstance(signal, TurnEnded):
            self._held = signal.turn if signal.held else None
            self._check_budget()
            if self._mode is Mode.INTERACTIVE:
                self._tell(signal.message or signal.why)
        elif isinstance(signal, Usage | TurnStarted):
            self._check_budget()
        elif isinstance(signal, ToolStarted):
            self._show(describe_call(signal.name, signal.call))
        elif isinstance(signal, Retrying):
            self._tell(f"{signal.why}, try {signal.number} of {signal.most}" if signal.most else signal.why)
        elif isinstance(signal, Said) and signal.text:
            self._show(signal.text)

    def _show(self, text: str) -> None:
        self._tell(text)
        self._reporter.progress(one_line(text, _DETAIL))

    def _tell(self, text: str) -> None:
        """Show a line on the pane of a headless agent; keep it as output of an agent that has the terminal."""
        if self._mode is Mode.HEADLESS:
            print_line(one_line(text, _DETAIL))
        else:
            self._output.write_line(self._reporter.job, text)

    def decide(self) -> None:
        """Verify the results when the agent says that the work is done, and fail the job when it gave up."""
        if self.goes_on:
            return  # the runner starts the agent again, or types
        if self._verification is not None:
            if self._verification.is_done:
                self._finish(self._verification)
            return
        verdict = self.work.verdict()
        if self._reporter.job is None or verdict.outcome not in (DONE, FAILED, LIMITED) or self._reporter.is_over():
            self._end_turn()
        elif self._is_stopping():
            return  # its tools were ended: what the agent says about that is not the end of the work
        elif verdict.outcome == LIMITED:
            self._park(verdict)
        elif verdict.outcome == FAILED:
            attempt(self.work.store_usage)
            self._reporter.failed(verdict.why, ended_by=verdict.ended_by, message=verdict.message)
            self.finish()
        elif self._may_verify():
            self._verify(verdict)

    def _park(self, verdict: Verdict) -> None:
        """Return the job to its queue until the usage limit is over. In a session that takes jobs by its name, the job
        stays: that session goes on with it (`SentJobs`)."""
        if not self._parks:
            return
        attempt(self.work.store_usage)
        conversation_id = self._conversation() if self._may_continue() else None
        has_answered = self.work.facts.model_ns >= 0
        self._reporter.park(verdict, conversation_id, self._settings.host, has_answered=has_answered)
        self.finish()

    # -- the budget --------------------------------------------------------------------------------------------------

    def _check_budget(self) -> None:
        """Interrupt the work and ask the user, if the job has spent its budget and is not done."""
        facts = self.work.facts
        turn = facts.job_turn
        if facts.paused is not None or self._verification is not None or (turn is not None and turn.how == WELL):
            return
        asked = self._budget.question(facts.spent, self._channel.uncounted)
        if asked is None or self._reporter.is_over():
            return
        why = str(asked.call["description"])
        if not self._may_continue():
            why = f"{why.partition(';')[0]}, and its agent cannot be interrupted and go on later"
            self._reporter.failed(why, ended_by="budget")
            self.finish()
            return
        self._asked = asked
        self.work.note(Paused(why=why.partition(";")[0]), "runner")
        self._tell(f"baton: {why}")
        attempt(self.work.store_usage)
        self.asking.ask(asked)

    def _answer_budget(self, answer: Answer) -> bool:
        asked, self._asked = self._asked, None
        if asked is None:
            return False
        if answer.answer == ALLOW:
            self._budget.allow(asked)
            # A turn that is open was not interrupted yet: a tool was still running.
            self.goes_on = self.work.facts.open_turn is None or self.is_to_interrupt
            self.work.note(Resumed(), "runner")
            return True
        why = str(asked.call["description"]).partition(";")[0]
        said = answer.reason if answer.reason not in ("", DENIED) else "no more was allowed"
        self._reporter.failed(f"{why}; {said}", ended_by="budget")
        self.finish()
        return True

    @property
    def left_usd(self) -> float | None:
        """Return what the job may still cost; None without a budget."""
        return self._budget.left_usd(self.work.facts.spent)

    @property
    def is_to_interrupt(self) -> bool:
        """Return whether the agent is to be interrupted now: its job waits for a budget, and no tool call is open."""
        return self.work.facts.paused is not None and not self.work.facts.open_tools

    @property
    def is_settled(self) -> bool:
        """Return whether the runner may start the agent's program again: to go on, or to fix its results."""
        return self.goes_on or self.refused is not None

    @property
    def ends_program(self) -> bool:
        """Return whether the agent's program is to be ended and started again later, to interrupt the agent."""
        return self._parks and (self.is_to_interrupt or self.goes_on)

    # -- results -----------------------------------------------------------------------------------------------------

    def _may_verify(self) -> bool:
        """Return whether to verify now: not before a headless program has ended that ends by itself."""
        waits = self._channel.stays or self._mode is Mode.INTERACTIVE or self.work.facts.gone is not None
        return waits and self.refused is None and self._clock.monotonic_ns() >= self._again_ns

    @property
    def is_verifying(self) -> bool:
        return self._verification is not None

    def _verify(self, verdict: Verdict) -> None:
        assert self._reporter.job is not None
        attempt(self.work.store_usage)
        said = one_line(verdict.message or "", _DETAIL) or verdict.why
        detail = f"{said} ({verdict.left})" if verdict.left else said
        self._verification = Verification(self.ear, verdict.message, self._folder)
        self._verification.start(self._settings, self._send, self._reporter.job, detail, self._wake)

    def _finish(self, verification: Verification) -> None:
        self._verification = None
        try:
            verification.result()
        except Void:
            return  # the facts decide again
        except RegistryUnavailable as error:
            # Work that is done does not become an error because a disk is full.
            self._again_ns = self._clock.monotonic_ns() + _AGAIN_NS
            print_line(f"baton: {error}; trying again")
            return
        except NotVerified as error:
            self._send_back(error)
            return
        self.finish()

    def _send_back(self, error: NotVerified) -> None:
        """Make the agent fix its results, if it can be sent back and was not sent back too often."""
        if self.work.facts.gone is not None:
            self.refused = error  # the runner may start it again
            return
        turn = self._held
        text = error.with_output(str(error))
        if self._reporter.may_try_again() and self._go_on(turn, text):
            self._held = None
            self.work.go_on(turn or "")
            return
        self._reporter.refused(error)
        self.finish()

    def _go_on(self, turn: str | None, text: str) -> bool:
        return (turn is not None and self._channel.end_turn(turn, text)) or self._channel.say(text)

    def finish(self) -> None:
        """Let a headless agent end whose job is over."""
        self._end_turn()
        if self._mode is Mode.HEADLESS:
            self._channel.finish()
            if self._finished_ns is None and self._channel.stays:
                self._finished_ns = self._clock.monotonic_ns()

    @property
    def is_overdue(self) -> bool:
        """Return whether the agent's program did not end although its channel let it end."""
        return self._finished_ns is not None and self._clock.monotonic_ns() - self._finished_ns >= _END_NS

    def _end_turn(self) -> None:
        if self._held is not None:
            turn, self._held = self._held, None
            self._channel.end_turn(turn, None)

    def check(self) -> None:
        """Do what no signal brings: time passes, and the agent publishes events itself."""
        if self._reporter.take_news():
            self.work.note(Said(text=""), "publish")
        attempt(self.decide)
        attempt(self.work.keep)

    def exceeded_limit(self, slack_sec: float) -> Limit | None:
        """Return which limit the job has exceeded; None when it is within both.

        A model may think for longer than the idle limit, without a word. What changes on the screen is no sign of work,
        but a sign of life: an agent whose turn is open, or that says nothing at all, is not ended then."""
        found, now_ns = self.work.activity(), self._clock.monotonic_ns()
        if found.kind == "limited" and self._looked_ns is not None:
            self._reporter.extend_time(now_ns - self._looked_ns)
        self._looked_ns = now_ns
        limit = self._reporter.exceeded_limit(found.idle_since_ns, slack_sec)
        if limit is not Limit.SILENCE or self._mode is Mode.HEADLESS or not self.work.may_be_alive(found):
            return limit
        assert self._reporter.job is not None
        return None if self._shows_life(self._reporter.job.idle_timeout_sec) else limit

    def late_reason(self, limit: Limit) -> str:
        """Return the reason of a job that exceeded this limit, with the last known cause if that is no plain work."""
        assert self._reporter.job is not None
        found = self.work.activity()
        return limit.describe(self._reporter.job, "" if found.rule in _PLAIN else found.cause)
