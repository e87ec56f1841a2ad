"""Rows about the person at the keyboard: permissions, questions, interruptions."""

from __future__ import annotations

import json
import re
import subprocess
import time

from agents.homes import ASK, NO_AUTO_MODE
from support.command import BATON
from truth.catalogue import HEADLESS, TERMINAL, row
from truth.judge import WITHIN_SEC
from truth.programs import ALL
from truth.scripted_model import Call, Pause, Say, Tokens, bash, cue, plan, question, read, subagent, write
from truth.stage import IDLE, IDLE_SEC, LIMIT_WITHIN_SEC, Stage

_HAVE_NO = ("claude-code", "codex", "qwen", "gemini")  # an answer that ends the turn
# Hooks inform of what Gemini asks on the terminal, where the person answers.
_ANSWERED = tuple(agent for agent in ALL if agent != "gemini")


def _asks(on: Stage, script: list, *options: str, of_person: bool = True) -> None:
    """Begin a job whose first tool needs a permission, and wait until it is asked for: `of_person`, on the screen."""
    on.set_up(shell=ASK)
    on.begin(script, *options)
    if on.headless or (on.program.hides and not of_person):
        asked_at = on.asked("s", 0, answered=True).answered_at
    else:
        on.watch()
        asked_at = on.shown(on.program.dialog)
    on.expect("waiting", at=asked_at, cause=on.program.tool, early=2.0, within=WITHIN_SEC + on.program.asks_sec)


@row("T6", TERMINAL, HEADLESS)
def _subagent_asks(on: Stage) -> None:
    """a background subagent asks for permission"""
    on.configure(permissions=NO_AUTO_MODE | {"allow": ["Read"]})
    on.model.scripts["sub"] = [[Pause(3), bash("touch begun; sleep 3; echo x > sub.txt")], [Say("My part is done.")]]
    on.begin([[subagent(cue("sub"), background=True)], [Say("It works on it.")], [Say("All is done.")]])
    on.expect("waiting", at=on.asked("sub", 0, answered=True).answered_at, cause="Bash")
    on.stay(4)
    on.approve(on.open_request())
    on.expect("working", at=on.file("begun"), early=4.0)
    on.file("sub.txt")
    on.completes(on.asked("s", 2, answered=True).answered_at)


