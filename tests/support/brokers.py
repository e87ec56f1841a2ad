"""Real brokers of the tests' own, on loopback and free ports, stopped at the end."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile

from baton.broker.local import server_program
from support.ports import free_port
from support.waiting import poll

_OPEN_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
autosave_interval 1
autosave_on_changes true
set_tcp_nodelay true
max_queued_messages 100000
"""
_OPEN_NATS = """\
server_name: test
listen: "127.0.0.1:{other}"
jetstream {{ store_dir: {data}, sync_interval: always }}
mqtt {{ listen: "127.0.0.1:{port}", ack_wait: "2s" }}
"""


class Broker:
    """A broker that accepts everybody, by its configuration file; `start` after `kill` is the same one again."""

    def __init__(self, kind: str, *, config: str | None = None, port: int | None = None) -> None:
        self.kind = kind
        self.folder = tempfile.mkdtemp(prefix=f"baton-{kind}-", dir="/tmp")
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user = {}
        if kind == "mosquitto" and os.geteuid() == 0:
            # Mosquitto gives up root by itself, and could not read its files any more.
            user = pwd.getpwnam("mosquitto")
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        if config is None:
            config = os.path.join(self.folder, "broker.conf")
            template = _OPEN_MOSQUITTO if kind == "mosquitto" else _OPEN_NATS
            with open(config, "w") as file:
                file.write(
                    template.format(
                        port=self.port,
                        folder=self.folder,
                        other=free_port(),
                        data=json.dumps(os.path.join(self.folder, "data")),
                    )
                )
            os.chmod(config, 0o644)  # mosquitto reads it, whatever the umask
        self._config = config
        self.start()

    @property
    def env(self) -> dict[str, str]:
        return {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(self.port)}

    def start(self) -> None:
        program = "mosquitto" if self.kind == "mosquitto" else server_program()
        self._process = subprocess.Popen(
            [shutil.which(program) or f"/usr/sbin/{program}", "-c", self._config],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as_user,
        )
        if not poll(lambda: self.answers() or self._process.poll() is not None, 10) or not self.answers():
            raise RuntimeError(f"{self.kind} did not start")

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(20)
            self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
