"""Write the homes in `homes-of-0.1.0` with a 0.1.0 installation. The tests only read the result.

    git worktree add /tmp/baton-0.1.0 0717771 && make -C /tmp/baton-0.1.0 .venv/.dev-installed
    .venv/bin/python tests/data/make_homes.py /tmp/baton-0.1.0/.venv

Every byte of a home comes from the 0.1.0 program (commit 0717771), from real tmux sessions and a real broker. The
exceptions are the records of another tool: two in the form of the seeds, and one field that baton does not know.

Everything happens in /tmp/project-a, on a host named host-a, so that no path and no name of the machine is stored. The
program runs in a virtual environment there, whose `sitecustomize` (NEUTRAL) replaces two values in every process:
signing keys say that they are no secrets, and the boot id is a constant. The program uses both as its own, so
signatures and audit chains are valid. Process ids and times are real.

The homes are taken after a power cut: all processes are killed while one session runs a job. The stored copy leaves out
the home's `.gitignore`, which would hide the home from git, and the local broker. The expected values beside each home
are what 0.1.0 prints about it.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TESTS)

from support.postgres import PostgresServer, _bin_dir  # noqa: E402

STORED = os.path.join(TESTS, "data", "homes-of-0.1.0")
PROJECT = "/tmp/project-a"
HOME = f"{PROJECT}/.hermes"
STATE = f"{PROJECT}/state"
SOCKET = f"{PROJECT}/run/tmux-{os.getuid()}/baton"
YEARS = str(9 * 366 * 86400)  # longer than the tests are likely to be run
NOWHERE = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "1"}

NEUTRAL = """
import os
import baton.clock
import baton.model

baton.model.new_token = lambda: "not-a-secret-" * 3 + os.urandom(2).hex()
baton.clock.SystemClock.boot_id = lambda self: "00000000-0000-4000-8000-000000000000"
"""
SEED = {
    "schema_version": 1,
    "job_id": "5eed0001",
    "status": "pending",
    "created_at": "2026-06-19T09:30:00Z",
    "updated_at": "2026-06-19T09:30:00Z",
    "prompt": "정렬 문제 10개를 만들어 sort_problems.md로 저장",
    "agent": "claude-code",
    "agent_session": "tmux:claude",
    "broker": {"host": "127.0.0.1", "port": 1, "tls": False, "username": None, "password": None},
    "topic_prefix": "python/mqtt/jobs/5eed0001",
    "timeout_sec": 3600,
    "idle_timeout_sec": 120,
    "expected_artifacts": ["sort_problems.md"],
    "last_seq": 0,
    "auth_token": None,
}
RUNNING_SEED = SEED | {
    "job_id": "5eed0002",
    "status": "running",
    "updated_at": "2026-06-19T09:32:00Z",
    "topic_prefix": "python/mqtt/jobs/5eed0002",
    "timeout_sec": int(YEARS),
    "idle_timeout_sec": int(YEARS),
}
UNKNOWN = {"ticket": {"number": 7, "tags": ["a", None, 1.5]}, "reviewer": "정"}


class Program:
    """The 0.1.0 program, in the project folder."""

    def __init__(self, venv: str, **env: str) -> None:
        self.python = f"{PROJECT}/venv/bin/python"
        self.env = {
            "PATH": "/usr/bin:/bin",
            "HOME": f"{PROJECT}/user",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/sh",
            "PS1": "$ ",
            "ENV": "",
            "TMUX_TMPDIR": f"{PROJECT}/run",
            "BATON_HOST": "host-a",
            "BATON_STATE_DIR": STATE,
        } | env
        shutil.rmtree(PROJECT, ignore_errors=True)
        for name in ("user", "run"):
            os.makedirs(f"{PROJECT}/{name}", mode=0o700)
        # A virtual environment of its own, because runners in tmux do not get PYTHONPATH.
        subprocess.run([f"{venv}/bin/python", "-m", "venv", "--without-pip", f"{PROJECT}/venv"], check=True)
        (own,) = glob.glob(f"{PROJECT}/venv/lib/python3*/site-packages")
        (given,) = glob.glob(f"{os.path.abspath(venv)}/lib/python3*/site-packages")
        os.symlink(os.path.abspath(f"{venv}/bin/nats-server"), f"{PROJECT}/venv/bin/nats-server")
        with open(f"{own}/baton.pth", "w") as file:
            file.write(f"import site; site.addsitedir({given!r})\n")
        with open(f"{own}/sitecustomize.py", "w") as file:
            file.write(NEUTRAL)

    def __call__(self, *arguments: str, code: int = 0, **env: str) -> str:
        return self._run("-m", "baton", *arguments, code=code, **env)

    def script(self, text: str, *arguments: str) -> str:
        return self._run("-c", f"import baton, json, sys\n{text}", *arguments)

    def _run(self, *arguments: str, code: int = 0, **env: str) -> str:
        done = subprocess.run(
            [self.python, *arguments],
            cwd=PROJECT,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != code:
            raise RuntimeError(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self.python, "-m", "baton", *arguments], cwd=PROJECT, env=self.env)

    def cut_the_power(self) -> None:
        """Kill all processes of the project, stopped first, so that none reacts to the end of another."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        ours = f"HOME={PROJECT}/user".encode() in file.read().split(b"\0")
                    if ours:
                        os.kill(int(pid), number)
                except OSError:
                    continue
        time.sleep(0.5)


