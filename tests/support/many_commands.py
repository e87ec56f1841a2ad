"""Many commands on terminals: one process loads the command line once, and forks a process for each command.

Standard output and standard error are two terminals, which pass every byte as it is.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from typing import NamedTuple, Self


class Shown(NamedTuple):
    """What a command has printed. `code` is None for one that had to be killed."""

    code: int | None
    out: str
    err: str


class ManyCommands:
    """For a `with` block. `env` is the whole environment of the commands."""

    def __init__(self, folder: str, env: dict[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()
        self._server.wait(20)
        self._server.stdout.close()

    def __call__(self, *arguments: str, seconds: float = 10.0, **env: str) -> Shown:
        order = {"arguments": arguments, "env": env, "seconds": seconds}
        self._server.stdin.write(json.dumps(order).encode() + b"\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Shown(answer["code"], *(bytes.fromhex(answer[name]).decode(errors="replace") for name in ("out", "err")))


def _serve() -> None:
    from baton.cli.main import VERBS, load_verb

    for name in VERBS:
        load_verb(name)
    folder = os.getcwd()
    for line in sys.stdin.buffer:
        os.chdir(folder)  # it may have been replaced
        print(json.dumps(_run(**json.loads(line))), flush=True)


def _run(arguments: list[str], env: dict[str, str], seconds: float) -> dict[str, object]:
    terminals = [pty.openpty() for _ in range(2)]
    child = os.fork()
    if not child:
        _become_the_command([slave for _, slave in terminals], arguments, env)
    shown = {}
    for master, slave in terminals:
        os.close(slave)
        shown[master] = b""
    deadline = time.monotonic() + seconds
    code = None
    open_ends = set(shown)
    while open_ends and (left := deadline - time.monotonic()) > 0:
        for master in select.select(list(open_ends), [], [], left)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:
                piece = b""  # every process that had it has ended
            shown[master] += piece
            if not piece:
                open_ends.discard(master)
    if open_ends:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for master in shown:
        os.close(master)
    out, err = (shown[master].hex() for master, _ in terminals)
    return {"code": code, "out": out, "err": err}


def _become_the_command(slaves: list[int], arguments: list[str], env: dict[str, str]) -> None:
    from baton.__main__ import run

    os.setsid()
    for number, slave in enumerate(slaves, 1):
        settings = termios.tcgetattr(slave)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        os.dup2(slave, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 64)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.update(env)
    sys.argv = ["baton", *arguments]
    try:
        run()
    except BaseException:  # as the interpreter does, but without leaving this function
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    _serve()
