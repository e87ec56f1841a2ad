"""A prompt is read in the same way by every verb that takes one."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from baton.cli.main import run_verb
from baton.core.errors import InvalidValue
from support.ports import free_port

SUBMIT = ("--agent-session", "q", "--detach")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_PORT", str(free_port()))


def prompt_of(job_id, capsys):
    run_verb("status", [job_id, "--json"])
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
    run_verb(verb, arguments)
    assert '"prompt": "what to do"' in prompt_of(capsys.readouterr().out.strip(), capsys)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("register", ["-"]),
        ("submit", ["-", *SUBMIT]),
        ("submit", ["--prompt-file", "-", *SUBMIT]),
        ("submit", ["--batch", "-", *SUBMIT]),
        ("session", ["create", "gpu", "--agent", "shell", "--prompt", "-"]),
    ],
)
def test_a_standard_input_that_is_closed_is_said_to_be_that(verb, arguments, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidValue, match="standard input is closed"):
        run_verb(verb, arguments)


@pytest.mark.parametrize(("verb", "more"), [("register", ()), ("submit", SUBMIT)])
def test_a_file_that_holds_no_text_or_is_not_there_is_refused(verb, more, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="prompt is not valid UTF-8"):
        run_verb(verb, ["--prompt-file", "binary", *more])
    with pytest.raises(InvalidValue, match="prompt cannot be read from gone: No such file"):
        run_verb(verb, ["--prompt-file", "gone", *more])
