"""How much memory a process has: VmRSS now, VmHWM at most so far."""

from __future__ import annotations


def memory_mb(field: str, pid: int | str = "self") -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024
