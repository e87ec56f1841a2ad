"""What may and what may not be said out loud."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.redact import Redactor, shorten

ENV = {
    "HOME": "/home/kim", "PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": "abc-env-secret-1", "DB_PASSWORD": "correct horse",
    "EDITOR": "vim", "SHORT_TOKEN": "abc",
}  # fmt: skip
JOB_KEY = "job-key-0123456789"
REDACTOR = Redactor(ENV, secrets=[JOB_KEY], folders=["/srv/my project"])

# Pieces are joined at run time, so that no scanner takes these lines for real keys.
KEYS = [
    "sk-" + "ant-api03-" + "A1b2" * 8, "sk-" + "proj-" + "x9" * 20, "ghp_" + "A1b2C3d4" * 5, "github_pat_" + "11AAAA" * 6,
    "glpat-" + "x1y2" * 5, "AKIA" + "ABCDEFGHIJKLMNOP", "AIza" + "Sy" + "a1B2" * 9, "xoxb-" + "123456789-abcdef",
    "npm_" + "a1B2" * 9, "hf_" + "a1B2" * 9, "eyJ" + "hbGciOiJI" + ".eyJ" + "zdWIiOiIx" + ".c2lnbmF0dXJl",
    "sk_" + "live_" + "a1B2c3D4e5", "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_known_shapes(key):
    for text in (key, f"using {key} now", f"key={key}.", f'{{"k": "{key}"}}'):
        assert key not in REDACTOR.text(text)
        assert "<secret>" in REDACTOR.text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wrote /home/kim/notes/a.md", "wrote <path>"),
        ("wrote ~/notes/a.md and ~/b", "wrote <path> and <path>"),
        ("in /srv/my project/src/x.py, line 3", "in <path> line 3"),
        ("see (/var/log/x.log)", "see (<path>)"),
        ('open("/etc/passwd")', 'open("<path>")'),
        ("reads /etc and /tmp", "reads <path> and <path>"),
        ("file:///home/kim/a.txt", "file://<path>"),
        (r"at C:\Users\kim\a.txt today", "at <path> today"),
        (r"on \\server\share\x", "on <path>"),
        ("path=/opt/tool/bin/run", "path=<path>"),
        ("login postgres://kim:hunter2@db/x", "login postgres://<secret>@db/x"),
        ("password=hunter22", "password=<secret>"),
        ("DB_PASSWORD: 'hunter22'", "DB_PASSWORD: '<secret>'"),
        ('{"api_key": "hunter22"}', '{"api_key": "<secret>"}'),
        ("Authorization: Bearer abcdefgh123", "Authorization: Bearer <secret>"),
        ("env says abc-env-secret-1 here", "env says <secret> here"),
        ("it is correct horse now", "it is <secret> now"),
        (f"signed with {JOB_KEY}", "signed with <secret>"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07text", "red text"),
        ("bidi \u202eevil\u202c \u2066x\u2069 zero\u200bwidth", "bidi evil x zerowidth"),
        ("bell\x07 back\x08 nul\x00 c1\x9b31m", "bell back nul c1"),
    ],
)
def test_what_must_be_hidden(text, expected):
    assert REDACTOR.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Section 1: MQTT Broker Architecture completed", "10/12 tests passed", "and/or", "src/baton/redact.py:3 changed",
        "see https://example.com/docs/a/b?x=1#y", "ratio 3/4, date 2026/06/20", "use /help", "token count: 120",
        "정렬 문제 10개를 만들어 저장", "line one\nline two\tend", "edited docs/ and tests/unit", "a -> b // comment",
        "emoji 🎉 stays", "the secret is out", "1 / 2", "n/a", "x = a / b / c", "abc",
    ],
)  # fmt: skip
def test_what_must_not_be_changed(text):
    assert REDACTOR.text(text) == text


def test_values_in_data_too():
    data = {"log": "/home/kim/x/y", "n": 1, "list": ["password=hunter22", None], "deep": {"t": JOB_KEY}}
    assert REDACTOR.value(data) == {
        "log": "<path>", "n": 1, "list": ["password=<secret>", None], "deep": {"t": "<secret>"},
    }  # fmt: skip


@given(st.text(max_size=300))
def test_once_is_enough(text):
    once = REDACTOR.text(text)
    assert "\x1b" not in once
    assert REDACTOR.text(once) == once


@given(st.text(max_size=3000), st.integers(20, 4096))
def test_shortening_keeps_whole_characters(text, longest):
    short = shorten(text, longest)
    assert len(short.encode()) <= longest
    assert short == text or short.endswith("(cut)")
