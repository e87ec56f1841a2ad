"""Read a prompt from the command line, a file or standard input."""

from __future__ import annotations

import os
import sys

from baton.core.errors import InvalidValue


def read_text(field: str, typed: str | None, *, file: str | None = None) -> str:
    """Return the typed text, else the content of the file; `-` is standard input. InvalidValue if it is not text."""
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
