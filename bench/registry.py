"""Holds the registry to its limits of speed, against the seeds' own design in the same run.

    python bench/registry.py              everything, in about a minute and a half
    python bench/registry.py claim cli    only these parts; `--help` names them

Exit code 1 when a limit is missed. Figures are medians, and what is compared is measured in turns, claim by
claim, so that a busy machine slows down both sides; a part that misses a limit is measured once more, and the
table says so. Everything lies in a temporary folder on a real disk (TMPDIR says where, unless that is memory),
and is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, BinaryIO

from baton.core.clock import format_time, parse_time
from baton.core.drafts import new_job
from baton.core.event import EventName
from baton.core.job import Job, Status
from baton.jobs.verbs import open_jobs
from baton.registry.contract import Entry, JobFilter
from baton.registry.files import FileRegistry
from baton.registry.sqlite import SqliteRegistry
from baton.storage.homes import load_settings
from seed_design import SeedRegistry
from table import ROOT, SMALLEST, Folder, Row, Runner, at_most, chosen_parts, in_turns, ms, run_parts, size, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from baton.registry.verbs import Registry
    from support.postgres import PostgresServer

PROMPT = "Write ten exercises about sorting, with solutions, and save them as sort_problems.md. " * 4
AGENT = "claude-code"
LABEL = "tmux:claude"
CLAIMERS = size(16, 2)
CLAIM_SEC, ALONE_SEC = (0.2, 0.2) if SMALLEST else (3.0, 1.0)
BIG = size(100_000, 2000)


# -- jobs to measure with ----------------------------------------------------------------------------------


def drafts(count: int, label: str = LABEL) -> Iterator[Job]:
    """Pending jobs, a microsecond apart, up to now. The ids are long: 100,000 short ones would collide."""
    start_ns = time.time_ns() - count * 1000
    first = new_job(PROMPT, now_ns=start_ns, agent=AGENT, agent_session=label, expected_artifacts=["a.md"])
    for number in range(count):
        job_id = os.urandom(8).hex()
        # A record of its own each, without checking the same fields 100,000 times.
        yield first.replace(
            job_id=job_id,
            topic_prefix=f"python/mqtt/jobs/{job_id}",
            created_at=format_time(start_ns + number * 1000),
        )


def finished(jobs: Iterable[Job]) -> Iterator[Job]:
    for job in jobs:
        yield job.replace(status=Status.COMPLETED, attempt=1, claimed_by="bench:1", finished_at=job.created_at)


def add(registry: Registry, jobs: Iterable[Job]) -> None:
    registry.import_entries(Entry(job=job, events=()) for job in jobs)


def claim(registry: Registry, label: str = LABEL) -> Callable[[], None]:
    def once() -> None:
        assert registry.pick_pending(label, holder="bench:1") is not None, "the backlog ran out"

    return once


class RegistryFolder(Folder):
    """The temporary folder, and the registry of 100,000 pending jobs that two parts share."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._big: str | None = None

    def files(self, name: str) -> FileRegistry:
        return FileRegistry(os.path.join(self.new(name), "jobs"))

    def sqlite(self, name: str) -> SqliteRegistry:
        return SqliteRegistry(os.path.join(self.new(name), "registry.db"))

    def big(self) -> SqliteRegistry:
        if self._big is None:
            registry = self.sqlite("big")
            add(registry, drafts(BIG))
            registry.close()
            self._big = registry.path
        return SqliteRegistry(self._big)


# -- the parts ---------------------------------------------------------------------------------------------


