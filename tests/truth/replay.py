"""Replay the recorded messages of a row: through the channel that parsed them, the facts, the activity and the verdict.

The runner's part is played by the recording: what it answered, and that it sent the agent back to its work."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

from baton.adapters.claude_code import ClaudeCode
from baton.adapters.contract import Mode, Task
from baton.channels import claude_hooks, claude_settings, forward, gateway_channel
from baton.channels.claude_hooks import ClaudeHooks
from baton.channels.claude_stream import ClaudeStream
from baton.core import signal as signals
from baton.core.activity import DONE, LIMITED, OPEN, Facts, Limits, activity, fold, go_on, verdict
from baton.core.clock import SECOND_NS
from baton.core.request import Answer
from baton.core.signal import Asked, Heard
from truth.catalogue import CLAUDE, HEADLESS
from truth.judge import ENDED, Sample, judge
from truth.players import Player, make_player

# The runner itself pauses a job at its budget: no agent says that.
# No row is about a budget. No rule reads what is noted or stated. The first turn says the same as Unblocked, a moment
# later.
_OTHERS = (signals.Paused, signals.Resumed, signals.Noted, signals.Stated, signals.Unblocked)
KINDS = [kind.__name__ for kind in signals.Signal.__args__ if kind not in _OTHERS]
_LOOK_SEC = 0.2
_BEGIN_NS = 1000 * SECOND_NS  # of the replayed clock: no time is negative


class _Clock:
    """The clock of the recording."""

    def __init__(self, wall: int) -> None:
        self.sec = 0.0
        self._wall_ns = wall * SECOND_NS

    def monotonic_ns(self) -> int:
        return _BEGIN_NS + int(self.sec * SECOND_NS)

    def wall_ns(self) -> int:
        return self._wall_ns + int(self.sec * SECOND_NS)

    @property
    def module(self) -> Any:
        """Return what stands for the module `time`."""
        return SimpleNamespace(
            monotonic=lambda: self.monotonic_ns() / SECOND_NS, monotonic_ns=self.monotonic_ns, time_ns=self.wall_ns
        )


class _Exchange:
    """A message whose reply goes nowhere."""

    def __init__(self, path: str, body: bytes) -> None:
        self.path, self.body, self.is_open = path, body, True

    def reply(self, body: bytes = b"{}") -> bool:
        was_open, self.is_open = self.is_open, False
        return was_open


class _Tail:
    """A file whose lines are those of the recording."""

    def __init__(self, path: str, folder: str) -> None:
        self.path = path
        self.lines: list[bytes] = []

    def read(self) -> list[bytes]:
        found, self.lines = self.lines, []
        return found


class Replay:
    """Replay one recording. `without` are kinds of signals that are left out."""

    def __init__(self, recording: dict[str, Any], without: frozenset[str] = frozenset()) -> None:
        self._recording, self._without = recording, without
        self._clock = _Clock(recording["wall"])
        self._messages = recording["messages"]
        limits = recording["limits"]
        self._limits = Limits(
            idle_sec=limits["idle_timeout_sec"],
            tool_sec=limits["tool_timeout_sec"],
            background_sec=limits["background_timeout_sec"] or 600,
        )
        self.facts = Facts.of_job("", self._clock.monotonic_ns())
        self._began: float | None = None
        self._ended: tuple[str, str] | None = None
        self._exchanges: dict[int, _Exchange] = {}
        self._keys: list[str] = []
        self._recorded_keys: list[str] = []
        self._channel = self._make_channel()

    def _make_channel(self) -> ClaudeHooks | ClaudeStream | Player:
        headless = self._recording["mode"] == HEADLESS
        found = [each[3].get("session_id") for each in self._messages if each[1] == "hook"]
        task = Task(
            mode=Mode.HEADLESS if headless else Mode.INTERACTIVE, prompt=f"This is job {self._recording['job']} of baton",
            conversation_id=found[0] if found else None, resume=False, yolo=False, folder="/nowhere", workdir="/nowhere", hook=[],
        )  # fmt: skip
        if self._recording.get("agent", CLAUDE) != CLAUDE:
            return make_player(self._recording, task, self._clock, self._hear)
        if headless:
            channel = ClaudeStream(ClaudeCode(), task, clock=self._clock)
            channel.open(self._hear)
            channel.attach(os.open(os.devnull, os.O_WRONLY), None)  # what it is sent goes nowhere
            return channel
        channel = ClaudeHooks(ClaudeCode(), task, {})
        channel._errors = _Tail("errors", "")
        channel._hear = self._hear
        return channel

    def run(self) -> list[Sample]:
        """Return what would have been said, every 200 ms."""
        samples = []
        real = claude_hooks.time, claude_hooks.Tail
        claude_hooks.time, claude_hooks.Tail = self._clock.module, _Tail
        gateway_channel.time = self._clock.module
        try:
            number, end = 0, self._recording["ended"] + _LOOK_SEC
            while self._clock.sec <= end:
                while number < len(self._messages) and self._messages[number][0] <= self._clock.sec:
                    at, kind, *rest = self._messages[number]
                    number += 1
                    if at > 0 or kind in ("job", "signal"):
                        getattr(self, f"_play_{kind}")(*rest)
                        self._decide(number)
                self._tick()
                self._decide(number)
                samples.append(self._sample())
                self._clock.sec += _LOOK_SEC
        finally:
            claude_hooks.time, claude_hooks.Tail = real
            gateway_channel.time = real[0]
            self._channel.close()
        return samples

    def _hear(self, heard: Heard) -> None:
        if isinstance(heard.signal, Asked):
            self._keys.append(heard.signal.key)
        if type(heard.signal).__name__ not in self._without:
            self.facts = fold(self.facts, heard)

    def _tick(self) -> None:
        if isinstance(self._channel, ClaudeHooks):
            self._channel._tick()
        elif isinstance(self._channel, Player):
            self._channel.tick()

    def _sample(self) -> Sample:
        if self._began is None:
            return Sample(self._clock.sec, "pending", "")
        if self._ended is not None:
            return Sample(self._clock.sec, *self._ended)
        found = self._activity()
        return Sample(self._clock.sec, found.kind, found.cause)

    def _activity(self) -> Any:
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        return activity(self.facts, now_ns=now_ns, limits=self._limits, wall_ns=wall_ns)

    def _decide(self, number: int) -> None:
        """Play the runner: the job ends by the verdict, or by its time."""
        if self._began is None or self._ended is not None:
            return
        found = verdict(
            self.facts, now_ns=self._clock.monotonic_ns(), limits=self._limits, wall_ns=self._clock.wall_ns(),
            has_conditions=self._recording["has_conditions"],
        )  # fmt: skip
        if found.outcome == DONE:
            self._verify(number, found.message or "")
        elif found.outcome == LIMITED:
            self._ended = "limited", found.why  # parked: its session has ended
        elif found.outcome != OPEN:
            self._ended = "error", found.why
        elif self._clock.sec >= self._began + self._recording["limits"]["timeout_sec"]:
            self._ended = "error", f"the job took too long: {self._activity().cause}"

    def _verify(self, number: int, message: str) -> None:
        """End the job, unless the recording says that the results were refused."""
        told = next((each for each in self._messages[number:] if each[1] in ("end_turn", "say")), None)
        if told is not None and told[-1] is not None:
            return
        refused = self._recording["refused"]
        self._ended = ("error", refused) if refused else ("completed", message)

    # -- the entries of a recording ------------------------------------------------------------------------------------

    def _play_job(self, job: str | None) -> None:
        if self._ended is None and (job == self._recording["job"] or self._began is None):
            mark = "" if job is None else f"This is job {job} of baton"
            self.facts = Facts.of_job(mark, self._clock.monotonic_ns(), after=self.facts)
            self._began = self._clock.sec if job == self._recording["job"] else None

    def _play_hook(self, number: int, message: dict[str, Any]) -> None:
        self._receive(forward.HOOK_PATH, number, message)

    def _play_telemetry(self, number: int, message: dict[str, Any]) -> None:
        self._receive(claude_settings.LOGS_PATH, number, message)

    def _receive(self, path: str, number: int, message: dict[str, Any]) -> None:
        self._exchanges[number] = _Exchange(path, json.dumps(message).encode())
        self._channel._receive(self._exchanges[number])

    def _play_lost(self, number: int) -> None:
        if number in self._exchanges:
            self._channel._lose(self._exchanges[number])

    def _play_tail(self, name: str, line: dict[str, Any] | str) -> None:
        tail = self._channel._errors if name == "errors" else self._channel._transcript
        if tail is not None:
            tail.lines.append(
                line.encode() if isinstance(line, str) else json.dumps(line, separators=(",", ":")).encode()
            )
            self._channel._looked = 0.0

    def _play_line(self, line: dict[str, Any]) -> None:
        if isinstance(self._channel, Player):
            self._channel.line(line)
            return
        self._channel._say(self._channel._signals(json.dumps(line, separators=(",", ":"))))

    def _play_asked(self, key: str) -> None:
        self._recorded_keys.append(key)

    def _play_answer(self, key: str, answer: dict[str, Any]) -> None:
        if key in self._recorded_keys:
            self._channel.answer(self._keys[self._recorded_keys.index(key)], Answer(**answer))

    def _play_end_turn(self, turn: str, text: str | None) -> None:
        open_turn = self.facts.turns[-1].turn if self.facts.turns else ""
        self._channel.end_turn(turn if isinstance(self._channel, ClaudeHooks) else open_turn, text)
        if text is not None:
            self.facts = go_on(self.facts, open_turn, self._clock.monotonic_ns())

    def _play_say(self, text: str) -> None:
        if isinstance(self._channel, Player):  # of Claude, it is a part of end_turn
            ended = self.facts.turns[-1].turn if self.facts.turns else ""
            self._channel.say(text)
            self.facts = go_on(self.facts, ended, self._clock.monotonic_ns())

    def _play_event(self, event: dict[str, Any]) -> None:
        self._channel.event(event)

    def _play_heard(self, kind: str, fields: dict[str, Any], source: str) -> None:
        if kind == "BackgroundWork":
            fields = {"tasks": tuple(signals.BackgroundTask(**each) for each in fields["tasks"])}
        self._play_signal(kind, fields, source)

    def _play_signal(self, kind: str, fields: dict[str, Any], source: str) -> None:
        signal = getattr(signals, kind)(**fields)
        self._hear(Heard(signal=signal, source=source, at_ns=self._clock.monotonic_ns()))


def outcome_is_of_messages(recording: dict[str, Any]) -> bool:
    """Return whether the end of the job follows from messages: not if the runner was stopped or lost."""
    return recording["ended_by"] not in ("cancelled", "lost")


def wrong(recording: dict[str, Any], without: frozenset[str] = frozenset()) -> list[str]:
    """Return what baton would have said wrongly, without these kinds of signals."""
    replay = Replay(recording, without)
    samples = replay.run()
    used = replay.facts.spent.tokens.total
    usage = recording["usage"]
    found = [] if usage is None or used == usage else [f"counted {used} tokens, not {usage}"]
    phases = recording["phases"]
    if not outcome_is_of_messages(recording) and phases[-1].states[0] in ENDED:
        samples = [sample for sample in samples if sample.at < phases[-1].at]
        phases = phases[:-1]
    return [*found, *judge(phases, samples).wrong]
