"""S4: whatever is in a prompt, a name, a folder's name or a text: it arrives as it is or is refused in one line, and
nothing interprets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.core.drafts import new_job
from baton.core.errors import BatonError
from baton.core.redact import process_redactor, shorten
from baton.history.log import read_logged_meta
from baton.jobs.report import report
from baton.jobs.verbs import open_jobs
from baton.sessions.archive import Archive
from baton.sessions.instructions import instructions
from baton.sessions.inventory import Inventory
from baton.sessions.launch import create_session, task_for
from baton.sessions.session import State
from baton.sessions.tmux import Tmux
from baton.storage.homes import load_settings
from support.hostile import Hostile
from support.memory import folder_in_memory
from support.terminal import Terminal
from support.waiting import wait_until

# Keeps what it was given, byte for byte, under the name of its session.
KEEP = """
import os, sys
how, given = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
if how == "argument":
    content = os.fsencode(given)
elif how == "file":
    content = open(given, "rb").read()
else:
    content = sys.stdin.buffer.read()
path = os.path.join(os.environ["BATON_SESSION_DIR"], "kept")
with open(path + ".new", "wb") as file:
    file.write(content)
os.rename(path + ".new", path)
"""
# Reads keys as they come. The first argument is a file that grows by every byte; the second turns on bracketed paste.
LISTEN = """
import os, sys, tty
tty.setraw(0)
if len(sys.argv) > 2:
    os.write(1, b"\\x1b[?2004h")
with open(sys.argv[1], "wb", buffering=0) as file:
    os.write(1, b"listening")
    while keys := os.read(0, 65536):
        file.write(keys)
"""
TITLES = """
import json, signal, sys, time
for title in json.load(open(sys.argv[1])):
    sys.stdout.write("\\x1b]2;" + "".join(each for each in title if each.isprintable()) + "\\x07\\x1bk" + title[:50] + "\\x1b\\\\")
    sys.stdout.flush()
    time.sleep(0.002)  # so that tmux shows each of them