def claim_against_the_seeds(folder: RegistryFolder) -> Iterator[Row]:
    """claim with 10,000 pending jobs, against the seeds' design"""
    backlog = size(10_000, 20)
    seeds = SeedRegistry(folder.new("seeds"))
    seeds.fill(backlog, PROMPT, AGENT, LABEL)
    ours = folder.sqlite("claim")
    add(ours, drafts(backlog))
    claim(ours)()
    rounds: list[tuple[float, float, float]] = []
    with open(os.path.join(folder.new("sync"), "file"), "wb", buffering=0) as file:
        for _ in range(size(9, 1)):
            theirs = timed(lambda: seeds.pick_pending(LABEL))
            mine, sync = in_turns(size(60, 3), claim(ours), lambda: _sync(file))
            rounds.append((mine, theirs, sync))
            ours.register_many(drafts(60))
    ours.close()
    mine, theirs, sync = (median(side) for side in zip(*rounds, strict=True))
    times = median(theirs / mine for mine, theirs, _ in rounds)  # of each round, which had one load
    yield Row(
        "claim, 10,000 pending (sqlite)",
        ms(mine),
        f"seeds' design {ms(theirs)}",
        f"{times:,.0f}x faster",
        ">= 300x",
        times >= 300,
    )
    yield Row(
        "  of which the disk: 16 KiB written and synced",
        ms(sync),
        f"the claim {ms(mine)}",
        f"{sync / mine:.2f}x the time",
    )


def _sync(file: BinaryIO) -> None:
    """What a commit asks of the disk at least: a claim writes four pages of SQLite's log."""
    file.seek(0)
    file.write(bytes(16 * 1024))
    os.fdatasync(file.fileno())


def claim_by_backlog(folder: RegistryFolder) -> Iterator[Row]:
    """claim with 100,000 pending jobs, against 100"""
    big, small = folder.big(), folder.sqlite("small")
    small.register_many(drafts(101))
    claim(big)()
    claim(small)()
    seconds: list[tuple[float, float]] = []
    for _ in range(size(40, 1)):
        seconds += [(timed(claim(big)), timed(claim(small))) for _ in range(20)]
        small.register_many(drafts(20))
    big.close()
    small.close()
    at_big, at_small = (median(side) for side in zip(*seconds, strict=True))
    yield Row(
        "claim, 100,000 pending (sqlite)",
        ms(at_big),
        f"100 pending {ms(at_small)}",
        *at_most(1.5, at_big, at_small),
    )


