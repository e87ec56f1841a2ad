"""Every tmux call, on a real server."""

from __future__ import annotations

import os
import sys

import pytest

from baton.core.errors import InvalidValue, NameInUse, SessionGone, TmuxUnavailable
from baton.sessions.tmux import NoServer, Tmux
from support.terminal import Terminal
from support.waiting import wait_until

# Writes every byte it reads to the file it is given, and says when it is there.
READER = """
import os, sys, tty
tty.setraw(0)
with open(sys.argv[1], "wb", buffering=0) as file:
    os.write(1, b"listening")
    while keys := os.read(0, 65536):
        file.write(keys)
"""


@pytest.fixture
def ours(tmux):
    return Tmux(tmux.socket)


@pytest.fixture
def reader(ours, tmp_path, monkeypatch):
    """A pane, and what it has read so far, once that is enough."""
    monkeypatch.setattr("baton.sessions.tmux._SHOWN_SEC", 0.0)  # it shows nothing: nothing is to be waited for
    (tmp_path / "reader.py").write_text(READER)
    heard = tmp_path / "heard"
    argv = [sys.executable, "-I", str(tmp_path / "reader.py"), str(heard)]
    pane = ours.new_session("reader", argv, workdir=str(tmp_path))
    wait_until(lambda: "listening" in ours.capture(pane.pane_id))

    def hear(size):
        wait_until(lambda: heard.stat().st_size >= size, what=f"{size} bytes")
        return heard.read_bytes()

    return pane.pane_id, hear


def names(ours):
    return sorted(pane.session_name for pane in ours.panes())


def test_a_target_is_exactly_that_session(ours, tmp_path):
    for name in ("gpu-2", "gpu-22"):
        ours.new_session(name, ["sleep", "600"], workdir=str(tmp_path))
    ours.kill_session("gpu")
    ours.kill_session("gp")
    assert names(ours) == ["gpu-2", "gpu-22"], "a beginning of a name is not the name"
    ours.new_session("gpu", ["sleep", "600"], workdir=str(tmp_path))
    ours.kill_session("gpu")
    assert names(ours) == ["gpu-2", "gpu-22"]
    ours.kill_session("gpu-2")
    assert names(ours) == ["gpu-22"]
    ours.kill_session("gpu-2")
    assert names(ours) == ["gpu-22"], "also where only one begins like it"


def test_one_name_is_one_session(ours, tmp_path):
    ours.new_session("gpu", ["sleep", "600"], workdir=str(tmp_path))
    with pytest.raises(NameInUse, match="has a session of that name already"):
        ours.new_session("gpu", ["sleep", "600"], workdir=str(tmp_path))
    assert names(ours) == ["gpu"]


@pytest.mark.parametrize("name", ["", "-x", "a.b", "a:b", "a b", "a\n", "#(x)", "é", "x" * 65, "=x", "%1", "a\0"])
def test_a_name_that_tmux_would_change_or_take_for_something_else_is_refused(ours, name):
    with pytest.raises(InvalidValue, match="session name"):
        ours.new_session(name, ["sleep", "600"], workdir="/")


@pytest.mark.parametrize(
    "name", ["#(touch x)", "##", "#{pane_id}", "#[x]", "a;", "a\\;", ";", "-c", " a ", "'", '"', "$(touch x)", "%H"]
)
def test_a_folder_is_that_folder(ours, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    ours.new_session("gpu", ["sh", "-c", 'pwd > "$0"', str(tmp_path / "told")], workdir=str(folder))
    told = wait_until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text())
    # tmux leaves ##[ as it is, and then does not find the folder: the runner goes there by itself.
    assert told == f"{folder}\n" or name == "#[x]"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("argument", ["a;", ";", "a\\;", "#(touch x)", "$(touch x)", "-t", "a b", "\n", "'"])
def test_an_argument_is_that_argument(ours, tmp_path, argument):
    argv = [sys.executable, "-I", "-c", "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"]
    ours.new_session("gpu", [*argv, str(tmp_path / "told"), argument], workdir=str(tmp_path))
    assert wait_until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text()) == repr([argument])


def test_a_single_argument_would_be_a_shell_command(ours):
    with pytest.raises(ValueError, match="shell"):
        ours.new_session("gpu", ["sleep 600"], workdir="/")


