"""Rows about the work itself: turns, background work, tools, processes."""

from __future__ import annotations

import os
import signal
import subprocess

from agents.homes import ASK, DENY
from support.waiting import poll
from truth.catalogue import CLAUDE, HEADLESS, TERMINAL, row
from truth.judge import WITHIN_SEC
from truth.programs import ALL
from truth.scripted_model import Say, bash, cue, read, subagent
from truth.stage import IDLE, IDLE_SEC, LIMIT_WITHIN_SEC, Stage


@row("T1", TERMINAL, HEADLESS, agents=ALL)
def _works(on: Stage) -> None:
    """works, result there"""
    on.begin([[bash("echo x > out.txt; sleep 3")], [Say("I wrote it.")]], "--expect", "out.txt")
    on.completes(on.asked("s", 1, answered=True).answered_at)
    if on.program.agent == CLAUDE:
        on.expect_usage()


@row("T2", TERMINAL, HEADLESS, agents=ALL)
def _file_missing(on: Stage) -> None:
    """says done, file missing"""
    reader = on.begin([[Say("Done.")], [Say("Done, really.")], [Say("It is done.")]], "--expect", "out.txt")
    on.expect("working", "idle", at=on.asked("s", 0, answered=True).answered_at)
    on.reach(lambda: any("out.txt is missing" in asked.text for asked in on.model.log), "the refusal in the prompt")
    on.reach(lambda: reader.ended, "the end", 60)
    on.fails("out.txt", at=on.answered_last())


@row("T3", TERMINAL)
def _background_shell(on: Stage) -> None:
    """ends its turn while a background shell still runs"""
    on.begin(
        [[bash("true; sleep 9; echo x > late.txt", background=True)], [Say("I started it.")], [Say("It is over.")]]
    )
    on.expect("working", at=on.asked("s", 1, answered=True).answered_at, cause="background")
    on.expect("working", at=on.file("late.txt"))
    on.completes(on.asked("s", 2, answered=True).answered_at)
    on.require((on.work / "late.txt").read_text() == "x\n", "the shell was killed")


@row("T4", TERMINAL, HEADLESS)
def _background_result(on: Stage) -> None:
    """the same with --expect of the shell's file"""
    script = [[bash("true; sleep 9; echo x > late.txt", background=True)], [Say("I started it.")], [Say("It is over.")]]
    on.begin(script, "--expect", "late.txt")
    on.expect("working", at=on.asked("s", 1, answered=True).answered_at, cause="background")
    on.expect("working", at=on.file("late.txt"))
    on.completes(on.asked("s", 2, answered=True).answered_at)


@row("T5", TERMINAL, HEADLESS)
def _background_subagent(on: Stage) -> None:
    """ends its turn while a background subagent works"""
    on.model.scripts["sub"] = [[bash("true; sleep 7; echo x > sub.txt")], [Say("My part is done.")]]
    on.begin([[subagent(cue("sub"), background=True)], [Say("It works on it.")], [Say("All is done.")]])
    on.expect("working", at=on.asked("s", 1, answered=True).answered_at, cause="background|Bash|subagent")
    on.expect("working", at=on.file("sub.txt"))
    on.completes(on.asked("s", 2, answered=True).answered_at)
    on.require(len([asked for asked in on.model.log if asked.script == "s"]) == 3, "it did not end once")


@row("T7", HEADLESS)
def _headless_background_shell(on: Stage) -> None:
    """headless: the program itself kills the background shell after its result"""
    on.begin(
        [[bash("true; sleep 12; echo x > late.txt", background=True)], [Say("I started it.")], [Say("It is over.")]]
    )
    on.expect("working", at=on.asked("s", 1, answered=True).answered_at, cause="background")
    on.expect("working", at=on.file("late.txt"))
    on.completes(on.asked("s", 2, answered=True).answered_at)


@row("T22", TERMINAL, HEADLESS, agents=ALL)
def _quiet_tool(on: Stage) -> None:
    """quiet tool longer than the idle limit"""
    on.begin([[bash("true; sleep 19; echo x > out.txt")], [Say("I wrote it.")]], "--idle-timeout", IDLE)
    started, within = on.asked("s", 0, answered=True).answered_at, WITHIN_SEC + on.program.asks_sec
    on.expect("working", at=started, cause=on.program.tool, within=within)
    on.working_from("s", 1)
    on.completes(
        max(on.asked("s", 1, answered=True).answered_at, on.file("out.txt")), within=4.0
    )  # Codex goes on without it


@row("T23", TERMINAL, HEADLESS)
def _endless_tool(on: Stage) -> None:
    """a tool that never returns"""
    on.begin([[bash("touch begun; sleep 4321")]], "--tool-timeout", "5", "--idle-timeout", IDLE)
    begun = on.file("begun")
    on.expect("stalled", at=begun + 5, cause="Bash")
    on.fails("Bash", at=begun + 5 + IDLE_SEC, within=LIMIT_WITHIN_SEC)


