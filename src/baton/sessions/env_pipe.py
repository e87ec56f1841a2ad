"""How a new session gets the environment of whoever made it: through a pipe that has a name, and nothing else.

On a command line, in a file or in tmux's own environment everybody could read it later. The pipe is also the word to
begin: the runner waits for it.
"""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time

from baton.core.errors import RunnerDied
from baton.sessions.processes import MARKER, started_at
from baton.storage.files import remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from baton.config import Settings

WAIT_SEC: Final = 20.0
_LOOK_SEC: Final = 0.1
_PIPE: Final = "go"
# About the terminal and the session that the maker itself was in.
_NOT_PASSED_ON: Final = frozenset(
    {"TMUX", "TMUX_PANE", "TERM", "COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "_", MARKER, "BATON_SESSION_DIR"}
    | {"BATON_JOB_ID", "BATON_ATTEMPT"}
)
_FILES: Final = ("BATON_CONFIG", "MQTT_CA_CERTS", "MQTT_CERTFILE", "MQTT_KEYFILE")


def agent_environment(settings: Settings, session_id: str, folder: str) -> dict[str, str]:
    """What the agent will see: what we see, where our state is wherever it goes, and the mark of its session."""
    from shutil import which

    from baton.registry import registry_url

    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    environment |= {
        MARKER: session_id,
        "BATON_SESSION_DIR": folder,
        "BATON_HOME": os.path.abspath(settings.home),
        "BATON_STATE_DIR": os.path.abspath(settings.state_dir),
        "DELEGATE_JOB_LOGS_DIR": os.path.abspath(settings.logs_dir),
        "BATON_REGISTRY": _absolute(registry_url(settings)),
    }
    for name in _FILES:
        if environment.get(name):
            environment[name] = os.path.abspath(os.path.expanduser(environment[name]))
    if settings.allow_network_fs:
        environment["BATON_ALLOW_NETWORK_FS"] = "1"
    if which("baton", path=environment.get("PATH")) is None:
        environment["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environment.get("PATH", os.defpath)
    return environment


def _absolute(url: str) -> str:
    scheme, _, path = url.partition(":")
    return f"{scheme}:{os.path.abspath(path.removeprefix('//'))}" if scheme in ("sqlite", "file") else url


def prepare(folder: str) -> None:
    os.mkfifo(os.path.join(folder, _PIPE), 0o600)


def send(folder: str, environment: dict[str, str], runner_pid: int) -> None:
    """Waits until the runner listens; RunnerDied when it is gone or does not."""
    deadline = time.monotonic() + WAIT_SEC
    path = os.path.join(folder, _PIPE)
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if started_at(runner_pid) is None:
            raise RunnerDied("the session's runner ended before it began; is this Python still installed?")
        if time.monotonic() > deadline:
            raise RunnerDied(f"the session's runner did not begin within {WAIT_SEC:g} s")
        time.sleep(0.005)
    left = memoryview(json.dumps(environment).encode())
    try:
        while left:
            if time.monotonic() > deadline or started_at(runner_pid) is None:
                raise RunnerDied("the session's runner stopped listening before it had heard everything")
            if select.select([], [fd], [], 0.1)[1]:
                left = left[os.write(fd, left[:65536]) :]
    except (BrokenPipeError, BlockingIOError):
        raise RunnerDied("the session's runner ended before it began") from None
    finally:
        os.close(fd)
    remove_file(path)


def withdraw(folder: str) -> None:
    """The session is not to begin: a runner that waits for the word ends."""
    remove_file(os.path.join(folder, _PIPE))


def receive(folder: str) -> dict[str, str] | None:
    """In the runner: the environment, or None when whoever made the session gave up."""
    path = os.path.join(folder, _PIPE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        content = b""
        withdrawn = False
        deadline = time.monotonic() + WAIT_SEC
        while time.monotonic() < deadline:
            select.select([fd], [], [], _LOOK_SEC)
            try:
                piece = os.read(fd, 65536)
            except BlockingIOError:
                continue
            if piece:
                content += piece
            elif content:
                return _decoded(content)
            elif withdrawn:
                return None
            else:
                # Nobody has opened the other end yet. Once the name is gone nobody will; but what was written before
                # that is read first.
                withdrawn = not os.path.exists(path)
                time.sleep(0.002)
        return None
    finally:
        os.close(fd)


def _decoded(content: bytes) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads(content)
    except ValueError:
        return None  # the other side died in the middle
    return found
