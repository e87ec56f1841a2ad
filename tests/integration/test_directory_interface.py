"""The directory from Python, as docs/live-agents.md shows it."""

from __future__ import annotations

import pytest

import baton
from support.command import Baton


def test_a_name_from_publication_to_removal(tmp_path, tmux, monkeypatch):
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    tmux.start("gpu")
    Baton(tmp_path, BATON_STATE_DIR=str(tmp_path / "state"))("agent", "publish", "gpu", "--tmux-socket", tmux.socket)

    record = baton.resolve_live_agent_record("gpu")
    assert baton.resolve_live_agent_record("HOUMAO-gpu") == record
    target = baton.resolve_for_control("gpu")
    assert target.manifest.generation_id == record.generation_id
    assert baton.publish_live_agent_record(record.replace(agent_name="gpu")) == record
    with pytest.raises(baton.AgentTaken):
        baton.publish_live_agent_record(record.replace(generation_id="other"))
    renewed = baton.refresh_live_agent_record(record, lease_sec=3 * 86400)
    assert renewed.lease_expires_at > record.lease_expires_at
    with pytest.raises(baton.OwnershipLost):
        baton.refresh_live_agent_record(record.replace(generation_id="other"))
    assert [decision.action for decision in baton.cleanup_registry(dry_run=True)] == ["keep"]
    assert baton.remove_live_agent_record(record.agent_id, record.generation_id)
    assert not baton.remove_live_agent_record(record.agent_id, record.generation_id)
    assert baton.resolve_live_agent_record("gpu") is None
    with pytest.raises(baton.AgentNotFound):
        baton.resolve_for_control("gpu")
    with pytest.raises(baton.InvalidValue):
        baton.resolve_live_agent_record("../x")
