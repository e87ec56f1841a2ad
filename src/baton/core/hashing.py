"""Compute SHA-256 and HMAC without OpenSSL: loading it takes a quarter of the time that Python takes to start, at every
`publish`. Tests compare this with `hmac` and with the vectors of RFC 4231."""

from __future__ import annotations

from _operator import _compare_digest as constant_time_equal  # hmac.compare_digest

try:
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from hashlib import sha256

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
