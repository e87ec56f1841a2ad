"""Publishing to real brokers, and to things that only look like one."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from baton.broker.address import Address, is_loopback
from baton.config import Settings
from baton.core.drafts import new_job
from baton.core.errors import (
    BrokerUnavailable,
    EventRefused,
    InvalidRecord,
    InvalidValue,
    JobNotFound,
    NotVerified,
    StaleAttempt,
)
from baton.core.event import EventName
from baton.history.log import iter_logged_events
from baton.jobs.verbs import open_jobs
from baton.jobs.verification import check_results
from baton.transport import publisher_connection
from baton.transport.listener_connection import ListenerConnection
from baton.transport.publish import publish_event
from baton.transport.publisher_connection import PublisherConnection
from support.ports import free_port
from support.waiting import wait_until


@pytest.fixture
def settings_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(env):
        return Settings(env={"HOME": str(tmp_path)} | env)

    return make


@pytest.fixture
def session(settings_for, broker):
    settings = settings_for(broker.env)
    with open_jobs(settings) as jobs:
        yield jobs, settings


def listen(broker, job, count, *extra):
    """mosquitto_sub, an independent client, on the job's topic."""
    process = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", job.events_topic, "-q", "1",
         "-C", str(count), "-W", "20", "-V", "mqttv311", "-d", *extra],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if "received SUBACK" in line:
            return process
    raise AssertionError("mosquitto_sub could not subscribe")


def payloads(process):
    lines = process.stdout.read().splitlines()  # ends with mosquitto_sub, after 20 s at the latest
    process.wait()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_an_independent_client_receives_what_was_published(session, broker):
    jobs, settings = session
    job = jobs.register_job("x", agent="a", workdir="/srv/project")
    listener = listen(broker, job, 3)
    for event, detail in (("started", "in /srv/project/x"), ("progress", "50 %"), ("completed", "done")):
        assert publish_event(jobs, settings, job.job_id, event, detail=detail, data={"n": 1}).sent
    received = payloads(listener)
    assert [each["seq"] for each in received] == [1, 2, 3]
    assert received[0]["detail"] == "in <path>"
    assert received[1]["data"]["n"] == 1
    assert jobs.unsent_events() == []
    late = listen(broker, job, 1)
    (retained,) = payloads(late)
    assert retained["event"] == "completed", "the end of a job is kept for who comes late"
    assert job.auth_token not in json.dumps(received)


def test_the_signature_by_hand(session, broker, tmp_path):
    """openssl over the documented canonical bytes gives data.hmac_sig."""
    jobs, settings = session
    job = jobs.register_job("x", agent="a")
    publish_event(jobs, settings, job.job_id, "started", detail='정렬 "x"', data={"b": [1.5, None], "a": {"z": "é"}})
    payload = json.loads(jobs.events_after(job.job_id)[0].payload)
    claimed = payload["data"].pop("hmac_sig")
    node = subprocess.run(
        ["node", "-e", """
        const sort = v => Array.isArray(v) ? v.map(sort) : v && typeof v === 'object'
            ? Object.fromEntries(Object.keys(v).sort().map(k => [k, sort(v[k])])) : v;
        process.stdout.write(JSON.stringify(sort(JSON.parse(require('fs').readFileSync(0)))));
        """],
        input=json.dumps(payload).encode(), capture_output=True, check=True,
    )  # fmt: skip
    answer = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", job.auth_token], input=node.stdout, capture_output=True, check=True
    )
    assert answer.stdout.decode().split()[-1] == claimed


def test_events_wait_for_a_broker_and_then_arrive_in_order(session, broker):
    jobs, settings = session
    job = jobs.register_job("x", agent="a")
    broker.stop()
    for event in ("started", "progress", "progress"):
        published = publish_event(jobs, settings, job.job_id, event, tries=1)
        assert not published.sent
        assert "cannot be reached" in published.trouble
    assert len(jobs.unsent_events()) == 3
    broker.start()
    listener = listen(broker, job, 4)
    assert publish_event(jobs, settings, job.job_id, "completed").sent
    assert [each["seq"] for each in payloads(listener)] == [1, 2, 3, 4]
    assert jobs.unsent_events() == []


