"""Which files count as the user's own, by the real database of users and groups."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from baton.own_files import why_replaceable, why_shared
from support.small_disk import SmallDisk

_NEW_USER_NAMESPACE = 0x10000000  # CLONE_NEWUSER


@pytest.fixture
def file(tmp_path):
    (tmp_path / "way").mkdir(mode=0o755)
    file = tmp_path / "way" / "file"
    file.touch(mode=0o600)
    return file


def test_a_file_that_only_the_user_can_change_is_own(file, monkeypatch):
    for mode in (0o400, 0o600, 0o644, 0o755):
        file.chmod(mode)
        assert why_shared(str(file)) is None
    monkeypatch.chdir(file.parent)
    assert why_shared("file") is None
    assert why_shared("./../way//file") is None
    assert why_shared("missing/deeper") is None
    assert why_shared("/") is None


def test_a_file_that_others_can_write_is_named_with_its_mode_and_the_command(file):
    file.chmod(0o666)
    assert why_shared(str(file)) == f"can be written by other users (mode 0666); run `chmod go-w {file}`"
    spaced = file.rename(file.with_name("a b"))
    assert why_shared(str(spaced)).endswith(f"run `chmod go-w '{spaced}'`")
    assert why_replaceable(str(spaced)) is None


@pytest.mark.parametrize("above", [0, 1])
def test_each_folder_on_the_way_is_judged(file, above):
    folder = file.parents[above]
    folder.chmod(0o757)
    why = f"is reached through {folder}, which other users can write (mode 0757); run `chmod go-w {folder}`"
    assert why_shared(str(file)) == why_replaceable(str(file)) == why
    assert why_shared(str(file.with_name("missing"))) == why
    folder.chmod(0o1777)  # as /tmp: others can add files, and replace none
    assert why_shared(str(file)) is None
    assert "can be written by other users (mode 1777)" in (why_shared(str(folder)) or "")


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_where_a_link_leads_is_judged_as_well_as_the_link(file, tmp_path, kind, is_absolute):
    """Also a link between: another user could let that one lead elsewhere."""
    first, between, last = (tmp_path / name for name in ("first", "between", "last"))
    for folder in (first, between, last):
        folder.mkdir(mode=0o700)
    target = last / "real"
    if kind == "file":
        file.rename(target)
    else:
        target.mkdir(mode=0o700)
        file.rename(target / "file")
    for link, to in ((between / "link", target), (first / "link", between / "link")):
        link.symlink_to(to if is_absolute else os.path.relpath(to, link.parent))
    path = str(first / "link") if kind == "file" else str(first / "link" / "file")
    assert why_shared(path) is None
    for folder in (first, between, last):
        folder.chmod(0o777)
        assert (why_shared(path) or "").startswith(f"is reached through {folder}, ")
        folder.chmod(0o755)
    real = target if kind == "file" else target / "file"
    real.chmod(0o606)
    assert why_shared(path) == (
        f"leads to {real}, which can be written by other users (mode 0606); run `chmod go-w {real}`"
    )


def test_links_in_a_circle_are_an_error(file):
    file.with_name("circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        why_shared(str(file.with_name("circle")))


@pytest.mark.as_root
def test_what_belongs_to_another_user_is_not_own(file):
    os.chown(file, 65533, 0)
    assert why_shared(str(file)) == "belongs to another user (id 65533); use a copy of your own in its place"
    os.chown(file, 0, 0)
    os.chown(file.parent, 65533, 0)
    assert why_shared(str(file)) == (
        f"is reached through {file.parent}, which belongs to another user (id 65533); use another folder"
    )
    os.chown(file.parent, 0, 0)
    file.parent.chmod(0o1777)
    link = file.with_name("link")
    link.symlink_to("file")
    os.chown(link, 65533, 0, follow_symlinks=False)
    assert why_shared(str(link)) == f"is reached by {link}, a link of another user (id 65533); use a path without it"


@pytest.mark.as_root(may="unshare --user --map-root-user true")
def test_a_file_of_another_user_is_not_own_where_the_namespace_does_not_know_that_user(file):
    """In a user namespace all such users are one: a folder may be of root of the machine, a file is of anyone."""
    theirs = file.with_name("theirs")
    theirs.touch(mode=0o644)
    os.chown(theirs, 65533, 65533)
    reading, writing = os.pipe()
    if not (child := os.fork()):  # there is no path to the interpreter in the namespace, perhaps
        try:
            assert ctypes.CDLL(None).unshare(_NEW_USER_NAMESPACE) == 0
            Path("/proc/self/uid_map").write_text("0 0 1")
            os.write(writing, json.dumps([why_shared(str(file)), why_shared(str(theirs))]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        own, other = json.load(answer)
    os.waitpid(child, 0)
    assert own is None
    assert other == "belongs to another user (id 65534); use a copy of your own in its place"


_ACCOUNTS = """root:x:0:0::/:
alice:x:5001:5001::/:
bob:x:5002:5002::/:
carol:x:5003:5003::/:
dave:x:5004:5100::/:
erin:x:5005:5100::/:
"""
_GROUPS = """root:x:0:
alice:x:5001:
bob:x:5002:bob,carol
carol:x:5003:carol,root
team:x:5100:
empty:x:5101:
"""
_JUDGE = """
import grp, json, os, pwd, shlex, sys  # all of them, while it may read the library
from baton.own_files import why_shared
results = []
for uid, gid, path in json.loads(sys.argv[1]):
    os.setegid(gid)
    os.seteuid(uid)
    results.append(why_shared(path))
    os.seteuid(0)
