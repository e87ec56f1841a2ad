"""What a clone needs before anything runs: a Python, Python packages, system packages. One line says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pip
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKED, LOWEST = ROOT / "requirements-dev.txt", ROOT / "requirements-lowest.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def direct(*, groups):
    """What pyproject.toml names, where its markers hold for this Python."""
    project = PROJECT["project"]
    lines = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    if groups:
        lines += [each for group in PROJECT["dependency-groups"].values() for each in group]
        lines += PROJECT["build-system"]["requires"]
    named = [Requirement(line) for line in lines if not line.startswith(project["name"])]
    return [each for each in named if each.marker is None or each.marker.evaluate()]


def locked_lines(file):
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    return text.replace("\\\n", " ").splitlines()


def locked(file):
    """The version of each package, where its marker holds for this Python."""
    found = [Requirement(line.partition(" --hash")[0]) for line in locked_lines(file)]
    return {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each in found
        if each.marker is None or each.marker.evaluate()
    }


@pytest.mark.parametrize("file", [LOCKED, LOWEST], ids=lambda file: file.stem)
def test_each_locked_package_has_hashes_and_no_line_names_a_host(file):
    for line in locked_lines(file):
        assert re.fullmatch(r"[a-z0-9.-]+==[^ ]+ (; [^-]+?)?( *--hash=sha256:[0-9a-f]{64})+", line), line
    assert "://" not in file.read_text()


def test_all_that_pyproject_names_is_locked_in_a_version_that_it_allows():
    versions = locked(LOCKED)
    for each in direct(groups=True):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), f"{each}: run `make lock`"


def test_the_lowest_versions_are_the_bounds_of_pyproject():
    versions = locked(LOWEST)
    for each in direct(groups=False):
        if each.name != "rich":  # textual needs a newer one; test_wheel.py tries the lowest, without textual
            (bound,) = each.specifier
            assert Version(bound.version) == Version(versions[each.name]), f"{each}: run `make lock`"


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path)


class Here:
    """A system that has these programs only."""

    def __init__(self, folder):
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.env = {"PATH": str(self.programs), "HOME": str(folder), "LANG": "C.UTF-8"}
        self.link("sh", "awk", "cat", "chmod", "dirname", "env", "id", "ls", "make", "paste", "sed", "true")

    def link(self, *programs):
        for each in programs:
            (self.programs / each).symlink_to(shutil.which(each))

    def add(self, name, *script):
        file = self.programs / name
        file.unlink(missing_ok=True)
        file.write_text("\n".join(["#!/bin/sh", *script, ""]))
        file.chmod(0o755)

    def add_python(self, name, before):
        """This Python, but other than it is: `before` runs first."""
        self.add(name, f"""exec {sys.executable} -c 'import sys; {before}; exec(sys.argv.pop(1))' "$2" """)

    def run(self, *command, **env):
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.env | env,
            input="yes\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def make(self, goal, *words, **env):
        done = self.run("make", goal, f"VENV={self.folder / 'venv'}", *words, **env)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith("make: ***")
        return done.stderr.splitlines()[:-1]

    def install(self, *programs, code):
        done = self.run("scripts/system-packages", *programs)
        assert done.returncode == code, done
        assert done.stdout == ""
        return done.stderr.splitlines()


TOO_OLD = 'sys.version_info = (3, 9, 18, "final", 0)'


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (TOO_OLD, "python3 is Python 3.9.18, and baton needs Python 3.11 or newer: "),
        (
            'sys.version_info = (3, 13, 5, "final", 0); sys.modules["ensurepip"] = None',
            "python3 is Python 3.13.5 without ensurepip: install what is missing (Debian, Ubuntu: apt-get install python3.13-venv), or ",
        ),
        ("sys.exit(127)", "python3 does not run here, and baton needs Python 3.11 or newer: "),
    ],
    ids=["too old", "without python3-venv", "not there"],
)
def test_a_python_that_will_not_do_is_named_before_pip_starts_with_one_that_will(here, before, said):
    here.add_python("python3", before)
    advice = "install one and name it, for example `make demo PYTHON=python3.13`"
    assert here.make("demo") == [f"make: {said}{advice}"]
    here.add_python("python3.14", TOO_OLD)
    here.add_python("python3.12", "pass")
    assert here.make("test") == [f"make: {said}run `make test PYTHON=python3.12`"]
    assert not (here.folder / "venv").exists()


def test_without_a_network_the_last_line_says_what_is_missing(here):
    environment = here.folder / "venv"
    venv.create(environment, symlinks=True)
    modules = here.folder / "modules"
    modules.mkdir()
    (modules / "pip").symlink_to(os.path.dirname(pip.__file__))
    *before, last = here.make("demo", PYTHONPATH=str(modules), PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
    assert any(line.strip().startswith("ERROR: ") for line in before)
    assert last.startswith(
        f"make: baton and the packages of pyproject.toml are missing in {environment}: pip could not install them"
    )
    assert not (environment / ".installed").exists()


APT_GET = (
    'cd "${0%/*}"',
    'echo "$DEBIAN_FRONTEND|$(cat)|$*" >>../calls',
    'case " $* " in *" install "*" strace "*) : >strace && chmod +x strace; esac',
)
SUDO = ('[ "$1" = -n ] || exit 99', "shift", 'exec env -i PATH="$PATH" "$@"')
NAMES = "apt: nodejs strace; dnf: nodejs strace; pacman: nodejs strace; brew: node"


def test_nothing_is_done_where_nothing_is_missing(here):
    here.add("apt-get", *APT_GET)
    here.add("strace")
    assert here.install("strace", code=0) == []
    assert not (here.folder / "calls").exists()


@pytest.mark.parametrize("user", ["0", "1000"])
def test_system_packages_are_installed_without_a_question(here, user):
    here.add("id", f"echo {user}")
    here.add("apt-get", *APT_GET)
    if user != "0":
        here.add("sudo", *SUDO)
    assert here.install("strace", code=0) == ["Installing strace"]
    for call in (here.folder / "calls").read_text().splitlines():
        frontend, stdin, words = call.split("|")
        assert (frontend, stdin) == ("noninteractive", "")
        assert "--force-confdef" in words
        assert "--force-confold" in words
    assert " install --yes --no-install-recommends strace" in words


@pytest.mark.parametrize(
    ("system", "why"),
    [
        ({}, "this system has no apt-get"),
        ({"apt-get": APT_GET}, "only root can install them"),
        (
            {"apt-get": APT_GET, "sudo": ['echo "sudo: a password is required" >&2', "exit 1"]},
            "sudo does not let this user install them without a password",
        ),
    ],
    ids=["no apt", "no sudo", "sudo that asks"],
)
def test_what_cannot_be_installed_is_one_line_with_the_names_for_each_package_manager(here, system, why):
    here.add("id", "echo 1000")
    for name, script in system.items():
        here.add(name, *script)
    assert here.install("node", "strace", code=1) == [
        f"system-packages: missing: node strace; {why}. Their packages: {NAMES}"
    ]


def test_the_last_line_names_what_apt_did_not_install(here):
    here.add("id", "echo 0")
    here.add("apt-get", 'echo "E: Unable to locate package" >&2', "exit 100")
    first, *_, last = here.install("node", "strace", code=1)
    assert first == "Installing nodejs strace"
    assert last.startswith(
        "system-packages: missing: node strace; apt-get did not install them (its lines are above). "
    )
    assert last.endswith(NAMES)


def test_each_program_that_the_makefile_names_has_packages():
    known = re.findall(r"^([a-z]\S+)(?: +\S+){4}$", (ROOT / "scripts/system-packages").read_text(), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    named = {each for line in re.findall(r"@scripts/system-packages (.*)", makefile) for each in line.split()}
    assert named == set(known)