def test_what_another_job_left_behind_is_sent_along(session, broker):
    jobs, settings = session
    left, other = jobs.register_job("x", agent="a"), jobs.register_job("y", agent="a")
    broker.stop()
    publish_event(jobs, settings, left.job_id, "completed", tries=1)
    broker.start()
    later = time.time_ns() + 60 * 10**9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: later)
        publish_event(jobs, settings, other.job_id, "started")
    assert jobs.unsent_events() == []


def later(seconds=60):
    """Lets unsent events of others look as old as they must be to go along."""
    now_ns = time.time_ns() + seconds * 10**9
    patch = pytest.MonkeyPatch()
    patch.setattr(time, "time_ns", lambda: now_ns)
    return patch


def test_what_is_wrong_with_other_jobs_is_no_trouble_of_ours(session, broker, monkeypatch):
    jobs, settings = session
    bad, gone, good, own = (jobs.register_job("x", agent="a") for _ in range(4))
    for job in (bad, gone, good):
        jobs.record_event(job.job_id, "started")

    def get_job(job_id, read=jobs.get_job):
        if job_id == bad.job_id:
            raise InvalidRecord(bad.job_id, "prompt", "is missing")
        if job_id == gone.job_id:
            raise JobNotFound(gone.job_id, "here")
        return read(job_id)

    monkeypatch.setattr(jobs, "get_job", get_job)
    patch = later()
    try:
        assert publish_event(jobs, settings, own.job_id, "started").sent
    finally:
        patch.undo()
    assert {event.job_id for event in jobs.unsent_events()} == {bad.job_id, gone.job_id}


def test_a_broker_that_hangs_up_on_another_jobs_event_has_still_got_ours(settings_for):
    def behaviour(connection):
        connection.recv(4096)
        connection.sendall(bytes([0x20, 2, 0, 0]))
        connection.recv(65536)
        connection.sendall(bytes([0x40, 2, 0, 1]))
        connection.recv(65536)  # the second message: hangs up

    pretender = Pretender(behaviour)
    settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(pretender.port)})
    with open_jobs(settings) as jobs:
        other, own = jobs.register_job("x", agent="a"), jobs.register_job("x", agent="a")
        jobs.record_event(other.job_id, "started")
        patch = later()
        try:
            assert publish_event(jobs, settings, own.job_id, "started", tries=1).sent
        finally:
            patch.undo()
        assert [event.job_id for event in jobs.unsent_events()] == [other.job_id]
    pretender.close()


def test_events_for_a_broker_that_is_gone_do_not_stand_in_the_way_of_others(session):
    jobs, settings = session
    dead = jobs.register_job("x", agent="a", broker={"host": "127.0.0.1", "port": 1})
    for _ in range(120):
        jobs.registry.record_event(dead.job_id, EventName.PROGRESS)
    left, own = jobs.register_job("x", agent="a"), jobs.register_job("x", agent="a")
    jobs.record_event(left.job_id, "started")
    patch = later()
    try:
        assert publish_event(jobs, settings, own.job_id, "started").sent
    finally:
        patch.undo()
    assert {event.job_id for event in jobs.unsent_events()} == {dead.job_id}


def test_it_tries_again_after_growing_pauses(settings_for):
    settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())})
    pauses = []
    with open_jobs(settings) as jobs:
        job = jobs.register_job("x", agent="a")
        published = publish_event(jobs, settings, job.job_id, "started", tries=7, sleep=pauses.append)
    assert not published.sent
    assert pauses == [0.5, 1, 2, 4, 8, 8]


