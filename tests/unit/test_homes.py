"""The home of a folder: found by the map of folders, made by the first write, never taken from a clone."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from baton.core.errors import BatonError, InvalidValue, UntrustedHome
from baton.storage import homes, new_homes
from baton.storage.files import make_home, make_private_dir
from support.homes import trust_in_place
from support.open_files import no_more_files


@pytest.fixture
def state(tmp_path):
    return str(tmp_path / "state")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def make(state, named=".hermes", **more):
    return new_homes.make(state, homes.find(state, named, **more))


def entry_of(state, folder):
    return homes.entry_path(state, str(folder))


def git(folder, *arguments):
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(folder):
    git(folder, "init", "-q")
    (folder / "file").write_text("x")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "x")
    return folder


class TestTheFirstWrite:
    def test_it_makes_a_home_in_the_state_and_a_link_in_the_folder(self, state, folder):
        planned = homes.find(state)
        assert not planned.made
        assert not os.path.exists(state)
        home = make(state)
        assert home.path == planned.path == os.path.join(state, "homes", home.home_id)
        assert os.readlink(folder / ".hermes") == home.path
        assert os.stat(home.path).st_mode & 0o777 == 0o700
        assert homes.find(state) == home
        assert [each.folder for each in homes.known(state)] == [str(folder)]
        with open(os.path.join(home.path, "home.json")) as file:
            about = json.load(file)
        mount = about.pop("mount")
        assert os.path.ismount(mount)
        assert about == {"schema_version": 1, "home_id": home.home_id, "folder": str(folder)}

    def test_it_is_the_first_folder_that_is_created_below_the_home(self, state, folder):
        settings = homes.load_settings({"state_dir": state}, {"HOME": "/nowhere"})
        assert not os.path.exists(state)
        make_private_dir(settings.registry_dir)
        assert homes.find(state).made
        assert homes.read_home_id(settings.home) == settings.home_id

    def test_it_may_be_a_path_below_the_link(self, state, folder):
        homes.load_settings({"state_dir": state}, {"HOME": "/nowhere"})
        make_private_dir(".hermes/jobs")
        assert os.readlink(folder / ".hermes") == homes.find(state).path

    def test_a_home_that_could_not_be_made_is_made_at_the_next_try(self, tmp_path, folder):
        state = tmp_path / "state"
        state.write_text("a file")
        settings = homes.load_settings({"state_dir": str(state)}, {"HOME": "/nowhere"})
        with pytest.raises(NotADirectoryError):
            make_private_dir(settings.registry_dir)
        state.unlink()
        make_private_dir(settings.registry_dir)
        assert homes.find(str(state)).made

    def test_one_that_was_interrupted_is_completed(self, state, folder):
        home = make(state)
        os.unlink(os.path.join(home.path, ".gitignore"))
        os.unlink(os.path.join(home.path, "home.json"))
        os.rmdir(home.path)
        assert not homes.find(state).made
        assert make(state) == home
        assert homes.read_home_id(home.path) == home.home_id

    def test_commands_that_begin_at_once_use_the_same_home(self, state, folder):
        one, other = homes.find(state), homes.find(state)
        assert new_homes.make(state, one) == new_homes.make(state, other)

    def test_an_entry_is_never_replaced_by_another_command(self, state, folder):
        slow = homes.find(state)
        home = slow.replace(home_id="f" * 16, path=homes.home_path(state, "f" * 16))
        new_homes.make(state, home)
        with pytest.raises(BatonError, match="was given another home meanwhile"):
            new_homes.make(state, slow)
        assert homes.find(state).home_id == "f" * 16

    def test_the_id_of_an_earlier_home_of_this_folder_is_not_used_again(self, state, folder):
        first = make(state)
        new_homes.forget(state, first)
        (folder / ".hermes").unlink()
        assert make(state).home_id != first.home_id
        assert os.path.isdir(first.path)


class TestTheLink:
    @pytest.mark.parametrize("name", [".hermes", ".mam", "-", "a b"])
    def test_it_has_the_plain_name_that_the_user_gives(self, state, folder, name):
        home = make(state, name)
        assert os.readlink(folder / name) == home.path

    def test_one_that_is_gone_is_made_again(self, state, folder):
        home = make(state)
        (folder / ".hermes").unlink()
        homes.load_settings({"state_dir": state}, {"HOME": "/nowhere"})
        assert os.readlink(folder / ".hermes") == home.path

    def test_one_that_leads_elsewhere_is_not_followed(self, state, folder, tmp_path):
        home = make(state)
        (tmp_path / "evil").mkdir()
        (folder / ".hermes").unlink()
        (folder / ".hermes").symlink_to(tmp_path / "evil")
        settings = homes.load_settings({"state_dir": state}, {"HOME": "/nowhere"})
        assert settings.home == home.path
        assert "leads elsewhere and is not followed" in settings.warnings[0]
        assert os.readlink(folder / ".hermes") == str(tmp_path / "evil")

    def test_a_real_folder_in_its_place_is_ignored_with_a_warning(self, state, folder):
        home = make(state)
        (folder / ".hermes").unlink()
        (folder / ".hermes").mkdir()
        settings = homes.load_settings({"state_dir": state}, {"HOME": "/nowhere"})
        assert settings.home == home.path
        assert f"{folder}/.hermes is not used" in settings.warnings[0]

    def test_it_follows_a_state_that_was_moved(self, state, folder, tmp_path):
        home = make(state)
        os.rename(state, tmp_path / "moved")
        moved = homes.load_settings({"state_dir": str(tmp_path / "moved")}, {"HOME": "/nowhere"})
        assert moved.home_id == home.home_id
        assert os.readlink(folder / ".hermes") == moved.home == str(tmp_path / "moved" / "homes" / home.home_id)

    def test_one_into_a_state_that_was_removed_is_replaced(self, state, folder, tmp_path):
        make(state)
        os.rename(state, tmp_path / "away")
        home = make(state)
        assert (folder / ".hermes").resolve() == (tmp_path / "state" / "homes" / home.home_id)

    def test_one_into_another_state_is_left_alone(self, state, folder, tmp_path):
        """As in a container, where the folder is the same and the user's state is not."""
        outside = make(state)
        home = homes.find(str(tmp_path / "other"))
        assert not home.made
        home = new_homes.make(str(tmp_path / "other"), home)
        assert home.path.startswith(str(tmp_path / "other"))
        assert os.readlink(folder / ".hermes") == outside.path
        assert "leads elsewhere" in home.warnings[0]

    def test_a_folder_that_cannot_be_written_needs_none(self, state, folder, monkeypatch):
        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "symlink", refuse)
        home = make(state)
        assert os.path.isdir(home.path)
        assert not os.path.lexists(folder / ".hermes")
        assert homes.find(state) == home


