"""Measure publish, get, pick and status as new processes, against another installation of baton.

    python bench/startup.py                              against `python -c pass`
    python bench/startup.py --against VENV/bin/baton     against that installation; both run by turns

Exit code 1 when a command takes more than its limit. Each installation has its own home, local broker and jobs. The
part `homes` times, inside one process, how long a command takes to find its home and to check that it is trusted; the
part `results` times how a long output is printed, the part `lists` how many jobs and many homes are listed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from table import Folder, Row, Runner, at_most, chosen_parts, in_turns, ms, run_parts, size, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATON = os.path.join(os.path.dirname(sys.executable), "baton")
RUNS = size(100, 2)
LIMIT, LIMIT_AGAINST_PYTHON = 1.05, 4.0
HOME_LIMIT_SEC = 0.0005
RESULT_LIMIT, RESULT_MIB = 6.0, 4
LIST_LIMIT, ALL_HOMES_LIMIT = 5.0, 10.0
VERBS = ("publish", "get", "pick", "status")
_REGISTER = """
import sys, baton
ids = [baton.register_job("Sort these.", agent="shell", timeout_sec=3600).job_id for _ in range(int(sys.argv[1]))]
print(*ids)
"""
_WITH_OUTPUT = """
import sys
from baton.jobs.output import OutputWriter, output_folder
from baton.jobs.verbs import open_jobs
from baton.storage.homes import load_settings

