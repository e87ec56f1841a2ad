"""Notifications: one for each end that the user wants to know of, by a command, a bell or a webhook."""

from __future__ import annotations

import hmac
import json
import os
import signal
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from baton.core.drafts import new_job
from baton.core.errors import InvalidRecord, InvalidValue
from baton.core.job import Job
from baton.core.notification import NotifySettings
from baton.core.request import RequestState
from baton.jobs.verbs import open_jobs
from baton.sessions.notify import find_due, send
from support.asking import ask, running, set_activity
from support.command import BATON, Baton
from support.homes import settings_in
from support.office import Office
from support.terminal import Terminal
from support.waiting import wait_until

HOSTILE = "x'; touch pwned; $(touch pwned) \x1b]0;title\x07 --help\nsecond ; line \u202e"
KEY = "not-a-secret-but-a-key"


def configure(folder, table: str) -> None:
    path = os.path.join(folder, ".config", "baton")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "baton.toml"), "w") as file:
        file.write(f"[notify]\n{table}\n")


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path, BATON_AGENT="shell", MQTT_BROKER="127.0.0.1", MQTT_PORT="9")


def keep(folder) -> str:
    """A command that appends what it gets to a file, as a setting."""
    script = os.path.join(folder, "keep")
    with open(script, "w") as file:
        file.write("#!/bin/sh\nline=$(cat)\n")
        file.write(f'printf "%s\\n" "$line" >> {folder}/kept; echo "$BATON_NOTIFY_ID" >> {folder}/ids\n')
    os.chmod(script, 0o700)
    return f"command = [{json.dumps(script)}]"


def kept(folder) -> list[dict]:
    path = os.path.join(folder, "kept")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def fail(baton, detail=HOSTILE) -> str:
    job = baton("register", "true").text
    baton("publish", job, "--event", "error", "--detail", detail, "--attempts", "1")
    return job


def test_the_monitor_sends_what_no_runner_sent_and_sends_it_once(baton, tmp_path):
    configure(tmp_path, keep(tmp_path))
    job = fail(baton)
    assert list(baton("get", job).json["notify_due"]) == ["1:failed"]
    assert f"notification {job}:1:failed" in baton("monitor", "--once", "--dry-run").out
    assert kept(tmp_path) == []
    baton("monitor", "--once")
    baton("monitor", "--once")
    (event,) = kept(tmp_path)
    assert (event["id"], event["kind"], event["job_id"]) == (f"{job}:1:failed", "failed", job)
    assert event["reason"] == baton("get", job).json["reason"]
    assert (tmp_path / "ids").read_text() == f"{job}:1:failed\n"
    assert not (tmp_path / "pwned").exists()
    assert baton("get", job).json["notify_due"] == {}


def test_the_runner_sends_it_and_after_its_death_the_monitor(tmp_path):
    configure(tmp_path, keep(tmp_path))
    with Office(tmp_path) as office:
        office.submit("true")
        (first,) = wait_until(lambda: kept(tmp_path))
        assert (first["kind"], first["status"]) == ("completed", "completed")
        (tmp_path / "keep").write_text("#!/bin/sh\necho $PPID > hanging; exec sleep 1234\n")
        office.submit("exit 3", code=1)
        runner = int(wait_until(lambda: (tmp_path / "hanging").exists() and (tmp_path / "hanging").read_text()))
        keep(tmp_path)
        os.kill(runner, signal.SIGKILL)  # it has claimed the notification, and sends it
        wait_until(lambda: runner not in office.processes())
        office("monitor", "--once")
        office("monitor", "--once")
        assert [event["kind"] for event in kept(tmp_path)] == ["completed", "failed"]
        for pid in office.processes(also="sleep 1234"):
            os.kill(pid, signal.SIGKILL)


def test_one_notification_for_each_transition_into_what_needs_the_user(baton, tmp_path):
    configure(tmp_path, keep(tmp_path))
    settings = settings_in(tmp_path, baton.env)
    with open_jobs(settings) as jobs:
        registry, job = jobs.registry, running(jobs)

        def sent():
            return [each.due.id for each in send(settings, jobs, find_due(jobs)) if each.error is None]

        for kind in ("blocked", "stalled", "limited"):
            set_activity(registry, job, "working")
            set_activity(registry, job, kind, f"the cause of {kind}")
            set_activity(registry, job, kind, "another cause")  # no transition
            (sent_id,) = sent()
            assert sent_id.startswith(f"{job.job_id}:1:{kind}:")
            assert sent() == []
        first = ask(registry, job)
        second = ask(registry, job, key="k2")
        assert sent() == [f"{job.job_id}:1:waiting:{first.request_id}"], "it waited already when the second came"
        registry.close_request(first.request_id, RequestState.WITHDRAWN)
        registry.close_request(second.request_id, RequestState.WITHDRAWN)
        third = ask(registry, job)
        registry.close_request(third.request_id, RequestState.WITHDRAWN)  # as after an answer by a rule
        assert (list(registry.get_job(job.job_id).notify_due), len(sent())) == ([f"1:waiting:{third.request_id}"], 1)
        set_activity(registry, job, "working")
        set_activity(registry, job, "stalled", "x")
        set_activity(registry, job, "working")
        sent()
    events = kept(tmp_path)
    assert [event["kind"] for event in events] == ["blocked", "stalled", "limited", "waiting"], (
        "what is over is dropped"
    )
    assert events[0]["reason"] == "another cause"
    assert (events[3]["request_id"], events[3]["reason"]) == (first.request_id, first.summary)


