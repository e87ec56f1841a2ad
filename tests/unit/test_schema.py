"""The statements of a SQL registry that run often use the index made for them."""

from __future__ import annotations

import sqlite3

import pytest

from baton.core.job import Status
from baton.registry.contract import JobFilter
from baton.registry.schema import SQLITE_1, SQLITE_2, SQLITE_UPGRADE
from baton.registry.sql import SqlTransaction


class Explained(SqlTransaction):
    """A transaction that keeps the plan of each statement."""

    def __init__(self, raw):
        super().__init__(raw, "here")
        self.plans = []

    def rows(self, statement, values=None):
        plan = self.raw.execute(f"EXPLAIN QUERY PLAN {statement}", values or {})
        self.plans += [row[3] for row in plan if row[3].startswith(("SEARCH", "SCAN"))]
        return super().rows(statement, values)


@pytest.fixture
def tx():
    raw = sqlite3.connect(":memory:")
    raw.executescript(SQLITE_2)
    yield Explained(raw)
    raw.close()


def test_a_claim_reads_no_job_with_a_submitter_and_no_disputed_one(tx):
    names = ("agent_session", "holder", "now", "expires", "mark", "token")
    tx.claim(dict.fromkeys(names, 1), [], unless_due=True)
    assert any("USING INDEX jobs_pending (agent_session=?)" in plan for plan in tx.plans)


@pytest.mark.parametrize("more", [{}, {"agent_session": "q"}, {"created_until_ns": 5}])
def test_a_look_for_submitted_jobs_reads_no_other(tx, more):
    tx.page(JobFilter(statuses=[Status.PENDING], submitted=True, free=True, **more), 10, None)
    (plan,) = tx.plans
    assert "USING INDEX jobs_submitted" in plan


def test_an_upgraded_database_has_the_schema_of_a_new_one(tx):
    old = sqlite3.connect(":memory:")
    old.executescript(SQLITE_1)
    old.executescript(SQLITE_UPGRADE)
    schema = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    assert old.execute(schema).fetchall() == tx.raw.execute(schema).fetchall()
    old.close()
