"""demo: run three agents, answer the question of one of them, merge its work, and remove everything again.

Each command is run as a user types it, in a temporary folder with a home, settings and a tmux server of its own.
"""

import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial

from baton.cli import demo_agent
from baton.cli import options as opt
from baton.cli.output import on_terminal, say
from baton.cli.parser import Options, Verb
from baton.cli.terminal import print_styled
from baton.core.errors import BatonError
from baton.core.job import TERMINAL
from baton.jobs.caller import refuse_inside_session
from baton.jobs.verbs import open_jobs
from baton.sessions.processes import end_processes, processes_with
from baton.sessions.tmux import Tmux
from baton.storage.homes import load_settings

_PATIENCE_SEC = 20.0
_COLUMNS = 79
_LEAST_GIT = (2, 38)
_FILES = {"greet.sh": 'echo "Helo, $1"\n', "test.sh": 'test "$(sh greet.sh baton)" = "Hello, baton"\n'}
_GIT_SETTINGS = {"user.name": "baton demo", "user.email": "demo@localhost", "init.defaultBranch": "main"}
# Variables of real work, which must not apply here.
_NOT_PASSED_ON = ("BATON_", "MQTT_", "DELEGATE_", "GIT_", "XDG_")
_NEXT = """Try next, the last one with Claude Code:

    baton submit --agent shell 'date > now.txt' --expect now.txt
    baton submit "Write a haiku into haiku.txt" --expect haiku.txt"""


def demo(options: Options) -> None:
    if options.acp:
        demo_agent.serve()
        return
    refuse_inside_session("demo, which answers a request,")
    Tmux("demo").check_version()
    folder = tempfile.mkdtemp(prefix="baton-demo-", dir="/tmp" if os.path.isdir("/tmp") else None)  # noqa: S108
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        _prepare(folder)
        _show(folder)
    finally:
        # A second Ctrl-C would interrupt the clean-up.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _clean_up(folder, keep=options.keep)