class TestRefusals:
    """What the registry refuses never reaches a broker, and is not there afterwards."""

    def test_the_reasons(self, settings_for, tmp_path):
        settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())})
        with open_jobs(settings) as jobs:
            job = jobs.register_job("x", agent="a", expected_artifacts=["a.md", "../b", "sub"], workdir=str(tmp_path))

            def publish(event, **more):
                return publish_event(jobs, settings, job.job_id, event, tries=1, **more)

            with pytest.raises(InvalidValue, match="event"):
                publish("finished")
            with pytest.raises(JobNotFound):
                publish_event(jobs, settings, "deadbeef", "started", tries=1)
            with pytest.raises(InvalidValue, match="65536"):
                publish("progress", data={"x": "y" * 70000})
            publish("started")
            with pytest.raises(EventRefused, match="started already"):
                publish("started")
            with pytest.raises(NotVerified, match=r"a\.md is missing; \.\./b lies outside .*; sub is missing"):
                publish("completed")
            assert publish("completed", verify=False).event.seq == 2
            with pytest.raises(EventRefused, match="completed"):
                publish("progress")
            assert [event.seq for event in jobs.events_after(job.job_id)] == [1, 2]

    def test_a_long_detail_is_cut_not_refused(self, settings_for):
        settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())})
        with open_jobs(settings) as jobs:
            job = jobs.register_job("x", agent="a")
            publish_event(jobs, settings, job.job_id, "progress", detail="é" * 5000, tries=1)
            assert jobs.get_job(job.job_id).detail.endswith("(cut)")

    def test_expected_results_and_their_validation(self, settings_for, tmp_path):
        settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())})
        with open_jobs(settings) as jobs:
            job = jobs.register_job(
                "x", agent="a", expected_artifacts=["a.md"], validate="grep -q good a.md", workdir=str(tmp_path)
            )

            def complete():
                return publish_event(jobs, settings, job.job_id, "completed", tries=1)

            (tmp_path / "a.md").touch()
            with pytest.raises(NotVerified, match=r"a\.md is empty"):
                complete()
            (tmp_path / "a.md").write_text("bad")
            with pytest.raises(NotVerified, match="validation failed with exit code 1"):
                complete()
            (tmp_path / "a.md").write_text("good")
            assert complete().event.event == "completed"

    def test_the_validation_of_a_job_that_is_over_or_lost_does_not_run(self, settings_for, tmp_path):
        settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())})
        with open_jobs(settings) as jobs:
            over = jobs.register_job("x", agent="a", validate="touch ran", workdir=str(tmp_path))
            jobs.update_status(over.job_id, "cancelled")
            lost = jobs.register_job("x", agent="a", validate="touch ran", workdir=str(tmp_path), max_attempts=2)
            jobs.pick_pending(lost.agent_session)
            jobs.release(lost.job_id)
            jobs.pick_pending(lost.agent_session)
            with pytest.raises(EventRefused, match="cancelled"):
                publish_event(jobs, settings, over.job_id, "completed", tries=1)
            with pytest.raises(StaleAttempt):
                publish_event(jobs, settings, lost.job_id, "completed", attempt=1, tries=1)
            assert not (tmp_path / "ran").exists()
            for job in (over, lost):
                lines = iter_logged_events(job.job_id, jobs.logs_dir)
                assert "validated" not in [line["event"] for line in lines]


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return "zombie" in file.read()
    except OSError:
        return True