@pytest.mark.parametrize(
    "text",
    [
        "x;",
        ";",
        "a\nb\n",
        "a\tb",
        "-t x",
        "-",
        "Enter",
        "C-c",
        "#{pane_id}",
        "é\u202e\U0001f600",
        "\x03",
        "\x1b[31m\x1b[200~",
        "".join(map(chr, range(1, 256))),
        "\u0378\ufff9\U000e0001\U0010ffff",  # without a width
        "x" * 100_000,
        "",
    ],
)
def test_a_text_arrives_as_it_is(ours, reader, text):
    pane_id, hear = reader
    ours.paste(pane_id, text, enter=True)
    expected = text.encode() + b"\r"
    assert hear(len(expected)) == expected
    assert ours.run("list-buffers") == "", "and nothing of it stays in tmux"


def test_a_text_without_enter(ours, reader):
    pane_id, hear = reader
    ours.paste(pane_id, "one", enter=False)
    ours.paste(pane_id, "two", enter=True)
    assert hear(7) == b"onetwo\r"


@pytest.mark.parametrize("mode", ["copy-mode", "clock-mode", "choose-tree"])
def test_a_text_and_keys_arrive_while_a_person_scrolls_back(ours, reader, tmux, mode):
    """With newer servers it takes a turn of the mouse wheel."""
    pane_id, hear = reader
    tmux(mode, "-t", pane_id)
    ours.paste(pane_id, "one", enter=True)
    assert hear(4) == b"one\r"
    tmux(mode, "-t", pane_id)
    ours.press(pane_id, ["C-c", "Escape"])
    assert hear(6) == b"one\r\x03\x1b"


def test_a_text_and_keys_arrive_while_a_person_looks_on(ours, reader):
    pane_id, hear = reader
    watch = ours.command("attach-session", "-r", "-t", "=reader")
    with Terminal(watch, cwd="/", env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}) as terminal:
        terminal.see("listening")
        terminal.type("typed")
        ours.paste(pane_id, "one", enter=True)
        ours.press(pane_id, ["C-c", "y"])
        assert hear(6) == b"one\r\x03y"


def test_a_text_that_would_end_its_own_paste_is_refused(ours, reader):
    with pytest.raises(InvalidValue, match="end the paste"):
        ours.paste(reader[0], "a\x1b[201~b", enter=True)


@pytest.fixture
def dead(ours, tmux, tmp_path):
    """A pane whose program has ended, beside a live session."""
    pane = ours.new_session("dead", ["cat", "-u"], workdir=str(tmp_path))
    tmux("set-option", "-t", "=dead:", "remain-on-exit", "on")
    tmux.start("alive")
    os.kill(pane.pid, 9)
    wait_until(lambda: tmux("list-panes", "-t", "=dead:", "-F", "#{pane_dead}") == "1")
    return pane


def test_a_dead_pane_is_listed_as_dead_beside_the_others(ours, dead):
    found = {pane.session_name: pane for pane in ours.panes()}
    assert (found["dead"].pane_id, found["dead"].dead) == (dead.pane_id, True)
    assert found["dead"].pid in (dead.pid, 0)
    assert (found["alive"].dead, found["alive"].pid > 0) == (False, True)
    assert ours.capture_of(dead.pane_id, dead.pid + 1) is None


def test_a_text_for_a_dead_or_missing_pane_is_refused_and_stays_nowhere(ours, dead):
    for pane_id in (dead.pane_id, "%99"):
        with pytest.raises(SessionGone):
            ours.paste(pane_id, "secret", enter=False)
    assert ours.run("list-buffers") == ""


def test_a_tab_is_shown_as_the_spaces_that_it_takes_on_the_screen(ours, tmp_path):
    pane = ours.new_session("tabs", ["sh", "-c", "printf 'ab\\tc'; exec sleep 600"], workdir=str(tmp_path))
    wait_until(lambda: ours.capture(pane.pane_id).rstrip("\n"))
    assert ours.capture(pane.pane_id, 5).rstrip("\n") == "ab      c"
    assert ours.capture_of(pane.pane_id, pane.pid).rstrip("\n") == "ab      c"