def _stop(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


# -- the folder --------------------------------------------------------------------------------------------------------


def _prepare(folder: str) -> None:
    """Make a home and a work folder, and let this process and its commands use nothing else of the user."""
    home, work = os.path.join(folder, "home"), os.path.join(folder, "work")
    config = os.path.join(home, ".config", "baton")
    os.makedirs(config)
    os.mkdir(work)
    packages = os.path.join(site.getuserbase(), "lib")
    if os.path.isdir(packages):  # Python finds what `pip install --user` installed by the home
        os.mkdir(os.path.join(home, ".local"))
        os.symlink(packages, os.path.join(home, ".local", "lib"))
    for name in [name for name in os.environ if name.startswith(_NOT_PASSED_ON)]:
        del os.environ[name]
    os.environ |= {"HOME": home, "TMPDIR": folder, "BATON_TMUX_SOCKET": os.path.join(folder, "tmux")}
    os.environ["GIT_PAGER"] = "cat"
    with open(os.path.join(config, "baton.toml"), "w", encoding="utf-8") as file:
        agent = [sys.executable, "-P", "-m", "baton", "demo", "--acp"]
        file.write(f"[agents.{demo_agent.NAME}]\nacp = {json.dumps(agent)}\n")
    os.chdir(work)
    for name, content in _FILES.items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(content)


def _make_repository() -> bool:
    """Make the current folder a git repository; return False without a git that baton can merge with."""
    if shutil.which("git") is None:
        return False
    version = re.findall(r"\d+", subprocess.run(["git", "version"], capture_output=True, text=True, check=True).stdout)
    if tuple(map(int, version[:2])) < _LEAST_GIT:
        return False
    settings = [["config", "--global", name, value] for name, value in _GIT_SETTINGS.items()]
    for words in (*settings, ["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Greet by name"]):
        subprocess.run(["git", *words], check=True)
    return True


def _clean_up(folder: str, *, keep: bool) -> None:
    """End every process of the demonstration: each has its home in the environment. Then remove the folder."""
    end_processes(partial(processes_with, "HOME", os.path.join(folder, "home")), grace_sec=0)
    if keep:
        say(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


# -- the commands ------------------------------------------------------------------------------------------------------


def _show(folder: str) -> None:
    """Run the commands. Raise BatonError if one does not end as it should."""
    began = time.monotonic()
    has_git = _make_repository()
    print(f"Everything here happens in {folder}, which is removed at the end.")
    print("You can type the same commands in a folder of your own.")
    if not has_git:
        print("git 2.38 or newer is not installed: the part with a worktree is left out.")

    _tell("Three agents start, each in its own tmux session:")
    worktree = ["--worktree"] if has_git else []
    task = ["--validate", "sh test.sh", "--title", "Fix the greeting", "Correct the word in greet.sh"]
    fixing = _start("--agent", demo_agent.NAME, *worktree, *task)
    claiming = _start("--agent", "shell", "--expect", "report.md", "echo all done")
    dying = _start("--agent", "shell", "sleep 1; kill -9 $PPID")

    _tell("The second says that it is done, but its report is missing. The third dies.")
    _run("wait", claiming, dying, code=1)

    request = _wait_for_request(fixing)
    _tell("The first asks for a permission. You see the exact call, and allow it:")
    _run("list")
    _run("requests", request)
    _run("approve", request)

    _tell("The agent goes on. The job counts as completed, because its test passes:")
    _run("wait", fixing)
    _run("result", fixing)
    if has_git:
        _tell("It worked in a git worktree of its own. You read the change, and merge it:")
        _run("diff", fixing, "--stat")
        _run("merge", fixing)
        _run("log", "--oneline", program="git")
    _run("greet.sh", "baton", program="sh")

    _tell("Everything is in the audit logs, which show when a line was changed:")
    _run("logs", fixing, claiming, dying, "--verify")
    print(f"\nThis took {time.monotonic() - began:.1f} s. {_NEXT}")


def _tell(text: str) -> None:
    print(f"\n{text}\n")


def _start(*arguments: str) -> str:
    """Submit a job, and return its id."""
    words = ["submit", "--detach", *arguments]
    _show_command("baton", words)
    done = subprocess.run(_argv("baton", words), capture_output=True, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode:  # else it says how to wait
        say(done.stderr)
    _check("baton", words, done.returncode, 0)
    return done.stdout.strip()


def _run(*words: str, program: str = "baton", code: int = 0) -> None:
    """Run a command of the user, with its output on the terminal."""
    _show_command(program, words)
    _check(program, words, subprocess.run(_argv(program, words), check=False).returncode, code)


def _argv(program: str, words: Sequence[str]) -> list[str]:
    return [*([sys.executable, "-P", "-m", "baton"] if program == "baton" else [program]), *words]


def _check(program: str, words: Sequence[str], code: int, wanted: int) -> None:
    if code != wanted:
        raise BatonError(
            f"`{program} {words[0]}` ended with exit code {code}, not {wanted}; `baton doctor` may know why"
        )


def _show_command(program: str, words: Sequence[str]) -> None:
    """Print a command as a user types it, on several lines if it is long."""
    lines = [f"$ {program}"]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) + 3 > _COLUMNS:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    if on_terminal():
        print_styled([[(line, "1")] for line in lines])
    else:
        print(*lines, sep="\n", flush=True)


def _wait_for_request(job_id: str) -> str:
    """Return the id of the request of a job, once its agent has asked."""
    deadline = time.monotonic() + _PATIENCE_SEC
    with open_jobs(load_settings()) as jobs:
        while time.monotonic() < deadline:
            for request in jobs.registry.list_requests(open_only=True, limit=1):
                return request.request_id
            job = jobs.get_job(job_id)
            if job.status in TERMINAL:
                raise BatonError(f"job {job_id} ended before its agent asked: {job.reason}")
            time.sleep(0.05)
    raise BatonError(f"the agent of job {job_id} has asked nothing for {_PATIENCE_SEC:.0f} s")


VERBS = (Verb("demo", (opt.KEEP, opt.AS_AGENT), demo, reads_settings=False),)
