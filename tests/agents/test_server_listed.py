"""The MCP server that `baton skills install --mcp` adds to a project, as the agents themselves list it."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from support.command import BATON

AGENTS = {"claude": r"baton: baton mcp ", "codex": r"baton +baton +mcp ", "gemini": r"baton: baton mcp \(stdio\)"}


@pytest.mark.parametrize("program", AGENTS)
def test_an_agent_lists_the_server_until_it_is_uninstalled(world, program):
    env = world.baton.env | {"PATH": f"{os.path.dirname(BATON)}:{os.environ['PATH']}"}

    def run(*argv):
        done = subprocess.run(
            argv,
            cwd=world.work,
            env=env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout + done.stderr  # gemini lists on stderr

    def is_listed():
        return re.search(AGENTS[program], run(program, "mcp", "list")) is not None

    assert not is_listed()
    run(BATON, "skills", "install", "--mcp", "--yes")
    assert is_listed()
    run(BATON, "skills", "install", "--mcp", "--uninstall", "--yes")
    assert not is_listed()
    assert os.listdir(world.work) == []