class TestGitExclude:
    def test_the_link_is_excluded_once(self, state, repository):
        for _ in range(2):
            make(state)
            (repository / ".hermes").unlink()
        make(state)
        lines = (repository / ".git" / "info" / "exclude").read_text().splitlines()
        assert lines.count("/.hermes") == 1

    def test_also_below_the_top_and_with_odd_names(self, state, repository, monkeypatch):
        odd = repository / "a [b]*" / "!c #d\\"
        odd.mkdir(parents=True)
        monkeypatch.chdir(odd)
        make(state, "e ?")
        told = subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True)  # noqa: PLW1510
        assert told.stdout == ""
        assert (odd / "e ?").is_symlink()

    def test_in_a_submodule_it_is_the_file_of_the_submodule(self, state, repository, monkeypatch):
        git = ["git", "-c", "protocol.file.allow=always", "-c", "user.name=me", "-c", "user.email=me@example.org"]
        for command in (["commit", "-q", "--allow-empty", "-m", "x"], ["submodule", "-q", "add", "./.git", "part"]):
            subprocess.run([*git, *command], cwd=repository, check=True, capture_output=True)
        monkeypatch.chdir(repository / "part")
        make(state)
        told = subprocess.run(["git", "status", "--porcelain"], cwd=repository / "part", capture_output=True, text=True)  # noqa: PLW1510
        assert told.stdout == ""
        assert (repository / "part" / ".hermes").is_symlink()

    def test_a_forged_submodule_writes_nowhere(self, state, repository, tmp_path, monkeypatch):
        (tmp_path / "archive").mkdir()
        (tmp_path / "archive" / ".git").write_text(f"gitdir: {repository / '.git'}\n")
        monkeypatch.chdir(tmp_path / "archive")
        make(state)
        assert "/.hermes" not in (repository / ".git" / "info" / "exclude").read_text()

    def test_a_line_without_its_end_is_kept(self, state, repository):
        path = repository / ".git" / "info" / "exclude"
        path.write_text("/mine")
        make(state)
        assert path.read_text() == "/mine\n/.hermes\n"

    @pytest.mark.parametrize("what", [".git", "info", "exclude"])
    def test_nothing_is_written_through_a_link(self, state, repository, tmp_path, what):
        place = {".git": ".git", "info": ".git/info", "exclude": ".git/info/exclude"}[what]
        os.rename(repository / place, tmp_path / "outside")
        (repository / place).symlink_to(tmp_path / "outside")
        make(state)
        exclude = tmp_path / "outside" / {".git": "info/exclude", "info": "exclude", "exclude": ""}[what]
        assert "/.hermes" not in exclude.read_text()

    def test_a_pipe_does_not_hang(self, state, repository):
        path = repository / ".git" / "info" / "exclude"
        path.unlink()
        os.mkfifo(path)
        make(state)


