"""R2: the power goes at every write, sync and rename of every verb. What was acknowledged is there afterwards,
and nothing is there by half."""

from __future__ import annotations

import copy
import os
import shutil
import sys
import time
from contextlib import closing
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from baton.core.clock import SystemClock
from baton.core.errors import InvalidRecord
from baton.core.job import Status
from baton.history.log import append_event, iter_logged_events, read_logged_status
from baton.history.verify import verify_log
from baton.jobs.job_history import JobHistory
from baton.registry import open_url
from support import writing_verbs
from support.memory import folder_in_memory
from support.powercut import Disk, read_image, record, write_image
from support.writing_verbs import LABEL, LOGGED_JOB, OTHER_LABEL, draft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from support.powercut import Image, Operation

    Judge = Callable[[Image, bool], tuple[str, str] | None]

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BACKENDS = ["sqlite", "file"]
# Sent again, an event is ignored; a renewal comes again before the lease ends.
MAY_BE_LOST = frozenset({"mark_sent", "renew_lease"})
MIXES, MIXES_FULL = 1, 40


class Story(NamedTuple):
    """What a task did to the disk."""

    task: str
    before: Image
    operations: list[Operation]
    after: Image

    @property
    def verb(self) -> str:
        return self.task.partition("@")[0]


class Findings:
    def __init__(self) -> None:
        self.verbs: set[str] = set()
        self.runs = self.cuts = self.images = self.distinct = 0
        self.found: dict[str, list[str]] = {"lost": [], "half": [], "unreadable": []}

    @property
    def none(self) -> bool:
        return not any(self.found.values())

    def __str__(self) -> str:
        size = f"{len(self.verbs)} verbs in {self.runs} runs, {self.cuts:,} cut points, {self.images:,} images"
        found = ", ".join(f"{len(cases)} {kind}" for kind, cases in self.found.items())
        return f"{size} ({self.distinct:,} distinct), {found}"

    def examples(self) -> str:
        return "\n".join(f"{kind}: {case}" for kind, cases in self.found.items() for case in cases[:15])


@pytest.fixture
def place():
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def mixes(full):
    return MIXES_FULL if full else MIXES