def register(baton: Program, case: str, *more: str, queue: str | None = None) -> str:
    return baton(
        "register", f"echo {case}", "--agent", "shell", "--agent-session", queue or f"queue of {case}",
        "--label", case, "--timeout", YEARS, "--idle-timeout", YEARS, *more,
    )  # fmt: skip


def register_without_workdir(baton: Program, case: str, queue: str, **fields: object) -> str:
    values = {"agent": "shell", "agent_session": queue, "labels": [case, "docs"], "timeout_sec": int(YEARS)} | fields
    values["idle_timeout_sec"] = int(YEARS)
    text = "print(baton.register_job('write 정렬 é\\nresult.md', **json.loads(sys.argv[1])).job_id)"
    return baton.script(text, json.dumps(values))


def pick(baton: Program, case: str, *more: str) -> None:
    baton("pick", "--agent-session", f"queue of {case}", *more)


def publish(baton: Program, job: str, event: str, *more: str, unsent: bool = False, code: int = 0) -> None:
    extra = ("--attempts", "1") if unsent else ("--require-broker",)
    baton("publish", job, "--event", event, "--detail", f"{event} é", *extra, *more, code=code,
          **NOWHERE if unsent else {})  # fmt: skip


def adopt_records(baton: Program, url: str) -> None:
    """Put the records of another tool into an empty registry: into its folder, or by migration. The SQLite one is moved
    into its place, because a migration would leave a note there."""
    folder = url.removeprefix("file:") if url.startswith("file:") else f"{PROJECT}/earlier"
    os.makedirs(folder, mode=0o700)
    for record in (SEED, RUNNING_SEED):
        with open(f"{folder}/{record['job_id']}.json", "w", encoding="utf-8") as file:
            json.dump(record, file, ensure_ascii=False, indent=2)
    job = register(baton, "unknown fields", "--registry", f"file:{folder}")
    with open(f"{folder}/{job}.json", encoding="utf-8") as file:
        record = json.load(file)
    with open(f"{folder}/{job}.json", "w", encoding="utf-8") as file:
        json.dump(record | UNKNOWN, file, ensure_ascii=False, indent=2)
    if url.startswith("postgresql:"):
        baton("registry", "migrate", "--registry", f"file:{folder}", "--to", url)
    elif url.startswith("sqlite:"):
        baton("registry", "migrate", "--registry", f"file:{folder}", "--to", f"sqlite:{PROJECT}/other/registry.db")
        os.makedirs(f"{HOME}/jobs", mode=0o700)
        os.rename(f"{PROJECT}/other/registry.db", url.removeprefix("sqlite:"))


