"""A stand-in for the program `codex`: an app-server that speaks WebSocket on a unix socket, and plays a script.

    codex app-server ... --listen unix://PATH      serve; what a client sends is appended to $CODEX_STAND_IN/sent
    codex --remote unix://PATH ...                 stay until it is ended

The script answers `initialize`, `thread/start`, `thread/resume` and `turn/start`. The prompt says what comes then: "ask"
asks for a permission until it is answered; "die" ends the server; "drop" asks, and closes the connection once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import sys
import tempfile

THREAD = "0199a213-81c0-7800-8aa1-bbab2a03a530"
TURN = "0199a213-81c0-7800-8aa1-bbab2a03a531"
MESSAGE = "There are two files."


def read_exactly(client, size):
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def read_message(client):
    _, length = read_exactly(client, 2)
    size = length & 0x7F
    if size > 125:
        size = int.from_bytes(read_exactly(client, 2 if size == 126 else 8), "big")
    mask = read_exactly(client, 4)
    content = bytes(byte ^ mask[index % 4] for index, byte in enumerate(read_exactly(client, size)))
    return json.loads(content)


class Client:
    def __init__(self, connection) -> None:
        self.connection = connection
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        key = next(line for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key")).split(b": ")[1]
        proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + proof + b"\r\n\r\n")

    def send(self, **message):
        content = json.dumps(message).encode()
        size = bytes([len(content)]) if len(content) < 126 else b"\x7e" + len(content).to_bytes(2, "big")
        self.connection.sendall(b"\x81" + size + content)

    def tell(self, method, **params):
        self.send(method=method, params={"threadId": THREAD, "turnId": TURN} | params)


class Server:
    def __init__(self, path: str, folder: str) -> None:
        self.folder = folder
        self.is_open = False  # the question
        self.has_dropped = False
        private = tempfile.mkdtemp(dir=folder)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(private, "s"))
        self.listener.listen()
        os.symlink(os.path.join(private, "s"), path)  # as the real one does

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            client = Client(connection)
            try:
                while True:
                    self.handle(client, read_message(connection))
            except (EOFError, OSError):
                connection.close()

    def handle(self, client, message):
        with open(os.path.join(self.folder, "sent"), "a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            client.send(id=number, result={})
        elif method == "account/read":
            client.send(id=number, result={"account": None, "requiresOpenaiAuth": False})
        elif method in ("thread/start", "thread/resume"):
            client.send(id=number, result={"thread": {"id": THREAD, "status": {"type": "idle"}}})
            if self.is_open:
                self.ask(client)
        elif method == "thread/turns/list":
            client.send(id=number, result={"data": [{"id": TURN, "status": "inProgress", "items": []}]})
        elif method == "turn/start":
            if message["params"]["input"][0]["text"] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            client.send(id=number, result={"turn": {"id": TURN}})
            self.work(client, message["params"]["input"][0]["text"])
        elif "result" in message and self.is_open:
            self.is_open = False
            client.tell("serverRequest/resolved", requestId=0)
            done = {"type": "commandExecution", "id": "c1", "status": "completed", "exitCode": 0}
            client.tell("item/completed", item=done)
            client.tell("item/completed", item={"type": "agentMessage", "id": "m1", "text": MESSAGE})
            client.tell("turn/completed", turn={"id": TURN, "status": "completed", "items": []})

    def work(self, client, prompt):
        client.tell(
            "item/started", item={"type": "commandExecution", "id": "c1", "command": "ls", "status": "inProgress"}
        )
        self.is_open = True
        self.ask(client)
        if prompt == "drop" and not self.has_dropped:
            self.has_dropped = True
            client.connection.close()
            raise EOFError

    def ask(self, client):
        about = {"threadId": THREAD, "turnId": TURN, "itemId": "c1", "command": "ls"}
        client.send(id=0, method="item/commandExecution/requestApproval", params=about)


def main(arguments):
    if "--remote" in arguments:
        signal.pause()
    if os.environ.get("CODEX_STAND_IN_FAILS"):
        print("the settings cannot be read", file=sys.stderr)
        sys.exit(1)
    Server(arguments[arguments.index("--listen") + 1].removeprefix("unix://"), os.environ["CODEX_STAND_IN"]).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
