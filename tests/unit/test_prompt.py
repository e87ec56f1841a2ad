"""A prompt is read in the same way by every verb that takes one."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from baton.cli.jobs import run as jobs
from baton.cli.session import run as session
from baton.cli.submit import run as submit
from baton.core.errors import InvalidValue
from support.brokers import free_port

SUBMIT = ("--agent-session", "q", "--detach")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_PORT", str(free_port()))


def prompt_of(job_id, capsys):
    jobs("status", [job_id, "--json"])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("register", ["-"]),
        ("register", ["--prompt-file", "-"]),
        ("submit", ["-", *SUBMIT]),
        ("submit", ["--prompt-file", "-", *SUBMIT]),
    ],
)
def test_a_dash_is_standard_input(verb, arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"what to do")))
    (submit if verb == "submit" else jobs)(verb, arguments)
    assert '"prompt": "what to do"' in prompt_of(capsys.readouterr().out.strip(), capsys)


@pytest.mark.parametrize(
    ("run", "verb", "arguments"),
    [
        (jobs, "register", ["-"]),
        (submit, "submit", ["-", *SUBMIT]),
        (submit, "submit", ["--prompt-file", "-", *SUBMIT]),
        (submit, "submit", ["--batch", "-", *SUBMIT]),
        (session, "session", ["create", "gpu", "--agent", "shell", "--prompt", "-"]),
    ],
)
def test_a_standard_input_that_is_closed_is_said_to_be_that(run, verb, arguments, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidValue, match="standard input is closed"):
        run(verb, arguments)


@pytest.mark.parametrize(("run", "verb", "more"), [(jobs, "register", ()), (submit, "submit", SUBMIT)])
def test_a_file_that_holds_no_text_or_is_not_there_is_refused(run, verb, more, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="prompt is not valid UTF-8"):
        run(verb, ["--prompt-file", "binary", *more])
    with pytest.raises(InvalidValue, match="prompt cannot be read from gone: No such file"):
        run(verb, ["--prompt-file", "gone", *more])
