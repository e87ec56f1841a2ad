"""Turn the history of a job into a timeline: how long it was queued, each attempt, each wait for an answer, and what
the agent reported. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from baton.core.clock import parse_time
from baton.core.fields import one_line
from baton.core.value import Any

_MS_NS = 1_000_000
_LONGEST = 120
_MOST_MARKS = 300
_ENDS = frozenset({"completed", "error", "cancelled"})


def timeline(lines: Iterable[Mapping[str, Any]], now_ns: int) -> dict[str, Any]:
    """Return `spans` and `marks` of a history, each with times in milliseconds since 1970.

    A span has `kind` (queued, attempt, wait), `from`, `to` (null while it lasts) and `label`; a mark has `at` and
    `label`: a progress report of the agent, such as the tool that it uses."""
    drawn = _Timeline()
    for line in lines:
        drawn.add(line)
    until = now_ns // _MS_NS if drawn.goes_on else drawn.last
    return {"from": drawn.first, "to": until, "spans": drawn.spans, "marks": drawn.marks[-_MOST_MARKS:]}


class _Timeline:
    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.first: int | None = None
        self.last: int | None = None
        self._present: dict[str, Any] | None = None  # the queue or the attempt that lasts
        self._waits: dict[str, dict[str, Any]] = {}

    @property
    def goes_on(self) -> bool:
        return self._present is not None or bool(self._waits)

    def add(self, line: Mapping[str, Any]) -> None:
        try:
            at = parse_time(str(line.get("ts") or line.get("timestamp"))) // _MS_NS
        except ValueError:
            return  # a line of another tool
        self.first, self.last = at if self.first is None else self.first, at
        event = line.get("event")
        if event == "registered":
            self._present = self._begin("queued", at, "queued")
        elif event in ("status_changed", "requeued"):
            self._change(at, str(line.get("to")), line)
        elif event == "request_opened":
            wait = self._begin("wait", at, str(line.get("detail") or "a request"))
            self._waits[str(line.get("request_id"))] = wait
        elif event == "request_closed":
            self._close(at, line)
        elif event == "published" and isinstance(payload := line.get("payload"), dict):
            self._report(at, payload)

    def _begin(self, kind: str, at: int, label: str) -> dict[str, Any]:
        span = {"kind": kind, "from": at, "to": None, "label": one_line(label, _LONGEST)}
        self.spans.append(span)
        return span

    def _change(self, at: int, to: str, line: Mapping[str, Any]) -> None:
        for span in (*self._waits.values(), *([self._present] if self._present else [])):
            span["to"] = at
        self._waits, self._present = {}, None
        if to == "running":
            self._present = self._begin("attempt", at, f"attempt {line.get('attempt', '')}")
        elif to == "pending":
            self._present = self._begin("queued", at, f"queued again: {line.get('reason') or ''}")
        elif to in _ENDS:
            self.marks.append({"at": at, "label": to})

    def _close(self, at: int, line: Mapping[str, Any]) -> None:
        wait = self._waits.pop(str(line.get("request_id")), {})
        wait["to"] = at
        answer = line.get("answer") or line.get("state")
        wait["label"] = one_line(f"{wait.get('label', '')}: {answer}", 2 * _LONGEST)

    def _report(self, at: int, payload: Mapping[str, Any]) -> None:
        if payload.get("event") == "progress" and payload.get("detail"):
            self.marks.append({"at": at, "label": one_line(str(payload["detail"]), _LONGEST)})