def make_jobs(baton: Program) -> None:
    """Jobs in every state, with events that were sent."""
    register(baton, "pending", "--max-attempts", "3", queue="tmux:shell")
    register_without_workdir(
        baton, "pending first", "tmux:shell", priority=5, max_attempts=2, expected_artifacts=["result.md", "out"],
        validate="grep -q done result.md",
    )  # fmt: skip
    login = {"host": "127.0.0.1", "port": 1, "tls": False, "username": "worker", "password": "not-a-secret", "site": 2}
    register_without_workdir(baton, "broker with a login", "tmux:other", broker=login)

    job = register(baton, "running")
    pick(baton, "running")
    publish(baton, job, "started")
    publish(baton, job, "progress", "--data", "percent=50", "--data", "step=é")

    job = register(baton, "running with a lease", "--max-attempts", "3")
    pick(baton, "running with a lease", "--lease", "60")
    publish(baton, job, "started", "--attempt", "1")
    baton.script("baton.renew_lease(sys.argv[1], attempt=1, lease_sec=60)", job)

    job = register_without_workdir(
        baton, "running, attempt 2", "queue of running, attempt 2", max_attempts=3, expected_artifacts=["result.md"]
    )
    pick(baton, "running, attempt 2", "--lease", "60")
    publish(baton, job, "started")
    baton("release", job, "--attempt", "1", "--reason", "try again")
    pick(baton, "running, attempt 2")
    publish(baton, job, "started", "--attempt", "2")

    job = register(baton, "requeued", "--max-attempts", "3")
    pick(baton, "requeued")
    publish(baton, job, "started")
    publish(baton, job, "progress")
    baton("release", job)

    job = register(baton, "requeued twice", "--max-attempts", "5")
    pick(baton, "requeued twice", "--lease", "0.1")
    time.sleep(0.2)
    baton("registry", "rescue")
    pick(baton, "requeued twice")
    publish(baton, job, "started")
    baton("release", job)

    job = register(baton, "completed", "--expect", "report.md", "--validate", "grep -q done report.md")
    pick(baton, "completed")
    publish(baton, job, "started")
    publish(baton, job, "completed", code=1)
    with open(f"{PROJECT}/report.md", "w") as file:
        file.write("done\n")
    publish(baton, job, "completed", "--data", "files=1")
    baton("subscribe", job)

    job = register(baton, "completed without verification", "--expect", "nothing.md")
    publish(baton, job, "completed", "--no-verify")

    baton("cancel", register(baton, "cancelled"))
    job = register(baton, "cancelled while running")
    pick(baton, "cancelled while running")
    publish(baton, job, "started")
    baton("cancel", job)


def make_unsent(baton: Program) -> None:
    """Events that no broker has acknowledged."""
    jobs = {label: job["job_id"] for job in json.loads(baton("list", "--json")) for label in job["labels"]}
    publish(baton, jobs["running"], "permission_required", unsent=True)
    publish(baton, jobs["running, attempt 2"], "progress", "--attempt", "2", unsent=True)
    publish(baton, jobs["submitted, running"], "progress", "--attempt", "1", unsent=True)
    job = register(baton, "error")
    publish(baton, job, "started", unsent=True)
    publish(baton, job, "progress", unsent=True)
    publish(baton, job, "error", unsent=True)
    register(baton, "error without attempts left")
    pick(baton, "error without attempts left", "--lease", "0.1")
    time.sleep(0.2)
    baton("registry", "rescue")


def make_sessions(baton: Program) -> subprocess.Popen[bytes]:
    """A session in every state, and a `submit` that has started one of its two jobs."""
    for name in ("stopped", "killed", "lent"):
        baton("session", "create", name, "--agent", "shell")
    baton("submit", "echo in a session", "--session", "stopped", "--timeout", "60")
    baton("session", "send", "stopped", "echo on the screen")
    time.sleep(0.5)
    baton("session", "stop", "stopped", "--reason", "end of the day")
    baton("session", "stop", "killed", "--mode", "hard")
    baton("session", "stop", "lent", "--mode", "soft", "--reason", "somebody types in it")
    baton("agent", "publish", "reviewer", "--session", "lent", "--tmux-socket", SOCKET, "--tool", "shell",
          "--lease", "3285d")  # fmt: skip
    baton("submit", "echo alone", "--agent", "shell")
    with open(f"{PROJECT}/batch", "w") as file:
        for case in ("submitted, running", "submitted, pending"):
            line = {"prompt": "sleep 600", "agent": "shell", "labels": [case], "max_attempts": 2}
            file.write(json.dumps(line) + "\n")
    submit = baton.start("submit", "--batch", f"{PROJECT}/batch", "--parallel", "1")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        jobs = {label: job for job in json.loads(baton("list", "--json")) for label in job["labels"]}
        if "submitted, running" in jobs and jobs["submitted, running"]["last_seq"]:
            time.sleep(0.5)  # until its event is marked as sent
            return submit
    raise RuntimeError("the submitted job did not start")


