"""Write the tabs of the selected job as lines, and what an action is about to do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from baton.board import details
from baton.board.actions import Shown
from baton.board.looks import age, clean_line, clean_lines
from baton.board.query import Board, Card
from baton.board.text_view import Line
from baton.core.clock import SECOND_NS, duration_text, parse_time
from baton.core.errors import BatonError
from baton.core.fields import UNEXPECTED_SHAPE
from baton.core.job import TERMINAL, Status
from baton.core.outline import run_text
from baton.core.request import Request, RequestKind

Tab = Literal["screen", "request", "history", "explain", "result", "diff"]
TABS: tuple[Tab, ...] = ("screen", "request", "history", "explain", "result", "diff")
# How old a tab may be that has not changed in the registry.
_EACH_SEC = {"screen": 1.0, "explain": 2.0, "diff": 10.0}
_LONGEST_TITLE = 2000
_LONGEST_PROMPT = 20_000
_LONGEST_MESSAGE = 200_000
_LINE_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_ASKS = {"tool": "wants to use", "plan": "wants its plan approved", "question": "asks", "budget": "has used its budget"}


class Page(NamedTuple):
    """One tab of one job. `asked` is the request that keys answer, as it is shown. `follow`: its end matters most."""

    key: str
    tab: Tab
    lines: Sequence[Line]
    request: Request | None = None
    asked: Shown | None = None
    follow: bool = False


class TabReader:
    """Reads the tab of the selected job, again only when it may be another."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._page: Page | None = None
        self._revision = -1
        self._read_at = 0.0

    def read(self, key: str, tab: Tab) -> Page:
        """Return the tab of a job as it is now."""
        card = self._board.get(key)
        now = time.monotonic()
        is_same = self._page is not None and (key, tab, card.revision) == (
            self._page.key,
            self._page.tab,
            self._revision,
        )
        if self._page is None or not is_same or now - self._read_at >= _EACH_SEC.get(tab, float("inf")):
            self._page, self._revision, self._read_at = self._read(card, tab), card.revision, now
        return self._page

    def _read(self, card: Card, tab: Tab) -> Page:
        try:
            if tab == "request":
                return request_page(card)
            settings = self._board.settings_for(card.key)
            lines = _READ[tab](settings, card)
        except (BatonError, OSError) as error:
            lines = [(clean_line(str(error)), "dim")]
        except UNEXPECTED_SHAPE as error:  # a file of the home that another program has written
            lines = [(clean_line(f"this cannot be shown: a file of the home is not valid ({error})"), "dim")]
        return Page(card.key, tab, lines, follow=tab in ("screen", "history"))


def first_tab(card: Card) -> Tab:
    """Return the tab that a job is shown in first."""
    if card.requests:
        return "request"
    return "result" if card.job.status in TERMINAL else "screen"


# -- requests ----------------------------------------------------------------------------------------------------------


def request_page(card: Card) -> Page:
    """Return the oldest open request of a job, with its whole call."""
    if not card.requests:
        return Page(card.key, "request", [("this job asks nothing", "dim")])
    request = card.requests[0]
    lines = [*request_lines(card), ("", ""), (_keys(request), "bold")]
    return Page(card.key, "request", lines, request, as_shown(request))


def as_shown(request: Request) -> Shown:
    return Shown(request.request_id, details.describe_request(request)["text_sha256"])


def request_lines(card: Card) -> list[Line]:
    """Return the oldest request of a job: who asks, and everything that an answer is for."""
    request = card.requests[0]
    more = f" (1 of {len(card.requests)})" if len(card.requests) > 1 else ""
    head = f"{card.job.agent} {_ASKS[request.kind.value]}{more}:"
    return [
        (clean_line(head), "bold yellow"),
        *((f"  {line}", "") for line in details.request_text(request).split("\n")),
    ]


def _keys(request: Request) -> str:
    if request.screen_only:
        return "Enter attaches: the agent takes this answer at its own screen alone"
    if request.kind is RequestKind.QUESTION:
        return "1 to 9 chooses, a types an answer, n refuses to answer"
    return f"{'y' if request.exact else 'Y'} allows it, n denies it, N denies it with a reason"


def answers_lines(cards: Iterable[Card]) -> list[Line]:
    """Return the oldest request of each job with its whole call, for one look at all of them."""
    return [line for card in cards for line in (*job_lines([card]), *request_lines(card), ("", ""))]


def job_lines(cards: Iterable[Card]) -> list[Line]:
    """Return the jobs that an action is about."""
    lines: list[Line] = []
    for card in cards:
        about = f"{card.job_id}  {card.state}  {card.job.agent}  {card.title}"
        lines += [(clean_line(about, _LONGEST_TITLE), "bold"), (f"  in {clean_line(card.folder)}", "dim")]
    return lines


