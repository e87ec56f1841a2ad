"""The broker itself is hostile: whatever it sends or does not send, a listener stays small, goes on, and leaves when it
is asked to."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time

import pytest

from baton.transport import publisher_connection as packets
from support.command import BATON, Baton, interruptible
from support.resident import memory_mb
from support.waiting import wait_until

TOPIC = b"python/mqtt/jobs/abc12345/events"
MOST_MB = 100


class HostileBroker:
    """Lets everybody in and listen, and then sends `behaviour`, the last part of it for as long as it is read."""

    def __init__(self, behaviour: bytes, endless: bytes = b"") -> None:
        self._behaviour, self._endless = behaviour, endless
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.subscriptions = 0
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    def _serve(self):
        try:
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()
        except OSError:
            pass

    def _talk(self, connection):
        try:
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x20\x02\x00\x00")
                subscribe = connection.recv(4096)
                connection.sendall(b"\x90\x03" + subscribe[2:4] + b"\x01")
                self.subscriptions += 1
                connection.sendall(self._behaviour)
                while self._endless:
                    connection.sendall(self._endless)
                while more := connection.recv(4096):
                    self.heard += more
        except OSError:
            pass


def message(topic: bytes, *, first: int = 0x32, packet_id: bytes = b"\x12\x34") -> bytes:
    return packets._packet(first, len(topic).to_bytes(2, "big") + topic + packet_id + b"x")


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


class Listening:
    """`baton subscribe` to a job, towards a broker on that port."""

    def __init__(self, baton, port, *options, **env):
        place = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(port)}
        self._baton, self._job = baton, baton("register", "x").text
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [BATON, "subscribe", self._job, *options],
            cwd=baton.folder, env=baton.env | place | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=interruptible,
        )  # fmt: skip

    def complete(self):
        self._baton("status", self._job, "--set", "running")
        self._baton("status", self._job, "--set", "completed")
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err

    def listens_until(self, condition):
        def holds():
            assert self.process.poll() is None, self.process.stderr.read()
            return condition()

        wait_until(holds)


def test_a_topic_that_is_no_text_is_refused_and_acknowledged(baton):
    with HostileBroker(message(b"python/mqtt/jobs/\xff/events") + message(TOPIC, packet_id=b"\x43\x21")) as broker:
        listening = Listening(baton, broker.port)
        listening.listens_until(lambda: broker.heard == b"\x40\x02\x12\x34\x40\x02\x43\x21")
        code, out, err = listening.complete()
    assert (code, json.loads(out)["status"]) == (0, "completed")
    assert "ignored messages: 2 json" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("behaviour", "endless", "words"),
    [
        (b"\x32\x01\x00", b"", "lost the broker"),
        (b"\x32\x04\xff\xff\x00\x00", b"", "lost the broker"),
        (b"\x90\x03\x00\x01\x55", b"", "lost the broker"),
        (message(TOPIC, first=0x34), b"", "QoS 2"),
        (b"\x32\xff\xff\xff\x7f\x00\x01a\x00\x01", b"z" * 1_000_000, "a packet of 268435455 bytes"),
    ],
    ids=["half a message", "a topic beyond the end", "an answer that is none", "QoS 2", "256 MB"],
)
def test_what_no_broker_sends_ends_the_connection_and_not_the_listener(baton, behaviour, endless, words):
    with HostileBroker(behaviour, endless) as broker:
        listening = Listening(baton, broker.port)
        listening.listens_until(lambda: broker.subscriptions >= 2)
        most_mb = memory_mb("VmHWM", listening.process.pid)
        code, out, err = listening.complete()
    assert (code, json.loads(out)["status"]) == (0, "completed")
    assert words in err
    assert "Traceback" not in err
    assert most_mb < MOST_MB


@pytest.mark.parametrize("tls", ["0", "1"])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_broker_that_never_answers_holds_nobody_back(baton, tls, interrupted):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        listening = Listening(baton, silent.getsockname()[1], "--timeout", "30" if interrupted else "1.5", MQTT_TLS=tls)
        connection, _ = silent.accept()
        with connection:
            asked = listening.began + 1.5
            if interrupted:
                asked = time.monotonic()
                listening.process.send_signal(signal.SIGINT)
            _, err = listening.process.communicate(timeout=30)
        assert time.monotonic() - asked < 10  # and not as long as the broker is silent
    assert listening.process.returncode == (130 if interrupted else 2)
    assert "Traceback" not in err
