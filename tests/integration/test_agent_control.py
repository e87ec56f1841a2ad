"""Whether a fresh record leads to the session that was meant, with real tmux. The tests of the first part are named
after the seed's list of hard failures."""

from __future__ import annotations

import os
import time

import pytest

from baton.core.errors import (
    AgentDefDirUnusable,
    IdentityMismatch,
    ManifestGone,
    ManifestInvalid,
    ManifestPathRelative,
    NotInTmux,
    RemoteAgent,
    SessionGone,
    SessionMismatch,
)
from baton.live_agents.files import FileDirectory
from baton.live_agents.names import derived_id
from baton.live_agents.record import new_record
from baton.sessions.live_agents import Action, Observer, cleanup_entries, control_target
from baton.sessions.manifest import Manifest
from baton.sessions.processes import started_at
from support.tmux import TmuxServer
from support.waiting import wait_until

NAME = "HOUMAO-gpu"


class Agent:
    """A session in tmux, its manifest and its record; each can be told otherwise."""

    def __init__(self, tmux, tmp_path):
        self.path = str(tmp_path / "manifest.json")
        self.manifest = Manifest(
            agent_name=NAME, agent_id=derived_id(NAME), generation_id="g1", backend="tmux", tool="shell",
            session_name="gpu", socket=tmux.socket, host="here", workdir=None, pane_pid=(pid := tmux.start("gpu")),
            pane_started=started_at(pid),
        )  # fmt: skip
        self.record = new_record(
            NAME, derived_id(NAME), "g1", now_ns=time.time_ns(), lease_ns=10**12, tool="shell",
            manifest_path=self.path, session_name="gpu", socket=tmux.socket, host="here",
        )  # fmt: skip

    def target(self, *, record=None, manifest=None, **more):
        self.manifest.replace(**(manifest or {})).write(self.path)
        return control_target(self.record.replace(**(record or {})), host="here", **more)


@pytest.fixture
def agent(tmux, tmp_path):
    return Agent(tmux, tmp_path)


def test_what_agrees_in_everything_may_be_controlled(agent, tmux):
    target = agent.target()
    assert target.manifest.session_name == "gpu"
    assert target.tmux.socket == tmux.socket


def test_the_manifest_path_is_not_absolute(agent):
    with pytest.raises(ManifestPathRelative, match="not absolute"):
        agent.target(record={"manifest_path": "manifest.json"})


def test_the_manifest_file_no_longer_exists(agent):
    with pytest.raises(ManifestGone, match="no longer exists"):
        agent.target(record={"manifest_path": agent.path + ".gone"})


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"schema_version": 1, "agent_name": 5}', b" " * 70_000]
)
def test_the_manifest_is_no_manifest(agent, content):
    agent.target()
    with open(agent.path, "wb") as file:
        file.write(content)
    with pytest.raises(ManifestInvalid):
        control_target(agent.record, host="here")


def test_the_manifest_backend_is_not_tmux_backed(agent):
    with pytest.raises(NotInTmux, match="'headless'"):
        agent.target(manifest={"backend": "headless"})


@pytest.mark.parametrize("change", [{"session_name": "other"}, {"socket": "/another/socket"}])
def test_the_session_in_the_manifest_does_not_match_the_addressed_one(agent, change):
    with pytest.raises(SessionMismatch, match="its record points at"):
        agent.target(manifest=change)


@pytest.mark.parametrize("change", [{"agent_name": "HOUMAO-cpu"}, {"agent_id": "x"}, {"generation_id": "g2"}])
def test_the_manifest_is_of_another_agent_whatever_tmux_calls_its_session(agent, change):
    with pytest.raises(IdentityMismatch, match=next(iter(change))):
        agent.target(manifest=change)


def test_the_tmux_session_is_gone(agent, tmux):
    tmux.start("gpu-2")
    tmux.end("gpu")  # and gpu-2, which a mere prefix would match, lives
    with pytest.raises(SessionGone, match="has no session 'gpu'"):
        agent.target()
    tmux("kill-server")
    with pytest.raises(SessionGone, match="no server"):
        agent.target()


def test_another_session_has_taken_the_same_name_in_tmux(agent, tmux):
    tmux.start("other")
    tmux.end("gpu")
    tmux.start("gpu")
    with pytest.raises(SessionMismatch, match="is another one now"):
        agent.target()


