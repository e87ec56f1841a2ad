"""RFC 8785 (JSON Canonicalization Scheme): one value, one sequence of bytes.

Our own because it is on the path of every publish and small; the tests hold it to the RFC's vectors and to a
second implementation.
"""

from __future__ import annotations

import json
import math
from codecs import utf_16_be_encode

MAX_INTEGER = 2**53 - 1
json_string = json.encoder.encode_basestring  # RFC 8785 escapes exactly what this one escapes


def canonical(value: object) -> bytes:
    """Raises ValueError for what JSON cannot say, or cannot say everywhere alike."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode()


def _write(value: object, parts: list[str]) -> None:  # noqa: C901, PLR0912  one branch for each type of JSON
    if isinstance(value, str):
        parts.append(json_string(value))
    elif value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ValueError("a whole number is beyond 2^53")
        parts.append(str(int(value)))
    elif isinstance(value, float):
        parts.append(_number(value))
    elif isinstance(value, list | tuple):
        parts.append("[")
        for index, item in enumerate(value):
            if index:
                parts.append(",")
            _write(item, parts)
        parts.append("]")
    elif isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("an object has a key that is not text")
        parts.append("{")
        for index, key in enumerate(sorted(value, key=_utf16)):
            if index:
                parts.append(",")
            parts.append(json_string(key))
            parts.append(":")
            _write(value[key], parts)
        parts.append("}")
    else:
        raise ValueError(f"{type(value).__name__} has no form in JSON")


def _utf16(key: str) -> bytes:
    # Not by its name: that loads a module, which Python 3.13.0 cannot do in a folder that is gone.
    return utf_16_be_encode(key)[0]


def _number(value: float) -> str:
    """As ECMAScript writes a double: shortest digits, exponent only below 1e-6 and from 1e21 on."""
    if not math.isfinite(value):
        raise ValueError("NaN and infinity have no form in JSON")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, _, exponent_text = repr(abs(value)).partition("e")
    whole, _, fraction = digits.partition(".")
    if fraction == "0":
        fraction = ""
    significant = (whole + fraction).lstrip("0")
    # Where the decimal point stands, counted from the first significant digit.
    exponent = len(significant) - len(fraction) + int(exponent_text or 0)
    significant = significant.rstrip("0")
    count = len(significant)
    if 0 < exponent <= 21:
        if count <= exponent:
            return sign + significant + "0" * (exponent - count)
        return f"{sign}{significant[:exponent]}.{significant[exponent:]}"
    if -6 < exponent <= 0:
        return f"{sign}0.{'0' * -exponent}{significant}"
    power = exponent - 1
    mantissa = significant[0] + ("." + significant[1:] if count > 1 else "")
    return f"{sign}{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"
