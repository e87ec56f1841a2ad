"""Record the calls of chosen functions in every baton process that a test starts."""

from __future__ import annotations

import os
from typing import NamedTuple

import baton

ROOT = os.path.dirname(baton.__file__)

# Python runs sitecustomize at its start, in every process that inherits PYTHONPATH.
_SITECUSTOMIZE = """
import os, sys, threading, time
path = os.environ.get("TRACE_FILE")
if path:
    wanted = frozenset(os.environ["TRACE_FUNCTIONS"].split())
    root = os.environ["TRACE_ROOT"] + "/"
    names = {}
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(frame, event, _argument):
        if event != "call":
            return
        code = frame.f_code
        if code not in names:
            file = code.co_filename
            module = file[len(root):].removesuffix(".py").replace("/", ".") if file.startswith(root) else ""
            name = f"{module}.{code.co_qualname}"
            names[code] = name if name in wanted else None
        if names[code]:
            os.write(out, f"{time.monotonic_ns()} {os.getpid()} {names[code]}\\n".encode())

    sys.setprofile(note)
    threading.setprofile(note)
"""


class Call(NamedTuple):
    at_ns: int
    pid: int
    function: str


class Trace:
    """`env` makes a process record its calls of these functions, such as `jobs.report.report`."""

    def __init__(self, folder: str, functions: list[str]) -> None:
        site = os.path.join(folder, "site")
        os.makedirs(site)
        with open(os.path.join(site, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write(_SITECUSTOMIZE)
        self._path = os.path.join(folder, "trace")
        self.env = {
            "PYTHONPATH": site,
            "TRACE_FILE": self._path,
            "TRACE_FUNCTIONS": " ".join(functions),
            "TRACE_ROOT": ROOT,
        }

    def calls(self) -> list[Call]:
        """The calls so far, in the order of their time."""
        with open(self._path, encoding="utf-8") as file:
            lines = [line.split() for line in file]
        return sorted(Call(int(at), int(pid), function) for at, pid, function in lines)
