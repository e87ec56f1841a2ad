"""A tmux server of one test alone, on its own socket, with nobody's configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile


class TmuxServer:
    def __init__(self) -> None:
        # A socket's path must be short; pytest's folders are not.
        self.folder = tempfile.mkdtemp(prefix="baton-tmux-", dir="/tmp")
        self.socket = os.path.join(self.folder, "s")

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self.socket, *arguments],
            capture_output=True, text=True, check=True, timeout=20, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout.strip()

    def start(self, name: str, *command: str) -> int:
        """A session that lives until it is killed; returns the pid of its pane."""
        argv = command or ("sleep", "600")
        return int(self("new-session", "-d", "-P", "-F", "#{pane_pid}", "-s", name, *argv))

    def end(self, name: str) -> None:
        self("kill-session", "-t", f"={name}")

    def remove(self) -> None:
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, check=False, timeout=20)
        shutil.rmtree(self.folder, ignore_errors=True)
