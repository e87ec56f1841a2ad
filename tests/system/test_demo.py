"""The demonstration: in half a minute, on a machine with nothing of ours, and nothing of it is left."""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import time

import pytest

from baton.cli.demo_agent import COMMAND
from baton.sessions.processes import processes_with
from support.office import Office
from support.waiting import wait_until


class Stage(Office):
    """Where the demonstration is run, and what it leaves: its folder names its processes."""

    def __init__(self, folder):
        super().__init__(folder, MQTT_BROKER="broker.invalid", MQTT_TLS="1", BATON_LEASE_SEC="7", GIT_DIR="/nowhere")
        self._before = set(glob.glob("/tmp/baton-demo-*"))

    def folder_in(self, shown: str) -> str:
        return re.search(r"/tmp/baton-demo-[^,\s]+", shown)[0]

    def left_of(self, shown: str) -> list:
        folder = self.folder_in(shown)
        return [*glob.glob(folder), *processes_with("HOME", os.path.join(folder, "home")), *self.processes().values()]


@pytest.fixture
def stage(tmp_path):
    with Stage(tmp_path) as stage:
        yield stage
        # Another demonstration may run on this machine; that one also ends.
        wait_until(lambda: not set(glob.glob("/tmp/baton-demo-*")) - stage._before, "for its folder to go", 15)
        assert os.listdir(tmp_path) in ([], ["bin"])


def test_it_shows_a_request_and_a_merge_and_leaves_nothing(stage):
    began = time.monotonic()
    shown = stage("demo").out
    assert time.monotonic() - began < 30
    request = re.search(r"^\$ baton approve ([0-9a-f]{8})$", shown, re.MULTILINE)[1]
    story = [
        "not completed: report.md is missing",
        "the agent was killed: its tmux session is gone",
        f"request  {request}: tool, open",
        f"  command: {COMMAND}",
        f"{request} allowed; the agent goes on",
        "It says Hello now.",
        "greet.sh | 2 +-",
        "merged into main",
        "Fix the greeting\n",
        "Hello, baton",
        "unbroken",
    ]
    rest = shown
    for each in story:
        _, found, rest = rest.partition(each)
        assert found, f"{each!r} is not where it belongs in:\n{shown}"
    assert shown.count("unbroken") == 3
    assert stage.left_of(shown) == []


def test_at_a_narrow_terminal_no_line_of_its_own_is_cut(stage):
    done = stage.start("demo", terminal=True).end()
    assert done.code == 0, done
    own = [line for line in done.out.splitlines() if line.startswith(("$ ", "      "))]
    assert own
    assert max(map(len, own)) < 80
    assert "waiting" in done.out  # `list` as a table, with its headings
    assert stage.left_of(done.out) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("Three agents", signal.SIGINT),
        ("baton submit --detach --agent shell", signal.SIGINT),
        ("baton submit --detach --agent shell", signal.SIGHUP),
        ("baton wait", signal.SIGTERM),
        ("baton merge", signal.SIGINT),
    ],
)
def test_interrupted_in_the_middle_it_leaves_nothing_either(stage, moment, number):
    demo = stage.start("demo")
    demo.says(moment)
    demo.signal(number)
    time.sleep(0.05)  # two signals at the same time would be one
    demo.signal(number)  # the user is impatient
    done = demo.end()
    assert done.code == 128 + number
    assert stage.left_of(done.out) == []


def test_a_command_that_fails_ends_it_with_one_line_and_leaves_nothing(stage, tmp_path):
    _programs(tmp_path / "bin", "tmux", "git", "sed")
    done = stage("demo", code=1, PATH=str(tmp_path / "bin"))  # without a shell, no agent can run
    assert done.err.splitlines()[-1].startswith("baton: ")
    assert "Traceback" not in done.err
    assert stage.left_of(done.out) == []


def test_without_git_it_says_so_and_goes_on(stage, tmp_path):
    _programs(tmp_path / "bin", "tmux", "sh", "sed", "sleep")
    shown = stage("demo", PATH=str(tmp_path / "bin")).out
    assert "git 2.38 or newer is not installed" in shown
    assert "--worktree" not in shown
    assert "merge" not in shown
    assert "Hello, baton" in shown
    assert stage.left_of(shown) == []


def test_without_tmux_it_says_so_in_one_line(stage, tmp_path):
    _programs(tmp_path / "bin")
    assert "tmux is not installed" in stage.refused("demo", PATH=str(tmp_path / "bin"))


def _programs(folder, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to(shutil.which(name))
