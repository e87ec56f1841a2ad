"""What the runner reads of its own pane."""

from __future__ import annotations

import os
import types

from baton.core.clock import SystemClock
from baton.sessions.screen import Screen


def test_a_call_that_a_stop_has_ended_is_made_again(tmp_path, monkeypatch):
    """`session stop` ends the descendants of the runner, also a call of tmux that it is just making."""
    calls = tmp_path / "calls"
    tmux = tmp_path / "tmux"
    tmux.write_text(f'#!/bin/sh\necho x >> "{calls}"\n[ "$(wc -l < "{calls}")" -gt 1 ] || kill $$\necho last words\n')
    tmux.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    screen = Screen(types.SimpleNamespace(pane_id="%0", socket="baton-test"), SystemClock())
    assert screen.text() == "last words\n"
    tmux.write_text("#!/bin/sh\nexit 1\n")
    assert screen.text() == ""