class TestWhichFolder:
    def test_the_nearest_one_upwards(self, state, folder, monkeypatch):
        outer = make(state)
        deep = folder / "a" / "b" / "c"
        deep.mkdir(parents=True)
        monkeypatch.chdir(deep)
        assert homes.find(state).path == outer.path
        monkeypatch.chdir(folder / "a")
        new_homes.make(state, homes.new_home(state, str(folder / "a")))
        monkeypatch.chdir(deep)
        assert homes.find(state).folder == str(folder / "a")

    def test_that_of_the_users_home_counts_there_alone(self, state, folder, monkeypatch):
        user = str(folder)
        home = make(state, user_home=user)
        assert homes.find(state, user_home=user).path == home.path
        (folder / "project").mkdir()
        monkeypatch.chdir(folder / "project")
        assert homes.find(state, user_home=user).folder == str(folder / "project")
        assert homes.find(state, user_home="/elsewhere").path == home.path

    def test_a_folder_of_the_same_name_in_the_users_home_stops_no_project(self, state, folder, monkeypatch):
        (folder / ".hermes").mkdir()
        (folder / "project").mkdir()
        monkeypatch.chdir(folder / "project")
        assert not homes.find(state, user_home=str(folder)).made
        with pytest.raises(UntrustedHome):
            homes.find(state, user_home="/elsewhere")

    def test_not_beyond_the_file_system(self, state, folder, monkeypatch):
        make(state)
        inside = folder / "mount"
        inside.mkdir()
        monkeypatch.chdir(inside)
        real = os.stat

        def stat(path, **more):
            found = real(path, **more)
            if str(path) != str(inside):
                return found
            return os.stat_result([*found[:2], found.st_dev + 1, *found[3:10]])

        monkeypatch.setattr(os, "stat", stat)
        assert homes.find(state).folder == str(inside)

    def test_inside_of_a_home_it_is_that_home(self, state, folder, monkeypatch):
        home = make(state)
        os.mkdir(os.path.join(home.path, "jobs"))
        monkeypatch.chdir(folder / ".hermes" / "jobs")
        found = homes.find(state)
        assert (found.path, found.folder) == (home.path, str(folder))

    def test_a_folder_that_was_removed_is_named(self, state, folder):
        folder.rmdir()
        with pytest.raises(BatonError, match="current folder was removed"):
            homes.find(state)
        assert not homes.find(state, "/nowhere/home").made


