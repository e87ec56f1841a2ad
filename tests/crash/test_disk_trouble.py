"""R8: no room, no permission, no open files left. One clear error, the old state stays readable, and work goes
on when there is room again."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import baton
from baton.core.errors import InvalidRecord, RegistryUnavailable
from baton.registry import open_url
from support import writing_verbs
from support.command import BATON, Baton, Result
from support.powercut import read_image, write_image
from support.small_disk import SmallDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

ENOUGH = 64
# SQLite needs 8 pages for its shared memory before it writes the first of its own.
PAGES_LEFT = {"sqlite": (0, *range(7, ENOUGH)), "file": range(ENOUGH)}
NOBODY = 65534
# Another user, who may read everything (also the interpreter, which may lie in root's home) and write nothing.
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip
# The command with so many open files to go. Its modules come first: a program that runs out of them has long
# been started, and an interpreter that cannot load its own parts is not ours to test.
WITH_FEW_FILES = """
import os, resource, sys
import binascii, baton.jobs.job_history, baton.cli.jobs, baton.registry.files, baton.registry.sqlite, baton.wire.payload
from baton.cli.main import run
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    for fd in held[:int(sys.argv.pop(1))]:
        os.close(fd)
run()
"""


class Home:
    """A home folder with a job that waits and one that runs."""

    def __init__(self, folder: str, backend: str, tmp_path, **env: str) -> None:
        self.folder = folder
        self.url = f"file:{folder}/jobs" if backend == "file" else f"sqlite:{folder}/jobs/registry.db"
        self.baton = Baton(tmp_path, BATON_HOME=folder, BATON_REGISTRY=self.url, **env)
        self.saved = f"{tmp_path}/saved"
        with baton.open_jobs(home=folder, registry=self.url, state_dir=f"{tmp_path}/.local/state/baton") as jobs:
            jobs.register_job("waits", agent="claude-code")
            self.running = jobs.register_job("runs", agent="claude-code").job_id
            jobs.update_status(self.running, "running")
        self.save()

    @property
    def writes(self) -> list[tuple[str, ...]]:
        return [("register", "new"), ("pick",), ("status", self.running, "--set", "completed")]

    def save(self) -> None:
        shutil.rmtree(self.saved, ignore_errors=True)
        shutil.copytree(self.folder, self.saved)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.saved, self.folder)

    def run(self, *arguments: str, prefix: Sequence[str] = (BATON,)) -> Result:
        done = subprocess.run(
            [*prefix, *arguments], env=self.baton.env, capture_output=True, text=True, timeout=60, check=False
        )
        return Result(done)

    def jobs(self) -> dict[str, dict]:
        """What the registry holds; a record that does not fit fails the test."""
        with closing(open_url(self.url)) as registry:
            return jobs_in(registry)

    def reads(self, prefix: Sequence[str] = (BATON,)) -> tuple[Result, Result]:
        return self.run("get", self.running, prefix=prefix), self.run("list", "--json", prefix=prefix)

    def stray_files(self) -> list[str]:
        return [path for path in read_image(self.folder) if path.endswith((".tmp", ".batch"))]


def jobs_in(registry) -> dict[str, tuple]:
    entries = list(registry.export())
    assert not [each for each in entries if isinstance(each, InvalidRecord)]
    return {each.job.job_id: (each.job, each.events, each.requests) for each in entries}


class Complaints:
    """What went otherwise than promised."""

    def __init__(self) -> None:
        self.commands = self.refused = 0
        self.wrong: list[str] = []

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def check_write(self, home: Home, result: Result, before: dict, reason: str, what: str) -> None:
        """A write was either done, at most with a warning about the audit log, or refused as a whole."""
        self.commands += 1
        self.expect("Traceback" not in result.err, f"{what}: {result}")
        if result.code == 0:
            warned = re.fullmatch(r"(baton: warning: the audit log .*\n)*", result.err)
            self.expect(warned is not None, f"{what}: {result}")
            self.expect(home.jobs() != before, f"{what}: nothing happened")
        else:
            self.refused += 1
            self.expect(is_one_clear_line(result, reason), f"{what}: {result}")
            self.expect(home.jobs() == before, f"{what}: refused, but something changed")
        self.expect(not home.stray_files(), f"{what}: {home.stray_files()} left behind")

    def check_refused(self, result: Result, reason: str, what: str) -> None:
        self.commands += 1
        self.refused += 1
        self.expect(is_one_clear_line(result, reason), f"{what}: {result}")

    def check_same(self, found: tuple[Result, Result], expected: tuple[Result, Result], what: str) -> None:
        for result, wanted in zip(found, expected, strict=True):
            self.commands += 1
            self.expect((result.code, result.out, result.err) == (0, wanted.out, ""), f"{what}: {result}")

    def check_gap(self, result: Result, shown: str, what: str) -> None:
        """The verb succeeded with a warning, and `doctor` shows the gap."""
        self.refused += 1
        warned = result.err.startswith("baton: warning: the audit log of job") and result.err.count("\n") == 1
        self.expect(warned, f"{what}: {result}")
        self.expect(bool(re.search(rf"warning +audit: .*{result.text}", shown)), f"{what}: no gap in\n{shown}")

    def check_filled(self, baton: Baton, job: str, what: str) -> None:
        self.expect(job not in baton("doctor", code=None).out, f"{what}: the gap is still there")
        verified = baton("logs", job, "--verify", code=None)
        self.expect(verified.code == 0, f"{what}: {verified}")

    def report(self, figure, name: str, outcome: str = "refused") -> None:
        print("\n".join(dict.fromkeys(self.wrong)))
        text = f"{self.commands} commands, {self.refused} {outcome}, {len(self.wrong)} otherwise than promised"
        figure(name, text, held=not self.wrong and self.refused > 0)


def is_one_clear_line(result: Result, reason: str) -> bool:
    return (
        result.code == 1
        and result.out == ""
        and result.err.startswith("baton: ")
        and result.err.count("\n") == 1
        and re.search(reason, result.err) is not None
    )


@pytest.fixture
def disk(tmp_path):
    with SmallDisk(f"{tmp_path}/disk") as disk:
        yield disk


@pytest.fixture
def open_folder():
    """One that every user can look into; pytest's own are private."""
    folder = tempfile.mkdtemp(prefix="baton-open-", dir="/tmp")
    os.chmod(folder, 0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "file"])
