"""The plugin for Claude Code, as Claude Code itself sees it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(shutil.which("claude") is None, reason="Claude Code is not installed")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


@pytest.fixture
def claude(tmp_path):
    def run(*arguments):
        quiet = {"DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        done = subprocess.run(
            ["claude", *arguments], cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | quiet,
            capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        return done.stdout

    return run


@pytest.mark.parametrize("manifest", ["marketplace.json", "plugin.json"])
def test_the_plugin_is_valid(claude, manifest):
    assert "Validation passed" in claude(
        "plugin", "validate", "--strict", os.path.join(ROOT, ".claude-plugin", manifest)
    )


def test_the_plugin_installs_with_all_skills(claude):
    claude("plugin", "marketplace", "add", ROOT)
    claude("plugin", "install", "baton@baton")
    details = claude("plugin", "details", "baton")
    for skill in os.listdir(os.path.join(ROOT, "skills")):
        assert skill in details


def test_the_skills_are_there_without_installing(claude):
    details = claude("--plugin-dir", ROOT, "plugin", "details", "baton")
    assert "Skills (7)" in details


def test_the_plugin_brings_the_mcp_server_both_ways(claude):
    server = "plugin:baton:baton: baton mcp"
    assert server not in claude("mcp", "list")
    assert server in claude("--plugin-dir", ROOT, "mcp", "list")
    claude("plugin", "marketplace", "add", ROOT)
    claude("plugin", "install", "baton@baton")
    assert server in claude("mcp", "list")
