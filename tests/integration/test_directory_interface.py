"""The directory from Python, as docs/live-agents.md shows it."""

from __future__ import annotations

import os

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


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def agent(tmp_path, tmux, state):
    """A session that was given a name by hand: its manifest is ours."""
    tmux.start("gpu")
    tmux.start("other")
    baton_command = Baton(tmp_path, BATON_STATE_DIR=str(state))
    baton_command("agent", "publish", "gpu", "--tmux-socket", tmux.socket)
    return baton.resolve_live_agent_record("gpu"), baton_command


def test_a_refused_publication_costs_the_owner_nothing(agent, tmux):
    record, command = agent
    generation = ("--generation", record.generation_id)
    socket = ("--tmux-socket", tmux.socket)
    assert "belongs to" in command.refused("agent", "publish", "gpu", "--session", "other", *generation, *socket)
    assert "belongs to" in command.refused("agent", "publish", "gpu", "--session", "other", *socket)
    baton.resolve_for_control("gpu")
    assert os.listdir(os.path.dirname(record.manifest_path)) == [f"{record.agent_id}.{record.generation_id}.json"]
    # The same generation under another id has a manifest of its own.
    command("agent", "publish", "cpu", "--session", "other", *generation, *socket)
    baton.resolve_for_control("gpu")
    baton.resolve_for_control("cpu")


def test_a_removal_that_removes_nothing_costs_the_owner_nothing(agent):
    record, command = agent
    assert not baton.remove_live_agent_record("somebody-else", record.generation_id)
    with pytest.raises(baton.OwnershipLost):
        baton.remove_live_agent_record(record.agent_id, "other")
    command("agent", "remove", "cpu", "--generation", record.generation_id, code=1)
    baton.resolve_for_control("gpu")
    assert baton.remove_live_agent_record(record.agent_id, record.generation_id)
    assert not os.path.exists(record.manifest_path)


def test_a_manifest_that_was_only_named_is_never_ours_to_delete(agent, tmp_path):
    record, command = agent
    own = str(tmp_path / "own.json")
    os.rename(record.manifest_path, own)
    command("agent", "remove", "gpu", "--generation", record.generation_id)
    command("agent", "publish", "gpu", "--manifest", own)
    command("agent", "remove", "gpu", "--generation", record.generation_id)
    assert os.path.exists(own)


def test_a_dead_session_is_not_published_by_its_manifest(agent, tmux, tmp_path):
    record, command = agent
    tmux.end("gpu")
    publish = ("agent", "publish", "gpu", "--manifest", record.manifest_path)
    assert "has no session 'gpu'; --no-tmux-check" in command.refused(*publish)
    command(*publish, "--no-tmux-check")


def test_manifests_that_nobody_needs_are_swept(agent, tmux):
    record, command = agent
    folder = os.path.dirname(record.manifest_path)
    command("agent", "publish", "gpu", "--session", "other", "--tmux-socket", tmux.socket, "--takeover")
    assert len(os.listdir(folder)) == 2
    assert len(baton.cleanup_registry(grace_sec=0)) == 1
    assert len(os.listdir(folder)) == 2, "its session lives"
    tmux.end("gpu")
    baton.cleanup_registry()
    assert len(os.listdir(folder)) == 2, "it is young"
    baton.cleanup_registry(grace_sec=0, dry_run=True)
    assert len(os.listdir(folder)) == 2
    baton.cleanup_registry(grace_sec=0)
    assert os.listdir(folder) == [os.path.basename(baton.resolve_live_agent_record("gpu").manifest_path)]


@pytest.mark.parametrize("lease_sec", [0, -1, float("nan"), float("inf"), 11 * 365 * 86400])
def test_a_lease_that_makes_no_sense_is_refused(agent, lease_sec):
    record, _ = agent
    with pytest.raises(baton.InvalidValue, match="lease"):
        baton.refresh_live_agent_record(record, lease_sec=lease_sec)
    with pytest.raises(baton.InvalidValue, match="lease"):
        new(lease_sec=lease_sec)


def new(**more):
    return baton.new_live_agent_record(
        "own", **({"session_name": "s", "manifest_path": "/nowhere/m.json", "tool": "shell"} | more)
    )


def test_a_record_of_ones_own_can_be_made_and_published(state):
    record = new(socket="/tmp/x", lease_sec=60)
    assert (record.agent_name, record.host) == ("HOUMAO-own", os.uname().nodename)
    assert baton.publish_live_agent_record(record) == record
    assert baton.resolve_live_agent_record("own") == record
    assert new().generation_id != record.generation_id
    assert new(agent_id="mine", generation_id="g").agent_id == "mine"
    with pytest.raises(baton.InvalidValue, match="reads like"):
        new(agent_id="HOUMAO-gpu")
    with pytest.raises(baton.InvalidValue, match="reads like"):
        baton.publish_live_agent_record(record.replace(agent_id="houmao-gpu"))


def test_a_record_in_a_shared_directory_says_on_which_host_it_is(state, postgres):
    url = postgres.new_url()
    stored = baton.publish_live_agent_record(new().replace(host=None), directory=url)
    assert stored.host == os.uname().nodename
    assert baton.resolve_live_agent_record("own", directory=url) == stored
