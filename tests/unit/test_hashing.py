from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.hashing import constant_time_equal, hmac_sha256, sha256

# RFC 4231: key, data, HMAC-SHA-256
VECTORS = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
]


@pytest.mark.parametrize(("key", "data", "expected"), VECTORS)
def test_the_vectors_of_the_rfc(key, data, expected):
    assert hmac_sha256(key, data).hex() == expected


@given(st.binary(max_size=200), st.binary(max_size=500))
def test_it_agrees_with_the_standard_library(key, data):
    assert hmac_sha256(key, data) == hmac.digest(key, data, "sha256")
    assert sha256(data).digest() == hashlib.sha256(data).digest()


def test_comparing():
    assert constant_time_equal(b"abc", b"abc")
    assert not constant_time_equal(b"abc", b"abd")
    assert not constant_time_equal(b"abc", b"ab")
