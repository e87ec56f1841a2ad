"""`baton session`, as a person types it, with the `shell` agent in real tmux."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from baton.sessions.ending import end_session
from baton.sessions.inventory import Inventory
from baton.sessions.session import State
from support.command import BATON, interruptible
from support.homes import settings_in
from support.small_disk import SmallDisk
from support.terminal import Terminal
from support.waiting import wait_until


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def written(path):
    """What a process of the session writes into a file, once it has."""
    return wait_until(lambda: os.path.exists(path) and open(path).read().endswith("\n") and open(path).read().strip())


# -- from its beginning to its end ---------------------------------------------------------------------------


def test_a_session_is_created_talked_to_stopped_and_resumed(desk, tmp_path):
    session = desk.create("gpu")
    assert (session["state"], session["agent"], session["workdir"]) == ("running", "shell", str(tmp_path))
    assert desk("session", "list").text.split("\t")[:4] == ["gpu", "running", "shell", "-"]
    assert desk.archived() == {}, "what is running is not in the archive"

    desk("session", "send", "gpu", "echo $((6 * 7))-is-it")
    assert "42-is-it" in desk.until_shown("gpu", "42-is-it")
    assert "42-is-it" in desk("session", "capture", "gpu", "--json").json["lines"]

    stopped = desk("session", "stop", "gpu", "--reason", "enough\nfor today")
    assert stopped.text == "gpu\tstopped"
    assert re.fullmatch(r"ended 1 process: sh \(\d+\)\n", stopped.err)
    assert desk("session", "list").err == "no running sessions; --all shows ended ones\n"
    assert desk("session", "list", "--all").text.split("\t")[-1] == "enough for today"
    entry = desk.archived()["gpu"]
    assert (entry["state"], entry["reason"], entry["exit"]) == ("stopped", "enough for today", "signal SIGHUP")
    assert entry["session_id"] == session["session_id"]
    assert not desk.processes() or wait_until(lambda: not desk.processes(), what="everything has ended")

    again = desk("session", "resume", "gpu", "--json")
    assert "keeps no conversation: it starts again" in again.err
    assert again.json["generation_id"] == session["generation_id"]
    assert again.json["session_id"] == session["session_id"]
    assert desk.archived() == {}, "what runs again is taken out of the archive"
    assert (desk.state("gpu"), desk.show("gpu")["alive"]) == ("running", True)


def test_each_way_of_stopping_has_its_state(desk):
    for mode, state in (("graceful", "stopped"), ("hard", "terminated"), ("soft", "archived")):
        desk.create(mode)
        wait_until(lambda mode=mode: desk("session", "capture", mode).text)
        told = desk("session", "stop", mode, "--mode", mode, "--json").json
        assert told["state"] == state
        assert bool(told["ended"]) == (mode != "soft")
        assert desk.archived()[mode]["state"] == state
        assert f"is {state} already" in desk.refused("session", "stop", mode)
        if mode == "graceful":  # its runner had time to keep what it showed
            assert "this is its last screen" in desk("session", "capture", mode).err
        else:
            assert f"is {state}; `baton session resume {mode}`" in desk.refused("session", "capture", mode)
    assert desk.tmux("list-sessions", "-F", "#{session_name}") == "soft", "only that one is left alone"


def test_graceful_may_be_said_as_the_seeds_say_it(desk):
    desk.create("gpu")
    assert "not allowed with" in desk.refused("session", "stop", "gpu", "--graceful", "--mode", "hard", code=64)
    for words in (["session", "show", "gpu"], ["session", "list", "--json"], ["agent", "list", "--json"]):
        assert not re.search(r"\.\d{7,9}Z", desk(*words).out), "times have at most microseconds"
    told = desk("session", "stop", "gpu", "--graceful", "--reason", "for now", "--json").json
    assert (told["state"], told["reason"]) == ("stopped", "for now")


def test_a_session_is_seen_and_typed_into_from_a_terminal(desk):
    desk.create("gpu", PS1="prompt> ")
    with Terminal([BATON, "session", "attach", "gpu"], cwd=desk.folder, env=desk.env) as terminal:
        terminal.see("prompt>")
        terminal.type("echo $((40 + 2))-typed\r")
        terminal.see("42-typed")
        terminal.type("\x02", "d")  # tmux's own way out
        terminal.see("detached")
        assert terminal.end() == 0
    assert desk.state("gpu") == "running"
    assert "42-typed" in desk.screen("gpu")
    with Terminal([BATON, "session", "attach", "gpu", "--read-only"], cwd=desk.folder, env=desk.env) as terminal:
        terminal.see("42-typed")
        terminal.type("echo $((40 + 3))-typed\r")
        desk("session", "send", "gpu", "echo $((40 + 4))-sent")
        terminal.see("44-sent")
    assert "43-typed" not in desk.screen("gpu")
    assert "needs a terminal" in desk.refused("session", "attach", "gpu", code=64)


def test_ctrl_c_is_the_agents_and_ctrl_z_suspends_nothing_for_good(desk, tmp_path):
    got = tmp_path / "got"
    desk.create("gpu", "--prompt", f"trap 'echo interrupted >> {got}' INT; echo ready; while :; do sleep 0.05; done")
    desk.until_shown("gpu", "ready")
    with Terminal([BATON, "session", "attach", "gpu"], cwd=desk.folder, env=desk.env) as terminal:
        terminal.see("ready")
        terminal.type("\x1a")  # Ctrl-Z: nothing is there to bring it back with `fg`
        terminal.type("\x03")
        assert written(got) == "interrupted"
        terminal.type("\x02", "d")
        terminal.end()
    assert desk.state("gpu") == "running"


def test_an_interactive_shell_has_job_control_and_the_terminal_to_itself(desk):
    desk.create("gpu", SHELL="/bin/bash")
    with Terminal([BATON, "session", "attach", "gpu"], cwd=desk.folder, env=desk.env) as terminal:
        terminal.type("echo $((40 + 2))-ready\r")
        terminal.see("42-ready")
        terminal.type("sleep 1000\r")
        terminal.see("sleep 1000")
        wait_until(lambda: any("sleep 1000" in each.command for each in desk.processes()))
        terminal.type("\x1a")
        terminal.see("Stopped")
        terminal.type("bg; jobs\r")
        terminal.see("Running")
        terminal.type("stty -a | head -1\r")
        terminal.see("columns 100")
    ended = {each["command"] for each in desk("session", "stop", "gpu", "--json").json["ended"]}
    assert ended == {"bash", "sleep"}, "no call that the runner is just making"


def test_the_agent_gets_the_environment_of_whoever_made_the_session(desk, tmp_path):
    desk.create(
        "gpu", "--prompt", "env > env.txt; tty > tty.txt", MY_OWN="with spaces\nand lines", BATON_JOB_ID="0badcafe"
    )
    session = desk.until_state("gpu", "terminated")
    told = (tmp_path / "env.txt").read_text()
    assert "\nMY_OWN=with spaces\nand lines\n" in "\n" + told
    assert f"\nBATON_SESSION_ID={session['session_id']}\n" in "\n" + told
    assert f"\nBATON_HOME={os.path.realpath(desk.home)}\n" in "\n" + told
    assert "BATON_JOB_ID" not in told, "that was about another session"
    assert (tmp_path / "tty.txt").read_text().startswith("/dev/pts/")


def test_a_session_that_tmux_has_lost_is_shown_as_lost_and_can_be_stopped(desk):
    session = desk.create("gpu")
    os.kill(session["pane_pid"], signal.SIGKILL)
    wait_until(lambda: not alive(session["pane_pid"]))
    assert desk("session", "list").text.split("\t")[:2] == ["gpu", "lost"]
    assert desk.show("gpu")["alive"] is False
    assert "is gone from tmux" in desk.refused("session", "send", "gpu", "x")
    assert "is running already; stop it" in desk.refused("session", "create", "gpu", "--agent", "shell")
    assert desk("session", "stop", "gpu").text == "gpu\tstopped"
    wait_until(lambda: not desk.processes(), what="what it left has ended")
    desk.create("gpu")


# -- what is kept --------------------------------------------------------------------------------------------


def test_in_a_server_that_keeps_dead_panes_every_verb_works_and_a_stopped_session_can_be_resumed(desk):
    desk.tmux.start("mine")
    desk.tmux("set-option", "-g", "remain-on-exit", "on")
    other = desk.tmux.start("dead")
    os.kill(other, signal.SIGKILL)
    wait_until(lambda: "1" in desk.tmux("list-panes", "-a", "-F", "#{pane_dead}"))
    desk.create("gpu")
    assert desk.row("gpu")["state"] == "running"
    assert "running" in desk("session", "list").out
    assert desk.show("gpu")["alive"] is True
    desk("monitor", "--once")
    assert "gone from tmux" not in desk("doctor", code=None).out
    job_id = desk("submit", "--detach", "true", "--agent", "shell").text
    assert desk.until_over(job_id)["status"] == "completed"
    desk("session", "stop", "gpu")
    assert "gpu" not in desk.tmux("list-sessions", "-F", "#{session_name}").split()
    desk("session", "resume", "gpu")
    assert desk.row("gpu")["state"] == "running"
    assert "dead" in desk.tmux("list-sessions", "-F", "#{session_name}").split(), "what is not baton's stays"


def test_the_archive_keeps_the_one_before_and_what_somebody_broke(desk):
    path = os.path.join(desk.home, "agent-sessions.yaml")
    for name in ("one", "two"):
        desk.create(name, "--prompt", ":")
        desk.until_state(name, "terminated")
    assert set(desk.archived()) == {"one", "two"}
    with open(path + ".bak", encoding="utf-8") as file:
        head = file.readline()  # shows that the file is baton's
        assert "name: one" in (before := file.read())
        assert "name: two" not in before
    broken = [
        head + content
        for content in (
            "sessions: {not: [a list",
            "- 1\n",
            "sessions: text\n",
            "\x00\xff",
            "sessions:\n- name: mine\n  note: kept\n",
        )
    ]
    for number, content in enumerate(broken):
        with open(path, "w", encoding="latin-1") as file:
            file.write(content)
        desk.create(f"after-{number}", "--prompt", ":")
        desk.until_state(f"after-{number}", "terminated")
        assert f"after-{number}" in desk.archived()
    aside = []
    for name in os.listdir(desk.home):
        if ".damaged-" in name:
            with open(os.path.join(desk.home, name), encoding="latin-1") as file:
                aside.append(file.read())
    assert sorted(aside) == sorted(broken[:-1]), "each was set aside, whole"
    assert desk.archived()["mine"] == {"name": "mine", "note": "kept"}, "what can be read is kept, whoever wrote it"
    assert desk("session", "list", "--all").out.count("terminated") == 7, "the inventory never depended on it"


def test_a_manifest_and_a_directory_record_lead_to_the_session(desk):
    session = desk.create("gpu")
    with open(os.path.join(desk.home, "sessions", session["session_id"], "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    assert manifest["pane_pid"] == session["pane_pid"]
    assert alive(manifest["pane_pid"])
    assert (manifest["session_name"], manifest["socket"]) == ("gpu", desk.tmux.socket)
    record = desk("agent", "resolve", "gpu", "--control", "--json").json
    assert record["generation_id"] == session["generation_id"] == manifest["generation_id"]
    assert record["terminal"]["session_name"] == "gpu"
    desk("session", "stop", "gpu")
    assert "no live agent" in desk.refused("agent", "resolve", "gpu")
    desk("session", "resume", "gpu")
    assert desk("agent", "resolve", "gpu", "--json").json["generation_id"] == session["generation_id"]
    desk("session", "stop", "gpu", "--mode", "hard")
    assert "no live agent" in desk.refused("agent", "resolve", "gpu")
    desk.create("gpu", "--prompt", ":")
    desk.until_state("gpu", "terminated")
    assert "no live agent" in desk.refused("agent", "resolve", "gpu")


# -- names ---------------------------------------------------------------------------------------------------


def test_two_that_create_one_name_at_once_make_one_session(desk, full):
    for number in range(40 if full else 8):
        argv = [BATON, "session", "create", f"n{number}", "--agent", "shell"]
        crew = [
            subprocess.Popen(
                argv, cwd=desk.folder, env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(3)
        ]
        told = [(each.returncode, out, err) for each in crew for out, err in [each.communicate(timeout=60)]]
        told.sort()
        assert [code for code, _, _ in told] == [0, 1, 1], told
        for _, out, err in told[1:]:
            assert out == ""
            assert f"session 'n{number}' is running already" in err
        desk("session", "send", f"n{number}", f"echo $((1000 + {number}))-is-well")
        desk.until_shown(f"n{number}", f"{1000 + number}-is-well")
        assert len(os.listdir(os.path.join(desk.home, "sessions"))) == number + 1, "the others left nothing"
        desk("session", "stop", f"n{number}", "--mode", "hard")


def test_a_name_that_tmux_has_already_is_refused_and_left_alone(desk):
    pid = desk.tmux.start("gpu")
    assert "has a session of that name already" in desk.refused("session", "create", "gpu", "--agent", "shell")
    assert alive(pid)
    assert "there is no session 'gpu'" in desk.refused("session", "show", "gpu")
    assert "no live agent" in desk.refused("agent", "resolve", "gpu")
    assert os.listdir(os.path.join(desk.home, "sessions")) == []


def test_a_failed_creation_gives_the_name_back_to_the_session_that_had_it(desk):
    """One that is archived still has its tmux session: another cannot be made, and the first must not be forgotten."""
    first = desk.create("gpu")
    desk("session", "stop", "gpu", "--mode", "soft", "--reason", "mine again")
    desk.refused("session", "create", "gpu", "--agent", "shell")
    kept = desk.show("gpu")
    assert (kept["session_id"], kept["state"], kept["reason"]) == (first["session_id"], "archived", "mine again")
    assert list(desk.archived()) == ["gpu"]
    assert os.listdir(os.path.join(desk.home, "sessions")) == [first["session_id"]]


def test_a_kept_conversation_is_not_replaced_unasked(desk, tmp_path):
    (tmp_path / "baton.toml").write_text(
        '[agents.parrot]\ninteractive = ["sh", "-c", "echo new {conversation_id}; exec sleep 600"]\n'
        'resume = ["sh", "-c", "echo again {conversation_id}; exec sleep 600"]\nchooses_id = true\n'
    )
    desk.env["BATON_CONFIG"] = str(tmp_path / "baton.toml")
    session = desk.create("gpu", agent="parrot")
    desk.until_shown("gpu", f"new {session['conversation_id']}")
    assert desk("session", "stop", "gpu", "--capture-id").text == session["conversation_id"]
    refusal = desk.refused("session", "create", "gpu", "--agent", "parrot")
    assert "was stopped with its conversation kept: `baton session resume gpu`, or --replace" in refusal
    desk("session", "resume", "gpu")
    desk.until_shown("gpu", f"again {session['conversation_id']}")
    desk("session", "stop", "gpu")
    other = desk.create("gpu", "--replace", agent="parrot")
    assert other["conversation_id"] != session["conversation_id"]
    assert other["generation_id"] != session["generation_id"]
    assert "is running already" in desk.refused("session", "create", "gpu", "--agent", "parrot", "--replace")
    desk.create("plain")
    assert "shell in session 'plain' keeps no conversation" in desk.refused("session", "stop", "plain", "--capture-id")
    assert desk.state("plain") == "running"


@pytest.mark.parametrize("way", ["create", "resume"])
def test_a_name_is_free_once_tmux_has_closed_the_session_that_ended(desk, tmp_path, way):
    """A runner records the end a moment before it ends itself: here when tmux has been asked once for its panes."""
    first = desk.create("gpu")
    settings = settings_in(desk.folder, desk.env)
    inventory = Inventory(settings)
    end_session(settings, inventory, inventory.get("gpu"), State.TERMINATED, reason="the agent has ended")
    late = tmp_path / "late"
    late.mkdir()
    (late / "tmux").write_text(
        f"""#!/bin/sh
        {shutil.which("tmux")} "$@"
        code=$?
        case "$*" in *list-panes*) kill -9 {first["pane_pid"]} 2>/dev/null;; esac
        exit $code
        """
    )
    (late / "tmux").chmod(0o755)
    path = f"{late}{os.pathsep}{desk.env.get('PATH', os.environ['PATH'])}"
    desk("session", way, "gpu", *(("--agent", "shell") if way == "create" else ()), PATH=path)
    assert desk.state("gpu") == "running"
    assert desk.row("gpu")["pane_pid"] != first["pane_pid"]


def test_resume_says_what_it_cannot_do(desk, tmp_path):
    assert "there is no session 'gpu'" in desk.refused("session", "resume", "gpu")
    work = tmp_path / "work"
    work.mkdir()
    desk.create("gpu", "--workdir", str(work))
    assert "is running; `baton session attach gpu`" in desk.refused("session", "resume", "gpu")
    desk("session", "stop", "gpu")
    work.rmdir()
    assert f"{work} of session 'gpu' is gone" in desk.refused("session", "resume", "gpu")
    assert desk.state("gpu") == "stopped"
    work.mkdir()
    desk.tmux.start("gpu")
    assert "has a session of that name already" in desk.refused("session", "resume", "gpu")
    assert desk.state("gpu") == "stopped"
    assert desk.archived()["gpu"]["state"] == "stopped", "what was taken out of the archive is back"


# -- what is refused -----------------------------------------------------------------------------------------


def test_what_cannot_be_made_is_refused_before_anything_is_there(desk, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tmux").write_text("#!/bin/sh\necho tmux 2.8\n")
    (tmp_path / "bin" / "tmux").chmod(0o755)
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "sh").symlink_to("/bin/sh")
    cases = [
        (["gpu", "--agent", "nobody"], {}, "there is no agent 'nobody'; there are claude-code, "),
        (["gpu", "--agent", "codex"], {}, "needs the program 'codex', which is not on your PATH: npm install -g @openai"),
        (["gpu", "--agent", "shell", "--workdir", "gone"], {}, f"workdir {tmp_path}/gone is not a folder"),
        (["gpu", "--agent", "shell", "--workdir", "file"], {}, f"workdir {tmp_path}/file is not a folder"),
        (["gpu", "--agent", "shell", "--yolo"], {}, "--yolo means nothing for it"),
        (["g p u", "--agent", "shell"], {}, "session name must be 1 to 64"),
        (["gpu", "--agent", "shell", "--job", "0badcafe"], {}, "no job 0badcafe"),
        (["gpu", "--agent", "shell"], {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}, f"tmux 2.8 at {tmp_path}/bin/tmux is too old: baton needs tmux 3.2"),
        (["gpu", "--agent", "shell"], {"PATH": f"{tmp_path}/only"}, "tmux is not installed"),
    ]  # fmt: skip
    for arguments, env, why in cases:
        code = 64 if re.search("there is no agent|workdir|session name", why) else 1
        assert why in desk.refused("session", "create", *arguments, code=code, **env), arguments
    assert "needs a task" in desk.refused("session", "create", "gpu", "--agent", "shell", "--headless", code=64)
    assert desk("session", "list", "--all").out == ""
    assert not os.path.exists(os.path.join(desk.home, "sessions"))
    assert not os.path.exists(desk.tmux.socket)


def test_a_prompt_that_is_no_text_is_refused(desk):
    for content, why in ((b"a\0b", "prompt must not contain"), (b"\xff\xfe", "is not valid UTF-8")):
        for verb in (("create", "gpu", "--agent", "shell"), ("resume", "gpu")):
            assert why in desk.refused("session", *verb, "--prompt", "-", stdin=content, code=64)
    desk.create("gpu")
    for content, why in ((b"a\0b", "text must not contain"), (b"\xff\xfe", "is not valid UTF-8")):
        assert why in desk.refused("session", "send", "gpu", "-", stdin=content, code=64)
    assert "would end the paste" in desk.refused("session", "send", "gpu", "-", stdin="a\x1b[201~b", code=64)


def test_an_agent_that_does_not_begin_leaves_nothing(desk, tmp_path):
    bad = tmp_path / "bin" / "bad"
    bad.parent.mkdir()
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    (tmp_path / "baton.toml").write_text(f'[agents.bad]\ninteractive = ["{bad}"]\n')
    desk.env["BATON_CONFIG"] = str(tmp_path / "baton.toml")
    assert "could not be started: No such file" in desk.refused("session", "create", "gpu", "--agent", "bad")
    assert desk("session", "list", "--all").out == ""
    assert desk.archived() == {}
    assert os.listdir(os.path.join(desk.home, "sessions")) == []
    assert "no live agent" in desk.refused("agent", "resolve", "gpu")
    job = desk.register("x", agent="bad")
    assert "could not be started" in desk.refused("session", "create", "gpu", "--job", job)
    assert desk.until_over(job)["status"] == "error"
    assert [event for event, _ in desk.story(job)] == ["error"]


@pytest.mark.as_root
def test_a_disk_that_is_full_or_read_only_is_one_clear_error(desk, tmp_path):
    with SmallDisk(str(tmp_path / "disk"), 512) as disk:
        home = {"BATON_HOME": os.path.join(disk.folder, "home")}
        desk("register", "x", **home)
        for trouble, why in (
            (disk.full, "No space left|disk is full|disk I/O error"),
            (disk.read_only, "ead-only|readonly"),
        ):
            with trouble():
                assert re.search(why, desk.refused("session", "create", "gpu", "--agent", "shell", **home))
            assert desk("session", "list", "--all", **home).out == ""
            assert "no live agent" in desk.refused("agent", "resolve", "gpu", **home)
            left = os.path.join(disk.folder, "home", "sessions")
            assert not os.path.exists(left) or os.listdir(left) == []
        assert not desk.processes()
        desk.create("gpu", **home)
        with disk.full():
            assert re.search("No space left|disk", desk("session", "stop", "gpu", code=None, **home).err)
        desk("session", "stop", "gpu", code=None, **home)
        assert desk("session", "show", "gpu", **home).json["state"] in ("stopped", "terminated")


@pytest.mark.parametrize("after", ["inventory", "pane", "agent"])
def test_ctrl_c_during_create_undoes_it(desk, tmp_path, after):
    """Interrupted while tmux is asked, after it has answered, or while the agent is awaited."""
    where = {"inventory": "new-session", "pane": "display-message", "agent": None}[after]
    reached = tmp_path / "reached"
    program = tmp_path / "bin" / "tmux"
    program.parent.mkdir()
    real = next(path for folder in os.environ["PATH"].split(":") if os.path.exists(path := f"{folder}/tmux"))
    program.write_text(
        f'#!/bin/sh\n{real} "$@"\ncode=$?\n'
        f'case " $* " in *" {where} "*) echo > {reached}; exec sleep 600;; esac\nexit $code\n'
    )
    program.chmod(0o755)
    # For the last: a login shell's startup that never ends is not what keeps `create`; a runner that does not begin is.
    env = desk.env | {"PATH": f"{program.parent}:{desk.env['PATH']}"}
    argv = [BATON, "session", "create", "gpu", "--agent", "shell"]
    creating = subprocess.Popen(
        argv, cwd=desk.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=interruptible
    )
    if where is None:
        runner = wait_until(desk.runners)[0]
        os.kill(runner.pid, signal.SIGSTOP)
        # It may be stopped before or after the agent began: in both cases there is nothing afterwards, or a session.
    else:
        wait_until(reached.exists)
    creating.send_signal(signal.SIGINT)
    out, err = creating.communicate(timeout=60)
    if where is None:
        with suppress(ProcessLookupError):  # it was woken to be ended
            os.kill(runner.pid, signal.SIGCONT)
        if creating.returncode == 0:
            return
    assert (creating.returncode, out, err) == (130, b"", b"")
    assert desk("session", "list", "--all").out == ""
    assert "no live agent" in desk.refused("agent", "resolve", "gpu")
    wait_until(lambda: not desk.processes(), "the runner noticed", 5)
    assert os.listdir(os.path.join(desk.home, "sessions")) == []
    desk.create("gpu")


def test_a_creation_that_is_killed_leaves_nothing_that_stop_does_not_end(desk, full):
    """At any moment: before tmux has the session, while its runner waits for the word, or after that."""
    for number in range(30 if full else 8):
        creating = subprocess.Popen(
            [BATON, "session", "create", "gpu", "--agent", "shell"], cwd=desk.folder, env=desk.env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(0.06 + 0.02 * (number % 10))  # there is no condition for "anywhere"
        creating.kill()
        creating.wait()
        if desk("session", "list").out:
            desk("session", "stop", "gpu")
        wait_until(lambda: not desk.processes(), "everything has ended", 8)
        assert re.search("no live agent|there is no record", desk.refused("agent", "resolve", "gpu"))
    desk.create("gpu")


def at_once(desk, *arguments, count=3):
    """Exit codes and what was said on stderr, of several who do the same at once; those that succeeded first."""
    crew = [
        subprocess.Popen([BATON, *arguments], cwd=desk.folder, env=desk.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]  # fmt: skip
    return sorted((each.returncode, err) for each in crew for _, err in [each.communicate(timeout=60)])


def test_several_who_stop_or_resume_one_session_at_once(desk):
    session = desk.create("gpu")
    for _ in range(3):
        stopped = at_once(desk, "session", "stop", "gpu")
        assert stopped[0][0] == 0, stopped
        assert all(code == 0 or "is stopped already" in err for code, err in stopped), stopped
        assert desk.state("gpu") == "stopped"
        assert list(desk.archived()) == ["gpu"]
        wait_until(lambda: not desk.processes(), what="everything has ended")
        resumed = at_once(desk, "session", "resume", "gpu")
        assert [code for code, _ in resumed] == [0, 1, 1], resumed
        assert all("is running" in err or "was changed by another process" in err for _, err in resumed[1:]), resumed
        assert desk.show("gpu")["alive"]
        assert desk("agent", "resolve", "gpu", "--json").json["generation_id"] == session["generation_id"]
