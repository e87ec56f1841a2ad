"""The versions of the agents' programs with which baton is tested: those that `make test-agents` installs."""

from __future__ import annotations

import json
from pathlib import Path

from baton.adapters import BUILT_IN, find_agent
from baton.config import Settings

PINNED = json.loads((Path(__file__).parents[1] / "agents" / "package.json").read_text())["dependencies"]


def test_an_adapter_names_the_version_that_is_installed_for_its_tests():
    agents = [find_agent(Settings(env={}), name) for name in BUILT_IN]
    named = {each.install.rpartition(" ")[2]: each.tested_version for each in agents if each.tested_version}
    assert named == {package: PINNED[package] for package in named}
    assert named
