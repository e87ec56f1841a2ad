"""S9: command lines against permission rules. A real shell says which programs a command starts."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from baton.core.rule_file import read_rule
from baton.core.rules import decide, plain_words
from baton.core.tool_arguments import read_call

RULES = [
    read_rule({"decision": "allow", "tool": "Bash", "command": words})
    for words in (
        ["git", "status"], ["git", "diff", "--stat"], ["ls", "*"], ["make", "test"], ["npm", "run", "lint", "*"],
        ["cat", "a b"],
    )
]  # fmt: skip
BASES = [
    "git status",
    "git diff --stat",
    "ls -l",
    "ls",
    "make test",
    "npm run lint -- --fix",
    "cat 'a b'",
    "ls 'x y' z",
]
PROGRAMS = ["git", "ls", "make", "npm", "cat", "rm", "evil", "env", "sudo", "xargs", "sh", "bash", "touch", "status"]
# What is put before, into or behind a command.
PIECES = [
    "; evil", ";evil", "&& evil", "|| evil", "| evil", "& evil", "\nevil", "\n evil \n", "\r\nevil", "\revil", "|& evil",
    "$(evil)", "`evil`", '"$(evil)"', '"`evil`"', "<(evil)", ">(evil)", "> out", ">> out", "< in", "<<< evil", "2>&1",
    "$'\\x3b evil'", "$'\\nevil'", '$"(evil)"', "${x:-$(evil)}", "$((1))", "$x", "${IFS}evil", "\\\nevil", "\\;evil",
    "'; evil'", '"; evil"', "'\nevil'", "''; evil", '""|evil', "';' evil", "\\' ; evil '", "\"'\" ; evil \"'\"",
    "{evil,x}", "{a..c}", "*", "?", "[a-z]*", "~", "~root", "!evil", "!!", "#evil", "# ; evil", "^a^evil^", "(evil)",
    "{ evil; }", "() { evil; }", "function x { evil; }", "[[ x ]]", "A=1", "A+=1", "A=$(evil)", "PATH=.", "IFS=x",
    "env evil", "sudo evil", "xargs evil", "exec evil", "eval evil", "command evil", "sh -c evil", "bash -c 'evil'",
    "coproc evil", "time evil", "! evil", "if evil", "then evil", "do evil", "\x00", "\x1b", "\x0b", "\x0c", "\t", "\t\t",
    "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u2029", "\u0085", "\u202e", "\ufeff", "\uff1b evil",
    "\u037e evil", "\u2502 evil", "\ufe68", "\uff5c evil", "\u201c", "\u2018; evil\u2019", "''", '""', "' '", "-", "--",
    "--exec=evil", "-x evil", "=evil", "=", "%1", "@", "+", ",", ":", "/", "./evil", "../evil", "é", "\udcff", "x" * 5000,
]  # fmt: skip
ALIKE = {
    "g": "\u0261",
    "i": "\u0456",
    "s": "\u0455",
    "a": "\u0430",
    "e": "\u0435",
    "c": "\u0441",
    " ": "\u00a0",
    "-": "\u2010",
}


class Shell:
    """Runs a command line in an empty folder, where only canaries are found, and says which programs it started."""

    def __init__(self, tmp_path, shell):
        self.shell = shell
        self.folder, programs, self.log = tmp_path / "empty", tmp_path / "programs", tmp_path / "log"
        for each in (self.folder, programs):
            each.mkdir(exist_ok=True)
        for name in PROGRAMS:
            canary = programs / name
            canary.write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" >> "$LOG"; printf "\\1" >> "$LOG"\n')
            canary.chmod(0o755)
        self.env = {"PATH": str(programs), "HOME": str(self.folder), "LOG": str(self.log), "LANG": "C.UTF-8"}

    def started(self, line):
        """Return the words of each program that was started."""
        self.log.write_bytes(b"")
        raw = line.encode(errors="surrogateescape")
        subprocess.run(
            [self.shell, "-c", raw], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=10, check=False,
        )  # fmt: skip
        written = self.log.read_bytes().split(b"\1")[:-1]
        return [tuple(word.decode(errors="surrogateescape") for word in each.split(b"\0")[:-1]) for each in written]


def quoted(word, rng):
    """A word in one of the ways in which a shell reads it as it is."""
    cut = rng.randrange(len(word) + 1)
    return rng.choice([word, f"'{word}'", f'"{word}"', f"'{word[:cut]}'{word[cut:]}", f'{word[:cut]}"{word[cut:]}"'])


def command_line(rng):
    line = rng.choice(BASES)
    kind = rng.randrange(10)
    if kind < 2:  # the same command, written in another way
        words = plain_words(line)
        return (" " * rng.randrange(3)).join(
            ["", *[f" {quoted(each, rng)}" if " " not in each else f" '{each}'" for each in words]]
        )
    if kind == 2:  # another word, one that looks like it, or another order
        place = rng.randrange(len(line))
        return line[:place] + ALIKE.get(line[place], rng.choice("xX-_.")) + line[place + 1 :]
    for _ in range(rng.randrange(1, 4)):
        place = rng.choice([0, len(line), rng.randrange(len(line) + 1)])
        space = rng.choice(["", " "])
        line = line[:place] + space + rng.choice(PIECES) + space + line[place:]
    return line


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_no_command_is_allowed_that_does_more_than_its_rule_says(shell, tmp_path, full, seed, figure):
    number = 10_000 if full else 200
    rng = random.Random(seed)
    real = Shell(tmp_path, f"/bin/{shell}")
    wrong, allowed, others, tried = [], 0, 0, 0
    for _ in range(number):
        line = command_line(rng)
        call = read_call(
            "claude-code", "Bash", {"command": line}, exact=True, workdir=str(tmp_path), resolve=os.path.realpath
        )
        rule = decide(RULES, call, now_ns=0)
        if rule is not None:
            allowed += 1
            fixed = tuple(word for word in rule.command if word != "*")
            started = real.started(line)
            as_ruled = len(started) == 1 and (
                started[0] == fixed if fixed == rule.command else started[0][: len(fixed)] == fixed
            )
            if not as_ruled or started[0] != plain_words(line) or os.listdir(real.folder):
                wrong.append((line, started))
        elif tried < number // 10 and "\0" not in line:  # the generator must make commands that do harm
            tried += 1
            # One in the background may not have written its words yet.
            others += any({*words[:1]} - {"git", "ls", "make", "npm", "cat"} for words in real.started(line))
            for name in os.listdir(real.folder):
                os.unlink(real.folder / name)
    figure(
        f"S9 command lines against rules ({shell})",
        f"{number:,} command lines, {allowed:,} allowed, {others:,} of {tried:,} refused ones start other programs; "
        f"{len(wrong)} wrongly allowed" + "".join(f"\n{each!r}" for each in wrong[:5]),
        held=not wrong,
        seed=seed,
    )
    assert allowed > number // 20
    assert ("evil",) in real.started("ls; evil")  # else the shell proves nothing
