"""S11: what a broken or hostile client sends to `baton mcp`, and clients that are killed in a call. The server does not
crash, and the results are still there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from support.mcp import LEGACY, MODERN, McpClient, allow, of_version
from support.sessions import SessionDesk
from support.waiting import wait_until

PING = {"jsonrpc": "2.0", "method": "ping"}
LONG = 1 << 20


@pytest.fixture
def desk(tmp_path):
    desk = SessionDesk(str(tmp_path))
    allow(desk.folder, "shell")
    yield desk
    desk.close()


@pytest.fixture
def server(desk):
    client = McpClient(desk.folder, desk.env).start()
    yield client
    client.close()


def memory_kib(process) -> int:
    """The most memory that a process has had."""
    with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def is_there(server) -> bool:
    """Whether the server answers, and its jobs can be read."""
    return server.ask("ping")["result"] == {} and "jobs" in server.call("list")


# -- what a line may be ------------------------------------------------------------------------------------------------

# Each line, and the code of the error that answers it; None: no answer.
LINES = [
    (b"nonsense", -32700),
    (b"{", -32700),
    (b'{"jsonrpc":"2.0","id":90001,"method":"ping"', -32700),
    (b"\xff\xfe\x00", -32700),
    ("{}".encode("utf-16"), -32700),
    (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700),
    (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', -32700),
    (b"[" * 100_000, -32700),
    (b'{"a":' * 50_000, -32700),
    (b"\x00" * 1000, -32700),
    (b"7", -32600),
    (b'"text"', -32600),
    (b"null", -32600),
    (b"[]", -32600),
    (json.dumps([PING | {"id": 90001}, PING | {"id": 90002}]).encode(), -32600),
    (b"{}", -32600),
    (b'{"jsonrpc":"1.0","id":90001,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":90001,"method":7}', -32600),
    (b'{"jsonrpc":"2.0","id":90001}', -32600),
    (b'{"jsonrpc":"2.0","id":90001,"method":"ping","params":[]}', -32602),
    (b'{"jsonrpc":"2.0","id":90001,"method":"ping","params":null}', -32602),
    (b'{"jsonrpc":"2.0","id":90001,"method":"tools/list","params":{"_meta":7}}', -32602),
    (b'{"jsonrpc":"2.0","id":90001,"method":"tools/call"}', -32602),
    (b'{"jsonrpc":"2.0","id":90001,"method":"initialize","params":{"protocolVersion":7}}', -32602),
    (b'{"jsonrpc":"2.0","id":90001,"method":"\\u0000"}', -32601),
    (b'{"jsonrpc":"2.0","id":90001,"method":"../../tools/list"}', -32601),
    (b"", None),
    (b"   \t \r", None),
    (b'{"jsonrpc":"2.0","id":90001,"result":{}}', None),
    (b'{"jsonrpc":"2.0","id":99,"error":{"code":1,"message":"x"}}', None),
    (b'{"jsonrpc":"2.0","method":"notifications/unknown"}', None),
    (b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"cancel"}}', None),
    (b'{"jsonrpc":"2.0","method":"notifications/cancelled"}', None),
    (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}', None),
    (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":12345}}', None),
    (b'{"jsonrpc":"2.0","method":"ping","params":7}', None),
]


def test_every_line_gets_its_answer_or_none(server, figure):
    for line, code in LINES:
        before = len(server.unexpected)
        server.write(line + b"\n")
        assert server.ask("ping")["result"] == {}  # answered in order, after what the line was answered
        codes = [each["error"]["code"] for each in server.unexpected[before:]]
        assert codes == ([] if code is None else [code]), line[:80]
    assert is_there(server)
    figure("S11 malformed lines", f"{len(LINES)} kinds, each refused by its code or ignored, 0 crashes", held=True)


def test_an_error_without_an_id_has_the_form_of_its_generation(desk):
    client = McpClient(desk.folder, desk.env, modern=True)
    client.write(b"nonsense\n")
    wait_until(lambda: client.unexpected)
    assert "id" not in client.unexpected[0]
    client.start()
    client.modern = False
    client.start()
    client.write(b"nonsense\n")
    wait_until(lambda: len(client.unexpected) > 1)
    assert client.unexpected[1]["id"] is None
    client.close()


def test_a_long_line_is_refused_and_takes_no_memory(server, full, figure):
    assert is_there(server)
    before = memory_kib(server.process)
    valid = json.dumps(PING | {"id": 1, "params": {"x": ""}}).encode()
    exactly = valid.replace(b'""', b'"' + b"x" * (LONG - len(valid)) + b'"')
    server.expect(1)
    server.write(exactly + b"\n")
    assert server.answer(1)["result"] == {}
    mebibytes = 512 if full else 24
    server.write(exactly[:-3] + b"x" + exactly[-3:] + b"\n")  # one byte more
    for _ in range(mebibytes):
        server.write(b"x" * LONG)
    server.write(b"\n")
    assert is_there(server)
    assert [each["error"]["code"] for each in server.unexpected] == [-32600, -32600]
    assert "1 MiB" in server.unexpected[0]["error"]["message"]
    grown = (memory_kib(server.process) - before) / 1024
    figure("S11 long line", f"a line of {mebibytes} MiB refused, {grown:.1f} MiB more memory", held=grown < 12)


def test_mutated_messages_in_random_order(server, desk, full, seed, figure):
    """Valid messages, cut, doubled, reordered, with bytes and types changed. Nothing of it may cancel the job."""
    job = desk.register("sleep 1")
    source = random.Random(seed)
    seeds = [
        {"jsonrpc": "2.0", "id": 900001, "method": "tools/call", "params": {"name": "list", "arguments": {"limit": 2}}},
        {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "result", "arguments": {"job_id": job}}},
        {"jsonrpc": "2.0", "id": 900002, "method": "tools/list", "params": {"_meta": of_version(MODERN)}},
        {"jsonrpc": "2.0", "id": 900003, "method": "server/discover", "params": {"_meta": of_version(MODERN)}},
        {"jsonrpc": "2.0", "id": 900004, "method": "initialize", "params": {"protocolVersion": LEGACY}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 900001}},
        {"jsonrpc": "2.0", "id": 900005, "method": "tools/call", "params": {"name": "wait", "arguments": {"job_ids": [job], "timeout_sec": 0}}},
    ]  # fmt: skip
    count = 20_000 if full else 600
    for _ in range(count):
        line = bytearray(json.dumps(_mutated(source, source.choice(seeds))).encode())
        for _ in range(source.choice((0, 0, 0, 1, 3))):
            line[source.randrange(len(line))] = source.randrange(256)
        if source.random() < 0.1:
            del line[source.randrange(len(line)) :]
        server.write(bytes(line) + b"\n")
    assert is_there(server)
    assert desk.job(job)["status"] == "pending"
    answers = len(server.unexpected)
    figure("S11 mutated messages", f"{count:,} lines, {answers:,} answers, 0 crashes, 0 effects", held=True, seed=seed)


def _mutated(source, message):
    """Return a copy with one value, at any depth, replaced or left out."""
    odd = [None, True, -1, 10**30, 0.5, "", "\ud800", "x" * 1000, [], {}, [[]], {"_meta": {}}, {"name": "list"}]
    copied = json.loads(json.dumps(message))
    place = copied
    while True:
        name = source.choice(list(place))
        if isinstance(place[name], dict) and place[name] and source.random() < 0.7:
            place = place[name]
            continue
        if source.random() < 0.2:
            del place[name]
        elif source.random() < 0.7:
            place[name] = source.choice(odd)
        return copied


# -- many calls at once ------------------------------------------------------------------------------------------------


def test_many_calls_at_once_do_not_block_each_other(server, desk, full, figure):
    job = desk.register("sleep 1")
    began = time.monotonic()
    waits = [server.begin_call("wait", job_ids=[job], timeout_sec=2) for _ in range(32)]
    refused = [server.answer(server.begin_call("list"))["result"] for _ in range(3)]
    held = all(each.get("isError") and "32 calls are at work" in each["content"][0]["text"] for each in refused)
    held &= server.ask("ping")["result"] == {} and time.monotonic() - began < 2
    held &= not any(server.end_call(each, "wait")["done"] for each in waits)
    rounds = 200 if full else 20
    for _ in range(rounds):
        calls = [server.begin_call("list") for _ in range(16)]
        held &= all(len(server.end_call(each, "list")["jobs"]) == 1 for each in calls)
    figure(
        "S11 concurrent calls", f"32 waits side by side, {16 * rounds:,} lists, the 33rd call refused", held=bool(held)
    )


def test_an_id_that_is_in_use_is_refused_and_free_again_afterwards(server, desk):
    job = desk.register("sleep 1")
    call = {"name": "wait", "arguments": {"job_ids": [job], "timeout_sec": 0.5}}
    server.expect("same")
    for _ in range(2):
        server.send({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": call})
    assert server.answer("same")["error"]["code"] == -32600
    assert server.answer("same")["result"]["structuredContent"]["done"] is False
    server.send({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": {"name": "list"}})
    assert server.answer("same")["result"]["structuredContent"]["jobs"]


def test_a_client_skips_no_permission(server, desk):
    for more in (
        {"yolo": True},
        {"YOLO": True},
        {"no_verify": True},
        {"start_options": {"yolo": True}},
        {"broker": {}},
    ):
        assert "is not an argument of submit" in server.refused("submit", prompt="x", agent="shell", **more)
    assert desk("list", "--json").json == []


# -- ends --------------------------------------------------------------------------------------------------------------


def start(desk, **more):
    return McpClient(desk.folder, desk.env, **more).start()


def test_it_ends_with_its_input_also_in_the_middle_of_a_line(desk):
    client = start(desk)
    job = desk.register("sleep 1")
    client.begin_call("wait", job_ids=[job])
    client.write(
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"cancel","arguments":{"job_id":"'
        + job.encode()
    )
    began = time.monotonic()
    assert client.close() == ""
    assert time.monotonic() - began < 4
    assert desk.job(job)["status"] == "pending"


def test_it_ends_when_the_client_reads_no_more(desk):
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [desk.program, "mcp"], cwd=desk.folder, env=desk.env, stdin=pipe, stdout=pipe, stderr=pipe
    ) as server:
        ping = json.dumps(PING | {"id": 1}).encode() + b"\n"
        server.stdin.write(ping)
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"] == {}
        server.stdout.close()
        server.stdin.write(ping)
        server.stdin.flush()
        assert server.wait(20) == 0
        assert server.stderr.read() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_ends_it_quietly(desk, number, code):
    client = start(desk)
    client.begin_call("wait", job_ids=[desk.register("sleep 1")])
    wait_until(lambda: len(os.listdir(f"/proc/{client.process.pid}/task")) > 1)
    client.process.send_signal(number)
    assert client.process.wait(20) == code
    client.process.stdin.close()
    assert client._finish() == ""


def test_what_a_program_of_a_call_prints_is_no_message(desk):
    """Warnings of settings, and of the programs that a call starts, go to standard error."""
    with McpClient(desk.folder, desk.env | {"BATON_TMUX_SOCKET": "/nonesuch/socket"}) as client:
        assert client.refused("submit", prompt="true", agent="shell")
        assert client.unexpected == []


# -- killed clients ----------------------------------------------------------------------------------------------------

# A client that starts the server, makes a call, prints that it has begun and never ends by itself.
_CLIENT = """
import json, subprocess, sys, time
server = subprocess.Popen([sys.argv[1], "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
call = {"name": sys.argv[2], "arguments": json.loads(sys.argv[3]), "_meta": meta}
server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode() + b"\\n")
server.stdin.flush()
print(server.pid, flush=True)
time.sleep(600)
"""


class KilledClient:
    """A client in a process of its own, in the middle of a call."""

    def __init__(self, desk, tool: str, **arguments) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, desk.program, tool, json.dumps(arguments)], cwd=desk.folder, env=desk.env,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.server = int(self.process.stdout.readline())

    def kill(self, *, with_server: bool) -> None:
        """Kill the client; its whole process group, or the client alone, whose server then must end by itself."""
        if with_server:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        wait_until(lambda: not _runs(self.server), what="the server ends with its client")


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("with_server", [False, True])
def test_a_client_killed_in_wait_gets_the_result_in_its_next_call(desk, figure, with_server):
    with start(desk, modern=True) as client:
        script = "until [ -e go ]; do sleep 0.05; done; echo done"
        job = client.call("submit", prompt=script, agent="shell", idempotency_key="one")["job_id"]
    wait_until(lambda: desk.job(job)["status"] == "running")
    killed = KilledClient(desk, "wait", job_ids=[job])
    wait_until(lambda: len(os.listdir(f"/proc/{killed.server}/task")) > 1)
    killed.kill(with_server=with_server)
    with open(os.path.join(desk.folder, "go"), "w", encoding="utf-8"):
        pass
    with start(desk, modern=True) as client:
        again = client.call("submit", prompt=script, agent="shell", idempotency_key="one")["job_id"]
        held = again == job and client.until_ended(job)["jobs"][0]["ok"]
        held = held and client.call("result", job_id=job)["text"].strip() == "done"
    how = "with its server" if with_server else "alone"
    figure(f"S11 client killed in wait, {how}", "the job went on, the next client got its result", held=held)


def test_clients_killed_in_submit_lose_and_double_nothing(desk, full, seed, figure):
    """Killed at a random moment, with its server. The next client repeats the call: there is one job, and it ends."""
    source, count = random.Random(seed), 60 if full else 4
    killed = []
    for number in range(count):
        task = {"prompt": f"echo {number} >> ran", "agent": "shell", "idempotency_key": f"key-{number}"}
        client = KilledClient(desk, "submit", **task)
        threading.Event().wait(source.uniform(0, 0.5))  # the moment is what is tested
        client.kill(with_server=True)
        killed.append(task)
    with start(desk) as client:
        jobs = [client.call("submit", **task)["job_id"] for task in killed]
        ended = [
            job["ok"]
            for start in range(0, count, 20)
            for job in client.until_ended(*jobs[start : start + 20], until="all")["jobs"]
        ]
    with open(os.path.join(desk.folder, "ran"), encoding="utf-8") as file:
        ran = sorted(map(int, file.read().split()))
    lost, doubled = ended.count(False) + len(set(range(count)) - set(ran)), len(ran) - len(set(ran))
    text = f"{count} clients and servers killed, {lost} jobs lost, {doubled} run twice"
    held = (lost, doubled, len(set(jobs))) == (0, 0, count)
    figure("S11 client killed in submit", text, held=held, seed=seed)