def _killed(on: Stage, kill, *, is_over=lambda: True) -> None:
    # Claude ends its tools first, and asks the model what to do: the answer is there before its own end.
    on.begin([[bash("touch begun; sleep 4321")], [Say("The command was killed.")]])
    on.file("begun")
    on.stay()
    kill()
    on.expect("working", "idle", "error")  # Claude may end its turn first
    on.reach(is_over, "the end of the program")  # Codex takes some seconds after SIGTERM
    on.expect("error", within=5.0)
    on.ends(30)


@row("T24", TERMINAL, HEADLESS, name="kill9", agents=ALL)
def _kill9(on: Stage) -> None:
    """agent killed (-9)"""
    _killed(on, lambda: os.kill(on.agent_pid(), signal.SIGKILL))


@row("T24", TERMINAL, name="kill15", agents=ALL)
def _kill15(on: Stage) -> None:
    """agent killed (-15)"""
    killed = []

    def kill() -> None:
        killed.append(on.agent_pid())
        os.kill(killed[0], signal.SIGTERM)

    _killed(on, kill, is_over=lambda: not os.path.exists(f"/proc/{killed[0]}"))


@row("T24", TERMINAL, name="pane", agents=ALL)
def _kill_pane(on: Stage) -> None:
    """pane killed"""
    _killed(on, lambda: on.tmux("kill-pane", "-t", "=s:"))


@row("T24", TERMINAL, name="server", agents=ALL)
def _kill_server(on: Stage) -> None:
    """tmux server killed"""
    _killed(on, lambda: on.tmux("kill-server"))


def _lost(on: Stage, kill) -> None:
    on.begin([[bash("touch begun; sleep 4321")], [Say("The command was killed.")]])
    on.file("begun")
    on.stay()
    kill()
    on.fails("killed|gone|ended", within=2.0)
    text = on.baton("explain", on.readers[0].job).text
    on.require("baton retry" in text, f"the next command is not named: {text[-300:]}")


@row("T56", TERMINAL, HEADLESS, name="runner")
def _runner_killed(on: Stage) -> None:
    """the runner is killed, no monitor runs"""
    _lost(on, lambda: os.kill(on.runner_pid(), signal.SIGKILL))


@row("T56", TERMINAL, HEADLESS, name="session")
def _session_killed(on: Stage) -> None:
    """its tmux session is killed, no monitor runs"""
    _lost(on, lambda: on.tmux("kill-session", "-t", "=s"))


@row("T56", TERMINAL, HEADLESS, name="server")
def _server_killed(on: Stage) -> None:
    """its tmux server is killed (-9), no monitor runs"""
    _lost(on, lambda: os.kill(int(on.tmux("display-message", "-p", "#{pid}")), signal.SIGKILL))


# On its terminal, Gemini asks whether it may trust the folder of a new worktree.
@row("T57", TERMINAL, name="unchanged", agents=tuple(agent for agent in ALL if agent != "gemini"))
@row("T57", HEADLESS, name="unchanged", agents=ALL)
def _changes_nothing(on: Stage) -> None:
    """ends well, changed nothing, and has no check"""
    _ends_unverified(on, [[bash("true; sleep 3")], [Say("All is well.")]])


@row("T57", TERMINAL, HEADLESS, name="denied")
def _is_denied(on: Stage) -> None:
    """what it asked was denied, and it ends well without a check"""
    on.set_up(shell=ASK)
    _ends_unverified(on, [[bash("echo x > out.txt")], [Say("Then not.")]], denied=True)


def _ends_unverified(on: Stage, script: list, *, denied: bool = False) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "begin"]):
        subprocess.run(["git", *words], cwd=on.work, check=True, timeout=20)
    on.model.scripts["s"] = script
    given = ("--agent", on.program.agent, "--workdir", str(on.work), *(["--headless"] if on.headless else []))
    on.read(on.baton("submit", *given, "--worktree", "--detach", f"Do your part. {cue('s')}").text)
    on.expect("starting", "pending", within=60)
    on.working_from("s", 0)
    if denied:
        on.expect("waiting", at=on.asked("s", 0, answered=True).answered_at)
        on.baton("deny", on.open_request()["request_id"], code=None)
        on.working_from("s", 1)
    on.completes(on.asked("s", 1, answered=True).answered_at)
    record = on.readers[0].record
    graded = (record["grade"], record["changed"])
    on.require(graded == ("said", False), f"grade and changed are {graded}")
    said = on.baton("wait", on.readers[0].job, code=None).err
    on.require("done: changed nothing, unchecked" in said, f"wait says: {said}")
    on.require("merge" not in said, f"wait offers to merge: {said}")