class TestValidation:
    """The user's own command: it may print, hang or leave something behind."""

    def missing(self, tmp_path, command, timeout_sec=20.0):
        job = new_job("x", now_ns=1, agent="a", validate=command, workdir=str(tmp_path))
        return check_results(job, timeout_sec=timeout_sec).problems

    def test_only_the_end_of_what_it_prints_is_kept(self, tmp_path):
        assert self.missing(tmp_path, "head -c 300000000 /dev/zero | tr '\\0' x; echo; echo last") == []
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_000_000
        (problem,) = self.missing(tmp_path, "echo no; echo the reason; exit 3")
        assert problem == "the validation failed with exit code 3: the reason"

    def test_its_last_lines_are_kept_as_they_are(self, tmp_path):
        job = new_job("x", now_ns=1, agent="a", validate="seq 300; echo in /home/kim/x/y; false", workdir=str(tmp_path))
        found = check_results(job)
        assert found.problems == ["the validation failed with exit code 1: in /home/kim/x/y"]
        assert found.validation.splitlines() == [*map(str, range(102, 301)), "in /home/kim/x/y"]

    def test_the_audit_log_has_it_redacted(self, settings_for, tmp_path):
        settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())})
        with open_jobs(settings) as jobs:
            job = jobs.register_job("x", agent="a", validate="echo in /srv/x/y; false", workdir=str(tmp_path))
            with pytest.raises(NotVerified, match="in /srv/x/y"):
                publish_event(jobs, settings, job.job_id, "completed", tries=1)
            lines = [line for line in iter_logged_events(job.job_id, jobs.logs_dir) if line["event"] == "validated"]
        assert [line["problems"] for line in lines] == [["the validation failed with exit code 1: in <path>"]]

    @pytest.mark.parametrize(
        "command", ["sleep 30 & echo $! >pid", "(sleep 6; echo x) & echo $! >pid", "exec >&- 2>&-"]
    )
    def test_what_it_leaves_in_the_background_is_not_waited_for(self, tmp_path, command):
        began = time.monotonic()
        assert self.missing(tmp_path, command) == []
        assert time.monotonic() - began < 5
        if (tmp_path / "pid").exists():
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    @pytest.mark.parametrize(
        "command",
        ["sleep 30 & echo $! >pid; wait", "echo $$ >pid; exec >&- 2>&-; sleep 30", "yes & echo $! >pid; wait"],
    )
    def test_what_does_not_end_is_killed_with_all_it_started(self, tmp_path, command):
        began = time.monotonic()
        assert self.missing(tmp_path, command, timeout_sec=0.5) == ["the validation did not end within 0.5 s"]
        assert time.monotonic() - began < 5
        pid = (tmp_path / "pid").read_text().strip()
        wait_until(lambda: is_gone(pid))

    def test_a_folder_that_is_gone(self, tmp_path, monkeypatch):
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        job = new_job("x", now_ns=1, agent="a", validate="true")
        assert check_results(job).problems == ["the work folder is gone"]


class TestSafeButNotSent:
    """Once an event is recorded, whatever keeps it from being sent is a warning."""

    def trouble(self, settings_for, env, **broker):
        settings = settings_for(env)
        with open_jobs(settings) as jobs:
            job = jobs.register_job("x", agent="a", broker=broker)
            published = publish_event(jobs, settings, job.job_id, "started", tries=1)
            assert not published.sent
            assert len(jobs.unsent_events()) == 1
            assert "\n" not in published.trouble
            return published.trouble

    def test_a_state_folder_that_cannot_be(self, settings_for):
        assert "not a folder" in self.trouble(settings_for, {"BATON_STATE_DIR": "/dev/null/x"})

    def test_a_name_that_is_none(self, settings_for):
        host = "ä" + "a" * 70 + ".example"
        assert "looked up" in self.trouble(settings_for, {"MQTT_BROKER": host, "MQTT_TLS": "1"})

    def test_a_ca_file_that_is_none(self, settings_for, tmp_path):
        pretender = Pretender(read_all)
        env = {"MQTT_TLS": "1", "MQTT_CA_CERTS": str(tmp_path / "none")}
        assert "MQTT_CA_CERTS" in self.trouble(settings_for, env, host="127.0.0.1", port=pretender.port)
        pretender.close()

    def test_a_working_folder_that_is_gone(self, settings_for, tmp_path, monkeypatch):
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        port = str(free_port())
        env = {"BATON_HOME": str(tmp_path / "home"), "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": port}
        assert "cannot be reached" in self.trouble(settings_for, env)


