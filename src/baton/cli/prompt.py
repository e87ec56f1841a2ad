"""What somebody wants to have said, wherever they wrote it."""

from __future__ import annotations

import os
import sys

from baton.core.errors import InvalidValue


def read_text(field: str, typed: str | None, *, file: str | None = None) -> str:
    """What was typed, else what is in the file; a dash is standard input. InvalidValue when that is no text."""
    source = file if typed is None else typed
    if source == "-":
        if sys.stdin is None:
            raise InvalidValue(field, "cannot be read: standard input is closed")
        content = sys.stdin.buffer.read()
    elif typed is not None:
        content = os.fsencode(typed)
    else:
        assert file is not None
        try:
            with open(file, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise InvalidValue(field, f"cannot be read from {file}: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidValue(field, "is not valid UTF-8") from None
