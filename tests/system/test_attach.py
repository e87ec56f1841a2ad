"""attach with the terminals that people have: over ssh, of another machine, without a type, in the C locale."""

from __future__ import annotations

import shutil

import pytest

from support.board import BoardTerminal
from support.command import BATON
from support.sessions import SessionDesk
from support.terminal import Terminal


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A session of a job, whose screen holds a character that is not ASCII."""
    desk = SessionDesk(tmp_path_factory.mktemp("desk"))
    desk.create("gpu", "--job", desk.register("echo zwölf; read line"))
    desk.until_shown("gpu", "zwölf")
    yield desk
    desk("session", "stop", "gpu", "--mode", "hard")
    desk.close()


def attach(desk, *arguments, **env):
    return Terminal([BATON, *(arguments or ("session", "attach", "gpu"))], cwd=desk.folder, env=desk.env | env)


@pytest.mark.parametrize("name", ["xterm-of-tomorrow", "alacritty-of-tomorrow", "tmux-of-tomorrow"])
def test_a_terminal_that_the_machine_does_not_know_is_treated_as_one_that_it_knows(shown, name):
    with attach(shown, TERM=name) as terminal:
        terminal.see(f"this machine does not know the terminal {name}; attach treats it as ")
        terminal.see("zwölf")
        terminal.type("\x02", "d")
        terminal.see("detached")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dumb", "TERM is dumb, a terminal on which tmux cannot draw"),
        ("", "TERM is not set"),
        ("\x1b[2Jü", "this machine does not know the terminal"),
        ("pet-2001", "this machine does not know the terminal pet-2001"),
    ],
)
def test_a_terminal_that_cannot_be_used_is_refused_in_one_line_that_says_what_to_do(shown, name, why):
    with attach(shown, TERM=name) as terminal:
        assert terminal.end() == 64
    line = terminal.shown.decode()
    assert line.startswith(f"baton: {why}"), line
    assert "TERM=xterm-256color" in line
    assert "baton session capture" in line
    assert line.count("\n") == 1
    assert "\x1b" not in line


@pytest.mark.parametrize("name", ["LC_ALL", "LANG"])
def test_in_the_c_locale_other_characters_are_shown(shown, name):
    with attach(shown, **({"LANG": ""} | {name: "C"})) as terminal:
        terminal.see("zwölf")


def test_in_a_locale_of_another_encoding_attach_says_that_it_cannot_show_all(shown):
    with attach(shown, LC_ALL="de_DE.ISO-8859-1") as terminal:
        terminal.see("baton: note: LC_ALL=de_DE.ISO-8859-1 is not UTF-8: ")
        terminal.see("zw_lf")


def test_the_board_says_why_a_session_cannot_be_shown(shown, tmp_path):
    """Enter on the board came back at once, and what tmux had said was gone."""
    with BoardTerminal(shown.folder, shown.env | {"TERM": "pet-2001"}, width=200, height=30) as board:
        board.sees("zwölf")
        board.press("Enter")
        board.sees("this machine does not know the terminal pet-2001")
    tmux = tmp_path / "tmux"
    refuse = f"test -e {tmp_path}/refuse && echo 'open terminal failed: no luck' >&2 && exit 1"
    tmux.write_text(f'#!/bin/sh\ncase "$*" in *attach*) {refuse};; esac\nexec {shutil.which("tmux")} "$@"\n')
    tmux.chmod(0o755)
    env = shown.env | {"TERM": "xterm-of-tomorrow", "PATH": f"{tmp_path}:{shown.env['PATH']}"}
    with BoardTerminal(shown.folder, env, width=200, height=30) as board:
        board.sees("zwölf")
        board.press("Enter")
        board.sees("[gpu] 0:")  # the client reads the keys
        board.press("C-b", "d")
        board.sees("back on the board; this machine does not know the terminal xterm-of-tomorrow; attach treats it as ")
        (tmp_path / "refuse").touch()
        board.press("Enter")
        board.sees("back on the board; open terminal failed: no luck")
