"""An agent that has done its work on a full disk: its job is completed when there is room again, not an error."""

from __future__ import annotations

import pytest

from support.office import Office
from support.small_disk import SmallDisk
from support.waiting import wait_until

pytestmark = pytest.mark.as_root


@pytest.fixture
def disk(tmp_path):
    with SmallDisk(str(tmp_path / ".hermes"), size_kib=4096) as disk:
        yield disk


@pytest.fixture
def office(tmp_path, disk):
    with Office(tmp_path, BATON_HOME=disk.folder) as office:
        yield office


def test_an_agent_that_exits_0_on_a_full_disk_is_reported_when_there_is_room(office, tmp_path, disk):
    job = office.detached("touch begun; until test -e go; do sleep 0.05; done")
    wait_until((tmp_path / "begun").exists)
    pane = office.session_of(job)["pane_id"]
    with disk.full():
        (tmp_path / "go").touch()
        wait_until(lambda: "trying again" in office.tmux("capture-pane", "-p", "-J", "-t", pane))
    assert office.wait_for_status(job, "completed", "error")["status"] == "completed"
    wait_until(lambda: not office.sessions())
