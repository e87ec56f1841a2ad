"""R12: agent, runner, answerer and broker are killed at every step of a request. Nothing runs that was denied or
unanswered, nothing stays open after its job has ended, nothing is answered twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from random import Random

import pytest

from baton.core.errors import RequestClosed
from baton.core.request import Answer, RequestState
from baton.core.signal import ALLOW, DENY
from baton.jobs import requests
from baton.jobs.verbs import open_jobs
from support.brokers import Broker
from support.claude import Claude, install_program
from support.crew import Crew
from support.homes import settings_in
from support.sessions import SessionDesk
from support.waiting import wait_until

ANSWERERS_A_ROUND = 8


class Round:
    """One job with its agent, whose questions are answered by processes that are killed."""

    def __init__(self, desk, crew, chance) -> None:
        self._desk, self._crew, self._chance = desk, crew, chance
        self.settings = settings_in(desk.folder, desk.env)
        self.job = desk.register("do it", agent="claude-code")
        desk("session", "create", "gpu", "--job", self.job, "--replace")
        self.claude = Claude(desk, "gpu")
        self.claude.start(f"This is job {self.job} of baton")
        self.wrong: list[str] = []

    def read(self, action):
        with open_jobs(self.settings) as jobs:
            return action(jobs)

    def open_requests(self):
        return self.read(lambda jobs: jobs.registry.list_requests(job_id=self.job))

    def ask(self, number):
        tool = self.claude.tool(f"step {number}")
        asked = self.claude.ask(tool)
        (request,) = wait_until(self.open_requests, what="the request is open")
        return tool, asked, request.request_id

    def answer_and_kill(self, number) -> None:
        tool, asked, request_id = self.ask(number)
        pid = self._crew.fork(_answer, self.settings, request_id, self._chance.choice((ALLOW, DENY)))
        time.sleep(self._chance.uniform(0, 0.02))  # it is killed at any moment
        self._crew.kill(pid)
        if self._row(request_id).state is RequestState.OPEN:
            if not asked.is_open:
                self.wrong.append(f"{request_id}: an answer without a row")
            _answer(print, self.settings, request_id, DENY)
        got = asked.decision()["behavior"]
        row = self._row(request_id)
        if got != row.answer:
            self.wrong.append(f"{request_id}: the agent got {got}, the row says {row.answer}")
        with pytest.raises(RequestClosed):
            _answer(print, self.settings, request_id, ALLOW)
        if got == ALLOW:
            self.claude.end_tool(tool)
        else:
            calls = [{"tool_use_id": tool["tool_use_id"], "tool_response": "no"}]
            self.claude.send("PostToolBatch", tool_calls=calls)

    def _row(self, request_id):
        return self.read(lambda jobs: jobs.registry.get_request(request_id))

    def end(self, who, number) -> None:
        """Kills the agent or the runner while a request is open, perhaps while it is being answered."""
        _, asked, request_id = self.ask(number)
        if self._chance.random() < 0.5:
            self._crew.fork(_answer, self.settings, request_id, ALLOW)
            time.sleep(self._chance.uniform(0, 0.1))  # it is killed at any moment
        row = self._desk.row("gpu")
        pid = row["pane_pid"]
        if who == "agent":
            with open(f"/proc/{pid}/task/{pid}/children") as children:
                pid = int(children.read().split()[0])
        os.kill(pid, signal.SIGKILL)
        wait_until(self._is_over, what="the job and its session have ended")
        answer = asked.answer()
        if answer and self._row(request_id).answer != ALLOW:
            self.wrong.append(f"{request_id}: something ran that was not allowed")
        if self.open_requests():
            self.wrong.append(f"a request of job {self.job} is open after its end")
        lines = self.read(lambda jobs: list(jobs.history.lines(self.job)))
        closed = Counter(line.get("request_id") for line in lines if line.get("event") == "request_closed")
        self.wrong += [f"{each} was answered twice" for each, times in closed.items() if times > 1]

    def _is_over(self):
        self._desk("monitor", "--once", code=None)
        return self._desk.job(self.job)["status"] != "running" and self._desk.row("gpu")["state"] != "running"


def _answer(_say, settings, request_id, answer) -> None:
    with open_jobs(settings) as jobs:
        requests.answer(jobs, request_id, Answer(answer=answer, by="tester", via="cli"))


@pytest.mark.timeout(3600)
def test_a_kill_answers_nothing_and_leaves_nothing_open(tmp_path, figure, full, seed):
    chance = Random(seed)
    broker = Broker("mosquitto")
    desk = SessionDesk(str(tmp_path), BATON_LEASE_SEC="1", MQTT_PORT=str(broker.port))
    install_program(desk, tmp_path)
    wrong, kills = [], 0
    try:
        for number in range(100 if full else 4):
            with Crew() as crew:
                this = Round(desk, crew, chance)
                for step in range(ANSWERERS_A_ROUND):
                    if step == 4:
                        broker.kill()
                    this.answer_and_kill(step)
                broker.start()
                this.end(("agent", "runner")[number % 2], ANSWERERS_A_ROUND)
            wrong += this.wrong
            kills += ANSWERERS_A_ROUND + 2
    finally:
        desk.close()
        broker.remove()
    figure("R12 requests", f"{kills:,} kills, {wrong or 'every answer as it was given'}", held=not wrong, seed=seed)
