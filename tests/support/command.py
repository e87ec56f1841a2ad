"""The installed `baton` command, as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

BATON = os.path.join(os.path.dirname(sys.executable), "baton")


def interruptible() -> None:
    """For Popen's preexec_fn: whoever runs the tests in the background may have taught them to ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Result:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def text(self) -> str:
        return self.out.strip()

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\nstdout: {self.out}\nstderr: {self.err}"


class Baton:
    """Runs the command in one folder, with an environment of its own."""

    def __init__(self, folder, **env: str) -> None:
        self.folder = folder
        self.program = BATON
        self.prefix: list[str] = []  # what runs the command, for another network for example
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"} | env

    def __call__(self, *arguments: str, code: int | None = 0, stdin: str | bytes = "", **env: str) -> Result:
        done = subprocess.run(
            [*self.prefix, self.program, *arguments],
            cwd=self.folder,
            env=self.env | env,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        result = Result(
            subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        )
        if code is not None:
            assert result.code == code, result
        return result

    def refused(self, *arguments: str, code: int | None = 1, **more) -> str:
        """The one line that a refusal prints. `code` None: it may be the value, or what it names."""
        result = self(*arguments, code=code, **more)
        assert code is not None or result.code in (1, 64), result
        assert result.out == "", result
        assert result.err.startswith("baton: "), result
        assert result.err.count("\n") == 1, result
        return result.err
