"""The local broker, and real brokers on what `baton broker init` writes."""

from __future__ import annotations

import fcntl
import os
import pathlib
import pwd
import shlex
import signal
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton.broker import local
from baton.broker.address import broker_address
from baton.broker.local import known_broker, running_broker, stop_broker
from baton.broker.production import write_set
from baton.config import Settings
from baton.core.errors import BrokerUnavailable, InvalidValue
from baton.jobs.verbs import open_jobs
from baton.storage.homes import load_settings
from baton.transport import check
from baton.transport.check import check_broker
from baton.transport.publisher_connection import PublisherConnection
from baton.transport.subscription import Subscription
from support.brokers import Broker
from support.command import BATON, Baton, interruptible
from support.homes import home_of
from support.ports import free_port

TOPIC = "python/mqtt/jobs/abc12345/events"


def servers(config):
    """The processes of nats-server that run with that configuration."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"nats-server") and os.fsencode(config) in words:
            found.append(int(pid))
    return found


LOGGED = "[7] 2026/11/19 17:38:01.771780"


class TestLocalBroker:
    @pytest.fixture
    def state(self, tmp_path):
        yield str(tmp_path / "state")
        stop_broker(str(tmp_path / "state"))

    def test_strangers_cannot_fill_the_disk_with_its_log(self, state):
        broker = running_broker(state)
        stranger = broker.address(reading=False).replace(username="x" * 60_000, password="wrong")

        def knock(_):
            with pytest.raises(BrokerUnavailable, match="refuses the login"):
                PublisherConnection(stranger)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(knock, range(60)))
        logs = [entry for entry in os.scandir(broker.folder) if entry.name.startswith("log")]
        assert sum(entry.stat().st_size for entry in logs) < 2_500_000
        assert {entry.stat().st_mode & 0o777 for entry in logs} == {0o600}

    def test_it_starts_by_itself_and_is_found_again(self, state):
        first = running_broker(state)
        assert running_broker(state) == first
        with PublisherConnection(first.address(reading=False)) as publisher:
            publisher.publish(TOPIC, b"x")

    def test_many_that_start_it_at_once_end_with_one(self, state):
        found = []
        threads = [threading.Thread(target=lambda: found.append(running_broker(state))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({broker.pid for broker in found}) == 1
        assert len(found) == 8

    def test_processes_that_start_it_at_once_end_with_one(self, tmp_path):
        baton = Baton(tmp_path)
        try:
            command = [BATON, "broker", "up", "--json"]
            started = [subprocess.Popen(command, cwd=tmp_path, env=baton.env, stdout=subprocess.PIPE) for _ in range(6)]
            assert len({process.communicate(timeout=30)[0] for process in started}) == 1
        finally:
            baton("broker", "down")
        assert "not running" in baton("broker", "status", code=1).out

    def test_killed_it_comes_back_on_the_same_port_with_what_it_held(self, state):
        first = running_broker(state)
        with PublisherConnection(first.address(reading=False)) as publisher:
            publisher.publish(TOPIC, b"kept", retain=True)
        os.kill(first.pid, signal.SIGKILL)
        os.waitpid(first.pid, 0)
        second = running_broker(state)
        assert (second.port, second.writer_password) == (first.port, first.writer_password)
        assert second.pid != first.pid
        assert all(step.ok for step in check_broker(second.address(reading=False), second.address(reading=True)))

    def test_a_pid_that_is_somebody_elses_now_is_not_taken_for_it(self, state):
        running_broker(state)
        stop_broker(state)
        mark = os.path.join(state, "broker", "run", f"nats-server_{os.getpid()}.ports")
        open(mark, "w").close()
        assert known_broker(state).pid == os.getpid()
        assert not known_broker(state).alive()
        assert stop_broker(state) is None
        assert running_broker(state).pid != os.getpid()

    def test_one_that_runs_where_we_cannot_see_it_is_neither_doubled_nor_mistaken(self, state):
        """In another container, say: its lock is held, and the process of that number is another one here."""
        running_broker(state)
        stop_broker(state)
        folder = os.path.join(state, "broker")
        with open(os.path.join(folder, "data", ".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            mark = os.path.join(folder, "run", f"nats-server_{os.getpid()}.ports")
            open(mark, "w").close()
            assert running_broker(state).pid == os.getpid()
            with pytest.raises(BrokerUnavailable, match=r"not a process of ours.*fuser"):
                stop_broker(state)
            os.unlink(os.path.join(folder, "broker.json"))
            with pytest.raises(BrokerUnavailable, match=r"knows nothing about.*fuser"):
                running_broker(state)
            os.unlink(mark)

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_a_start_that_is_interrupted_leaves_no_second_server(self, tmp_path, how):
        baton = Baton(tmp_path)
        state = os.path.join(tmp_path, ".local", "state", "baton")
        config = os.path.join(state, "broker", "nats.conf")
        try:
            for _ in range(2):
                before = servers(config)  # with one there, the signal would come while Python itself still starts
                starting = subprocess.Popen(
                    [BATON, "broker", "up"], cwd=tmp_path, env=baton.env, stderr=subprocess.PIPE,
                    stdout=subprocess.DEVNULL, preexec_fn=interruptible,
                )  # fmt: skip
                while servers(config) == before and starting.poll() is None:
                    pass
                starting.send_signal(how)
                _, err = starting.communicate(timeout=20)
                assert b"Traceback" not in err
            pid = baton("broker", "up", "--json").json["pid"]
            assert servers(config) == [pid]
        finally:
            baton("broker", "down")
        assert servers(config) == []

    def test_a_start_that_takes_too_long_leaves_nothing(self, state, monkeypatch):
        monkeypatch.setattr(local, "_START_TIMEOUT_SEC", 0)
        monkeypatch.setattr(local, "_server_pid", lambda _folder: 0)  # however long we slept before the first look
        with pytest.raises(BrokerUnavailable, match=r"did not start: it was not ready within 0 s; see .*/log$"):
            running_broker(state)
        assert servers(os.path.join(state, "broker", "nats.conf")) == []
        monkeypatch.undo()
        assert running_broker(state).alive()

    def test_somebody_who_is_quicker_to_take_its_port_is_not_taken_for_it(self, state, monkeypatch):
        before = running_broker(state)
        stop_broker(state)
        with socket.create_server(("127.0.0.1", before.port)):
            monkeypatch.setattr(local, "_port_is_free", lambda port: True)
            with pytest.raises(BrokerUnavailable, match=r"did not start: another program took its port at this moment"):
                running_broker(state)

    @pytest.mark.parametrize(
        ("said", "code", "why"),
        [
            ("", -9, "signal 9 ended it"),
            ("", 1, "it ended with exit code 1"),
            (f"{LOGGED} [INF] Starting nats-server\n{LOGGED} [FTL] Can't start: no rights\n", 1, "Can't start: no rights"),
            ("nats-server: /x/nats.conf:3:5: Parse error\n", 1, "/x/nats.conf:3:5: Parse error"),
            ("runtime: failed to create new OS thread (have 3 already; errno=11)\nfatal error: newosproc\n\ngoroutine 1\n", 2,
             "Resource temporarily unavailable (no more processes"),
            ("fatal error: failed to reserve page summary memory\n", 2, "Cannot allocate memory ("),
            ("fatal error: all is lost\n\ngoroutine 1 [running]:\nmain.main()\n", 2, "all is lost"),
        ],
    )  # fmt: skip
    def test_why_it_did_not_start_is_one_sentence(self, tmp_path, said, code, why):
        log = tmp_path / "log"
        log.write_text(f"{LOGGED} [FTL] of an earlier start\n")
        before = log.stat().st_size
        with log.open("a") as file:
            file.write(said)
        found = local._why_ended(str(log), before, code)
        assert found.startswith(why)
        assert "\n" not in found
        assert "goroutine" not in found

    def test_what_to_check_about_it_is_its_log(self, state):
        address = running_broker(state).address(reading=False)
        stop_broker(state)
        with pytest.raises(BrokerUnavailable) as refused, PublisherConnection(address):
            pass
        assert str(refused.value).endswith(
            "cannot be reached (Connection refused); is it running? see `baton broker logs`"
        )

    def test_any_letter_in_the_name_of_its_folder(self, tmp_path):
        state = str(tmp_path / 'sätze "1" \\ 정렬 $HOME # x')
        try:
            assert running_broker(state).alive()
        finally:
            stop_broker(state)
        for name in ("a\nb", "a\udcffb"):
            with pytest.raises(InvalidValue, match="state_dir"):
                running_broker(str(tmp_path / name))

    @pytest.mark.parametrize(
        "content",
        ["", "[]", "{}", '{"port": null, "writer_password": "x", "reader_password": "y"}',
         '{"port": 99999999999, "writer_password": "x", "reader_password": "y"}',
         '{"port": 1883, "writer_password": null, "reader_password": "y"}'],
    )  # fmt: skip
    def test_a_file_that_makes_no_sense_is_written_anew(self, state, content):
        os.makedirs(os.path.join(state, "broker"))
        with open(os.path.join(state, "broker", "broker.json"), "w") as file:
            file.write(content)
        assert known_broker(state) is None
        assert running_broker(state).alive()

    def test_readers_do_not_write_and_writers_do_not_read(self, state):
        broker = running_broker(state)
        writer, reader = broker.address(reading=False), broker.address(reading=True)
        steps = list(check_broker(reader, reader))
        assert not steps[-1].ok
        steps = list(check_broker(writer, writer))
        assert not steps[-1].ok
        for wrong in (writer.replace(password="wrong"), writer.replace(username=None, password=None)):
            with pytest.raises(BrokerUnavailable, match=r"login|closed"):
                PublisherConnection(wrong)

    def test_its_files_are_private_and_it_listens_on_loopback_only(self, state):
        broker = running_broker(state)
        for folder, _, names in os.walk(state):
            assert os.stat(folder).st_mode & 0o077 == 0, folder
            for name in names:
                assert os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0, name
        listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
        mine = [line.split()[3] for line in listening.splitlines() if f"pid={broker.pid}," in line]
        assert len(mine) == 2
        assert all(place.startswith("127.0.0.1:") for place in mine)


def make_for_mosquitto(folder):
    """As the docs say, where root runs this: a folder that belongs to mosquitto, and that it can reach."""
    folder.mkdir(0o700)
    if os.geteuid() == 0:
        os.chown(folder, pwd.getpwnam("mosquitto").pw_uid, 0)
        for parent in folder.parents:
            if str(parent).startswith("/tmp/") and parent.stat().st_mode & 0o011 != 0o011:
                parent.chmod(parent.stat().st_mode | 0o011)


@pytest.fixture(params=["mosquitto", "nats"])
def kind(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["passwords", "mtls"])
def production(kind, request, tmp_path):
    """A real broker on a freshly written set."""
    folder, port = tmp_path / "set", free_port()
    if kind == "mosquitto":
        make_for_mosquitto(folder)
    write_set(kind, str(folder), hosts=["localhost"], port=port, mtls=request.param)
    broker = Broker(kind, config=str(folder / f"{kind}.conf"), port=port)
    yield folder, request.param
    broker.remove()


def environment(folder, role):
    words = shlex.split((folder / f"{role}.env").read_text())
    return {"HOME": "/nowhere"} | dict(word.split("=", 1) for word in words if word != "export")


def address(folder, role):
    return broker_address(Settings(env=environment(folder, role)), None)


def assert_told(env, words, tmp_path):
    """A listener says why its broker does not work, once and soon; and nothing of one that works."""
    settings = Settings({"home": str(tmp_path / "home"), "state_dir": str(tmp_path / "state")}, env)
    told = []

    def tell(line):
        told.append(line)
        threading.Timer(1.5, subscription.stop).start()  # time enough for paho to fail once more

    with open_jobs(settings) as jobs:
        job = jobs.register_job("x", agent="a")
        subscription = Subscription(jobs, settings, [job.job_id], timeout_sec=9 if words else 1, log=tell)
        assert list(subscription) == []
    if words is None:
        assert told == []
    else:
        assert words in told[0]
        assert "listening to the registry alone" in told[0]
        assert len(told) == 1


def test_a_check_leaves_nothing_behind_also_when_it_fails(broker, tmp_path, monkeypatch):
    open_to_all = broker_address(Settings(env={"HOME": str(tmp_path)} | broker.env), None)
    for deaf in (False, True):
        if deaf:
            monkeypatch.setattr(check._Listener, "next_message", lambda _self: None)
        assert all(step.ok for step in check_broker(open_to_all, open_to_all)) is not deaf
        kept = subprocess.run(
            ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", "#", "-W", "1", "-V", "mqttv311", "-v"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert kept.stdout == ""


def test_a_broker_that_never_answers_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {"HOME": "/nowhere", "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(silent.getsockname()[1])}
        assert_told(env, "does not answer", tmp_path)
        assert_told(env | {"MQTT_TLS": "1"}, "does not answer", tmp_path)


def test_who_gets_in_and_who_does_not(production, kind, tmp_path):
    folder, mtls = production
    worker, orchestrator = address(folder, "worker"), address(folder, "orchestrator")
    assert [step.what for step in check_broker(worker, orchestrator) if not step.ok] == []
    assert not list(check_broker(orchestrator, orchestrator))[-1].ok, "the orchestrator cannot write"
    assert not list(check_broker(worker, worker))[-1].ok, "a worker cannot read"
    for writer, reader in ((worker, None), (None, orchestrator)):
        assert [step.ok for step in check_broker(writer, reader)] == [True, True], "what it can do alone"

    write_set(kind, str(tmp_path / "foreign"), hosts=[], port=1, mtls=False)
    foreign = {
        "certfile": str(tmp_path / "foreign" / "worker.crt"),
        "keyfile": str(tmp_path / "foreign" / "worker.key"),
    }
    outsiders = [worker.replace(username=None, password=None, certfile=None, keyfile=None)]
    if mtls:
        outsiders.append(worker.replace(**foreign))
    else:
        outsiders += [worker.replace(password="wrong"), worker.replace(username="nobody")]
    for outsider in outsiders:
        with pytest.raises(BrokerUnavailable), PublisherConnection(outsider) as publisher:
            publisher.publish(TOPIC, b"x")
    with pytest.raises(BrokerUnavailable, match=r"not trusted.*MQTT_CA_CERTS"):
        PublisherConnection(worker.replace(ca_certs=str(tmp_path / "foreign" / "ca.crt")))
    with pytest.raises(BrokerUnavailable, match=r"for other names.*MQTT_BROKER.*--host"):
        PublisherConnection(worker.replace(host="127.0.0.2"))  # a name that is not in its certificate
    for changes, words in (
        ({}, None),
        ({"MQTT_CA_CERTS": str(tmp_path / "foreign" / "ca.crt")}, "not trusted"),
        ({"MQTT_CA_CERTS": "/nonexistent"}, "MQTT_CA_CERTS cannot be used: /nonexistent: No such file"),
        ({"MQTT_BROKER": "127.0.0.2"}, "for other names"),
        ({"MQTT_TLS": "0", "BATON_ALLOW_PLAINTEXT": "1"}, "closed the connection"),
    ):
        assert_told(environment(folder, "orchestrator") | changes, words, tmp_path)
    context = ssl.create_default_context(cafile=worker.ca_certs)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, OSError)), socket.create_connection(("127.0.0.1", worker.port)) as raw:
        context.wrap_socket(raw, server_hostname="localhost")


def test_renewing_keeps_the_logins_and_the_ca(tmp_path):
    folder = tmp_path / "set"
    write_set("mosquitto", str(folder), hosts=["broker.example"], port=8883, mtls=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir() if path.is_file())
    with pytest.raises(InvalidValue, match="--renew"):
        write_set("mosquitto", str(folder), hosts=[], port=8883, mtls=False)
    write_set("mosquitto", str(folder), hosts=["broker.example"], port=8883, mtls=False, renew=True)
    changed = {path.name for path in folder.iterdir() if path.is_file() and path.read_bytes() != before[path.name]}
    assert changed == {f"{name}.{end}" for name in ("server", "orchestrator", "worker") for end in ("key", "crt")}
    verified = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", folder / "ca.crt", folder / "server.crt", folder / "worker.crt"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr


def names_in(certificate):
    shown = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [each.strip().partition(":")[2] for each in shown.stdout.splitlines()[1].split(",")]


def test_renewing_keeps_the_names_unless_others_are_given(tmp_path):
    folder = tmp_path / "set"
    write_set("nats", str(folder), hosts=["b.example", "10.0.0.1"], port=8883, mtls=False)
    before = names_in(folder / "server.crt")
    assert before == ["b.example", "10.0.0.1", "localhost", "127.0.0.1"]
    write_set("nats", str(folder), hosts=[], port=8883, mtls=False, renew=True)
    assert names_in(folder / "server.crt") == before
    env = (folder / "worker.env").read_text()
    assert "export MQTT_BROKER=b.example\n" in env
    write_set("nats", str(folder), hosts=["c.example"], port=8883, mtls=False, renew=True)
    assert names_in(folder / "server.crt") == ["c.example", "localhost", "127.0.0.1"]
    for role in ("worker", "orchestrator"):
        assert "export MQTT_BROKER=c.example\n" in (folder / f"{role}.env").read_text()
    assert (folder / "worker.env").read_text() == env.replace("b.example", "c.example")


def test_what_root_writes_belongs_to_the_owner_of_the_folder(tmp_path):
    folder = tmp_path / "set"
    make_for_mosquitto(folder)
    owner = folder.stat().st_uid
    for renew in (False, True):
        write_set("mosquitto", str(folder), hosts=[], port=8883, mtls=False, renew=renew)
        assert {path.stat().st_uid for path in folder.rglob("*")} == {owner}


def test_two_sets_for_nats_do_not_collide(tmp_path):
    brokers = []
    try:
        for name in ("one", "two"):
            port = free_port()
            write_set("nats", str(tmp_path / name), hosts=[], port=port, mtls=False)
            brokers.append(Broker("nats", config=str(tmp_path / name / "nats.conf"), port=port))
        assert [broker.answers() for broker in brokers] == [True, True]
    finally:
        for broker in brokers:
            broker.remove()


def test_a_set_that_cannot_be_renewed_or_named(tmp_path):
    with pytest.raises(InvalidValue, match="no set"):
        write_set("nats", str(tmp_path / "none"), hosts=[], port=1, mtls=False, renew=True)
    for host in ("ümlaut.example", "mqtt://b.example", "b example", "b.example:8883", "", "x'y"):
        with pytest.raises(InvalidValue, match="host name"):
            write_set("nats", str(tmp_path / "x"), hosts=[host], port=1, mtls=False)
    assert not (tmp_path / "x").exists()
    write_set("nats", str(tmp_path / "x"), hosts=[], port=1, mtls=False)
    with pytest.raises(InvalidValue, match=r"another broker.*--nats"):
        write_set("mosquitto", str(tmp_path / "x"), hosts=[], port=1, mtls=False, renew=True)


@pytest.mark.parametrize("name", ["höme", "it's $(touch pwned) `touch pwned`", 'a "b" \\n #c', "MQTT_BROKER=x"])
def test_the_folder_of_a_set_may_have_any_name(kind, name, tmp_path):
    folder, port = tmp_path / name, free_port()
    if kind == "mosquitto":
        make_for_mosquitto(folder)
    write_set(kind, str(folder), hosts=["localhost"], port=port, mtls=False)
    write_set(kind, str(folder), hosts=["127.0.0.1"], port=port, mtls=False, renew=True)
    broker = Broker(kind, config=str(folder / f"{kind}.conf"), port=port)
    try:
        assert Baton(tmp_path)("broker", "check", "--set", str(folder)).out.count("ok  ") == 6
        shown = subprocess.run(
            ["sh", "-c", '. "$1"; printf %s "$MQTT_BROKER $MQTT_CA_CERTS"', "sh", folder / "worker.env"],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
    finally:
        broker.remove()
    assert shown.stdout == f"127.0.0.1 {folder}/ca.crt"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\x1bb", "a\udcffb"])
def test_a_folder_whose_name_no_configuration_can_hold_is_refused(kind, name, tmp_path):
    with pytest.raises(InvalidValue, match="folder"):
        write_set(kind, str(tmp_path / name), hosts=[], port=1, mtls=False)


class TestWhichBroker:
    """Default < config file < environment < the job's record; MQTT_TLS and certificates of the environment win."""

    def job(self, **broker):
        from baton.core.drafts import new_job

        return new_job("x", now_ns=1, agent="a", broker=broker)

    def test_the_record_wins_over_the_environment(self):
        settings = Settings(env={"HOME": "/x", "MQTT_BROKER": "127.0.0.9", "MQTT_PORT": "5", "MQTT_USERNAME": "me",
                                 "MQTT_PASSWORD": "pw"})  # fmt: skip
        job = self.job(host="127.0.0.1", port=7, username="worker", password="secret")
        found = broker_address(settings, job)
        assert (found.host, found.port, found.username, found.password) == ("127.0.0.1", 7, "worker", "secret")
        same_broker = Settings(env={"HOME": "/x", "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "7", "MQTT_USERNAME": "me"})
        reading = broker_address(same_broker, job, reading=True)
        assert (reading.host, reading.port, reading.username) == ("127.0.0.1", 7, "me")
        found = broker_address(settings, self.job())
        assert (found.host, found.port, found.username) == ("127.0.0.9", 5, "me")
        assert "secret" not in repr(found)

    def test_the_tls_toggle_of_the_environment_wins(self):
        job = self.job(host="127.0.0.1", tls=False)
        assert not broker_address(Settings(env={"HOME": "/x"}), job).tls
        on = Settings(env={"HOME": "/x", "MQTT_TLS": "1", "MQTT_CA_CERTS": "/ca"})
        assert broker_address(on, job).tls
        assert (broker_address(on, job).port, broker_address(on, job).ca_certs) == (8883, "/ca")
        job = self.job(host="127.0.0.1", tls=True)
        assert broker_address(Settings(env={"HOME": "/x"}), job).tls
        assert not broker_address(Settings(env={"HOME": "/x", "MQTT_TLS": "0"}), job).tls

    def test_a_job_remembers_the_broker_it_was_registered_with_but_no_login(self, tmp_path):
        baton = Baton(
            tmp_path, MQTT_BROKER="b.example", MQTT_PORT="9", MQTT_TLS="1", MQTT_USERNAME="me", MQTT_PASSWORD="pw"
        )
        record = baton("register", "x", "--json").json
        assert record["broker"] == {"host": "b.example", "port": 9, "tls": True, "username": None, "password": None}
        assert Baton(tmp_path)("register", "x", "--json").json["broker"]["host"] is None

    def test_the_file_of_a_folder_does_not_get_the_login_of_the_user(self, tmp_path):
        home, own = pathlib.Path(home_of(tmp_path), "baton.toml"), tmp_path / ".config" / "baton" / "baton.toml"
        own.parent.mkdir(parents=True)
        env = {"HOME": str(tmp_path), "BATON_HOME": str(home.parent)}
        login = {"MQTT_USERNAME": "me", "MQTT_PASSWORD": "pw"}
        host = 'mqtt_host = "evil.example"\nmqtt_tls = true\n'
        home.write_text(host)
        assert broker_address(load_settings(env=env), None).username is None
        recorded = self.job(host="evil.example", tls=True)
        for job in (None, self.job(), recorded):
            with pytest.raises(BrokerUnavailable, match=r"MQTT_USERNAME; .* set MQTT_BROKER=evil\.example"):
                broker_address(load_settings(env=env | login), job)
        assert broker_address(load_settings(env=env | login | {"MQTT_BROKER": "evil.example"}), None).username == "me"
        home.write_text(host + 'mqtt_username = "me"\n')
        with pytest.raises(BrokerUnavailable, match="the login is from MQTT_PASSWORD"):
            broker_address(load_settings(env=env | {"MQTT_PASSWORD": "pw"}), None)
        own.write_text('mqtt_username = "me"\nmqtt_password = "pw"\n')
        home.write_text(host)
        with pytest.raises(BrokerUnavailable, match=r"the login is from .*/\.config/"):
            broker_address(load_settings(env=env), None)
        home.write_text(host + 'mqtt_username = "its"\nmqtt_password = "own"\n')
        assert broker_address(load_settings(env=env), None).password == "own"

    @pytest.mark.parametrize("own", [None, "mine.example"])
    def test_the_record_of_a_job_does_not_get_the_login_of_the_user(self, own):
        """A folder's file may have named that broker when the job was registered, or the folder came with its jobs."""
        env = {"HOME": "/x", "MQTT_USERNAME": "me", "MQTT_PASSWORD": "pw"} | ({"MQTT_BROKER": own} if own else {})
        job = self.job(host="evil.example", tls=True)
        for reading in (False, True):
            with pytest.raises(BrokerUnavailable, match=r"the record of the job .* set MQTT_BROKER=evil\.example"):
                broker_address(Settings(env=env), job, reading=reading)
        assert broker_address(Settings(env=env | {"MQTT_BROKER": "evil.example"}), job).username == "me"
        assert broker_address(Settings(env=env), self.job(host="e.example", tls=True, username="its")).username == "its"

    def test_the_login_of_the_user_goes_to_no_other_port_and_not_without_tls(self, tmp_path):
        own = tmp_path / ".config" / "baton" / "baton.toml"
        own.parent.mkdir(parents=True)
        own.write_text('mqtt_host = "127.0.0.1"\nmqtt_tls = true\nmqtt_username = "me"\nmqtt_password = "pw"\n')
        settings = Settings(env={"HOME": str(tmp_path)})
        for reading in (False, True):
            for there in ({"port": 9999}, {"port": 1883}, {"tls": False}, {"tls": False, "port": 8883}):
                with pytest.raises(
                    BrokerUnavailable, match=r"the record of the job .* set MQTT_BROKER=127.0.0.1 MQTT_PO"
                ):
                    broker_address(settings, self.job(host="127.0.0.1", **there), reading=reading)
            for there in ({}, {"port": 8883}, {"tls": True}):
                assert broker_address(settings, self.job(host="127.0.0.1", **there), reading=reading).password == "pw"

    @pytest.mark.parametrize("setting", ["mqtt_port = 9999", "mqtt_tls = false", 'mqtt_ca_certs = "/tmp/evil.crt"'])
    def test_the_file_of_a_folder_changes_neither_port_nor_ca_of_a_login_of_the_user(self, setting, tmp_path):
        home, own = pathlib.Path(home_of(tmp_path), "baton.toml"), tmp_path / ".config" / "baton" / "baton.toml"
        own.parent.mkdir(parents=True)
        own.write_text('mqtt_host = "127.0.0.1"\nmqtt_tls = true\nmqtt_username = "me"\nmqtt_password = "pw"\n')
        home.write_text(setting)
        settings = load_settings(env={"HOME": str(tmp_path), "BATON_HOME": str(home.parent)})
        with pytest.raises(BrokerUnavailable, match=r"/homes/\w+/baton.toml|the record of the job"):
            broker_address(settings, None)

    def test_config_show_names_the_source_and_hides_the_password(self, tmp_path):
        shown = Baton(tmp_path, MQTT_BROKER="b.example", MQTT_PASSWORD="hunter2")("config", "show").out
        assert "mqtt_host\tb.example\tMQTT_BROKER" in shown
        assert "hunter2" not in shown


def test_waiting_for_a_start_takes_no_longer_than_needed(tmp_path):
    state = str(tmp_path / "state")
    began = time.monotonic()
    running_broker(state)
    took = time.monotonic() - began
    stop_broker(state)
    assert took < 5
