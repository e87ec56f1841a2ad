"""Rows about the model's service, and about dialogs before the work."""

from __future__ import annotations

import json
import re
import time

from support.ports import free_port
from truth.catalogue import HEADLESS, TERMINAL, row
from truth.programs import ALL
from truth.scripted_model import Fail, Say, Tokens, bash, cue
from truth.stage import IDLE, IDLE_SEC, Stage

_OVERLOADED = Fail(529, "Overloaded", "overloaded_error", times=2, headers={"retry-after": "4"})
_LEARNS_SEC = 10.0
_TOO_MANY = "429|too many|rate.?limit"
_UNAUTHORISED = Fail(401, "invalid x-api-key", "authentication_error")


@row("T17", TERMINAL, HEADLESS, agents=ALL)
def _fails_twice(on: Stage) -> None:
    """service answers 529 twice, then works"""
    on.baton.env["CLAUDE_CODE_MAX_RETRIES"] = "5"
    on.set_up(retries=5)
    on.begin([[_OVERLOADED, bash("true; sleep 3")], [Say("Done.")]])
    on.expect("retrying", at=on.asked("s", 0).at, cause="529|overloaded|transient")
    on.reach(lambda: (found := on.model.find("s", 0)) and found.answer == "shell", "the answer")
    on.expect("working", at=on.asked("s", 0, answered=True).answered_at)
    on.completes(on.asked("s", 1, answered=True).answered_at)


@row("T18", TERMINAL, HEADLESS, name="401", agents=ALL)
def _unauthorised(on: Stage) -> None:
    """service answers 401, with retries"""
    on.baton.env["CLAUDE_CODE_MAX_RETRIES"] = "4"
    reader = on.begin([[_UNAUTHORISED]], "--timeout", "60")
    on.expect("retrying", at=on.asked("s", 0, answered=True).answered_at, cause="401|authenticat|api.key")
    on.reach(lambda: reader.ended, "the end", 70)
    on.expect("error", at=time.monotonic() - 1, early=4.0, cause="API key|401|authenticat")
    on.stay(1)


@row("T18", TERMINAL, HEADLESS, name="429", agents=tuple(agent for agent in ALL if agent != "claude-code"))
def _too_many_requests(on: Stage) -> None:
    """service answers 429 without a reset time, with retries"""
    reader = on.begin([[Fail(429, "Too many requests, slow down.", "rate_limit_error")]], "--timeout", "60")
    on.expect("retrying", at=on.asked("s", 0, answered=True).answered_at, cause=_TOO_MANY)
    on.reach(lambda: reader.ended, "the end", 70)
    on.expect("error", at=time.monotonic() - 1, early=4.0, cause="took longer" if on.untold else _TOO_MANY)
    on.stay(1)


@row("T18", TERMINAL, HEADLESS, name="dead", agents=ALL)
def _dead(on: Stage) -> None:
    """service dead, with retries"""
    on.baton.env["CLAUDE_CODE_MAX_RETRIES"] = "5"
    on.point_at(f"http://127.0.0.1:{free_port()}")
    reader = on.start([[Say("never")]], "--timeout", "60")
    on.reach(lambda: any(sample.state not in ("pending", "starting") for sample in reader.samples), "a sign")
    now = time.monotonic()
    on.expect("working", at=now - 3, within=6.0)
    on.expect("retrying", at=now, within=6.0, cause="onnect|server error")
    on.reach(lambda: reader.ended, "the end", 70)
    on.expect("error", at=time.monotonic() - 1, early=4.0, cause="took longer" if on.untold else "onnect")
    on.stay(1)


@row("T50", TERMINAL, HEADLESS, agents=("qwen",))
def _dead_in_silence(on: Stage) -> None:
    """service dead, of which it says nothing, with an idle limit"""
    on.point_at(f"http://127.0.0.1:{free_port()}")
    reader = on.start([[Say("never")]], "--timeout", "90", "--idle-timeout", "25")  # it takes its time to start
    on.reach(lambda: any(sample.state not in ("pending", "starting") for sample in reader.samples), "a sign")
    now = time.monotonic()
    on.expect("working", "retrying", at=now - 3, within=6.0)
    on.expect("stalled", "retrying", "error", at=now + 25, early=6.0, within=6.0)
    on.reach(lambda: reader.ended, "the end", 70)
    on.expect("error", at=time.monotonic() - 1, early=4.0, cause="heard|onnect|took longer")
    on.require(reader.record["status"] == "error", f"it is {reader.record['status']}")
    on.stay(1)


