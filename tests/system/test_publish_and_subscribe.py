"""Two terminals on a fresh machine, no broker anywhere: one listens, the other speaks."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from baton.core.event import EventName
from baton.jobs.verbs import open_jobs
from support.command import BATON, Baton, interruptible
from support.homes import settings_in
from support.ports import free_port


@pytest.fixture
def baton(tmp_path):
    baton = Baton(tmp_path)
    yield baton
    baton("broker", "down")


class Listening:
    def __init__(self, baton, *arguments):
        self.process = subprocess.Popen(
            [BATON, "subscribe", *arguments],
            cwd=baton.folder, env=baton.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=interruptible,
        )  # fmt: skip

    def line(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.parametrize(("last", "code"), [("completed", 0), ("error", 1)])
def test_events_appear_at_once_and_the_exit_code_tells_how_it_ended(baton, last, code):
    job = baton("register", "x").text
    listening = Listening(baton, "--job", job)
    answer = baton(
        "publish", "--job", job, "--event", "started", "--detail", "off we go", "--data", "n=1", "--data", "s=x y"
    ).json
    assert answer == {"job_id": job, "seq": 1, "event": "started", "sent": True}
    first = listening.line()
    assert (first["event"], first["detail"], first["data"]) == (
        "started",
        "off we go",
        {"n": 1, "s": "x y", "attempt": 1},
    )
    baton("publish", job, "--event", "progress")
    assert listening.line()["seq"] == 2
    baton("publish", "--event", last, BATON_JOB_ID=job, BATON_ATTEMPT="1")
    assert listening.line()["event"] == last
    assert listening.end() == (code, "", "")
    assert baton("status", job).text == last


def test_the_other_exit_codes(baton):
    job = baton("register", "x").text
    code, out, err = Listening(baton, job, "--idle-timeout", "0.5").end()
    assert (code, json.loads(out)["timed_out"]) == (2, "listener")
    assert "nothing was heard for 0.5 s" in err
    code, out, err = Listening(baton, job, "--timeout", "0.5").end()
    assert (code, json.loads(out)["timed_out"]) == (2, "listener")
    assert "0.5 s have passed" in err
    listening = Listening(baton, job)
    baton("cancel", job)
    code, out, err = listening.end()
    assert (code, json.loads(out)["status"]) == (4, "cancelled")
    assert "was cancelled" in err
    listening = Listening(baton, job := baton("register", "y").text)
    baton("publish", job, "--event", "started")
    assert listening.line()["seq"] == 1
    listening.process.send_signal(signal.SIGINT)
    assert listening.end() == (130, "", "")


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("error", 1)])
def test_an_end_without_an_event_is_told(baton, status, code):
    job = baton("register", "x").text
    baton("pick")
    listening = Listening(baton, job)
    baton("status", job, "--set", status)
    ended, out, err = listening.end()
    assert (ended, json.loads(out)["status"], err) == (code, status, f"baton: job {job} was set to {status}\n")


def test_a_reader_that_has_gone_ends_the_listening_at_once(baton):
    job = baton("register", "x").text
    baton("publish", job, "--event", "started")
    listening = Listening(baton, job)
    assert listening.line()["seq"] == 1
    listening.process.stdout.close()
    assert listening.process.wait(20) == 0  # it would listen for much longer
    assert listening.process.stderr.read() == ""


def test_on_a_terminal_the_data_is_shown_briefly(baton):
    job = baton("register", "x").text
    baton("publish", job, "--event", "completed", "--detail", "done", "--data", "n=1", "--data", "s=x y")
    main, other = pty.openpty()
    process = subprocess.Popen(
        [BATON, "subscribe", job], cwd=baton.folder, env=baton.env | {"NO_COLOR": "1"}, stdout=other
    )
    assert process.wait(30) == 0
    os.close(other)
    line = os.read(main, 4096).decode()
    os.close(main)
    assert line[8:].split() == [job, "completed", "done", "n=1", "s=x", "y"]


def test_what_a_terminal_would_act_on_is_an_escape_in_json(baton):
    """An older version may have recorded what is taken out today."""
    with open_jobs(settings_in(baton.folder, baton.env)) as jobs:
        job = jobs.register_job("x", agent="a").job_id
        jobs.registry.record_event(job, EventName.COMPLETED, detail="a\x9b31m\u202eb", data={"ü": "\u2066"})
    out = baton("subscribe", job, "--json").out
    assert r'"a\u009b31m\u202eb"' in out
    assert json.loads(out)["data"] == {"ü": "\u2066", "attempt": 1}


def test_without_a_broker_nothing_is_lost(baton):
    env = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}
    job = baton("register", "x").text
    for event in ("started", "progress", "progress"):
        result = baton("publish", job, "--event", event, "--attempts", "1", **env)
        assert result.json["sent"] is False
        assert result.err.startswith("baton: warning: not sent yet: the broker at 127.0.0.1:")
        assert result.err.count("\n") == 1
    refused = baton("publish", job, "--event", "progress", "--attempts", "1", "--require-broker", code=1, **env)
    assert "recorded and will be sent later" in refused.err
    listening = Listening(baton, job)
    assert [listening.line()["seq"] for _ in range(4)] == [1, 2, 3, 4]
    assert baton("registry", "stats", "--json").json["unsent"] == 4
    baton("publish", job, "--event", "completed")
    assert listening.end()[0] == 0
    assert baton("registry", "stats", "--json").json["unsent"] == 0


def test_wrong_input(baton):
    job = baton("register", "x", "--expect", "a.md").text
    assert "must be one of started" in baton.refused("publish", job, "--event", "finished", code=64)
    assert "deadbeef" in baton.refused("publish", "deadbeef", "--event", "started")
    assert "--event" in baton.refused("publish", job, code=64)
    assert "name=value" in baton.refused("publish", job, "--event", "started", "--data", "x", code=64)
    assert "BATON_ATTEMPT" in baton.refused("publish", job, "--event", "started", code=64, BATON_ATTEMPT="x")
    assert "a.md is missing" in baton.refused("publish", job, "--event", "completed")
    assert "stale attempt" in baton.refused("publish", job, "--event", "progress", "--attempt", "7")
    assert "no job is named" in baton.refused("subscribe", code=64)
    assert "give either job IDs or --follow-all" in baton.refused("subscribe", "--follow-all", job, code=64)
    assert "MQTT_PORT" in baton.refused("subscribe", job, code=64, MQTT_PORT="70000")
    assert "deadbeef" in baton.refused("subscribe", "deadbeef")
    assert "timeout" in baton.refused("subscribe", job, "--timeout", "-1", code=64)
    assert baton("publish", job, "--event", "completed", "--no-verify").json["sent"]
    assert "skipped by --no-verify" in baton("logs", job).out
    assert "that never changes again" in baton.refused("publish", job, "--event", "progress")


def test_the_key_is_nowhere_to_be_seen(baton, tmp_path):
    job = baton("register", "x").text
    key = baton("get", job, "--show-secrets").json["auth_token"]
    listening = Listening(baton, job)
    baton("publish", job, "--event", "started", "--detail", f"my key is {key}", "--data", f"k={key}")
    baton("publish", job, "--event", "completed")
    code, out, err = listening.end()
    assert code == 0
    logs = "".join(path.read_text() for path in (tmp_path / ".hermes" / "delegate_job_logs").rglob("*.*json"))
    wire = (tmp_path / ".local/state/baton/broker/data").rglob("*")
    assert key not in out + err + logs
    assert not any(key.encode() in path.read_bytes() for path in wire if path.is_file())


def test_broker_commands(baton, tmp_path):
    assert "not running" in baton("broker", "status", code=1).out
    assert "never started" in baton.refused("broker", "logs")
    place = baton("broker", "up").text
    assert place.startswith("127.0.0.1:")
    assert baton("broker", "up").text == place
    assert place in baton("broker", "status").out
    assert "Server is ready" in baton("broker", "logs").out
    assert (
        baton("broker", "logs", "--json", "--tail", "2").json == baton("broker", "logs", "--tail", "2").out.splitlines()
    )
    assert baton("broker", "status", "--json").json == baton("broker", "up", "--json").json
    assert baton("broker", "check").out.count("ok  ") == 6
    login = json.loads((tmp_path / ".local/state/baton/broker/broker.json").read_text())
    env = {
        "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(login["port"]),
        "MQTT_USERNAME": "writer", "MQTT_PASSWORD": login["writer_password"],
    }  # fmt: skip
    assert "--role worker" in baton("broker", "check", code=1, **env).err
    assert "only a subscriber can find out" in baton("broker", "check", "--role", "worker", **env).out
    assert "FAILED  subscribe" in baton("broker", "check", "--role", "orchestrator", code=1, **env).out
    assert baton("broker", "down", "--json").json == {"stopped": True}
    assert baton("broker", "down", "--json").json == {"stopped": False}
    assert baton("broker", "status", "--json", code=1).json == {
        "running": False,
        "host": None,
        "port": None,
        "pid": None,
    }
    made = baton("broker", "init", "--mosquitto", "set", "--host", "b.example")
    assert "set/mosquitto.conf" in made.out
    assert "already holds a set" in baton.refused("broker", "init", "--mosquitto", "set")
    renewed = baton("broker", "init", "--mosquitto", "set", "--renew")
    assert "restart the broker\n" in renewed.err
    assert "chown -R mosquitto set" in renewed.err or os.geteuid() != 0
    assert ".env files" in baton("broker", "init", "--mosquitto", "set", "--renew", "--host", "c.example").err
    baton("broker", "init", "--nats", "mtls", "--mtls")
    assert "give the clients their new cert" in baton("broker", "init", "--nats", "mtls", "--renew").err
    assert "cannot be read" in baton.refused("broker", "check", "--set", "nowhere", code=64)


def test_values_nested_too_deeply_are_refused_in_one_line(tmp_path):
    baton = Baton(tmp_path, MQTT_BROKER="127.0.0.1", MQTT_PORT="1")
    job = baton("register", "x").text
    for value in ("[" * 20000, "[" * 20000 + "]" * 20000, "[" * 900 + "]" * 900, "[" * 17 + "]" * 17, "1e20"):
        assert "data " in baton.refused("publish", job, "--event", "progress", "--data", f"x={value}", code=64)
    assert baton("status", job).text == "pending"


@pytest.mark.parametrize(
    "module", ["baton.cli.main", "baton.cli.parser", "baton.cli.publish", "baton.transport.publisher_connection"]
)
def test_interrupted_while_it_loads_it_exits_as_interrupted(tmp_path, module):
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupts:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == sys.argv[0]:
            os.kill(os.getpid(), signal.SIGINT)
sys.argv = sys.argv[1:]
sys.meta_path.insert(0, Interrupts)
from baton.__main__ import run
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, module, "publish", "abc12345", "--event", "started"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