def test_whichever_way_an_event_is_recorded_it_is_redacted(settings_for, tmp_path):
    with open_jobs(settings_for({"MQTT_PASSWORD": "from the file"})) as jobs:
        job = jobs.register_job("x", agent="a", workdir=str(tmp_path))
        said = f"\x1b[31m{job.auth_token} in {tmp_path}/x, {{from the file}} /home/kim/y"
        event = jobs.record_event(job.job_id, "started", detail=said, data={"a": [said], said: 1})
        for secret in (job.auth_token, str(tmp_path), "from the file", "/home/kim", "\\u001b"):
            assert secret not in event.payload.decode()
        assert json.loads(event.payload)["detail"].startswith("<secret> in <path>")
        assert jobs.record_event(job.job_id, "progress", detail="a-" * 100_000 + ":").seq == 2
        deep = current = []
        for _ in range(5000):
            current.append([])
            current = current[0]
        with pytest.raises(InvalidValue, match="nested"):
            jobs.record_event(job.job_id, "progress", data={"x": deep})


class Pretender:
    """A server that is no broker: it does one thing to whoever connects."""

    def __init__(self, behaviour):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._behaviour = behaviour
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self._behaviour(connection)

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def read_all(connection):
    try:
        while connection.recv(4096):
            pass
    except OSError:
        pass


def connack(code):
    def behaviour(connection):
        connection.recv(4096)
        connection.sendall(bytes([0x20, 2, 0, code]))
        read_all(connection)

    return behaviour