def backend(request):
    return request.param


def home_of_the_killed(folder: str, backend: str, tmp_path) -> Home:
    """The last to have the registry open wrote something and was killed: SQLite then keeps its log."""
    home = Home(folder, backend, tmp_path)
    code = "import os, sys; from baton.registry import open_url; it = open_url(sys.argv[1])"
    code += "; it.next_seq(sys.argv[2]); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, home.url, home.running], check=True)
    home.save()
    return home


HOMES = {"closed": Home, "killed": home_of_the_killed}


# -- the disk is full --------------------------------------------------------------------------------------


@pytest.mark.as_root
def test_a_full_disk(backend, disk, tmp_path, figure):
    """With no room at all, with room for one page, for two, and so on, until every command succeeds."""
    home = Home(f"{disk.folder}/home", backend, tmp_path)
    before, reads = home.jobs(), home.reads()
    home.restore()
    complaints = Complaints()
    for pages in PAGES_LEFT[backend]:
        troubled = False
        for write in home.writes:
            what = f"{write[0]} with {pages} pages left"
            with disk.full(pages):
                result = home.run(*write)
                if pages == 0:
                    complaints.check_same(home.reads(), reads, "reading from a full disk")
            complaints.check_write(home, result, before, "[Nn]o (room|space)", what)
            if pages == 0:
                complaints.expect(home.run(*write).code == 0, f"{what}: does not go on")
            troubled = troubled or result.err
            home.restore()
        if not troubled:
            break
    else:
        pytest.fail("there was never room enough")
    complaints.report(figure, f"R8 disk full ({backend})")


@pytest.mark.as_root
def test_a_verb_that_found_no_room_has_changed_nothing(backend, disk, full, figure):
    """The same for every verb of the registry, in particular for those that change several jobs. At the small size,
    every second verb begins with every second size of the room, the others with the sizes between."""
    folder = f"{disk.folder}/home"
    url = f"file:{folder}/jobs" if backend == "file" else f"sqlite:{folder}/jobs/registry.db"
    with closing(open_url(url)) as registry:
        writing_verbs.prepare_registry(registry)
        before = jobs_in(registry)
    image = read_image(folder)
    attempts, refused, wrong = 0, 0, []
    for number, (verb, write) in enumerate(writing_verbs.REGISTRY_VERBS.items()):
        for pages in PAGES_LEFT[backend] if full else PAGES_LEFT[backend][number % 2 :: 2]:
            shutil.rmtree(folder)
            write_image(image, folder)
            attempts += 1
            done = False
            with closing(open_url(url)) as registry:
                try:
                    with disk.full(pages):
                        write(registry)
                    done = True
                except RegistryUnavailable:
                    refused += 1
            gc.collect()  # a connection that failed to open holds room until it is collected
            with closing(open_url(url)) as registry:
                registry.pick_pending("tmux:nobody", holder="me")
                found = jobs_in(registry)
                if not done:
                    write(registry)
                    if jobs_in(registry) == before:
                        wrong.append(f"{verb} with {pages} pages left: does not go on")
            if (found != before) != done:
                wrong.append(f"{verb} with {pages} pages left: {'not done' if done else 'raised, but changed'}")
            if done:
                break
        else:
            wrong.append(f"{verb}: there was never room enough")
    print("\n".join(wrong))
    text = f"{attempts} calls, {refused} refused, {len(wrong)} not wholly so"
    figure(f"R8 disk full, every verb ({backend})", text, held=not wrong and refused > 0)


# -- the disk may not be written to ------------------------------------------------------------------------


