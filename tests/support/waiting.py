"""Wait for a condition, never for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], what: str = "", seconds: float = 40.0, *, interval_sec: float = 0.02
) -> Found:
    """Return the value of the condition as soon as it is true; fail when it is not true in time."""
    found = poll(condition, seconds, interval_sec=interval_sec)
    assert found, f"not within {seconds:g} s: {what or condition}"
    return found


def poll(condition: Callable[[], Found], seconds: float, *, interval_sec: float = 0.02) -> Found:
    """Return the value of the condition as soon as it is true, or its last value when the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(interval_sec)
    return found