def talking(words):
    """Accepts us, and then never stops sending the same."""

    def behaviour(connection):
        connection.recv(4096)
        connection.sendall(bytes([0x20, 2, 0, 0]))
        try:
            while True:
                connection.sendall(words)
        except OSError:
            pass

    return behaviour


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (lambda connection: None, "closed the connection"),
        (read_all, "does not send the answer to our connect in time"),
        (
            lambda connection: (connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), read_all(connection)),
            "not MQTT",
        ),
        (lambda connection: (connection.sendall(b"\x20\xff\xff\xff\xff\xff"), read_all(connection)), "not MQTT"),
        (connack(4), "refuses the login; check MQTT_USERNAME"),
        (connack(5), "refuses the login; check MQTT_USERNAME"),
        (connack(1), "does not speak MQTT 3.1.1"),
        (connack(99), "refuses us (code 99)"),
        (connack(0), "does not send its acknowledgement in time"),
        (talking(b"\x40\x02\xff\xff" * 500), "does not send its acknowledgement in time"),
    ],
)
def test_something_that_is_no_broker_is_named_for_what_it_does(behaviour, words, settings_for, monkeypatch):
    monkeypatch.setattr(publisher_connection, "CONNACK_TIMEOUT_SEC", 0.3)
    monkeypatch.setattr(publisher_connection, "PUBACK_TIMEOUT_SEC", 0.3)
    pretender = Pretender(behaviour)
    settings = settings_for({"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(pretender.port)})
    try:
        with open_jobs(settings) as jobs:
            job = jobs.register_job("x", agent="a")
            began = time.monotonic()
            published = publish_event(jobs, settings, job.job_id, "started", tries=1)
            assert time.monotonic() - began < 3
            assert words in published.trouble
            assert "\n" not in published.trouble
            assert len(jobs.unsent_events()) == 1
    finally:
        pretender.close()


def accepting_and_closing(connection):
    connection.recv(4096)
    connection.sendall(bytes([0x20, 2, 0, 0]))


@pytest.mark.parametrize(
    ("behaviour", "settings"),
    [
        (lambda connection: connection.recv(4096), "MQTT_TLS, MQTT_PORT and the login"),
        (connack(3), ""),
        (connack(5), "MQTT_USERNAME and MQTT_PASSWORD"),
        (None, "MQTT_BROKER and MQTT_PORT"),
    ],
)
def test_publisher_and_listener_say_to_check_what_fits_the_failure(behaviour, settings):
    pretender = Pretender(behaviour)
    if behaviour is None:
        pretender.close()
    address = Address(host="127.0.0.1", port=pretender.port)
    said: list[str] = []
    connection = ListenerConnection(address, ["a/b"], lambda _message: True, "an-id", log=said.append)
    try:
        with pytest.raises(BrokerUnavailable) as refused, PublisherConnection(address):
            pass
        wait_until(lambda: said)
    finally:
        connection.close(forget=False)
        if behaviour is not None:
            pretender.close()
    for text in (str(refused.value), said[0].removesuffix("; listening to the registry alone")):
        assert text.partition("check ")[2] == settings, text


def test_a_broker_that_closes_after_it_accepted_us_is_not_asked_for_tls_and_login():
    pretender = Pretender(accepting_and_closing)
    try:
        with (
            pytest.raises(BrokerUnavailable, match="closed the connection") as refused,
            PublisherConnection(Address(host="127.0.0.1", port=pretender.port)) as connection,
        ):
            connection.publish("a/b", b"x")
    finally:
        pretender.close()
    assert "check" not in str(refused.value)


def test_the_deadlines_are_those_of_the_contract():
    assert (publisher_connection.CONNACK_TIMEOUT_SEC, publisher_connection.PUBACK_TIMEOUT_SEC) == (10, 5)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"MQTT_BROKER": "no-such-host.invalid"}, "MQTT_TLS=1"),
        ({"MQTT_BROKER": "no-such-host.invalid", "MQTT_TLS": "1"}, "cannot be looked up"),
        ({"MQTT_BROKER": "no-such-host.invalid", "BATON_ALLOW_PLAINTEXT": "1"}, "cannot be looked up"),
        ({"MQTT_BROKER": "192.0.2.1"}, "BATON_ALLOW_PLAINTEXT=1"),
        ({"MQTT_BROKER": "localhost.evil.invalid"}, "BATON_ALLOW_PLAINTEXT=1"),
        ({"MQTT_BROKER": "127.evil.invalid"}, "BATON_ALLOW_PLAINTEXT=1"),
        ({"MQTT_BROKER": "::1234:5678"}, "BATON_ALLOW_PLAINTEXT=1"),
        ({"MQTT_BROKER": "::ffff:192.0.2.1"}, "BATON_ALLOW_PLAINTEXT=1"),
    ],
)
def test_a_broker_elsewhere_is_not_talked_to_in_the_open(settings_for, env, words):
    settings = settings_for(env)
    with open_jobs(settings) as jobs:
        job = jobs.register_job("x", agent="a")
        assert words in publish_event(jobs, settings, job.job_id, "started", tries=1).trouble


def test_tls_towards_something_without_tls(settings_for, broker):
    settings = settings_for(broker.env | {"MQTT_TLS": "1"})
    with open_jobs(settings) as jobs:
        job = jobs.register_job("x", agent="a")
        assert "TLS" in publish_event(jobs, settings, job.job_id, "started", tries=1).trouble


@pytest.mark.parametrize("setting", ["MQTT_CA_CERTS", "MQTT_CERTFILE"])
def test_a_certificate_file_that_is_none_is_like_any_trouble_with_the_broker(settings_for, tmp_path, setting):
    (tmp_path / "nonsense").write_text("nonsense")
    pretender = Pretender(read_all)
    env = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(pretender.port), "MQTT_TLS": "1"}
    try:
        for path in (tmp_path / "nonsense", tmp_path / "missing"):
            settings = settings_for(env | {setting: str(path)})
            with open_jobs(settings) as jobs:
                job = jobs.register_job("x", agent="a")
                published = publish_event(jobs, settings, job.job_id, "started", sleep=pytest.fail)
                assert f"{setting} cannot be used: {path}" in published.trouble
                assert len(jobs.unsent_events(job_id=job.job_id)) == 1
    finally:
        pretender.close()