def test_a_process_that_only_has_the_number_of_the_one_that_was_meant_is_another(agent):
    """As after a restart of a container: the same names, the same pids, another session."""
    with pytest.raises(SessionMismatch, match="is another one now"):
        agent.target(manifest={"pane_started": agent.manifest.pane_started - 1})
    assert agent.target(manifest={"pane_started": None}).manifest.pane_started is None  # written before it was kept


@pytest.mark.parametrize("known", [True, False])
def test_a_pane_that_is_dead_is_no_session_to_control(agent, tmux, known):
    tmux("set-option", "-t", "gpu", "remain-on-exit", "on")
    os.kill(agent.manifest.pane_pid, 9)
    wait_until(lambda: tmux("list-panes", "-t", "=gpu", "-F", "#{pane_dead}") == "1")
    with pytest.raises(SessionGone, match="its pane is dead"):
        agent.target(manifest={} if known else {"pane_pid": None, "pane_started": None})


def test_a_session_on_another_machine_is_refused_with_its_name(agent):
    with pytest.raises(RemoteAgent, match="runs on build-7"):
        agent.target(record={"host": "build-7"})


@pytest.mark.parametrize(
    ("path", "why"), [(None, "names no agent_def_dir"), ("agents", "not absolute"), ("/gone/x", "not a folder")]
)
def test_an_agent_def_dir_is_required_but_missing_relative_or_stale(agent, path, why):
    with pytest.raises(AgentDefDirUnusable, match=why):
        agent.target(record={"agent_def_dir": path}, needs_agent_def_dir=True)
    assert agent.target(record={"agent_def_dir": path}).agent_def_dir == path  # nobody needs it


def test_an_explicit_agent_def_dir_wins(agent, tmp_path):
    given = str(tmp_path)
    target = agent.target(record={"agent_def_dir": "/gone"}, needs_agent_def_dir=True, agent_def_dir=given)
    assert target.agent_def_dir == given
    with pytest.raises(AgentDefDirUnusable, match="--agent-def-dir"):
        agent.target(agent_def_dir="relative")


# -- clean-up ------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path):
    return FileDirectory(str(tmp_path / "registry"))


def publish(directory, name, session, socket, *, host="here", expired=True, pid=None, manifest="/nowhere/m.json"):
    """With `pid`, its manifest is there and names that process."""
    canonical = f"HOUMAO-{name}"
    age_ns = 2 * 3600 * 10**9 if expired else 0
    if pid is not None:
        manifest = f"{directory.where}-{name}.json"
    record = new_record(
        canonical, derived_id(canonical), "g1", now_ns=directory.now_ns() - age_ns, lease_ns=3600 * 10**9,
        tool="shell", manifest_path=manifest, session_name=session, socket=socket, host=host,
    )  # fmt: skip
    if pid is not None:
        Manifest(
            agent_name=canonical, agent_id=record.agent_id, generation_id="g1", backend="tmux", tool="shell",
            session_name=session, socket=socket, host=host, workdir=None, pane_pid=pid, pane_started=started_at(pid),
        ).write(manifest)  # fmt: skip
    with directory.locked(record.agent_id) as entry:
        directory.put(entry, record)
    return record.agent_id


def decisions(directory, **more):
    return {
        each.entry.agent_id: (each.action, each.why)
        for each in cleanup_entries(directory, observer=Observer("here"), **({"grace_sec": 0} | more))
    }


def test_an_idle_agent_whose_lease_ran_out_is_kept_while_its_session_lives(directory, tmux):
    tmux.start("gpu")
    tmux.start("cpu-2")
    alive = publish(directory, "gpu", "gpu", tmux.socket)
    gone = publish(directory, "cpu", "cpu", tmux.socket)
    decided = decisions(directory)
    assert decided[alive][0] is Action.KEEP
    assert "is running; refresh it" in decided[alive][1]
    assert decided[gone][0] is Action.REMOVE
    assert [entry.agent_id for entry in directory.all()] == [alive]


def test_a_live_session_under_another_socket_keeps_its_record(directory, tmux):
    other = TmuxServer()
    try:
        tmux.start("here")
        other.start("there")
        agent = publish(directory, "gpu", "there", other.socket)
        assert decisions(directory)[agent][0] is Action.KEEP
        other("kill-server")
        assert decisions(directory)[agent][0] is Action.REMOVE
    finally:
        other.remove()


