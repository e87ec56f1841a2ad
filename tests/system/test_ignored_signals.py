"""Under nohup, or in the background of a script, everything starts with SIGHUP or SIGINT ignored. Neither the tests nor
the agents may depend on that."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import BATON
from support.office import Office
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
IGNORED = [signal.SIGHUP, signal.SIGINT]


def ignore_signals():
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def ignored_by(pid):
    mask = int(re.search(r"^SigIgn:\t(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1], 16)
    return [number for number in IGNORED if mask >> (number - 1) & 1]


@pytest.mark.parametrize(
    "chosen",
    [
        ["tests/system/test_submit.py", "-k", "closed_terminal or signal_withdraws"],
        ["-n", "1", "tests/unit/test_processes.py", "-k", "asked_then_told"],
    ],
    ids=["alone", "with xdist"],
)
def test_the_tests_pass(chosen, tmp_path):
    """In a folder of their own: pytest removes those of earlier runs at its end, however long that takes."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--basetemp", str(tmp_path / "tests"), *chosen],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False, preexec_fn=ignore_signals,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "..." in done.stdout


def test_an_agent_does_not_ignore_them(desk, tmp_path):
    """A stop, and a Ctrl-C that a job's timeout types, would not reach it."""
    subprocess.run(
        [BATON, "session", "create", "gpu", "--agent", "shell", "--prompt", "exec sleep 1239"],
        cwd=desk.folder, env=desk.env, check=True, timeout=60, capture_output=True, preexec_fn=ignore_signals,
    )  # fmt: skip
    (agent,) = wait_until(lambda: [each for each in desk.processes() if each.command.strip() == "sleep 1239"])
    assert ignored_by(agent.pid) == []


def test_a_submit_that_ignores_them_stays_until_the_job_has_ended(tmp_path):
    with Office(tmp_path) as office:
        submit = subprocess.Popen(
            [BATON, "submit", "touch begun; while ! test -e go; do sleep 0.05; done"],
            cwd=office.folder, env=office.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=ignore_signals,
        )  # fmt: skip
        wait_until((tmp_path / "begun").exists)
        submit.send_signal(signal.SIGHUP)
        submit.send_signal(signal.SIGINT)
        (tmp_path / "go").touch()
        out, err = submit.communicate(timeout=60)
        assert submit.returncode == 0, (out, err)
        assert office.the_job()["status"] == "completed"
        wait_until(lambda: not office.sessions())