print(json.dumps(results))
"""


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.as_root
def test_a_group_may_write_if_the_user_is_its_only_member(tmp_path):
    cases = {  # user, group of the process, group of the file
        "alice": (5001, 5001, 5001, None),
        "carol, who is also named as a member, with root": (5003, 5003, 5003, None),
        "bob, whose group has another member": (5002, 5002, 5002, "bob"),
        "dave, whose group is the group of another account": (5004, 5100, 5100, "team"),
        "alice, and a group without members": (5001, 5001, 5101, "empty"),
        "alice, and a group without a name": (5001, 5001, 5999, "5999"),
        "a user without an account": (5009, 5009, 5009, None),
        "a user without an account, in the group of others": (5009, 5100, 5100, "team"),
        "a user without an account, in the group of root": (5009, 0, 0, None),
        "root": (0, 0, 0, None),
    }
    with SmallDisk(str(tmp_path / "disk")) as disk:
        os.chmod(disk.folder, 0o755)
        (tmp_path / "passwd").write_text(_ACCOUNTS)
        (tmp_path / "group").write_text(_GROUPS)
        given = []
        for number, (uid, process_gid, gid, _) in enumerate(cases.values()):
            folder = os.path.join(disk.folder, str(number))
            os.mkdir(folder)
            path = os.path.join(folder, "file")
            with open(path, "w"):
                pass
            for each, mode in ((path, 0o664), (folder, 0o2775)):
                os.chown(each, uid, gid)
                os.chmod(each, mode)
            given.append((uid, process_gid, f"/mnt/{number}/file"))
        mounts = "mount --bind passwd /etc/passwd && mount --bind group /etc/group && mount --bind disk /mnt"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh",
             sys.executable, "-c", _JUDGE, json.dumps(given)],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
    found = dict(zip(cases, json.loads(done.stdout), strict=True))
    expected = {
        name: group
        and f"is reached through /mnt/{number}, which other users can write (mode 2775, group {group}); "
        f"run `chmod go-w /mnt/{number}`"
        for number, (name, (*_, group)) in enumerate(cases.items())
    }
    assert found == expected


@pytest.mark.as_root
def test_a_directory_service_that_lists_no_accounts_is_judged_by_the_name_of_the_group(file, monkeypatch):
    monkeypatch.setattr(pwd, "getpwall", list)
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    user = pwd.getpwuid(1)
    os.chown(file, 1, user.pw_gid)
    file.chmod(0o664)
    assert why_shared(str(file)) is None
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(("other", *user[1:])))
    monkeypatch.setattr(os, "geteuid", lambda: 2)
    os.chown(file, 2, user.pw_gid)
    assert f"(mode 0664, group {user.pw_name})" in (why_shared(str(file)) or "")


@pytest.mark.as_root
def test_an_access_list_names_more_than_the_private_group(tmp_path):
    owner, user, group, mask, others, no_id = 1, 2, 4, 0x10, 0x20, 0xFFFFFFFF
    entries = [(owner, 6, no_id), (user, 6, 5001), (group, 4, no_id), (mask, 6, no_id), (others, 4, no_id)]
    with SmallDisk(str(tmp_path / "disk")) as disk:
        path = os.path.join(disk.folder, "file")
        with open(path, "w"):
            pass
        content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in entries)
        os.setxattr(path, "system.posix_acl_access", content)
        assert "(mode 0664, and an access control list)" in (why_shared(path) or "")
        os.chmod(path, 0o644)
        assert why_shared(path) is None


@pytest.mark.as_root
def test_others_write_into_no_folder_that_is_mounted_read_only(tmp_path):
    with SmallDisk(str(tmp_path / "disk")) as disk:
        os.chmod(disk.folder, 0o777)
        path = os.path.join(disk.folder, "file")
        with open(path, "w"):
            pass
        assert "(mode 0777)" in (why_shared(path) or "")
        with disk.read_only():
            assert why_shared(path) is None
