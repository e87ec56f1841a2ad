"""A PostgreSQL server that only a folder names gets neither a connection nor a password."""

from __future__ import annotations

import os
import re
import socket
import threading

import pytest

from support.command import Baton


class Server:
    """A server that asks every client for its password in the clear, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://me@127.0.0.1:{self._listening.getsockname()[1]}/db"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.heard += b"connected "
                while piece := connection.recv(4096):
                    self.heard += piece
                    if piece[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):
                        connection.sendall(b"N")  # neither TLS nor GSS
                    elif piece[:1] != b"p":
                        connection.sendall(b"R\0\0\0\x08\0\0\0\x03")
                    else:
                        break

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def baton(tmp_path):
    secrets = {"PGPASSWORD": "hunter2", "PGUSER": "me", "PGSSLMODE": "disable"}
    baton = Baton(tmp_path, **secrets)
    passwords = tmp_path / ".pgpass"
    passwords.write_text("*:*:*:*:hunter3\n")
    passwords.chmod(0o600)
    baton("register", "x")
    return baton


COMMANDS = [
    ("list",), ("register", "x"), ("pick",), ("agent", "list"), ("monitor", "--once"), ("registry", "stats"), ("doctor",),
    ("session", "create", "s", "--agent", "shell"), ("config", "show"), ("agent", "cleanup"),
]  # fmt: skip


def test_the_server_hears_the_password_of_the_user_who_names_it(baton, server):
    """Without this, the tests below would prove nothing."""
    baton("list", "--registry", server.url, code=1)
    assert b"hunter2" in server.heard


@pytest.mark.parametrize("named_by", ["moved", "registry", "directory"])
def test_a_folder_does_not_choose_the_server(named_by, baton, server):
    home = os.path.join(baton.folder, ".hermes")
    if named_by == "moved":
        with open(os.path.join(home, "jobs", ".moved"), "w") as file:
            file.write(server.url + "\n")
    else:
        with open(os.path.join(home, "baton.toml"), "w") as file:
            file.write(f'{named_by} = "{server.url}"\n')
    refused = 0
    for command in COMMANDS:
        result = baton(*command, code=None)
        refused += bool(re.search("only your own settings|have not confirmed", result.err + result.out))
    assert refused >= 2
    assert server.heard == b""
    if named_by == "registry":
        assert "set BATON_REGISTRY to it" in baton.refused("list")


def test_a_server_that_the_user_names_too_is_used(baton, server):
    with open(os.path.join(baton.folder, ".hermes", "baton.toml"), "w") as file:
        file.write(f'registry = "{server.url}"\n')
    baton("list", code=1, BATON_REGISTRY=server.url)
    assert b"hunter2" in server.heard