# -- the other tabs ----------------------------------------------------------------------------------------------------


def _screen(settings: Any, card: Card) -> list[Line]:
    view = details.view(settings, card.job_id)
    note = [(view.note, "dim")] if view.note else []
    return [*note, *clean_lines(view.text.rstrip("\n"))] if view.text else note


def _history(settings: Any, card: Card) -> list[Line]:
    found: list[Line] = []
    for line in details.history(settings, card.job_id):
        payload: dict[str, Any] = line.get("payload") or {}
        words = [f"{line['from']} → {line['to']}"] if "from" in line and "to" in line else []
        words += [str(payload[name]) for name in ("event", "detail") if payload.get(name)]
        words += [
            str(line[name]) for name in ("detail", "reason", "state", "answer", "by", "via", "what") if line.get(name)
        ]
        moment = str(line.get("ts") or line.get("timestamp") or "?")[11:19]
        event = clean_line(str(line.get("event", "?")), 40)
        found.append((f"{clean_line(moment)}  {event:<16}  {clean_line('  '.join(words), 1000)}", ""))
    return found or [("no history", "dim")]


def _explain(settings: Any, card: Card) -> list[Line]:
    found, now_ns = details.explain(settings, card.job_id), time.time_ns()
    since = f" for {age(_moment(found['since'], now_ns), now_ns)}" if found["since"] else ""
    about = [
        ("state", f"{found['ending'] or found['state']}{since}, attempt {found['attempt']}"),
        ("agent", run_text(found)),
        ("cause", "" if found["ending"] else found["cause"]),
        ("rule", found["rule"]), ("note", found["note"]),
        *(("request", f"{each['request_id']}: {each['summary']}") for each in found["requests"]),
        *(("limit", _limit(each)) for each in found["limits"]),
        ("folder", card.folder), ("labels", ", ".join(card.job.labels)),
    ]  # fmt: skip
    lines: list[Line] = [(f"{name:<8}  {clean_line(str(text), 1000)}", "") for name, text in about if text]
    if found["facts"]:
        lines += [("", ""), ("what is known, how long, from where", "bold")]
    for fact in found["facts"]:
        how_long = "" if fact["age_sec"] is None else duration_text(int(fact["age_sec"] * SECOND_NS))
        value = fact["value"] if isinstance(fact["value"], str) else str(fact["value"])
        lines.append((clean_line(f"  {fact['fact']}: {value}  ({how_long}, {fact['source']})", 1000), ""))
    prompt = clean_lines(card.job.prompt[:_LONGEST_PROMPT])
    return [*lines, ("", ""), ("prompt", "bold"), *((f"  {text}", style) for text, style in prompt)]


def _moment(text: object, now_ns: int) -> int:
    try:
        return parse_time(str(text))
    except ValueError:
        return now_ns  # a file of the home that another program has written


def _limit(each: dict[str, Any]) -> str:
    if each["sec"] is None:
        return f"no {each['limit']}"
    left = "" if each["left_sec"] is None else f", {duration_text(int(each['left_sec'] * SECOND_NS))} left"
    return f"{each['limit']} {each['sec']} s: {each['clock']}{left}"


def _file(each: dict[str, Any]) -> str:
    size = each.get("size")
    return f"{each.get('path')}, {'missing here, or a folder' if size is None else f'{size} bytes'}"


def _result(settings: Any, card: Card) -> list[Line]:
    found = details.result(settings, card.job_id)
    if found is None:
        return [("the job has not ended yet", "dim")]
    about = [
        ("outcome", found["ending"]),
        ("reason", found.get("reason") if found["status"] == Status.ERROR else None),
        ("ended by", found.get("ended_by")),
        *(("file", _file(each)) for each in found.get("artifacts") or ()),
    ]  # fmt: skip
    lines: list[Line] = [(f"{name:<8}  {clean_line(str(text), 1000)}", "") for name, text in about if text]
    message = str(found.get("message") or "")
    shown = clean_lines(message[:_LONGEST_MESSAGE].rstrip("\n")) if message else _screen(settings, card)
    return [*lines, ("", ""), *shown]


def _diff(settings: Any, card: Card) -> list[Line]:
    text = details.diff(settings, card.job_id)
    return [(line, _LINE_COLOURS.get(line[:1], "")) for line, _ in clean_lines(text.rstrip("\n"))] or [
        ("no changes", "dim")
    ]


_READ = {"screen": _screen, "history": _history, "explain": _explain, "result": _result, "diff": _diff}