def without_shared_memory(image: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """SQLite builds it anew from the log; it is mapped, so what is written there is not recorded."""
    return {path: content for path, content in image.items() if not path.endswith("-shm")}


def run_recorded(
    place: str, tasks: Mapping[str, Image], address: Callable[[str], str], sabotage: str = "none"
) -> list[Story]:
    """Runs each task in a folder of its own that holds its image, all of them in one recorded process."""
    stage = os.path.join(place, "stage")
    os.mkdir(stage)
    for task, image in tasks.items():
        write_image(image, os.path.join(stage, task))
    arguments = [f"{task}={address(os.path.join(stage, task))}" for task in tasks]
    operations = record(
        [sys.executable, "-m", "support.writing_verbs", sabotage, *arguments],
        stage,
        env={**os.environ, "PYTHONPATH": TESTS},
    )
    stories = []
    for task, before in tasks.items():
        own = [
            each._replace(path=each.path[len(task) + 1 :], to=each.to[len(task) + 1 :])
            for each in operations
            if (each.path.split("/")[0] == task and not each.path.endswith("-shm")) or each.data == task.encode()
        ]
        after = without_shared_memory(read_image(os.path.join(stage, task)))
        stories.append(Story(task, before, own, after))
    shutil.rmtree(stage)
    return stories


def cut_everywhere(story: Story, judge: Judge, findings: Findings, random: Random, mixes: int) -> None:
    """Shows the judge every disk that may be found, each with whether the verb had been acknowledged."""
    findings.verbs.add(story.verb)
    findings.runs += 1
    disk = Disk(story.before)
    acknowledged = False
    judged = set()
    for number, operation in enumerate([None, *story.operations]):
        last = "nothing"
        if operation is not None:
            disk.apply(operation)
            acknowledged = acknowledged or operation.call == "acknowledge"
            last = f"{operation.call} {operation.path}"
        findings.cuts += 1
        for kind, image in disk.images(random, mixes):
            findings.images += 1
            key = (acknowledged, frozenset(image.items()))
            if key in judged:
                continue
            judged.add(key)
            findings.distinct += 1
            verdict = judge(image, acknowledged)
            if verdict is not None:
                where = f"{story.task}, cut {number} after {last}, {kind}{', acknowledged' * acknowledged}"
                findings.found[verdict[0]].append(f"{where}: {verdict[1]}")
    assert acknowledged, f"{story.task} was not acknowledged"
    everything = dict(disk.images(random, 0))["all"]
    assert everything == story.after, f"the replay of {story.task} is not what the disk holds"


# -- registries --------------------------------------------------------------------------------------------


def url_in(backend: str, folder: str) -> str:
    return f"sqlite:{folder}/jobs/registry.db" if backend == "sqlite" else f"file:{folder}/jobs"


def prepared(backend: str, place: str) -> dict[str, Image]:
    """A registry as the last program left it that closed it, and as one leaves it that was killed: SQLite
    with its news still in the log, files with an event whose record was never written, and half a record."""
    folder = os.path.join(place, "prepared")
    os.mkdir(folder)
    with closing(open_url(url_in(backend, folder))) as registry:
        writing_verbs.prepare_registry(registry)
        killed = without_shared_memory(read_image(folder))
    closed = read_image(folder)
    shutil.rmtree(folder)
    if backend == "file":
        for path, content in killed.items():
            if path.endswith(".events.log"):
                killed[path] = content + content.splitlines(keepends=True)[0].replace(b'"seq": 1', b'"seq": 99')
        killed["jobs/.0a0a0a0a.12345678.tmp"] = b"{"
    return {"closed": closed, "killed": killed}


def record_registry_verbs(
    backend: str, place: str, verbs: Iterable[str], sabotage: str = "none", *, full: bool = True
) -> list[Story]:
    """Each verb on each prepared registry, and those that make a registry where there is none. At the small size, every
    second verb on the one prepared registry, the others on the other."""
    settings = prepared(backend, place)
    tasks: dict[str, Image] = {f"{verb}@nothing": {} for verb in verbs if verb.startswith("register")}
    for number, verb in enumerate(verbs):
        for setting in settings if full else list(settings)[number % 2 :: 2]:
            tasks[f"{verb}@{setting}"] = settings[setting]
    return run_recorded(place, tasks, lambda folder: url_in(backend, folder), sabotage)


class RegistryJudge:
    """Opens each disk with the real backend, and compares what it finds with the jobs before and after."""

    def __init__(self, backend: str, place: str, story: Story) -> None:
        self._backend = backend
        self._folder = os.path.join(place, "image")
        self._verb = story.verb
        self._old = self.jobs_on(story.before, read_first=False)
        self._new = self.jobs_on(story.after)
        self._changed = [each for each in self._old | self._new if self._old.get(each) != self._new.get(each)]
        assert self._changed, f"{story.task} changed nothing"

    def __call__(self, image: Image, acknowledged: bool) -> tuple[str, str] | None:
        try:
            found = self.jobs_on(image)
        except Exception as error:
            return "unreadable", f"{type(error).__name__}: {error}"
        others = [each for each in self._old | found if each not in self._changed]
        if any(found.get(each) != self._old.get(each) for each in others):
            return "half", "a job that the verb does not touch is not as it was"
        is_new = [found.get(each) == self._new.get(each) for each in self._changed]
        is_old = [found.get(each) == self._old.get(each) for each in self._changed]
        if not all(map(max, is_old, is_new)):
            return "half", "a job is neither as it was nor as it should be"
        if self._verb in ("register_many", "retry") and len(set(is_new)) > 1:
            return "half", f"{sum(is_new)} of {len(is_new)} jobs written"
        if acknowledged and not all(is_new) and self._verb not in MAY_BE_LOST:
            return "lost", f"{len(is_new) - sum(is_new)} of {len(is_new)} changes"
        return None

    def jobs_on(self, image: Image, *, read_first: bool = True) -> dict[str, tuple]:
        """Every job with its events, once a first writer has come by, who finishes what was interrupted. Who
        only reads (`read_first`) must not have to wait for that."""
        write_image(image, self._folder)
        try:
            with closing(open_url(url_in(self._backend, self._folder))) as registry:
                if read_first:
                    registry.stats()
                assert registry.pick_pending("tmux:nobody", holder="me") is None
                entries = all_readable(registry)
                unsent = {(event.job_id, event.seq) for each in entries for event in each.events if not event.sent}
                assert {(event.job_id, event.seq) for event in registry.unsent_events()} == unsent
                for label in (LABEL, OTHER_LABEL):
                    all_are_picked(registry, label, [each.job for each in entries])
            stray = [path for path in read_image(self._folder) if path.endswith((".tmp", ".batch"))]
            assert not stray, f"left behind: {stray}"
            return {each.job.job_id: (each.job, each.events, each.requests) for each in entries}
        finally:
            shutil.rmtree(self._folder)


def all_readable(registry) -> list:
    entries = list(registry.export())
    for each in entries:
        if isinstance(each, InvalidRecord):
            raise each
    return entries


def is_for_the_queue(job, label: str) -> bool:
    is_free = job.status is Status.PENDING and not job.is_blocked
    return is_free and job.agent_session == label and job.submitter is None


def all_are_picked(registry, label: str, jobs: list) -> None:
    waiting = [job.job_id for job in jobs if is_for_the_queue(job, label)]
    picked = [registry.pick_pending(label, holder="me") for _ in waiting]
    assert [change and change.after.job_id for change in picked] == waiting, (
        f"not all pending jobs of {label} are found"
    )
    assert registry.pick_pending(label, holder="me") is None


def cut_registry_verbs(
    backend, place, random, mixes, *, verbs=tuple(writing_verbs.REGISTRY_VERBS), sabotage="none", full=True
):
    findings = Findings()
    for story in record_registry_verbs(backend, place, verbs, sabotage, full=full):
        cut_everywhere(story, RegistryJudge(backend, place, story), findings, random, mixes)
    print(findings.examples())
    return findings


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_power_goes_at_every_write_of_every_verb(backend, place, figure, mixes, seed, full):
    findings = cut_registry_verbs(backend, place, Random(seed), mixes, full=full)
    figure(f"R2 power cuts ({backend})", str(findings), held=findings.none, seed=seed)


@pytest.mark.parametrize(
    ("backend", "sabotage", "expected"),
    [
        ("file", "never sync", "lost"),
        ("file", "sync no files", "unreadable"),
        ("file", "sync no folders", "lost"),
        ("file", "write in place", "unreadable"),
        ("sqlite", "sqlite without sync", "lost"),
    ],
)
def test_a_registry_that_cuts_corners_is_found_out(backend, sabotage, expected, place, figure):
    findings = cut_registry_verbs(backend, place, Random(), 0, verbs=["register_job"], sabotage=sabotage)
    text = f"found out by {len(findings.found[expected])} {expected}"
    figure(f"R2 sabotage: {sabotage} ({backend})", text, held=bool(findings.found[expected]))


# -- who comes next after a kill ---------------------------------------------------------------------------


def killed_at_every_write(story: Story) -> Iterator[tuple[str, Disk, Image]]:
    """Where it was killed, the disk at that moment, and what the next process sees of it, which is all."""
    disk = Disk(story.before)
    seen: Image = {}
    for number, operation in enumerate(story.operations):
        disk.apply(operation)
        image = dict(disk.images(Random(), 0))["all"]
        if image != seen:
            seen = image
            yield f"{story.verb} killed at {number}", copy.deepcopy(disk), image


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_acknowledged_after_a_kill_survives_a_power_cut(backend, place, figure, full):
    """The next process finds things done that the killed one had no time to sync. At the small size, after every third
    kill."""
    disks: dict[str, Disk] = {}
    tasks: dict[str, Image] = {}
    for story in record_registry_verbs(backend, place, ["register_job"]):
        if not story.task.endswith("@killed"):
            for where, disk, image in islice(killed_at_every_write(story), 0, None, 1 if full else 3):
                task = f"register_job@{len(tasks)} {where}"
                disks[task], tasks[task] = disk, image
    images, lost = 0, []
    for story in run_recorded(place, tasks, lambda folder: url_in(backend, folder)):
        judge = RegistryJudge(backend, place, story)
        for image in synced_once_acknowledged(story, disks[story.task]):
            images += 1
            verdict = judge(image, acknowledged=True)
            if verdict is not None:
                lost.append(f"{story.task}: {verdict}")
    print("\n".join(lost))
    text = f"{len(tasks)} kills, {images} images, {len(lost)} lost"
    figure(f"R2 power cut after a kill ({backend})", text, held=not lost)


def synced_once_acknowledged(story: Story, disk: Disk) -> Iterator[Image]:
    """Every disk that may be found after the acknowledgement when nothing survives but what was synced."""
    last, acknowledged = None, False
    for operation in story.operations:
        disk.apply(operation)
        acknowledged = acknowledged or operation.call == "acknowledge"
        image = dict(disk.images(Random(), 0))["synced only"]
        if acknowledged and image != last:
            last = image
            yield image


def _cancel_and_prune(registry) -> set[str]:
    """The jobs of the batch that are seen at that moment."""
    seen = new_jobs(registry)
    for job_id in seen:
        registry.update_status(job_id, Status.CANCELLED)
    return set(registry.prune(time.time_ns())) & seen


def new_jobs(registry) -> set[str]:
    return {job.job_id for job in registry.list_jobs().jobs if job.prompt.startswith("new")}


NEXT_WRITERS = {
    "register_job": lambda it: it.register_job(draft("later")),
    "register_many": lambda it: it.register_many([draft("later"), draft("later still")]),
    "pick_pending": lambda it: it.pick_pending(OTHER_LABEL, holder="me"),
    "expire_leases": lambda it: it.expire_leases(),
    "cancel and prune": _cancel_and_prune,
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupted_batch_is_whole_whoever_comes_next(backend, place, figure, full):
    """At the small size, every second writer comes after every second kill, the others after the kills between."""
    disks, wrong = 0, {"half": [], "back": [], "unreadable": []}
    for story in record_registry_verbs(backend, place, ["register_many"]):
        for number, (where, _, image) in enumerate(killed_at_every_write(story)):
            for next_writer in NEXT_WRITERS if full else list(NEXT_WRITERS)[number % 2 :: 2]:
                disks += 1
                try:
                    there, gone = batch_after(backend, os.path.join(place, "image"), image, next_writer)
                except Exception as error:
                    wrong["unreadable"].append(f"{where}, then {next_writer}: {error}")
                    continue
                if there & gone:
                    wrong["back"].append(f"{where}, then {next_writer}: pruned jobs came back")
                elif len(there | gone) not in (0, 3):
                    wrong["half"].append(f"{where}, then {next_writer}: {len(there | gone)} of 3")
    print("\n".join(case for cases in wrong.values() for case in cases[:15]))
    text = f"{disks} disks, " + ", ".join(f"{len(cases)} {kind}" for kind, cases in wrong.items())
    figure(f"R2 batch killed in the middle ({backend})", text, held=not any(wrong.values()))


def batch_after(backend: str, folder: str, image: Image, next_writer: str) -> tuple[set[str], set[str]]:
    """The jobs of the batch that are there in the end, and those that were pruned on the way."""
    write_image(image, folder)
    try:
        with closing(open_url(url_in(backend, folder))) as registry:
            gone = NEXT_WRITERS[next_writer](registry)
            registry.pick_pending("tmux:nobody", holder="me")
            return new_jobs(registry), gone if isinstance(gone, set) else set()
    finally:
        shutil.rmtree(folder)


# -- audit logs --------------------------------------------------------------------------------------------


class LogJudge:
    def __init__(self, place: str, story: Story) -> None:
        self._logs_dir = os.path.join(place, "image")
        self._job = writing_verbs.logged_job().replace(status=writing_verbs.STATUS_AFTER[story.verb])
        self._old = self._lines_on(story.before)
        self._new = self._lines_on(story.after)
        assert self._new[: len(self._old)] == self._old
        assert len(self._new) == len(self._old) + 1

    def __call__(self, image: Image, acknowledged: bool) -> tuple[str, str] | None:
        for mended in (True, False):
            write_image(image, self._logs_dir)
            try:
                verdict = self._after_the_cut(acknowledged) or self._goes_on(mended)
            except Exception as error:
                verdict = ("unreadable", f"{type(error).__name__}: {error}")
            finally:
                shutil.rmtree(self._logs_dir)
            if verdict is not None:
                return verdict
        return None

    def _after_the_cut(self, acknowledged: bool) -> tuple[str, str] | None:
        lines = list(iter_logged_events(LOGGED_JOB, self._logs_dir))
        if acknowledged and lines != self._new:
            return "lost", f"{len(lines)} of {len(self._new)} lines"
        if lines not in (self._old, self._new):
            return "half", f"{len(lines)} lines, which are not those that were written"
        damage = verify_log(LOGGED_JOB, self._logs_dir).damage
        return ("half", f"{damage}") if damage else None

    def _goes_on(self, mended: bool) -> tuple[str, str] | None:
        """The next line, with or without what `baton logs` does to a log that is behind the registry."""
        if mended and read_logged_status(LOGGED_JOB, self._logs_dir) != self._job.status:
            JobHistory(self._logs_dir, SystemClock(), pytest.fail).fill_gap(self._job)
        append_event(LOGGED_JOB, {"event": "published"}, now_ns=time.time_ns(), logs_dir=self._logs_dir)
        damage = verify_log(LOGGED_JOB, self._logs_dir).damage
        return ("half", f"{damage} after the next line, {'' if mended else 'not '}mended") if damage else None

    def _lines_on(self, image: Image) -> list:
        write_image(image, self._logs_dir)
        try:
            return list(iter_logged_events(LOGGED_JOB, self._logs_dir))
        finally:
            shutil.rmtree(self._logs_dir)


def cut_log_verbs(place: str, random: Random, mixes: int, sabotage: str = "none") -> Findings:
    begun = os.path.join(place, "begun")
    os.mkdir(begun)
    writing_verbs.prepare_log(begun)
    start = read_image(begun)
    shutil.rmtree(begun)
    tasks = {verb: {} if verb == "init_job_log" else start for verb in writing_verbs.LOG_VERBS}
    findings = Findings()
    for story in run_recorded(place, tasks, str, sabotage):
        cut_everywhere(story, LogJudge(place, story), findings, random, mixes)
    print(findings.examples())
    return findings


def test_the_power_goes_at_every_write_of_the_audit_log(place, figure, mixes, seed):
    findings = cut_log_verbs(place, Random(seed), mixes)
    figure("R2 power cuts (audit log)", str(findings), held=findings.none, seed=seed)


def test_an_audit_log_that_does_not_sync_is_found_out(place, figure):
    findings = cut_log_verbs(place, Random(), 0, "never sync")
    lost = [case for case in findings.found["lost"] if case.startswith("append_event")]
    figure("R2 sabotage: never sync (audit log)", f"found out by {len(lost)} lost", held=bool(lost))
