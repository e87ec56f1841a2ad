"""Count what an agent spends: tokens and US dollars, each message once. Pure functions.

Dollars come from the agent's own figures, or from the prices in the user's settings. What has neither is unknown, and
so is every sum that contains it: an unknown cost is never 0.
"""

from __future__ import annotations

from baton.core.errors import InvalidValue
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.core.signal import Usage

_MILLION = 1_000_000
_MAX_MESSAGES = 2048  # that are remembered, against repeated figures
_MOST_USD = 1e9
_COUNTS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
_PRICES = ("input", "output", "cached_input", "cache_write")


class Tokens(Value):
    """Tokens of messages. `input` counts all that the model read; of these, `cached` came from a cache, and `written`
    went into one."""

    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0

    def plus(self, other: Tokens, sign: int = 1) -> Tokens:
        return Tokens(**{name: getattr(self, name) + sign * getattr(other, name) for name in self.fields()})

    def highest(self, other: Tokens) -> Tokens:
        return Tokens(**{name: max(getattr(self, name), getattr(other, name)) for name in self.fields()})

    @property
    def total(self) -> int:
        return self.input + self.output


NONE = Tokens()


class Price(Value):
    """What a model costs, in US dollars for a million tokens."""

    input: float
    output: float
    cached_input: float
    cache_write: float

    @classmethod
    def parse(cls, table: object, name: str) -> Price:
        """Return the price in a table of the settings; raise InvalidValue that names it."""
        if not isinstance(table, dict) or not {"input", "output"} <= table.keys() <= set(_PRICES):
            wanted = "must be a table with input and output, and perhaps cached_input and cache_write"
            raise InvalidValue(name, f"{wanted}: US dollars for a million tokens")
        for key, value in table.items():
            if type(value) not in (int, float) or not 0 <= value < _MOST_USD:
                raise InvalidValue(f"{name} {key}", "must be a number of US dollars, 0 or more")
        full = {"cached_input": table["input"], "cache_write": table["input"]} | table
        return cls(**{key: float(value) for key, value in full.items()})

    def cost_usd(self, tokens: Tokens) -> float:
        plain = max(tokens.input - tokens.cached - tokens.written, 0)
        sums = plain * self.input + tokens.cached * self.cached_input + tokens.written * self.cache_write
        return (sums + tokens.output * self.output) / _MILLION


def find_price(prices: Mapping[str, Price], model: str) -> Price | None:
    """Return the price of a model: under its whole name, or without what agents add to it, as in
    `anthropic/claude-opus-4-8[1m]`."""
    plain = model.partition("[")[0]
    return next((prices[name] for name in (model, plain, plain.rpartition("/")[2]) if name in prices), None)


class Spent(Value):
    """What the messages of one attempt used. `cost_usd` is what the agent itself said; None: nothing. `unpriced` are
    the tokens, by model, whose cost the agent did not say."""

    tokens: Tokens = NONE
    cost_usd: float | None = None
    unpriced: Mapping[str, Tokens] = {}

    def total_usd(self, prices: Mapping[str, Price]) -> float | None:
        """Return the cost of all messages; None if that of one is unknown, or if there is none."""
        if self.cost_usd is None and not self.unpriced:
            return None
        total = self.cost_usd or 0.0
        for model, tokens in self.unpriced.items():
            price = find_price(prices, model)
            if price is None:  # guard: unknown-cost
                return None
            total += price.cost_usd(tokens)
        return total

    def without_price(self, prices: Mapping[str, Price]) -> list[str]:
        """Return the models whose cost is unknown; "" is one that the agent did not name."""
        return sorted(model for model in self.unpriced if find_price(prices, model) is None)


class Message(Value):
    """What one message used."""

    tokens: Tokens
    cost_usd: float | None
    model: str


def tokens_of(signal: Usage) -> Tokens:
    return Tokens(
        input=signal.input_tokens,
        cached=signal.cached_tokens,
        written=signal.cache_write_tokens,
        output=signal.output_tokens,
    )


def count(spent: Spent, messages: Mapping[str, Message], signal: Usage) -> tuple[Spent, Mapping[str, Message]]:
    """Return what was spent, and the messages that were counted, after a signal. Each message counts once; what it used
    can only rise."""
    new = Message(tokens=NONE, cost_usd=None, model=signal.model)
    before = messages.get(signal.message_id) or new  # guard: message-counted-once
    given = signal.cost_usd if signal.cost_usd is not None and 0 <= signal.cost_usd < _MOST_USD else None
    cost = before.cost_usd if given is None else max(given, before.cost_usd or 0.0)
    after = Message(tokens=tokens_of(signal).highest(before.tokens), cost_usd=cost, model=signal.model or before.model)
    if after == before and signal.message_id in messages:
        return spent, messages
    kept = {name: each for name, each in messages.items() if name != signal.message_id}
    kept[signal.message_id] = after
    if len(kept) > _MAX_MESSAGES:
        del kept[next(iter(kept))]
    unpriced = dict(spent.unpriced)
    if before.cost_usd is None:
        _move(unpriced, before.model, before.tokens, -1)
    if after.cost_usd is None:
        _move(unpriced, after.model, after.tokens, 1)
    if signal.covers_all and given is not None:
        unpriced = {}
    total = spent.cost_usd if cost is None else (spent.cost_usd or 0.0) + cost - (before.cost_usd or 0.0)
    tokens = spent.tokens.plus(after.tokens).plus(before.tokens, -1)
    return Spent(tokens=tokens, cost_usd=total, unpriced=unpriced), kept


def _move(unpriced: dict[str, Tokens], model: str, tokens: Tokens, sign: int) -> None:
    left = unpriced.get(model, NONE).plus(tokens, sign).highest(NONE)
    unpriced.pop(model, None)
    if left != NONE:
        unpriced[model] = left


def usd_text(usd: float) -> str:
    """Return an amount for people: with cents, and with more digits below ten cents."""
    return f"{usd:.2f}" if usd >= 0.1 or not usd else f"{usd:.6f}".rstrip("0")


# -- in the record of a job --------------------------------------------------------------------------------------------


def usage_entry(attempt: int, spent: Spent, prices: Mapping[str, Price], at: str) -> dict[str, Any] | None:
    """Return what an attempt has used, for `usage` of its job; None if nothing is known."""
    if spent == Spent():
        return None
    tokens = spent.tokens
    counts = dict(zip(_COUNTS, (tokens.input, tokens.cached, tokens.written, tokens.output), strict=True))
    cost = spent.total_usd(prices)
    return {"attempt": attempt, **counts, "cost_usd": None if cost is None else round(cost, 6), "at": at}


def merge_usage(known: Iterable[Mapping[str, Any]], entry: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the usage of a job with this entry of one attempt. One that is older than the known one changes
    nothing."""
    found = {each["attempt"]: dict(each) for each in known}
    before = found.get(entry["attempt"])
    is_late = before is not None and any(entry[name] < before[name] for name in _COUNTS)
    if not is_late:
        found[entry["attempt"]] = dict(entry)
    return tuple(found[attempt] for attempt in sorted(found))


def total_usage(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tokens and the cost of all attempts; null what is unknown for one of them."""
    known = list(entries)
    if not known:
        return {"tokens": None, "cost_usd": None}
    counts: dict[str, Any] = {name: sum(each[name] for each in known) for name in _COUNTS}
    costs = [each["cost_usd"] for each in known]
    cost = None if None in costs else round(sum(costs), 6)
    return {"tokens": counts["input_tokens"] + counts["output_tokens"], **counts, "cost_usd": cost}
