"""The screen of the terminal board: the list, the selected job in tabs, and the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from baton.board.actions import Shown
from baton.board.answering import why_not_now, why_not_this_key, why_once_more
from baton.board.dialogs import Bar, Reading
from baton.board.head import Listed, head_line
from baton.board.help_text import help_lines, keys_line
from baton.board.job_list import JobList, Row, Rows
from baton.board.looks import clean_line
from baton.board.query import Board, Card
from baton.board.reader import Done, Reader
from baton.board.tabs import TABS, Page, Tab, TabReader, answers_lines, as_shown, first_tab, job_lines
from baton.board.text_view import Line, TextView
from baton.board.work import Work
from baton.core.awake_clock import FOREVER_SEC
from baton.core.job import TERMINAL
from baton.core.request import Request, RequestKind
from baton.sessions.attach import Client, run_attached

_LEAST_WIDTH, _LEAST_HEIGHT = 60, 15
_QUIT_SEC = 2.0
_EVIDENCE_SEC = 2.0  # after which it is known, as a rule, what became of an answer
_LOOK_SEC = 0.5  # how often the registries are asked whether something has changed


class _Found(NamedTuple):
    """What the board shows now. `cards` belong to `rows`, in the same order."""

    rows: Sequence[Row]
    cards: dict[str, Card]
    counts: dict[str, int]
    troubles: dict[str, str]


class BoardScreen(Screen[None]):
    """Shows what the reader found, and turns keys into work for it."""

    AUTO_FOCUS = ""  # keys belong to the board, until the user types a line
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)"),
        Binding("k,up", "move(-1)"),
        Binding("g,home", "go(0)"),
        Binding("G,end", "go(1000000)"),
        Binding("w", "next_need"),
        Binding("enter", "attach"),
        Binding("tab,right,l", "tab(1)"),
        Binding("shift+tab,left,h", "tab(-1)"),
        Binding("e", "open('explain')"),
        Binding("d", "open('diff')"),
        Binding("J,ctrl+e", "scroll(1)"),
        Binding("K,ctrl+y", "scroll(-1)"),
        Binding("pagedown,ctrl+d", "page(1)"),
        Binding("pageup,ctrl+u", "page(-1)"),
        Binding("space", "mark"),
        Binding("a", "type_answer"),
        Binding("N", "deny_with_reason"),
        Binding("m", "message"),
        Binding("c", "cancel"),
        Binding("r", "retry"),
        Binding("z", "snooze"),
        Binding("slash", "filter"),
        Binding("escape", "back"),
        Binding("question_mark", "help"),
        Binding("q,ctrl+c", "quit"),
    ]

    class Reported(Message):
        """The reader has finished a piece of work."""

        def __init__(self, done: Done) -> None:
            super().__init__()
            self.done = done

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._work = Work(board)
        self._board = board
        self._lines = Rows()
        self._tabs = TabReader(board)
        self._reader = Reader(self._look, self._report)
        self._found = _Found((), {}, {}, {})
        self._read: _Found | None = None  # by the thread of the reader, and so is what it has shown last
        self._served: tuple[tuple[str, Tab], Page] | None = None
        self._filter = ""
        self._tab: Tab = TABS[0]
        self._wanted: tuple[str, Tab] | None = None
        self._once_more: str | None = None  # the request whose key has to be pressed again: its default is no
        self._page: Page | None = None
        self._finish: Callable[[str], None] | None = None  # what becomes of the line that the user types

    def compose(self) -> ComposeResult:
        yield Bar(id="head")
        yield Bar(id="trouble")
        yield JobList(id="list")
        yield Bar(id="tabs")
        yield TextView(id="detail")
        yield Bar(id="message")
        yield Input(id="typing", select_on_focus=False)
        yield Bar(id="keys")
        yield Bar(id="small")

    def on_mount(self) -> None:
        self.list = self.query_one(JobList)
        self.detail = self.query_one("#detail", TextView)
        self.query_one(Input).cursor_blink = False
        self._look_soon()
        self.set_interval(_LOOK_SEC, self._look_soon)

    def on_unmount(self) -> None:
        self._reader.stop()

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < _LEAST_WIDTH or height < _LEAST_HEIGHT, "small")
        self.query_one("#keys", Bar).show_parts(*keys_line(width))
        needed = f"the board needs {_LEAST_WIDTH}x{_LEAST_HEIGHT}"
        self.query_one("#small", Bar).show_parts((f"too small ({width}x{height}): {needed}", "bold"))

    # -- what the reader finds -----------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        self._board.will_look_in(_LOOK_SEC)
        self._reader.look()

    def _look(self) -> None:
        """Read what has changed, and the selected job. The reader calls this in its thread."""
        board, before = self._board, self._read
        board.refresh()
        rows, troubles, wanted = self._lines.read(board), board.troubles, self._wanted
        if before is None or rows is not before.rows or troubles != before.troubles:
            self._read = _Found(rows, {card.key: card for card in board.cards}, board.counts, troubles)
            self._report(Done(self._show_found, self._read, None))
        if wanted is not None:
            page = self._tabs.read(*wanted)
            if self._served is None or self._served[0] is not wanted or self._served[1] is not page:
                self._served = wanted, page
                self._report(Done(self._show_page, page, None))

    def _report(self, done: Done) -> None:
        if done.result is not None or done.error is not None:
            self.post_message(self.Reported(done))

    def on_board_screen_reported(self, message: Reported) -> None:
        done = message.done
        if done.error is not None:
            self.tell(done.error)
        else:
            done.then(done.result)

    def _show_found(self, found: _Found) -> None:
        self._found = found
        self._show_troubles()
        self._filter_list()

    def _show_troubles(self) -> None:
        troubles = [f"{folder}: {why}" for folder, why in self._found.troubles.items()]
        bar = self.query_one("#trouble", Bar)
        bar.display = bool(troubles)
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        bar.show_parts(*((f" ! cannot see {clean_line(each)}{more}", "bold red") for each in troubles[:1]))

    def _filter_list(self) -> None:
        rows, words = self._found.rows, self._filter.lower().split()
        if words:
            rows = [row for row in rows if all(word in row.words for word in words)]
        self.list.show_rows(rows)
        self._show_head()
        self._show_tabs()

    def _show_head(self) -> None:
        rows = self.list.rows
        listed = Listed(self.list.place, len(rows), len(self._found.rows), len(self.list.marked), self._filter)
        self.query_one("#head", Bar).show_parts(*head_line(self._found.counts, listed, self.size.width))

    @property
    def _card(self) -> Card | None:
        """The selected job."""
        row = self.list.selected
        return None if row is None else self._found.cards.get(row.key)

    def on_job_list_moved(self) -> None:
        self._note_seen()
        self._show_head()
        card = self._card
        self._tab = TABS[0] if card is None else first_tab(card)
        self._want()

    def _note_seen(self) -> None:
        """Note that the user has seen the end of the job that was selected. It stays in its place until then."""
        page = self._page
        card = None if page is None else self._found.cards.get(page.key)
        if page is not None and page.tab == "result" and card is not None and not card.job.seen:
            self._reader.do(lambda: self._work.mark_seen(page.key), lambda _: None)

    def _want(self) -> None:
        """Let the reader show the selected job in the chosen tab, now."""
        row = self.list.selected
        self._wanted = None if row is None else (row.key, self._tab)
        if row is None:
            self.detail.show_lines(None, ())
        self._show_tabs()
        self._reader.look()

    def _show_tabs(self) -> None:
        card = self._card
        parts: list[Line] = []
        for tab in TABS if card is not None else ():
            count = len(card.requests) if card is not None and tab == "request" else 0
            name = f"{tab} ({count})" if count else tab
            style = "bold yellow" if count else ""
            parts.append((f"[{name}]", f"{style} bold reverse") if tab == self._tab else (f" {name} ", style))
        about = "" if card is None else f"─ {card.job_id} {card.title} "
        self.query_one("#tabs", Bar).show_parts(("─", "dim"), *parts, (about, ""), ("─" * self.size.width, "dim"))

    def _show_page(self, page: Page) -> None:
        if (page.key, page.tab) == self._wanted:  # otherwise the cursor has moved on
            self._page = page
            asked = None if page.request is None else page.request.request_id
            self.detail.show_lines((page.key, page.tab, asked), page.lines, follow=page.follow)

    def tell(self, text: str) -> None:
        """Say something to the user, until the next key."""
        self.query_one("#message", Bar).show_parts((f" {clean_line(text)}", "bold"))

    # -- moving --------------------------------------------------------------------------------------------------------

    def action_move(self, rows: int) -> None:
        self.list.move_to(self.list.place + rows)

    def action_go(self, place: int) -> None:
        self.list.move_to(place)

    def action_next_need(self) -> None:
        rows, here = self.list.rows, self.list.place
        order = [*range(here + 1, len(rows)), *range(min(here + 1, len(rows)))]
        place = next((each for each in order if rows[each].wants_user), None)
        if place is None:
            self.tell("no job needs you")
        else:
            self.list.move_to(place)

    def action_tab(self, steps: int) -> None:
        self.action_open(TABS[(TABS.index(self._tab) + steps) % len(TABS)])

    def action_open(self, tab: Tab) -> None:
        self._tab = tab
        self._want()

    def action_scroll(self, lines: int) -> None:
        self.detail.scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        self.action_scroll(pages * max(self.detail.size.height - 1, 1))

    def action_mark(self) -> None:
        self.list.mark()
        self._show_head()

    def action_help(self) -> None:
        self.app.push_screen(Reading("Keys of the board", help_lines()))

    def action_quit(self) -> None:
        self._note_seen()
        self._reader.do(lambda: True, lambda _: self.app.exit())  # after what is still to be done
        self.set_timer(_QUIT_SEC, self.app.exit)  # a store may not answer

    # -- typing a line -------------------------------------------------------------------------------------------------

    def _type(
        self, label: str, finish: Callable[[str], None], value: str = "", keys: str = "Enter sends, Escape goes back"
    ) -> None:
        """Let the user type a line in the place of the keys, and call `finish` with it."""
        self._finish = finish
        self.tell(f"{label} ({keys}):")
        line = self.query_one(Input)
        line.value, line.display, self.query_one("#keys").display = value, True, False
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._finish == self._set_filter:
            self._set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        finish = self._finish
        self._end_typing()
        if finish is not None:
            finish(event.value)

    def _end_typing(self) -> None:
        self._finish = None
        self.query_one(Input).display, self.query_one("#keys").display = False, True
        self.set_focus(None)
        self.tell("")

    def action_back(self) -> None:
        if self._finish is not None:
            was_filter = self._finish == self._set_filter
            self._end_typing()
            if was_filter:
                self._set_filter("")
        elif self.list.marked:
            self.list.clear_marks()
            self._show_head()
        else:
            self._set_filter("")

    def action_filter(self) -> None:
        self._type("show only jobs with these words", self._set_filter, self._filter, "Enter keeps, Escape shows all")

    def _set_filter(self, text: str) -> None:
        self._filter = text
        self._filter_list()

    # -- answering -----------------------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        if self._finish is not None:
            return
        self.tell("")
        if event.key in ("y", "n", "Y") or event.key.isdecimal():
            event.stop()
            if self.list.marked and event.key in ("y", "n"):
                self._review_answers(event.key)
            else:
                self._answer(event.key, event.time)

    def _answer(self, key: str, pressed_at: float) -> None:
        """Answer the request that was on the screen when the key was pressed, and no other."""
        card, page = self._card, self._shown_request()
        pressed_before, self._once_more = self._once_more, None
        if card is None or not card.requests:
            self.tell("this job asks nothing")
        elif page is None or page.request is None or page.asked is None:
            self.tell("nothing was sent: the request was not on the screen; here it is")
            self.action_open("request")
        elif (why_not := why_not_this_key(page.request, key) or self._why_not_now(pressed_at)) is not None:
            self.tell(why_not)
        elif (once_more := why_once_more(page.request, key, pressed_before)) is not None:
            self._once_more = page.request.request_id
            self.tell(once_more)
        else:
            self._send(page.key, page.request.request_id, self._answer_of(key, page.key, page.request, page.asked))

    def _send(self, of_job: str, request_id: str, work: Callable[[], str]) -> None:
        """Send an answer, and go on to the next job. Say it if the agent has decided otherwise, as a person at its own
        keyboard may be faster, or has not shown yet that it goes on."""

        def look() -> None:
            self._reader.do(lambda: self._work.not_proved(of_job, request_id), self.tell)

        self.list.leave(of_job)
        self._do(work)
        self.set_timer(_EVIDENCE_SEC, look)

    def _answer_of(self, key: str, of_job: str, request: Request, shown: Shown) -> Callable[[], str]:
        """Return the work that a key asks for."""
        if key == "n":
            return lambda: self._work.deny(of_job, request.request_id)
        if request.kind is RequestKind.QUESTION:
            return lambda: self._work.choose(of_job, shown, key, own_words=False)
        return lambda: self._work.approve(of_job, shown, inexact=key == "Y")

    def _shown_request(self) -> Page | None:
        """Return the request that is on the screen now."""
        page = self._page
        return page if page is not None and page.request is not None and (page.key, page.tab) == self._wanted else None

    def _why_not_now(self, pressed_at: float) -> str | None:
        return why_not_now(
            pressed_at,
            whole_since=self.detail.whole_since,
            lines_not_shown=self.detail.lines_not_shown,
            list_moved_at=self.list.moved_at,
        )

    def action_type_answer(self) -> None:
        page = self._shown_request()
        if page is None or page.request is None or page.request.kind is not RequestKind.QUESTION:
            self.tell("there is no question on the screen")
            return
        key, asked = page.key, page.asked
        has_choices = any(each.get("choices") for each in page.request.questions)
        assert asked is not None

        def send(text: str) -> None:
            own_words = not _is_choice(text)
            self._send(key, asked.request_id, lambda: self._work.choose(key, asked, text, own_words=own_words))

        self._type("answer: the number of a choice, or your own words" if has_choices else "answer", send)

    def action_deny_with_reason(self) -> None:
        page = self._shown_request()
        if page is None or page.request is None:
            self.tell("there is no request on the screen")
            return
        key, request_id = page.key, page.request.request_id
        self._type(
            "deny it, because",
            lambda why: self._send(key, request_id, lambda: self._work.deny(key, request_id, why)),
        )

    def _review_answers(self, key: str) -> None:
        """Show the oldest request of every marked job, and answer each when the user accepts."""
        cards = [card for card in self._chosen() if card.requests and why_not_this_key(card.requests[0], key) is None]
        word = "Allow" if key == "y" else "Deny"

        def act(card: Card) -> str:
            return self._answer_of(key, card.key, card.requests[0], as_shown(card.requests[0]))()

        self._review(f"{word} {_counted(len(cards), 'request')}", cards, answers_lines(cards), act, word.lower())

    # -- actions -------------------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], str]) -> None:
        """Let the reader do this, and say what became of it."""
        self._reader.do(work, self.tell)

    def _chosen(self) -> list[Card]:
        """Return the marked jobs, or else the selected one."""
        cards = self._found.cards
        if self.list.marked:
            return [cards[row.key] for row in self._found.rows if row.key in self.list.marked]
        return [self._card] if self._card is not None else []

    def action_cancel(self) -> None:
        cards = [card for card in self._chosen() if card.job.status not in TERMINAL]
        title = f"Cancel {_counted(len(cards), 'job')}, and stop the agents"
        self._review(title, cards, job_lines(cards), lambda card: self._work.cancel(card.key), "cancel")

    def action_retry(self) -> None:
        cards = [card for card in self._chosen() if card.job.status in TERMINAL]
        title = f"Run {_counted(len(cards), 'job')} again"
        self._review(title, cards, job_lines(cards), lambda card: self._work.retry(card.key), "run again")

    def _review(
        self, title: str, cards: Sequence[Card], lines: Sequence[Line], act: Callable[[Card], str], accept: str
    ) -> None:
        """Show what an action is about, and act on each job when the user accepts."""
        if not cards:
            self.tell(f"there is nothing to {accept} here")
            return
        if left_out := len(self._chosen()) - len(cards):
            lines = [
                *lines,
                ("", ""),
                (f"left out: {_counted(left_out, 'marked job')} that this cannot be done to", "dim"),
            ]

        def finish(accepted: bool | None) -> None:
            for card in cards if accepted else ():
                self._do(lambda card=card: act(card))  # type: ignore[misc]
            if accepted:
                self.list.clear_marks()

        self.app.push_screen(Reading(title, lines, accept), finish)

    def action_snooze(self) -> None:
        for card in self._chosen():
            self._do(lambda key=card.key: self._work.snooze(key))  # type: ignore[misc]
        self.list.clear_marks()

    def action_message(self) -> None:
        card = self._card
        if card is not None:
            self._type(f"message to {card.job_id}", lambda text: self._do(lambda: self._work.message(card.key, text)))

    def action_attach(self) -> None:
        card = self._card
        if card is not None:
            self._reader.do(lambda: self._work.client_for(card.key), self._show_session)

    def _show_session(self, client: Client) -> None:
        """Give the terminal to tmux until the user leaves the session."""
        self._board.will_look_in(FOREVER_SEC)
        with self.app.suspend():
            failure = run_attached(client)
        self._look_soon()
        self.tell("; ".join(filter(None, ("back on the board", failure, client.note))))


def _is_choice(text: str) -> bool:
    """Return whether a typed answer names choices by their numbers: `2`, `1,3` or `1=2 2=1`."""
    return bool(text.strip()) and all(each in "0123456789=, " for each in text)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