@pytest.mark.as_root
@pytest.mark.parametrize("writer", HOMES)
def test_a_read_only_disk(backend, writer, disk, tmp_path, figure):
    home = HOMES[writer](f"{disk.folder}/home", backend, tmp_path)
    reads = home.reads()
    home.restore()
    complaints = Complaints()
    with disk.read_only():
        for write in home.writes:
            complaints.check_refused(home.run(*write), "[Rr]ead-only", f"{write[0]} on a read-only disk")
        complaints.check_same(home.reads(), reads, "reading from a read-only disk")
    for write in home.writes:
        complaints.expect(home.run(*write).code == 0, f"{write[0]}: does not go on")
    complaints.report(figure, f"R8 read-only disk, last writer {writer} ({backend})")


@pytest.mark.as_root
@pytest.mark.parametrize("writer", HOMES)
def test_a_folder_of_somebody_else(backend, writer, open_folder, tmp_path, figure):
    home = HOMES[writer](f"{open_folder}/home", backend, tmp_path)
    for path in [home.folder, *(f"{home.folder}/{path}" for path in read_image(home.folder))]:
        os.chmod(path, 0o755 if os.path.isdir(path) else 0o644)
    home.save()
    reads = home.reads()
    home.restore()
    complaints = Complaints()
    # That user has a home, and names the registry of another one.
    theirs = f"{open_folder}/theirs"
    os.mkdir(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    as_nobody = (*AS_NOBODY, "env", f"BATON_HOME={theirs}/home", f"BATON_STATE_DIR={theirs}/state", BATON)
    for write in home.writes:
        result = home.run(*write, prefix=as_nobody)
        complaints.check_refused(result, "[Pp]ermission", f"{write[0]} without permission")
    found = home.reads(prefix=as_nobody)
    complaints.check_same(found, reads, "reading without the permission to write")
    complaints.expect(read_image(home.folder) == read_image(home.saved), "somebody else changed the folder")
    for write in home.writes:
        complaints.expect(home.run(*write).code == 0, f"{write[0]}: does not go on")
    complaints.report(figure, f"R8 no permission, last writer {writer} ({backend})")


def test_too_many_open_files(backend, tmp_path, figure):
    """With no file to be opened, with one, with two, and so on, until every command succeeds."""
    home = Home(f"{tmp_path}/home", backend, tmp_path)
    before = home.jobs()
    complaints = Complaints()
    for left in range(ENOUGH):
        troubled = False
        for write in home.writes:
            what = f"{write[0]} with {left} files to be opened"
            result = home.run(*write, prefix=(sys.executable, "-c", WITH_FEW_FILES, str(left)))
            complaints.check_write(home, result, before, "[Tt]oo many open files", what)
            if left == 0:
                complaints.expect(home.run(*write).code == 0, f"{what}: does not go on")
            troubled = troubled or result.err
            home.restore()
        if not troubled:
            break
    else:
        pytest.fail("there were never files enough")
    complaints.report(figure, f"R8 too many open files ({backend})")


# -- the audit log alone cannot be written -----------------------------------------------------------------


@pytest.fixture
def baton_logging_to(disk, tmp_path):
    return Baton(tmp_path, DELEGATE_JOB_LOGS_DIR=f"{disk.folder}/logs")


@pytest.mark.as_root
@pytest.mark.parametrize("verb", ["logs", "pick"])
def test_an_audit_log_on_a_full_disk(verb, disk, baton_logging_to, figure):
    """Wherever the room ends: the job is registered, the gap shows, and the next verb fills it."""
    baton = baton_logging_to
    baton("register", "makes the folders")
    complaints = Complaints()
    for pages in range(ENOUGH):
        label = ("--agent-session", f"tmux:{pages}")
        with disk.full(pages):
            registered = baton("register", "new", *label)
            shown = baton("doctor", code=None).out
        complaints.commands += 1
        if registered.err == "":
            break
        complaints.check_gap(registered, shown, f"{pages} pages left")
        baton(*(("logs", registered.text) if verb == "logs" else ("pick", *label)))
        complaints.check_filled(baton, registered.text, f"{pages} pages left, then {verb}")
    complaints.report(figure, f"R8 audit log on a full disk, filled by {verb}", "warned")


@pytest.mark.as_root
def test_an_audit_log_on_a_read_only_disk(disk, baton_logging_to, figure):
    baton = baton_logging_to
    earlier = baton("register", "logged from the start").text
    complaints = Complaints()
    with disk.read_only():
        registered, picked = baton("register", "new"), baton("pick")
        shown = baton("doctor", code=None).out
    assert picked.text == earlier
    for result, told in ((registered, "registered"), (picked, "pending → running")):
        complaints.commands += 1
        complaints.check_gap(result, shown, told)
        complaints.expect(told in baton("logs", result.text).out, f"{told}: not filled")
        complaints.check_filled(baton, result.text, told)
    complaints.report(figure, "R8 audit log on a read-only disk", "warned")
