"""Run a baton command in a process of its own, which goes on when the client kills this server in the middle."""

from __future__ import annotations

import subprocess
import sys

from baton.core.errors import BatonError
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMEOUT_SEC = 120
_WHERE = ("home", "registry", "registry_dir")
_LINE = "--batch line 1: "  # of a job that stands in a batch of one


def run_detached(where: Mapping[str, Any], arguments: Sequence[str], text: str) -> tuple[str, list[str]]:
    """Run the command with this standard input. Return what it printed, and its notes for the user. BatonError with its
    message if it fails."""
    options = [part for name in _WHERE if where.get(name) for part in (f"--{name.replace('_', '-')}", where[name])]
    options += ["--allow-network-fs"] if where.get("allow_network_fs") else []
    # -P: Python must not import a folder named baton in the working directory.
    argv = [sys.executable, "-P", "-m", "baton", *arguments, *options]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        printed, said = process.communicate(text.encode(errors="replace"), timeout=_TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        raise BatonError(f"it goes on after {_TIMEOUT_SEC} s; call list later to see what became of it") from None
    lines = [line.removeprefix("baton: ") for line in said.decode(errors="replace").splitlines()]
    if process.returncode or not printed:
        why = lines[-1] if lines else f"the command ended with {process.returncode}"
        raise BatonError(why.removeprefix(_LINE))
    return printed.decode(), [line for line in lines if line.startswith(("note: ", "warning: "))]