class TestWorktrees:
    @pytest.fixture
    def linked(self, repository, tmp_path):
        git(repository, "worktree", "add", "-q", str(tmp_path / "linked"))
        return tmp_path / "linked"

    @pytest.mark.parametrize("place", ["", "deep/down"])
    def test_the_home_is_that_of_the_main_work_tree(self, state, repository, linked, monkeypatch, place):
        (linked / "deep" / "down").mkdir(parents=True)
        monkeypatch.chdir(linked / place)
        home = make(state)
        assert home.folder == str(repository)
        assert os.path.lexists(repository / ".hermes")
        assert not os.path.lexists(linked / ".hermes")
        monkeypatch.chdir(repository)
        assert homes.find(state).path == home.path

    def test_a_tracked_home_in_a_linked_one_is_not_used(self, state, repository, linked, monkeypatch):
        home = make(state)
        (linked / ".hermes").mkdir()
        monkeypatch.chdir(linked)
        found = homes.find(state)
        assert found.path == home.path
        assert f"{linked}/.hermes is not used" in found.warnings[0]

    def test_it_stops_if_the_main_one_has_no_home(self, state, repository, linked, monkeypatch):
        (linked / ".hermes").mkdir()
        monkeypatch.chdir(linked)
        with pytest.raises(UntrustedHome, match=r"linked/\.hermes"):
            homes.find(state)

    def test_of_a_bare_repository_it_is_the_linked_one(self, state, repository, tmp_path, monkeypatch):
        git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
        git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "tree"))
        monkeypatch.chdir(tmp_path / "tree")
        assert make(state).folder == str(tmp_path / "tree")
        assert "/.hermes" in (tmp_path / "bare.git" / "info" / "exclude").read_text()

    @pytest.mark.parametrize("relative", [False, True])
    def test_a_forged_note_leads_to_no_other_home(self, state, repository, linked, tmp_path, monkeypatch, relative):
        make(state)
        clone = tmp_path / "clone"
        clone.mkdir()
        target = os.path.join(repository, ".git", "worktrees", "linked")
        (clone / ".git").write_text(f"gitdir: {os.path.relpath(target, clone) if relative else target}\n")
        monkeypatch.chdir(clone)
        found = homes.find(state)
        assert (found.folder, found.made) == (str(clone), False)
        (clone / ".git").write_text(f"gitdir: {repository}/.git\n")
        assert homes.find(state).folder == str(clone)

    @pytest.mark.parametrize("kind", ["pipe", "huge", "bytes", "loop"])
    def test_a_strange_note_does_not_hang(self, state, folder, kind):
        note = folder / ".git"
        if kind == "pipe":
            os.mkfifo(note)
        elif kind == "loop":
            note.symlink_to(note)
        else:
            note.write_bytes(b"gitdir: " + (b"x" * 200_000 if kind == "huge" else b"\xff\0\n"))
        assert homes.find(state).folder == str(folder)


