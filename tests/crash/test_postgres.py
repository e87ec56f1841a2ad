"""R9: PostgreSQL loses connections and is restarted at random; the registry in it loses nothing."""

from __future__ import annotations

import signal
import time
from random import Random

import psycopg
import pytest

from support.crew import PATIENCE_SEC, Crew
from support.postgres import PostgresServer
from support.workload import Findings, Ledger, hire

WORKERS = 8


@pytest.fixture
def own_server():
    server = PostgresServer()
    yield server
    server.remove()


@pytest.mark.timeout(1800)
def test_a_server_that_fails_loses_nothing(own_server, figure, full, seed):
    chance = Random(seed)
    disruptions, restarts = (500, 30) if full else (50, 5)
    restarted_at = set(chance.sample(range(disruptions), restarts))
    url = own_server.new_url()
    ledger, findings = Ledger(), Findings()
    with Crew() as crew:
        for name in map(str, range(WORKERS)):
            hire(crew, url, name, chance, outages=True)
        for number in range(disruptions):
            if number in restarted_at:
                own_server.stop(signal.SIGQUIT)
                own_server.start()
            else:
                _terminate_a_session(own_server, chance)
            ledger.take(crew.hear(chance.uniform(0.010, 0.060)))
        crew.kill_all()
        ledger.take(crew.hear_out())
    findings.blame(crew.failures)
    findings.compare(ledger, url)
    figure(
        "R9 server failures",
        f"{disruptions - restarts} sessions ended, {restarts} restarts, {findings}",
        held=findings.held,
        seed=seed,
    )


def _terminate_a_session(server: PostgresServer, chance: Random) -> None:
    """Ends the session of a random worker; waits until there is one."""
    until = time.monotonic() + PATIENCE_SEC
    with psycopg.connect(server.url, autocommit=True) as connection:
        while time.monotonic() < until:
            sessions = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'baton' ORDER BY pid"
            ).fetchall()
            if sessions and connection.execute(
                "SELECT pg_terminate_backend(%s)", chance.choice(sessions)
            ).fetchone() == (True,):
                return
    raise AssertionError("no worker connects any more")
