"""The judge of `make truth` is itself judged."""

from __future__ import annotations

from truth.judge import Phase, Sample, changes, judge

PHASES = [Phase(("starting", "pending"), 0.0, within=60), Phase(("working",), 10.0), Phase(("waiting",), 20.0, "Bash"),
          Phase(("completed",), 30.0)]  # fmt: skip


def said(*parts: tuple[float, float, str, str]) -> list[Sample]:
    """Return samples every 200 ms: from, to, state, cause."""
    return [Sample(at / 10, state, cause) for begin, end, state, cause in parts for at in range(int(begin * 10), int(end * 10), 2)]  # fmt: skip


def test_a_truthful_reader_is_right():
    samples = said((0, 10.4, "starting", ""), (10.4, 21, "working", ""), (21, 31, "waiting", "Bash: x"), (31, 33, "completed", "ok"))  # fmt: skip
    judgement = judge(PHASES, samples)
    assert judgement.wrong == []
    assert [round(each, 1) for each in judgement.notices] == [0.0, 0.2, 0.8, 0.8]
    assert round(judgement.seconds["waiting", "working"], 1) == 1.0
    assert changes(samples) == ["starting", "working", "waiting", "completed"]


def test_a_false_completed_is_wrong():
    samples = said((0, 10, "starting", ""), (10, 15, "working", ""), (15, 33, "completed", ""))
    assert any("completed" in each for each in judge(PHASES, samples).wrong)


def test_what_is_noticed_late_is_wrong():
    samples = said(
        (0, 10, "starting", ""), (10, 24, "working", ""), (24, 30, "waiting", "Bash"), (30, 33, "completed", "")
    )
    assert judge(PHASES, samples).wrong == ["said waiting (Bash) 3.8 s late; said working"]


def test_a_wrong_cause_is_wrong():
    samples = said(
        (0, 10, "starting", ""), (10, 20, "working", ""), (20, 30, "waiting", "Read"), (30, 33, "completed", "")
    )
    assert judge(PHASES, samples).wrong == ["never said waiting (Bash); said waiting (Read)"]


def test_a_turn_may_begin_as_long_before_the_model_is_asked_as_the_program_takes():
    samples = said((0, 12, "starting", ""), (12, 33, "working", ""))
    for early, right in ((10.0, True), (4.0, False)):
        phases = [Phase(("starting",), 0.0, within=60), Phase(("working",), 20.0, early=early)]
        assert (judge(phases, samples).wrong == []) is right


def test_a_flip_is_wrong():
    samples = said((0, 10, "starting", ""), (10, 14, "working", ""), (14, 15, "idle", ""), (15, 20, "working", ""), (20, 30, "waiting", "Bash"), (30, 33, "completed", ""))  # fmt: skip
    assert judge(PHASES, samples).wrong == ["said idle 14.0 s after the beginning, during working"]


def test_a_phase_that_is_shorter_than_the_limit_may_be_missed():
    phases = [Phase(("working",), 0.0), Phase(("waiting",), 5.0), Phase(("completed",), 6.0)]
    assert judge(phases, said((0, 6.4, "working", ""), (6.4, 8, "completed", ""))).wrong == []