@row("T52", TERMINAL, HEADLESS, name="logged-out", agents=tuple(agent for agent in ALL if agent != "opencode"))
def _no_login(on: Stage) -> None:
    """not logged in"""
    on.log_out()
    _learns_at_once(on, "log ?in|auth|set up")


@row("T52", TERMINAL, HEADLESS, name="first", agents=("codex",))
def _first_run(on: Stage) -> None:
    """first run, without the folder of its configuration"""
    on.baton.env["CODEX_HOME"] = str(on.home / "nowhere")
    _learns_at_once(on, "CODEX_HOME points to")


def _learns_at_once(on: Stage, cause: str) -> None:
    """Expect that this is said within 10 s of the command."""
    given = ("--agent", on.program.agent, "--workdir", str(on.work), "--timeout", "60")
    begun = time.monotonic()
    on.expect("pending", "starting", "working", "retrying", "error", "blocked", "waiting", within=60)
    on.baton("submit", *given, *(["--headless"] if on.headless else []), "--detach", cue("s"), code=None)
    on.read(on.baton("list", "--json").json[0]["job_id"])
    on.expect("error", "blocked", "waiting", at=begun + _LEARNS_SEC, cause=cause, early=_LEARNS_SEC, within=0.5)
    on.stay(_LEARNS_SEC)


@row("T19", TERMINAL, HEADLESS)
def _limited(on: Stage) -> None:
    """429 with a reset time (usage limit)"""
    del on.baton.env["ANTHROPIC_API_KEY"]
    on.baton.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-not-a-token-of-anybody"
    reset = int(time.time()) + 7200
    headers = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": reset,
               "anthropic-ratelimit-unified-representative-claim": "five_hour", "retry-after": 7200}  # fmt: skip
    limit = Fail(429, "This request would exceed your account's rate limit.", "rate_limit_error", headers=headers)
    reader = on.begin([[limit]], "--timeout", "10", "--idle-timeout", "10")
    asked = on.asked("s", 0)
    on.expect("limited", at=asked.at, cause="limit", within=6.0)
    on.stay(14)  # longer than its time-outs, of which none runs
    on.baton("cancel", reader.job)
    on.expect("cancelled", at=time.monotonic() - 0.5)
    on.stay(1)


@row("T20", TERMINAL, HEADLESS, name="credit", agents=ALL)
def _no_credit(on: Stage) -> None:
    """credit used up"""
    text = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
    on.begin([[Fail(400, text, "invalid_request_error")]])
    on.fails("credit", at=on.asked("s", 0).at, within=4.0)


@row("T20", TERMINAL, HEADLESS, name="key", agents=ALL)
def _wrong_key(on: Stage) -> None:
    """wrong key"""
    on.baton.env["CLAUDE_CODE_MAX_RETRIES"] = "1"
    on.begin([[_UNAUTHORISED]])
    on.expect("working", "retrying", at=on.asked("s", 0).at)
    on.reach(lambda: on.readers[0].ended, "the end", 30)
    on.fails("API key|api-key|401", at=on.model.log[-1].at, within=4.0)


@row("T26", HEADLESS, agents=("qwen",))
def _exits_well(on: Stage) -> None:
    """the program exits 0 although its service failed"""
    _fails_for_good(on, Fail(401, "invalid x-api-key", "authentication_error"), "key|401|authenticat")


@row("T27", HEADLESS, name="401", agents=("copilot",))
def _ends_turn_unauthorised(on: Stage) -> None:
    """the protocol says "end of turn" although the service refused the key"""
    _fails_for_good(on, Fail(401, "invalid x-api-key", "authentication_error"), "key|401|authenticat")


@row("T27", HEADLESS, name="500", agents=("copilot",))
def _ends_turn_in_error(on: Stage) -> None:
    """the protocol says "end of turn" although the service failed"""
    _fails_for_good(on, Fail(500, "the stars are not right"), "500|stars|error")


