"""The strict parser and the signature, without any network."""

from __future__ import annotations

import json
import random

import pytest

from baton.core.drafts import new_job
from baton.core.errors import InvalidValue, Rejected
from baton.core.event import EventName
from baton.wire.payload import canonical, check_signature, parse_event, signature, signed_event
from support.resident import memory_mb

TOKEN = "a-key-of-the-tests"


def payload(**changes):
    base = {
        "schema_version": 1, "seq": 2, "job_id": "918b0612", "event": "progress",
        "timestamp": "2026-06-20T14:48:58Z", "detail": "half way", "data": {"attempt": 1, "custom_metric": 42},
    }  # fmt: skip
    return base | changes


def signed(value, token=TOKEN):
    value["data"]["hmac_sig"] = signature(value, token)
    return json.dumps(value).encode()


def accepts(raw, token=TOKEN):
    event = parse_event(raw)
    check_signature(event, token)
    return event


def test_a_signed_payload_is_an_event():
    event = accepts(signed(payload()))
    assert (event.seq, event.event, event.attempt, event.data) == (2, EventName.PROGRESS, 1, {"custom_metric": 42})
    assert event.public() == payload()


def test_white_space_and_order_do_not_matter():
    value = payload()
    value["data"]["hmac_sig"] = signature(value, TOKEN)
    accepts(json.dumps(dict(reversed(value.items())), indent=3, ensure_ascii=True).encode())


def test_what_the_registry_signs_is_accepted():
    job = new_job("x", now_ns=1, agent="a").replace(attempt=3)
    event = signed_event(job, EventName.ERROR, "détail \u2028", {"deep": {"list": [1, 0.5, None, True]}}, 10**18)
    assert accepts(event.payload, job.auth_token).seq == 1
    with pytest.raises(Rejected, match="HMAC verify failed"):
        accepts(event.payload, "another key")


@pytest.mark.parametrize(
    "data",
    [{"x": 1e20}, {"x": -1e20}, {"x": float(2**53)}, {"x": json.loads("[" * 15 + "]" * 15)}, {"x": "\ud800"}],
    ids=["large float", "negative", "2^53 as a float", "nested", "surrogate"],
)
def test_what_a_receiver_would_refuse_is_not_signed(data):
    job = new_job("x", now_ns=1, agent="a").replace(attempt=1)
    with pytest.raises(InvalidValue, match="data cannot be sent"):
        signed_event(job, EventName.PROGRESS, "", data, 10**18)


def test_the_key_never_goes_on_the_wire():
    job = new_job("x", now_ns=1, agent="a").replace(attempt=1)
    odd = job.replace(auth_token='a "quoted" key é \\ of old')
    for each in (job, odd):
        for detail, data in ((f"it is {each.auth_token}.", {}), ("", {"deep": [{each.auth_token: 1}]})):
            with pytest.raises(InvalidValue, match="the key of the job"):
                signed_event(each, EventName.PROGRESS, detail, data, 10**18)
    short = job.replace(auth_token="data")
    assert signed_event(short, EventName.PROGRESS, "", {}, 10**18).seq == 1


BAD_FIELDS = [
    {"schema_version": 2}, {"schema_version": True}, {"schema_version": "1"}, {"schema_version": 1.0},
    {"seq": 0}, {"seq": -1}, {"seq": True}, {"seq": "2"}, {"seq": 2.0}, {"seq": None},
    {"job_id": "../x"}, {"job_id": 7}, {"job_id": "918B0612"}, {"event": "finished"}, {"event": None}, {"event": ["progress"]},
    {"timestamp": "2026-06-20T14:48:58"}, {"timestamp": "2026-06-20T14:48:58+00:00"}, {"timestamp": 5}, {"timestamp": "now"},
    {"detail": None}, {"detail": 5}, {"detail": "x" * 4097}, {"data": None}, {"data": []}, {"data": "x"},
    {"data": {}}, {"data": {"attempt": 0}}, {"data": {"attempt": True}}, {"data": {"attempt": "1"}},
    {"data": {"attempt": 1, "auth_token": "x"}}, {"extra": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD_FIELDS)
def test_a_field_that_does_not_fit_is_refused(change):
    value = payload(**change)
    raw = signed(value) if isinstance(value["data"], dict) else json.dumps(value).encode()
    with pytest.raises(Rejected) as error:
        parse_event(raw)
    assert error.value.reason == "fields"


@pytest.mark.parametrize("name", list(payload()))
def test_a_missing_field_is_refused(name):
    value = payload()
    del value[name]
    with pytest.raises(Rejected):
        parse_event(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"x" * 70000, "size"),
        (b"\xff\xfe", "encoding"),
        (b"", "json"),
        (b"{", "json"),
        (b"nonsense", "json"),
        (b'{"a": NaN}', "json"),
        (b'{"a": Infinity}', "json"),
        (b'{"a": 1, "a": 2}', "json"),
        (b'{"a": {"b": 1, "b": 1}}', "json"),
        (b'{"a": 9007199254740992}', "json"),
        (b'{"a": 1e999}', "json"),
        (b'{"a": 555555555555555555555.0}', "json"),
        (b'{"a": -1e20}', "json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "json"),
        (b"[" * 17 + b"]" * 17, "json"),
        (b"[" * 60000, "json"),
        (b'{"a":' * 10000, "json"),
        (b"null", "fields"),
        (b"[]", "fields"),
        (b"5", "fields"),
        (b"\xef\xbb\xbf{}", "json"),
    ],
)
def test_what_is_not_strict_json_is_refused(raw, reason):
    with pytest.raises(Rejected) as error:
        parse_event(raw)
    assert error.value.reason == reason
    assert len(str(error.value)) < 100


