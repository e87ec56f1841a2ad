"""Compute SHA-256 and HMAC without OpenSSL: loading it takes a quarter of the time that Python takes to start, at every
`publish`. Tests compare this with `hmac` and with the vectors of RFC 4231."""

from __future__ import annotations

from baton.core.cpython import compare_digest as constant_time_equal
from baton.core.cpython import sha256

__all__ = ["constant_time_equal", "hmac_sha256", "sha256"]

_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    if len(key) > _BLOCK:
        key = sha256(key).digest()
    key = key.ljust(_BLOCK, b"\0")
    inner: bytes = sha256(key.translate(_INNER) + message).digest()
    outer: bytes = sha256(key.translate(_OUTER) + inner).digest()
    return outer