def test_a_setting_of_a_file_is_named_as_in_the_file(settings_for, broker, tmp_path):
    (tmp_path / "baton.toml").write_text('mqtt_ca_certs = "/nonexistent"')
    settings = settings_for(broker.env | {"MQTT_TLS": "1", "BATON_CONFIG": str(tmp_path / "baton.toml")})
    with open_jobs(settings) as jobs:
        job = jobs.register_job("x", agent="a")
        trouble = publish_event(jobs, settings, job.job_id, "started").trouble
        assert f"mqtt_ca_certs in {tmp_path / 'baton.toml'} cannot be used: /nonexistent" in trouble


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked(tmp_path):
    """On a terminal OpenSSL would ask for it, and wait."""
    import pty

    for command in (
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=x",
         "-passout", "pass:1234", "-keyout", tmp_path / "x.key", "-out", tmp_path / "x.crt"],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    code = """
import sys
from baton.broker.address import broker_address
from baton.config import Settings
from baton.transport.tls import tls_context
env = {"HOME": "/x", "MQTT_BROKER": "localhost", "MQTT_TLS": "1", "MQTT_CERTFILE": sys.argv[1], "MQTT_KEYFILE": sys.argv[2]}
try:
    tls_context(broker_address(Settings(env=env), None))
except Exception as error:
    print(type(error).__name__, error)
"""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.crt", tmp_path / "x.key"],
        stdin=theirs, capture_output=True, text=True, timeout=20, check=True, start_new_session=True,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert done.stdout.startswith("BrokerUnavailable MQTT_KEYFILE is encrypted")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1"])
def test_what_is_this_machine(host):
    assert is_loopback(host)


def test_however_many_are_unsent_all_are_sent(session):
    jobs, settings = session
    job = jobs.register_job("x", agent="a")
    for _ in range(1_050):
        jobs.registry.record_event(job.job_id, EventName.PROGRESS)
    assert publish_event(jobs, settings, job.job_id, "completed").sent
    assert jobs.unsent_events() == []


def test_the_published_vectors_by_other_means():
    """docs/protocol-vectors.json, checked by Node's JSON and openssl's HMAC: neither knows our code."""
    path = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "protocol-vectors.json")
    script = """
        const crypto = require('crypto');
        const sort = v => Array.isArray(v) ? v.map(sort) : v && typeof v === 'object'
            ? Object.keys(v).sort().map(k => [k, sort(v[k])]) : v;
        const write = (v, s) => Array.isArray(s) && !Array.isArray(v)
            ? '{' + s.map(([k, inner]) => JSON.stringify(k) + ':' + write(v[k], inner)).join(',') + '}'
            : Array.isArray(v) ? '[' + v.map((each, i) => write(each, s[i])).join(',') + ']' : JSON.stringify(v);
        const vectors = JSON.parse(require('fs').readFileSync(0)).vectors;
        for (const vector of vectors) {
            const bytes = write(vector.unsigned, sort(vector.unsigned));
            const mac = crypto.createHmac('sha256', vector.auth_token).update(bytes).digest('hex');
            if (bytes !== vector.canonical || mac !== vector.hmac_sig) { console.error(vector.name, bytes); process.exit(1); }
        }
        console.log(vectors.length);
    """
    with open(path, "rb") as file:
        content = file.read()
    node = subprocess.run(["node", "-e", script], input=content, capture_output=True, check=False)
    assert node.returncode == 0, node.stderr
    vectors = json.loads(content)["vectors"]
    assert int(node.stdout) == len(vectors)
    for vector in vectors:
        answer = subprocess.run(
            ["openssl", "dgst", "-sha256", "-hmac", vector["auth_token"]],
            input=vector["canonical"].encode(), capture_output=True, check=True,
        )  # fmt: skip
        assert answer.stdout.decode().split()[-1] == vector["hmac_sig"]
