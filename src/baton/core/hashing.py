"""SHA-256 and HMAC from the interpreter's own module: `hashlib` and `hmac` load OpenSSL first, which takes as long as
a quarter of starting Python, at every `publish`. The tests hold this to `hmac` and to the vectors of RFC 4231."""

from __future__ import annotations

from _operator import _compare_digest as same  # what hmac.compare_digest is

try:
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from hashlib import sha256

__all__ = ["hmac_sha256", "same", "sha256"]

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