def moved(tmux):
    """As when the socket lies in a /tmp that only others see."""
    os.rename(tmux.socket, tmux.socket + ".moved")


def renamed(tmux):
    tmux("rename-session", "-t", "=gpu", "another")


@pytest.mark.parametrize("hide", [moved, renamed])
@pytest.mark.parametrize("expired", [True, False])
def test_a_session_that_tmux_does_not_show_is_kept_while_its_process_lives(directory, tmux, hide, expired):
    agent = publish(directory, "gpu", "gpu", tmux.socket, pid=tmux.start("gpu"), expired=expired)
    os.utime(os.path.join(directory.folder_of(agent), "record.json"), (1, 1))
    hide(tmux)
    try:
        action, why = decisions(directory)[agent]
        assert action is Action.KEEP
        assert "its process" in why
    finally:
        if hide is moved:
            os.rename(tmux.socket + ".moved", tmux.socket)


def test_a_socket_that_is_not_there_proves_nothing_by_itself(directory, tmux):
    agent = publish(directory, "gpu", "gpu", tmux.socket + ".gone")
    action, why = decisions(directory)[agent]
    assert action is Action.KEEP
    assert "No such file" in why


def test_after_a_reboot_the_process_that_is_gone_proves_it(directory, tmux):
    pid = tmux.start("gpu")
    agent = publish(directory, "gpu", "gpu", tmux.socket + ".gone", pid=pid)
    assert decisions(directory)[agent][0] is Action.KEEP
    tmux("kill-server")
    wait_until(lambda: started_at(pid) is None)
    assert decisions(directory)[agent][0] is Action.REMOVE


def test_a_socket_one_may_not_use_proves_nothing(directory, tmux, monkeypatch):
    agent = publish(directory, "gpu", "gpu", tmux.socket)

    def refused(self):
        self._fail("list-panes", f"error connecting to {self.socket} (Permission denied)")

    monkeypatch.setattr("baton.sessions.tmux.Tmux.panes", refused)  # root, who may run the tests, may use every socket
    assert decisions(directory)[agent][0] is Action.KEEP


def test_a_manifest_that_cannot_be_understood_proves_nothing(directory, tmux, tmp_path):
    tmux.start("other")
    path = str(tmp_path / "odd.json")
    with open(path, "w") as file:
        file.write("{}")
    agent = publish(directory, "gpu", "gpu", tmux.socket, manifest=path)
    assert decisions(directory)[agent][0] is Action.KEEP


def test_tmux_is_asked_again_before_anything_goes(directory, tmux, monkeypatch):
    """Who came after the first look, and before the lock, is seen."""
    tmux.start("other")
    agent = publish(directory, "gpu", "gpu", tmux.socket)
    real = directory.locked

    def late(agent_id):
        tmux.start("gpu")
        return real(agent_id)

    monkeypatch.setattr(directory, "locked", late)
    assert decisions(directory)[agent][0] is Action.KEEP


@pytest.mark.parametrize("socket", [None, "a-name-that-nobody-uses"])
def test_what_can_not_be_observed_is_kept(directory, socket):
    by_name = publish(directory, "gpu", "gpu", socket)
    remote = publish(directory, "far", "far", "/x", host="build-7")
    decided = decisions(directory)
    assert decided[by_name][0] is decided[remote][0] is Action.KEEP
    assert "it is on build-7" in decided[remote][1]
    assert "--no-tmux-check" not in decided[by_name][1], "no advice to remove what cannot be judged"


def test_without_tmux_nothing_is_removed(directory, tmux, monkeypatch):
    agent = publish(directory, "gpu", "gpu", tmux.socket)
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        decided = decisions(directory)
    assert decided[agent][0] is Action.KEEP
    assert "tmux is not installed" in decided[agent][1]


def test_a_fresh_record_of_a_session_that_is_gone_goes_after_the_grace_period(directory, tmux):
    tmux.start("other")
    agent = publish(directory, "gpu", "gpu", tmux.socket, expired=False)
    assert decisions(directory, grace_sec=300)[agent][0] is Action.KEEP
    path = os.path.join(directory.folder_of(agent), "record.json")
    then = time.time() - 400
    os.utime(path, (then, then))
    assert decisions(directory, grace_sec=300)[agent] == (Action.REMOVE, "its tmux session 'gpu' is gone")
