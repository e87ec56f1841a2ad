"""Trust in git worktrees, with the real programs: where trust in the repository holds in its worktrees, no question comes
and nothing is written; where it does not, `submit` names the folder."""

from __future__ import annotations

import json
import os

import pytest

from support.repositories import git
from truth.scripted_model import Say, bash

KEPT = {
    "claude-code": ".claude.json",
    "codex": ".codex/config.toml",
    "copilot": ".copilot/config.json",
}


@pytest.fixture
def repository(world):
    git(world.work, "init", "-q", "-b", "main")
    (world.work / "a.txt").write_text("one\n")
    git(world.work, "add", "-A")
    git(world.work, "commit", "-q", "-m", "first")
    return world


def trusted(world, agent):
    """The folders that the program has noted as trusted."""
    text = (world.home / KEPT[agent]).read_text()
    if agent == "claude-code":
        projects = json.loads(text)["projects"]
        return [path for path, entry in projects.items() if entry.get("hasTrustDialogAccepted")]
    if agent == "copilot":
        return json.loads("".join(line for line in text.splitlines() if not line.startswith("//")))["trustedFolders"]
    return [line for line in text.splitlines() if line.startswith("[projects")]


@pytest.mark.parametrize("mode", [("--headless",), ()], ids=["headless", "interactive"])
@pytest.mark.parametrize("agent", KEPT)
def test_trust_in_the_repository_holds_in_its_worktrees(repository, agent, mode):
    world = repository
    world.allow("Bash")
    before = trusted(world, agent)
    world.model.will(bash("echo hello > out.txt"), Say("I wrote it."))
    done = world.baton(
        "submit", "write out.txt", "--agent", agent, "--workdir", str(world.work), "--worktree", "--expect", "out.txt",
        "--timeout", "120", "--detach", *mode,
    )  # fmt: skip
    assert "note:" not in done.err
    job = world.ended(done.text, within_sec=130)
    assert job["status"] == "completed", world.events(done.text)
    assert os.path.exists(os.path.join(job["checkout"]["path"], "out.txt"))
    assert not (world.work / "out.txt").exists()
    assert trusted(world, agent) == before
    world.baton("merge", job["job_id"])
    assert (world.work / "out.txt").read_text() == "hello\n"
