"""A program of another user that has the port of a broker on loopback gets no login."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from baton.broker.address import Address
from baton.broker.local import known_broker
from baton.channels.http_client import HttpFailed, Server
from baton.core.errors import BrokerUnavailable
from baton.sessions.processes import started_at
from baton.transport import peer
from baton.transport.listener_connection import ListenerConnection
from baton.transport.peer import refuse_stranger
from baton.transport.publisher_connection import PublisherConnection
from support.brokers import Broker
from support.command import Baton
from support.office import Office
from support.ports import free_port
from support.waiting import wait_until

# Root can be anybody, so these tests need root, as CI has. The child gives root up by itself: the interpreter need not
# be readable for others.
pytestmark = pytest.mark.as_root
NOBODY = 65534
LISTEN = """
import os, socket, sys
family, port, uid = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("::" if family == socket.AF_INET6 else "127.0.0.1", port))
server.listen()
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    print("accepted", flush=True)
    while heard := connection.recv(4096):
        print(heard.hex(), flush=True)
"""


class Stranger:
    """A program of another user that listens on a port and prints what it hears."""

    def __init__(self, port: int, family: int = 2, uid: int = NOBODY) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTEN, str(family), str(port), str(uid)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def heard(self) -> list[str]:
        """Everything that it heard, after it was ended."""
        self.process.kill()
        return self.process.stdout.read().splitlines()


def login(port: int, host: str = "127.0.0.1") -> Address:
    return Address(host=host, port=port, username="reader", password="hunter2", own_process=True)


@pytest.mark.parametrize(("family", "host"), [(2, "127.0.0.1"), (10, "127.0.0.1"), (10, "::1")])
def test_the_kernel_answers_for_one_socket_what_its_tables_say(family, host):
    with Stranger(port := free_port(), family) as stranger, socket.create_connection((host, port)) as connection:
        assert stranger.process.stdout.readline() == "accepted\n"
        ends = connection.getpeername(), connection.getsockname()
        assert peer._ask_kernel(*ends) == peer._owner_in_tables(*ends) == NOBODY
    assert peer._ask_kernel(*ends) is None


def test_without_an_answer_the_tables_decide(monkeypatch):
    monkeypatch.setattr(peer, "_ask_kernel", lambda *_: None)
    with Stranger(port := free_port()), pytest.raises(BrokerUnavailable, match="another user"):
        PublisherConnection(login(port))


@pytest.mark.parametrize(("family", "host"), [(2, "127.0.0.1"), (10, "127.0.0.1"), (10, "::1")])
def test_a_publisher_sends_a_stranger_nothing(family, host):
    port = free_port()
    with Stranger(port, family) as stranger:
        with pytest.raises(BrokerUnavailable, match=rf"another user \(uid {NOBODY}\) has its port"):
            PublisherConnection(login(port, host))
        assert stranger.heard() == ["accepted"]


def test_a_listener_sends_a_stranger_nothing():
    port, logged = free_port(), []
    with Stranger(port) as stranger:
        listener = ListenerConnection(login(port), ["x"], lambda _: True, "client", None, logged.append)
        wait_until(lambda: logged, "for the refusal")
        listener.close(forget=True)
        assert f"a process of another user (uid {NOBODY}) has its port" in logged[0]
        assert set(stranger.heard()) == {"accepted"}


def test_a_stranger_at_the_port_of_an_agents_server_gets_no_password_and_no_prompt():
    """The server has ended, and its port is free for all."""
    port = free_port()
    with Stranger(port) as stranger:
        with pytest.raises(HttpFailed, match=rf"another user \(uid {NOBODY}\) has its port"):
            Server(port, "opencode", "hunter2").call("POST", "/prompt", {"text": "secret"}, within_sec=5)
        assert stranger.heard() == ["accepted"]


def test_a_connection_that_is_not_accepted_has_no_owner():
    """The kernel shows root as its owner until then."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        with pytest.raises(OSError, match="cannot be found"):
            refuse_stranger(connection, within_sec=0.05)
        accepted, _ = server.accept()
        refuse_stranger(connection)
        accepted.close()


def test_a_broker_of_root_or_of_the_user_gets_the_login(monkeypatch):
    broker = Broker("nats")
    try:
        PublisherConnection(login(broker.port)).__exit__(None, None, None)
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)  # a user who talks to a broker of root
        PublisherConnection(login(broker.port)).__exit__(None, None, None)
    finally:
        broker.remove()
    monkeypatch.setattr("baton.transport.publisher_connection.CONNACK_TIMEOUT_SEC", 0.5)
    port = free_port()
    with Stranger(port) as own:
        with pytest.raises(BrokerUnavailable, match="does not send"):
            PublisherConnection(login(port))
        assert b"hunter2".hex() in "".join(own.heard())


def test_a_listener_whose_broker_was_replaced_keeps_the_login(tmp_path):
    with Office(tmp_path) as office:
        office("broker", "up")
        broker = known_broker(office.settings.state_dir)
        job = office("register", "x").text
        listener = office.start("subscribe", job, "--timeout", "30")
        wait_until(lambda: listener_is_connected(broker.port), "for its connection")
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda: started_at(broker.pid) is None, "for the end of the broker")
        with Stranger(broker.port) as stranger:
            listener.says("a process of another user")
            listener.kill()
            assert set(stranger.heard()) == {"accepted"}


def listener_is_connected(port: int) -> bool:
    with open("/proc/net/tcp") as table:
        return any(f":{port:04X}" in line.split()[2] and line.split()[3] == "01" for line in table)


def test_a_broker_of_a_system_user_needs_tls_or_consent(tmp_path):
    env = {"MQTT_BROKER": "127.0.0.1", "MQTT_USERNAME": "me", "MQTT_PASSWORD": "hunter2"}
    port = free_port()
    with Stranger(port) as stranger:
        baton = Baton(tmp_path, **env, MQTT_PORT=str(port))
        job = baton("register", "x").text
        words = ("publish", job, "--event", "progress", "--attempts", "1")
        assert "use TLS or --allow-plaintext" in baton(*words).err
        assert set(stranger.heard()) == {"accepted"}
    broker = Broker("mosquitto")  # which runs as the user mosquitto
    try:
        sent = baton(*words, "--allow-plaintext", MQTT_PORT=str(broker.port))
        assert "not used" not in sent.err
    finally:
        broker.remove()
