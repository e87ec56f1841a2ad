"""Read the jobs of every home of the user for a board, ordered by who needs the user.

A `Board` keeps what it has read. `refresh` asks each registry once, for what changed since the last time; it starts no
process and captures no screen. Use one `Board` in one thread at a time; `details` and `actions` open what they need
themselves, so they may run in any thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum

from baton.board.snooze import Snoozed
from baton.config import Home as Place
from baton.config import Settings, user_file
from baton.core.clock import SECOND_NS, Clock, SystemClock, parse_time
from baton.core.ending import FAILED
from baton.core.errors import BatonError
from baton.core.fields import one_line
from baton.core.hashing import sha256
from baton.core.job import TERMINAL, Status
from baton.core.outline import Outline, activity_of, reason_of, run_of, state_of, without_runner
from baton.core.request import Request
from baton.core.spending import total_usage
from baton.core.value import Any, Value
from baton.delegation.looking import Look
from baton.jobs.verbs import Jobs, open_jobs
from baton.registry import LOCAL_SCHEMES
from baton.storage.homes import MOST_OPEN, known, settings_of
from baton.storage.stamp import stamp_of

_HOMES_SEC = 5.0  # after which the list of homes, and those that could not be read, are looked at again
_REQUESTS_SEC = 5.0  # a request also closes by time, without a change of its job
_RELOAD_SEC = 300.0  # after which everything is read again: pruned jobs leave no change number
_MOST_ENDED = 5000  # jobs of a home that have ended and were seen: the newest are kept
_PAGE = 1000
_LONGEST = 500  # characters of a title or a reason


class Need(IntEnum):
    """The groups of a board, in their order: who needs the user most comes first."""

    WAITING = 0  # an open request, a dialog, a job that the user must settle
    FAILED = 1  # and not seen yet
    STALLED = 2  # no sign of work, or no sign of the runner
    LIMITED = 3  # a usage limit
    FINISHED = 4  # and not seen yet
    WORKING = 5
    PENDING = 6
    DONE = 7  # ended and seen, or cancelled
    SNOOZED = 8

    @property
    def wants_user(self) -> bool:
        """Return whether a job of this group waits for the user to look at it."""
        return self <= Need.FINISHED


_NEED_OF_STATE = {
    "waiting": Need.WAITING,
    "blocked": Need.WAITING,
    "disputed": Need.WAITING,
    "stalled": Need.STALLED,
    "unknown": Need.STALLED,
    "idle": Need.STALLED,
    "limited": Need.LIMITED,
    "starting": Need.WORKING,
    "working": Need.WORKING,
    "retrying": Need.WORKING,
    "pending": Need.PENDING,
}


class Card(Value):
    """What the list of a board shows of one job.

    `key` names the job among all homes: HOME-JOB. `state` is the activity or the outcome in a word. `reason` is why it
    waits, failed or makes no progress, or what it does while it works, one printable line. `since_ns` is when the state
    began, as far as it is known. `requests` are its open requests, the oldest first, each with its whole call.
    `revision` rises with each change of the card, also one that only time has brought."""

    key: str
    folder: str
    job: Outline
    state: str
    need: Need
    title: str
    reason: str
    since_ns: int
    requests: tuple[Request, ...] = ()
    revision: int = 0

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def cost_usd(self) -> float | None:
        """Return what all attempts cost; None if that is unknown."""
        cost: float | None = total_usage(self.job.usage)["cost_usd"]
        return cost


class Home:
    """One registry, and what the board knows of it."""

    def __init__(self, folder: str, settings: Settings, jobs: Jobs) -> None:
        self.key = sha256(os.fsencode(folder)).hexdigest()[:8]
        self.folder = folder
        self.settings = settings
        self.jobs = jobs
        self.outlines: dict[str, Outline] = {}
        self.requests: dict[str, list[Request]] = {}
        self.number = 0  # the change number to go on with
        self._look = Look(settings)
        self._has_running = False
        self.trouble: str | None = None
        self.is_away = False  # it cannot even be opened: its jobs are as they were last seen
        self._stamp: object = None  # of the registry, when it was read last
        self._read_requests_at = 0.0
        self._reloaded_at: float | None = None

    def read(self) -> bool:
        """Read what changed since the last time. Return whether that took more than a look at the stamp of the
        registry. BatonError or OSError if the registry cannot be read."""
        unsettled = self._look.settle(self.jobs).unsettled if self._has_running else {}
        try:
            return self._read_news()
        finally:
            for job_id, why in unsettled.items():
                self._show_unsettled(job_id, why)

    def _show_unsettled(self, job_id: str, why: str) -> None:
        """Show that nothing is known of a job whose session was killed, where that could not be recorded."""
        job = self.outlines.get(job_id)
        if job is not None and job.status is Status.RUNNING and (job.activity or {}).get("cause") != why:
            self.outlines[job_id] = without_runner(job, why)

    def _read_news(self) -> bool:
        now = time.monotonic()
        reload = self._reloaded_at is None or now - self._reloaded_at > _RELOAD_SEC
        stamp = self.jobs.registry.answers_stamp()
        requests_are_old = bool(self.requests) and now - self._read_requests_at > _REQUESTS_SEC
        if not reload and stamp is not None and stamp == self._stamp:
            if requests_are_old:
                self._read_requests(now)
            return requests_are_old
        if self._read_changes(reload=reload) or requests_are_old:
            self._read_requests(now)
        self._stamp = stamp
        if reload:
            self._reloaded_at = now
        self._forget_old()
        return True

    def _read_changes(self, *, reload: bool) -> bool:
        """Read the jobs that changed, or all of them. Return whether one of them has or had an open request."""
        if reload:
            self.number = 0
        found: dict[str, Outline] = {} if reload else self.outlines
        asking = False
        while True:
            changed, following = self.jobs.registry.changes_since(self.number, limit=_PAGE)
            for job in changed:
                before = found.get(job.job_id)
                asking = asking or bool(job.open_requests) or bool(before is not None and before.open_requests)
                found[job.job_id] = job
            done = following <= self.number or len(changed) < _PAGE
            self.number = following
            if done:
                break
        self.outlines = found
        self._has_running = any(job.status is Status.RUNNING for job in found.values())
        return asking

    def _read_requests(self, now: float) -> None:
        found: dict[str, list[Request]] = {}
        for request in self.jobs.registry.list_requests():
            found.setdefault(request.job_id, []).append(request)
        self._read_requests_at, self.requests = now, found

    def _forget_old(self) -> None:
        if len(self.outlines) <= _MOST_ENDED:
            return
        ended = [job for job in self.outlines.values() if job.status in TERMINAL and job.seen]
        for job in sorted(ended, key=lambda job: job.created_ns)[: max(len(ended) - _MOST_ENDED, 0)]:
            del self.outlines[job.job_id]


class Board:
    """The jobs of all homes. Call `refresh`, then read `cards`, `counts` and `troubles`.

    `cards` are in the order of a board. `troubles` says of each folder that cannot be read why: its jobs stay on the
    board as they were last seen. `revision` rises with each refresh that changed a card."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """`settings`: those of the command; its state folder names the homes. `clock`: an AwakeClock of a board that
        looks again and again; see `will_look_in`."""
        self._clock = clock or SystemClock()
        self._state_dir = settings.state_dir
        self.snoozed = Snoozed(settings.state_dir)
        self._homes: dict[str, Home] = {}  # by the url of the registry
        self._open: dict[Home, None] = {}  # those whose registry is open, the one that was read longest ago first
        self._settings: dict[str, tuple[object, Settings, Jobs]] = {}  # of each folder, with the stamp of what they say
        self._unopened: dict[str, str] = {}  # folders that could not be opened, and why
        self._looked_at: float | None = None
        self._by_key: dict[str, Card] = {}
        self._removed: list[tuple[int, str]] = []
        self.revision = 0
        self.cards: list[Card] = []

    def refresh(self) -> bool:
        """Read what changed. Return whether anything on the board did. A home that cannot be read is in `troubles`, and
        does not stop the others."""
        before = self.troubles
        if self._looked_at is None or time.monotonic() - self._looked_at > _HOMES_SEC:
            self._find_homes()
        for home in [home for home in self._homes.values() if not home.is_away]:
            try:
                if home.read():
                    self._keep_open(home)
                home.trouble = None
            except (BatonError, OSError) as error:
                home.trouble = _why(error, home.folder)
                self._close(home)
        changed = self._rebuild(self._clock.wall_ns())
        return changed or before != self.troubles

    def will_look_in(self, sec: float) -> None:
        """Note that `refresh`, or this, is called again in so many seconds: later, this process has stood still."""
        self._clock.will_read_in(sec)

    def close(self) -> None:
        """Close all registries."""
        for home in self._homes.values():
            self._close(home)

    @property
    def troubles(self) -> dict[str, str]:
        """Return the folders whose jobs cannot be read, and why."""
        return self._unopened | {home.folder: home.trouble for home in self._homes.values() if home.trouble}

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each group, by the lower-case name of the group; and `homes`."""
        found = {need.name.lower(): 0 for need in Need}
        for card in self.cards:
            found[card.need.name.lower()] += 1
        return found | {"homes": len(self._homes)}

    def get(self, key: str) -> Card:
        """Return the card of a job; BatonError if it is not on the board."""
        try:
            return self._by_key[key]
        except KeyError:
            raise BatonError(f"job {one_line(key, 40)} is not on the board any more; it may have been pruned") from None

    def settings_for(self, key: str) -> Settings:
        """Return the settings of the home that has the job, for `details` and `actions`."""
        home_key = key.partition("-")[0]
        for home in self._homes.values():
            if home.key == home_key:
                return home.settings
        raise BatonError(f"the home of job {one_line(key, 40)} is not on the board any more")

    def changed_since(self, revision: int) -> tuple[list[Card], list[str]]:
        """Return the cards that changed after this revision of the board, and the keys of those that went away."""
        changed = [card for card in self.cards if card.revision > revision]
        return changed, [key for number, key in self._removed if number > revision]

    @property
    def position(self) -> str:
        """Return the change numbers of all registries as text: HOME.NUMBER, joined by commas. It stays valid when this
        process ends: see `cards_after`."""
        return ",".join(f"{home.key}.{home.number}" for home in self._homes.values())

    def cards_after(self, position: str) -> list[Card]:
        """Return the cards that may have changed since the position of an earlier board, of this process or another:
        those with a later change number, and those that run, which also change with time. For a text that is no
        position, all."""
        numbers: dict[str, int] = {}
        for part in position.split(","):
            home_key, _, number = part.partition(".")
            if number.isdecimal() and len(number) < 20:
                numbers[home_key] = int(number)
        return [
            card
            for card in self.cards
            if card.job.change >= numbers.get(card.key.partition("-")[0], 0) or card.job.status is Status.RUNNING
        ]

    def snooze(self, key: str, seconds: float) -> None:
        """Put a job at the end of the board for so long, or until its state or its requests change."""
        card = self.get(key)
        self.snoozed.put(key, time.time_ns() + round(seconds * SECOND_NS), _what_for(card.state, card.requests))

    def wake(self, key: str) -> None:
        """End the snooze of a job."""
        self.snoozed.drop(key)

    def cost_per_day(self, days: int = 14) -> list[dict[str, Any]]:
        """Return what attempts cost by the day (UTC) of their last figure, the newest last: `day`, `usd`, `tokens`, and
        `unknown`, the number of attempts without a known cost, which `usd` does not contain."""
        found: dict[str, dict[str, Any]] = {}
        for card in self.cards:
            for entry in card.job.usage:
                row = found.setdefault(entry["at"][:10], {"usd": 0.0, "tokens": 0, "unknown": 0})
                row["tokens"] += entry["input_tokens"] + entry["output_tokens"]
                if entry["cost_usd"] is None:
                    row["unknown"] += 1
                else:
                    row["usd"] = round(row["usd"] + entry["cost_usd"], 6)
        return [{"day": day, **found[day]} for day in sorted(found)[-days:]]

    # -- homes ---------------------------------------------------------------------------------------------------------

    def _find_homes(self) -> None:
        self._looked_at = time.monotonic()
        self._unopened = {}
        found: dict[str, Home] = {}
        user_stamp = stamp_of(user_file(os.environ))
        for entry in known(self._state_dir, lambda error: self._note(one_line(str(error), 200), error)):
            try:
                settings, jobs = self._read_settings(entry, user_stamp)
            except (BatonError, OSError) as error:
                self._settings.pop(entry.folder, None)
                self._note(entry.folder, error)
                self._keep_away(entry.folder, found)
                continue
            url = jobs.registry.url
            if url in found:  # homes that share a registry are one; it is named after itself
                first = found[url]
                if first.folder != jobs.registry.where:
                    same = self._homes.get(url)
                    is_known = same is not None and same.folder == jobs.registry.where
                    found[url] = same if is_known and same else Home(jobs.registry.where, first.settings, first.jobs)
                continue
            same = self._homes.get(url)
            is_same = same is not None and same.folder == entry.folder and not same.is_away
            found[url] = same if is_same and same is not None else Home(entry.folder, settings, jobs)
        for url, home in self._homes.items():
            if found.get(url) is not home:
                self._close(home)
        self._homes = found

    def _read_settings(self, entry: Place, user_stamp: object) -> tuple[Settings, Jobs]:
        """Return the settings of a home, and its jobs: those of the last time while nothing that they follow from has
        changed."""
        before = self._settings.get(entry.folder)
        paths = _deciding_files(entry, *(before[1:] if before is not None else ()))
        stamps = {path: stamp_of(path) for path in paths} | {"user": user_stamp}
        if before is not None and before[0] == (entry, stamps) and None not in stamps.values():
            return before[1:]
        settings = settings_of(self._state_dir, entry)
        jobs = open_jobs(settings)
        self._settings[entry.folder] = (entry, stamps), settings, jobs
        return settings, jobs

    def _keep_open(self, home: Home) -> None:
        """Leave the registry of a home open, which was read now, and close the one that was read longest ago."""
        self._open.pop(home, None)
        self._open[home] = None
        if len(self._open) > MOST_OPEN:
            self._close(next(iter(self._open)))

    def _close(self, home: Home) -> None:
        self._open.pop(home, None)
        home.jobs.registry.close()

    def _keep_away(self, folder: str, found: dict[str, Home]) -> None:
        """Keep the jobs of a home that was on the board and cannot be opened now."""
        for url, home in self._homes.items():
            if home.folder == folder:
                home.is_away, found[url] = True, home

    def _note(self, where: str, error: BatonError | OSError) -> None:
        self._unopened[where] = _why(error, where)

    # -- cards ---------------------------------------------------------------------------------------------------------

    def _rebuild(self, now_ns: int) -> bool:
        """Make the cards again; keep each that is as it was. Return whether one changed."""
        snoozed = self.snoozed.read(now_ns)
        following = self.revision + 1
        cards: dict[str, Card] = {}
        for home in self._homes.values():
            for job in home.outlines.values():
                key = f"{home.key}-{job.job_id}"
                asked = tuple(home.requests.get(job.job_id, ())) if job.open_requests else ()
                judged_ns = now_ns if job.lease_expires_ns is None else self._clock.lease_ns(job.lease_expires_ns)
                before = self._by_key.get(key)
                cards[key] = self._card(before, key, home.folder, job, asked, snoozed, judged_ns, following)
        changed = any(card.revision == following for card in cards.values())
        gone = [key for key in self._by_key if key not in cards]
        if changed or gone:
            self.revision = following
            self._removed = [*self._removed, *((following, key) for key in gone)][-1000:]
            self._by_key = cards
            self.cards = sorted(cards.values(), key=_place)
        return changed or bool(gone)

    @staticmethod
    def _card(
        before: Card | None,
        key: str,
        folder: str,
        job: Outline,
        asked: tuple[Request, ...],
        snoozed: Mapping[str, str],
        now_ns: int,
        revision: int,
    ) -> Card:
        activity = activity_of(job, now_ns=now_ns)
        state = state_of(job, activity)
        need = _need(job, state)
        if key in snoozed and snoozed[key] == _what_for(state, asked):
            need = Need.SNOOZED
        if (
            before is not None
            and before.job is job
            and (before.state, before.need, before.requests) == (state, need, asked)
        ):
            return before
        reason = asked[0].summary if asked else reason_of(job, activity) or _doing(job, state)
        return Card(
            key=key,
            folder=folder,
            job=job,
            state=state,
            need=need,
            title=one_line(job.title or job.prompt, _LONGEST),
            reason=reason and one_line(reason, _LONGEST),
            since_ns=_since(job, asked),
            requests=asked,
            revision=revision,
        )


