from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.clock import parse_time
from baton.live_agents.record import AgentRecord, State, Unfit, parse_entry

# As in the seed: what it writes must be read unchanged.
SEED = {
    "schema_version": 1,
    "agent_name": "HOUMAO-gpu",
    "agent_id": "270b8738f2f97092e572b73d19e6f923",
    "generation_id": "7d8a3c1e-9f2b-4c5d-8e6f-1a2b3c4d5e6f",
    "published_at": "2026-03-13T12:00:00+00:00",
    "lease_expires_at": "2026-03-14T12:00:00+00:00",
    "identity": {"backend": "cao_rest", "tool": "claude"},
    "runtime": {"manifest_path": "/abs/manifest.json", "session_root": "/abs", "agent_def_dir": "/abs/agents"},
    "terminal": {"kind": "tmux", "session_name": "HOUMAO-gpu"},
}
LEASE_END = parse_time("2026-03-14T12:00:00Z")


def changed(path, value):
    record = json.loads(json.dumps(SEED))
    *outer, last = path.split(".")
    place = record
    for name in outer:
        place = place[name]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return record


def test_the_record_of_the_seed_reads_and_writes_unchanged():
    written = AgentRecord.parse(SEED).record()
    times = {"published_at": "2026-03-13T12:00:00Z", "lease_expires_at": "2026-03-14T12:00:00Z"}
    assert written == SEED | times
    assert AgentRecord.parse(written).record() == written


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("published_at", "2026-03-13T12:00:00", "published_at is not a time with a zone"),
        ("lease_expires_at", "2026-03-14T12:00:00", "lease_expires_at is not a time with a zone"),
        ("lease_expires_at", "2026-03-13T11:59:59Z", "lease_expires_at must be after published_at"),
        ("lease_expires_at", "2026-03-13T12:00:00Z", "lease_expires_at must be after published_at"),
        ("lease_expires_at", 1773489600, "lease_expires_at must be a time as text, not int"),
        ("extra", 1, "extra is not a field of this object"),
        ("identity.extra", 1, "identity.extra is not a field of this object"),
        ("runtime.password", "x", "runtime.password is not a field of this object"),
        ("terminal.pane", "%1", "terminal.pane is not a field of this object"),
        ("schema_version", "1", "schema_version must be 1"),
        ("schema_version", True, "schema_version must be 1"),
        ("schema_version", 0, "schema_version must be 1"),
        ("schema_version", KeyError, "schema_version is missing"),
        ("agent_name", 5, "agent_name must be text, not int"),
        ("agent_name", "../../x", "agent_name must be 1 to 96"),
        ("agent_id", "a/b", "agent_id must be 1 to 64"),
        ("agent_id", KeyError, "agent_id is missing"),
        ("generation_id", None, "generation_id must be text, not null"),
        ("identity", "tmux", "identity must be an object, not str"),
        ("identity.tool", KeyError, "identity.tool is missing"),
        ("runtime", [], "runtime must be an object, not list"),
        ("runtime.manifest_path", KeyError, "runtime.manifest_path is missing"),
        ("runtime.manifest_path", "", "runtime.manifest_path must be one line"),
        ("runtime.session_root", 7, "runtime.session_root must be text, not int"),
        ("terminal.kind", "screen", "terminal.kind must be 'tmux'"),
        ("terminal.session_name", "a\nb", "terminal.session_name must be one line"),
        ("terminal.socket", False, "terminal.socket must be text, not bool"),
    ],
)
def test_a_field_that_does_not_fit_is_named(path, value, why):
    with pytest.raises(Unfit, match=f"^{why}"):
        AgentRecord.parse(changed(path, value))


@pytest.mark.parametrize("key", ["\ud800", "\x1b]0;owned\x07", "a\nb", "\u202e"])
def test_a_strange_key_is_told_in_plain_letters(key):
    with pytest.raises(Unfit) as refused:
        AgentRecord.parse(changed(key, 1))
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


def test_what_was_not_given_is_not_written():
    record = AgentRecord.parse(changed("runtime.session_root", None))
    assert "session_root" not in record.record()["runtime"]


def test_a_lease_that_ends_at_this_very_moment_is_fresh():
    content = json.dumps(SEED).encode()
    assert parse_entry(SEED["agent_id"], content, LEASE_END, 0).state is State.FRESH
    assert parse_entry(SEED["agent_id"], content, LEASE_END + 1, 0).state is State.EXPIRED


def test_a_record_that_claims_another_id_is_invalid():
    entry = parse_entry("other", json.dumps(SEED).encode(), LEASE_END, 0)
    assert (entry.state, entry.why) == (State.INVALID, "agent_id names another agent")


def test_a_newer_record_is_no_ruin():
    entry = parse_entry(SEED["agent_id"], json.dumps(changed("schema_version", 2) | {"new": 1}).encode(), LEASE_END, 0)
    assert entry.state is State.NEWER


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"null", b"[1]", b'"x"', b'{"a": 1, "a": 2}', b"[" * 100_000, b"NaN", b"\x00" * 70_000],
)
def test_any_bytes_are_only_stale(content):
    assert parse_entry("x", content, 0, 0).record is None


@given(st.binary(max_size=300))
def test_random_bytes_are_only_stale(content):
    assert parse_entry("x", content, 0, 0).record is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_in_any_field_is_read_or_refused(value):
    for path in (
        "agent_name",
        "published_at",
        "schema_version",
        "identity",
        "runtime.agent_def_dir",
        "terminal.socket",
    ):
        try:
            AgentRecord.parse(changed(path, value))
        except Unfit:
            pass