def test_no_server_no_pane(ours, tmux, tmp_path):
    with pytest.raises(NoServer, match="no server at socket"):
        ours.panes()
    ours.kill_session("gpu")  # what is gone already is fine
    pane = ours.new_session("gpu", ["sleep", "600"], workdir=str(tmp_path))
    assert ours.socket_path() == tmux.socket
    with pytest.raises(SessionGone, match="can't find"):
        ours.capture("%99")
    with pytest.raises(SessionGone):
        ours.paste("%99", "x", enter=True)
    ours.kill_session("other")
    assert [(each.pane_id, each.pid, each.dead) for each in ours.panes()] == [(pane.pane_id, pane.pid, False)]
    os.kill(int(tmux("display-message", "-p", "#{pid}")), 9)
    wait_until(lambda: not _answers(ours))
    with pytest.raises(NoServer):
        ours.panes()
    ours.new_session("gpu", ["sleep", "600"], workdir=str(tmp_path))
    assert names(ours) == ["gpu"], "a socket that was left behind is no obstacle"


def _answers(ours):
    try:
        ours.panes()
    except NoServer:
        return False
    return True


def test_a_server_that_is_just_ending_is_started_again(ours, tmp_path):
    panes = [ours.new_session(f"s{number}", ["true", "x"], workdir=str(tmp_path)) for number in range(25)]
    assert len({pane.pid for pane in panes}) == 25, "each ran a program of its own"


def test_names_of_others_do_not_disturb_the_listing(ours, tmux):
    """A server of the user's own has sessions with names of any kind."""
    for name in ("with spaces", "line\u2028separator", "\u202ex", "é", "1 2 3 4 5 6"):
        tmux.start(name)
    assert len(ours.panes()) == 5
    assert "with spaces" in names(ours)


def test_tmux_is_missing_too_old_or_strange(tmp_path, monkeypatch):
    program = tmp_path / "tmux"
    monkeypatch.setenv("PATH", str(tmp_path))
    ours = Tmux("x")
    for call in (ours.check_version, ours.panes):
        with pytest.raises(TmuxUnavailable, match="tmux is not installed; install it"):
            call()
    for told, fine in (("tmux 2.8", False), ("tmux 3.1c", False), ("tmux 3.2", True), ("tmux 3.3a", True)):
        _program(program, f"echo {told}")
        if fine:
            ours.check_version()
            continue
        with pytest.raises(TmuxUnavailable, match=f"^{told} at {program} is too old: baton needs tmux 3.2 or newer"):
            ours.check_version()
    for told in ("tmux next-3.6", "tmux master", "tmux openbsd-7.4"):
        _program(program, f"echo {told}")
        assert ours.check_version() == told
    for script, why in (
        ("echo tmux: error while loading shared libraries: libx.so >&2; exit 127", "tmux: error while .*: libx.so"),
        ("kill -4 $$", "exit code -4"),
        ("true", "`tmux -V` prints nothing"),
        ("echo a terminal multiplexer", "a terminal multiplexer"),
    ):
        _program(program, script)
        with pytest.raises(TmuxUnavailable, match=f"^{program} cannot run: {why}; install tmux with "):
            ours.check_version()
    program.write_text("no program")
    for call in (ours.check_version, ours.panes):
        with pytest.raises(TmuxUnavailable, match="tmux cannot be started: Exec format error"):
            call()
    _program(program, "echo something is wrong >&2; exit 1")
    with pytest.raises(TmuxUnavailable, match="tmux list-panes failed: something is wrong"):
        ours.panes()


def test_tmux_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("baton.sessions.tmux._TIMEOUT_SEC", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _program(tmp_path / "tmux", "exec sleep 600")
    with pytest.raises(TmuxUnavailable, match=r"does not answer at socket x within 0\.2 s"):
        Tmux("x").panes()


def test_the_server_inherits_next_to_nothing(ours, tmux, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "canary")
    monkeypatch.setenv("BATON_SESSION_ID", "0123")
    ours.new_session("gpu", ["sleep", "600"], workdir=str(tmp_path))
    told = tmux("show-environment", "-g") + tmux("show-environment", "-t", "gpu")
    assert "canary" not in told
    assert "BATON" not in told


def test_a_users_own_configuration_is_not_read(ours, tmp_path, monkeypatch):
    (tmp_path / ".tmux.conf").write_text(f"run-shell 'touch {tmp_path}/read'\nset -g remain-on-exit on\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    ours.new_session("gpu", ["true", "x"], workdir=str(tmp_path))
    wait_until(lambda: not _answers(ours), what="the session went with its program")
    assert not (tmp_path / "read").exists()


def _program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
