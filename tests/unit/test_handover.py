"""What a session sees of the environment it was made from."""

from __future__ import annotations

import pytest

from baton.config import Settings
from baton.sessions.env_pipe import agent_environment


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_that_were_named_from_here_are_found_from_another_work_folder(here, monkeypatch):
    (here / "own.toml").touch()
    monkeypatch.setenv("HOME", str(here / "me"))
    for name, given, seen in (
        ("BATON_CONFIG", "own.toml", here / "own.toml"),
        ("MQTT_CA_CERTS", "tls/ca.pem", here / "tls/ca.pem"),
        ("MQTT_CERTFILE", "~/cert.pem", here / "me/cert.pem"),
        ("MQTT_KEYFILE", "/etc/key.pem", "/etc/key.pem"),
    ):
        monkeypatch.setenv(name, given)
        assert agent_environment(Settings(), "0" * 16, "/sessions/0")[name] == str(seen)


def test_what_was_not_given_is_not_made_up(here):
    seen = agent_environment(Settings(), "0" * 16, "/sessions/0")
    assert not {"BATON_CONFIG", "MQTT_CA_CERTS", "BATON_ALLOW_NETWORK_FS"} & seen.keys()


def test_whoever_insists_on_a_network_file_system_does_so_for_the_session_too(here):
    seen = agent_environment(Settings({"allow_network_fs": True}), "0" * 16, "/sessions/0")
    assert seen["BATON_ALLOW_NETWORK_FS"] == "1"
