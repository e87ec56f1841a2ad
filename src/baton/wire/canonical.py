"""Encode JSON canonically by RFC 8785 (JSON Canonicalization Scheme): one value, one sequence of bytes.

Written by hand because it is small and runs at every publish. Tests compare it with the RFC's vectors and with a second
implementation.
"""

from __future__ import annotations

import json
import math
from codecs import utf_16_be_encode

MAX_INTEGER = 2**53 - 1
json_string = json.encoder.encode_basestring  # RFC 8785 escapes exactly what this one escapes


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a value; raise ValueError for a value that JSON cannot hold portably."""
    return _encode(value).encode()


def _encode(value: object) -> str:  # noqa: PLR0911  one return for each type of JSON
    if isinstance(value, str):
        return json_string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ValueError("a whole number is beyond 2^53")
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join([_encode(item) for item in value]) + "]"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("an object has a key that is not text")
        members = [f"{json_string(key)}:{_encode(value[key])}" for key in sorted(value, key=_utf16)]
        return "{" + ",".join(members) + "}"
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def _utf16(key: str) -> bytes:
    # Not `key.encode("utf-16-be")`: that loads a module, which Python 3.13.0 cannot do in a removed folder.
    return utf_16_be_encode(key)[0]


def _number(value: float) -> str:
    """Format a double as ECMAScript does: shortest digits, exponent only below 1e-6 and from 1e21 on."""
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