# Codex has no setting that refuses a tool; Copilot has none but an option of its command line.
@row("T25", HEADLESS, agents=("claude-code", "opencode", "qwen", "gemini"))
def _refused_tool(on: Stage) -> None:
    """tool refused, headless, no conditions"""
    on.set_up(shell=DENY)
    on.begin([[bash("touch out.txt")], [Say("I was not allowed to.")]])
    on.fails(on.program.tool, at=on.asked("s", 1, answered=True).answered_at)


@row("T28", TERMINAL, agents=ALL)
def _stop_and_resume(on: Stage) -> None:
    """stop and resume, then go on with the same job"""
    reader = on.begin([[bash("touch begun; sleep 4321")]])
    on.file("begun")
    on.stay()
    on.expect("error", cause="stopped", within=12.0)  # its agent may take its time to end
    on.baton("session", "stop", "s", "--reason", "lunch")
    on.reach(lambda: reader.ended, "the end of the job")
    on.model.scripts["again"] = [[bash("true; sleep 3")], [Say("It is done now.")]]
    on.baton("session", "resume", "s", "--prompt", f"Go on. {cue('again')}")
    on.asked("again", 1, answered=True)
    on.stay()
    on.require(reader.detail.startswith("the session was stopped"), f"the job became: {reader.detail}")
    on.model.scripts["more"] = [[bash("echo x > more.txt; sleep 2")], [Say("I wrote more.")]]
    given = on.baton("submit", "--session", "s", "--detach", "--json", "--expect", "more.txt", f"More. {cue('more')}")
    more = on.read(given.json["job_id"])
    on.reach(lambda: more.ended, "the end of the next job")
    on.require(more.detail == "I wrote more.", f"the next job ended with: {more.detail}")
    on.require(reader.detail.startswith("the session was stopped"), f"the first job became: {reader.detail}")


@row("T29", TERMINAL)
def _resume_nothing(on: Stage) -> None:
    """resume of a session that never had a turn"""
    on.idle_session()
    on.baton("session", "stop", "s")
    refused = on.baton("session", "resume", "s", code=None)
    on.require(refused.code == 1 and "conversation" in refused.err, f"not refused with the reason: {refused}")


@row("T30", TERMINAL, name="in-turn", agents=ALL)
def _two_jobs(on: Stage) -> None:
    """two jobs in one session, one after the other"""
    on.idle_session()
    for name in ("one", "two"):
        on.model.scripts[name] = [[bash(f"true; sleep 3; echo x > {name}.txt")], [Say(f"I wrote {name}.")]]
        given = on.baton("submit", "--to", "s", "--detach", "--json", "--expect", f"{name}.txt", f"Write. {cue(name)}")
        reader = on.read(given.json["job_id"])
        if name == "one":
            on.expect("starting", "pending", within=60)
            on.working_from("one", 0)
            on.expect("completed", at=on.asked("one", 1, answered=True).answered_at)
        on.reach(lambda: reader.ended, "the end of the job")  # noqa: B023  used in this turn of the loop
        on.require(reader.record["status"] == "completed", f"{name}: {reader.detail}")
        on.require(reader.detail == f"I wrote {name}.", f"{name} ended with: {reader.detail}")


@row("T30", TERMINAL, name="at-once", agents=ALL)
def _job_for_busy_session(on: Stage) -> None:
    """one typed while the other runs"""
    on.idle_session()
    readers = {}
    for name in ("one", "two"):
        on.model.scripts[name] = [[bash(f"true; sleep 5; echo x > {name}.txt")], [Say(f"I wrote {name}.")]]
        given = on.baton("submit", "--to", "s", "--detach", "--json", f"Write. {cue(name)}")
        readers[name] = on.read(given.json["job_id"])
        if name == "one":
            on.expect("starting", "pending", within=60)
            on.working_from("one", 0)
            on.asked("one", 0, answered=True)
    on.expect("completed", at=on.asked("one", 1, answered=True).answered_at)
    for name, reader in readers.items():
        on.reach(lambda: reader.ended, "the end of the job")  # noqa: B023  used in this turn of the loop
        on.require(reader.record["status"] == "completed", f"{name}: {reader.detail}")
        on.require(reader.detail == f"I wrote {name}.", f"{name} ended with: {reader.detail}")
        on.require((on.work / f"{name}.txt").exists(), f"{name} was not done")


