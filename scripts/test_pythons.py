"""Tests the wheel with every Python that it is made for, or with those named: `scripts/test_pythons.py [3.12 ...]`.

They are looked for on PATH and in pyenv. Each gets an environment in build/, which is left there to be looked at."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
# The first three depend on the Python version; the others test the installed command.
TESTS = (
    "tests/integration",
    "tests/contract",
    "tests/unit",
    "tests/system/test_custom_agents.py",
    "tests/system/test_completion.py",
    "tests/system/test_docs.py::test_the_generated_pages_are_what_the_program_says",
)


def promised() -> list[str]:
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    versions = (each.removeprefix("Programming Language :: Python :: ") for each in classifiers)
    return [each for each in versions if each.startswith("3.")]


def candidates(version: str) -> Iterator[str]:
    for folder in os.get_exec_path():
        yield os.path.join(folder, f"python{version}")
    pyenv = os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    yield from glob.glob(f"{pyenv}/versions/{version}.*/bin/python{version}")


def find(version: str) -> str | None:
    code = "import sqlite3, ssl, sys, venv; print(sys.executable)"
    for path in candidates(version):
        try:  # pyenv puts programs on PATH that only say which version is not chosen
            return subprocess.check_output([path, "-c", code], stderr=subprocess.DEVNULL, text=True).strip()
        except (OSError, subprocess.CalledProcessError):
            continue
    return None


def run(*command: str, cwd: str = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True)


def install(environment: str, *what: str) -> None:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", environment)
    run(*pip, "install", *what)


def test(python: str, version: str, wheel: str) -> None:
    environment = os.path.join(BUILD, f"python{version}")
    run(python, "-m", "venv", "--clear", "--without-pip", environment)
    install(environment, wheel)
    with tempfile.TemporaryDirectory() as elsewhere:
        run(f"{environment}/bin/baton", "demo", cwd=elsewhere)
    install(environment, "--require-hashes", "--requirement", os.path.join(ROOT, "requirements-dev.txt"))
    run(f"{environment}/bin/python", "-m", "pytest", "-n", "4", "--dist", "worksteal", *TESTS)


def main() -> int:
    named = sys.argv[1:]
    found = {version: find(version) for version in named or promised()}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
        (wheel,) = glob.glob(f"{folder}/*.whl")
        for version, python in found.items():
            if python is None:
                results[version] = "not found"
                continue
            print(f"\nPython {version}: {python}", flush=True)
            began = time.monotonic()
            try:
                test(python, version, wheel)
                results[version] = "ok"
            except subprocess.CalledProcessError as error:
                results[version] = f"failed: {os.path.basename(error.cmd[0])} {' '.join(error.cmd[1:4])} ..."
            results[version] += f", {time.monotonic() - began:.0f} s"
    print()
    for version, result in results.items():
        print(f"Python {version}: {result}")
    counted = [result for result in results.values() if named or result != "not found"]
    return 0 if counted and all(result.startswith("ok") for result in counted) else 1


if __name__ == "__main__":
    sys.exit(main())
