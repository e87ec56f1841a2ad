"""R6: listeners are killed in mid-stream and started again: what they print is a whole story in the end, and the
last event of a job is never lost.

The same for the monitor, and that a validation is not run twice, is in test_delegation_killed.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from baton.transport.publish import publish_event
from support.command import BATON, Baton
from support.crew import Crew
from support.homes import settings_in
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.config import Settings

KILLS_A_JOB = 5
CODES = {"completed": 0, "error": 1}


@pytest.mark.timeout(1800)
def test_a_killed_listener_misses_nothing(broker, tmp_path, figure, full, seed):
    chance, began = Random(seed), time.monotonic()
    baton = Baton(tmp_path, **broker.env)
    settings = settings_in(tmp_path, baton.env)
    kills = at_the_end = events = 0
    wrong: list[str] = []
    while kills < (150 if full else 10) and not wrong:  # and as many on the other broker
        with open_jobs(settings) as jobs:
            job_id = jobs.register_job("x", agent="a").job_id
        last, enough = chance.choice(list(CODES)), str(tmp_path / f"{job_id}.enough")
        with Crew() as crew:
            crew.fork(_publish, settings, job_id, last, enough)
            runs = [_killed_run(baton, job_id, chance) for _ in range(KILLS_A_JOB - 1)]
            runs.append(_killed_run(baton, job_id, chance, enough))
            wrong += [f"heard {words}" for words in crew.hear_out() if words != ["over"]] + crew.failures
        final = _Run(baton, job_id)
        try:
            final.process.wait(60)
        finally:
            final.end()
        with open_jobs(settings) as jobs:
            story = [(event.seq, event.event) for event in jobs.events_after(job_id)]
            wrong += verify_log(job_id, jobs.logs_dir).damage
        wrong += [trouble for run in [*runs, final] if (trouble := run.trouble(story, CODES[last]))]
        if final.killed or final.printed() != story or story[-1][1] != last:
            wrong.append("the last run did not tell the whole story")
        kills += sum(run.killed for run in runs)
        at_the_end += runs[-1].killed
        events += len(story)
    names = set(os.listdir(os.path.join(settings.state_dir, "listeners"))) - {"id"}
    wrong += [f"another client id after a kill: {name}" for name in names if not name.endswith("-0")]
    text = (
        f"{kills} kills, {at_the_end} of them while the job ended, {events:,} events, {len(wrong)} wrong "
        f"in {time.monotonic() - began:.0f} s {wrong[:3] or ''}"
    )
    figure(f"R6 killed listeners ({broker.kind})", text.strip(), held=not wrong, seed=seed)


class _Run:
    """`baton subscribe`, once; what it prints is kept in a file, so that a kill takes away nothing it had said."""

    def __init__(self, baton: Baton, job_id: str) -> None:
        self._out, self._err = (os.path.join(baton.folder, f"{time.monotonic_ns()}.{end}") for end in ("out", "err"))
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            command = [BATON, "subscribe", "--job", job_id, "--timeout", "100", "--idle-timeout", "60"]
            self.process = subprocess.Popen(command, cwd=baton.folder, env=baton.env, stdout=out, stderr=err)

    def printed(self) -> list[tuple[int, str]]:
        """Without a last line that was cut off."""
        with open(self._out) as file:
            payloads = [json.loads(line) for line in file if line.endswith("\n")]
        return [(payload["seq"], payload["event"]) for payload in payloads]

    @property
    def killed(self) -> bool:
        return self.process.returncode < 0

    def trouble(self, story: list[tuple[int, str]], code: int) -> str | None:
        """A killed run must have told the beginning of the story; one that ended by itself all of it."""
        printed = self.printed()
        if printed != (story[: len(printed)] if self.killed else story):
            return f"exit {self.process.returncode} after {printed} of {story}"
        if not self.killed and self.process.returncode != code:
            with open(self._err) as file:
                return f"exit {self.process.returncode} instead of {code}: {file.read()[-500:]}"
        return None

    def wait_for_a_word(self) -> None:
        wait_until(lambda: os.path.getsize(self._out) or self.process.poll() is not None, interval_sec=0.001)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _killed_run(baton: Baton, job_id: str, chance: Random, enough: str | None = None) -> _Run:
    """Killed soon after its first word, or now and then before it. With `enough`, the job is ended just before."""
    run = _Run(baton, job_id)
    try:
        if enough or chance.random() < 0.8:
            run.wait_for_a_word()
        time.sleep(chance.uniform(0, 0.3))  # it is killed at any moment
        if enough:
            os.close(os.open(enough, os.O_CREAT))
            time.sleep(chance.uniform(0, 0.05))  # or while the end arrives
    finally:
        run.end()
    return run


def _publish(say: Callable[..., None], settings: Settings, job_id: str, last: str, enough: str) -> None:
    with open_jobs(settings) as jobs:
        publish_event(jobs, settings, job_id, "started")
        while not os.path.exists(enough):
            publish_event(jobs, settings, job_id, "progress")
            time.sleep(0.01)  # the pace of the load
        publish_event(jobs, settings, job_id, last)
    say("over")
