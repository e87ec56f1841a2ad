"""The rules of a request: exactly one change leaves `open`, and only while its job runs the attempt that asked."""

from __future__ import annotations

from itertools import product

import pytest

from baton.core.errors import InvalidRecord, InvalidValue, RequestClosed, WrongState
from baton.core.job import Status
from baton.core.request import (
    MAX_OPEN,
    Answer,
    Asker,
    Request,
    RequestKind,
    RequestState,
    answer,
    check_request_id,
    close,
    is_open,
    present,
    refuse_more,
    sent,
    set_applied,
)

RUNNING = Asker(status=Status.RUNNING, attempt=2)
YES = Answer(answer="allow", by="me", via="cli")
NOW_NS = 1_800_000_000 * 10**9


def request(**fields) -> Request:
    made = Request(
        request_id="abcd0001",
        job_id="abcdef01",
        attempt=2,
        key="k",
        kind=RequestKind.TOOL,
        agent_ref=None,
        tool="Bash",
        call={"command": "make"},
        call_sha256=None,
        exact=True,
        summary="Bash: make",
        options=(),
        asked_at="2026-01-01T00:00:00Z",
    )
    return made.replace(**fields)


def test_it_is_open_only_if_all_four_say_so():
    for state, status, attempt, expired in product(RequestState, Status, (1, 2, 3), (False, True)):
        asked = request(state=state)
        job = Asker(status=status, attempt=attempt)
        wanted = state == "open" and status == "running" and attempt == 2 and not expired
        assert is_open(asked, job, expired) is wanted
        now = present(asked, job, expired).state
        assert (now == "open") is wanted
        if state != "open":
            assert now is state
        if not wanted:
            with pytest.raises(RequestClosed):
                answer(asked, job, YES, expired=expired, now_ns=NOW_NS)


def test_a_closed_one_never_changes_again():
    for state, wanted in product(RequestState, RequestState):
        if "open" not in (state, wanted) and wanted != "answered":
            with pytest.raises(RequestClosed):
                close(request(state=state), RUNNING, wanted, expired=wanted == "expired", now_ns=NOW_NS)


@pytest.mark.parametrize("state", [RequestState.OPEN, RequestState.ANSWERED])
def test_these_states_close_nothing(state):
    with pytest.raises(InvalidValue, match="does not close"):
        close(request(), RUNNING, state, expired=False, now_ns=NOW_NS)


def test_after_the_job_only_withdrawn_is_written():
    for job in (Asker(status=Status.COMPLETED, attempt=2), Asker(status=Status.RUNNING, attempt=3)):
        for state in (RequestState.ELSEWHERE, RequestState.EXPIRED):
            with pytest.raises(RequestClosed, match="does not ask it any more"):
                close(request(), job, state, expired=True, now_ns=NOW_NS)
        assert close(request(), job, RequestState.WITHDRAWN, expired=True, now_ns=NOW_NS).state == "withdrawn"


def test_the_refusal_names_the_first_answer():
    first = answer(request(), RUNNING, YES, expired=False, now_ns=NOW_NS)
    with pytest.raises(RequestClosed) as refused:
        answer(first, RUNNING, YES.replace(answer="deny", by="you"), expired=False, now_ns=NOW_NS + 1)
    assert refused.value.request is first
    assert str(refused.value) == (
        "request abcd0001 was answered already: allow by me (cli) at 2027-01-15T08:00:00Z; nothing was changed"
    )


def test_evidence_is_for_answers_and_the_first_stands():
    with pytest.raises(WrongState):
        sent(request(), now_ns=NOW_NS)
    with pytest.raises(WrongState):
        set_applied(request(state=RequestState.ELSEWHERE), "yes")
    answered = answer(request(), RUNNING, YES, expired=False, now_ns=NOW_NS)
    first = sent(answered, now_ns=NOW_NS)
    assert sent(first, now_ns=NOW_NS + 10**9) is first
    overridden = set_applied(first, "no", "user_reject")
    assert (overridden.state, overridden.applied, overridden.overridden_by) == ("answered", "no", "user_reject")
    assert set_applied(overridden, "yes") is overridden
    assert set_applied(first, "yes", "user_reject").overridden_by is None
    with pytest.raises(InvalidValue):
        set_applied(first, "unknown")


def test_a_job_has_at_most_so_many():
    refuse_more("abcdef01", MAX_OPEN - 1)
    with pytest.raises(WrongState, match="abcdef01 has 100 open requests"):
        refuse_more("abcdef01", MAX_OPEN)


def test_a_record_is_read_back_as_it_was():
    full = answer(
        request(options=({"question": "Which?", "choices": ["a"]},)),
        RUNNING,
        YES.replace(choices={"Which?": "a"}, scope="job", rule="r1", reason="fine"),
        expired=False,
        now_ns=NOW_NS,
    )
    assert Request.parse(full.record(), "abcdef01") == full


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "../x"), ("request_id", "ABCD0001"), ("job_id", "x"), ("job_id", "abcdef02"), ("attempt", 0),
        ("attempt", True), ("kind", "wish"), ("state", "maybe"), ("answer", "perhaps"), ("choices", ["a"]),
        ("choices", {"a": 1}), ("options", {}), ("options", ["a"]), ("options", [{"a": float("nan")}]),
        ("asked_at", "now"), ("expires_mark", "soon"), ("exact", 1), ("summary", None), ("applied", True),
        ("scope", "ever"), ("kind", ["tool"]), ("key", "a\0b"),
    ],
)  # fmt: skip
def test_a_record_that_is_not_valid_is_refused_by_name(field, value):
    with pytest.raises(InvalidRecord, match="requests") as refused:
        Request.parse(request().record() | {field: value}, "abcdef01")
    assert field in str(refused.value) or "another job" in str(refused.value)


@pytest.mark.parametrize("value", ["", "abcd000", "abcd00011", "ABCD0001", "../../ab", 5, None])
def test_an_id_is_checked_before_it_is_used(value):
    with pytest.raises(InvalidValue, match="request id"):
        check_request_id(value)
