"""S9: command lines and calls of tools against permission rules. A real shell says which programs a command starts, and
the kernel which file a path leads to."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from baton.core.rule_file import read_rule
from baton.core.rules import decide, plain_words
from baton.core.tool_arguments import read_call
from baton.jobs.rules import call_for_rules

RULES = [
    read_rule({"decision": "allow", "tool": "Bash", "command": words})
    for words in (
        ["git", "status"], ["git", "diff", "--stat"], ["ls", "*"], ["make", "test"], ["make", "lint", "*"],
        ["npm", "run", "lint", "*"], ["npm", "run", "fix", "**"], ["cat", "a b"], ["git", "log", "**"],
        ["git", "show", "*"],
    )
]  # fmt: skip
BASES = [
    "git status",
    "git diff --stat",
    "ls -l",
    "ls",
    "make test",
    "npm run lint src",
    "npm run lint -- --fix",
    "npm run fix -- --fix x",
    "git log --output=x",
    "git show x",
    "make lint x",
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
    "--exec=evil", "-x evil", "--script-shell=evil", "'--output'=x", '"-"x', "-''-x", "SHELL=evil", "SHELL+=evil",
    "'SHELL'=evil", "=evil", "=", "%1", "@", "+", ",", ":", "/", "./evil", "../evil", "é", "\udcff", "x" * 5000,
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


def sets_variable(word):
    name, equals, _ = word.partition("=")
    return equals and name.rstrip("+:?").isidentifier()


def is_as_ruled(rule, words):
    """Whether a program got exactly what a rule says."""
    if rule[-1] not in ("*", "**"):
        return words == rule
    further = words[len(rule) - 1 :]
    is_wider = rule[-1] == "*" and any(word[:1] == "-" or sets_variable(word) for word in further)
    return words[: len(rule) - 1] == rule[:-1] and not is_wider


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
            started = real.started(line)
            as_ruled = len(started) == 1 and is_as_ruled(rule.command, started[0])
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


# -- calls of tools --------------------------------------------------------------------------------------------------

PATH_RULES = [
    read_rule({"decision": "allow", "path": "src"}),
    read_rule({"decision": "allow", "path": "notes/new"}),
    read_rule({"decision": "deny", "path": "src/secret"}),
    *(read_rule({"decision": "allow", "tool": tool}) for tool in ("Edit", "edit", "Bash", "mcp", "Glob", "fetch")),
]
NAMES = [
    "src", "src", "src", "notes", "new", "secret", "deep", "out", "in", "a.py", "b c", "..", "..", ".", "", ".git", ".github",
    ".env", ".ENV.local", ".husky", "HEAD", "config", "bare", "refs", "objects", ".vscode", ".claude-plugin", "etc", "x ",
    " x", "~", "~root", "*", "{a,b}", "file:", "%2e%2e", "\u00e9", "\u200b", "a\rb", "a\tb", "SRC", "work",
]  # fmt: skip
WORDS = ["x", "rm -rf /", "", "*** Begin Patch", "-- a", "++ b", "*** Move to: src/x", " *** Add File: src/x"]
OUT_OF_BOUNDS = (".git", ".github", ".husky", ".vscode", ".claude-plugin")


def a_path(rng, work):
    kind = rng.randrange(12)
    if kind < 4:
        return f"src/{rng.choice(['a.py', 'deep/a.py', 'new/x', 'in/x', './a.py', 'deep/../b'])}"
    path = "/".join(rng.choice(NAMES) for _ in range(rng.randrange(1, 7)))
    if kind < 6:
        return f"src/{path}"
    if kind == 6:
        return f"{work}/{path}"
    if kind == 7:
        return rng.choice([" ", "file://", "file:", "~/", "vscode:", "'", "/", "//", "@", "\ufeff"]) + path
    return path + (rng.choice([" ", "\t", "\n", "/", "/."]) if kind == 8 else "")


def patched(rng, paths):
    """A patch of the form that opencode, Codex and Copilot apply. It says of each path how it is written."""
    lines = []
    for number, path in enumerate(paths):
        verb = rng.choice(["Add File", "Update File", "Delete File"]) if number % 2 == 0 else "Move to"
        lines += [f"*** {verb}: {path}", rng.choice(["+x", "@@", " y", "-z", "+*** Add File: /etc/x"])]
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return rng.choice([text, text.replace("\n", "\r\n"), f"cat <<'EOF'\n{text}\nEOF\n"])


def a_call(rng, work):
    """Return a tool, its arguments, and every path that it uses: as the agents word them, and with an argument too much."""
    one, other = a_path(rng, work), a_path(rng, work)
    many = [a_path(rng, work) for _ in range(rng.randrange(1, 4))]
    kinds = [{"type": "update", "move_path": other}, {"type": "add"}, {"type": "delete"}]
    kind = rng.choice(kinds)
    moved = [other] if "move_path" in kind else []
    tool, arguments, used = rng.choice([
        ("Write", {"file_path": one, "content": rng.choice(WORDS)}, [one]),
        ("Edit", {"file_path": one, "old_string": rng.choice(WORDS), "new_string": "b"}, [one]),
        ("NotebookEdit", {"notebook_path": one, "new_source": "x", "edit_mode": "insert"}, [one]),
        ("Grep", {"pattern": "x", "path": one, "output_mode": "content", "-n": True}, [one]),
        ("edit", {"files": [one, *moved], "changes": [{"path": one, "kind": kind, "diff": "@@"}]}, [one, *moved]),
        ("edit", {"changes": [{"path": one, "kind": kind, "diff": "@@"}]}, [one, *moved]),
        ("edit", {"changes": {one: {"type": "update", "unified_diff": "@@", "move_path": other}}}, [one, other]),
        ("edit", {"files": ["src/a.py"], "changes": [{"path": "src/a.py", "kind": {"type": "add"}}], "grantRoot": one}, [one]),
        ("edit", {"filePath": one, "oldString": "a", "newString": "b", "replaceAll": False}, [one]),
        ("edit", {"filePath": one, "edits": [{"filePath": each, "oldString": "a"} for each in many]}, [one, *many]),
        ("edit", {"patchText": patched(rng, many)}, many),
        ("apply_patch", {"input": patched(rng, many)}, many),
        ("write_file", {"file_path": one, "content": "x"}, [one]),
        ("read_many_files", {"paths": many, "include": [other]}, [*many, other]),
        ("list_directory", {"dir_path": one}, [one]),
        ("create", {"path": one, "file_text": "x"}, [one]),
        ("edit", {"path": one, "old_str": "a", "new_str": "b"}, [one]),
        ("edit", {"fileName": one, "diff": "@@", "intention": "x"}, [one]),
        ("edit", {"target_file": one, "contents": "x"}, [one]),
        ("move", {"source": one, "destination": other}, [one, other]),
        ("edit", {"locations": [{"path": each, "line": 1} for each in many], "content": "x"}, many),
        ("read", {"uri": one}, [one]),
        ("fetch", {"url": one}, [one]),
        ("Glob", {"pattern": one}, [one]),
        ("mcp", {"to": one}, [one]),
    ])  # fmt: skip
    if rng.randrange(8) == 0 and tool != "Glob":
        extra = rng.choice(["to", "Path", "file_path_2", "destination", "paths", "xpath", "include", "patch", "cwd"])
        is_filter = (tool, extra) == ("Grep", "include")  # of names below its folder
        if extra not in arguments and not is_filter:
            arguments, used = arguments | {extra: other}, [*used, other]
    return tool, arguments, used


def reached(path, work, name):
    """Return the real path of the file that the kernel opens at a path; None if there is nothing to open or to create."""
    try:
        fd = os.open(os.path.join(work, path), os.O_PATH)
    except FileNotFoundError:
        folder, _, last = path.rstrip("/").rpartition("/")
        if last in ("", ".", "..") or name > 9:
            return None
        above = reached(folder or ("/" if path.startswith("/") else "."), work, name + 1)
        return above and os.path.join(above, last)
    except (OSError, ValueError):
        return None
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def ways(path):
    """Every path that a tool may open, of the agents that baton knows, and of those that they may become."""
    from urllib.parse import unquote

    texts = [path, path.strip(), path.strip(" '\"@\ufeff")]
    texts += [unquote(text.split(":", 1)[1].removeprefix("//")) for text in texts if ":" in text.split("/")[0]]
    texts += [os.path.expanduser(text) for text in texts if text.startswith("~")]
    return {*texts, *(os.path.normpath(text) for text in texts if text)} - {""}


def test_no_call_is_allowed_that_uses_a_file_elsewhere(tmp_path, full, seed, figure):
    number = 10_000 if full else 400
    rng = random.Random(seed)
    work = tmp_path / "work"
    for folder in (
        "src/deep/er",
        "src/secret",
        "notes/new",
        ".git",
        "etc",
        "src/bare/objects",
        "src/bare/refs",
        "work/src",
    ):
        (work / folder).mkdir(parents=True)
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    for file in ("src/a.py", "src/bare/HEAD", "src/bare/config", "src/secret/a.py"):
        (work / file).touch()
    (work / "src" / "out").symlink_to(tmp_path / "far" / "away")
    (work / "src" / "in").symlink_to("deep/er")
    allowed_in = [str(work / "src"), str(work / "notes" / "new")]
    wrong, missed, allowed, harmful = [], [], 0, 0
    for _ in range(number):
        tool, arguments, used = a_call(rng, work)
        call = call_for_rules("any", tool, arguments, exact=True, workdir=str(work), env={"HOME": str(tmp_path)})
        rule = decide(PATH_RULES, call, now_ns=0)
        decision = "ask" if rule is None else rule.decision
        places = {place for path in used for way in ways(path) if (place := reached(way, work, 0)) is not None}
        inside = [any(f"{place}/".startswith(f"{each}/") for each in allowed_in) for place in places]
        names = {name.casefold() for place in places for name in place.removeprefix(str(work)).split("/")}
        is_bad = (
            not all(inside) or not names.isdisjoint(OUT_OF_BOUNDS) or any(name.startswith(".env") for name in names)
        )
        is_bad = is_bad or any(place.casefold().endswith("/head") for place in places)
        is_bad = is_bad or any(f"{place}/".startswith(f"{work}/src/bare/") for place in places)
        is_secret = any(f"{place}/".startswith(f"{work}/src/secret/") for place in places)
        is_bad = is_bad or is_secret
        allowed += decision == "allow"
        harmful += is_bad
        if decision == "allow" and is_bad:
            wrong.append((tool, arguments, sorted(places)))
        if is_secret and decision != "deny":
            missed.append((tool, arguments, sorted(places)))
    figure(
        "S9 calls of tools against rules",
        f"{number:,} calls, {allowed:,} allowed, {harmful:,} use a file that no rule allows; {len(wrong)} wrongly allowed, "
        f"{len(missed)} not denied" + "".join(f"\n{each!r}" for each in [*wrong[:5], *missed[:5]]),
        held=not wrong and not missed,
        seed=seed,
    )
    assert allowed > number // 20
    assert harmful > number // 4