def claim_from_files(folder: RegistryFolder) -> Iterator[Row]:
    """the file backend's claim with 10,000 finished jobs, against none, and what building its index costs"""
    old, new = folder.files("old"), folder.files("new")
    add(old, finished(drafts(size(10_000, 20))))
    for registry in (old, new):
        registry.register_many(drafts(101))
        claim(registry)()  # builds the index, which is trusted from then on
    seconds: list[tuple[float, float]] = []
    for _ in range(size(10, 1)):
        seconds += [(timed(claim(old)), timed(claim(new))) for _ in range(20)]
        assert old.stamp.is_current(), "the index is built anew with each claim"  # a median would hide it
        for registry in (old, new):
            registry.register_many(drafts(20))
    with_old, without = (median(side) for side in zip(*seconds, strict=True))
    yield Row(
        "claim, 10,000 finished, 100 pending (file)",
        ms(with_old),
        f"none finished {ms(without)}",
        *at_most(3, with_old, without),
    )
    again = []
    for foreign in drafts(3):
        path = os.path.join(old.folder, f"{foreign.job_id}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(foreign.record(), file)
        again.append(timed(claim(old)))
    yield Row(
        "  once after a foreign file was dropped in",
        ms(median(again)),
        f"with the index {ms(with_old)}",
        f"{median(again) / with_old:,.0f}x the time",
    )


def claim_with_followers(folder: RegistryFolder) -> Iterator[Row | str]:
    """claim with 10,000 blocked jobs in the same queue, half of them followers of one job, against none"""
    registries: dict[str, tuple[Registry, Registry]] = {
        "sqlite": (folder.sqlite("blocked"), folder.sqlite("free")),
        "file": (folder.files("blocked"), folder.files("free")),
    }
    server = None
    try:
        try:
            server, with_many = _postgres()
            registries["postgresql"] = (with_many, type(with_many)(server.new_url()))
        except Exception as error:
            if SMALLEST:
                raise
            yield f"postgresql was not measured: {error}"
        for backend, (blocked, free) in registries.items():
            yield _claim_with_followers(backend, blocked, free)
            blocked.close()
            free.close()
    finally:
        if server is not None:
            server.remove()


def _claim_with_followers(backend: str, blocked: Registry, free: Registry) -> Row:
    first = blocked.register_job(next(drafts(1, "another queue")))
    followers = [job.replace(after=(first.job_id,)) for job in drafts(size(10_000, 20) // 2)]
    blocked.register_many(followers)
    last = first
    chain = []
    for job in drafts(size(10_000, 20) // 2):
        chain.append(job.replace(after=(last.job_id,)))
        last = job
    blocked.register_many(chain)
    for registry in (blocked, free):
        registry.register_many(drafts(21))
        claim(registry)()
    seconds: list[tuple[float, float]] = []
    for _ in range(size(20, 1)):
        seconds += [(timed(claim(blocked)), timed(claim(free))) for _ in range(20)]
        for registry in (blocked, free):
            registry.register_many(drafts(20))
    with_many, without = (median(side) for side in zip(*seconds, strict=True))
    return Row(
        f"claim, 10,000 blocked followers ({backend})",
        ms(with_many),
        f"none {ms(without)}",
        *at_most(1.2, with_many, without),
    )


def many_claimers(folder: RegistryFolder) -> Iterator[Row]:
    """16 processes claiming from one SQLite registry"""
    path = folder.big().path
    (alone,) = _run_claimers(path, 1, ALONE_SEC)
    together = _run_claimers(path, CLAIMERS, CLAIM_SEC)
    claims = [len(each["waits"]) for each in together]
    ids = [job_id for each in together for job_id in each["ids"]]
    waits = sorted(wait for each in together for wait in each["waits"])
    rate, rate_alone = sum(claims) / CLAIM_SEC, len(alone["waits"]) / ALONE_SEC
    yield Row(
        f"{CLAIMERS} processes (sqlite): worst wait",
        ms(waits[-1]),
        f"p50 {ms(waits[len(waits) // 2])}, p99 {ms(waits[len(waits) * 99 // 100])}",
        "",
        "<= 500 ms",
        waits[-1] <= 0.5,
    )
    yield Row(
        "  the busiest process",
        f"{max(claims):,} claims",
        f"least busy {min(claims):,}",
        f"{max(claims) / max(min(claims), 1):.2f}x",
        "<= 5x",
        max(claims) <= 5 * min(claims),
    )
    yield Row(
        "  all together",
        f"{rate:,.0f} claims/s",
        f"one process {rate_alone:,.0f} claims/s",
        f"{rate / rate_alone:.2f}x",
    )
    yield Row("  jobs claimed twice", str(len(ids) - len(set(ids))), "", "", "none", len(ids) == len(set(ids)))


def _run_claimers(path: str, count: int, seconds: float) -> list[dict[str, list[float]]]:
    argv = [sys.executable, os.path.abspath(__file__), "--claimer", path]
    processes = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
        begin = time.monotonic() + 0.2
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{begin} {begin + seconds}\n")
            process.stdin.flush()
        return [json.loads(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def claimer(path: str) -> None:
    """One of many processes: claims from begin to end and prints what it got, and how long each took."""
    registry = SqliteRegistry(path)
    waits: list[float] = []
    ids: list[str] = []
    print("ready", flush=True)
    begin, end = map(float, sys.stdin.readline().split())  # the clock is the same for all processes
    time.sleep(max(0.0, begin - time.monotonic()))
    while time.monotonic() < end:
        start = time.perf_counter()
        change = registry.pick_pending(LABEL, holder=f"bench:{os.getpid()}")
        waits.append(time.perf_counter() - start)
        assert change is not None, "the backlog ran out"
        ids.append(change.after.job_id)
    registry.close()
    json.dump({"waits": waits, "ids": ids}, sys.stdout)


def _mixed(count: int) -> Iterator[Job]:
    """Jobs of 50 sessions: 5 % error, 3 % cancelled, 1 % pending, the others completed; the 20 oldest are of
    another agent."""
    for number, job in enumerate(finished(drafts(count))):
        part = number % 100
        status = Status.COMPLETED
        if part < 8:
            status = Status.ERROR if part < 5 else Status.CANCELLED
        elif part == 99:
            status = Status.PENDING
        yield job.replace(
            status=status,
            finished_at=None if status is Status.PENDING else job.finished_at,
            agent_session=f"tmux:claude-{number // 7 % 50}",
            agent="codex" if number < 20 else AGENT,
        )


def pages(folder: RegistryFolder) -> Iterator[Row]:
    """a page of 50 out of 100,000 jobs"""
    registry = folder.sqlite("pages")
    add(registry, _mixed(BIG))
    newest = parse_time(registry.list_jobs(limit=1).jobs[0].created_at)
    middle = registry.list_jobs(JobFilter(created_until_ns=newest - BIG // 2 * 1000), limit=1).next
    one = "tmux:claude-7"
    limited = {
        "first": lambda: registry.list_jobs(limit=50),
        "from the middle": lambda: registry.list_jobs(limit=50, after=middle),
        "of one status": lambda: registry.list_jobs(JobFilter(statuses=[Status.ERROR]), limit=50),
        "of one session": lambda: registry.list_jobs(JobFilter(agent_session=one), limit=50),
    }
    unlimited = {
        "of a status and a session": lambda: registry.list_jobs(
            JobFilter(statuses=[Status.ERROR], agent_session=one), limit=50
        ),
        "of two statuses": lambda: registry.list_jobs(JobFilter(statuses=[Status.ERROR, Status.CANCELLED]), limit=50),
        "of an agent with 20 old jobs": lambda: registry.list_jobs(JobFilter(agent="codex"), limit=50),
    }
    for name, action in (limited | unlimited).items():
        wanted = 20 if "20" in name else 50
        found = len(action().jobs)  # also warms up
        assert SMALLEST or found == wanted, name
    results = in_turns(size(40, 1), *limited.values()) + in_turns(size(5, 1), *unlimited.values())
    registry.close()
    for name, seconds in zip(limited | unlimited, results, strict=True):
        judged = ("<= 5 ms", seconds <= 0.005) if name in limited else ()
        yield Row(f"page of 50 of 100,000, {name}", ms(seconds), "", "", *judged)


def fresh_processes(folder: RegistryFolder) -> Iterator[Row | str]:
    """the commands as fresh processes, against `python -c pass`"""
    where, count = folder.new("cli"), size(1000, 20)
    with open_jobs(load_settings(env={"HOME": where}, here=where)) as jobs:
        ids = [job.job_id for job in jobs.register_many(drafts(count, f"tmux:{AGENT}"))]
    run = Runner(where)
    baton = os.path.join(os.path.dirname(sys.executable), "baton")
    to_set = iter(ids[count // 2 :])
    commands: dict[str, Callable[[], list[str]]] = {
        "python -c pass": lambda: [sys.executable, "-c", "pass"],
        "baton get": lambda: [baton, "get", ids[-1]],
        "baton pick": lambda: [baton, "pick"],
        "baton status": lambda: [baton, "status", ids[-1]],
        "baton status --set": lambda: [baton, "status", next(to_set), "--set", "running"],
        "baton register": lambda: [baton, "register", "Sort these."],
    }
    for command in commands.values():
        run(command())  # compiles the modules
    bare, *rest = in_turns(size(40, 2), *(lambda command=command: run(command()) for command in commands.values()))
    for name, seconds in zip(list(commands)[1:], rest, strict=True):
        ratio, limit, ok = at_most(4, seconds, bare)
        against = f"python -c pass {ms(bare)}"
        if name in ("baton get", "baton pick", "baton status"):
            yield Row(f"{name}, 1,000 jobs (sqlite)", ms(seconds), against, ratio, limit, ok)
        else:
            yield Row(f"{name}, 1,000 jobs (sqlite)", ms(seconds), against, ratio)
    for verb in ("get", "pick"):
        yield run.import_note(f"baton {verb}", commands[f"baton {verb}"]())


def verbs(folder: RegistryFolder) -> Iterator[Row | str]:
    """single verbs in process on each backend, without limits"""
    yield (
        "Without limits: the seeds' design checks nothing it reads, signs and keeps no event (its next_seq stands"
        " beside record_event), and does not sync the folder, so that a power cut may undo what it reported."
    )
    seeds = SeedRegistry(folder.new("verbs-seeds"))
    registries: dict[str, Registry] = {
        "sqlite": folder.sqlite("verbs"),
        "file": folder.files("verbs"),
    }
    server = None
    try:
        try:
            server, registries["postgresql"] = _postgres()
        except Exception as error:
            if SMALLEST:
                raise
            yield f"postgresql was not measured: {error}"
        for backend, registry in registries.items():
            yield from _verbs_of(backend, registry, seeds)
            registry.close()
    finally:
        if server is not None:
            server.remove()


def _verbs_of(backend: str, registry: Registry, seeds: SeedRegistry) -> Iterator[Row]:
    registry.register_many(drafts(size(1000, 10)))
    claimed = registry.pick_pending(LABEL, holder="bench:1")
    assert claimed is not None
    running = claimed.after
    seed_job = seeds.register_job(PROMPT, AGENT, LABEL)
    singles = iter(list(drafts(100)))
    register, event, get, their_register, their_seq, their_get = in_turns(
        size(100, 3),
        lambda: registry.register_job(next(singles)),
        lambda: registry.record_event(running.job_id, EventName.PROGRESS, detail="step", attempt=running.attempt),
        lambda: registry.get_job(running.job_id),
        lambda: seeds.register_job(PROMPT, AGENT, LABEL),
        lambda: seeds.next_seq(seed_job),
        lambda: seeds.get_job(seed_job),
    )
    many = size(1000, 10)
    batches = iter([list(drafts(many)) for _ in range(3)])
    (batch,) = in_turns(3, lambda: registry.register_many(next(batches)))
    for what, ours, name, theirs in (
        ("register", register, "register", their_register),
        (f"register_many({many}), per job", batch / many, "register", their_register),
        ("record_event", event, "next_seq", their_seq),
        ("get_job", get, "get", their_get),
    ):
        yield Row(f"{what} ({backend})", ms(ours), f"seeds' {name} {ms(theirs)}", f"{ours / theirs:.2f}x the time")


def _postgres() -> tuple[PostgresServer, Registry]:
    sys.path.insert(0, os.path.join(ROOT, "tests"))
    from baton.registry.postgres import PostgresRegistry
    from support.postgres import PostgresServer

    server = PostgresServer()
    return server, PostgresRegistry(server.new_url())


PARTS: dict[str, Callable[[RegistryFolder], Iterator[Row | str]]] = {
    "claim": claim_against_the_seeds,
    "backlog": claim_by_backlog,
    "files": claim_from_files,
    "followers": claim_with_followers,
    "claimers": many_claimers,
    "pages": pages,
    "cli": fresh_processes,
    "verbs": verbs,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Holds the registry to its limits of speed.")
    parser.add_argument("--claimer", help=argparse.SUPPRESS)
    options = chosen_parts(parser, PARTS)
    if options.claimer:
        claimer(options.claimer)
        return 0
    return run_parts(PARTS, options.part, RegistryFolder)


if __name__ == "__main__":
    sys.exit(main())
