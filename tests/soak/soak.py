"""`make soak`: half an hour of work and trouble with the installed command: a worker, a monitor, a listener and the local
broker at work, each killed now and then, agents and their runners too. In the last third only agents and runners are
killed: whoever lives on must not grow in that time. At the end every job must have ended, once, and nothing be left.

    python tests/soak/soak.py --minutes 30 [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BATON = os.path.join(os.path.dirname(sys.executable), "baton")
# Short work, some of it in trouble: {number} is the job's own.
SCRIPTS = (
    "echo done > out-{number}; sleep 0.3",
    'for i in 1 2 3; do baton publish --event progress --detail "step $i" > /dev/null; sleep 0.2; done; echo x > out-{number}',
    "baton publish --event completed; echo late > out-{number}",
    "exit 3",
    "(setsid sleep 600 &); echo x > out-{number}",
    "sleep 1; echo x > out-{number}",
)


AGENTS = ("agent", "runner")
EVERYBODY = (*AGENTS, "worker", "monitor", "listener", "broker")
SETTLE_SEC = 20


class Crew:
    """The processes that keep things going; one that was killed is started again."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.env = {
            "PATH": os.path.dirname(BATON) + os.pathsep + os.environ["PATH"],
            "HOME": folder,
            "LANG": "C.UTF-8",
            "BATON_HOME": os.path.join(folder, "home"),
            "BATON_STATE_DIR": os.path.join(folder, "state"),
            "BATON_TMUX_SOCKET": os.path.join(folder, "tmux"),
            "BATON_LEASE_SEC": "8",
        }
        self._commands = {
            "worker": ["worker", "--agent", "shell", "--concurrency", "3", "--drain", "20"],
            "monitor": ["monitor", "--interval", "1"],
            "listener": ["subscribe", "--follow-all", "--json"],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.started: Counter[str] = Counter()

    def baton(self, *arguments: str) -> str:
        done = subprocess.run(
            [BATON, *arguments], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        return done.stdout

    def keep(self) -> None:
        for name, command in self._commands.items():
            process = self._running.get(name)
            if process is None or process.poll() is not None:
                log = open(os.path.join(self.folder, f"{name}.log"), "ab")  # noqa: SIM115  it is the process's
                self._running[name] = subprocess.Popen(
                    [BATON, *command], cwd=self.folder, env=self.env, stdout=log, stderr=log
                )
                log.close()
                self.started[name] += 1

    def kill(self, name: str) -> None:
        process = self._running.get(name)
        if process is not None:
            process.kill()
            process.wait()

    def pids(self) -> dict[str, int]:
        found = {name: process.pid for name, process in self._running.items() if process.poll() is None}
        broker = json.loads(self.baton("broker", "status", "--json") or "{}")
        if broker.get("pid"):
            found["broker"] = broker["pid"]
        return found

    def end(self) -> None:
        for name in ("worker", "monitor", "listener"):
            process = self._running.get(name)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM if name != "listener" else signal.SIGINT)
        for process in self._running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        subprocess.run(["tmux", "-S", self.env["BATON_TMUX_SOCKET"], "kill-server"], capture_output=True, check=False)
        self.baton("broker", "down")


class Look:
    """What each of the crew takes at one moment: memory in kB, and open files; and how many processes agents have."""

    def __init__(self, crew: Crew) -> None:
        self.processes = marked(crew.folder)
        self.sizes: dict[str, tuple[int, int]] = {}
        for name, pid in crew.pids().items():
            try:
                with open(f"/proc/{pid}/status", encoding="ascii") as file:
                    memory = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
                self.sizes[name] = (memory, len(os.listdir(f"/proc/{pid}/fd")))
            except (OSError, StopIteration):
                continue

    def words(self, name: str) -> str:
        if name not in self.sizes:
            return "not there"
        memory, files = self.sizes[name]
        return f"{memory / 1024:.0f} MB, {files} open files"

    def has_grown_since(self, before: Look, name: str) -> bool:
        if name not in before.sizes:
            return False
        (memory, files), (memory_now, files_now) = before.sizes[name], self.sizes[name]
        return memory_now > memory * 1.25 + 8_000 or files_now > files + 8


def marked(folder: str) -> int:
    """Processes that belong to a session of this run."""
    count = 0
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                content = file.read()
        except OSError:
            continue
        count += b"BATON_SESSION_ID=" in content and os.fsencode(folder) in content
    return count


def trouble(crew: Crew, draw: random.Random, kinds: Sequence[str]) -> str:
    """Kills something that is at work."""
    what = draw.choice(kinds)
    if what in ("worker", "monitor", "listener"):
        crew.kill(what)
    elif what == "broker":
        pid = crew.pids().get("broker")
        if pid:
            os.kill(pid, signal.SIGKILL)
    else:
        sessions = json.loads(crew.baton("session", "list", "--json") or "[]")
        if sessions:
            pid = draw.choice(sessions)["pane_pid"]
            if what == "agent":
                children = subprocess.run(
                    ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
                ).stdout.split()
                pid = int(children[0]) if children else None
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
    return what


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    draw = random.Random(options.seed)
    folder = tempfile.mkdtemp(prefix="baton-soak-", dir="/tmp")
    crew = Crew(folder)
    killed: Counter[str] = Counter()
    registered = 0
    looks: list[Look] = []
    try:
        crew.keep()
        began = time.monotonic()
        end = began + options.minutes * 60
        calm = began + options.minutes * 40
        look_at = [began + SETTLE_SEC, calm + SETTLE_SEC]
        next_trouble = began + 5
        told = 0.0
        while time.monotonic() < end:
            crew.keep()
            pending = int(json.loads(crew.baton("registry", "stats", "--json") or '{"pending": 9}').get("pending", 9))
            for _ in range(max(0, 6 - pending)):
                script = draw.choice(SCRIPTS).replace("{number}", str(registered))
                expected = [] if "exit" in script else ["--expect", f"out-{registered}"]
                crew.baton("register", script, "--agent", "shell", "--max-attempts", "3", *expected)
                registered += 1
            if look_at and time.monotonic() > look_at[0]:
                look_at.pop(0)
                looks.append(Look(crew))
            if time.monotonic() > next_trouble:
                killed[trouble(crew, draw, EVERYBODY if time.monotonic() < calm else AGENTS)] += 1
                next_trouble = time.monotonic() + draw.uniform(2, 8)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(
                    f"{(end - told) / 60:4.0f} min left, {registered} jobs, {sum(killed.values())} kills",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(0.5)  # the pace of looking
        looks.append(Look(crew))
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            crew.keep()
            stats = json.loads(crew.baton("registry", "stats", "--json"))
            if not stats.get("pending") and not stats.get("running") and not stats.get("unsent"):
                break
            time.sleep(1)  # the pace of asking
    finally:
        crew.end()
    for _ in range(10):
        left = marked(folder)
        if not left:
            break
        time.sleep(0.5)  # what was ended needs a moment
    stats = json.loads(crew.baton("registry", "stats", "--json"))
    open_jobs = stats.get("pending", 0) + stats.get("running", 0)
    died = sum(count - 1 - killed[name] for name, count in crew.started.items())
    print(f"{registered} jobs: " + ", ".join(f"{name} {count}" for name, count in stats.items() if name != "registry"))
    print("killed: " + ", ".join(f"{name} {count}" for name, count in sorted(killed.items())))
    print(f"at the start, after {options.minutes * 2 / 3:.3g} min, and at the end:")
    for name in ("worker", "monitor", "listener", "broker"):
        print(f"  {name}: " + "; ".join(look.words(name) for look in looks))
    print("  processes in sessions: " + "; ".join(str(look.processes) for look in looks))
    grown = [name for name in looks[-1].sizes if looks[-1].has_grown_since(looks[-2], name)] if len(looks) == 3 else []
    lost = registered - sum(stats[status] for status in ("pending", "running", "completed", "error", "cancelled"))
    held = lost == open_jobs == stats["unsent"] == left == died == 0 and not grown
    print(
        f"soak: {options.minutes:g} min, {lost} jobs lost, {open_jobs} without an end, {left} processes left, {len(grown)} grown, "
        f"{died} died unasked"
        f" ({'held' if held else 'broken'})  [--seed {options.seed}]"
    )
    if held:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"kept: {folder}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
