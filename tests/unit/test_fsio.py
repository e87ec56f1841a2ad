from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from baton.core.errors import NetworkFileSystem, RegistryBusy
from baton.storage.files import (
    FileLock,
    make_home,
    make_private_dir,
    network_fs_kind,
    open_private,
    refuse_network_fs,
    replace_file,
)

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:5 / /home/me/share rw - nfs4 server:/x rw
31 22 0:6 / /home/me/with\\040space rw - cifs //server/x rw
32 22 0:7 / /home/me/local rw - fuse.fuse-overlayfs overlay rw
33 22 0:8 / /home/me/ssh rw - fuse.sshfs host: rw
34 30 0:9 / /home/me/share/tmp rw shared:1 master:2 - tmpfs tmpfs rw
37 22 0:8 / /home/me/bind rw - fuse /x rw
38 22 0:8 / /home/me/disk rw - fuseblk /dev/sdb1 rw
35 22 0:9 / /mnt/twice rw - nfs server:/y rw
36 22 0:9 / /mnt/twice rw - ext4 /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/work", None),
        ("/home/me/share", "nfs4"),
        ("/home/me/share/a/b", "nfs4"),
        ("/home/me/shared", None),
        ("/home/me/share/tmp/x", None),
        ("/home/me/with space/x", "cifs"),
        ("/home/me/local/x", None),
        ("/home/me/ssh/x", "fuse.sshfs"),
        ("/home/me/bind/x", "fuse"),
        ("/home/me/disk/x", None),
        ("/mnt/twice/x", None),
    ],
)
def test_network_file_systems_are_recognised(path, kind):
    assert network_fs_kind(path, MOUNTS) == kind


def test_this_machines_own_folder_is_local(tmp_path):
    assert network_fs_kind(str(tmp_path)) is None
    refuse_network_fs(str(tmp_path))


def test_the_refusal_names_postgresql():
    assert "PostgreSQL" in str(NetworkFileSystem("/x", "nfs4"))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_what_is_made_is_private_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        make_home(str(tmp_path / "a" / "home"))
        os.close(open_private(str(tmp_path / "a" / "file"), os.O_CREAT | os.O_RDWR))
        replace_file(str(tmp_path / "a" / "replaced"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "home").stat().st_mode) == 0o700
    for name in ("home/.gitignore", "file", "replaced"):
        assert stat.S_IMODE((tmp_path / "a" / name).stat().st_mode) == 0o600


@pytest.mark.usefixtures("usual_umask")
def test_a_folder_that_was_there_keeps_its_mode(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir(mode=0o755)
    make_private_dir(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_failed_replacement_leaves_the_old_content_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    replace_file(str(path), b"old")

    def broken(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        replace_file(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.json"]


class TestLock:
    def hold(self, path):
        """Another process that holds the lock until its stdin is closed."""
        code = (
            "import sys; from baton.storage.files import FileLock\n"
            "with FileLock(sys.argv[1]):\n    print('held', flush=True); sys.stdin.read()"
        )
        holder = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout.readline() == b"held\n"
        return holder

    def test_a_second_holder_waits_no_longer_than_told(self, tmp_path):
        path = str(tmp_path / ".lock")
        holder = self.hold(path)
        try:
            with pytest.raises(RegistryBusy, match=r"locked for 0\.2 s"), FileLock(path, timeout_sec=0.2):
                pass
        finally:
            holder.communicate()
        with FileLock(path, timeout_sec=0.2):
            pass

    def test_a_holder_that_dies_lets_go(self, tmp_path):
        path = str(tmp_path / ".lock")
        holder = self.hold(path)
        holder.kill()
        with FileLock(path, timeout_sec=10):
            pass
        holder.communicate()
