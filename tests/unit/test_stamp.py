"""A look at a file that says whether it was written since."""

from __future__ import annotations

import os
import time

from baton.storage.stamp import stamp_of

LONG_AGO = 1_000_000_000 * 10**9


def write(path, text, mtime_ns=LONG_AGO):
    path.write_text(text)
    os.utime(path, ns=(mtime_ns, mtime_ns))


def test_a_file_that_was_not_written_has_the_same_stamp(tmp_path):
    write(tmp_path / "log", "one")
    assert stamp_of(str(tmp_path / "log")) == stamp_of(str(tmp_path / "log")) is not None


def test_a_write_changes_the_stamp(tmp_path):
    log = tmp_path / "log"
    write(log, "one")
    before = stamp_of(str(log))
    write(log, "two", LONG_AGO + 1)
    after = stamp_of(str(log))
    write(log, "more", LONG_AGO + 1)
    assert len({before, after, stamp_of(str(log))}) == 3


def test_a_new_file_of_the_same_size_and_time_has_another_stamp(tmp_path):
    log = tmp_path / "log"
    write(log, "one")
    write(tmp_path / "new", "two")
    before = stamp_of(str(log))
    os.replace(tmp_path / "new", log)
    assert stamp_of(str(log)) != before


def test_there_is_no_stamp_while_the_next_write_may_have_the_same_time(tmp_path):
    log = tmp_path / "log"
    write(log, "one", time.time_ns())
    assert stamp_of(str(log)) is None
    write(log, "one", time.time_ns() + 60 * 10**9)  # the clock was set back
    assert stamp_of(str(log)) is None


def test_the_first_file_that_exists_counts(tmp_path):
    log, base = tmp_path / "log", tmp_path / "base"
    missing = stamp_of(str(log), str(base))
    assert missing == stamp_of(str(log), str(base)) is not None
    write(base, "one")
    before = stamp_of(str(log), str(base))
    write(log, "one")
    assert None is not stamp_of(str(log), str(base)) not in (before, missing)