@row("T8", TERMINAL, HEADLESS, agents=ALL)
def _no_answer(on: Stage) -> None:
    """permission asked, no answer"""
    on.set_up(shell=ASK)
    on.model.scripts["s"] = [[bash("echo x > out.txt", ask=True)], [Say("I wrote it.")]]
    argv = [BATON, "submit", "--agent", on.program.agent, "--workdir", str(on.work), "--timeout", "50", "--idle-timeout",
            IDLE, *(["--headless"] if on.headless else []), cue("s")]  # fmt: skip
    on.expect("starting", "pending", within=60)
    submit = subprocess.Popen(argv, cwd=on.folder, env=on.baton.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    job = on.reach(lambda: on.baton("list", "--json").json, "the job")[0]["job_id"]
    reader = on.read(job)
    on.working_from("s", 0)
    asked_at, within = on.asked("s", 0, answered=True).answered_at, WITHIN_SEC + on.program.asks_sec
    on.expect("waiting", at=asked_at, cause=on.program.tool, within=within)
    on.reach(lambda: reader.ended, "the end", 80)
    on.expect("error", at=time.monotonic() - 1, early=4.0, cause="permission")
    printed = submit.communicate(timeout=30)[0]
    on.require(submit.returncode == 2, f"submit: exit {submit.returncode}: {printed[-300:]}")
    way = "approve" if on.headless or on.program.agent in _ANSWERED else "answer there"
    on.require("echo x > out.txt" in printed and way in printed, f"submit does not say it: {printed[-300:]}")
    on.require("50" in reader.detail, f"ended with {reader.detail}")
    on.stay(1)


@row("T9", TERMINAL, agents=ALL)
def _allowed_at_the_keyboard(on: Stage) -> None:
    """permission allowed at the keyboard, then a long tool"""
    _asks(on, [[bash("true; sleep 19; echo x > out.txt", ask=True)], [Say("I wrote it.")]], "--idle-timeout", IDLE)
    on.stay()
    asked = on.open_request()
    on.expect("working", at=on.press(*on.program.yes), cause=on.program.tool)
    on.reach(lambda: on.request(asked["request_id"])["state"] != "open", "the end of the request", 5)
    state = on.request(asked["request_id"])["state"]
    on.require(state == "elsewhere", f"the request is {state}")
    on.working_from("s", 1)
    on.completes(
        max(on.asked("s", 1, answered=True).answered_at, on.file("out.txt")), within=4.0
    )  # Codex goes on without it


def _refused_at_the_keyboard(on: Stage, *keys: str) -> None:
    _asks(on, [[bash("echo x > out.txt", ask=True)], [Say("Then not.")]], "--idle-timeout", IDLE)
    on.stay()
    asked = on.open_request()
    pressed = on.press(*keys)
    on.expect("idle", at=pressed)
    on.reach(lambda: on.request(asked["request_id"])["state"] != "open", "the end of the request", 8)
    on.require(time.monotonic() < pressed + 3, "the request stayed open for more than 2 s")
    state = on.request(asked["request_id"])["state"]
    on.require(state == "elsewhere", f"the request is {state}")
    on.fails("interrupt|refus|reject", at=pressed + IDLE_SEC, within=LIMIT_WITHIN_SEC)
    on.require(not (on.work / "out.txt").exists(), "the tool ran")


@row("T10", TERMINAL, name="no", agents=_HAVE_NO)
def _no(on: Stage) -> None:
    """permission refused at the keyboard (no)"""
    _refused_at_the_keyboard(on, *on.program.no)


@row("T10", TERMINAL, name="esc", agents=ALL)
def _esc(on: Stage) -> None:
    """permission refused at the keyboard (Esc)"""
    _refused_at_the_keyboard(on, "Escape")


@row("T11", TERMINAL, name="approve", agents=_ANSWERED)
@row("T11", HEADLESS, name="approve", agents=ALL)
def _approved(on: Stage) -> None:
    """permission answered by baton approve"""
    _asks(on, [[bash("touch begun; sleep 4; echo x > out.txt", ask=True)], [Say("I wrote it.")]], of_person=False)
    on.stay()
    asked = on.open_request()
    on.approve(asked)
    on.expect("working", at=on.file("begun"), cause=on.program.tool, early=4.0)
    on.working_from("s", 1)
    on.completes(on.asked("s", 1, answered=True).answered_at)
    shown = on.request(asked["request_id"])
    on.require((shown["state"], shown["applied"]) == ("answered", "yes"), f"the request: {shown}")


@row("T11", TERMINAL, name="deny", agents=_ANSWERED)
@row("T11", HEADLESS, name="deny", agents=ALL)
def _denied(on: Stage) -> None:
    """permission answered by baton deny"""
    _asks(on, [[bash("echo x > out.txt", ask=True)], [Pause(3), Say("Then not.")]], of_person=False)
    on.stay()
    asked = on.open_request()
    on.baton("deny", asked["request_id"], "--reason", "not on a Monday")
    on.working_from("s", 1)
    on.reach(lambda: on.readers[0].ended, "the end")
    on.completes(on.answered_last())  # some are given the reason in a prompt of its own
    given = any("not on a Monday" in asked.text for asked in on.model.log)
    on.require(given, "the agent was not given the reason")
    on.require(not (on.work / "out.txt").exists(), "the tool ran")


@row("T48", TERMINAL, HEADLESS, agents=("codex",))
def _typed_text(on: Stage) -> None:
    """text typed into a running terminal"""
    about = {"tty": True, "yield_time_ms": 500, "sandbox_permissions": "require_escalated", "justification": "I type."}
    begins = Call("exec_command", {"cmd": "cat > typed.txt"} | about)

    def types_text() -> Call:
        terminal = re.search(r"session ID (\d+)", on.model.asked_last)
        assert terminal is not None, "no terminal was begun"
        return Call("write_stdin", {"session_id": int(terminal[1]), "chars": "hello\n", "yield_time_ms": 500})

    on.begin([[begins], [types_text], [bash("true; sleep 3")], [Say("I typed.")]], "--background-timeout", "1s")
    on.expect("waiting", at=on.asked("s", 0, answered=True).answered_at, cause="shell")
    on.approve(on.open_request())
    on.working_from("s", 1)
    on.expect("waiting", at=on.asked("s", 1, answered=True).answered_at, cause="typed")
    asked = on.reach(lambda: [each for each in on.requests() if each["tool"] != "shell"], "the request for text")[0]
    on.require((asked["tool"], asked["call"]["typed"]) == ("typed text", "hello\n"), f"the request: {asked}")
    on.stay()
    on.approve(asked)
    on.working_from("s", 2)
    on.reach(lambda: on.readers[0].ended, "the end")
    on.completes(time.monotonic() - 1, within=4.0)
    on.require((on.work / "typed.txt").read_text() == "hello\n", "the text did not arrive")


@row("T49", HEADLESS, agents=("qwen",))
def _two_ways_to_allow(on: Stage) -> None:
    """headless: a permission with two ways to allow"""
    settings = on.home / ".qwen" / "settings.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"permissions": {}, "tools": {"approvalMode": "auto"}})
    )
    on.begin([[bash("touch begun; sleep 4; echo x > out.txt")], [Say("I wrote it.")]])
    on.reach(on.requests, "the request")
    on.expect("waiting", at=time.monotonic(), cause=on.program.tool, early=60.0)
    on.stay()
    asked = on.open_request()
    on.require((asked["kind"], asked["options"]) == ("tool", []), f"the request: {asked}")
    on.approve(asked)
    on.expect("working", at=on.file("begun"), early=4.0)
    on.reach(lambda: on.readers[0].ended, "the end")
    on.completes(on.answered_last())
    on.require((on.work / "out.txt").exists(), "the tool did not run")


