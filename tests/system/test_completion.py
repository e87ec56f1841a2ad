"""Completion, in the shells themselves."""

from __future__ import annotations

import subprocess

import pytest

from support.command import BATON, Baton


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


def in_shell(baton, shell, script):
    path = baton.env["PATH"].split(":")
    env = baton.env | {"PATH": ":".join([BATON.rpartition("/")[0], *path])}
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *options, "-c", script],
        cwd=baton.folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    assert done.stderr == "", done
    return done.stdout.split()


def typed(shell, *words):
    """What the shell would offer after these words, the last of them unfinished."""
    if shell == "fish":
        line = " ".join(words)
        return f"baton completion fish | source; complete -C '{line}' | cut -f1"
    # zsh runs the same function through its emulation of bash's completion; its arrays begin at 1 there, too.
    quoted = " ".join(f"'{word}'" for word in words)
    if shell == "zsh":
        return (
            "autoload -U compinit && compinit -u -d ./.zcompdump; . =(baton completion zsh); setopt ksharrays shwordsplit;"
            f' COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _baton; print -rl -- "${{COMPREPLY[@]}}"'
        )
    return (
        f". <(baton completion bash); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _baton;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_verbs_actions_and_options_are_completed(baton, shell):
    verbs = set(in_shell(baton, shell, typed(shell, "baton", "su")))
    actions = set(in_shell(baton, shell, typed(shell, "baton", "session", "sto")))
    if shell == "zsh":  # which is told all words, and itself leaves out what does not begin as typed
        assert verbs > {"submit", "subscribe", "session"}
        assert actions > {"stop", "create"}
        assert "create" not in verbs
    else:
        assert verbs == {"submit", "subscribe"}
        assert actions == {"stop"}
    assert "--capture-id" in in_shell(baton, shell, typed(shell, "baton", "session", "stop", "--cap"))


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_jobs_that_are_there_are_offered(baton, shell):
    job = baton("register", "x").text
    assert job in in_shell(baton, shell, typed(shell, "baton", "get", job[:3]))


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_values_are_offered_where_they_belong(baton, shell):
    assert in_shell(baton, shell, typed(shell, "baton", "status", "x", "--set", "run")) == ["running"]
    assert in_shell(baton, shell, typed(shell, "baton", "submit", "x", "--agent", "sh")) == ["shell"]
    assert "running" not in in_shell(baton, shell, typed(shell, "baton", "broker", "check", "--set", "run"))


def test_every_verb_is_in_it(baton):
    from baton.cli.main import VERBS

    script = baton("completion", "bash").out
    for verb in (verb for verb, (_, text) in VERBS.items() if text):
        assert f'" {verb}") place="{verb}"' in script
    assert "choose from bash, zsh, fish" in baton.refused("completion", "tcsh", code=64).replace("'", "")
