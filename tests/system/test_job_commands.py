"""register, list, get, status, pick, cancel, ... as typed by a person, on every backend."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from baton.core.clock import parse_time
from support.command import BATON, Baton, interruptible
from support.homes import home_of
from support.waiting import wait_until
from unit.test_model import SEED_RECORD


@pytest.fixture
def baton(tmp_path, backend, url):
    """The command on each backend: the default one without any setting, the others by their url."""
    if backend == "sqlite":
        return Baton(tmp_path)
    if backend == "file":
        return Baton(tmp_path, BATON_REGISTRY="file:.hermes/jobs")
    return Baton(tmp_path, BATON_REGISTRY=url)


@pytest.fixture
def default(tmp_path):
    return Baton(tmp_path)


def test_an_agent_has_one_queue_however_it_is_called(default):
    job = default("register", "x", "--agent", "claude").text
    assert default("list", "--agent", "claude", "--json").json[0]["agent"] == "claude-code"
    picked = default("pick", "--agent", "claude-code", "--json", BATON_HOST="elsewhere").json
    assert picked["job_id"] == job
    assert picked["claimed_by"].startswith("elsewhere:")


@pytest.mark.parametrize("name", ["registry", "directory"])
def test_doctor_sees_a_password_that_others_can_read(default, tmp_path, name):
    config = tmp_path / "baton.toml"
    config.write_text(f'{name} = "postgresql://me:hunter2@127.0.0.1:1/x"')
    config.chmod(0o644)
    told = default("doctor", code=None, BATON_CONFIG=str(config)).out
    assert f"{config} holds a password and other users can read it" in told
    assert "hunter2" not in told
    config.chmod(0o600)
    assert "holds a password" not in default("doctor", code=None, BATON_CONFIG=str(config)).out


def test_a_monitor_that_cannot_look_says_so(default, tmp_path):
    (tmp_path / "registry.db").write_text("no database at all" * 50)
    done = default("monitor", "--once", "--registry", f"sqlite:{tmp_path}/registry.db", code=1)
    assert "not a SQLite database" in done.out


def test_the_lines_of_the_seeds(baton):
    job = baton(
        "register", "--prompt", "…", "--agent", "claude-code", "--agent-session", "tmux:claude",
        "--timeout", "3600", "--idle-timeout", "120",
    ).text  # fmt: skip
    assert re.fullmatch("[0-9a-f]{8}", job)
    assert job in baton("list").out
    (record,) = baton("list", "--json").json
    assert record == baton("get", "--job", job).json
    assert (record["status"], record["auth_token"], record["timeout_sec"]) == ("pending", "***", 3600)
    assert baton("pick", "--agent-session", "tmux:claude").text == job
    assert "no pending job" in baton.refused("pick", "--agent-session", "tmux:claude", code=3)
    assert baton("status", "--job", job, "--set", "completed").text == "completed"
    assert baton("status", "--job", job).out == "completed\n"
    timeline = baton("logs", job).out.splitlines()
    assert [line.split()[1] for line in timeline] == ["registered", "status_changed", "status_changed"]
    assert baton("logs", job, "--tail", "1").out.splitlines() == timeline[-1:]
    assert [json.loads(line)["event"] for line in baton("logs", job, "--json").out.splitlines()] == [
        "registered", "status_changed", "status_changed",
    ]  # fmt: skip
    assert baton("logs", "--list").out.split()[:2] == [job, "completed"]
    assert "unbroken" in baton("logs", job, "--verify").out


def test_printed_times_have_at_most_microseconds(baton):
    """Programs that read no more digits must be able to read them. The registry keeps nanoseconds, for the order."""
    for _ in range(5):
        job = baton("register", "x").text
    baton("pick", "--lease", "60")
    baton("publish", job, "--event", "progress", "--attempts", "1", MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    baton("cancel", job)
    for words in (["get", job], ["list", "--json"], ["logs", job, "--json"], ["subscribe", job]):
        out = baton(*words, code=None, MQTT_BROKER="127.0.0.1", MQTT_PORT="9").out
        assert re.search(r"T\d\d:\d\d:\d\d\.\d{3,6}Z", out), words
        assert not re.search(r"\.\d{7,9}Z", out), words


def test_a_job_may_be_named_as_argument_or_option(baton):
    job = baton("register", "x").text
    assert baton("status", job).out == baton("status", "--job", job).out == baton("status", BATON_JOB_ID=job).out
    assert "two different jobs" in baton.refused("attach", job, "--job", "deadbeef", code=64)
    assert "no job is named" in baton.refused("status", code=64)


class TestRegister:
    def test_everything_that_can_be_said(self, baton):
        os.mkdir(os.path.join(baton.folder, "sub"))
        record = baton(
            "register", "Do it", "--agent", "codex", "--workdir", "sub", "--timeout", "60", "--idle-timeout", "5",
            "--expect", "a.md", "--expect", "b.md", "--validate", "make test", "--priority", "-2",
            "--max-attempts", "3", "--label", "nightly", "--json",
        ).json  # fmt: skip
        expected = {
            "prompt": "Do it", "agent": "codex", "agent_session": "tmux:codex", "timeout_sec": 60,
            "idle_timeout_sec": 5, "expected_artifacts": ["a.md", "b.md"], "validate": "make test", "priority": -2,
            "max_attempts": 3, "labels": ["nightly"], "status": "pending", "attempt": 0, "last_seq": 0,
        }  # fmt: skip
        assert {key: record[key] for key in expected} == expected
        assert record["workdir"] == os.path.join(os.path.realpath(baton.folder), "sub")

    @pytest.mark.parametrize("how", [["-"], ["--prompt-file", "-"], ["--prompt-file", "p.txt"]])
    def test_a_prompt_from_a_file_or_stdin(self, default, tmp_path, how):
        prompt = "-- $(touch canary) `x` 정렬\nsecond line\n"
        (tmp_path / "p.txt").write_text(prompt)
        job = default("register", *how, stdin=prompt).text
        assert default("get", job).json["prompt"] == prompt
        assert not (tmp_path / "canary").exists()

    def test_a_prompt_that_begins_with_a_dash(self, default):
        job = default("register", "--", "--help me").text
        assert default("get", job).json["prompt"] == "--help me"

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["register", ""], "prompt"),
            (["register", "  "], "prompt"),
            (["register", "x", "--timeout", "-5"], "--timeout must be more than 0"),
            (["register", "x", "--idle-timeout", "0s"], "--idle-timeout must be more than 0"),
            (["register", "x", "--agent-session", "a\nb"], "agent_session"),
            (["register", "x", "--agent", ""], "agent"),
            (["register", "x", "--max-attempts", "0"], "max_attempts"),
            (["register", "x", "--expect", ""], "expected_artifacts"),
            (["register", "x", "--workdir", "nowhere"], "--workdir"),
            (["register", "x", "--workdir", ""], "--workdir"),
            (["register", "x", "--validate", " "], "--validate"),
            (["pick", "--holder", ""], "holder"),
            (["pick", "--agent-session", ""], "agent_session"),
            (["pick", "--wait", "-1"], "--wait"),
            (["pick", "--wait", "nan"], "--wait"),
            (["registry", "prune", "--older-than", "30"], "30d"),
            (["list", "--newer-than", ""], "--newer-than"),
            (["register", "--prompt-file", "nowhere.txt"], "nowhere.txt"),
            (["register", "--prompt-file", "."], "cannot be read"),
            (["get", "../../etc/passwd"], "job id"),
            (["get", "a/b"], "job id"),
            (["pick", "--agent-session", "a\nb"], "agent_session"),
            (["pick", "--lease", "-1"], "lease"),
            (["list", "--status", "done"], "pending, running, completed, error, cancelled"),
            (["list", "--newer-than", "soon"], "duration"),
            (["logs", "x", "--verify"], "job id"),
            (["logs", "deadbeef"], "deadbeef"),
            (["get", "deadbeef"], "deadbeef"),
            (["--registry", "mysql://x", "list"], "sqlite:PATH"),
        ],
    )
    def test_what_does_not_fit_is_refused_before_anything_is_written(self, default, tmp_path, arguments, word):
        assert word in default.refused(*arguments, code=1 if word == "deadbeef" else 64)
        assert list(tmp_path.iterdir()) == []

    def test_a_limit_is_seconds_or_a_duration(self, default):
        job = default("register", "x", "--timeout", "10m", "--idle-timeout", "90").text
        record = default("get", job).json
        assert (record["timeout_sec"], record["idle_timeout_sec"]) == (600, 90)
        for verb in (("register", "x"), ("submit", "x"), ("wait", job), ("subscribe", job), ("agent", "watch")):
            said = default(*verb, "--timeout", "10 minutes", code=64).err
            assert "argument --timeout: must be seconds, or such as 90s, 10m or 2h, not '10 minutes'" in said

    def test_a_prompt_that_is_not_utf_8(self, default):
        assert "UTF-8" in default.refused("register", "-", stdin=b"\xff\xfe", code=64)

    @pytest.mark.parametrize(
        "arguments",
        [
            [], ["frobnicate"], ["register"], ["register", "a", "--prompt", "b"],
            ["register", "x", "--timeout", "soon"],
            ["get", "--nonsense"], ["registry"], ["registry", "migrate"], ["config"], ["--home"], ["list", "--js"],
            ["register", "x", "--workdir=--"], ["register", "--workdir=--", "--", "x"],
        ],
    )  # fmt: skip
    def test_a_wrong_command_line_exits_with_64(self, default, tmp_path, arguments):
        result = default(*arguments, code=64)
        assert "Traceback" not in result.err
        assert list(tmp_path.iterdir()) == []

    def test_a_misspelt_verb_gets_a_hint(self, default):
        assert "did you mean `baton register`?" in default.refused("regster", code=64)


class TestStatus:
    def test_unknown_job(self, baton):
        baton("register", "x", "--agent", "shell")
        assert "deadbeef" in baton.refused("status", "deadbeef")
        assert "deadbeef" in baton.refused("status", "deadbeef", "--set", "completed")
        assert "deadbeef" in baton.refused("cancel", "deadbeef")

    def test_bad_status(self, baton):
        job = baton("register", "x").text
        refusal = baton.refused("status", job, "--set", "done", code=64)
        assert "pending, running, completed, error, cancelled" in refusal

    def test_illegal_transition(self, baton):
        job = baton("register", "x").text
        line = baton.refused("status", job, "--set", "completed")
        assert line == f"baton: job {job} has not started and cannot be completed; pick it first\n"

    def test_cancel_is_final(self, baton):
        job = baton("register", "x").text
        assert baton("cancel", job).text == "cancelled"
        assert baton("cancel", job).text == "cancelled"
        assert "cancelled" in baton.refused("status", job, "--set", "running")
        baton.refused("pick", code=3)

    def test_a_stale_attempt_is_refused(self, baton):
        job = baton("register", "x", "--max-attempts", "2").text
        baton("pick")
        assert baton("release", job, "--attempt", "1", "--reason", "lunch").text == "pending"
        assert baton("pick", "--json").json["attempt"] == 2
        assert "stale attempt" in baton.refused("status", job, "--set", "completed", "--attempt", "1")
        assert baton("status", job, "--set", "completed", "--attempt", "2").text == "completed"
        assert "requeued" in baton("logs", job).out


class TestLeases:
    @pytest.fixture
    def baton(self, baton):
        """The monitor starts the local broker, to send the last event."""
        yield baton
        baton("broker", "down")

    def test_a_lease_is_renewed_or_lost(self, baton):
        job = baton("register", "x", "--max-attempts", "2").text
        baton("pick", "--lease", "0.5")
        assert baton("renew", job, "--attempt", "1", "--lease", "60").text.endswith("Z")
        assert baton("monitor", "--once").out == ""
        baton("renew", job, "--attempt", "1", "--lease", "0.01")
        wait_until(lambda: parse_time(baton("get", job).json["lease_expires_at"]) < time.time_ns())
        assert f"job {job}: the lease of " in baton("monitor", "--once").out
        assert baton("status", job).text == "pending"
        assert "stale attempt" in baton.refused("renew", job, "--attempt", "1", "--lease", "60")
        baton("pick", "--lease", "0.01")
        wait_until(lambda: parse_time(baton("get", job).json["lease_expires_at"]) < time.time_ns())
        assert f"job {job}: the lease of " in baton("monitor", "--once").out
        assert baton("status", job).text == "error"
        assert "lease expired" in baton("logs", job).out


class TestPick:
    def test_it_waits_for_a_job_to_come(self, baton):
        waiting = subprocess.Popen(
            [BATON, "pick", "--wait", "30"], cwd=baton.folder, env=baton.env, stdout=subprocess.PIPE, text=True
        )
        job = baton("register", "x").text
        assert waiting.communicate(timeout=40)[0].strip() == job
        assert waiting.returncode == 0

    def test_it_waits_no_longer_than_told(self, default):
        default.refused("pick", "--wait", "0.3", code=3)

    def test_ctrl_c_while_waiting_exits_with_130(self, default, tmp_path):
        default("register", "x", "--agent", "shell")
        waiting = subprocess.Popen(
            [BATON, "pick", "--wait", "30"],
            cwd=tmp_path,
            env=default.env,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=interruptible,
        )
        wait_until(lambda: "nanosleep" in Path(f"/proc/{waiting.pid}/wchan").read_text())
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate(timeout=10)[1] == ""
        assert waiting.returncode == 130
        assert len(default("list", "--json").json) == 1


class TestOutputThatCannotBeWritten:
    def run(self, baton, line):
        return subprocess.run(
            line,
            shell=True,
            cwd=baton.folder,
            env=baton.env | {"B": BATON},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_a_picked_job_is_handed_back(self, default):
        job = default("register", "x").text
        for line in ("$B pick > /dev/full", "$B pick --json > /dev/full"):
            result = self.run(default, line)
            assert result.returncode == 1
            assert f"job {job} is requeued" in result.stderr
            assert default("status", job).text == "pending"
        assert default("pick").text == job

    def test_a_registered_job_is_named(self, default):
        result = self.run(default, "$B register x > /dev/full")
        (record,) = default("list", "--json").json
        assert record["job_id"] in result.stderr

    def test_a_closed_output_is_refused_before_anything_happens(self, default, tmp_path):
        result = self.run(default, "$B register x >&-")
        assert (result.returncode, result.stderr.count("\n")) == (1, 1)
        assert "standard output is closed" in result.stderr
        assert "standard input is closed" in self.run(default, "$B register - <&-").stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_terminal_that_cannot_show_it(self, default):
        default("register", "정렬")
        assert "\\uc815" in default("list", PYTHONIOENCODING="ascii").out


class TestList:
    def test_an_empty_folder_has_no_jobs_and_stays_empty(self, default, tmp_path):
        assert default("list").out == ""
        assert default("list", "--json").json == []
        assert default("registry", "stats").code == 0
        default.refused("pick", code=3)
        default("doctor")
        assert list(tmp_path.iterdir()) == []

    def test_filters(self, baton):
        old = baton("register", "x", "--agent", "codex").text
        new = baton("register", "y").text
        baton("pick")

        def ids(*arguments):
            return [line.split()[0] for line in baton("list", *arguments).out.splitlines()]

        assert ids() == [new, old]
        assert ids("--limit", "1") == [new]
        assert ids("--status", "running") == ids("--agent", "claude-code") == [new]
        assert ids("--status", "running", "--status", "pending") == [new, old]
        assert ids("--agent-session", "tmux:codex") == [old]
        assert ids("--newer-than", "1h") == [new, old]
        assert ids("--older-than", "1h") == []

    def test_on_a_terminal_it_is_a_table_in_pages(self, default, tmp_path):
        from baton.core.drafts import new_job
        from baton.registry import open_url

        registry = open_url(f"sqlite:{home_of(tmp_path)}/jobs/registry.db")
        prompt = "한글 \x1b[31mred\x1b[0m \u202eevil " + "long " * 100
        registry.register_many([new_job(prompt, now_ns=time.time_ns(), agent="a") for _ in range(120)])
        registry.close()
        screen = on_terminal(default, "list", NO_COLOR="1")
        lines = screen.splitlines()
        assert lines[0].split() == ["ID", "STATE", "AGE", "AGENT", "TITLE"]
        assert all(len(line) <= 100 for line in lines)
        assert len(lines) == 52
        assert "\x1b" not in screen
        assert "\u202e" not in screen
        cursor = re.search(r"--cursor (\S+)", lines[-1])[1]
        assert len(on_terminal(default, "list", "--cursor", cursor, NO_COLOR="1").splitlines()) == 52
        assert len(on_terminal(default, "list", "--after", cursor, NO_COLOR="1").splitlines()) == 52
        assert "\x1b[33m" in on_terminal(default, "list")
        assert len(default("list", "--json").json) == len(default("list").out.splitlines()) == 120

    def test_a_reader_that_goes_away_is_no_disaster(self, default):
        for _ in range(3):
            default("register", "x" * 50000)
        line = subprocess.run(
            f"{BATON} list --json | head -c 10",
            shell=True,
            check=False,
            cwd=default.folder,
            env=default.env,
            capture_output=True,
        )
        assert line.stderr == b""


def on_terminal(baton, *arguments, **env) -> str:
    """What the command shows on a terminal of 100 columns."""
    main, side = pty.openpty()
    environment = baton.env | {"COLUMNS": "100", "TERM": "xterm-256color"} | env
    process = subprocess.Popen([BATON, *arguments], cwd=baton.folder, env=environment, stdout=side, stderr=side)
    os.close(side)
    shown = b""
    try:
        while chunk := os.read(main, 65536):
            shown += chunk
    except OSError:
        pass  # the terminal is gone when the process is
    os.close(main)
    assert process.wait(10) == 0, shown
    return shown.decode().replace("\r\n", "\n")


class TestTheRecordOfTheSeeds:
    @pytest.fixture
    def dropped(self, tmp_path):
        folder = pathlib.Path(home_of(tmp_path), "jobs")
        folder.mkdir()
        (folder / "abc12345.json").write_text(json.dumps(SEED_RECORD, ensure_ascii=False))
        return folder

    def test_it_is_listed_picked_and_finished(self, default, dropped, tmp_path):
        assert default("list").out.startswith("abc12345\tpending\t-\tclaude-code\t")
        assert default("pick", "--agent-session", "tmux:claude").text == "abc12345"
        (tmp_path / "sort_problems.md").write_text("sorted")
        assert default("status", "abc12345", "--set", "completed").text == "completed"
        record = json.loads((dropped / "abc12345.json").read_text())
        assert record["prompt"] == SEED_RECORD["prompt"]
        assert len(record["auth_token"]) == 43
        assert "unbroken" in default("logs", "abc12345", "--verify").out
        assert not (dropped / "registry.db").exists()

    def test_it_survives_a_migration_and_back_unchanged(self, default, dropped, tmp_path):
        database = "sqlite:.hermes/jobs/registry.db"
        assert "1 job moved" in default("registry", "migrate", "--to", database).out
        assert not (dropped / "abc12345.json").exists()
        assert default("get", "abc12345").json["prompt"] == SEED_RECORD["prompt"]
        default("registry", "migrate", "--to", "file:.hermes/jobs")
        assert json.loads((dropped / "abc12345.json").read_text()) == SEED_RECORD | {"change": 1}
        assert not (dropped / "registry.db").exists()
        assert len(list(dropped.glob("set-aside-*"))) == 2

    def test_records_dropped_in_later_are_found(self, default, dropped):
        default("pick", "--agent-session", "tmux:claude")
        default.refused("pick", "--agent-session", "tmux:claude", code=3)
        (dropped / "abc12346.json").write_text(
            json.dumps(SEED_RECORD | {"job_id": "abc12346", "topic_prefix": "python/mqtt/jobs/abc12346"})
        )
        assert default("pick", "--agent-session", "tmux:claude").text == "abc12346"

    def test_a_bad_record_hides_no_other(self, default, dropped):
        (dropped / "bad00001.json").write_text('{"half": ')
        (dropped / "bad00002.json").write_text(json.dumps(SEED_RECORD | {"job_id": "bad00002", "status": "done"}))
        (dropped / "bad00003.json").write_bytes(b"\xff\x00\xff")
        listed = default("list")
        assert [line.split()[0] for line in listed.out.splitlines()] == ["abc12345"]
        for bad in ("bad00001", "bad00002: status", "bad00003"):
            assert bad in listed.err
        assert "bad00001" in default.refused("get", "bad00001")
        assert "bad0000" in default.refused("registry", "migrate", "--to", "sqlite:new.db")
        assert not os.path.exists(os.path.join(default.folder, "new.db"))
        assert default("pick", "--agent-session", "tmux:claude").text == "abc12345"
        assert "bad00002" in default("doctor", code=1).out

    def test_two_registries_in_one_folder_are_told_apart(self, default, dropped):
        default("register", "x", "--registry", "sqlite:.hermes/jobs/registry.db")
        listed = default("list")
        assert len(listed.out.splitlines()) == 1
        assert "registry.db is" in listed.err
        assert "registry.db is" in default("doctor").out
        assert default("--registry", "file:.hermes/jobs", "list").out.startswith("abc12345")


def test_a_database_of_a_newer_baton_is_refused(default, tmp_path):
    import sqlite3

    default("register", "x")
    connection = sqlite3.connect(tmp_path / ".hermes" / "jobs" / "registry.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "newer baton" in default.refused("list")
    assert "newer baton" in default.refused("register", "y")


def test_a_file_that_is_no_database_is_named(default, tmp_path):
    default("register", "x")
    (tmp_path / ".hermes" / "jobs" / "registry.db").write_bytes(b"not a database" * 100)
    assert "registry.db" in default.refused("list")
    assert "registry.db" in default.refused("pick")


def test_everything_is_private_whatever_the_umask(baton, tmp_path):
    command = "import os, sys; os.umask(0); os.execv(sys.argv[1], sys.argv[1:])"

    def unmasked(*arguments):
        done = subprocess.run(
            [os.path.join(os.path.dirname(BATON), "python"), "-c", command, BATON, *arguments],
            cwd=tmp_path, env=baton.env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    job = unmasked("register", "x")
    unmasked("get", job)
    unmasked("pick", "--lease", "60")
    unmasked("status", job, "--set", "error")
    unmasked("logs", job)
    seen = 0
    for folder, folders, files in os.walk(tmp_path / ".hermes"):
        for name in folders:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o700, name
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600, name
            seen += 1
    assert stat.S_IMODE(os.stat(tmp_path / ".hermes").st_mode) == 0o700
    assert seen >= 4
    assert (tmp_path / ".hermes" / ".gitignore").read_text() == "*\n"


def test_no_output_shows_a_key_or_a_password(baton, tmp_path):
    job = baton("register", "x").text
    key = baton("get", job, "--show-secrets").json["auth_token"]
    assert len(key) == 43
    baton("pick")
    shown = "".join(
        baton(*arguments).out
        for arguments in (
            ["list", "--json"],
            ["get", job],
            ["list"],
            ["status", job, "--json"],
            ["logs", job, "--json"],
        )
    )
    logs = b"".join(path.read_bytes() for path in (tmp_path / ".hermes" / "delegate_job_logs").rglob("*.*json"))
    assert key not in shown
    assert key.encode() not in logs


def test_options_may_stand_in_front_of_the_verb(default, tmp_path):
    job = default("--home", "./elsewhere", "register", "x").text
    assert default("register", "y", "--home", "./elsewhere").text != job
    assert (tmp_path / "elsewhere" / "jobs" / "registry.db").exists()
    assert len(default("list", "--json", BATON_HOME="./elsewhere").json) == 2
    assert default("list").out == ""
    assert len(default("list", "--registry-dir", "elsewhere/jobs", BATON_REGISTRY="file:nowhere").out.splitlines()) == 2


def test_json_may_be_asked_for_in_front_of_the_action(default):
    for verb, action in (("registry", "stats"), ("session", "list"), ("config", "show"), ("agent", "list")):
        assert default(verb, "--json", action).json == default(verb, action, "--json").json


def test_help_of_every_verb(default):
    from baton.cli.main import VERBS

    overview = default("--help").out
    headings = [line for line in overview.splitlines() if line.endswith(":")]
    assert headings == ["every day:", "queues, workers and sessions:", "events:", "setup and care:"]
    for verb in (verb for verb, (_, text) in VERBS.items() if text):  # the others are called by programs
        assert f"  {verb}  " in overview
        assert default(verb, "--help").out.startswith(f"usage: baton {verb}")
    assert default("--version").out == default("version").out
