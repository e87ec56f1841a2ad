"""Commands under strace, each in a process of its own: how each ended, and which of its system calls had an effect."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

HANGS_SEC = 20.0  # the machine may be busy; what hangs does so for ever
CALLS = (
    "execve,connect,openat,open,creat,mkdir,mkdirat,mknod,mknodat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,"
    "linkat,symlink,symlinkat,chmod,fchmodat,chown,fchownat,lchown,truncate,utimensat,setxattr,clone,clone3,vfork,fork"
)
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")


def traced(at, commands: dict[str, list[str]], *, installed: bool) -> dict[str, dict]:
    """Run the commands in the folder under strace, each in a process of its own; return how each ended and which of its
    system calls ran a program, connected, or wrote outside of the user's state."""
    traces = os.path.join(at.base, "traces")
    os.makedirs(traces, exist_ok=True)
    order = {
        "commands": commands,
        "installed": os.path.join(os.path.dirname(sys.executable), "baton") if installed else None,
        "seconds": HANGS_SEC,
    }
    done = subprocess.run(
        ["strace", "-ff", "-qq", "-s", "4096", "-e", f"trace={CALLS}", "-o", os.path.join(traces, "t"),
         sys.executable, os.path.abspath(__file__)],
        cwd=at.folder, env=at.env, input=json.dumps(order), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    results = json.loads(done.stdout)
    for result in results.values():
        result["calls"] = list(_effects(traces, result["pid"], at.state, skipped=1 if installed else 0))
    return results


def _effects(traces: str, pid: int, state: str, *, skipped: int):
    """Yield the calls of a process, and of every process and thread that it started, that have an effect outside."""
    with open(os.path.join(traces, f"t.{pid}")) as file:
        lines = file.readlines()
    for line in lines:
        call = line.partition("(")[0]
        if " = -1 " in line:
            continue  # nothing has happened
        if call.startswith(("clone", "fork", "vfork")):
            yield from _effects(traces, int(line.rpartition("= ")[2].split()[0]), state, skipped=0)
        elif call == "execve" and skipped:
            skipped -= 1  # the installed command itself
        elif call in ("execve", "connect") or (call not in ("openat", "open") or WRITES.search(line)):
            paths = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
            inside = paths and all(path.startswith((state, "/dev/null", "/dev/tty")) for path in paths)
            if call in ("execve", "connect") or not inside:
                yield line.strip()


def _serve() -> None:
    """Run each command in a fork of this process, or as the installed command, and print how it ended."""
    order = json.load(sys.stdin)
    from baton.cli.main import VERBS, load_verb
    from baton.cli.main import run as run_command
    from baton.storage import adoption, homes, new_homes  # noqa: F401  loaded once, not in each fork

    for name in VERBS:
        load_verb(name)
    results = {}
    for name, arguments in order["commands"].items():
        pipes = [os.pipe(), os.pipe()]
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, (_, end) in enumerate(pipes, 1):
                os.dup2(end, number)
            os.closerange(3, 64)
            if order["installed"]:
                os.execv(order["installed"], [order["installed"], *arguments])
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            sys.argv = ["baton", *arguments]
            run_command()
        for _, end in pipes:
            os.close(end)
        code, seconds = _wait(pid, began, order["seconds"])
        texts = []
        for end, _ in pipes:
            with open(end, "rb") as file:
                texts.append(file.read().decode(errors="replace"))
        results[name] = {"pid": pid, "code": code, "seconds": seconds, "out": texts[0], "err": texts[1]}
    print(json.dumps(results))


def _wait(pid: int, began: float, limit_sec: float) -> tuple[int | None, float]:
    while time.monotonic() - began < limit_sec:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.monotonic() - began
        time.sleep(0.002)  # a child that ends sends no message
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None, limit_sec


if __name__ == "__main__":
    _serve()
