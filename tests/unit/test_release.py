"""How the release of an agent's program is found out, and kept until one of its files changes."""

from __future__ import annotations

import json
import os
import threading

import pytest

from baton.adapters import BUILT_IN, find_agent
from baton.config import Settings
from baton.sessions.release import Reading, known_release, note_untested, release_in

CODEX = find_agent(Settings(env={}), "codex")


class Machine:
    """A user with a program of Codex. Each start is a line of starts.txt."""

    def __init__(self, folder) -> None:
        self.folder, self.state = folder, str(folder / "state")
        self.package = folder / "lib" / "node_modules" / "@openai" / "codex"
        self.native = self.package.parent / "codex-linux-x64" / "vendor" / "bin" / "codex"
        for each in (self.package / "bin", self.native.parent, folder / "bin"):
            each.mkdir(parents=True)
        (self.package / "package.json").write_text(
            json.dumps({"bin": {"codex": "bin/codex.js"}, "optionalDependencies": {"@openai/codex-linux-x64": "1"}})
        )
        self.make(self.native, b"\x7fELF" + bytes(1 << 20))
        self.launcher = self.package / "bin" / "codex.js"
        self.write("echo codex-cli 0.169.0")
        (folder / "bin" / "codex").symlink_to(self.launcher)
        self.environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}

    def make(self, path, content: bytes) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)

    def write(self, script: str) -> None:
        self.make(self.launcher, f"#!/bin/sh\necho started >> {self.folder}/starts.txt\n{script}\n".encode())

    def read(self) -> str | None:
        """Ask for the release as a runner does, and wait for the answer."""
        answered = threading.Event()
        reading = Reading(self.state, CODEX, self.environment, str(self.folder), answered.set)
        assert reading.is_done or answered.wait(30)
        found = reading.take()
        assert reading.take() is None, "it is taken once"
        return found

    @property
    def known(self) -> str | None:
        return known_release(self.state, CODEX, self.environment)

    @property
    def starts(self) -> int:
        return len((self.folder / "starts.txt").read_text().split())


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("printed", "release"),
    [
        ("2.1.328 (Claude Code)", "2.1.328"), ("codex-cli 0.169.0", "0.169.0"), ("GitHub Copilot CLI 1.0.102.\n", "1.0.102"),
        ("1.18.33\n", "1.18.33"), ("v1.2.3-beta.1+5", "1.2.3-beta.1+5"), ("", None), ("no number 7", None),
    ],
)  # fmt: skip
def test_a_release_is_a_number_with_points(printed, release):
    assert release_in(printed) == release


def test_a_program_is_asked_once(machine):
    assert machine.known is None
    assert [machine.read(), machine.read(), machine.known, machine.starts] == ["0.169.0", "0.169.0", "0.169.0", 1]
    kept = os.stat(os.path.join(machine.state, "releases.json"))
    assert kept.st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["launcher", "package", "native"])
def test_a_program_of_which_one_file_has_changed_is_asked_again(machine, what):
    machine.read()
    if what == "launcher":
        machine.write("echo codex-cli 0.170.0")
    elif what == "package":
        path = machine.package / "package.json"
        machine.make(path, path.read_bytes())
    else:
        machine.make(machine.native, b"\x7fELF" + bytes(2 << 20))
    assert machine.known is None
    assert machine.read() == ("0.170.0" if what == "launcher" else "0.169.0")
    assert machine.starts == 2


def test_a_launcher_that_may_choose_its_program_is_asked_each_time(machine):
    (machine.package / "package.json").unlink()
    assert [machine.read(), machine.read(), machine.known, machine.starts] == ["0.169.0", "0.169.0", None, 2]


@pytest.mark.parametrize(
    "script",
    ["exit 3", "true", "head -c 10000000 /dev/zero", "echo 1", "kill -9 $$", "printf '\\377\\376'", "sleep 60 & true"],
)
def test_a_program_that_says_nothing_of_use_leaves_it_unknown(machine, script):
    machine.write(script if "sleep" not in script else "(exec >&-; sleep 60) & true")
    assert machine.read() is None


def test_a_missing_program_and_a_package_that_is_no_file_leave_it_unknown(machine):
    path = machine.package / "package.json"
    path.unlink()
    os.mkfifo(path)
    assert machine.read() == "0.169.0"
    (machine.folder / "bin" / "codex").unlink()
    assert machine.read() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"programs": 7, "noted": {"a": 1}}', '{"programs": {"P": []}, "noted": [7]}']
)
def test_what_is_kept_may_be_anything(machine, text):
    os.makedirs(machine.state, mode=0o700)
    with open(os.path.join(machine.state, "releases.json"), "w", encoding="utf-8") as file:
        file.write(text.replace("P", str(machine.folder / "bin" / "codex")))
    assert machine.read() == "0.169.0"
    assert note_untested(machine.state, CODEX, "9.9.9") is not None


def test_a_state_that_cannot_be_written_fails_nothing(machine):
    with open(machine.state, "w", encoding="utf-8"):
        pass
    assert [machine.read(), machine.read()] == ["0.169.0"] * 2
    assert note_untested(machine.state, CODEX, "9.9.9") is not None


def test_what_the_running_program_says_is_kept_for_the_next_job(machine):
    machine.read()
    reading = Reading(machine.state, CODEX, machine.environment, str(machine.folder), lambda: None)
    reading.correct("0.171.0")
    assert (machine.known, reading.release) == ("0.171.0", "0.171.0")


def test_a_release_that_was_not_tested_is_said_once_and_without_advice_to_go_back(machine):
    tested = CODEX.tested_version
    said = note_untested(machine.state, CODEX, "9.9.9")
    assert said == f"codex 9.9.9 was not tested with this release of baton, which was tested with {tested}"
    assert note_untested(machine.state, CODEX, "9.9.9") is None
    assert note_untested(machine.state, CODEX, "9.9.8") is not None
    assert note_untested(machine.state, CODEX, tested) is None
    assert note_untested(machine.state, CODEX, None) is None


def test_a_command_of_the_user_is_never_asked(machine):
    """A program that baton does not know may do anything with --version."""
    settings = Settings(env={})
    unknown = [name for name in BUILT_IN if not find_agent(settings, name).tested_version]
    assert unknown == ["shell"]
    reading = Reading(
        machine.state, find_agent(settings, "shell"), machine.environment, str(machine.folder), lambda: None
    )
    assert (reading.is_done, reading.take()) == (True, None)
