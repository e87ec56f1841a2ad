"""`baton trust`, as a user types it: what it shows, what it asks, and what becomes of the folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from baton.sessions.processes import ProcessId, command_line, started_at
from support.command import BATON, Baton
from support.office import Office
from support.terminal import Terminal
from support.waiting import poll, wait_until

HOMES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "homes-of-0.1.0")
JOB = "abcd1234"


class User(Baton):
    """A user with a home folder and a state, and a clone that carries a `.hermes`."""

    def __init__(self, tmp_path, **env):
        for name in ("user", "clone"):
            (tmp_path / name).mkdir()
        super().__init__(tmp_path / "clone", HOME=str(tmp_path / "user"), BATON_AGENT="shell", **env)
        self.state = tmp_path / "user" / ".local" / "state" / "baton"
        self.hermes = self.folder / ".hermes"

    def carry(self, *names, **record):
        """Put a home of the scripts into the clone, with one job."""
        (self.hermes / "jobs").mkdir(parents=True)
        job = {
            "schema_version": 1, "job_id": JOB, "status": "pending", "created_at": "2026-06-19T09:30:00Z",
            "updated_at": "2026-06-19T09:30:00Z", "prompt": "echo hello", "agent": "shell",
            "agent_session": "tmux:shell", "topic_prefix": f"python/mqtt/jobs/{JOB}", "timeout_sec": 60,
            "broker": {"host": "127.0.0.1", "port": 1, "tls": False, "username": None, "password": None},
            "idle_timeout_sec": 60, "expected_artifacts": [], "last_seq": 0, "auth_token": None,
        }  # fmt: skip
        (self.hermes / "jobs" / f"{JOB}.json").write_text(json.dumps(job | record))

    def homes(self):
        return self("trust", "--list", "--json").json

    def untouched(self):
        """The clone is as it came, and nothing is recorded."""
        assert os.path.isdir(self.hermes)
        assert not os.path.islink(self.hermes)
        assert not (self.hermes / "home.json").is_file()
        assert not (self.state / "folders").exists() or not os.listdir(self.state / "folders")
        return True

    def on_terminal(self, *arguments, **env):
        return Terminal([BATON, *arguments], cwd=str(self.folder), env=self.env | env)


@pytest.fixture
def user(tmp_path):
    return User(tmp_path)


# -- looking and asking ------------------------------------------------------------------------------------------------


def test_with_json_standard_output_is_json(user):
    user.carry()
    result = user("trust", "--yes", "--json")
    assert result.json == user.homes()[0]
    assert "jobs: 1 pending" in result.err


def test_without_an_answer_the_content_is_listed_and_left_alone(user):
    user.carry(validate="make test")
    (user.hermes / "baton.toml").write_text('agent = "evil"\n[agents.evil]\ncommand = ["touch", "ran"]\n')
    assert "baton trust" in user.refused("list")
    shown = user("trust", code=1)
    assert shown.err == "baton: nothing was changed: answer on a terminal, or add --yes\n"
    for text in ("jobs: 1 pending", f"{JOB} pending, agent shell: echo hello; baton would run: make test",
                 "setting agent = evil", "setting [agents.evil] = {'command': ['touch', 'ran']}"):  # fmt: skip
        assert text in shown.out
    assert user.untouched()
    assert not (user.folder / "ran").exists()


def test_what_is_not_shown_whole_is_marked(user):
    """A folder cannot hide a command behind others, or behind spaces."""
    user.carry(validate=f"make test{' ' * 1000}; touch canary {'x' * 1000}")
    record = json.loads((user.hermes / "jobs" / f"{JOB}.json").read_text())
    for number in range(24):
        job_id = f"{number:08x}"
        (user.hermes / "jobs" / f"{job_id}.json").write_text(json.dumps(record | {"job_id": job_id}))
    (user.hermes / "baton.toml").write_text(
        f'registry = "sqlite:x.db"\n[agents.a]\ncommand = ["sh", "-c", "true {" " * 1000}; rm x"]\n'
    )
    (user.hermes / "jobs" / ".moved").write_text("sqlite:other.db\n")
    shown = user("trust", code=1).out
    assert "setting registry = sqlite:x.db (the jobs there are not listed)" in shown
    assert "setting [agents.a] = {'command': ['sh', '-c', 'true ; rm x']}" in shown
    assert "its jobs were moved to sqlite:other.db; they are not listed" in shown
    assert "baton would run: make test ; touch canary xxx" in shown
    assert "x…\n" in shown
    assert "    and 5 more that are not listed\n" in shown


def test_a_job_whose_agent_would_not_ask_is_marked(user):
    user.carry(start_options={"yolo": True})
    assert f"{JOB} pending, agent shell without asking (yolo): echo hello" in user("trust", code=1).out
    user("trust", "--yes")
    shutil.copytree(user.hermes, user.folder / "copy")
    assert "agent shell without asking (yolo)" in user("--home", "./copy", "trust", code=1).out


def test_yes_moves_the_content_into_a_home_of_the_user(user):
    user.carry()
    assert (
        user("trust", "--yes")
        .out.splitlines()[-1]
        .startswith(f"trusted {user.folder}; its home is {user.state}/homes/")
    )
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]
    assert os.readlink(user.hermes).startswith(f"{user.state}/homes/")
    assert user("pick").text == JOB
    assert "is trusted already" in user("trust", "--yes").err


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("yes", 0), ("n", 1), ("", 1), ("\x04", 1)])
def test_on_a_terminal_it_asks(user, answer, code):
    user.carry()
    with user.on_terminal("trust") as terminal:
        terminal.see("jobs: 1 pending")
        terminal.see("[y/N] ")
        terminal.type(f"{answer}\r" if answer != "\x04" else answer)
        assert terminal.end() == code
        assert (b"nothing was changed" in terminal.shown) is bool(code)
    assert user.untouched() if code else os.path.islink(user.hermes)


def test_interrupted_at_the_question_nothing_changes(user):
    user.carry()
    with user.on_terminal("trust") as terminal:
        terminal.see("[y/N] ")
        terminal.type("\x03")
        assert terminal.process.wait(20) == 130
    assert user.untouched()


def test_hostile_names_are_printable(user):
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp\r\n"
    user.carry(prompt=evil, agent="a" + evil, validate=evil)
    (user.hermes / f"x{evil}.db").write_text("x")
    (user.hermes / "baton.toml").write_text(
        f'agent = "{evil[:4].encode("unicode_escape").decode()[4:]}"\n"k\\u001b" = 1\n'
    )
    os.mkfifo(user.hermes / f"pipe{evil}")
    shown = user("trust", code=1)
    assert re.findall(r"[^\n\x20-\x7e\xa0-\u02ff\ufffd\u2026]", shown.out + shown.err) == []
    assert "is a named pipe" in shown.err


def test_nothing_hangs(user):
    user.carry()
    for name in ("jobs/registry.db", "agent-sessions.db", "baton.toml", "home.json", "jobs/.moved", "jobs/.lock"):
        os.mkfifo(user.hermes / name)
    assert "is a named pipe; " in user("trust", "--yes", code=1).err
    assert user.untouched()


def test_a_trigger_is_named_and_does_not_run(user):
    user.carry()
    connection = sqlite3.connect(user.hermes / "jobs" / "registry.db")
    connection.executescript(
        "CREATE TABLE jobs (job_id, status, agent, prompt, validate, created_at); CREATE TABLE events (id);"
        "CREATE TRIGGER evil AFTER INSERT ON jobs BEGIN UPDATE jobs SET validate = 'touch ran'; END;"
    )
    connection.close()
    assert "database jobs/registry.db: holds trigger evil: baton refuses to open it" in user("trust", code=1).out


def test_a_link_out_of_the_folder_is_refused_by_name(user):
    user.carry()
    (user.hermes / "delegate_job_logs").symlink_to(user.folder.parent)
    assert "delegate_job_logs is a link that leaves the folder" in user("trust", "--yes", code=1).err
    assert user.untouched()


def test_an_agent_may_not_trust(user):
    user.carry()
    assert "trust is refused inside a session" in user.refused("trust", "--yes", BATON_SESSION_ID="ab" * 8)
    assert user.untouched()


def test_a_folder_with_nothing_in_it_needs_no_trust(user):
    assert "nothing to trust" in user("trust", "--yes").err
    assert "is not a folder" in user.refused("trust", "missing", code=64)


# -- in place, by path, listed, removed ----------------------------------------------------------------------------------


def test_in_place_the_content_stays_and_its_settings_are_restricted(user):
    user.carry()
    (user.hermes / "baton.toml").write_text('timeout_sec = 77\nmqtt_host = "evil.example.com"\n')
    shown = user("trust", "--yes", "--in-place").out
    assert "setting timeout_sec = 77\n" in shown
    assert "setting mqtt_host = evil.example.com (ignored in place)\n" in shown
    assert not os.path.islink(user.hermes)
    settings = user("config", "show", "--json").json
    assert settings["timeout_sec"]["value"] == 77
    assert settings["mqtt_host"]["value"] is None
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]


def test_a_home_that_is_named_by_its_path(user, tmp_path):
    user.carry()
    user.hermes.rename(tmp_path / "data")
    home = str(tmp_path / "data")
    assert f"baton trust {home}" in user.refused("list", "--home", home)
    user("trust", "--yes", home)
    assert [job["job_id"] for job in user("list", "--json", "--home", home).json] == [JOB]


def test_a_home_of_another_name(user):
    user.carry()
    user.hermes.rename(user.folder / ".mam")
    user.env["BATON_HOME"] = ".mam"
    user("trust", "--yes")
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]
    assert os.path.islink(user.folder / ".mam")


def test_list_and_remove(user):
    assert "no folder has a home" in user("trust", "--list").err
    user.carry()
    user("trust", "--yes")
    (home,) = user.homes()
    assert (home["folder"], home["in_place"]) == (str(user.folder), False)
    assert user("trust", "--list").out == f"{user.folder}\tok\t{home['home']}\n"
    assert home["home"] in user("trust", "--remove").out
    assert user.homes() == []
    assert not os.path.lexists(user.hermes)
    assert os.path.exists(os.path.join(home["home"], "jobs", f"{JOB}.json"))
    assert "has no home that you trust" in user.refused("trust", "--remove")
    user("trust", "--yes")
    assert user.homes() == [home]
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]


def test_a_folder_that_was_moved(user, tmp_path):
    user("register", "x")
    job = user("list", "--json").json
    user.folder.rename(tmp_path / "new")
    old, user.folder = user.folder, tmp_path / "new"
    assert "baton trust" in user.refused("list")
    assert "confirm that with --from" in user("trust", "--yes", code=1).err
    user("trust", "--yes", "--from", str(old))
    assert user("list", "--json").json == job
    assert [home["folder"] for home in user.homes()] == [str(tmp_path / "new")]
    assert "no home is known for" in user.refused("trust", "--yes", "--from", str(old), str(tmp_path))


# -- other users ---------------------------------------------------------------------------------------------------------


@pytest.mark.as_root
def test_a_folder_of_another_user(user):
    user.carry()
    for path, folders, names in os.walk(user.hermes):
        for name in (".", *folders, *names):
            os.chown(os.path.join(path, name), 4242, 4242)
    assert "belongs to another user (4242); add --owner" in user.refused("trust", "--yes")
    assert "leave --in-place out" in user.refused("trust", "--yes", "--owner", "--in-place", code=64)
    assert user.untouched()
    user("trust", "--yes", "--owner")
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]
    (home,) = user.homes()
    owners = {os.lstat(os.path.join(path, name)).st_uid for path, _, names in os.walk(home["home"]) for name in names}
    assert owners == {os.getuid()}


@pytest.mark.as_root
def test_one_file_of_another_user(user):
    user.carry()
    (user.hermes / "planted").write_text("x")
    os.chown(user.hermes / "planted", 4242, 4242)
    assert "planted belongs to another user (4242)" in user("trust", "--yes", code=1).err
    assert user.untouched()


# -- homes of 0.1.0 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sqlite", "file", "moved"])
def test_a_home_of_0_1_0_is_taken_over(user, name):
    shutil.copytree(os.path.join(HOMES, name, "home"), user.hermes)
    with open(os.path.join(HOMES, name, "expected.json")) as file:
        expected = [job["job_id"] for job in json.load(file)["jobs"]]
    assert "baton trust" in user.refused("list")
    running = len([1 for each in user("trust", code=1).out.splitlines() if " running, agent " in each])
    assert running > 0
    user("trust", "--yes")
    assert [job["job_id"] for job in user("list", "--json").json] == expected
    assert user("pick", "--agent-session", "tmux:shell").text in expected
    assert user("register", "x", "--agent-session", "new").text not in expected


@pytest.fixture
def runner(user):
    """Start a process like the runner of the running session in a stored home, and make the home name it."""
    started = []

    def start(original):
        path = user.hermes / "agent-sessions.db"
        with sqlite3.connect(path) as connection:
            rows = connection.execute("SELECT name, record FROM sessions WHERE state = 'running'").fetchall()
            ((name, record),) = [(name, json.loads(record)) for name, record in rows]
            folder = f"{original}/sessions/{record['session_id']}"
            code = [sys.executable, "-c", "import time; time.sleep(600)", folder]
            started.append(subprocess.Popen(code, cwd="/", env={"HOME": user.env["HOME"]}))
            record |= {"pane_pid": started[-1].pid, "pane_started": started_at(started[-1].pid), "host": "here"}
            connection.execute("UPDATE sessions SET record = ? WHERE name = ?", (json.dumps(record), name))
        connection.close()
        runner = ProcessId(pid=record["pane_pid"], started=record["pane_started"])
        wait_until(lambda: folder in command_line(runner))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_copy_of_a_home_of_0_1_0_leaves_the_agents_of_the_original_alone(user, runner, tmp_path, in_place):
    """It has no id: the runner that lives says that it is a copy."""
    shutil.copytree(os.path.join(HOMES, "sqlite", "home"), user.hermes)
    shutil.copytree(user.hermes, tmp_path / "original")
    process = runner(tmp_path / "original")
    user.env["BATON_HOST"] = "here"
    assert "it is a copy of another home" in user("trust", "--yes", *(["--in-place"] if in_place else [])).out
    jobs = user("list", "--json").json
    assert {job["status"] for job in jobs} == {"pending", "completed", "error", "cancelled"}
    assert user("session", "list").out == ""
    user("monitor", "--once", MQTT_BROKER="127.0.0.1", MQTT_PORT="1")
    assert process.poll() is None


def test_a_home_that_was_moved_while_an_agent_worked_is_refused(user, runner, tmp_path):
    shutil.copytree(os.path.join(HOMES, "sqlite", "home"), user.hermes)
    process = runner(tmp_path / "gone")
    assert re.search(rf"session \S+ still runs \(process {process.pid}\)", user("trust", "--yes", code=1).err)
    assert user.untouched()


def test_a_registry_elsewhere_in_the_home_moves_with_it(user):
    user.carry()
    (user.hermes / "jobs").rename(user.hermes / "records")
    (user.hermes / "jobs").mkdir()
    (user.hermes / "jobs" / ".moved").write_text(f"file:{user.hermes}/records\n")
    user("trust", "--yes")
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]


def test_a_state_inside_the_folder_is_refused(user):
    user.carry()
    user.env["BATON_STATE_DIR"] = str(user.hermes / "state")
    assert "set BATON_STATE_DIR to another folder" in user("trust", "--yes", code=1).err


def test_a_registry_that_was_moved_away_needs_a_word_of_the_user(user, tmp_path):
    elsewhere = f"file:{tmp_path / 'elsewhere'}"
    user.carry()
    (user.hermes / "jobs").rename(tmp_path / "elsewhere")
    (user.hermes / "jobs").mkdir()
    (user.hermes / "jobs" / ".moved").write_text(elsewhere + "\n")
    assert f"confirm it with --registry {elsewhere}" in user("trust", "--yes", code=1).err
    assert user.untouched()
    with user.on_terminal("trust") as terminal:
        terminal.see(f"moved to {elsewhere}. Use that registry? [y/N] ")
        terminal.type("n\r")
        assert terminal.process.wait(20) == 1
    assert user.untouched()
    user("trust", "--yes", "--registry", elsewhere)
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB]
    (user.hermes / "jobs" / ".moved").write_text("postgresql://evil.example.com/x\n")
    assert [job["job_id"] for job in user("list", "--json").json] == [JOB], "the map decides"


def test_a_note_that_appears_in_a_home_is_followed_only_when_the_user_confirms_it(user, tmp_path):
    job = user("register", "x").text
    elsewhere = f"file:{tmp_path / 'elsewhere'}"
    user("registry", "migrate", "--to", elsewhere)
    assert user("list").out.startswith(job)
    user("registry", "migrate", "--to", f"sqlite:{os.path.realpath(user.hermes)}/jobs/registry.db")
    assert user("list").out.startswith(job)
    (user.hermes / "jobs" / ".moved").write_text(elsewhere)
    assert f"baton trust --registry {elsewhere}" in user.refused("list")
    assert "is trusted already" in user("trust", "--registry", elsewhere).err
    assert user("list").out == ""


def test_nothing_is_moved_under_a_process_of_0_1_0(user):
    shutil.copytree(os.path.join(HOMES, "sqlite", "home"), user.hermes)
    with open(user.hermes / "jobs" / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = user("trust", "--yes", code=1)
        assert refused.err.count("\n") == 1
        assert "another process holds" in refused.err
    assert user.untouched()
    path = str(user.hermes / "jobs" / "registry.db")
    holder = subprocess.Popen(["tail", "-f", path], stdout=subprocess.DEVNULL, cwd="/")
    try:
        fds = f"/proc/{holder.pid}/fd"
        wait_until(lambda: path in [os.readlink(f"{fds}/{fd}") for fd in os.listdir(fds)])
        assert f"process {holder.pid} (uses " in user("trust", "--yes", code=1).err
    finally:
        holder.kill()
        holder.wait()
    assert user.untouched()
    user.prefix = ["timeout", "60"]  # which starts baton and waits for it, as sudo does
    user("trust", "--yes")


# -- death in the middle -------------------------------------------------------------------------------------------------

_CHANGES = "mkdir,link,linkat,rename,unlink,rmdir,symlink,fsync,fdatasync"


def test_a_kill_at_any_step_loses_nothing(user, full):
    """Wherever `trust` is killed, the jobs are in the folder or in its home, and `trust` can be run again."""
    done = killed = 0
    steps = range(1, 200, 1 if full else 4)
    for step in steps:
        user.carry()
        user.prefix = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={_CHANGES}", "-e",
                       f"inject={_CHANGES}:signal=SIGKILL:when={step}"]  # fmt: skip
        code = user("trust", "--yes", code=None).code
        user.prefix = []
        killed += code == -signal.SIGKILL or code == 128 + signal.SIGKILL
        done += code == 0
        if os.path.isdir(user.hermes) and not os.path.islink(user.hermes) and user.homes():
            shutil.rmtree(user.hermes)  # it was recorded: what is left of the old folder is not used
        user("trust", "--yes")
        assert [job["job_id"] for job in user("list", "--json").json] == [JOB], f"killed at {step}"
        user("trust", "--remove")
        shutil.rmtree(user.state)
        if done:
            break
    assert killed > 3
    assert done


# -- copies of a folder in which an agent works ----------------------------------------------------------------------------


@pytest.fixture
def office(tmp_path):
    (tmp_path / "project").mkdir()
    with Office(tmp_path / "project", BATON_STATE_DIR=str(tmp_path / "state")) as office:
        yield office


@pytest.mark.parametrize(("how", "in_place"), [("-a", False), ("-aL", False), ("-a", True)])
def test_the_monitor_of_a_copy_leaves_the_agents_of_the_original_alone(office, tmp_path, how, in_place):
    if in_place:
        office.env["BATON_HOME"] = str(tmp_path / "project" / ".hermes")
    job = office.detached("touch started; sleep 600")
    wait_until((tmp_path / "project" / "started").exists)
    agents = office.agents()
    subprocess.run(["cp", how, tmp_path / "project", tmp_path / "copy"], check=True)
    copy = Baton(tmp_path / "copy", **office.env)
    copy.env.pop("BATON_HOME", None)
    shown = copy("trust", "--yes", *(["--in-place"] if in_place else []))
    assert "it is a copy of another home: its running jobs end, its sessions are archived" in shown.out
    assert copy("status", job).text == "cancelled"
    assert job in copy("list").out
    assert job in copy("explain", job).out
    assert copy("session", "list").out == ""
    (session,) = copy("session", "list", "--all", "--json").json
    assert (session["state"], session["pane_pid"]) == ("archived", None)
    assert copy("registry", "stats", "--json").json["unsent"] == 0
    copy("monitor", "--once")
    copy("cancel", job, code=None)
    copy("session", "stop", session["name"], "--mode", "hard", code=None)
    copy("monitor", "--once")
    assert not poll(lambda: office.agents().keys() < agents.keys(), 1.0)
    assert office.job(job)["status"] == "running"
    assert [each["name"] for each in office.sessions()] == [session["name"]]
    assert "runs in" in office("trust", "--remove", code=1).err
    office("cancel", job)
    wait_until(lambda: not office.agents())


def test_a_copy_is_made_while_the_original_goes_on(user, tmp_path):
    for number in range(3):
        user("register", f"job {number}")
    subprocess.run(["cp", "-a", user.folder, tmp_path / "copy"], check=True)
    loop = f"for i in 1 2 3 4 5 6 7 8; do {BATON} register more || exit; done"
    busy = subprocess.Popen(["sh", "-c", loop], cwd=user.folder, env=user.env, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(user("list").out.splitlines()) > 3)
    copy = Baton(tmp_path / "copy", **user.env)
    copy("trust", "--yes")
    assert busy.wait(60) == 0
    assert len(user("list").out.splitlines()) == 11
    assert 4 <= len(copy("list").out.splitlines()) <= 11
    assert copy("pick", code=None).code == user("pick", code=None).code == 0
