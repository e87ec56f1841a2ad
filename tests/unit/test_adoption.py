"""A folder becomes a home as a whole, or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import sys

import pytest

from baton.config import Home
from baton.core.errors import BatonError, RegistryBusy
from baton.storage import adoption
from baton.storage.adoption import Kind, find_candidate, is_copy, take_over
from baton.storage.home_users import use_of
from baton.storage.homes import known, look_up, read_home_id
from baton.storage.inspection import inspect
from baton.storage.new_homes import record
from support.small_disk import SmallDisk
from support.waiting import wait_until


class Place:
    """A folder `project` with a real `.hermes`, and a state of the user beside it."""

    def __init__(self, tmp_path):
        self.state = str(tmp_path / "state")
        self.folder = tmp_path / "project"
        self.home = self.folder / ".hermes"
        (self.home / "jobs" / "deep").mkdir(parents=True)
        (self.home / "jobs" / "abcd1234.json").write_text('{"job_id": "abcd1234", "status": "pending"}')
        (self.home / "jobs" / "deep" / "x").write_text("deep")
        (self.home / "latest").symlink_to("jobs/deep")
        (self.home / "sessions" / ("ab" * 8)).mkdir(parents=True)
        os.mkfifo(self.home / "sessions" / ("ab" * 8) / "go")

    def candidate(self, directory=None, **more):
        return find_candidate(self.state, str(directory or self.folder), ".hermes", **more)

    def take(self, candidate=None, *, shown=None, **more):
        candidate = candidate or self.candidate()
        shown = shown or inspect(candidate.content, scratch=self.state, owner=os.getuid())
        return take_over(self.state, candidate, shown, **{"owner": os.getuid()} | more)

    def intact(self):
        """Nothing was moved and nothing recorded."""
        assert (self.home / "jobs" / "deep" / "x").read_text() == "deep"
        assert (self.home / "jobs" / "abcd1234.json").exists()
        assert not (self.home / "home.json").exists()
        assert known(self.state) == []
        assert os.listdir(os.path.join(self.state, "homes")) == []
        return True


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def files_of(path):
    return {
        os.path.relpath(os.path.join(folder, name), path): os.lstat(os.path.join(folder, name)).st_mode & 0o777
        for folder, _, names in os.walk(path)
        for name in names
    }


@pytest.fixture(params=["same file system", pytest.param("another file system", marks=pytest.mark.as_root)])
def anywhere(request, place, tmp_path):
    """The same place, with the state on its file system or on another one."""
    if request.param == "same file system":
        yield place
        return
    with SmallDisk(str(tmp_path / "disk")) as disk:
        place.state = os.path.join(disk.folder, "state")
        yield place


def test_the_content_moves_and_a_link_takes_its_place(anywhere):
    place = anywhere
    os.chmod(place.home / "jobs" / "deep" / "x", 0o666)
    home, left = place.take()
    assert left is None
    assert os.readlink(place.home) == home.path == os.path.join(place.state, "homes", home.home_id)
    assert look_up(place.state, str(place.folder)) == home
    assert read_home_id(home.path) == home.home_id
    found = files_of(home.path)
    assert found.keys() >= {"jobs/abcd1234.json", "jobs/deep/x", "home.json", ".gitignore"}
    assert f"sessions/{'ab' * 8}/go" not in found, "the pipe of a dead session"
    assert {mode for name, mode in found.items() if name != "latest"} == {0o600}
    assert os.readlink(os.path.join(home.path, "latest")) == "jobs/deep"
    assert os.lstat(os.path.join(home.path, "jobs")).st_mode & 0o777 == 0o700
    assert place.candidate().kind is Kind.KNOWN


@pytest.mark.parametrize("name", ["_stage_file", "write_home", "record", "inspect"])
def test_a_failure_in_the_middle_changes_nothing(anywhere, name, monkeypatch):
    place = anywhere
    calls = []
    real = getattr(adoption, name)

    def fail(*arguments, **more):
        calls.append(arguments)
        if name == "_stage_file" and len(calls) == 1:
            return real(*arguments, **more)
        raise OSError(errno.ENOSPC, "No space left on device")

    candidate, shown = place.candidate(), inspect(str(place.home), scratch=place.state, owner=os.getuid())
    monkeypatch.setattr(adoption, name, fail)
    with pytest.raises(OSError, match="No space"):
        place.take(candidate, shown=shown)
    assert calls
    assert place.intact()
    monkeypatch.setattr(adoption, name, real)
    place.take()


@pytest.mark.as_root
def test_a_full_disk_loses_nothing(place, tmp_path):
    (place.home / "big").write_bytes(os.urandom(3_000_000))
    with SmallDisk(str(tmp_path / "disk")) as disk:
        place.state = os.path.join(disk.folder, "state")
        with pytest.raises(OSError, match="No space left"):
            place.take()
        assert place.intact()


def test_what_was_changed_after_it_was_shown_is_not_adopted(place):
    shown = inspect(str(place.home), scratch=place.state, owner=os.getuid())
    (place.home / "baton.toml").write_text('[agents.evil]\ncommand = ["x"]\n')
    with pytest.raises(BatonError, match="was changed after it was shown"):
        place.take(shown=shown)
    assert place.intact()


def test_a_pipe_that_appears_after_the_question_is_refused(place):
    shown = inspect(str(place.home), scratch=place.state, owner=os.getuid())
    os.mkfifo(place.home / "jobs" / "registry.db")
    with pytest.raises(BatonError, match=r"registry\.db is a named pipe; nothing was changed"):
        place.take(shown=shown)
    assert place.intact()


def test_a_file_that_appears_during_the_move_is_set_aside(place, monkeypatch):
    def late(*arguments, **more):
        (place.home / "jobs" / "late").write_text("late")
        return record(*arguments, **more)

    monkeypatch.setattr(adoption, "record", late)
    home, left = place.take()
    assert os.listdir(os.path.join(left, "jobs")) == ["late"]
    assert os.readlink(place.home) == home.path


@pytest.mark.parametrize("name", ["baton.toml", "jobs/abcd1234.json"])
def test_a_file_that_is_open_in_the_folder_does_not_reach_into_the_home(place, name):
    """An agent that may write only there could keep it open, and name a program of its own later."""
    (place.home / "baton.toml").write_text('agent = "shell"\n')
    with open(place.home / name, "a") as kept:
        home, _ = place.take()
        kept.write("changed")
    with open(os.path.join(home.path, name)) as file:
        assert "changed" not in file.read()


def test_a_folder_that_becomes_a_link_during_the_move_leads_nowhere(place, tmp_path, monkeypatch):
    """An agent may write into its work folder at any moment."""
    victim = tmp_path / "victim"
    (victim / "deep").mkdir(parents=True)
    (victim / "deep" / "x").write_text("precious")

    def swap(*arguments, **more):
        (place.home / "jobs").rename(place.home / "old")
        (place.home / "jobs").symlink_to(victim)
        return record(*arguments, **more)

    monkeypatch.setattr(adoption, "record", swap)
    home, left = place.take()
    assert (victim / "deep" / "x").read_text() == "precious"
    assert sorted(os.listdir(left)) == ["jobs", "old"]
    assert os.path.exists(os.path.join(home.path, "jobs", "deep", "x"))


def test_a_folder_that_becomes_a_link_while_it_is_read_is_refused(place, tmp_path, monkeypatch):
    shown = inspect(str(place.home), scratch=place.state, owner=os.getuid())
    real = os.stat
    (tmp_path / "victim").mkdir()

    def swap(name, **more):
        found = real(name, **more)
        if name == "deep" and not os.path.islink(place.home / "jobs" / "deep"):
            (place.home / "jobs" / "deep").rename(tmp_path / "away")
            (place.home / "jobs" / "deep").symlink_to(tmp_path / "victim")
        return found

    monkeypatch.setattr(os, "stat", swap)
    with pytest.raises(OSError, match="Not a directory"):
        place.take(shown=shown)
    assert known(place.state) == []


@pytest.mark.parametrize("name", ["jobs/.lock", "agent-sessions.db.lock", "monitor.lock"])
def test_nothing_moves_while_a_process_holds_a_lock(place, name):
    with open(place.home / name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RegistryBusy, match="another process holds"):
            place.take()
    assert place.intact()
    place.take()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("how", ["open file", "session", "runner", "baton command"])
def test_nothing_is_taken_over_under_a_process_that_uses_it(place, how, in_place):
    sleep = "import time; time.sleep(600)"
    argv, env = [sys.executable, "-c", sleep], {}
    session = str(place.home / "sessions" / ("ab" * 8))
    named = {"open file": "uses ", "session": "of session abab", "runner": "the runner of session abab"}
    if how == "open file":
        argv[2] = f"file = open({str(place.home / 'jobs' / 'abcd1234.json')!r}); {sleep}"
    elif how == "session":
        env = {"BATON_SESSION_DIR": session}
    elif how == "runner":
        argv += ["baton.sessions.runner", session]
    else:
        (place.folder / "baton").write_text(sleep)
        argv = [sys.executable, str(place.folder / "baton"), "worker"]
    process = subprocess.Popen(argv, env=os.environ | env, cwd=place.folder)
    try:
        wait_until(lambda: use_of(str(process.pid), f"{place.home}/", str(place.folder), by_files=True))
        if how != "open file" or not in_place:  # in place, other tools may go on
            named = re.escape(f"process {process.pid} ({named.get(how, 'baton worker')}")
            with pytest.raises(RegistryBusy, match=f"{named}.*kill {process.pid}"):
                place.take(in_place=in_place)
            assert place.intact()
    finally:
        process.kill()
        process.wait()
    place.take()


def test_in_place_the_content_stays(place):
    before = files_of(place.home)
    home, _ = place.take(in_place=True)
    assert home.in_place
    assert (home.path, home.folder) == (str(place.home), str(place.home))
    assert before.items() <= files_of(place.home).items()
    assert look_up(place.state, str(place.home)).home_id == read_home_id(str(place.home)) == home.home_id
    assert place.candidate().kind is Kind.KNOWN


def test_a_home_that_is_named_by_its_path_stays_in_place(tmp_path, place):
    place.home.rename(tmp_path / "data")
    candidate = place.candidate(tmp_path / "data")
    assert (candidate.kind, candidate.link) == (Kind.FOLDER, None)
    home, _ = place.take(candidate)
    assert home.in_place
    assert home.path == str(tmp_path / "data")


def test_a_home_in_the_state_is_not_adopted(place):
    """It would get another id, and its folder would lose it."""
    home, _ = place.take()
    for path in (home.path, place.state, os.path.join(home.path, "jobs")):
        with pytest.raises(BatonError, match="is inside of your own state"):
            place.candidate(path)


def test_the_folder_itself_may_be_named(place):
    assert place.candidate(place.home) == place.candidate()


def test_files_with_another_name_are_copied(place, tmp_path):
    os.link(place.home / "jobs" / "deep" / "x", tmp_path / "other")
    home, _ = place.take()
    assert not os.path.samefile(os.path.join(home.path, "jobs", "deep", "x"), tmp_path / "other")
    assert (tmp_path / "other").read_text() == "deep"


def test_what_an_interrupted_trust_left_is_removed(place):
    left = os.path.join(place.state, "homes", ".0123456789abcdef.new")
    os.makedirs(os.path.join(left, "jobs"))
    place.take()
    assert not os.path.exists(left)


class TestCopiesAndMoves:
    def test_a_folder_that_was_moved_keeps_its_home(self, place, tmp_path):
        home, _ = place.take()
        place.folder.rename(tmp_path / "new")
        for more in ({}, {"moved_from": str(place.folder)}):
            candidate = place.candidate(tmp_path / "new", **more)
            assert (candidate.kind, candidate.home) == (Kind.MOVED, home)
        moved, _ = place.take(candidate)
        assert moved == home.replace(folder=str(tmp_path / "new"))
        assert known(place.state) == [moved]
        assert json.loads((tmp_path / "new" / ".hermes" / "home.json").read_text())["folder"] == str(tmp_path / "new")

    def test_a_copy_of_the_folder_does_not_get_the_home(self, place, tmp_path):
        home, _ = place.take()
        subprocess.run(["cp", "-a", place.folder, tmp_path / "copy"], check=True)
        candidate = place.candidate(tmp_path / "copy")
        assert (candidate.kind, candidate.home) == (Kind.COPY, home)
        prepared = []
        other, _ = place.take(candidate, end_copied_work=prepared.append)
        assert prepared
        assert other.home_id != home.home_id
        assert look_up(place.state, str(place.folder)) == home
        assert os.readlink(tmp_path / "copy" / ".hermes") == other.path
        assert files_of(other.path).keys() == files_of(home.path).keys()
        assert not os.path.samefile(os.path.join(other.path, "jobs/deep/x"), os.path.join(home.path, "jobs/deep/x"))
        with pytest.raises(BatonError, match="still exists"):
            place.candidate(tmp_path, moved_from=str(place.folder))

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_real_copy_of_a_home_is_one(self, place, tmp_path, in_place):
        home, _ = place.take(in_place=in_place)
        subprocess.run(["cp", "-aL", place.folder, tmp_path / "copy"], check=True)
        candidate = place.candidate(tmp_path / "copy")
        shown = inspect(candidate.content, scratch=place.state, owner=os.getuid())
        assert candidate.kind is Kind.FOLDER
        assert shown.home_id == home.home_id
        assert is_copy(place.state, candidate, shown)
        other, _ = place.take(candidate, in_place=in_place, end_copied_work=lambda _: None)
        assert other.home_id != home.home_id
        assert {each.home_id for each in known(place.state)} == {home.home_id, other.home_id}

    def test_a_home_in_place_that_was_moved_follows_by_its_old_path(self, place, tmp_path):
        home, _ = place.take(in_place=True)
        place.folder.rename(tmp_path / "new")
        candidate = place.candidate(tmp_path / "new", moved_from=str(place.folder))
        moved, _ = place.take(candidate)
        assert moved.home_id == home.home_id
        assert known(place.state) == [moved]
        assert moved.path == str(tmp_path / "new" / ".hermes")

    def test_another_home_does_not_follow(self, place, tmp_path):
        place.take(in_place=True)
        place.folder.rename(tmp_path / "new")
        (tmp_path / "new" / ".hermes" / "home.json").write_text('{"home_id": "0123456789abcdef", "folder": "/x"}')
        with pytest.raises(BatonError, match="is not the home that was in"):
            place.candidate(tmp_path / "new", moved_from=str(place.folder))

    def test_a_folder_without_a_home_has_none_to_follow(self, place, tmp_path):
        with pytest.raises(BatonError, match="no home is known for"):
            place.candidate(moved_from=str(tmp_path / "never"))

    def test_a_link_out_of_the_state_is_not_followed(self, place, tmp_path):
        place.home.rename(tmp_path / "elsewhere")
        place.home.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BatonError, match="is not one of your homes"):
            place.candidate()

    def test_a_real_folder_beside_a_home_is_not_adopted(self, place):
        record_of = Home(path="", home_id="0123456789abcdef", folder=str(place.folder), link=".hermes")
        os.makedirs(os.path.join(place.state, "folders"), 0o700)
        assert record(place.state, record_of)
        with pytest.raises(BatonError, match="has a home already"):
            place.candidate()

    def test_a_home_that_was_removed_from_the_list_is_used_again(self, place):
        home, _ = place.take()
        adoption.forget(place.state, home)
        os.unlink(place.home)
        candidate = place.candidate()
        assert (candidate.kind, candidate.content) == (Kind.AGAIN, home.path)
        assert place.take(candidate)[0] == home

    def test_an_empty_folder_has_nothing_to_trust(self, place, tmp_path):
        assert place.candidate(tmp_path).kind is Kind.NOTHING