def _fails_for_good(on: Stage, failure: Fail, cause: str) -> None:
    on.begin([[failure]], "--timeout", "60")
    on.expect("working", "retrying", at=on.asked("s", 0).at)
    on.reach(lambda: on.readers[0].ended, "the end", 70)
    on.fails(cause, at=on.answered_last(), within=4.0)


@row("T20", TERMINAL, HEADLESS, name="logged-out")
def _logged_out(on: Stage) -> None:
    """logged out"""
    del on.baton.env["ANTHROPIC_API_KEY"]
    on.baton.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-not-a-token-of-anybody"
    on.begin([[Fail(401, "OAuth token has expired", "authentication_error")]])
    on.expect("working", "retrying", at=on.asked("s", 0).at)
    on.reach(lambda: on.readers[0].ended, "the end", 30)
    on.fails("login|logged|authenticat", at=on.model.log[-1].at, within=4.0)


def _change_known(on: Stage, **changes: object) -> None:
    """Change what Claude knows of its user."""
    known = json.loads((on.home / ".claude.json").read_text())
    (on.home / ".claude.json").write_text(json.dumps(known | changes))


@row("T21", TERMINAL, name="trust", agents=("claude-code", "copilot"))
def _trust(on: Stage) -> None:
    """trust dialog before the work"""
    on.set_up(trusted=False)
    on.start([[bash("true; sleep 3")], [Say("Done.")]], "--idle-timeout", IDLE)
    on.expect("starting", "blocked")
    on.expect("blocked", at=on.shown(on.program.trust), cause="trust")
    on.stay(IDLE_SEC + 2)
    on.require(re.search(on.program.trust, on.pane()), "a key was pressed")
    on.expect("blocked", "starting", at=on.press(*on.program.trusts))
    on.working_from("s", 0)
    on.completes(on.asked("s", 1, answered=True).answered_at)


def _blocked_until_the_end(on: Stage, shown: str, cause: str) -> None:
    reader = on.start([[Say("Done.")]], "--timeout", "35", "--idle-timeout", IDLE)
    on.expect("starting", "blocked")
    on.expect("blocked", at=on.shown(shown), cause=cause)
    on.stay(IDLE_SEC + 2)
    on.require(on.model.find("s", 0) is None, "a key was pressed")
    on.reach(lambda: reader.ended, "the end", 60)
    on.expect("error", at=time.monotonic() - 1, early=4.0, cause=cause)
    on.stay(1)


@row("T21", TERMINAL, name="login")
def _login(on: Stage) -> None:
    """first start, login dialog before the work"""
    _change_known(on, hasCompletedOnboarding=False)
    _blocked_until_the_end(on, "text style|get started|[Ll]ogin method", "set up|log ?in")


@row("T21", TERMINAL, name="key")
def _key_dialog(on: Stage) -> None:
    """dialog about the key before the work"""
    _change_known(on, customApiKeyResponses={"approved": []})
    _blocked_until_the_end(on, "custom API key", "key")


@row("T35", TERMINAL, HEADLESS)
def _context_full(on: Stage) -> None:
    """context full, compaction fails"""
    full = Fail(400, "prompt is too long: 250000 tokens > 200000 maximum", "invalid_request_error")
    on.model.summary = [full]
    on.begin([[bash("true; sleep 2")], [full]])
    on.expect("working", "retrying", at=on.asked("s", 1).at)
    on.reach(lambda: on.readers[0].ended, "the end", 60)
    on.fails("too long|context", at=on.model.log[-1].at, within=4.0)


@row("T35", TERMINAL, HEADLESS, name="window")
def _window_full(on: Stage) -> None:
    """context full after one exchange: it compacts, and goes on"""
    on.baton.env |= {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50"}
    on.model.summary = [Say(f"<summary>Go on. {cue('after')}</summary>")]
    on.model.scripts["after"] = [[bash("true; sleep 3")], [Say("I wrote it.")]]
    on.begin([[Tokens(990_000), bash("touch begun; sleep 3; touch ended")], [Say("never")]], "--idle-timeout", IDLE)
    on.expect("working", at=on.file("ended"))
    on.completes(on.asked("after", 1, answered=True).answered_at)