class TestNamedByPath:
    def test_a_missing_or_empty_folder_becomes_a_home_in_place(self, state, folder, tmp_path):
        (tmp_path / "empty").mkdir()
        for name in ("empty", "missing/deep"):
            path = str(tmp_path / name)
            home = make(state, path)
            assert (home.path, home.folder, home.in_place) == (path, path, True)
            assert homes.find(state, path) == home
            assert homes.load_settings({"state_dir": state, "home": path}, {"HOME": "/"}).home_id == home.home_id
        assert os.listdir(folder) == []

    def test_commands_that_begin_at_once_use_the_same_home(self, state, folder, tmp_path):
        path = str(tmp_path / "home")
        one, other = homes.find(state, path), homes.find(state, path)
        assert new_homes.make(state, one).home_id == new_homes.make(state, other).home_id

    def test_one_that_was_interrupted_is_completed(self, state, folder, tmp_path):
        path = str(tmp_path / "home")
        home = make(state, path)
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        (tmp_path / "home" / ".home.0123abcd.tmp").touch()
        assert not homes.find(state, path).made
        assert make(state, path).home_id == home.home_id
        assert homes.find(state, path).made

    def test_one_that_another_command_is_making_is_never_found_without_its_id(self, state, folder, tmp_path):
        """The other command has made the folder and not yet its `home.json`."""
        path = str(tmp_path / "home")
        homes.load_settings({"state_dir": state, "home": path}, {"HOME": "/"})
        os.mkdir(path)
        make_home(path)
        assert homes.find(state, path).made

    def test_an_entry_that_appears_while_it_is_read_is_read(self, state, folder, tmp_path, monkeypatch):
        path = str(tmp_path / "home")
        home = make(state, path)
        read, first = homes.read_small, []

        def read_too_early(path):
            if path.startswith(f"{state}/folders") and not first:
                first.append(path)
                return None
            return read(path)

        monkeypatch.setattr(homes, "read_small", read_too_early)
        assert homes.find(state, path) == home
        assert first

    def test_anything_else_is_untrusted(self, state, folder, tmp_path):
        (tmp_path / "other" / "jobs").mkdir(parents=True)
        with pytest.raises(UntrustedHome, match=f"baton trust {tmp_path}/other"):
            homes.find(state, str(tmp_path / "other"))
        (tmp_path / "file").touch()
        with pytest.raises(InvalidValue, match="not a folder"):
            homes.find(state, str(tmp_path / "file"))

    def test_what_replaced_a_home_in_place_is_untrusted(self, state, folder, tmp_path):
        path = tmp_path / "home"
        home = make(state, str(path))
        (path / "home.json").write_text(json.dumps({"home_id": "0" * 16, "folder": str(path)}))
        with pytest.raises(UntrustedHome):
            homes.find(state, str(path))
        (path / "home.json").write_text(json.dumps({"home_id": home.home_id, "folder": str(path)}))
        assert homes.find(state, str(path)).made
        for make_strange in (lambda: os.mkfifo(path / "home.json"), lambda: os.mkdir(path / "home.json")):
            os.unlink(path / "home.json")
            make_strange()
            with pytest.raises(UntrustedHome):
                homes.find(state, str(path))
            os.rename(path / "home.json", tmp_path / os.urandom(4).hex())
            (path / "home.json").touch()

    def test_one_that_the_user_trusts_serves_its_folder(self, state, folder):
        (folder / ".hermes" / "jobs").mkdir(parents=True)
        place = trust_in_place(folder / ".hermes", {"HOME": "/", "BATON_STATE_DIR": state})
        home = homes.find(state)
        assert (home.path, home.folder, home.in_place, home.link) == (place, place, True, None)
        assert homes.load_settings({"state_dir": state}, {"HOME": "/"}).home == home.path
        os.rmdir(os.path.join(place, "jobs"))
        for name in os.listdir(place):
            os.unlink(os.path.join(place, name))
        settings = homes.load_settings({"state_dir": state}, {"HOME": "/"})
        make_private_dir(settings.registry_dir)
        assert homes.find(state) == home
        assert [each.path for each in homes.known(state)] == [place]

    def test_agents_name_a_home_by_its_path(self, state, folder, tmp_path, monkeypatch):
        home = make(state)
        monkeypatch.chdir(tmp_path)
        found = homes.find(state, home.path)
        assert (found.home_id, found.folder, found.in_place) == (home.home_id, str(folder), False)
        assert homes.find(state, f"{folder}/.hermes").home_id == home.home_id

    def test_an_address_to_which_jobs_were_moved_is_kept(self, state, folder):
        home = make(state)
        new_homes.record(state, home.replace(registry="postgresql://here/x"), replace=True)
        assert homes.find(state).registry == homes.find(state, home.path).registry == "postgresql://here/x"
        assert homes.load_settings({"state_dir": state}, {"HOME": "/"}).moved_to == "postgresql://here/x"