@row("T12", TERMINAL, HEADLESS, name="question")
def _question(on: Stage) -> None:
    """question with options"""
    on.begin([[question("Which colour?", "Red", "Blue")], [Say("Blue it is.")]], "--idle-timeout", IDLE)
    on.expect("waiting", at=on.asked("s", 0, answered=True).answered_at, cause="colour|question")
    on.stay(IDLE_SEC + 2)
    asked = on.open_request()
    on.require(asked["kind"] == "question", f"kind {asked['kind']}")
    on.require(all(each in str(asked["options"]) for each in ("Which colour?", "Red", "Blue")), f"options: {asked}")
    on.baton("answer", asked["request_id"], "Blue")
    on.working_from("s", 1)
    on.completes(on.asked("s", 1, answered=True).answered_at)
    on.require("Blue" in on.model.find("s", 1).text, "the agent was not given the answer")


@row("T12", TERMINAL, HEADLESS, name="plan")
def _plan(on: Stage) -> None:
    """plan approval"""
    on.configure(permissions={"allow": ["Bash"], "defaultMode": "plan"})
    text = "# The plan\n1. Write it."
    script = [
        [lambda: write(on.model.plan_file(), text)],
        [plan(text)],
        [bash("echo x > out.txt; sleep 2")],
        [Say("Done.")],
    ]
    on.begin(script)
    on.expect("waiting", at=on.asked("s", 1, answered=True).answered_at, cause="plan")
    on.stay(4)
    asked = on.open_request()
    on.require((asked["kind"], asked["exact"]) == ("plan", True), f"the request: {asked}")
    on.require(asked["call"].get("plan") == text, f"the plan that is shown: {asked['call']}")
    on.baton("approve", asked["request_id"])
    on.working_from("s", 2)
    on.completes(on.asked("s", 3, answered=True).answered_at)


