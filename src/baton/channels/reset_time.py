"""Read when a usage limit ends from the program's own words."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Such as: resets Nov 18, 11:06am (UTC). Or: resets 3pm (Europe/Berlin)
_RESETS = re.compile(
    r"resets (?:(?P<month>[A-Za-z]{3}) (?P<day>\d{1,2})(?:, (?P<year>\d{4}))?,? (?:at )?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?(?P<half>[ap]m) ?\((?P<zone>[A-Za-z0-9_+/-]{1,40})\)"
)
# Such as: You will regain access on 2026-12-01 at 00:00 UTC.
_REGAIN = re.compile(r"regain access on (\d{4})-(\d\d)-(\d\d) at (\d\d):(\d\d) UTC")


def reset_time(text: str, now_ns: int) -> int | None:
    """Return when the limit that the text is about ends, in nanoseconds since 1970; None if it does not say so."""
    from datetime import UTC, datetime, timedelta

    if found := _REGAIN.search(text):
        return _ns(lambda: datetime(*map(int, found.groups()), tzinfo=UTC))  # type: ignore[arg-type,misc]
    named = _RESETS.search(text)
    if named is None:
        return None

    def moment() -> datetime:
        from zoneinfo import ZoneInfo

        zone = UTC if named["zone"] == "UTC" else ZoneInfo(named["zone"])
        now = datetime.fromtimestamp(now_ns / 10**9, zone)
        hour = int(named["hour"]) % 12 + (12 if named["half"] == "pm" else 0)
        then = now.replace(hour=hour, minute=int(named["minute"] or 0), second=0, microsecond=0)
        if named["month"] is None:
            # Of a time that has just passed, the limit is over; only an earlier one is that of the next day.
            return then if then > now - timedelta(hours=1) else then + timedelta(days=1)
        month = _MONTHS.index(named["month"].lower()) + 1
        then = then.replace(year=int(named["year"] or now.year), month=month, day=int(named["day"]))
        past = named["year"] is None and now - then > timedelta(days=180)
        return then.replace(year=then.year + 1) if past else then

    return _ns(moment)


def _ns(moment: Callable[[], datetime]) -> int | None:
    try:
        return int(moment().timestamp()) * 10**9
    except (ValueError, OSError, OverflowError, KeyError):
        return None  # no such day, or a time zone that this machine does not know
