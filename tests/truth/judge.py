"""Compare what baton said with what was so: pure functions over times."""

from __future__ import annotations

import re
from typing import NamedTuple

WITHIN_SEC = 2.0
LOOK_SEC = 0.2  # how often baton is asked
_EARLY_SEC = 0.7  # the harness may notice a change this much later than baton does
_EARLY_START_SEC = 5.0  # the first sign of a turn outside baton is the request to the model
ENDED = ("completed", "error", "cancelled", "timeout")


class Phase(NamedTuple):
    """What is so from `at` on: one of these states. A state is the activity of a running job, else its status.

    `cause` is a pattern that the cause of the activity, or the detail of an ended job, must contain. A change must be
    noticed `within` seconds."""

    states: tuple[str, ...]
    at: float
    cause: str = ""
    within: float = WITHIN_SEC
    early: float = _EARLY_SEC  # baton may notice it this long before its sign outside
    untold: tuple[str, ...] = ()  # also right: the program does not tell what is so

    def fits(self, sample: Sample) -> bool:
        if sample.state in self.untold:
            return True
        return sample.state in self.states and re.search(self.cause, sample.cause, re.IGNORECASE) is not None

    def __str__(self) -> str:
        return "|".join(self.states) + (f" ({self.cause})" if self.cause else "")


class Sample(NamedTuple):
    """What baton said at a time."""

    at: float
    state: str
    cause: str


class Judgement(NamedTuple):
    """`wrong` says what is; `notices` has the seconds until each phase was noticed (None: too short to be seen);
    `seconds` sums the time by what was so and what baton said."""

    wrong: list[str]
    notices: list[float | None]
    seconds: dict[tuple[str, str], float]


def judge(phases: list[Phase], samples: list[Sample]) -> Judgement:
    wrong: list[str] = []
    notices: list[float | None] = []
    seconds: dict[tuple[str, str], float] = {}
    start = phases[0].at
    for number, phase in enumerate(phases):
        following = phases[number + 1] if number + 1 < len(phases) else None
        end = following.at if following else float("inf")
        window = [sample for sample in samples if phase.at <= sample.at < end]
        right = next((sample for sample in window if phase.fits(sample)), None)
        took = right.at - phase.at - LOOK_SEC if right else 0.0  # it may have been so since the look before
        notices.append(max(0.0, took) if right else None)
        lasted = (following.at if following else samples[-1].at) - phase.at
        if right is None and (following is None or lasted > phase.within):
            wrong.append(f"never said {phase}{_instead(window)}")
        elif right is not None and took > phase.within:
            wrong.append(f"said {phase} {took:.1f} s late{_instead(window[: window.index(right)])}")
        for index, sample in enumerate(window):
            until = window[index + 1].at if index + 1 < len(window) else sample.at
            said = sample.state
            label = said if said in (*phase.states, *phase.untold) else phase.states[0]
            seconds[label, said] = seconds.get((label, said), 0.0) + until - sample.at
            if right is not None and sample.at > right.at and sample.state in (*phase.states, *phase.untold):
                continue  # the cause may change
            early = following.early if following else 0.0
            early = max(early, _EARLY_START_SEC) if "starting" in phase.states else early
            if phase.fits(sample) or (following and following.fits(sample) and sample.at > end - early):
                continue
            if any(before.fits(sample) for before in _recent(phases, number, sample.at)):
                continue
            if right is not None and sample.at > right.at:
                wrong.append(f"said {_show(sample)} {sample.at - start:.1f} s after the beginning, during {phase}")
                break
            if sample.at <= phase.at + phase.within and sample.state in ENDED:
                wrong.append(f"said {_show(sample)} before {phase}")
                break
    return Judgement(wrong, notices, seconds)


def _recent(phases: list[Phase], number: int, at: float) -> list[Phase]:
    """Return the phases before this one that may still be shown: the change after them is not overdue."""
    return [
        phases[index] for index in range(number) if phases[index + 1].at + phases[index + 1].within >= at - LOOK_SEC
    ]


def _instead(samples: list[Sample]) -> str:
    said = list(dict.fromkeys(_show(sample) for sample in samples))
    return f"; said {', '.join(said)}" if said else ""


def _show(sample: Sample) -> str:
    return f"{sample.state} ({sample.cause[:90]})" if sample.cause else sample.state


def changes(samples: list[Sample]) -> list[str]:
    """Return the states one after the other, each once."""
    found: list[str] = []
    for sample in samples:
        if not found or found[-1] != sample.state:
            found.append(sample.state)
    return found