@row("T31", TERMINAL, HEADLESS)
def _nested(on: Stage) -> None:
    """a nested run of the same CLI inside a tool"""
    on.model.scripts["inner"] = [[bash("true; sleep 4")], [Say("The inner one is done.")]]
    command = f"claude -p '{cue('inner')}' > inner.txt; sleep 4"
    on.begin([[bash(command)], [Say("The outer one is done.")]])
    on.expect("working", at=on.asked("s", 0, answered=True).answered_at, cause="Bash")
    on.working_from("s", 1)
    on.completes(on.asked("s", 1, answered=True).answered_at, cause="outer")
    on.require("inner one is done" in (on.work / "inner.txt").read_text(), "the inner program did not run")


@row("T32", TERMINAL)
def _frozen_tmux(on: Stage) -> None:
    """tmux does not answer for some seconds"""
    on.begin([[bash("touch begun; sleep 45")], [Say("It is done.")]])
    on.file("begun")
    on.stay()
    server = int(on.tmux("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    try:
        on.expect("working", "unknown")
        on.stay(9)
        listed = on.baton("monitor", "--once", code=None)
        on.require(listed.code in (0, 1), f"monitor: {listed}")
    finally:
        os.kill(server, signal.SIGCONT)
    on.expect("working", within=10.0)
    on.completes(on.asked("s", 1, answered=True).answered_at)
    on.require(on.session("s")["state"] in ("running", "stopped", "terminated"), "the session was lost")


@row("T33", TERMINAL)
def _short_idle_limit(on: Stage) -> None:
    """idle limit shorter than our own look at the screen"""
    on.idle_session()
    on.model.scripts["short"] = [
        [bash("true; sleep 6; echo x > out.txt")],
        [bash("true; sleep 3")],
        [Say("I wrote it.")],
    ]
    given = on.baton("submit", "--to", "s", "--detach", "--json", "--idle-timeout", "2", cue("short"))
    on.read(given.json["job_id"])
    on.expect("starting", "pending", within=60)
    on.working_from("short", 0)
    on.completes(on.asked("short", 2, answered=True).answered_at)


@row("T33", HEADLESS)
def _short_idle_limit_headless(on: Stage) -> None:
    """idle limit shorter than the tools take"""
    on.begin([[bash("true; sleep 12; echo x > out.txt")], [Say("I wrote it.")]], "--idle-timeout", "6")
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T33", TERMINAL, HEADLESS, name="text")
def _long_text(on: Stage) -> None:
    """idle limit shorter than an answer takes"""
    on.begin([[Say("That was long.", IDLE_SEC + 8)]], "--idle-timeout", IDLE)
    if not on.headless:  # only its screen changes: it lives, and is not ended
        on.expect("working", "stalled", at=on.asked("s", 0).at + IDLE_SEC - 2)
    on.completes(on.asked("s", 0, answered=True).answered_at)


@row("T34", TERMINAL, HEADLESS, name="start")
def _long_prompt(on: Stage) -> None:
    """the prompt arrives whole: 100 KB, unicode"""
    text = "".join(f"Zeile {number}: »äöü 日本語 \u00e9 🙂« " for number in range(2600))
    on.begin([[bash("true; sleep 3")], [Say("Read.")]], prompt=text)
    on.require(text in on.model.find("s", 0).text, "the prompt was changed")
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T34", TERMINAL, name="busy")
def _long_prompt_while_busy(on: Stage) -> None:
    """the prompt arrives whole while the agent is busy"""
    on.model.scripts["first"] = [[bash("true; sleep 8")], [Say("First.")]]
    on.baton("session", "create", "s", "--agent", "claude-code", "--workdir", str(on.work), "--prompt", cue("first"))
    on.asked("first", 0, answered=True)
    text = "".join(f"Zeile {number}: »äöü 日本語 \u00e9 🙂« " for number in range(2600))
    on.model.scripts["long"] = [[bash("true; sleep 1")], [Say("I have read it.")]]
    given = on.baton("submit", "--to", "s", "--detach", "--json", "-", stdin=f"{text}{cue('long')}", code=None)
    if given.code != 0:
        on.require(given.err.count("\n") == 1, f"neither taken nor refused: {given}")
        return
    reader = on.read(given.json["job_id"])
    found = poll(lambda: on.model.find("long", 0) or (reader.ended and reader.detail), 60)
    on.require(isinstance(found, str) or (found and text in found.text), "the prompt was changed")
    on.reach(lambda: reader.ended, "the end")
    on.require(reader.record["status"] == "completed" or "type" in reader.detail, f"it ended with {reader.detail}")


@row("T1", TERMINAL, name="read")
def _reads(on: Stage) -> None:
    """works with several tools in one answer"""
    (on.work / "a.txt").write_text("a")
    (on.work / "b.txt").write_text("b")
    on.begin([[read(str(on.work / "a.txt")), read(str(on.work / "b.txt")), bash("true; sleep 3")], [Say("Read.")]])
    on.completes(on.asked("s", 1, answered=True).answered_at)