def test_of_two_senders_one_sends(baton, tmp_path):
    configure(tmp_path, keep(tmp_path))
    for _ in range(3):
        fail(baton, "x")
    settings = settings_in(tmp_path, baton.env)
    sent = []

    def work():
        with open_jobs(settings) as jobs:
            found = find_due(jobs)
            meet.wait()
            sent.extend(each.due.id for each in send(settings, jobs, found))

    meet = threading.Barrier(4)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == len(set(sent)) == len(kept(tmp_path)) == 3


class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def hook():
    server = HTTPServer(("127.0.0.1", 0), Hook)
    server.got, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_webhook_gets_a_signed_notification_with_an_id_and_again_after_a_failure(baton, tmp_path, hook):
    (tmp_path / "key").write_text(f"{KEY}\n")
    url = f"http://127.0.0.1:{hook.server_port}/hook?room=1"
    configure(tmp_path, f'webhook = "{url}"\nwebhook_key_file = "{tmp_path}/key"\n{keep(tmp_path)}')
    hook.answers = [302]
    job = fail(baton, "cannot open /home/ana/secret.txt")
    assert "the webhook answered 302" in baton("monitor", "--once").out
    baton("monitor", "--once")
    baton("monitor", "--once")
    assert len(hook.got) == 2
    for path, headers, body in hook.got:
        assert path == "/hook?room=1"
        assert headers["X-Baton-Id"] == f"{job}:1:failed"
        assert headers["X-Baton-Signature"] == "sha256=" + hmac.new(KEY.encode(), body, "sha256").hexdigest()
        event = json.loads(body)
        assert (event["id"], event["reason"]) == (f"{job}:1:failed", "cannot open <path>")
        assert str(tmp_path) not in body.decode()
    assert [event["reason"] for event in kept(tmp_path)] == ["cannot open /home/ana/secret.txt"], "not sent twice"


def test_the_terminal_of_the_sender_rings(baton, tmp_path):
    configure(tmp_path, "bell = true")
    job = fail(baton)
    with Terminal([BATON, "monitor", "--once"], cwd=str(tmp_path), env=baton.env) as terminal:
        assert terminal.end() == 0
        assert b"\x1b]777;notify;baton: failed: " in terminal.shown
        assert f";{job}\x07\x07".encode() in terminal.shown
    baton("monitor", "--once")
    with open_jobs(settings_in(tmp_path, baton.env)) as jobs:
        titled = jobs.register_job("true", title="a;b")
    baton("publish", titled.job_id, "--event", "completed", "--attempts", "1")
    with Terminal([BATON, "monitor", "--once"], cwd=str(tmp_path), env=baton.env) as terminal:
        terminal.end()
        assert b"\x1b]777;notify;baton: done: unchecked: only the word of its agent;a,b\x07\x07" in terminal.shown


@pytest.mark.parametrize(
    "table",
    [
        'command = "notify-send x"',
        "command = []",
        'bell = "yes"',
        'webhook = "https://example.com"',
        'webhook = "http://example.com/x"\nwebhook_key_file = "/k"',
        'webhook = "ftp://127.0.0.1/x"\nwebhook_key_file = "/k"',
        'webhook = "https://me:pw@example.com/x"\nwebhook_key_file = "/k"',
        'webhook = "https://example.com"\nwebhook_key_file = "relative"',
        "sound = true",
    ],
)
def test_settings_that_are_not_valid_are_refused(table):
    with pytest.raises(InvalidValue, match="notify"):
        NotifySettings.parse(tomllib.loads(table), "baton.toml")


def test_only_the_users_own_settings_notify(baton, tmp_path):
    configure(tmp_path, 'bell = true\ncommand = ["no-such-program"]')
    assert ["notify.bell", "true"] in [line.split("\t")[:2] for line in baton("config", "show").out.splitlines()]
    assert "there is no program no-such-program" in baton("doctor", code=1).out
    os.remove(tmp_path / ".config" / "baton" / "baton.toml")
    baton("register", "true")
    home = settings_in(tmp_path, baton.env).home
    with open(os.path.join(home, "baton.toml"), "w") as file:
        file.write('[notify]\ncommand = ["touch", "pwned"]\n')
    assert "[notify]" in baton.refused("register", "true", code=baton("register", "true", code=None).code)


@pytest.mark.parametrize("entry", [None, {}, {"to": 1}, {"to": "a@b", "tries": "x"}, {"to": "a@b", "done": "bell"}])
def test_a_record_with_another_kind_of_notification_is_not_valid(entry):
    job = new_job("x", now_ns=0, agent="shell").record()
    with pytest.raises(InvalidRecord, match="notify_due"):
        Job.parse(job | {"notify_due": {"1:failed": entry}})
