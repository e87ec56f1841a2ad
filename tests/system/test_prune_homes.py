"""`baton prune --homes`: the homes of folders that are gone are removed, if nothing in them is needed any more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from baton.adapters.contract import Mode
from baton.core.clock import format_time
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session, State
from baton.storage import gone_homes
from baton.storage.homes import known
from baton.worktrees import trees
from support.command import Baton
from support.homes import settings_in
from support.repositories import Repo

# Run `baton prune --homes --yes` and kill the process where it calls this function.
KILLED = """
import os, signal, sys
from baton.storage import gone_homes
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(gone_homes, sys.argv[1], kill)
from baton.cli.main import main
main(["prune", "--homes", "--yes"])
"""


class Office:
    """A user with folders, of which some are removed."""

    def __init__(self, root) -> None:
        self.root = root
        (root / "here").mkdir(parents=True)
        self.baton = Baton(root / "here", HOME=str(root), BATON_STATE_DIR=str(root / "state"), BATON_AGENT="shell")

    def jobs(self, name):
        (self.root / name).mkdir(exist_ok=True)
        return open_jobs(settings_in(self.root / name, self.baton.env))

    def gone(self, name, *statuses):
        """Make a folder with a job that had these statuses, remove the folder, and return its home."""
        with self.jobs(name) as jobs:
            job = jobs.register_job("work")
            for status in statuses or ("cancelled",):
                jobs.update_status(job.job_id, status)
        shutil.rmtree(self.root / name)
        return self.homes()[name]

    def homes(self):
        return {os.path.basename(home.folder): home.path for home in known(str(self.root / "state"))}

    def why_kept(self, name):
        """What `prune --homes` says of a home that it keeps."""
        done = self.baton("prune", "--homes", "--yes", "--json").json
        assert os.path.isdir(self.homes()[name])
        return next(each["why"] for each in done["kept"] if each["folder"] == str(self.root / name))


@pytest.fixture
def office(tmp_path):
    return Office(tmp_path)


def test_a_home_goes_with_its_entry_when_its_folder_is_gone_and_the_user_agrees(office):
    office.jobs("stays").register_job("work")
    home = office.gone("old")
    assert office.baton("prune", "--older-than", "30d").err.startswith("1 home of a folder that is gone: `baton prune")
    asked = office.baton("prune", "--homes", code=1)
    assert "nothing was changed: answer on a terminal, or add --yes" in asked.err
    assert f"would remove the home of {office.root}/old: " in office.baton("prune", "--homes", "--dry-run").out
    assert os.path.isdir(home)
    done = office.baton("prune", "--homes", "--yes").out.splitlines()
    assert done[0].startswith(f"removed the home of {office.root}/old: ")
    assert done[1].startswith("removed 1 home: ")
    assert done[1].endswith("freed")
    assert not os.path.exists(home)
    assert set(office.homes()) == {"stays"}
    assert os.listdir(os.path.dirname(home)) == [os.path.basename(office.homes()["stays"])]
    assert office.baton("prune", "--homes", "--yes").text == "no home can be removed"


def test_a_home_with_something_unfinished_or_unsent_is_kept(office):
    office.gone("running", "running")
    assert "is running" in office.why_kept("running")
    with office.jobs("unsent") as jobs:
        job = jobs.pick_job(jobs.register_job("work").job_id, lease_sec=60)
        jobs.record_event(job.job_id, "progress", attempt=job.attempt)
        jobs.update_status(job.job_id, "completed")
    shutil.rmtree(office.root / "unsent")
    assert office.why_kept("unsent") == f"an event of job {job.job_id} is not sent"
    home = office.gone("noted")
    with open(os.path.join(home, "notes.txt"), "w"):
        assert office.why_kept("noted") == "it holds notes.txt, which is not of baton"
    with open(os.path.join(office.gone("broken"), "jobs", "registry.db"), "w") as file:
        file.write("no database")
    assert "not a SQLite database" in office.why_kept("broken")


def test_a_home_with_a_running_session_or_one_to_resume_is_kept(office):
    inventory = Inventory(settings_in(office.root / "here", office.baton.env))
    office.gone("other")
    inventory.home = office.homes()["other"]
    now = format_time(time.time_ns())
    given = {
        "name": "s", "session_id": os.urandom(8).hex(), "state": State.RUNNING, "agent": "shell", "generation_id": "s",
        "mode": Mode.INTERACTIVE, "workdir": str(office.root / "here"), "yolo": False, "host": "here", "socket": "x",
        "created_at": now, "updated_at": now, "agent_name": "HOUMAO-s", "agent_id": "s", "conversation_id": "c",
    }  # fmt: skip
    session = Session(**dict.fromkeys(Session.fields()) | given)
    inventory.add(session)
    assert office.why_kept("other").startswith("session s runs")
    inventory.change(session, lambda one: one.replace(state=State.STOPPED, ended_at=now))
    assert office.why_kept("other") == f"session s can be resumed in {office.root}/here"
    (office.root / "here").rename(office.root / "away")
    office.baton.folder = office.root
    assert "other" not in office.baton("prune", "--homes", "--yes").err
    assert "other" not in office.homes()


def test_a_home_with_an_unmerged_worktree_is_kept(office):
    repo = Repo(office.root)
    with office.jobs("old") as jobs:
        job = jobs.register_job("work")
        jobs.update_status(job.job_id, "cancelled")
    shutil.rmtree(office.root / "old")
    folder = office.root / ".local" / "share" / "baton" / "worktrees" / "r"
    tree = trees.Tree(
        name=f"{job.job_id}-1", path=str(folder / f"{job.job_id}-1"), common=os.path.join(repo.top, ".git"),
        top=str(office.root / "old"), branch="baton/work", base=repo("rev-parse", "HEAD"), title="", made_at=job.created_at,
    )  # fmt: skip
    trees.write(tree)
    os.mkdir(tree.path)
    assert office.why_kept("old") == f"the worktree {tree.path} exists"
    os.rmdir(tree.path)
    repo("checkout", "-q", "-b", "baton/work")
    repo.write({"new.txt": "new"})
    repo.commit("work")
    repo("checkout", "-q", "-")
    assert office.why_kept("old") == "the branch baton/work is not merged"
    repo("merge", "-q", "baton/work")
    office.baton("prune", "--homes", "--yes")
    assert "old" not in office.homes()


@pytest.mark.parametrize("where", ["forget", "rmtree"])
def test_a_removal_that_was_killed_goes_on(office, where):
    homes = [office.gone("one"), office.gone("two")]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, where], cwd=office.root, env=office.baton.env, check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed
    office.baton("prune", "--homes", "--yes")
    assert office.homes() == {}
    assert os.listdir(os.path.dirname(homes[0])) == []


def test_a_home_whose_folder_reappears_is_kept(office):
    office.gone("one")
    home = office.homes()["one"]
    killed = [sys.executable, "-c", KILLED, "forget"]
    subprocess.run(killed, cwd=office.root, env=office.baton.env, check=False, capture_output=True)
    assert not os.path.exists(home)
    (office.root / "one").mkdir()
    assert office.baton("prune", "--homes", "--yes").text == "no home can be removed"
    with office.jobs("one") as jobs:
        assert [job.status.value for job in jobs.each_job()] == ["cancelled"]


def test_a_home_whose_folder_reappears_at_the_last_moment_is_kept(office, monkeypatch):
    office.gone("one")
    (home,) = known(str(office.root / "state"))
    monkeypatch.setattr(gone_homes, "fsync_dir", lambda _folder: os.mkdir(home.folder))
    kept = gone_homes.remove_home(str(office.root / "state"), home, "")
    assert kept == (0, gone_homes.EXISTS)
    with office.jobs("one") as jobs:
        assert len(list(jobs.each_job())) == 1


@pytest.mark.parametrize(("folder", "mount", "why"), [
    ("work/gone", "", None),
    ("work/gone", "/elsewhere", "the file system /elsewhere is not mounted"),
    ("empty/gone", "", "may be where a file system is mounted that is not there now"),
    ("missing/gone", "", "is missing, too"),
    ("work", "", gone_homes.EXISTS),
])  # fmt: skip
def test_a_folder_of_a_file_system_that_is_not_mounted_is_not_gone(tmp_path, monkeypatch, folder, mount, why):
    monkeypatch.setattr(gone_homes, "_TEMPORARY", ())  # as if the folder was elsewhere
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    (tmp_path / "work" / "other").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    found = gone_homes.why_not_gone(str(tmp_path / folder), mount)
    assert (why or "") in (found or "")
    assert (found is None) == (why is None)


def test_in_the_temporary_folder_the_parent_may_be_gone_too(tmp_path):
    assert gone_homes.why_not_gone(str(tmp_path / "missing" / "gone"), "") is None


def test_options_for_one_home_are_refused(office):
    assert "leave out --older-than" in office.baton.refused("prune", "--homes", "--older-than", "1d", code=64)
    assert "leave out --registry" in office.baton.refused("prune", "--homes", "--registry", "sqlite:x", code=64)
