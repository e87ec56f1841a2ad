"""Every benchmark runs, at its smallest size: a name that it uses and that is gone is found here, not at the next
`make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command import BATON

ROOT = Path(__file__).parents[2]
SOURCES = {path.name: path.read_text() for path in (ROOT / "bench").glob("*.py")}
BENCHMARKS = sorted(name for name, text in SOURCES.items() if "from table import" in text and "__main__" in text)


def run(name, tmp_path, *options):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / name, "--smallest", *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "missed; " in done.stdout, done
    return done.stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs(name, tmp_path):
    run(name, tmp_path)


def test_the_start_is_compared_with_another_installation(tmp_path):
    shown = run("startup.py", tmp_path, "--against", BATON)
    for verb in ("publish", "get", "pick", "status"):
        assert f"baton {verb}, median of 2" in shown
    assert "<= 1.05x" in shown


def test_make_runs_every_benchmark():
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in BENCHMARKS if f"python bench/{name}\n" not in makefile] == []
