"""What the runner does while the server of an agent takes long to begin."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from support.command import BATON
from support.sessions import SessionDesk
from support.waiting import wait_until


class SlowDesk(SessionDesk):
    """Sessions of an opencode whose server never listens."""

    def begin(self, *options: str) -> str:
        job = self.register("do it", *options, agent="opencode")
        self.creating = subprocess.Popen(
            [BATON, "session", "create", "s", "--job", job],
            cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_until(lambda: any("sleep 4321" in each.command for each in self.processes()), what="the server runs")
        return job

    def until_created(self) -> str:
        """Return what `session create` says in the end, and require that it does not take as long as a start may."""
        began = time.monotonic()
        said = self.creating.communicate(timeout=60)[1]
        assert time.monotonic() - began < 25, said
        return said


@pytest.fixture
def desk(tmp_path):
    program = tmp_path / "bin" / "opencode"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 4321\n")
    program.chmod(0o755)
    desk = SlowDesk(str(tmp_path), BATON_LEASE_SEC="2")
    desk.env["PATH"] = f"{program.parent}:{desk.env['PATH']}"
    yield desk
    desk.creating.kill()
    desk.creating.communicate()
    desk.close()


def test_the_lease_is_renewed_and_a_cancelled_job_ends_the_session(desk):
    """The idle limit is for the agent, which has not begun."""
    job = desk.begin("--idle-timeout", "1")
    for _ in range(3):
        last = desk.job(job)["lease_expires_at"]
        wait_until(lambda: desk.job(job)["lease_expires_at"] > last, what="a renewed lease")  # noqa: B023  at once
    assert desk.job(job)["activity"]["kind"] == "starting"
    desk("cancel", job)
    assert "is cancelled" in desk.until_created()
    assert desk.job(job)["status"] == "cancelled"


def test_the_session_can_be_stopped(desk):
    job = desk.begin()
    desk("session", "stop", "s", "--reason", "enough")
    desk.until_created()
    found = desk.job(job)
    assert (found["status"], found["reason"], found["ended_by"]) == (
        "error", "the session was stopped: enough", "cancelled",
    )  # fmt: skip


def test_a_signal_ends_the_session(desk):
    job = desk.begin()
    [runner] = desk.runners()
    os.kill(runner.pid, signal.SIGTERM)
    assert "SIGTERM" in desk.until_created()
    assert "SIGTERM" in desk.until_over(job)["reason"]