def _deciding_files(entry: Place, settings: Settings | None = None, jobs: Jobs | None = None) -> set[str]:
    """Return the files and folders that the settings of a home follow from, and those where a note may say that its
    registry was moved. `settings` and `jobs` are those of the last time."""
    found = {entry.path, os.path.join(entry.path, "baton.toml"), os.path.join(entry.path, "jobs")}
    if settings is not None and jobs is not None:
        scheme, _, path = jobs.registry.url.partition(":")
        found.add(settings.registry_dir)
        found |= {os.path.dirname(path) if scheme == "sqlite" else path} if scheme in LOCAL_SCHEMES else set()
    return found


def describe(card: Card) -> dict[str, Any]:
    """Return a card as JSON, for a page. The calls of its requests are in `details.request_text`."""
    job = card.job
    return {
        "key": card.key,
        "job_id": job.job_id,
        "folder": card.folder,
        "status": job.status.value,
        "state": card.state,
        "need": card.need.name.lower(),
        "title": card.title,
        "reason": card.reason,
        "agent": job.agent,
        **run_of(job),
        "attempt": job.attempt,
        "labels": list(job.labels),
        "since": card.since_ns // 1_000_000,
        "created": job.created_ns // 1_000_000,
        "finished": None if job.finished_ns is None else job.finished_ns // 1_000_000,
        "requests": [each.request_id for each in card.requests],
        "cost_usd": card.cost_usd,
        "change": job.change,
    }


