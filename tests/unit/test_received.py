"""Which events were received: as ranges, so that a listener keeps no number for each event."""

from __future__ import annotations

from random import Random

from baton.history.log import init_job_log, iter_logged_events
from baton.history.received import Ranges, Received, append_received

JOB = "0a1b2c3d"


def test_ranges_hold_what_a_set_holds():
    random = Random(1)
    for _ in range(200):
        ranges, numbers = Ranges(), set()
        for _ in range(random.randint(1, 80)):
            number = random.randint(1, 60)
            ranges.add(number)
            numbers.add(number)
            assert [each for each in range(62) if each in ranges] == sorted(numbers)
        gaps = sum(number + 1 not in numbers for number in numbers)
        assert len(ranges) == gaps, "ranges that touch are one"


def test_numbers_that_follow_each_other_take_no_room():
    ranges = Ranges()
    for number in range(1, 100_001):
        ranges.add(number)
    assert len(ranges) == 1


def log_of(tmp_path):
    record = {"job_id": JOB, "status": "pending"}
    init_job_log(record, now_ns=1, logs_dir=str(tmp_path))
    return str(tmp_path)


def received(logs_dir):
    return [line["seq"] for line in iter_logged_events(JOB, logs_dir) if line["event"] == "received"]


def test_an_event_is_received_once_by_however_many_listeners(tmp_path):
    logs_dir = log_of(tmp_path)
    one, other = Received(), Received()
    append_received(JOB, [(1, "started"), (2, "progress")], one, now_ns=2, logs_dir=logs_dir)
    append_received(JOB, [(2, "progress"), (3, "progress")], other, now_ns=3, logs_dir=logs_dir)
    append_received(JOB, [(3, "progress"), (5, "completed")], one, now_ns=4, logs_dir=logs_dir)
    append_received(JOB, [(4, "progress"), (5, "completed")], other, now_ns=5, logs_dir=logs_dir)
    assert received(logs_dir) == [1, 2, 3, 5, 4]


def test_a_log_that_was_cut_is_read_from_its_beginning(tmp_path):
    logs_dir = log_of(tmp_path)
    known = Received()
    append_received(JOB, [(1, "started"), (2, "progress")], known, now_ns=2, logs_dir=logs_dir)
    path = tmp_path / JOB / "events.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    append_received(JOB, [(2, "progress")], known, now_ns=3, logs_dir=logs_dir)
    assert received(logs_dir) == [1, 2]


def test_half_a_line_of_a_crash_hides_no_event(tmp_path):
    logs_dir = log_of(tmp_path)
    known, other = Received(), Received()
    append_received(JOB, [(1, "started")], known, now_ns=2, logs_dir=logs_dir)
    path = tmp_path / JOB / "events.ndjson"
    with path.open("ab") as file:
        file.write(b'{"n": 3, "event": "recei')
    append_received(JOB, [(1, "started")], known, now_ns=3, logs_dir=logs_dir)  # reads up to it
    append_received(JOB, [(2, "progress")], other, now_ns=4, logs_dir=logs_dir)  # removes it
    append_received(JOB, [(2, "progress")], known, now_ns=5, logs_dir=logs_dir)
    assert received(logs_dir) == [1, 2]
