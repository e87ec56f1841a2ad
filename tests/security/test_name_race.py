"""S7: publishers of one agent_id, at the same instant, each in a process of its own: exactly one wins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from baton.live_agents.files import FileDirectory
from baton.live_agents.postgres import PostgresDirectory

PUBLISHERS = 8

# Each round has an agent_id of its own; all wait for the same line on their standard input.
PUBLISHER = """
import sys
from baton.config import Settings
from baton.live_agents import ownership
from baton.live_agents import open_directory
from baton.live_agents.record import new_record
from baton.core.errors import AgentTaken
me, url = sys.argv[1:]
directory = open_directory(Settings({"directory": url}))
directory.now_ns()
print("ready", flush=True)
for line in sys.stdin:
    agent_id = line.strip()
    record = new_record("HOUMAO-gpu", agent_id, me, now_ns=directory.now_ns(), lease_ns=10**13, tool="shell",
                        manifest_path="/nowhere", session_name=me)
    try:
        ownership.publish(directory, record)
        print("won", flush=True)
    except AgentTaken as taken:
        print("lost to", taken.owner.generation_id, flush=True)
"""


@pytest.mark.parametrize("kind", ["files", "postgresql"])
def test_one_of_eight_publishers_wins(kind, tmp_path, request, full, figure):
    rounds = 5000 if full else 200
    url = f"file:{tmp_path}" if kind == "files" else request.getfixturevalue("postgres").new_url()
    crew = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, f"p{number}", url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=os.environ,
        )
        for number in range(PUBLISHERS)
    ]  # fmt: skip
    directory = FileDirectory(str(tmp_path)) if kind == "files" else PostgresDirectory(url)
    wrong = 0
    try:
        for publisher in crew:
            assert publisher.stdout.readline() == "ready\n"
        for number in range(rounds):
            for publisher in crew:
                publisher.stdin.write(f"agent-{number}\n")
            told = [publisher.stdout.readline().strip() for publisher in crew]
            winners = [f"p{index}" for index, answer in enumerate(told) if answer == "won"]
            owner = directory.get(f"agent-{number}").record.generation_id
            # One winner, who is the owner, and whom every loser was told.
            wrong += winners != [owner] or told.count(f"lost to {owner}") != PUBLISHERS - 1
    finally:
        for publisher in crew:
            publisher.stdin.close()
            publisher.wait(30)
            publisher.stdout.close()
        directory.close()
    figure(
        f"S7 names taken at once ({kind})",
        f"{rounds:,} rounds of {PUBLISHERS} publishers, {wrong} without exactly one winner",
        held=wrong == 0,
    )