def _need(job: Outline, state: str) -> Need:
    if job.status in TERMINAL:
        if job.seen or job.status is Status.CANCELLED:
            return Need.DONE
        return Need.FAILED if state == FAILED else Need.FINISHED
    return _NEED_OF_STATE.get(state, Need.WORKING)


def _doing(job: Outline, state: str) -> str:
    """Return what a working agent does, such as the tool that it uses; "" for other jobs."""
    activity = job.activity
    is_now = activity is not None and activity["kind"] == state == "working" and activity["attempt"] == job.attempt
    return str(activity["cause"]) if is_now and activity is not None else ""


def _since(job: Outline, asked: Sequence[Request]) -> int:
    if job.finished_ns is not None:
        return job.finished_ns
    if asked:
        return parse_time(asked[0].asked_at)
    if job.status is Status.RUNNING and job.activity is not None and job.activity["attempt"] == job.attempt:
        return parse_time(job.activity["since"])
    return job.created_ns


def _place(card: Card) -> tuple[int, int, str]:
    """Sort by need. In a group that waits, the oldest comes first; of what has ended, the newest."""
    oldest_first = card.need <= Need.LIMITED or card.need is Need.PENDING
    return card.need, card.since_ns if oldest_first else -card.since_ns, card.key


def _what_for(state: str, asked: Sequence[Request]) -> str:
    """Return what a snoozed job is snoozed for: another state or another request ends the snooze."""
    return " ".join([state, *(each.request_id for each in asked)])


def _why(error: BatonError | OSError, where: str) -> str:
    text = f"{error.filename or where}: {error.strerror}" if isinstance(error, OSError) else str(error)
    return one_line(text, 300)