def test_a_signature_that_is_missing_or_wrong():
    value = payload()
    for wrong in (None, 7, "", "0" * 64, signature(value, TOKEN).upper(), "é" * 64, "\ud800"):
        value["data"]["hmac_sig"] = wrong
        with pytest.raises(Rejected, match="HMAC verify failed") as error:
            accepts(json.dumps(value).encode())
        assert error.value.reason == "signature"


def test_every_part_is_signed():
    value = payload()
    value["data"]["hmac_sig"] = signature(value, TOKEN)
    for change in ({"seq": 3}, {"job_id": "918b0613"}, {"event": "completed"}, {"detail": "all"},
                   {"timestamp": "2026-06-20T14:48:59Z"}, {"data": value["data"] | {"attempt": 2}},
                   {"data": value["data"] | {"custom_metric": 43}}, {"data": value["data"] | {"new": 1}}):  # fmt: skip
        with pytest.raises(Rejected, match="HMAC"):
            accepts(json.dumps(value | change).encode())


def test_a_lone_surrogate_cannot_be_signed():
    value = payload(detail="\ud800")
    value["data"]["hmac_sig"] = "0" * 64
    with pytest.raises(Rejected):
        accepts(json.dumps(value).encode())


def test_nothing_forged_is_accepted(full, seed, figure):
    """S1: valid payloads, mutated in every way: none may pass as another event than the one that was signed."""
    draw = random.Random(seed)
    job = new_job("x", now_ns=1, agent="a").replace(attempt=1)
    originals = [
        signed_event(job.replace(last_seq=n), event, f"detail {n}", {"k": [n, {"x": "y"}]}, 10**18 + n).payload
        for n, event in enumerate(list(EventName) * 4)
    ]
    truths = [json.loads(raw) for raw in originals]
    rounds = 1_000_000 if full else 20_000
    accepted = crashes = 0
    reasons = set()
    for number in range(rounds):
        if number == rounds // 10:
            memory = memory_mb("VmRSS")
        raw = forge(draw, originals)
        try:
            event = accepts(raw, job.auth_token)
        except Rejected as error:
            reasons.add(error.reason)
        except Exception:
            crashes += 1
        else:
            accepted += event.payload() not in truths
    grown = memory_mb("VmRSS") - memory
    text = f"{rounds:,} forged payloads, {accepted} accepted, {crashes} crashes, memory {grown:+.1f} MB"
    assert {"json", "fields", "signature", "encoding", "size"} <= reasons
    figure("S1 forged payloads", text, held=accepted == crashes == 0 and grown < 4, seed=seed)


def forge(draw, originals) -> bytes:
    raw = bytearray(draw.choice(originals))
    kind = draw.randrange(10)
    if kind == 0:
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del raw[draw.randrange(len(raw)) :]
    elif kind == 2:
        other = draw.choice(originals)
        cut = draw.randrange(len(raw))
        raw = raw[:cut] + other[draw.randrange(len(other)) :]
    elif kind == 3:
        place = draw.randrange(len(raw))
        raw[place:place] = draw.choice(
            [b'"seq":99,', b"NaN", b"[" * 100, b"\\ud800", b"\xff", b"1e999", b'{"a":1}', b"\0"]
        )
    elif kind == 4:
        raw = raw.replace(b'"seq":', b'"seq":1', 1)
    elif kind == 5:
        value = json.loads(raw)
        value[draw.choice(list(value))] = draw.choice([True, None, 1, -1, 2**60, "x", [], {}, 1.5, "started", "0" * 8])
        raw = bytearray(json.dumps(value).encode())
    elif kind == 6:
        value = json.loads(raw)
        value["data"][draw.choice(["attempt", "hmac_sig", "k", "auth_token", "z"])] = draw.choice(
            [1, 2, "x", None, True]
        )
        raw = bytearray(json.dumps(value).encode())
    elif kind == 7:
        raw += b" " * draw.choice([1, 70000]) + draw.choice([b"", b"{}", b"x"])
    elif kind == 8:
        value = json.loads(raw)
        value["data"]["hmac_sig"] = signature(value, draw.choice(["", "null", "None", "auth_token", "0" * 43]))
        raw = bytearray(json.dumps(value).encode())
    else:
        raw = bytearray(draw.randbytes(draw.randrange(200)))
    return bytes(raw)


def test_the_published_vectors():
    """docs/protocol-vectors.json is what others test their publishers against."""
    import os

    path = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "protocol-vectors.json")
    with open(path) as file:
        vectors = json.load(file)
    assert len(vectors["vectors"]) >= 5
    for vector in vectors["vectors"]:
        assert canonical(vector["unsigned"]).decode() == vector["canonical"]
        assert signature(vector["unsigned"], vector["auth_token"]) == vector["hmac_sig"]
        assert accepts(vector["wire"].encode(), vector["auth_token"])
    for vector in vectors["rejected"]:
        with pytest.raises(Rejected) as error:
            accepts(vector["wire"].encode(), vector["auth_token"])
        assert error.value.reason == vector["reason"]
