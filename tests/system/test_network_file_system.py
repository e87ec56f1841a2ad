"""A registry on a shared file system is refused: here a real FUSE mount, the only kind a test can make alone."""

from __future__ import annotations

import subprocess

import pytest

from support.command import Baton

pytestmark = pytest.mark.as_root(may=": <>/dev/fuse")


@pytest.fixture
def share(tmp_path):
    (tmp_path / "behind").mkdir()
    mount = tmp_path / "share"
    mount.mkdir()
    subprocess.run(["bindfs", tmp_path / "behind", mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)


@pytest.mark.parametrize("registry", [[], ["--registry", "file:jobs"], ["--registry", "sqlite:jobs.db"]])
def test_it_is_refused_unless_insisted_on(share, registry):
    baton = Baton(share)
    line = baton.refused("register", "x", *registry)
    assert "network file system" in line
    assert "PostgreSQL" in line
    assert list(share.iterdir()) == []
    job = baton("register", "x", *registry, "--allow-network-fs").text
    assert baton("status", job, *registry, BATON_ALLOW_NETWORK_FS="1").text == "pending"
    assert "network file system" in baton.refused("status", job, *registry)


def test_doctor_knows_what_was_insisted_on(share):
    baton = Baton(share)
    assert "broken   file system: " in baton("doctor", code=1).out
    assert "warning  file system: " in baton("doctor", BATON_ALLOW_NETWORK_FS="1").out
    server = {"BATON_REGISTRY": "postgresql://127.0.0.1:1/none"}
    assert "sessions need a local home" in baton("doctor", code=1, **server).out
