"""Ways by which a process of an agent leaves what baton sees above it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from support.office import Office

CLEAN = 'env -i PATH="$PATH" HOME="$HOME"'
AS_ITSELF = "" if os.geteuid() == 0 else "-c"  # an ordinary user needs a user namespace for the others
# Command lines; {call} is the command that runs there.
NAMESPACES = {
    "user and process": f"{CLEAN} unshare -Urpf --mount-proc {{call}}",
    "process": f"{CLEAN} unshare {AS_ITSELF} -pf --mount-proc {{call}}",
    "same_user": f"{CLEAN} unshare -c -pf --mount-proc {{call}}",
    "all": f"{CLEAN} unshare -c -mpfiun --mount-proc {{call}}",
    "user": f"{CLEAN} unshare -c {{call}}",
    "twice": f"{CLEAN} unshare -c -pf --mount-proc unshare -c -pf --mount-proc {{call}}",
    "in the background": f"{CLEAN} setsid --fork unshare -c -pf --mount-proc {{call}}",
}


class OwnTmux:
    """A tmux server as a person has one, which baton did not start; called, it runs a command of tmux."""

    def __init__(self, office: Office) -> None:
        self.socket = os.path.join(os.path.dirname(office.socket), "own")
        self._office = office

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", os.devnull, "-S", self.socket, *words], cwd=self._office.folder, env=self._office.env,
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        return done.stdout

    def __enter__(self) -> Self:
        self("new-session", "-d", "-s", "me", "-x", "150", "-y", "40", "sh")
        return self

    def __exit__(self, *_: object) -> None:
        self("kill-server")
