"""Nothing that baton reads can control the terminal that it prints to: every field of every command, on a terminal."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sqlite3
import unicodedata

import pytest

from baton.config import KNOWN
from baton.core.request import Request, RequestKind
from baton.jobs.activity_file import Snapshot, write_snapshot
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from support.asking import set_activity
from support.board import BoardTerminal
from support.every_verb import AGENT, JOB, MORE, SESSION, options_of_verbs, required_arguments, right_command, single
from support.many_commands import ManyCommands
from support.office import Office
from support.waiting import wait_until

# Escape sequences of 7 and 8 bits, the clipboard, a title, single controls, what turns the direction of text or is not
# visible, a byte that is not UTF-8, and a line of its own.
HOSTILE = (
    "\x1b[8mhidden\x1b[2J\x1b]52;c;aGk=\x07\x1b]0;title\x1b\\\x1bP$q\x1b\\\x1bc\x9b31m\x85\x07\r\x08\x7f\v\f"
    "\u202eover\u2066\u2069\u200b\u200e\u2060\ufeff\u2028\u2029\xad\U000e0041\udcff end\nFORGED"
)
ONE_LINE = HOSTILE.replace("\n", " ")
# What baton makes itself: colours, and the table that it updates in place.
OWN = re.compile(r"\x1b\[(?:0|1|[39][0-7]|1;3[0-7])m|\x1b\[\?25[lh]|\x1b\[1A|\r?\x1b\[2K|\r(?=\n|\d+ jobs|$)")


def harm_in(shown: str, *, own_lines: bool = False) -> list[str]:
    """Return every character that a terminal acts on or hides, except in the sequences of baton itself, and every line
    that the text has put beside those of baton, unless it may have `own_lines`."""
    rest = OWN.sub("", shown)
    places = [place for place, each in enumerate(rest) if each not in "\n\t\u200d" and _is_harmful(each)]
    places += [match.start() for match in re.finditer("\nFORGED", rest) if not own_lines]
    return [rest[max(0, place - 40) : place + 20] for place in places]


def _is_harmful(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


# `demo` runs in a folder of its own for several seconds; `broker up` starts a server; `board` runs until a key ends it, and
# has its own test (test_board_terminal.py).
WITHOUT_A_PLAIN_RUN = {("board",), ("demo",), ("broker", "up"), ("registry", "migrate")}


class HostileOffice(Office):
    """A folder in which every text that baton stores is hostile."""

    def __init__(self, folder) -> None:
        super().__init__(folder, MQTT_BROKER="127.0.0.1", MQTT_PORT="1", BATON_HOST="here", COLUMNS="120")
        self.env |= {"TERM": "xterm", "HOME": str(folder), "PYTHONWARNINGS": "default"}
        workdir = os.path.join(folder, ONE_LINE.replace("/", ""))
        os.mkdir(os.fsencode(workdir))
        for _ in range(3):
            self("register", "--prompt", HOSTILE.replace("\udcff", ""), "--expect", HOSTILE, "--validate", HOSTILE,
                 "--label", HOSTILE, "--workdir", workdir, code=None)  # fmt: skip
            self("register", "--prompt", HOSTILE.replace("\udcff", ""), "--agent", "shell")
        self.home = os.path.join(folder, ".hermes")
        self._spoil_registry()
        self._spoil_requests()
        self._spoil_history()
        self._spoil_output()
        self._spoil_sessions()
        self._spoil_activity()
        self._spoil_state(os.path.join(folder, ".local", "state", "baton"))
        with open(os.path.join(folder, "config.toml"), "w") as file:
            text = "".join(f"\\U{ord(each):08X}" for each in HOSTILE.replace("\udcff", ""))
            file.write(f'[agents."{text}"]\ncommand = ["{text}"]\n')
            file.write("[agents.none]\ncommand = ['no-such-program']\n")

    def _spoil_registry(self) -> None:
        text = HOSTILE.replace("\udcff", "")
        with sqlite3.connect(os.path.join(self.home, "jobs", "registry.db")) as raw:
            ids = [row[0] for row in raw.execute("SELECT job_id FROM jobs ORDER BY created_at")]
            raw.execute("UPDATE jobs SET job_id = ?, topic_prefix = ? WHERE job_id = ?",
                        [JOB, f"python/mqtt/jobs/{JOB}", ids[0]])  # fmt: skip
            raw.execute(
                "UPDATE jobs SET detail = ?, workdir = ?, validate = ?, status = 'error', attempt = 1, labels = ?",
                [text, text, text, json.dumps([text])],
            )
            raw.execute("UPDATE jobs SET status = 'running', claimed_by = 'here:1' WHERE job_id = ?", [JOB])
            for job_id, column in zip(ids[1:], ("status", "agent_session", "agent"), strict=False):
                raw.execute(f"UPDATE jobs SET {column} = ? WHERE job_id = ?", [text, job_id])
            if len(ids) > 4:
                raw.execute("UPDATE jobs SET job_id = ? WHERE job_id = ?", [text, ids[4]])
        raw.close()

    def _spoil_requests(self) -> None:
        text = HOSTILE.replace("\udcff", "")
        request = Request(
            request_id=JOB, job_id=JOB, attempt=1, key=text, kind=RequestKind.QUESTION, agent_ref=text, tool=text,
            call={text: text, "lines": [text]}, call_sha256=None, exact=False, summary=text,
            options=({"question": text, "choices": [text, text]},), asked_at="2026-01-01T00:00:00Z",
        )  # fmt: skip
        with open_jobs(self.settings) as jobs:
            jobs.registry.open_request(JOB, request, attempt=1)

    def _spoil_history(self) -> None:
        folder = os.path.join(self.home, "delegate_job_logs", JOB)
        os.makedirs(folder, exist_ok=True)
        line = {"ts": HOSTILE, "event": HOSTILE, "from": HOSTILE, "to": HOSTILE, "detail": HOSTILE, "reason": HOSTILE,
                "claimed_by": HOSTILE, "payload": {"seq": HOSTILE, "event": HOSTILE, "detail": HOSTILE}}  # fmt: skip
        received = {"event": "received", "seq": HOSTILE, "name": HOSTILE}
        validated = {"event": "validated", "problems": [HOSTILE], "ok": False}
        with open(os.path.join(folder, "events.ndjson"), "w") as file:
            file.writelines(json.dumps(each) + "\n" for each in (line, received, validated))
        for name in ("meta.json", "status.json"):
            with open(os.path.join(folder, name), "w") as file:
                json.dump({"prompt": HOSTILE, "status": HOSTILE}, file)

    def _spoil_output(self) -> None:
        folder = os.path.join(self.home, "outputs", JOB)
        os.makedirs(folder)
        with open(os.path.join(folder, "1.0.out"), "wb") as file:
            file.write(ONE_LINE.encode(errors="surrogateescape"))

    def _spoil_sessions(self) -> None:
        """Rows whose free texts are hostile, and rows in which everything is: those are named, and not used."""
        text = HOSTILE.replace("\udcff", "")
        times = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}
        usual = times | {"mode": "interactive", "yolo": False, "host": "here"}
        free = usual | dict.fromkeys(("reason", "exit", "ending", "stopper"), text) | {
            "workdir": f"/{text}", "agent": "shell", "socket": "baton", "agent_name": "HOUMAO-x", "agent_id": "a",
            "generation_id": "g", "job_id": JOB,
        }  # fmt: skip
        forms = ("workdir", "socket", "pane_id", "agent", "conversation_id", "agent_name", "agent_id", "generation_id")
        spoiled = free | dict.fromkeys(forms, HOSTILE) | {"job_id": HOSTILE}
        with Inventory(self.settings)._writing() as tx:
            for name, session_id, state, record in (
                (SESSION, "0" * 16, "running", free),
                ("old", "1" * 16, "stopped", free),
                (text, text, "running", spoiled),
                ("spoiled", text, "stopped", spoiled),
            ):
                own = record | {"name": name, "session_id": session_id, "state": state}
                tx.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", [name, session_id, state, json.dumps(own)])

    def _spoil_activity(self) -> None:
        """What an agent does, as its runner has written it."""
        text = HOSTILE.replace("\udcff", "")
        with open_jobs(self.settings) as jobs:
            set_activity(jobs.registry, jobs.get_job(JOB), "stalled", text, lease_sec=None)
        folder = os.path.join(self.home, "sessions", "0" * 16)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        names = ("at", "kind", "since", "cause", "rule", "idle_for", "open_work")
        fact = dict.fromkeys(("fact", "value", "source", "since"), HOSTILE)
        more = {"job_id": JOB, "attempt": 1, "facts": [fact], "channel": {HOSTILE: HOSTILE}}
        write_snapshot(folder, Snapshot(**dict.fromkeys(names, HOSTILE) | more))

    def _spoil_state(self, state: str) -> None:
        names = ("agent_name", "agent_id", "generation_id", "published_at", "lease_expires_at", "host")
        for name, content in (
            (f"HOUMAO-{AGENT}", json.dumps(dict.fromkeys(names, HOSTILE))),
            ("HOUMAO-other", HOSTILE),
            (ONE_LINE.replace("/", ""), HOSTILE),
        ):
            folder = os.fsencode(os.path.join(state, "registry", "live_agents", name))
            os.makedirs(folder, mode=0o700)
            with open(os.path.join(folder, b"record.json"), "w", errors="surrogateescape") as file:
                file.write(content)
        os.makedirs(os.path.join(state, "broker"), mode=0o700)
        with open(os.path.join(state, "broker", "log"), "w", errors="surrogateescape") as file:
            file.write(ONE_LINE + "\n")


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with HostileOffice(folder) as office:
        yield office


@pytest.fixture(scope="module")
def saved(office, tmp_path_factory):
    """The folder as it was made, for commands that change it."""
    copy = tmp_path_factory.mktemp("saved") / "copy"
    shutil.copytree(os.fsencode(office.folder), os.fsencode(copy), symlinks=True)
    return copy


@pytest.fixture(scope="module")
def baton(office):
    with ManyCommands(
        str(office.folder), office.env | {"BATON_CONFIG": os.path.join(office.folder, "config.toml")}
    ) as run:
        yield run


def restore(office, saved) -> None:
    folder = os.fsencode(office.folder)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    shutil.copytree(os.fsencode(saved), folder, symlinks=True, dirs_exist_ok=True)


def command_lines(words, options):
    """Yield command lines: a right one, one with each flag, and for each field one in which that field is hostile."""
    required = required_arguments(words, options)
    flags = [each.names[0] for each in single(options) if each.settings.get("action") == "store_true"]
    values = [each.names[0] for each in single(options) if each.settings.get("action") != "store_true"]
    more, right = MORE.get(words, []), right_command(words, options)
    if words not in WITHOUT_A_PLAIN_RUN:
        yield right
        yield from ([*right, flag] for flag in flags)
    for name in values:
        rest = itertools.chain(*(given for other, given in required.items() if other != name))
        yield [*words, *rest, *more, f"{name}={HOSTILE}" if name.startswith("-") else HOSTILE]


OPTIONS = dict(options_of_verbs())


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_no_field_of_a_command_reaches_the_terminal_as_it_is(words, baton, office, saved):
    for arguments in command_lines(words, OPTIONS[words]):
        restore(office, saved)
        shown = baton(*arguments)
        assert shown.code is not None, f"does not end: {arguments}; what makes it end belongs into MORE"
        assert harm_in(shown.out) == [], arguments
        assert harm_in(shown.err) == [], arguments
        if "--json" in arguments and shown.out:
            _parse(shown.out)


def _parse(text):
    """Parse one JSON value, or one in each line."""
    try:
        json.loads(text)
    except ValueError:
        for line in text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("name", [name for name, (variable, _, _) in KNOWN.items() if variable])
def test_no_setting_reaches_the_terminal_as_it_is(name, baton, office, saved):
    restore(office, saved)
    variable = KNOWN[name][0]
    for arguments in (["config", "show"], ["config", "show", "--json"], ["list"], ["doctor"]):
        shown = baton(*arguments, **{variable: HOSTILE})
        assert shown.code is not None, arguments
        assert harm_in(shown.out) + harm_in(shown.err) == [], arguments


def test_a_traceback_is_text_too(baton, office, saved):
    restore(office, saved)
    shown = baton("register", f"--prompt-file={HOSTILE}", "--debug")
    assert "Traceback" in shown.err
    assert harm_in(shown.err, own_lines=True) == []


def test_what_is_shown_comes_from_the_folder(baton, office, saved):
    """Without this, the tests above could pass because each command fails before it prints anything."""
    restore(office, saved)
    for arguments in (
        ["list"], ["list", "--json"], ["get", JOB], ["logs", JOB], ["logs", "--list"], ["result", JOB, "--output"], ["session", "list", "--all"],
        ["session", "show", SESSION], ["session", "prune", "--dry-run"], ["doctor"], ["broker", "logs"],
        ["registry", "stats"], ["retry", JOB, "--detach", "--json"], ["requests"], ["requests", JOB], ["requests", JOB, "--json"],
    ):  # fmt: skip
        shown = baton(*arguments)
        assert "hidden" in shown.out + shown.err or arguments[0] == "retry", (arguments, shown)


def test_json_on_a_terminal_is_exact(baton, office, saved):
    restore(office, saved)
    shown = json.loads(baton("get", JOB).out)
    assert shown == office("get", JOB).json
    assert shown["prompt"] == HOSTILE.replace("\udcff", "")


def test_harmless_text_of_any_language_is_shown_as_it_is(baton, office, saved):
    restore(office, saved)
    text = "naïve 日本語\u3000文字 \u202fl'été עברית emoji \U0001f468\u200d\U0001f469\ufe0f"
    job = office("register", text).text
    assert text in " ".join(baton("get", job).out.split("\n"))
    assert "日本語" in baton("list").out


def test_a_pipe_gets_what_a_terminal_does_not(office, saved):
    restore(office, saved)
    lines = office("logs", JOB, "--json").out.splitlines()
    assert json.loads(lines[0])["detail"] == HOSTILE


def test_a_live_table_and_a_session_show_hostile_text_as_text(tmp_path):
    text = HOSTILE.replace("\udcff", "")
    (tmp_path / "hostile").write_text(text)
    prompt = f": '{text}'\ncat hostile; baton publish --event progress --detail \"$(cat hostile)\""
    with Office(tmp_path) as office:
        shown = office.start("submit", prompt, "--timeout", "30", terminal=True)
        shown.end()
        assert harm_in(shown.raw) == []
        # A process that `stop` must end and name: the last part of its path is its name.
        (tmp_path / text.replace("/", "")[-60:]).symlink_to("/bin/sleep")
        office("session", "create", "named", "--prompt", "cat hostile; ./*FORGED 1000 & sleep 1000")
        wait_until(lambda: "over" in office("session", "capture", "named").out, "for the text on the screen")
        captured = office.start("session", "capture", "named", terminal=True)
        assert captured.end().code == 0
        assert harm_in(captured.raw, own_lines=True) == []
        stopped = office.start("session", "stop", "named", terminal=True)
        assert stopped.end().code == 0
        assert "FORGED" in stopped.raw
        assert harm_in(stopped.raw) == []


def test_the_board_shows_hostile_texts_and_acts_on_none(office, saved):
    restore(office, saved)
    with BoardTerminal(office.folder, office.env, width=120, height=40) as board:
        board.sees("STATE", "q quit", "waiting")
        tabs = ["[screen", "[request", "[history", "[explain", "[result", "[diff"]
        for _ in range(3):
            first = next(place for place, tab in enumerate(tabs) if any(tab in line for line in board.sees("─")))
            for step in range(1, 7):
                board.press("Tab")
                lines = board.sees("STATE", "q quit", tabs[(first + step) % 6])
                assert [harm for line in lines for harm in harm_in(line, own_lines=True)] == []
                assert not any("unexpected" in line for line in lines), lines
            board.press("j")
        assert board.title() != "title"
