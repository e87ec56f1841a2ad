"""G1: takes one guard at a time out of a copy of the sources, and insists that a test notices.

    python tests/guards/remove_guards.py              all of them, in about five minutes
    python tests/guards/remove_guards.py signature    those whose name holds this word; --list names all

A guard that no test notices is a missing test. The sources themselves are never touched: the copy lies in a temporary
folder, with an interpreter of its own that finds `baton` there and everything else where this one does.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT_SEC = 240
AT_ONCE = 2


class Guard(NamedTuple):
    name: str
    file: str  # below src/baton
    there: str  # wherever it stands
    instead: str
    tests: str  # what must fail without it


GUARDS = (
    Guard(
        "signature check", "wire/parse.py",
        '    if not same(expected.encode(), event.signature.encode(errors="replace")):\n', "    if False:\n",
        "tests/unit/test_wire.py",
    ),
    Guard(
        "size limit", "wire/parse.py", "    if len(raw) > MAX_PAYLOAD_BYTES:\n", "    if False:\n",
        "tests/unit/test_wire.py",
    ),
    Guard(
        "duplicate keys", "wire/parse.py", "    if len(found) != len(pairs):\n", "    if False:\n",
        "tests/unit/test_wire.py",
    ),
    Guard("depth limit", "wire/parse.py", "        if left == 0:\n", "        if False:\n", "tests/unit/test_wire.py"),
    Guard(
        "key on the wire", "wire/parse.py", '    if not isinstance(data, dict) or "auth_token" in data:\n',
        "    if not isinstance(data, dict):\n", "tests/unit/test_wire.py",
    ),
    Guard(
        "topic of an event", "transport/subscription.py",
        '        if topic != f"python/mqtt/jobs/{event.job_id}/events" and not self._is_topic_of(topic, event.job_id):\n',
        "        if False:\n", "tests/integration/test_subscriber.py -k topic_of_another_job",
    ),
    Guard(
        "idle clock that only news feeds", "transport/subscription.py",
        "        return [message for message in messages if message is not _NOTHING]\n",
        "        if messages:\n            self._last_news = self._monotonic()\n"
        "        return [message for message in messages if message is not _NOTHING]\n",
        "tests/integration/test_subscriber.py -k replays_do_not_feed",
    ),
    Guard(
        "attempt of an event", "transport/job_cursor.py",
        "        if event.attempt != self.job.attempt and not (event.attempt == 1 and self.job.attempt == 0):\n",
        "        if False:\n", "tests/unit/test_watch.py",
    ),
    Guard(
        "number seen before", "transport/job_cursor.py", "        if event.seq <= self.last_seq:\n", "        if False:\n",
        "tests/unit/test_watch.py",
    ),
    Guard(
        "attempt guard of a write", "core/lifecycle.py",
        "    if attempt is not None and (attempt != job.attempt or job.status is Status.PENDING):\n", "    if False:\n",
        "tests/contract/test_registry.py",
    ),
    Guard(
        "terminal rule for events", "core/lifecycle.py",
        "    if job.status in TERMINAL:\n        raise EventRefused(job.job_id, event,",
        "    if False:\n        raise EventRefused(job.job_id, event,", "tests/contract/test_registry.py",
    ),
    Guard(
        "transitions", "core/lifecycle.py", "    if wanted not in _FOLLOWS.get(job.status, ()):\n", "    if False:\n",
        "tests/contract/test_registry.py",
    ),
    Guard(
        "claim of what is not pending", "core/lifecycle.py",
        "    if job.status is not Status.PENDING:\n        raise IllegalTransition(job.job_id, job.status, Status.RUNNING)\n",
        "", "tests/contract/test_registry.py",
    ),
    Guard(
        "new key for a new attempt", "core/lifecycle.py",
        "auth_token=job.auth_token if job.attempt == 0 and job.auth_token else token,",
        "auth_token=job.auth_token or token,", "tests/contract/test_registry.py",
    ),
    Guard(
        "file lock", "storage/files.py", "                lock_within(fd, self.path, self._timeout_sec)\n", "                pass\n",
        "tests/unit/test_fsio.py tests/contract/test_registry.py",
    ),
    Guard(
        "fsync of a replaced file", "storage/files.py", "            if durable:\n                os.fsync(fd)\n", "",
        "tests/crash/test_every_write.py -k file",
    ),
    Guard(
        "private files", "storage/files.py",
        "    if flags & os.O_CREAT and os.fstat(fd).st_mode & 0o777 != 0o600:\n        os.fchmod(fd, 0o600)\n", "",
        "tests/unit/test_fsio.py tests/contract/test_directory.py",
    ),
    Guard(
        "SQLite waits for the disk", "registry/sqlite.py", "synchronous = FULL", "synchronous = OFF",
        "tests/crash/test_every_write.py -k sqlite",
    ),
    Guard(
        "row lock of a claim", "registry/postgres.py", '    _skip_locked = " FOR UPDATE SKIP LOCKED"\n',
        '    _skip_locked = ""\n', "tests/crash/test_backlog.py -k postgresql",
    ),
    Guard(
        "hash chain of the audit log", "history/log.py", '        elif line.get("prev") != previous:\n', "        elif False:\n",
        "tests/system/test_audit_log.py",
    ),
    Guard(
        "artifact that is missing", "jobs/verification.py", "    if not os.path.exists(path):\n", "    if False:\n",
        "tests/integration/test_publisher.py",
    ),
    Guard(
        "artifact outside the work folder", "jobs/verification.py", "    if outside(name, folder):\n", "    if False:\n",
        "tests/integration/test_publisher.py tests/system/test_publish_and_subscribe.py",
    ),
    Guard(
        "redaction of what is said", "jobs/report.py", "    detail = shorten(redactor.text(detail, 2 * MAX_DETAIL_BYTES), MAX_DETAIL_BYTES)\n",
        "    detail = shorten(detail, MAX_DETAIL_BYTES)\n", "tests/integration/test_publisher.py tests/integration/test_python_interface.py",
    ),
    Guard(
        "owner of a name", "live_agents/ownership.py", "    if entry.state is State.FRESH and entry.record is not None:\n",
        "    if False:\n", "tests/contract/test_directory.py",
    ),
    Guard(
        "lock of a name", "live_agents/files.py", "            with FileLock(lock):\n", "            if True:\n",
        "tests/security/test_name_race.py tests/contract/test_directory.py",
    ),
    Guard(
        "generation of a removal", "live_agents/ownership.py",
        '        if stored.generation_id != generation_id:\n            raise OwnershipLost(\n                f"{_described(stored)} owns {stored.agent_name}, not generation',
        '        if False:\n            raise OwnershipLost(\n                f"{_described(stored)} owns {stored.agent_name}, not generation',
        "tests/contract/test_directory.py",
    ),
    Guard(
        "exact tmux target", "sessions/tmux.py", '            self.run("kill-session", "-t", f"={name}")\n',
        '            self.run("kill-session", "-t", name)\n', "tests/integration/test_tmux.py tests/system/test_sessions.py",
    ),
    Guard(
        "format characters in a folder's name", "sessions/tmux.py", 'workdir.replace("#", "##")', "workdir",
        "tests/integration/test_tmux.py tests/system/test_sessions.py",
    ),
    Guard(
        "start time of a process", "sessions/processes.py", "        return started_at(self.pid) == self.started\n",
        "        return started_at(self.pid) is not None\n", "tests/unit/test_processes.py",
    ),
    Guard(
        "artifact that is empty", "jobs/verification.py", "    if os.path.getsize(path) == 0:\n", "    if False:\n",
        "tests/integration/test_publisher.py",
    ),
    Guard(
        "artifact that was there before", "jobs/verification.py",
        "    if since_ns is not None and os.stat(path).st_mtime_ns < since_ns:\n", "    if False:\n",
        "tests/system/test_submit.py",
    ),
    Guard(
        "verdict of the validation", "jobs/verification.py", "    if code == 0:\n", "    if True:\n",
        "tests/integration/test_publisher.py",
    ),
    Guard(
        "end of a job that is over", "transport/job_cursor.py", "        if self.over:\n            raise Rejected", "        if False:\n            raise Rejected",
        "tests/unit/test_watch.py",
    ),
    Guard(
        "plaintext to another machine", "broker/address.py",
        "    if not address.tls and not is_loopback(address.host) and not settings.allow_plaintext:\n", "    if False:\n",
        "tests/integration/test_brokers.py tests/integration/test_publisher.py tests/unit/test_config.py",
    ),
    Guard(
        "login for a broker that a folder names", "broker/address.py",
        '    if (named and settings.sources["mqtt_host"] != file) or sources == [file, file]:\n', "    if named:\n",
        "tests/integration/test_brokers.py -k login_of_the_user",
    ),
    Guard(
        "login for a broker that a record names", "broker/address.py",
        '    if (named and settings.sources["mqtt_host"] != file) or sources == [file, file]:\n', "    if not named:\n",
        "tests/integration/test_brokers.py -k login_of_the_user",
    ),
    Guard(
        "id before it is a path", "core/job.py", "    if isinstance(value, str) and _ID.fullmatch(value):\n",
        "    if isinstance(value, str):\n", "tests/unit/test_model.py tests/system/test_job_commands.py",
    ),
    Guard(
        "name before it is a path", "live_agents/names.py", "        if not _PLAIN.fullmatch(bare):\n", "        if False:\n",
        "tests/unit/test_agent_names.py",
    ),
    Guard(
        "session on another host", "sessions/live_agent_control.py", "    if record.host is not None and record.host != host:\n",
        "    if False:\n", "tests/integration/test_agent_control.py",
    ),
    Guard(
        "identity in the manifest", "sessions/live_agent_control.py", "        if theirs != ours:\n", "        if False:\n",
        "tests/integration/test_agent_control.py",
    ),
    Guard(
        "network file system", "storage/files.py", "    if kind is not None:\n        raise NetworkFileSystem(path, kind)\n",
        "    del kind\n", "tests/system/test_network_file_system.py",
    ),
    Guard(
        "end of a paste inside of it", "sessions/tmux.py", "        if _PASTE_END in text:\n", "        if False:\n",
        "tests/integration/test_tmux.py",
    ),
    Guard(
        "pane that is another's by now", "sessions/stop.py", "    if mine:\n", "    if True:\n",
        "tests/integration/test_stubborn_sessions.py tests/system/test_sessions.py tests/integration/test_monitor_and_sessions.py",
    ),
    Guard(
        "second look before a session is buried", "delegation/monitor.py",
        "                if session.socket in again and not _lives(session, again[session.socket]):\n",
        "                if True:\n", "tests/unit/test_monitor.py tests/integration/test_monitor_and_sessions.py",
    ),
    Guard(
        "cut of an audit log", "history/log.py", "    elif number > last:\n", "    elif False:\n",
        "tests/system/test_audit_log.py",
    ),
)  # fmt: skip


class Copy:
    """The sources without one guard, and an interpreter that uses them."""

    def __init__(self, folder: str) -> None:
        self._source = os.path.join(ROOT, "src", "baton")
        self._package = os.path.join(folder, "src", "baton")
        shutil.copytree(self._source, self._package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(os.path.join(ROOT, "tests"), os.path.join(folder, "tests"))
        shutil.copytree(os.path.join(ROOT, "docs"), os.path.join(folder, "docs"))
        for name in ("pyproject.toml", "README.md", "skills"):
            path = os.path.join(ROOT, name)
            if os.path.isdir(path):
                shutil.copytree(path, os.path.join(folder, name))
            elif os.path.exists(path):
                shutil.copy(path, folder)
        self.folder = folder
        home = os.path.join(folder, "venv")
        venv.create(home, with_pip=False, symlinks=True)
        self.python = os.path.join(home, "bin", "python")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = os.path.join(home, "lib", version, "site-packages")
        with open(os.path.join(site, "baton.pth"), "w", encoding="utf-8") as file:
            # A .pth inside an added folder is not followed, so the installed baton stays out of it.
            file.write(f"{os.path.join(folder, 'src')}\n{sysconfig.get_path('purelib')}\n")
        script = os.path.join(home, "bin", "baton")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!{self.python}\nimport sys\nfrom baton.__main__ import run\nsys.exit(run())\n")
        os.chmod(script, 0o755)
        for name in os.listdir(sysconfig.get_path("scripts")):
            place = os.path.join(home, "bin", name)
            if not os.path.exists(place):
                os.symlink(os.path.join(sysconfig.get_path("scripts"), name), place)

    def without(self, guard: Guard) -> None:
        path = os.path.join(self._package, guard.file)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        count = text.count(guard.there)
        if count == 0:
            raise RuntimeError(f"{guard.name}: what it takes out of {guard.file} is not there any more; mend this list")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(guard.there, guard.instead))

    def restore(self, guard: Guard) -> None:
        shutil.copy(os.path.join(self._source, guard.file), os.path.join(self._package, guard.file))

    def tests_pass(self, tests: str) -> bool:
        import shlex

        process = subprocess.Popen(
            [self.python, "-m", "pytest", "-x", "--timeout", "120", *shlex.split(tests)],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            told, _ = process.communicate(timeout=TIMEOUT_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return False  # a lock that is gone may well hang a test
        if process.returncode not in (0, 1):
            raise RuntimeError(f"pytest could not run {tests}:\n{told[-3000:]}")
        return process.returncode == 0


def noticed(copy: Copy, guard: Guard) -> bool:
    copy.without(guard)
    try:
        return not copy.tests_pass(guard.tests)
    finally:
        copy.restore(guard)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="only guards whose name holds this")
    parser.add_argument("--list", action="store_true", help="name the guards")
    options = parser.parse_args()
    chosen = [guard for guard in GUARDS if options.word in guard.name]
    if options.list:
        print(*(guard.name for guard in chosen), sep="\n")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="baton-guards-") as folder:
        free: queue.Queue[Copy] = queue.Queue()
        for number in range(AT_ONCE):
            free.put(Copy(os.path.join(folder, str(number))))

        def with_a_copy(what: Callable[..., bool], *arguments: object) -> bool:
            copy = free.get()
            try:
                return what(copy, *arguments)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            # A test that fails anyway would notice everything.
            sets = sorted({guard.tests for guard in chosen})
            passing = pool.map(lambda tests: with_a_copy(Copy.tests_pass, tests), sets)
            failing = [tests for tests, passes in zip(sets, passing, strict=True) if not passes]
            if failing:
                print("G1: these fail with every guard in its place:", *failing, sep="\n  ")
                return 1
            print(f"{len(sets)} sets of tests pass with every guard in its place", flush=True)
            unnoticed = []
            for guard, seen in zip(chosen, pool.map(lambda guard: with_a_copy(noticed, guard), chosen), strict=True):
                print(f"{'noticed  ' if seen else 'UNNOTICED'}  {guard.name}", flush=True)
                unnoticed += [] if seen else [guard.name]
    held = "held" if not unnoticed else "broken"
    took = time.monotonic() - began
    print(f"G1: {len(chosen)} guards removed one at a time, {len(unnoticed)} unnoticed, in {took:.0f} s ({held})")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