@row("T13", TERMINAL, name="tool", agents=ALL)
def _esc_in_tool(on: Stage) -> None:
    """Esc in the middle of a turn (tool)"""
    on.begin([[bash("touch begun; sleep 4321")]], "--idle-timeout", IDLE)
    on.file("begun")
    on.shown(on.program.busy)
    on.stay()
    pressed = on.press(*on.program.interrupt)
    on.expect("idle", at=pressed, cause="interrupt")
    on.fails("interrupt", at=pressed + IDLE_SEC, within=LIMIT_WITHIN_SEC)


@row("T13", TERMINAL, name="text", agents=ALL)
def _esc_in_text(on: Stage) -> None:
    """Esc in the middle of a turn (text)"""
    on.begin([[Say("I think.", 60)]], "--idle-timeout", IDLE)
    on.shown(on.program.busy)
    on.stay()
    pressed = on.press(*on.program.interrupt)
    on.expect("idle", at=pressed, cause="interrupt")
    on.fails("interrupt", at=pressed + IDLE_SEC, within=LIMIT_WITHIN_SEC)


@row("T14", TERMINAL)
def _other_turn(on: Stage) -> None:
    """Esc, then a person types something else, that turn ends well"""
    on.model.scripts["other"] = [[bash("true; sleep 3")], [Say("Good day to you.")]]
    reader = on.begin([[bash("touch begun; sleep 4321")]], "--idle-timeout", IDLE)
    on.file("begun")
    on.stay()
    on.expect("idle", at=on.press("Escape"))
    on.shown("nterrupted")
    on.type(f"Good day! {cue('other')}")
    on.expect("idle", "working", at=on.asked("other", 0).at)
    ended = on.asked("other", 1, answered=True).answered_at
    on.expect("idle", at=ended)
    on.reach(lambda: reader.ended, "the end of the job", 30)
    on.expect("error", at=time.monotonic() - 1, early=4.0)
    on.stay(1)


@row("T15", TERMINAL)
def _clear(on: Stage) -> None:
    """/clear in the middle of a job"""
    on.begin([[bash("touch begun; sleep 4321")]], "--idle-timeout", "30")
    on.file("begun")
    on.expect("idle", at=on.press("Escape"))
    on.shown("nterrupted")
    on.stay()
    on.fails("clear|conversation", at=on.type("/clear"), within=3.0)


@row("T16", TERMINAL, HEADLESS)
def _compaction(on: Stage) -> None:
    """compaction in the middle of a turn"""
    on.baton.env |= {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50"}
    on.model.summary = [Pause(4), Say(f"<summary>Go on. {cue('after')}</summary>")]
    on.model.scripts["after"] = [[bash("true; sleep 3")], [Say("I wrote it.")]]
    on.begin([[bash("true")], [bash("true")], [Tokens(70_000), bash("true; sleep 1")]])
    on.expect("working", at=on.asked("summary", 0).at, cause="model|compact", early=4.0)
    on.asked("summary", 0, answered=True)
    on.expect("working")
    on.completes(on.asked("after", 1, answered=True).answered_at)


@row("T11", TERMINAL, name="twins")
def _twins(on: Stage) -> None:
    """two permissions asked at once, answered one by one"""
    on.configure(permissions=NO_AUTO_MODE | {"allow": []})
    (on.folder / "other").mkdir()
    paths = [on.folder / "other" / name for name in ("a.txt", "b.txt")]
    for path in paths:
        path.write_text(path.name)

    on.begin([[read(str(path)) for path in paths], [Say("Read.")]])
    on.expect("waiting", at=on.asked("s", 0, answered=True).answered_at)
    open_now = on.reach(lambda: found if len(found := on.requests()) == 2 else None, "two requests", 20)
    on.stay()
    on.baton("approve", open_now[0]["request_id"])
    on.stay()
    on.require(len(on.requests()) == 1, "one answer closed both")
    on.baton("approve", open_now[1]["request_id"])
    on.working_from("s", 1)
    on.completes(on.asked("s", 1, answered=True).answered_at)
