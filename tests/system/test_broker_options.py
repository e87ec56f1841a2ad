"""Options of commands that connect to a broker: --allow-plaintext and --broker-login."""

from __future__ import annotations

import json
import os

import pytest

from baton.cli.main import load_verb
from support.brokers import Broker
from support.command import Baton
from support.office import Office
from support.ports import free_port
from support.waiting import wait_until

CONNECTING = (
    "publish", "subscribe", "watch", "wait", "submit", "retry", "follow-up", "worker", "monitor", "session create", "session resume",
    "broker check",
)  # fmt: skip
# A name of this machine that is not a loopback address: without TLS it is refused.
ELSEWHERE = "0.0.0.0"
_WITH_LOGINS = """\
server_name: test
listen: "127.0.0.1:{other}"
jetstream {{ store_dir: {data}, sync_interval: always }}
mqtt {{ listen: "127.0.0.1:{port}", ack_wait: "2s" }}
authorization {{ users: [ {{ user: job, password: "pw of the job" }}, {{ user: me, password: mine }} ] }}
"""


@pytest.mark.parametrize("verb", CONNECTING)
def test_every_command_that_connects_takes_allow_plaintext(verb):
    name, _, action = verb.partition(" ")
    found = load_verb(name)
    if action:
        found = next(each for each in found.actions if each.name == action)
    names = [each.names for each in found.options if hasattr(each, "names")]
    assert ("--allow-plaintext",) in names


class TestAllowPlaintext:
    @pytest.fixture
    def office(self, tmp_path):
        broker = Broker("nats")
        with Office(tmp_path, MQTT_BROKER=ELSEWHERE, MQTT_PORT=str(broker.port)) as office:
            yield office
        broker.remove()

    def test_submit_passes_it_on_to_the_runner(self, office):
        refused = office.submit("true")
        assert "without TLS" in refused.err
        unsent = office.unsent()
        assert unsent > 0
        allowed = office.submit("true", "--allow-plaintext")
        assert "TLS" not in allowed.err
        wait_until(lambda: office.unsent() <= unsent, "for the events to be sent")
        again = office("retry", office.jobs()[0]["job_id"], "--allow-plaintext")
        assert "TLS" not in again.err
        wait_until(lambda: office.unsent() <= unsent, "for the events to be sent")

    def test_a_session_a_worker_and_the_monitor_take_it(self, office):
        job = office("register", "true").text
        office("session", "create", "one", "--job", job, "--allow-plaintext")
        assert "TLS" not in office("wait", job, "--allow-plaintext").err
        wait_until(lambda: office.unsent() == 0, "for the events to be sent")
        office("register", "true")
        office("worker", "--until-empty", "--allow-plaintext")
        wait_until(lambda: office.unsent() == 0, "for the events to be sent")
        job = office("register", "x").text
        assert "TLS" in office("publish", job, "--event", "progress").err
        assert office.unsent() > 0
        office("monitor", "--once")
        assert office.unsent() > 0
        office("monitor", "--once", "--allow-plaintext")
        wait_until(lambda: office.unsent() == 0, "for the events to be sent")


class TestBrokerLogin:
    @pytest.fixture
    def broker(self, tmp_path_factory):
        port, folder = free_port(), tmp_path_factory.mktemp("broker")
        config = folder / "nats.conf"
        config.write_text(_WITH_LOGINS.format(port=port, other=free_port(), data=json.dumps(str(folder / "data"))))
        broker = Broker("nats", config=str(config), port=port)
        yield broker
        broker.remove()

    @pytest.fixture
    def login(self, tmp_path):
        path = tmp_path / "login.env"
        path.write_text("# of the job\nexport_me=no\nMQTT_USERNAME=job\nMQTT_PASSWORD='pw of the job'\n")
        path.chmod(0o600)
        return str(path)

    def test_a_job_has_a_login_of_its_own(self, broker, login, tmp_path):
        baton = Baton(tmp_path, **broker.env)
        without = baton("register", "x").text
        assert "refuses the login" in baton("publish", without, "--event", "progress").err
        job = baton("register", "x", "--broker-login", login).text
        assert baton("publish", job, "--event", "progress").json["sent"] is True
        assert baton("get", job).json["broker"]["password"] == "***"
        assert baton("get", job, "--show-secrets").json["broker"]["password"] == "pw of the job"
        listed = baton("list", "--json").out + baton("logs", job, "--json").out
        assert "pw of the job" not in listed

    def test_submit_and_a_batch_take_it_and_retry_keeps_it(self, broker, login, tmp_path):
        with Office(tmp_path, **broker.env, MQTT_USERNAME="", MQTT_PASSWORD="") as office:
            done = office.submit("true", "--broker-login", login)
            assert "refuses" not in done.err
            wait_until(lambda: office.unsent() == 0, "for the events to be sent")
            job = office.the_job()["job_id"]
            office("retry", job)
            wait_until(lambda: office.unsent() == 0, "for the events to be sent")
            line = json.dumps({"prompt": "true", "broker_login": login})
            batch = tmp_path / "batch"
            batch.write_text(line)
            office("submit", "--batch", str(batch))
            wait_until(lambda: office.unsent() == 0, "for the events to be sent")
            assert {each["broker"]["username"] for each in office.jobs()} == {"job"}

    def test_a_file_that_is_no_private_login_is_refused(self, login, tmp_path):
        baton = Baton(tmp_path, MQTT_BROKER="b.example", MQTT_TLS="1")
        assert "set MQTT_BROKER" in Baton(tmp_path).refused("register", "x", "--broker-login", login, code=64)
        assert "cannot be read" in baton.refused("register", "x", "--broker-login", "none", code=64)
        os.chmod(login, 0o644)
        assert "chmod 600" in baton.refused("register", "x", "--broker-login", login, code=64)
        os.chmod(login, 0o600)
        with open(login, "w") as file:
            file.write("MQTT_USERNAME=job\n")
        assert "must set" in baton.refused("register", "x", "--broker-login", login, code=64)