print("all shown", flush=True)
signal.pause()
"""
CONFIG = """
[agents.argument]
interactive = ["{python}", "-I", "{keep}", "argument", "{{prompt}}"]
[agents.file]
interactive = ["{python}", "-I", "{keep}", "file", "{{prompt_file}}"]
[agents.stdin]
interactive = ["{python}", "-I", "{keep}", "stdin"]
stdin = true
"""


@pytest.fixture
def tmp_path():
    """In memory: nothing here is about what survives."""
    with folder_in_memory() as folder:
        yield Path(folder)


@pytest.fixture
def hostile(desk, tmp_path, monkeypatch):
    hostile = Hostile(str(tmp_path))
    (tmp_path / "keep.py").write_text(KEEP)
    (tmp_path / "listen.py").write_text(LISTEN)
    (tmp_path / "titles.py").write_text(TITLES)
    (tmp_path / "baton.toml").write_text(CONFIG.format(python=sys.executable, keep=tmp_path / "keep.py"))
    desk.env |= {"PATH": f"{hostile.bin}:{desk.env['PATH']}", "BATON_CONFIG": str(tmp_path / "baton.toml")}
    for name, value in desk.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return hostile


@pytest.fixture
def settings(hostile):
    return load_settings()


@pytest.fixture
def tally(hostile, figure, request):
    """Counts what arrived exactly and what was refused in one line; in the end, nothing may have been run."""
    counted = {"exact": 0, "refused": 0}

    def count(outcome):
        counted[outcome] += 1

    yield count
    where = request.node.name.removeprefix("test_hostile_")
    sung = hostile.sung()
    text = f"{len(sung)} canaries; {counted['exact']} exact, {counted['refused']} refused"
    figure(f"S4 hostile strings: {where}", text, held=not sung and sum(counted.values()) > 0)


def refusal(action, *arguments, **options):
    """The one line that it was refused with; None when it was not."""
    try:
        action(*arguments, **options)
    except BatonError as error:
        assert len(str(error).splitlines()) == 1, repr(str(error))
        assert str(error).isprintable(), repr(str(error))
        return str(error)
    return None


def test_hostile_prompts(desk, hostile, settings, tally, full):
    inventory = Inventory(settings)
    ways = ("argument", "file", "stdin")
    for number, prompt in enumerate(hostile.some(18, full=full)):
        name, how = f"s{number}", ways[number % 3]
        why = refusal(create_session, settings, inventory, name, agent=how, workdir=".", prompt=prompt)
        if why is not None:
            assert "prompt must not contain a NUL" in why
            tally("refused")
            continue
        kept = os.path.join(inventory.folder_of(inventory.get(name)), "kept")
        wait_until(lambda kept=kept: os.path.exists(kept))
        with open(kept, "rb") as file:
            assert file.read() == prompt.encode(), how
        tally("exact")
    # What every agent would be started with, for all of them.
    session = inventory.all()[0].replace(mode=Mode.INTERACTIVE, conversation_id="0")
    for prompt in hostile.strings:
        task = task_for(session, "/f", prompt=prompt, resume=False)
        for agent in ("argument", "claude-code", "copilot", "gemini", "qwen"):
            *_, before, last = find_agent(settings, agent).launch(task).argv
            assert re.sub("^--(prompt-)?interactive=", "", last) == prompt
            assert last != prompt or agent == "argument" or before == "--", "options end before it"
        for agent in ("codex", "opencode"):  # get it in a message
            assert prompt not in find_agent(settings, agent).launch(task).argv


FIELDS = ("prompt", "agent", "agent_session", "workdir", "validate", "expected_artifacts", "labels")


def draft(field, text):
    value = [text] if field in ("expected_artifacts", "labels") else text
    return new_job(**{"prompt": "x", "agent": "shell"} | {field: value}, now_ns=time.time_ns())


def test_hostile_fields_of_a_job(hostile, settings, tally, full):
    with open_jobs(settings) as jobs:
        given, drafts = [], []
        for text in hostile.strings:
            assert refusal(jobs.get_job, text), "no id"
            for field in FIELDS:
                made = []
                if (why := refusal(lambda field=field, text=text, made=made: made.append(draft(field, text)))) is None:
                    given.append((field, text))
                    drafts += made
                else:
                    assert why.startswith(field), why
                    tally("refused")
        for (field, text), job in zip(given, jobs.registry.register_many(drafts), strict=True):
            stored = jobs.get_job(job.job_id)
            assert getattr(stored, field) == ((text,) if field in ("expected_artifacts", "labels") else text)
            if field == "prompt":
                assert text.strip() in instructions(stored), "what an agent is told contains it as it is"
            tally("exact")
        # With everything that is written beside it, and what is said about it.
        for text in hostile.some(40, full=full):
            if "\0" in text or not text.strip():
                continue
            job = jobs.register_job(text, agent="shell")
            told = json.loads(report(jobs, job.job_id, "progress", detail=text)[1].payload)["detail"]
            assert told == shorten(process_redactor(secrets=(job.auth_token,)).text(text), 4096)
            assert not any(each in told for each in "\0\r\x1b\x9b\u202e\u2066")
            assert read_logged_meta(job.job_id, jobs.logs_dir)["prompt"] == text
            tally("exact")


def test_hostile_names(desk, hostile, settings, tally, full):
    inventory = Inventory(settings)
    taken = {"yes", "null", "CON", "1e3", "0x10", "2026-01-01", "Enter", "C-c", "C-m", "Escape", "M-x"}
    for text in hostile.strings:
        if text in taken:
            continue
        assert "session name must be" in refusal(create_session, settings, inventory, text, agent="shell", workdir=".")
        assert "no session" in refusal(inventory.get, text)
        tally("refused")
    for name in sorted(taken):
        create_session(settings, inventory, name, agent="argument", workdir=".", prompt="x")
        wait_until(lambda name=name: inventory.get(name).state is State.TERMINATED)
        tally("exact")
    assert set(desk.archived()) == taken
    # As somebody types them.
    verbs = [
        ("show",),
        ("stop",),
        ("resume",),
        ("capture",),
        ("attach",),
        ("send", "--no-enter"),
        ("create", "--agent", "shell"),
    ]
    for number, text in enumerate(
        each
        for each in hostile.some(28, full=full)
        # After that one the refusal is followed by its traceback, also behind the two dashes.
        if "\0" not in each and each not in taken and each != "--debug"
    ):
        verb, *options = verbs[number % len(verbs)]
        more = ["x"] if verb == "send" else []
        desk.refused("session", verb, *options, "--", text, *more, code=None)
        tally("refused")
    for number, text in enumerate(each for each in hostile.some(14, full=full) if "\0" not in each):
        verb = ("get", "status", "cancel", "logs", "release", "publish", "agent")[number % 7]
        if verb == "agent":
            desk.refused("session", "create", "gpu", f"--agent={text}", code=64)
        else:
            desk.refused(verb, f"--job={text}", *(["--event=progress"] if verb == "publish" else []), code=64)
        tally("refused")


def test_hostile_folders(desk, hostile, settings, tally, full):
    inventory = Inventory(settings)
    # A slash is where a folder's name ends, and 255 bytes are all there can be.
    possible = [each for each in hostile.strings if not set(each) & {"/", "\0"} and 0 < len(each.encode()) < 256]
    possible = [each for each in possible if each not in (".", "..")] + ["\udcff\udcfe", "x\udce9;"]
    chosen = (
        possible
        if full
        else [*possible[:: len(possible) // 12], *possible[-2:], ";", "x;", "x\\;", "#(canary 0);", "-t"]
    )
    for number, text in enumerate(chosen):
        folder = os.path.join(os.getcwd(), "work", text)
        os.makedirs(folder, exist_ok=True)
        name = f"s{number}"
        create_session(
            settings, inventory, name, agent="shell", workdir=folder, prompt='pwd > "$BATON_SESSION_DIR/kept"'
        )
        wait_until(lambda name=name: inventory.get(name).state is State.TERMINATED)
        session = inventory.get(name)
        with open(os.path.join(inventory.folder_of(session), "kept"), "rb") as file:
            assert file.read() == os.fsencode(folder) + b"\n"
        assert session.workdir == folder
        with open(os.path.join(inventory.folder_of(session), "manifest.json"), encoding="utf-8") as file:
            assert json.load(file)["workdir"] == folder
        tally("exact")
    assert desk("session", "list", "--all").out.count("\n") == len(chosen), "one line each"
    for text in (each for each in hostile.some(8, full=full) if "\0" not in each and not os.path.isdir(each)):
        assert "is not a folder" in desk.refused(
            "session", "create", "gpu", "--agent", "shell", f"--workdir={text}", code=64
        )
        tally("refused")


def test_hostile_reasons(desk, hostile, settings, tally, tmp_path, full):
    """Why a session was stopped: in the inventory, in the YAML archive, in the story of its job."""
    inventory = Inventory(settings)
    session = create_session(settings, inventory, "gpu", agent="argument", workdir=".", prompt="x")
    (tmp_path / "archives").mkdir()
    texts = [each for each in hostile.strings if len(each) < 10_000]
    for number in range(0, len(texts) - 3, 4):
        archive = Archive(str(tmp_path / "archives" / f"{number // 16}.yaml"))
        fields = dict(zip(("reason", "workdir", "exit", "host"), texts[number : number + 4], strict=True))
        archive.put(session.replace(session_id=str(number), **fields))
        assert {name: archive.entries()[-1][name] for name in fields} == fields
        for _ in fields:
            tally("exact")
    for number, text in enumerate(
        each for each in hostile.some(60 if full else 8, full=False) if "\0" not in each and len(each) < 100_000
    ):
        job = desk.register("sleep 600")
        desk("session", "create", f"r{number}", "--job", job)
        desk("session", "stop", f"r{number}", "--mode", "hard", f"--reason={text}")
        told = desk.job(job)["detail"]
        assert told.startswith("the session was stopped: ")
        assert told.isprintable(), repr(told)
        assert desk.archived()[f"r{number}"]["reason"].isprintable()
        tally("exact")


def test_hostile_texts(desk, hostile, settings, tally, tmp_path, full, monkeypatch):
    monkeypatch.setattr(
        "baton.sessions.tmux._SHOWN_SEC", 0.0
    )  # the one who listens shows nothing: nothing is to be waited for
    inventory = Inventory(settings)
    for name, brackets in (("plain", False), ("bracketed", True)):
        heard = tmp_path / f"heard-{name}"
        script = f"exec {sys.executable} -I {tmp_path}/listen.py {heard} {'bracketed' if brackets else ''}"
        session = create_session(settings, inventory, name, agent="shell", workdir=".", prompt=script)
        desk.until_shown(name, "listening")
        tmux, expected = Tmux(session.socket), b""
        for text in hostile.some(40 if brackets else 160, full=full):
            if "\0" in text:
                continue  # as an argument it is impossible; on standard input it is refused: below
            if (why := refusal(tmux.paste, session.pane_id, text, enter=True)) is None:
                expected += b"\x1b[200~" * brackets + text.encode() + b"\x1b[201~" * brackets + b"\r"
                tally("exact")
            else:
                assert "\x1b[201~" in text, why
                tally("refused")
        size = len(expected)
        wait_until(lambda heard=heard, size=size: heard.stat().st_size >= size, what=f"{size} bytes")
        assert heard.read_bytes() == expected
    # As somebody types them, or pipes them in.
    heard.unlink()
    heard = tmp_path / "heard-plain"
    begin, expected = heard.stat().st_size, b""
    for number, text in enumerate(hostile.some(60 if full else 10, full=False)):
        typed = number % 2 and "\0" not in text
        result = desk("session", "send", "plain", "--", text if typed else "-", stdin="" if typed else text, code=None)
        if result.code == 0:
            expected += text.encode() + b"\r"
            tally("exact")
        else:
            assert result.err.startswith("baton: text "), result
            assert result.err.count("\n") == 1
            tally("refused")
    wait_until(lambda: heard.stat().st_size >= begin + len(expected))
    assert heard.read_bytes()[begin:] == expected


def test_hostile_titles(desk, hostile, settings, tally, tmp_path):
    """An agent may call its window what it likes: tmux shows that in the status line of whoever looks."""
    with open(tmp_path / "titles.json", "w", encoding="utf-8") as file:
        json.dump([each for each in hostile.strings if len(each) < 5000], file)
    desk.create("gpu", "--prompt", f"sleep 0.3; exec {sys.executable} -I {tmp_path}/titles.py {tmp_path}/titles.json")
    attach = ["tmux", "-f", "/dev/null", "-S", desk.tmux.socket, "attach", "-t", "=gpu"]
    with Terminal(attach, cwd=str(tmp_path), env=desk.env) as terminal:
        terminal.see("all shown", 60)
        for _ in range(10):
            desk.tmux("refresh-client", "-S", "-t", desk.tmux("list-clients", "-F", "#{client_name}"))
            time.sleep(0.05)  # what would be run is run beside tmux, and nothing says when
        assert desk("session", "list", "--json").json[0]["alive"]
        tally("exact")


def test_hostile_servers(desk, hostile, settings, tally, full):
    """A tmux server of a strange name, and a program that is none."""
    for text in [each for each in hostile.some(60 if full else 6, full=False) if "\0" not in each and len(each) < 60]:
        folder = os.path.join(desk.tmux.folder, "t")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        result = desk(
            "session", "create", "gpu", "--agent=shell", f"--tmux-socket={text}", code=None, TMUX_TMPDIR=folder
        )
        if result.code:
            assert (result.code, result.err.count("\n")) == (64, 1), result
            assert "must be a path or a plain name" in result.err
            tally("refused")
            continue
        desk("session", "stop", "gpu", "--mode", "hard")
        tally("exact")
    subprocess.run(["rm", "-rf", os.path.join(desk.tmux.folder, "t")], check=True)
