"""`baton agent`, as a person types it, with real tmux; on files and on PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from baton.sessions.manifest import Manifest
from support.command import BATON, Baton, interruptible
from support.postgres import PostgresServer
from support.waiting import wait_until


@pytest.fixture(params=["files", "postgresql"])
def baton(request, tmp_path):
    env = {"BATON_HOST": "here"}
    if request.param == "postgresql":
        env["BATON_REGISTRY"] = request.getfixturevalue("postgres").new_url()
    return Baton(tmp_path, **env)


def publish(baton, tmux, name="gpu", session="gpu", *more):
    return baton("agent", "publish", name, "--session", session, "--tmux-socket", tmux.socket, "--json", *more).json


def verdict(baton, name):
    return {each["agent_name"]: each["verdict"] for each in baton("agent", "list", "--json").json}[f"HOUMAO-{name}"]


def test_a_name_is_published_found_refreshed_and_given_back(baton, tmux):
    tmux.start("gpu")
    record = publish(baton, tmux)
    assert record["agent_name"] == "HOUMAO-gpu"
    assert record["terminal"] == {"kind": "tmux", "session_name": "gpu", "socket": tmux.socket, "host": "here"}
    for wanted in ("gpu", "HOUMAO-gpu", record["agent_id"]):
        assert baton("agent", "resolve", wanted, "--control", "--json").json == record
    generation = record["generation_id"]
    later = baton("agent", "refresh", "gpu", "--generation", generation, "--lease", "2d", "--json").json
    assert later["lease_expires_at"] > record["lease_expires_at"]
    assert baton("agent", "remove", "gpu", "--generation", generation).text.startswith("HOUMAO-gpu\t")
    assert "no live agent HOUMAO-gpu" in baton.refused("agent", "resolve", "gpu")
    assert not os.listdir(os.path.join(baton.folder, ".local/state/baton/manifests"))


def test_a_taken_name_says_who_has_it_and_a_takeover_wins(baton, tmux):
    tmux.start("one")
    tmux.start("two")
    first = publish(baton, tmux, "gpu", "one")
    refusal = baton.refused("agent", "publish", "gpu", "--session", "two", "--tmux-socket", tmux.socket)
    for part in ("'one' on here", first["generation_id"], first["published_at"], first["lease_expires_at"]):
        assert part.partition(".")[0] in refusal
    assert "." not in refusal.partition(" since ")[2].partition(";")[0], "people count in seconds"
    second = publish(baton, tmux, "gpu", "two", "--takeover")
    loser = ("gpu", "--generation", first["generation_id"])
    assert "stop using the name" in baton.refused("agent", "refresh", *loser)
    assert "nothing was removed" in baton.refused("agent", "remove", *loser)
    assert baton("agent", "resolve", "gpu", "--json").json == second


def test_resolve_explains(baton, tmux):
    tmux.start("gpu")
    record = publish(baton, tmux)
    for wanted in ("gpu", "HOUMAO-gpu"):
        told = baton("agent", "resolve", wanted, "--explain", "--json").json
        assert (told["reason"], told["record"]) == ("found", record)
    publish(baton, tmux, "gpu", "gpu", "--agent-id", "second")
    told = baton("agent", "resolve", "gpu", "--explain", "--json", code=1).json
    assert told["reason"] == "ambiguous"
    assert {each["agent_id"] for each in told["looked_at"]} == {"second", record["agent_id"]}
    readable = baton("agent", "resolve", "gpu", "--explain", code=1)
    assert readable.out == ""
    assert "examined second of HOUMAO-gpu: fresh" in readable.err
    assert "ambiguous: gpu may be any of 2" in readable.err
    assert "did you mean HOUMAO-gpu?" in baton.refused("agent", "resolve", "gpv")


def test_an_explanation_says_whether_it_can_be_controlled(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("other")
    tmux.start("gpu")
    publish(baton, tmux)
    wanted = ("agent", "resolve", "gpu", "--control", "--explain", "--json")
    assert baton(*wanted).json["control"] == "ok"
    tmux.end("gpu")
    told = baton(*wanted, code=1).json
    assert "has no session 'gpu'" in told["control"]
    assert told["record"] is not None


def test_a_record_with_strange_keys_harms_no_terminal(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    record = publish(baton, tmux, "gpu", "gpu", "--agent-id", "odd")
    path = os.path.join(baton.folder, ".local/state/baton/registry/live_agents/odd/record.json")
    for key in ("\ud800", "\x1b]0;owned\x07"):
        with open(path, "w") as file:
            json.dump(record | {key: 1}, file)
        told = [
            baton("agent", "list"),
            baton("agent", "list", "--json"),
            baton("agent", "resolve", "--id", "odd", "--explain", code=1),
            baton("agent", "resolve", "odd", "--explain", "--json", code=1),
            baton("agent", "show", "odd", code=1),
            baton("agent", "watch", "--timeout", "0.1", code=2),
            baton("agent", "cleanup", "--dry-run", "--grace", "0s"),
        ]
        for each in told:
            assert "is not a field of this object" in each.out + each.err, each
            assert "\x1b" not in each.out + each.err


def test_an_id_can_be_told_from_a_name(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    assert "reads like a name" in baton.refused(
        "agent", "publish", "gpu", "--agent-id", "HOUMAO-cpu", "--tmux-socket", tmux.socket, code=64
    )
    record = publish(baton, tmux, "gpu", "gpu", "--agent-id", "cpu")
    assert "no live agent with id gpu" in baton.refused("agent", "resolve", "--id", "gpu")
    assert baton("agent", "resolve", "--id", "cpu", "--json").json == record
    assert baton("agent", "show", "--id", "cpu").json["record"] == record
    generation = ("--generation", record["generation_id"])
    baton("agent", "refresh", "--id", "cpu", *generation)
    baton("agent", "remove", "--id", "cpu", *generation)


def test_options_may_stand_in_front_of_the_action(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    other = f"file:{tmp_path}/elsewhere"
    publish(baton, tmux, "gpu", "gpu", "--directory", other)
    assert len(baton("agent", "--directory", other, "--json", "list").json) == 1
    assert len(baton("agent", "--json", "list", "--directory", other).json) == 1
    assert baton("agent", "--json", "list").json == []


def test_an_ambiguous_name_is_so_in_json_too_and_a_lease_is_shown_as_it_was_given(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    publish(baton, tmux)
    publish(baton, tmux, "gpu", "gpu", "--agent-id", "second", "--lease", "3d")
    assert [each["verdict"] for each in baton("agent", "list", "--json").json] == ["ambiguous"] * 2
    rows = [line.split("\t") for line in baton("agent", "list").out.splitlines()]
    assert {row[2]: row[5] for row in rows}["second"] == "3d"
    assert "24h" in [row[5] for row in rows]


def test_cleanup_goes_on_after_what_it_cannot_remove_and_says_so(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("other")
    folder = os.path.join(baton.folder, ".local/state/baton/registry")
    for name in ("a", "b", "c"):
        os.makedirs(os.path.join(folder, "live_agents", name))
        os.utime(os.path.join(folder, "live_agents", name), (1, 1))
    os.makedirs(os.path.join(folder, "locks", "b"))
    done = baton("agent", "cleanup", code=1)
    assert [line.split("\t")[:2] for line in done.out.splitlines()] == [["remove", "a"], ["keep", "b"], ["remove", "c"]]
    assert "could not remove it" in done.out


def test_a_manifest_that_cannot_be_removed_stops_no_other_and_is_told(tmp_path):
    baton = Baton(tmp_path, BATON_HOST="here")
    state = os.path.join(baton.folder, ".local/state/baton")
    os.makedirs(os.path.join(state, "manifests"))
    os.makedirs(os.path.join(state, "registry", "locks", "a"))
    for name in ("a", "b"):
        path = os.path.join(state, "manifests", f"{name}.g.json")
        Manifest(
            agent_name=f"HOUMAO-{name}", agent_id=name, generation_id="g", backend="tmux", tool="shell",
            session_name=name, socket=None, host="here", workdir=None, pane_pid=os.getpid(), pane_started=1,
        ).write(path)  # fmt: skip
        os.utime(path, (1, 1))
    told = baton("agent", "cleanup", code=1).err.splitlines()
    assert "cannot remove" in told[0]
    assert "a.g.json, a manifest without an agent: " in told[0]
    assert told[1].startswith("removed ")
    assert os.listdir(os.path.join(state, "manifests")) == ["a.g.json"]


def test_list_and_show_tell_verdict_and_reason(baton, tmux):
    assert baton("agent", "list").err == "no live agents\n"
    assert baton("agent", "list", "--json").json == []
    tmux.start("gpu")
    record = publish(baton, tmux)
    publish(baton, tmux, "brief", "gpu", "--lease", "1s")
    wait_until(lambda: verdict(baton, "brief") == "expired")
    rows = [line.split("\t") for line in baton("agent", "list").out.splitlines()]
    assert rows[0][:2] == ["HOUMAO-brief", "expired"]
    assert rows[1][:5] == ["HOUMAO-gpu", "fresh", record["agent_id"], "here", "gpu"]
    assert [each["verdict"] for each in baton("agent", "list", "--json").json].count("fresh") == 1
    assert baton("agent", "show", "gpu").json["control"] == "ok"
    tmux.end("gpu")
    assert "no s" in baton("agent", "show", "gpu").json["control"]
    assert baton("agent", "show", "brief", code=1).json["reason"] == "expired"


def test_a_session_that_is_not_there_gets_no_name(baton, tmux):
    assert "no server" in baton.refused("agent", "publish", "gpu", "--tmux-socket", tmux.socket)
    tmux.start("gpu-2")
    assert "no session 'gpu'" in baton.refused("agent", "publish", "gpu", "--tmux-socket", tmux.socket)
    assert baton("agent", "list", "--json").json == []


def test_the_active_pane_is_the_one_that_counts(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    tmux("split-window", "-t", "=gpu:", "sleep", "600")
    publish(baton, tmux)
    tmux("kill-pane", "-t", "=gpu:0.0")
    baton("agent", "resolve", "gpu", "--control")
    refusal = baton.refused("agent", "publish", "x", "--session", "y", "--tmux-socket", tmux.socket)
    assert f"see: tmux -S {tmux.socket} ls" in refusal


@pytest.mark.parametrize("name", ["../x", "", "a b", "x" * 10_000, "HOUMAO-", "HOUMAO", "-x", "--", "a;b", "\u202egpu"])
def test_a_wrong_name_is_refused_before_anything_is_built_from_it(baton, tmux, name):
    tmux.start("s")
    for action in (
        ["resolve"],
        ["show"],
        ["publish"],
        ["remove", "--generation", "g"],
        ["refresh", "--generation", "g"],
    ):
        result = baton("agent", *action, "--json", "--", name, code=64)
        assert result.out == ""
        assert "agent name" in result.err
        assert len(result.err) < 250
    assert not os.path.exists(os.path.join(baton.folder, ".local/state/baton/registry/live_agents"))


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["publish", "gpu", "--lease", "soon"], 64, "--lease must be a duration"),
        (["publish", "gpu", "--lease", "0s"], 64, "--lease must be more than 0"),
        (["publish", "gpu", "--lease", "9999w"], 64, "--lease must be more than 0 and at most 10 years"),
        (["publish", "gpu", "--agent-id", "a/b"], 64, "agent id must be"),
        (["publish", "gpu", "--manifest", "none.json"], 1, "no longer exists"),
        (["remove", "gpu"], 64, "--generation"),
        (["resolve", "gpu", "--directory", "sqlite:x"], 64, "directory must be file:/FOLDER"),
        (["resolve", "gpu", "--directory", "file:here"], 64, "directory must be file:/FOLDER"),
        (["cleanup", "--grace-seconds", "-1"], 64, "--grace-seconds must be 0 seconds or more"),
        (["cleanup", "--grace-seconds", "nan"], 64, "--grace-seconds must be 0 seconds or more"),
        (["cleanup", "--grace-seconds", "inf"], 64, "--grace-seconds must be 0 seconds or more"),
        (["cleanup", "--grace", "soon"], 64, "--grace-seconds must be a duration"),
        (["watch", "--interval", "0"], 64, "--interval must be more than 0"),
        (["watch", "--timeout", "nan"], 64, "--timeout must be at least 0"),
        ([], 64, "ACTION"),
    ],
)
def test_wrong_input_gets_one_line(tmp_path, arguments, code, why):
    assert why in Baton(tmp_path).refused("agent", *arguments, code=code)


def test_cleanup_says_what_and_why(baton, tmux):
    tmux.start("gpu")
    tmux.start("brief")
    publish(baton, tmux)
    publish(baton, tmux, "brief", "brief", "--lease", "1s")
    wait_until(lambda: verdict(baton, "brief") == "expired")
    kept = baton("agent", "cleanup", "--grace-seconds", "0", "--json").json
    assert {each["action"] for each in kept} == {"keep"}
    tmux.end("brief")
    told = baton("agent", "cleanup", "--grace-seconds", "0", "--dry-run").out.splitlines()
    assert any(line.startswith("would remove\tHOUMAO-brief\tits lease expired at ") for line in told), told
    assert any(line.startswith("would keep\tHOUMAO-gpu\tfresh until ") for line in told), told
    assert len(baton("agent", "list", "--json").json) == 2
    done = baton("agent", "cleanup", "--grace-seconds", "0").out
    assert done.startswith("remove\tHOUMAO-brief\t")
    assert len(baton("agent", "list", "--json").json) == 1


def test_another_host_resolves_a_name_but_does_not_control_it(tmp_path, postgres, tmux):
    url = postgres.new_url()
    tmux.start("gpu")
    here = Baton(tmp_path, BATON_REGISTRY=url, BATON_HOST="here")
    there = Baton(tmp_path, BATON_DIRECTORY=url, BATON_HOST="there")
    record = publish(here, tmux)
    assert there("agent", "resolve", "gpu", "--json").json == record
    assert "runs on here; control it there" in there.refused("agent", "resolve", "gpu", "--control")
    assert "runs on here" in there("agent", "show", "gpu").json["control"]


def test_a_manifest_says_everything_but_the_name(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    first = publish(baton, tmux)
    path = first["runtime"]["manifest_path"]
    again = baton("agent", "publish", "gpu", "--manifest", path, "--json").json
    assert (again["generation_id"], again["published_at"]) == (first["generation_id"], first["published_at"])
    assert "belongs to HOUMAO-gpu" in baton.refused("agent", "publish", "cpu", "--manifest", path, code=64)
    other = ("agent", "publish", "gpu", "--manifest", path, "--session", "other")
    assert "leave it out" in baton.refused(*other, code=64)


def test_watch_prints_changes_until_it_is_interrupted(tmp_path, tmux):
    baton = Baton(tmp_path, BATON_HOST="here")
    tmux.start("gpu")
    record = publish(baton, tmux)
    watch = subprocess.Popen(
        [BATON, "agent", "watch", "--json", "--interval", "0.1"],
        cwd=tmp_path, env=baton.env, stdout=subprocess.PIPE, text=True, preexec_fn=interruptible,
    )  # fmt: skip
    try:
        assert json.loads(watch.stdout.readline())["change"] == "appeared"
        baton("agent", "refresh", "gpu", "--generation", record["generation_id"], "--lease", "2d")
        assert json.loads(watch.stdout.readline())["change"] == "refreshed"
        publish(baton, tmux, "gpu", "gpu", "--takeover", "--generation", "g2")
        assert json.loads(watch.stdout.readline())["change"] == "replaced"
        baton("agent", "remove", "gpu", "--generation", "g2")
        seen = json.loads(watch.stdout.readline())["change"]
        if seen == "changed":  # it was looked at in the middle of its replacement
            seen = json.loads(watch.stdout.readline())["change"]
        assert seen == "removed"
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 130
    finally:
        watch.kill()
        watch.wait()
        watch.stdout.close()
    assert baton("agent", "watch", "--timeout", "0.2", code=2).out == ""


def test_watch_outlives_a_restart_of_the_server(tmp_path, tmux):
    server = PostgresServer()
    baton = Baton(tmp_path, BATON_HOST="here", BATON_DIRECTORY=server.new_url())
    tmux.start("gpu")
    record = publish(baton, tmux)
    watch = subprocess.Popen(
        [BATON, "agent", "watch", "--json", "--interval", "0.1"],
        cwd=tmp_path, env=baton.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert json.loads(watch.stdout.readline())["change"] == "appeared"
        server.stop()
        assert "trying again" in watch.stderr.readline()
        server.start()
        baton("agent", "remove", "gpu", "--generation", record["generation_id"])
        assert json.loads(watch.stdout.readline())["change"] == "removed"
    finally:
        watch.kill()
        watch.wait()
        watch.stdout.close()
        watch.stderr.close()
        server.remove()
