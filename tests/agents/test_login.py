"""A user who is not logged in learns so at once, from each agent that says it in any way."""

from __future__ import annotations

import json
import re
import time

import pytest

# What a user without a login lacks, and the word by which the agent names it.
KEYS = {
    "claude-code": (("ANTHROPIC_API_KEY",), "log ?in|login"),
    "copilot": (("COPILOT_OFFLINE", "COPILOT_PROVIDER_BASE_URL", "COPILOT_PROVIDER_API_KEY", "COPILOT_MODEL"), "log ?in|login|auth"),
    "gemini": (("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"), "log ?in|login|auth"),
    "qwen": (("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"), "log ?in|login|auth"),
}  # fmt: skip
_WITHIN_SEC = 10


CASES = [(agent, ("--headless",)) for agent in KEYS] + [("claude-code", ()), ("gemini", ())]


@pytest.mark.parametrize(("agent", "mode"), CASES, ids=lambda each: each if isinstance(each, str) else "".join(each))
def test_a_user_without_a_login_learns_it_at_once(world, agent, mode):
    names, word = KEYS[agent]
    for name in names:
        world.baton.env.pop(name, None)
    for path in (".qwen/settings.json", ".gemini/settings.json"):
        settings = world.home / path
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"security": {}}))
    job = world.baton("submit", "Write.", "--agent", agent, "--workdir", str(world.work), *mode, "--detach").text
    begun = time.monotonic()

    def said():
        record = world.record(job)
        activity = record.get("activity") or {}
        text = " ".join(str(each) for each in (record["reason"], record["detail"], activity.get("cause")))
        stands = record["status"] == "error" or activity.get("kind") in ("blocked", "waiting")
        return stands and re.search(word, text, re.IGNORECASE)

    world.until(said, "its word of the login", 40)
    assert time.monotonic() - begun < _WITHIN_SEC, f"after {time.monotonic() - begun:.1f} s: {world.record(job)}"
