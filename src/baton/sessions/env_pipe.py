"""Pass the environment of the process that creates a session to its runner, through a named pipe.

On a command line, in a file or in the environment of tmux, other processes could read it later. The runner waits for
the pipe, so writing to it also starts the agent.
"""

import errno
import json
import os
import select
import time

from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS
from baton.core.errors import RunnerDied
from baton.core.fields import parse_json
from baton.origin import MARKER, obeyed_environment
from baton.sessions.processes import HOME_MARKER, started_at
from baton.storage.files import remove_file

WAIT_SEC = 20.0
PIPE = "go"
_POLL_SEC = 0.1
# These describe the terminal and the session of the creating process.
_NOT_PASSED_ON = frozenset(
    {"TMUX", "TMUX_PANE", "TERM", "COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "_", MARKER, "BATON_SESSION_DIR"}
    | {"BATON_JOB_ID", "BATON_ATTEMPT", HOME_MARKER}
)
_PATHS = ("BATON_CONFIG", "MQTT_CA_CERTS", "MQTT_CERTFILE", "MQTT_KEYFILE")


def agent_environment(settings: Settings, session_id: str, folder: str) -> dict[str, str]:
    """Return the environment of the agent: this one, or inside a session that of its runner, with absolute paths of
    baton's state and the session's id."""
    from shutil import which

    from baton.registry import registry_url

    given = obeyed_environment(settings.home)
    passed = {name: value for name, value in given.items() if name not in _NOT_PASSED_ON}
    passed |= {
        MARKER: session_id,
        HOME_MARKER: settings.home_id,
        "BATON_SESSION_DIR": folder,
        "BATON_HOME": os.path.abspath(settings.home),
        "BATON_STATE_DIR": os.path.abspath(settings.state_dir),
        "DELEGATE_JOB_LOGS_DIR": os.path.abspath(settings.logs_dir),
        "BATON_REGISTRY": _absolute(registry_url(settings)),
    }
    for name in _PATHS:
        if passed.get(name):
            passed[name] = os.path.abspath(os.path.expanduser(passed[name]))
    for name in ("allow_network_fs", "allow_plaintext"):
        if getattr(settings, name):
            passed[f"BATON_{name.upper()}"] = "1"
    if which("baton", path=passed.get("PATH")) is None:
        from baton.storage.installation import own_program

        # At the end: the folder may hold other programs, such as a Python that is not the user's.
        if (program := own_program("baton")) is not None:
            passed["PATH"] = os.pathsep.join((passed.get("PATH") or os.defpath, os.path.dirname(program)))
    return passed


def _absolute(url: str) -> str:
    scheme, _, path = url.partition(":")
    return f"{scheme}:{os.path.abspath(path.removeprefix('//'))}" if scheme in ("sqlite", "file") else url


def prepare(folder: str) -> None:
    """Create the pipe in the session's folder."""
    os.mkfifo(os.path.join(folder, PIPE), 0o600)


def send(folder: str, environment: dict[str, str], runner_pid: int) -> None:
    """Write the environment once the runner reads. Raise RunnerDied when it has ended or does not read."""
    clock = AwakeClock()
    until_ns = clock.monotonic_ns() + int(WAIT_SEC * SECOND_NS)
    path = os.path.join(folder, PIPE)
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing reads the pipe yet
                raise
        if started_at(runner_pid) is None:
            raise RunnerDied("the session's runner ended before it began; is this Python still installed?")
        if clock.monotonic_ns() > until_ns:
            raise RunnerDied(f"the session's runner did not begin within {WAIT_SEC:g} s")
        time.sleep(0.005)
    left = memoryview(json.dumps(environment).encode())
    try:
        while left:
            if clock.monotonic_ns() > until_ns or started_at(runner_pid) is None:
                raise RunnerDied("the session's runner stopped reading before it had everything")
            if select.select([], [fd], [], 0.1)[1]:
                left = left[os.write(fd, left[:65536]) :]
    except (BrokenPipeError, BlockingIOError):
        raise RunnerDied("the session's runner ended before it began") from None
    finally:
        os.close(fd)
    remove_file(path)


def withdraw(folder: str) -> None:
    """Remove the pipe: a runner that waits for it ends."""
    remove_file(os.path.join(folder, PIPE))


def receive(folder: str) -> dict[str, str] | None:
    """Return the environment, in the runner; None when the creating process gave up or died."""
    path = os.path.join(folder, PIPE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    content = b""
    withdrawn = False
    clock = AwakeClock()
    until_ns = clock.monotonic_ns() + int(WAIT_SEC * SECOND_NS)
    try:
        while clock.monotonic_ns() < until_ns:
            select.select([fd], [], [], _POLL_SEC)
            piece = read_available(fd)
            if piece:
                content += piece
            elif piece is not None:
                if content or withdrawn:
                    break
                # The pipe has no writer. After its removal it gets none, but what was written before is read first.
                withdrawn = not os.path.exists(path)
                time.sleep(0.002)
    finally:
        os.close(fd)
    try:
        found: dict[str, str] = parse_json(content)
    except ValueError:
        return None  # nothing was written, or the writer died before the end
    return found


def read_available(fd: int) -> bytes | None:
    """Return what a non-blocking pipe holds, up to 64 KiB: None for nothing yet, empty at its end."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None
