"""Run a test that needs what only root may do: mount, make files of another user, name hosts, lay cables.

As root it runs as any other. For an ordinary user it runs in a process of its own: in a user namespace, where the user is
root over himself and the users of his /etc/subuid; where the system forbids that, by `sudo -n`. Where neither is allowed
it is skipped, and the last lines of the run name it with the reason.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile

import pytest

MARK = "as_root"  # with `may=...`, a command of the shell that must succeed there
# Of a namespace: mounts of its own with a writable /run, a network of its own, a name of its own.
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto", "--mount", "--net", "--uts")
_SUDO = ("sudo", "-n", "unshare", "--mount", "--net", "--uts")
# With sudo the folder belongs to another user, below whose folders baton keeps nothing of root.
_ALONE = """
mount -t tmpfs -o mode=755 tmpfs /run && ip link set lo up || exit 99
owner=$(stat -c %u:%g "$TMPDIR") && chown 0:0 "$TMPDIR" || exit 99
"$@"; code=$?
rm -rf --one-file-system "$TMPDIR"/*
chown "$owner" "$TMPDIR"
exit $code
"""
# Another user's file, and a disk: what a namespace must allow.
_TRIAL = """
cd "$1" && touch theirs && chown 65534:65534 theirs && mkdir disk && mount -t tmpfs none disk && ip link set lo up &&
umount disk && rm -d disk theirs
"""
_ADMINISTRATION = ":/usr/sbin:/sbin"


@functools.cache
def way(may: str = "true") -> tuple[tuple[str, ...], str]:
    """Find how this user gets to be root: the words before a command, or none and the reasons why not."""
    reasons = []
    for words in (_NAMESPACE, _SUDO):
        with tempfile.TemporaryDirectory(prefix="bt-") as folder:
            trial = [*words, "sh", "-euc", f"{_TRIAL}{may}", "sh", folder]
            try:
                tried = subprocess.run(trial, check=False, capture_output=True, text=True, timeout=20)
            except (OSError, subprocess.TimeoutExpired) as error:
                reasons.append(f"{words[0]}: {error}")
                continue
        if tried.returncode == 0:
            return words, ""
        reasons.append(f"{words[0]}: {(tried.stderr.strip().splitlines() or ['refused'])[-1]}")
    return (), "; ".join(reasons)


class _AsRoot(pytest.Item):
    """A test function of the same name, which a process with the powers of root runs."""

    def __init__(self, *, original: pytest.Item, **more) -> None:
        super().__init__(**more)
        self.own_markers = list(original.own_markers)
        self.keywords.update({mark.name: mark for mark in self.own_markers})
        self._location = original.location

    def runtest(self) -> None:
        mark = self.get_closest_marker(MARK)
        words, why = way(**mark.kwargs)
        if not words:
            pytest.skip(f"needs root: {why}")
        with tempfile.TemporaryDirectory(prefix="bt-") as folder:
            given = {"TMPDIR": folder, "HYPOTHESIS_STORAGE_DIRECTORY": folder, "PYTHONDONTWRITEBYTECODE": "1"}
            given["PATH"] = os.environ["PATH"] + _ADMINISTRATION
            kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
            command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--basetemp", f"{folder}/t", self.nodeid]
            if self.config.getoption("--full"):
                command.append("--full")
            if words is _SUDO:  # it resets the environment
                words = (*words, "env", *(f"{name}={value}" for name, value in (kept | given).items()))
            done = subprocess.run(
                [*words, "sh", "-c", _ALONE, "sh", *command], check=False, env=kept | given,
                cwd=self.config.rootpath, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        if done.returncode != 0 or " passed" not in done.stdout:
            raise _FailedAsRoot(done.stdout)
        figures = [line for line in done.stdout.splitlines() if line.endswith("(held)") or "(held)  [--seed" in line]
        self.user_properties += [("figure", line) for line in figures]

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, _FailedAsRoot):
            return f"as root:\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, self._location[1], self._location[2]


class _FailedAsRoot(Exception):
    """What the process printed."""


def replace_tests(items: list[pytest.Item]) -> None:
    """Let each test that needs root run as root, if this process does not."""
    if os.geteuid() == 0:
        return
    for place, item in enumerate(items):
        if item.get_closest_marker(MARK) is not None:
            items[place] = _AsRoot.from_parent(item.parent, name=item.name, original=item)
