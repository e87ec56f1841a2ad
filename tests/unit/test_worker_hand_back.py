"""What a worker does with a job that it cannot begin."""

from __future__ import annotations

import pytest

from baton.config import Settings
from baton.core.errors import AgentUnusable, RegistryUnavailable
from baton.core.event import EventName
from baton.delegation import attempts
from baton.delegation.worker import Worker
from baton.jobs.report import report
from baton.jobs.verbs import open_jobs


@pytest.fixture
def settings(tmp_path):
    return Settings({"home": str(tmp_path)}, env={"HOME": str(tmp_path), "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"})


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


class Away:
    """The registry, as it is away from the first start of a session until it was asked so many times more."""

    def __init__(self, jobs, monkeypatch, error, times):
        self._jobs, self._error, self._left, self.starts = jobs, error, times, 0
        monkeypatch.setattr(attempts, "create_session", self._create)
        for name in ("release", "get_job"):
            monkeypatch.setattr(jobs, name, self._unless_away(getattr(jobs, name)))

    def _create(self, *_, job, attempt, **__):
        self.starts += 1
        if self.starts == 1:
            raise self._error
        report(self._jobs, job.job_id, EventName.COMPLETED, detail="done", attempt=attempt)

    def _unless_away(self, call):
        def asked(*arguments, **options):
            if self.starts == 1 and self._left:
                self._left -= 1
                raise RegistryUnavailable("it is away")
            return call(*arguments, **options)

        return asked


@pytest.mark.parametrize("error", [RegistryUnavailable("it is away"), AgentUnusable("its runner: it is away")])
@pytest.mark.parametrize("times", [1, 3])
def test_a_job_that_could_not_begin_while_the_registry_was_away_is_handed_back_and_counts_for_nothing(
    settings, jobs, monkeypatch, tmp_path, error, times
):
    job = jobs.register_job("x", agent="shell", agent_session="q", max_attempts=1)
    away = Away(jobs, monkeypatch, error, times)
    worker = Worker(settings, jobs, "q", agent="shell", workdir=str(tmp_path), max_jobs=1)
    worker.run()
    ended = jobs.get_job(job.job_id)
    assert (ended.status, ended.attempt) == ("completed", 2)
    assert (worker.ended, away.starts) == ({"completed": 1}, 2)
