"""S5: secrets stay where they have to be, and nobody else may read what we write."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest

from support.brokers import Broker
from support.sessions import SessionDesk
from support.waiting import wait_until

PASSWORD = "canary-password-8d1f0c"
KEY = "canary-key-51ab77"
SETTING = "canary-setting-c0ffee"
REASON = "canary-reason-99bb31"
PROMPT = "canary-prompt-77aa10"
# What the agent does: it tries to say everything it knows.
SCRIPT = f"""
: {PROMPT}
baton publish --event progress --detail "key $OPENAI_API_KEY password $MQTT_PASSWORD"
baton publish --event progress --detail "as data" --data key="$OPENAI_API_KEY" --data where="$HOME/x"
baton get "$BATON_JOB_ID"; baton get --debug ffffffff; baton session show gpu
echo $$ > ready
until [ -e go ]; do sleep 0.05; done
"""


class Desk(SessionDesk):
    """Keeps everything that commands print."""

    said = ""

    @property
    def backend(self):
        return self.env.get("BATON_REGISTRY", "sqlite").partition(":")[0]

    def __call__(self, *arguments, **more):
        result = super().__call__(*arguments, **more)
        self.said += result.out + result.err
        return result


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(params=["sqlite", "file"])
def desk(request, tmp_path, open_umask):
    broker = Broker("mosquitto")
    secrets = {
        "MQTT_USERNAME": "me",
        "MQTT_PASSWORD": PASSWORD,
        "BATON_ALLOW_PLAINTEXT": "1",  # Mosquitto runs as a user of its own
        "OPENAI_API_KEY": KEY,
        "MY_SETTING": SETTING,
        "MY_TOKEN": REASON,
    }
    desk = Desk(tmp_path, **broker.env | secrets)
    if request.param == "file":
        desk.env["BATON_REGISTRY"] = f"file:{desk.home}/jobs"
    yield desk
    try:
        desk.close()
    finally:
        broker.remove()


def contents(*folders):
    """Path and content of every file."""
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)
                if stat.S_ISREG(os.lstat(path).st_mode):
                    with open(path, "rb") as file:
                        yield path, file.read()


def test_secrets_stay_where_they_have_to_be(desk, tmp_path, figure):
    wire = tmp_path / "wire"
    with wire.open("wb") as file:
        listening = subprocess.Popen(
            ["mosquitto_sub", "-p", desk.env["MQTT_PORT"], "-t", "#", "-v", "-q", "1"],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        shown, tokens = _live_through_everything(desk, tmp_path, wire)
    finally:
        listening.terminate()
        listening.wait(20)

    secrets = {"password": PASSWORD, "key": KEY, "setting": SETTING, "reason": REASON, "prompt": PROMPT} | {
        f"token {number}": token for number, token in enumerate(tokens)
    }
    home = os.path.realpath(desk.home)
    folders = ("jobs", "delegate_job_logs", "sessions", "outputs")
    jobs, logs, sessions, outputs = (os.path.join(home, name) + "/" for name in folders)

    def may_hold(name, path):
        if name.startswith("token"):
            return path.startswith(jobs)
        if name == "prompt":
            own = path.startswith(sessions) and os.path.basename(path) in (
                "launch.json",
                "prompt.sh",
                "last-screen.txt",
            )
            return path.startswith((jobs, outputs)) or own or (path.startswith(logs) and path.endswith("/meta.json"))
        if name == "key":  # of the agent: what it prints is the user's own
            return path.startswith(outputs) or (path.startswith(sessions) and path.endswith("/last-screen.txt"))
        # What somebody types as the reason is kept for people, in the record of the job too, and goes no further.
        return name == "reason" and (os.path.basename(path).startswith("agent-sessions.") or path.startswith(jobs))

    places = [(path, content) for path, content in contents(tmp_path, desk.tmux.folder) if path != str(wire)]
    places += [("the wire", wire.read_bytes()), *shown.items()]
    hits = [
        f"{name} in {place}"
        for place, content in places
        for name, secret in secrets.items()
        if secret.encode() in content and not may_hold(name, place)
    ]
    # `get` prints the record, and that has the prompt and the reason.
    printed = [name for name, secret in secrets.items() if secret in desk.said and name not in ("prompt", "reason")]
    hits += [f"{name} in what was printed" for name in printed]
    assert any(PROMPT.encode() in content for path, content in places if path.startswith(jobs)), "it was searched for"
    assert b"<secret>" in wire.read_bytes(), "the agent did try to say them"
    count = f"{len(secrets)} secrets, {len(places) + 1} places"
    figure(
        f"S5 secrets ({desk.backend})",
        f"{count}: hits {hits}",
        held=not hits,
    )


def _live_through_everything(desk, tmp_path, wire):
    """Jobs and sessions, well and badly; returns what others can see of us meanwhile, and the keys that were used."""
    tokens = set()

    def note_token(job):
        tokens.add(SessionDesk.__call__(desk, "get", job, "--show-secrets").json["auth_token"])

    job = desk.register(SCRIPT)
    note_token(job)
    desk("session", "create", "gpu", "--job", job, "--debug")
    note_token(job)
    wait_until((tmp_path / "ready").exists)
    pane = desk.row("gpu")["pane_id"]
    server = int(desk.tmux("display-message", "-p", "#{pid}"))
    shown = {
        "ps": subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=True).stdout,
        "tmux's environment": desk.tmux("show-environment", "-g").encode(),
        "tmux's environment of the session": desk.tmux("show-environment", "-t", "gpu").encode(),
        "tmux's command": desk.tmux(
            "list-panes", "-a", "-F", "#{pane_start_command} #{pane_title} #{window_name}"
        ).encode(),
        "tmux's options": desk.tmux("show-options", "-g").encode(),
    }
    for name in ("environ", "cmdline"):
        with open(f"/proc/{server}/{name}", "rb") as file:
            shown[f"tmux's own {name}"] = file.read()
    with open(f"/proc/{desk.row('gpu')['pane_pid']}/cmdline", "rb") as file:
        shown["the runner's command line"] = file.read()
    desk("session", "list")
    desk("session", "list", "--json")
    desk("session", "capture", "gpu", "--lines", "1000")
    desk("session", "create", "gpu", "--agent", "shell", "--debug", code=1)
    desk("session", "create", "other", "--job", job, "--debug", code=1)
    desk("config", "show", "--json")
    (tmp_path / "go").touch()
    desk.until_over(job)
    desk.until_state("gpu", "terminated")

    desk("session", "create", "talk", "--agent", "shell")
    desk("session", "send", "talk", "-", stdin=f": {KEY}")
    shown["tmux's buffers"] = desk.tmux("list-buffers").encode()
    assert pane
    second = desk.register(f": {PROMPT}; sleep 600", "--max-attempts", "2")
    desk("session", "create", "second", "--job", second)
    note_token(second)
    desk("session", "stop", "second", "--mode", "hard", "--reason", f"no more {REASON}")
    desk("session", "stop", "talk", "--reason", "enough")
    for verb in (["logs", job], ["logs", job, "--json"], ["logs", job, "--verify"], ["list"], ["list", "--json"]):
        desk(*verb)
    desk("subscribe", "--job", job, "--json", code=None)
    desk("publish", "--job", job, "--event", "progress", "--debug", code=1)
    third = desk.register("x")
    note_token(third)
    away = {"MQTT_PORT": "1", "MQTT_BROKER": "127.0.0.1"}
    desk("publish", "--job", third, "--event", "started", "--attempts", "1", "--debug", code=None, **away)
    desk(
        "publish",
        "--job",
        third,
        "--event",
        "progress",
        "--require-broker",
        "--attempts",
        "1",
        "--debug",
        code=None,
        **away,
    )
    desk("doctor", code=None)
    wait_until(lambda: wire.read_bytes().count(b'"event":"error"') >= 1, what="the last event on the wire")
    return shown, tokens


def test_nobody_else_may_read_what_we_write(desk, tmp_path, figure):
    """Whatever the umask. The broker is the local one, which is ours too."""
    del desk.env["MQTT_BROKER"], desk.env["MQTT_PORT"]
    before = set(os.listdir(tmp_path))
    try:
        job = desk.register("echo said; sleep 600")
        desk("session", "create", "gpu", "--job", job)
        desk("session", "stop", "gpu", "--reason", "enough")
        desk("session", "resume", "gpu")
        desk("session", "create", "other", "--agent", "shell")
        desk("session", "stop", "other", "--mode", "hard")
        desk("publish", "--job", desk.register("y"), "--event", "started")
        desk("agent", "cleanup", code=None)
        checked, wrong = 0, []
        for top in set(os.listdir(tmp_path)) - before:
            for place, folders, names in os.walk(tmp_path / top):
                for path in (place, *(os.path.join(place, name) for name in (*folders, *names))):
                    mode = os.lstat(path).st_mode
                    checked += 1
                    if stat.S_ISLNK(mode):
                        continue  # the mode of a link means nothing; what it leads to is looked at
                    if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600):
                        wrong.append(f"{oct(stat.S_IMODE(mode))} {os.path.relpath(path, tmp_path)}")
    finally:
        desk("broker", "down", code=None)
    # The parents that a user has anyway, such as ~/.local, are ours only when we made them.
    figure(
        f"S5 modes under umask 000 ({desk.backend})",
        f"{checked} files and folders, not private: {sorted(set(wrong))[:9]}",
        held=not wrong,
    )
