"""A listing that goes over many pages."""

from __future__ import annotations

import pytest

from baton.config import Settings
from baton.core.job import Status
from baton.jobs import verbs as jobs_module
from baton.jobs.verbs import open_jobs
from baton.registry.contract import JobFilter


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "_PAGE", 3)
    with open_jobs(Settings({"home": str(tmp_path)})) as jobs:
        for number in range(10):
            jobs.register_job(f"job {number}")
        yield jobs


def test_each_job_comes_once_newest_first(jobs):
    assert [job.prompt for job in jobs.each_job()] == [f"job {number}" for number in reversed(range(10))]
    assert list(jobs.each_job(JobFilter(statuses=[Status.RUNNING]))) == []


def test_a_limit_ends_it_where_the_next_page_begins(jobs):
    pages = list(jobs.pages(limit=7))
    assert [len(page.jobs) for page in pages] == [3, 3, 1]
    (rest,) = jobs.pages(after=pages[-1].next)
    assert [job.prompt for job in rest] == ["job 2", "job 1", "job 0"]
    assert rest.next is None
    assert [len(page.jobs) for page in jobs.pages(limit=50)] == [3, 3, 3, 1]