settings = load_settings()
with open_jobs(settings) as jobs:
    job = jobs.pick_job(jobs.register_job("Sort these.", agent="shell").job_id)
    writer = OutputWriter(settings.home, job, 40_000_000, ())
    writer.write(b"a line of the output of an agent, about so long\\n" * (int(sys.argv[1]) // 48))
    writer.flush()
    jobs.update_status(job.job_id, "completed")
    print(job.job_id, output_folder(settings.home, job.job_id) + "/1.0.out")
"""
# Jobs as people leave them: most have ended and were seen, some failed, a few run.
_ENDED = """
import sys, time, baton
from baton.core.event import EventName
from baton.core.drafts import new_job
with baton.open_jobs() as jobs:
    drafts = [new_job("Fix the login page of the shop, and add tests for it.", now_ns=time.time_ns(), agent="shell",
                      title="Fix the login page") for _ in range(int(sys.argv[1]))]
    for number, job in enumerate(jobs.registry.register_many(drafts)):
        jobs.registry.record_event(job.job_id, EventName.STARTED)
        if number % 100:
            end = EventName.ERROR if number % 10 == 0 else EventName.COMPLETED
            jobs.registry.record_event(job.job_id, end, outcome={"reason": "the validation failed: 2 tests"})
            if number % 50 != 1:
                jobs.registry.mark_seen(job.job_id)
"""


class Installation:
    """One installed `baton`, with a home of its own, a running broker and a job that has started."""

    def __init__(self, program: str, folder: str) -> None:
        self._program = program
        self._run = Runner(folder)
        self._ask("broker", "up")
        python = os.path.join(os.path.dirname(program), "python")
        ids = self._output([python, "-c", _REGISTER, str(RUNS + 10)]).split()
        self._job = self._ask("pick", "--agent", "shell").strip()
        if self._job not in ids:
            raise SystemExit(f"bench: {program} picked {self._job!r}")
        self._ask("publish", self._job, "--event", "started")
        for verb in VERBS:
            self.run(verb)  # compiles the modules

    def run(self, verb: str) -> float:
        """Run a command, and return the CPU seconds it used."""
        arguments = {
            "publish": ["publish", self._job, "--event", "progress", "--detail", "one of ten", "--require-broker"],
            "get": ["get", self._job],
            "pick": ["pick", "--agent", "shell"],
            "status": ["status", self._job],
        }
        return self._run([self._program, *arguments[verb]])

    def close(self) -> None:
        self._ask("broker", "down")

    def _ask(self, *arguments: str) -> str:
        return self._output([self._program, *arguments])

    def _output(self, argv: list[str]) -> str:
        done = subprocess.run(
            argv, cwd=self._run.folder, env=self._run.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(argv[:3])} ended with {done.returncode}: {done.stderr}")
        return done.stdout


class Measured:
    """Times of one action: on the clock, and of the processor."""

    def __init__(self, action: Callable[[], float]) -> None:
        self.action = action
        self._seconds: list[float] = []
        self._cpu: list[float] = []

    def measure(self) -> None:
        self._seconds.append(timed(lambda: self._cpu.append(self.action())))

    @property
    def seconds(self) -> float:
        return median(self._seconds)

    @property
    def cpu(self) -> float:
        return median(self._cpu)


def start_up(against: str | None) -> Callable[[Folder], Iterator[Row]]:
    def part(folder: Folder) -> Iterator[Row]:
        """publish, get, pick and status as new processes"""
        ours = Installation(BATON, folder.new("ours"))
        other = Installation(against, folder.new("other")) if against else None
        run_python = Runner(folder.new("python"))
        try:
            for verb in VERBS:
                sides = [Measured(partial(ours.run, verb))]
                if other:
                    sides.append(Measured(partial(other.run, verb)))
                else:
                    sides.append(Measured(lambda: run_python([sys.executable, "-c", "pass"])))
                for number in range(RUNS):
                    for side in sides if number % 2 else reversed(sides):
                        side.measure()
                mine, theirs = sides
                name = "the other" if against else "python -c pass"
                limit = LIMIT if against else LIMIT_AGAINST_PYTHON
                ratio = at_most(limit, mine.seconds, theirs.seconds)
                yield Row(f"baton {verb}, median of {RUNS}", ms(mine.seconds), f"{name} {ms(theirs.seconds)}", *ratio)
                cpu = f"{mine.cpu / theirs.cpu:.2f}x the time"
                yield Row("  CPU time", ms(mine.cpu), f"{name} {ms(theirs.cpu)}", cpu)
        finally:
            ours.close()
            if other:
                other.close()

    return part


def homes(folder: Folder) -> Iterator[Row]:
    """find and check the home, inside the process"""
    from baton.storage.homes import find
    from baton.storage.new_homes import make

    place = folder.new("homes")
    state, top = os.path.join(place, "state"), os.path.join(place, "top")
    deep = os.path.join(top, *"abcdef")
    os.makedirs(deep)
    home = make(state, find(state, here=top))
    cases = {
        "here": (".hermes", top),
        "six folders up": (".hermes", deep),
        "named by its path, as in a session": (home.path, deep),
        "none yet": (".hermes", place),
    }
    for name, (named, here) in cases.items():
        seconds = median(timed(lambda: find(state, named, place, here)) for _ in range(size(1000, 3)))  # noqa: B023
        yield Row(f"home {name}, median", ms(seconds), limit=f"<= {ms(HOME_LIMIT_SEC)}", ok=seconds <= HOME_LIMIT_SEC)


def results(folder: Folder) -> Iterator[Row]:
    """baton result of a long output, against cat"""
    run = Runner(folder.new("results"))
    long, short = size(10_000_000, 100_000), 1_000
    jobs = {length: _job_with_output(run, length) for length in (long, short)}
    peak = {}
    for length, (job, _) in jobs.items():
        peak[length] = _peak_kib(run, [BATON, "result", job, "--output"])

    def start_and_cat() -> None:
        run([sys.executable, "-c", "pass"])
        run(["/bin/cat", jobs[long][1]])

    ours, base = in_turns(size(20, 1), lambda: run([BATON, "result", jobs[long][0], "--output"]), start_and_cat)
    what = f"baton result of {long / 10**6:g} MB"
    yield Row(what, ms(ours), f"python -c pass; cat {ms(base)}", *at_most(RESULT_LIMIT, ours, base))
    more = (peak[long] - peak[short]) / 1024
    yield Row("  memory beyond that of 1 kB", f"{more:.1f} MiB", limit=f"<= {RESULT_MIB} MiB", ok=more <= RESULT_MIB)


def _job_with_output(run: Runner, length: int) -> tuple[str, str]:
    """Return a job and the file of its output."""
    made = subprocess.run(
        [sys.executable, "-c", _WITH_OUTPUT, str(length)], cwd=run.folder, env=run.env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    job, path = made.stdout.split()
    return job, path


def _peak_kib(run: Runner, argv: list[str]) -> int:
    """Return how much memory a command took at most. A program of its own starts it: the kernel counts what a process
    had before it became another."""
    measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
    show = "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", measure + show, *argv], cwd=run.folder, env=run.env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return int(done.stdout)


def lists(folder: Folder) -> Iterator[Row]:
    """list of 1,000 jobs, and of 20 homes, as new processes"""
    place = folder.new("lists")
    many, homes_of_user = size(1000, 3), size(20, 2)
    run = Runner(place)
    for number in range(homes_of_user):
        os.makedirs(there := os.path.join(place, f"folder-{number}"))
        count = many if number == 0 else 10
        subprocess.run([sys.executable, "-c", _ENDED, str(count)], cwd=there, env=run.env, check=True)
    here = Runner(os.path.join(place, "folder-0"), {"HOME": place})
    cases = (
        (f"list of {many:,} jobs", ["list"], LIST_LIMIT),
        (f"list --needs-me of {many:,} jobs", ["list", "--needs-me"], LIST_LIMIT),
        (f"list --all-homes of {homes_of_user} homes, {many + 10 * homes_of_user - 10:,} jobs",
         ["list", "--all-homes"], ALL_HOMES_LIMIT),
    )  # fmt: skip
    for name, arguments, limit in cases:
        sides = [
            Measured(lambda: here([BATON, *arguments])),  # noqa: B023
            Measured(lambda: here([sys.executable, "-c", "pass"])),
        ]
        sides[0].measure()  # compiles the modules
        sides = [Measured(sides[0].action), sides[1]]
        for _ in range(size(50, 2)):
            for side in sides:
                side.measure()
        mine, python = sides
        ratio = at_most(limit, mine.seconds, python.seconds)
        yield Row(f"baton {name}, median", ms(mine.seconds), f"python -c pass {ms(python.seconds)}", *ratio)
        yield Row(
            "  CPU time", ms(mine.cpu), f"python -c pass {ms(python.cpu)}", f"{mine.cpu / python.cpu:.2f}x the time"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="PATH", help="the `baton` of another installation (default: none)")
    others = {"homes": homes, "results": results, "lists": lists}
    options = chosen_parts(parser, {"startup": start_up(None), **others})
    sys.exit(run_parts({"startup": start_up(options.against), **others}, options.part))