class TestAttacks:
    def test_a_real_folder_is_untrusted(self, state, folder, monkeypatch):
        (folder / ".hermes").mkdir()
        (folder / "deep").mkdir()
        for place in (folder, folder / "deep"):
            monkeypatch.chdir(place)
            with pytest.raises(UntrustedHome, match=rf"{folder}/\.hermes is not a home .* baton trust {folder}$"):
                homes.find(state)
        assert not os.path.exists(state)

    def test_a_link_to_a_folder_is_untrusted(self, state, folder, tmp_path):
        (tmp_path / "evil").mkdir()
        (folder / ".hermes").symlink_to(tmp_path / "evil")
        with pytest.raises(UntrustedHome):
            homes.find(state)

    def test_a_link_to_the_home_of_another_folder_is_untrusted(self, state, folder, tmp_path, monkeypatch):
        home = make(state)
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / ".hermes").symlink_to(home.path)
        monkeypatch.chdir(copy)
        with pytest.raises(UntrustedHome, match=f"baton trust {copy}"):
            homes.find(state)
        with pytest.raises(UntrustedHome):
            homes.find(state, "./.hermes")

    def test_a_folder_that_was_moved_together_with_the_state_is_untrusted(self, folder, tmp_path, monkeypatch):
        make(str(folder / "state"))
        folder.rename(tmp_path / "moved")
        monkeypatch.chdir(tmp_path / "moved")
        with pytest.raises(UntrustedHome, match=f"baton trust {tmp_path}/moved"):
            homes.find(str(tmp_path / "moved" / "state"))

    @pytest.mark.parametrize("kind", ["pipe", "file", "loop", "dangling"])
    def test_strange_files_of_that_name_do_not_hang(self, state, folder, kind):
        place = folder / ".hermes"
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "file":
            place.touch()
        else:
            place.symlink_to(place if kind == "loop" else "/nowhere/homes/0123456789abcdef")
        if kind == "loop":
            with pytest.raises(UntrustedHome):
                homes.find(state)
        else:
            assert "not used" in make(state).warnings[0] or kind == "dangling"

    def test_a_folder_of_another_user_is_passed_over(self, state, folder, monkeypatch):
        place = folder / ".hermes"
        place.mkdir()
        real = os.lstat

        def lstat(path, **more):
            found = real(path, **more)
            if str(path) != str(place):
                return found
            return os.stat_result([*found[:4], found.st_uid + 1, *found[5:10]])

        monkeypatch.setattr(os, "lstat", lstat)
        found = homes.find(state)
        assert not found.made
        assert f"{place} belongs to another user" in found.warnings[0]

    def test_a_state_of_another_user_is_refused(self, state, folder, monkeypatch):
        make(state)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(BatonError, match="belongs to another user; set BATON_STATE_DIR"):
            homes.find(state)

    def test_an_entry_of_another_user_is_refused(self, state, folder):
        make(state)
        with open(entry_of(state, folder)) as file:
            entry = json.load(file)
        with open(entry_of(state, folder), "w") as file:
            json.dump(entry | {"uid": entry["uid"] + 1}, file)
        with pytest.raises(BatonError, match="written by another user"):
            homes.find(state)
        assert homes.known(state) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"home": "../../evil"},
            {"home": 7},
            {"path": "relative"},
            {"path": None},
            {"registry": 7},
            {"link": []},
            None,
        ],
    )
    def test_a_damaged_entry_is_named(self, state, folder, change):
        make(state)
        path = entry_of(state, folder)
        with open(path) as file:
            entry = json.load(file)
        with open(path, "w") as file:
            file.write(json.dumps(entry | change) if change else '{"half')
        with pytest.raises(BatonError, match=f"{path} is damaged"):
            homes.find(state)
        assert homes.known(state) == []

    def test_an_entry_that_is_no_file_is_named(self, state, folder):
        make(state)
        path = entry_of(state, folder)
        os.unlink(path)
        os.mkfifo(path)
        with pytest.raises(BatonError, match="is not a regular file; move it away"):
            homes.find(state)

    def test_an_entry_that_the_system_fails_to_read_is_kept(self, state, folder):
        made = make(state)
        (folder / ".git").write_text("gitdir: elsewhere")
        with no_more_files():
            with pytest.raises(BatonError) as one:
                homes.find(state)
            with pytest.raises(OSError, match="Too many open files"):
                homes.read_home_id(made.path)
            with pytest.raises(OSError, match="Too many open files"):
                homes.main_work_tree(str(folder))  # else a new home would be made for a linked work tree
        assert str(one.value).endswith("cannot be read: Too many open files; keep it, it names the home of a folder")

    @pytest.mark.parametrize("name", ["", ".git"])
    def test_git_itself_is_no_home(self, state, folder, name):
        with pytest.raises(InvalidValue, match=r"not \.git"):
            homes.find(state, name)

    def test_an_id_that_is_no_id_is_refused(self, state, folder, tmp_path):
        make(state)
        for name in ("none", "0" * 16, ".."):
            with pytest.raises(BatonError):
                homes.find(state, os.path.join(state, "homes", name))


def test_the_home_of_other_scripts_is_named_where_there_is_none(state, folder):
    (folder / ".mam" / "jobs").mkdir(parents=True)
    expected = f"{folder}/.mam/jobs is not used; to take it over: BATON_HOME=.mam baton trust"
    assert homes.find(state).warnings == (expected,)
    with pytest.raises(UntrustedHome):
        homes.find(state, ".mam")
    make(state)
    assert homes.find(state).warnings == ()
