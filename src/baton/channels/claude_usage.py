"""Read the token counts of Claude Code: of a message, of a transcript line, and of a result."""

from __future__ import annotations

from baton.core.signal import Usage
from baton.core.spending import Tokens
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What the counts are called: read by the model, from a cache, into a cache, written by the model.
MESSAGE_NAMES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
RESULT_NAMES = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")


def claude_tokens(used: Mapping[str, Any], names: Sequence[str]) -> Tokens:
    """Return the tokens under these names."""
    plain, cached, written, output = (number(used.get(name)) for name in names)
    return Tokens(input=plain + cached + written, cached=cached, written=written, output=output)


def claude_usage(message_id: str, used: Mapping[str, Any], names: Sequence[str], **more: Any) -> Usage:
    """Return what a message used."""
    return usage_of(message_id, claude_tokens(used, names), **more)


def usage_of(message_id: str, used: Tokens, **more: Any) -> Usage:
    return Usage(
        message_id=message_id, input_tokens=used.input, cached_tokens=used.cached, cache_write_tokens=used.written,
        output_tokens=used.output, **more,
    )  # fmt: skip


def number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
