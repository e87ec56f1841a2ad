"""Bring the agent's questions to the registry, and the answers back to the agent."""

from __future__ import annotations

from functools import partial

from baton.channels.contract import AnswerRefused, Channel, Silent
from baton.core.clock import SECOND_NS, Clock
from baton.core.errors import BatonError, RegistryUnavailable
from baton.core.request import Answer, Request, RequestState
from baton.core.signal import ALLOW, Asked, Settled
from baton.sessions.budget import KEY as BUDGET
from baton.sessions.chores import attempt
from baton.sessions.reporter import Reporter
from baton.sessions.terminal import print_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SEC = 0.05  # just after a question: a program may answer
_LOOK_LATER_SEC = 0.2  # a person hardly feels it, and it costs a quarter
_SOON_SEC = 3.0
_LOOK_FAR_SEC = 0.25  # where each look is a query over the network
_EXPIRE_SEC = 1.0
_AGAIN_SEC = 2.0
_ON_SCREEN = "the agent asks on its own screen alone: attach, and answer there"
_WATCH_SEC = 0.5  # between looks whether a person is there


class Asking:
    """The questions of the session's present job, by the keys of the channel. The registry is read only while one is
    open. What fails here leaves the question to the person at the agent's own screen. `note` gets each question that
    was answered: the agent waits for it no longer. `is_watched` says whether a person may look at that screen: a
    question that it does not show while the runner may answer goes there then, and only there. `answer_own` takes the
    answer to a question of the runner itself, about the budget."""

    def __init__(
        self,
        reporter: Reporter,
        clock: Clock,
        note: Callable[[Settled], None],
        is_watched: Callable[[], bool],
        answer_own: Callable[[Answer], bool],
    ) -> None:
        self._reporter = reporter
        self._note = note
        self._is_watched = is_watched
        self._answer_own = answer_own
        self._on_screen: set[str] = set()  # keys of questions that were left to the screen
        self.channel: Channel = Silent()
        self._clock = clock
        self._not_asked: list[Asked] = []  # the registry was unavailable
        self._open: dict[str, Request] = {}
        self._answered: dict[str, Request] = {}  # by this runner: what became of it is not known yet
        self._stamp: object = None
        self._look_ns = self._expire_ns = self._soon_ns = self._watch_ns = 0

    def ask(self, asked: Asked) -> None:
        """Open a request for a question. A rule, or an earlier answer for the whole job, may answer it at once."""
        if asked.key in self._open or asked in self._not_asked:
            return
        job = self._reporter.job
        if job is None or self._reporter.is_over():
            self.channel.release(asked.key)
            return
        from baton.jobs import requests

        try:
            request = requests.ask(self._reporter.jobs, job, asked)
        except RegistryUnavailable:
            self._not_asked.append(asked)
            self._look_ns = self._clock.monotonic_ns() + int(_AGAIN_SEC * SECOND_NS)
            raise
        except BatonError:
            self.channel.release(asked.key)
            raise
        self._reporter.send()
        self._open[asked.key] = request
        self._stamp = None
        self._soon_ns = self._clock.monotonic_ns() + int(_SOON_SEC * SECOND_NS)
        self._deliver(request)

    def settle(self, settled: Settled) -> None:
        """Note what was decided at the agent's own side, or what became of an answer."""
        self._not_asked = [each for each in self._not_asked if each.key != settled.key]
        request = self._open.pop(settled.key, None) or self._answered.pop(settled.key, None)
        if request is None:
            return
        from baton.jobs import requests

        requests.settle(self._reporter.jobs, request.request_id, settled)
        self._reporter.send()

    def wait_sec(self) -> float | None:
        """Return how long until the next look for answers; None while no question is open."""
        if not self._open and not self._not_asked:
            return None
        return max(0, self._look_ns - self._clock.monotonic_ns()) / SECOND_NS

    def check(self) -> None:
        """Give the agent the answers that have come."""
        wait_sec = self.wait_sec()
        if wait_sec is None or wait_sec > 0:
            return
        registry = self._reporter.jobs.registry
        now_ns = self._clock.monotonic_ns()
        every_sec = _LOOK_SEC if now_ns < self._soon_ns else _LOOK_LATER_SEC
        self._look_ns = now_ns + int((_LOOK_FAR_SEC if registry.multi_host else every_sec) * SECOND_NS)
        not_asked, self._not_asked = self._not_asked, []
        for asked in not_asked:
            attempt(partial(self.ask, asked))
        if now_ns >= self._expire_ns and any(each.expires_at for each in self._open.values()):
            self._expire_ns = now_ns + int(_EXPIRE_SEC * SECOND_NS)
            self._expire()
        stamp = registry.answers_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            for request in list(self._open.values()):
                self._deliver(registry.get_request(request.request_id))
        if self.channel.hides_questions and now_ns >= self._watch_ns:
            self._watch_ns = now_ns + int(_WATCH_SEC * SECOND_NS)
            self._show()

    def _show(self) -> None:
        """Bring the questions to the agent's own screen while a person may look at it."""
        hidden = self._open.keys() - self._on_screen
        if hidden and self._is_watched():
            self._on_screen |= hidden
            for key in hidden:
                self.channel.release(key)

    def _expire(self) -> None:
        from baton.jobs import requests

        assert self._reporter.job is not None
        for request in requests.expire_due(self._reporter.jobs, self._reporter.job.job_id):
            self._deliver(request)
        self._reporter.send()

    def _deliver(self, request: Request) -> None:
        """Write the answer of a request to the agent, if there is one."""
        if request.state is RequestState.OPEN:
            return
        from baton.jobs import requests

        self._open.pop(request.key, None)
        if request.state in (RequestState.ELSEWHERE, RequestState.WITHDRAWN):
            return
        self._answered[request.key] = request
        was_answered = request.state is RequestState.ANSWERED
        answer = requests.answer_of(request) if was_answered else requests.expiry(request)
        is_own = request.key.startswith(BUDGET)
        try:
            is_written = self._answer_own(answer) if is_own else self.channel.answer(request.key, answer)
        except AnswerRefused as error:
            if was_answered:
                requests.not_used(self._reporter.jobs, request.request_id, str(error))
            return
        if is_written:
            # The agent goes on. What it does with the answer, it may say only when the tool is over.
            self._note(Settled(key=request.key, decision=answer.answer, by="runner"))
            requests.sent(self._reporter.jobs, request.request_id)
            if is_own:
                self.settle(Settled(key=request.key, decision=answer.answer, by="baton"))
        elif self.channel.hides_questions:
            requests.not_used(self._reporter.jobs, request.request_id, _ON_SCREEN)
        else:
            print_line(f"baton: the answer to request {request.request_id} came too late")
            if answer.answer != ALLOW:
                self.channel.release(request.key)  # the agent offers no denial: without a screen, it is refused

    def close(self) -> None:
        """Forget the questions of a job that has ended: they are closed with it. The agent's own screen still asks."""
        for key in [*self._open, *(each.key for each in self._not_asked)]:
            self.channel.release(key)
        self._open, self._answered, self._not_asked, self._on_screen = {}, {}, [], set()