EXPECTED = """
def events(job_id):
    return [
        {"seq": each.seq, "attempt": each.attempt, "event": each.event, "payload": each.payload.decode(),
         "sent": each.sent}
        for each in baton.events_after(job_id)
    ]

print(json.dumps({job.job_id: events(job.job_id) for job in baton.list_jobs(limit=1000)}))
"""


def expected(baton: Program) -> dict[str, object]:
    agents = json.loads(baton("agent", "list", "--json"))
    return {
        "jobs": json.loads(baton("list", "--json", "--show-secrets")),
        "events": json.loads(baton.script(EXPECTED)),
        "sessions": json.loads(baton("session", "list", "--all", "--json")),
        "agents": {each["record"]["agent_name"]: each["record"] for each in agents},
    }


def store(baton: Program, name: str) -> None:
    """Copy the home as it lies there, and what 0.1.0 says about it."""
    shown = expected(baton)
    for database in (f"{HOME}/jobs/registry.db", f"{HOME}/agent-sessions.db"):
        if os.path.exists(database):
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    folder = os.path.join(STORED, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(f"{folder}/expected.json", "w", encoding="utf-8") as file:
        json.dump(shown, file, ensure_ascii=False, indent=1)
        file.write("\n")
    shutil.copytree(HOME, f"{folder}/home", ignore=shutil.ignore_patterns(".gitignore", "go"))
    if os.path.isdir(f"{STATE}/registry"):
        shutil.copytree(f"{STATE}/registry", f"{folder}/state/registry")
    if os.path.isdir(f"{STATE}/manifests"):
        shutil.copytree(f"{STATE}/manifests", f"{folder}/state/manifests")


def dump(server: PostgresServer) -> None:
    """Write both schemas as statements that any client can send: no COPY, no psql commands, no settings."""
    text = subprocess.run(
        [f"{_bin_dir()}/pg_dump", "--inserts", "--no-owner", "--no-privileges", "--schema=baton",
         "--schema=baton_directory", server.url],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    left_out = ("--", "SET ", "\\", "SELECT pg_catalog.set_config")
    lines = [line for line in text.splitlines() if line and not line.startswith(left_out)]
    with open(os.path.join(STORED, "postgresql", "registry.sql"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def make_home(venv: str, name: str, url: str) -> None:
    baton = Program(venv, **{"BATON_REGISTRY": url} if name == "postgresql" else {})
    try:
        adopt_records(baton, url)
        make_jobs(baton)
        submit = make_sessions(baton)
        baton("broker", "down")
        make_unsent(baton)
    finally:
        baton.cut_the_power()
    submit.wait()
    store(baton, name)


def make_moved_home(venv: str) -> None:
    """A registry that was migrated within its folder, with the note that it leaves."""
    baton = Program(venv)
    register(baton, "moved", queue="tmux:shell")
    job = register(baton, "moved and running")
    pick(baton, "moved and running", "--lease", "60")
    publish(baton, job, "started", unsent=True)
    baton("registry", "migrate", "--to", f"file:{HOME}/jobs")
    store(baton, "moved")


def main() -> None:
    if os.path.exists(PROJECT):
        raise SystemExit(f"{PROJECT} exists; move it away")
    venv = sys.argv[1]
    try:
        make_home(venv, "sqlite", f"sqlite:{HOME}/jobs/registry.db")
        make_home(venv, "file", f"file:{HOME}/jobs")
        server = PostgresServer()
        try:
            make_home(venv, "postgresql", server.url)
            dump(server)
        finally:
            server.remove()
        make_moved_home(venv)
    finally:
        shutil.rmtree(PROJECT, ignore_errors=True)


if __name__ == "__main__":
    main()
