"""Two hosts, as network namespaces with a cable between them: PostgreSQL and a Mosquitto with TLS on the first, a worker
on the second. Submitted here, done there; the events and the exit code are here."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess

import pytest

from baton.broker.production import write_set
from support.office import Office
from support.postgres import PostgresServer
from support.waiting import wait_until

pytestmark = pytest.mark.as_root

PORT = 8883


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """Two namespaces, and the addresses they reach each other by."""

    def __init__(self):
        self.names = [f"bt{os.getpid()}{end}" for end in "ab"]
        self.addresses = ["10.213.7.1", "10.213.7.2"]
        ip("link", "add", self.names[0], "type", "veth", "peer", "name", self.names[1])
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("netns", "add", name)
            ip("link", "set", name, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", name)
            for device in ("lo", name):
                ip("-n", name, "link", "set", device, "up")

    def at(self, number, user=None):
        """What runs a command there."""
        who = [] if user is None else ["-S", str(pwd.getpwnam(user).pw_uid), "-G", str(pwd.getpwnam(user).pw_gid)]
        return ["nsenter", f"--net=/run/netns/{self.names[number]}", *who, "--"]

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


@pytest.fixture
def network():
    network = Network()
    yield network
    network.remove()


@pytest.fixture
def registry(network):
    server = PostgresServer(address=network.addresses[0], prefix=network.at(0, "postgres"))
    yield f"postgresql://baton@{network.addresses[0]}/postgres?schema=two_hosts"
    server.remove()


@pytest.fixture
def broker(network, tmp_path):
    """The folder with the logins of both roles."""
    folder = tmp_path / "broker"
    folder.mkdir(0o700)
    os.chown(folder, pwd.getpwnam("mosquitto").pw_uid, 0)
    for parent in folder.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    write_set("mosquitto", str(folder), hosts=[network.addresses[0]], port=PORT, mtls=False)
    process = subprocess.Popen(
        [*network.at(0, "mosquitto"), "mosquitto", "-c", str(folder / "mosquitto.conf")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: reachable(network, 0), "for mosquitto")
        yield folder
    finally:
        process.terminate()
        process.wait(20)


def reachable(network, number):
    probe = f"exec 3<>/dev/tcp/{network.addresses[0]}/{PORT}"
    return subprocess.run([*network.at(number), "bash", "-c", probe], check=False, capture_output=True).returncode == 0


def role(folder, name):
    with open(folder / f"{name}.env") as file:
        lines = [line.strip().removeprefix("export ") for line in file if "=" in line and not line.startswith("#")]
    return {name: value.strip("'\"") for name, value in (line.split("=", 1) for line in lines)}


@pytest.fixture
def hosts(network, registry, broker, tmp_path):
    """`here` and `there`. What lies in `work` there is on a disk of its own."""
    made = []
    shared = {"BATON_REGISTRY": registry, "BATON_DIRECTORY": registry}
    (tmp_path / "work").mkdir()
    for number, name, who in ((0, "here", "orchestrator"), (1, "there", "worker")):
        (tmp_path / name).mkdir()
        office = Office(tmp_path / name, BATON_HOST=name, **shared, **role(broker, who))
        office.prefix = network.at(number)
        made.append(office)
    own_disk = f'mount -t tmpfs none "{tmp_path}/work" && exec "$@"'
    made[1].prefix = [*network.at(1), "unshare", "-m", "--propagation", "private", "sh", "-c", own_disk, "sh"]
    try:
        yield made
    finally:
        for office in made:
            office.close()


def test_submitted_here_done_there(hosts, network, tmp_path):
    here, there = hosts
    assert reachable(network, 1)
    worker = there.start("worker", "--agent-session", "gpu", "--concurrency", "2")
    worker.says("taking jobs of gpu")
    work = str(tmp_path / "work")
    done = here.submit(
        "baton publish --event progress --detail 'half way'; echo hi > out; cat out > seen",
        "--agent-session", "gpu", "--workdir", work, "--expect", "out", "--validate", "grep -q hi seen", "--json",
    )  # fmt: skip
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["event"] for event in events] == ["started", "progress", "completed"]
    assert events[0]["data"]["host"] == "there"
    assert os.listdir(work) == []  # it was another disk
    assert here.sessions() == []
    missing = here.submit("true", "--agent-session", "gpu", "--workdir", work, "--expect", "x", code=1)
    assert "x is missing" in missing.out
    job_id = here.detached("sleep 1234", "--agent-session", "gpu", "--workdir", work)
    here.wait_for_status(job_id, "running")
    here("cancel", job_id)
    here("wait", job_id, code=4)
    wait_until(lambda: not there.agents(), "until nothing is at work there")
    heard = here("registry", "stats", "--json").json
    assert heard["unsent"] == 0  # every event went through the broker
    worker.signal(signal.SIGTERM)
    assert worker.end().code == 0


def test_to_a_live_agent_there_by_its_name(hosts, tmp_path):
    here, there = hosts
    there("session", "create", "gpu", "--workdir", str(tmp_path / "there"))
    done = here.submit("hostname > /dev/null; echo hi > out", "--to", "gpu", "--expect", "out", "--json")
    assert [json.loads(line)["event"] for line in done.out.splitlines()] == ["started", "completed"]
    assert (tmp_path / "there" / "out").read_text() == "hi\n"
    there("session", "stop", "gpu")
