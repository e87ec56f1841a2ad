"""Rows about what an agent asks at its own screen, without a request that a command could answer."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from agents.homes import NO_AUTO_MODE
from truth.catalogue import TERMINAL, row
from truth.steps import FLAGGED, NOT_FLAGGED, Call, Fail, Pause, Say, Shell, Step, bash, cue

if TYPE_CHECKING:
    from truth.stage import Stage

_CHECKED = bash("curl -s http://127.0.0.1:9/; touch made")  # auto mode has it checked
_STAYS_SEC = 6.0
_ASKS = "its screen asks"
_ELICITING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "eliciting_server.py")


def _reaches_dialog(on: Stage, script: list[Step]) -> float:
    """Begin a job in auto mode, whose check does not answer here; return when the dialog about that was shown."""
    on.configure()
    on.begin(script)
    shown = on.shown("can't check actions")
    on.expect("waiting", at=shown, cause=_ASKS)
    return shown


@row("T36", TERMINAL)
def _check_unavailable(on: Stage) -> None:
    """auto mode: its check is unavailable, a dialog stands in the middle of the turn"""
    _reaches_dialog(on, [[_CHECKED], [Say("Done.")]])
    on.stay(_STAYS_SEC)
    on.require(on.requests() == [], "a request that no command answers")
    on.require(
        "baton attach" in on.baton("approve", on.readers[0].job, code=1).err, "approve does not lead to the screen"
    )
    on.expect("idle", at=on.press("Escape"), cause="interrupted")
    on.stay()


@row("T37", TERMINAL)
def _asks_on_screen_alone(on: Stage) -> None:
    """auto mode: a checked call asks on the screen with no request that a hook could answer"""
    _reaches_dialog(on, [[_CHECKED, bash("sleep 6; touch later")], [Say("Done.")]])
    on.press("Enter")
    on.shown("Do you want to|approve|proceed|Yes")
    on.stay(_STAYS_SEC)
    on.require(on.requests() == [], "a request that no command answers")
    while not (on.work / "made").exists():
        on.press("Down", "Enter")
        on.stay(1)
    on.baton("cancel", on.readers[0].job)
    on.expect("cancelled", "waiting", "working", at=time.monotonic() - 2)
    on.stay()


def _checked(verdict: str) -> Shell:
    return bash("curl -s http://127.0.0.1:9/; touch made; sleep 5", verdict=verdict)


@row("T38", TERMINAL, name="allowed")
def _check_allows(on: Stage) -> None:
    """auto mode: its check allows"""
    on.configure()
    on.begin([[_checked(NOT_FLAGGED)], [Say("Done.")]])
    on.expect("working", at=on.file("made"), cause="Bash", early=4.0)
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T38", TERMINAL, name="denied")
def _check_denies(on: Stage) -> None:
    """auto mode: its check denies"""
    on.configure()
    on.begin([[_checked(FLAGGED)], [Pause(4), Say("Then not.")]])
    on.asked("s", 1)
    on.stay(2)
    job = on.readers[0].job
    facts = {each["fact"]: each["value"] for each in on.baton("explain", job, "--json").json["facts"]}
    on.require("the stand-in says so" in facts.get("denied by its own check", ""), f"the denial is no fact: {facts}")
    on.completes(on.asked("s", 1, answered=True).answered_at)
    on.require(not (on.work / "made").exists(), "the tool ran")


@row("T38", TERMINAL, name="thrice")
def _check_denies_thrice(on: Stage) -> None:
    """auto mode: its check denies three times in a row, then it asks"""
    on.configure()
    on.begin([*[[_checked(FLAGGED)]] * 3, [Say("Done.")]])
    on.expect("waiting", at=on.asked("s", 2, answered=True).answered_at, cause="Bash")
    on.stay(_STAYS_SEC)
    on.approve(on.open_request())
    on.expect("working", at=on.file("made"), cause="Bash", early=4.0)
    on.completes(on.asked("s", 3, answered=True).answered_at)


@row("T40", TERMINAL)
def _write_in_plan_mode(on: Stage) -> None:
    """plan mode: a write asked for in plan mode"""
    on.configure(permissions={"defaultMode": "plan"})
    on.begin([[Call("Write", {"file_path": str(on.work / "x"), "content": "x"})], [Say("Done.")]])
    on.expect("waiting", at=on.shown("can't check actions|Do you want to"))
    on.stay(_STAYS_SEC)


@row("T41", TERMINAL, name="servers")
def _servers_dialog(on: Stage) -> None:
    """a dialog at the start of which no setting tells"""
    servers = {"m": {"command": "false", "args": []}}
    (on.work / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    on.start([[bash("true; sleep 3")], [Say("Done.")]])
    on.expect("blocked", at=on.shown("MCP server"), cause="dialog at its start", within=7.0)
    on.stay(_STAYS_SEC)
    on.expect("starting", at=on.press("Escape"))
    on.working_from("s", 0)
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T42", TERMINAL)
def _opened_dialog(on: Stage) -> None:
    """a dialog that a person opened while a job works"""
    on.configure(permissions={"defaultMode": "default", "allow": ["Bash"]})
    on.begin([[bash("touch begun; true; sleep 25")], [Say("Done.")]])
    on.file("begun")
    on.type("/model")
    on.expect("waiting", at=on.shown("Select model|Default"), cause=_ASKS)
    on.stay(5)
    on.expect("working", at=on.press("Escape"))
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T43", TERMINAL)
def _offers_auto_mode(on: Stage) -> None:
    """the offer to make auto mode the default"""
    on.configure(permissions={"defaultMode": "acceptEdits", "allow": ["Bash"]})
    on.idle_session()
    on.shown("Make auto mode")
    on.model.scripts["s"] = [[bash("true; sleep 3")], [Say("Done.")]]
    on.read(on.baton("submit", "--to", "s", "--detach", "--json", cue("s")).json["job_id"])
    on.expect("pending", "starting", "waiting", within=10)
    on.stay(_STAYS_SEC)
    on.require(on.model.find("s", 0) is None, "the prompt was typed into the offer")
    on.expect("pending", "starting", at=on.press("Escape"))
    on.working_from("s", 0)
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T44", TERMINAL)
def _carries_on(on: Stage) -> None:
    """a usage limit, after which the agent goes on by itself"""
    del on.baton.env["ANTHROPIC_API_KEY"]
    on.baton.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-not-a-token-of-anybody"
    on.idle_session()
    reset = int(time.time()) + 20
    headers = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": reset,
               "anthropic-ratelimit-unified-representative-claim": "five_hour", "retry-after": 20}  # fmt: skip
    limit = Fail(429, "This request would exceed your account's rate limit.", "rate_limit_error", 1, headers=headers)
    on.model.scripts["s"] = [[limit, bash("true; sleep 2")], [Say("Done.")]]
    queue = on.session("s")["queue"] if "queue" in on.session("s") else f"agent:{on.session('s')['agent_id']}"
    reader = on.read(on.job("Do it. [play s]", "--queue", queue, agent=on.program.agent))
    on.expect("starting", "pending", "working", within=10)
    asked = on.asked("s", 0)
    on.expect("limited", at=asked.at, within=6.0)
    on.reach(lambda: len([each for each in on.model.log if each.script == "s"]) > 1, "the agent goes on", 150)
    on.expect("working", at=time.monotonic(), early=on.program.begins_sec)
    on.completes(on.asked("s", 1, answered=True).answered_at)
    on.stay(60)
    said = [text for text in on.model.texts_asked() if "usage limit is over" in text]
    on.require(not said, "a second prompt of baton")
    on.require(reader.ended, "the job is not over")


@row("T45", TERMINAL)
def _elicits(on: Stage) -> None:
    """a server of tools asks the person (MCP elicitation)"""
    known = json.loads((on.home / ".claude.json").read_text())
    server = {"type": "stdio", "command": sys.executable, "args": [_ELICITING]}
    (on.home / ".claude.json").write_text(json.dumps(known | {"mcpServers": {"m": server}}))
    on.configure(permissions=NO_AUTO_MODE | {"allow": ["mcp__m__ask"]})
    on.begin([[Call("mcp__m__ask", {})], [Say("Done.")]])
    on.expect("waiting", at=on.shown("Your name"), cause=_ASKS)
    on.stay(_STAYS_SEC)
    on.expect("working", "completed", at=on.press("Escape"))
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T46", TERMINAL)
def _mode_changed(on: Stage) -> None:
    """mode changed at the keyboard (shift+Tab)"""
    on.configure(permissions={"defaultMode": "default", "allow": ["Bash"]})
    on.begin([[bash("touch begun; true; sleep 12")], [Say("Done.")]])
    on.file("begun")
    on.press("BTab")
    on.stay(2)
    facts = on.baton("explain", on.readers[0].job, "--json").json["facts"]
    modes = [each["value"] for each in facts if each["fact"] == "permission mode"]
    on.require(modes == ["acceptEdits"], f"its mode is said to be {modes}")
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T47", TERMINAL)
def _forked(on: Stage) -> None:
    """conversation forked when it is resumed"""
    program = on.folder / "bin" / "claude"
    program.parent.mkdir()
    real = shutil.which("claude")
    program.write_text(
        f'#!/bin/sh\ncase " $* " in *" --resume "*) set -- --fork-session "$@";; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    on.baton.env["PATH"] = f"{program.parent}:{on.baton.env['PATH']}"
    on.idle_session()
    before = on.session("s")["conversation_id"]
    on.model.scripts["first"] = [[Say("Yes.")]]
    on.type(cue("first"))
    on.asked("first", 0, answered=True)
    on.stay(2)
    on.baton("session", "stop", "s")
    on.baton("session", "resume", "s")
    on.shown(on.program.prompt)
    on.model.scripts["s"] = [[bash("true; sleep 3")], [Say("Done.")]]
    on.read(on.job(f"Do it. {cue('s')}", "--queue", f"agent:{on.session('s')['agent_id']}", agent=on.program.agent))
    on.expect("starting", "pending", within=10)
    on.working_from("s", 0)
    on.completes(on.asked("s", 1, answered=True).answered_at)
    on.require(on.session("s")["conversation_id"] != before, "the conversation was not forked")
