"""Usage limits, cost and budgets with the real programs, against a model service that counts and that names a reset."""

from __future__ import annotations

import subprocess
import time

import pytest

from truth.scripted_model import Fail, Say, bash, cue

TOKEN = "sk-ant-oat01-not-a-token-of-anybody"


def limit(seconds: float) -> Fail:
    """What Claude's service answers at a usage limit that ends after so many seconds."""
    reset = int(time.time() + seconds)
    headers = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": reset,
               "anthropic-ratelimit-unified-representative-claim": "five_hour", "retry-after": int(seconds)}  # fmt: skip
    return Fail(429, "This request would exceed your account's rate limit.", "rate_limit_error", headers=headers)


def subscribe(world) -> None:
    """Log in as a subscriber: only then a limit has a reset."""
    world.baton.env.pop("ANTHROPIC_API_KEY")
    world.baton.env["CLAUDE_CODE_OAUTH_TOKEN"] = TOKEN


def submit(world, *arguments: str, patience_sec: float = 300) -> subprocess.CompletedProcess:
    """Run `baton submit`, which may wait for minutes."""
    command = [world.baton.program, "submit", "--workdir", str(world.work), *arguments]
    done = subprocess.run(
        command,
        cwd=world.folder,
        env=world.baton.env,
        capture_output=True,
        text=True,
        timeout=patience_sec,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done


@pytest.mark.parametrize("headless", [True, False])
def test_claude_goes_on_by_itself_after_a_limit(world, model, headless):
    subscribe(world)
    model.will(bash("touch before"), limit(5), bash("touch after"), Say("all done"))
    began = time.monotonic()
    given = ["--headless"] if headless else []
    submit(world, "--agent", "claude-code", "--timeout", "60", *given, "work")
    job = world.baton("list", "--json").json[0]
    assert (job["status"], job["attempt"]) == ("completed", 2), job
    assert job["parked"]["attempt"] == 1
    assert (world.work / "before").exists() and (world.work / "after").exists()
    assert time.monotonic() - began > 5


def test_the_monitor_goes_on_with_a_job_that_nothing_else_waits_for(world, model):
    """As after a reboot: the process that submitted it, its session and the tmux server are gone."""
    subscribe(world)
    model.will(bash("touch before"), limit(8), Say("all done"))
    given = ("--agent", "claude-code", "--workdir", str(world.work), "--headless", "--detach")
    job = world.baton("submit", *given, "work").text.split()[0]
    world.until(lambda: world.record(job)["status"] == "pending", "the job to be parked")
    world.until(lambda: not world.baton("session", "list", "--json").json, "the end of its session")
    assert world.baton("list").out.split("\t")[2] == "limited"
    world.until(lambda: (world.baton("monitor", "--once"), world.record(job)["attempt"])[1] == 2, "the second attempt")
    ended = world.ended(job)
    assert (ended["status"], ended["attempt"]) == ("completed", 2), ended["reason"]
    assert "usage limit" in str(model.asked_last)


def test_a_job_that_does_not_wait_fails_at_the_limit(world, model):
    subscribe(world)
    model.will(limit(3600))
    done = submit(world, "--agent", "claude-code", "--headless", "--on-limit", "fail", "work")
    job = world.baton("list", "--json").json[0]
    assert (done.returncode, job["status"], job["ended_by"], job["attempt"]) == (1, "error", "limit", 1)
    assert "limit" in job["reason"]


def test_codex_does_not_pass_on_a_reset_so_its_words_are_the_reason(world, model):
    text = "You've hit your usage limit. Try again at 3:00 PM."
    model.will(Fail(429, text, "usage_limit_reached", headers={"x-codex-primary-reset-at": int(time.time()) + 60}))
    done = submit(world, "--agent", "codex", "--headless", "work")
    job = world.baton("list", "--json").json[0]
    assert (done.returncode, job["status"], job["parked"]) == (1, "error", None)
    assert "limit" in job["reason"]


# -- tokens and cost ---------------------------------------------------------------------------------------------------


def used(world, model, *, apart: bool = True) -> dict:
    """What the newest job has used; the last figures may come a moment after its end. `apart`: with requests beside the
    work, such as those for a title."""

    def counted() -> int:
        return sum(each.tokens for each in model.log) if apart else model.log[0].tokens * len(model.asked)

    return world.until(
        lambda: found if (found := _result(world))["tokens"] == counted() else None,
        f"{counted()} tokens, not {_result(world)}",
        15,
    )


def set_prices(world) -> None:
    settings = world.home / ".config/baton/baton.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('[prices."m"]\ninput = 2.0\noutput = 8.0\n')


def _result(world) -> dict:
    return world.baton("result", world.baton("list", "--json").json[0]["job_id"], "--json").json


@pytest.mark.parametrize("options", [["--headless"], []], ids=["headless", "terminal"])
def test_claude_says_tokens_and_dollars(world, model, options):
    model.will(bash("true"), bash("true"), Say("done"))
    assert submit(world, "--agent", "claude-code", *options, "work").returncode == 0
    result = used(world, model)
    # Claude Code's own total for this model: 5 USD for a million tokens of input, 25 for output.
    expected = sum(each["input_tokens"] * 5 + each["output_tokens"] * 25 for each in result["usage"]) / 1e6
    assert result["cost_usd"] == pytest.approx(expected, abs=1e-6)
    assert world.baton("cost", "--json").json["total"]["cost_usd"] == result["cost_usd"]


@pytest.mark.parametrize("options", [["--headless"], []], ids=["headless", "terminal"])
def test_codex_says_tokens_and_the_users_prices_give_dollars(world, model, options):
    model.will(bash("true"), Say("done"))
    assert submit(world, "--agent", "codex", *options, "work").returncode == 0
    assert used(world, model)["cost_usd"] is None
    assert world.baton("list", "--cost").out.splitlines()[0].split("\t")[-1] == "unknown"
    set_prices(world)
    model.log.clear()
    model.will(bash("true"), Say("done"))
    assert submit(world, "--agent", "codex", *options, "work").returncode == 0
    result = used(world, model)
    (usage,) = result["usage"]
    expected = (usage["input_tokens"] * 2 + usage["output_tokens"] * 8) / 1e6
    assert result["cost_usd"] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("options", [["--headless"], []], ids=["headless", "terminal"])
@pytest.mark.parametrize("agent", ["opencode", "copilot", "gemini", "qwen"])
def test_the_others_say_tokens(world, model, agent, options):
    model.will(bash("true"), Say("done"))
    assert submit(world, "--agent", agent, *options, "work").returncode == 0
    used(world, model, apart=agent == "copilot")


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--headless"], []], ids=["headless", "terminal"])
@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_claude_goes_on_beyond_its_budget_only_when_it_is_allowed(world, model, options, answer):
    # A script goes on where the conversation stands: what Claude did not get when it was interrupted comes again.
    model.scripts["s"] = [*([bash(f"sleep 1; touch {number}")] for number in range(6)), [Say("done")]]
    # What is denied is more than one answer of the model costs: its first call has ended by then.
    budget = "0.016" if answer == "deny" else "0.008"
    given = ("--agent", "claude-code", "--workdir", str(world.work), "--budget", budget, "--detach", *options)
    job = world.baton("submit", *given, f"{cue('s')} work").text.split()[0]
    request = world.until(lambda: world.baton("requests", "--json").json, "the budget request")[0]
    assert (request["kind"], request["job_id"]) == ("budget", job)
    assert world.record(job)["status"] == "running"
    assert len(list(world.work.iterdir())) < 6
    world.until(lambda: world.record(job)["activity"]["kind"] == "waiting", "the activity")
    if answer == "deny":
        world.until((world.work / "0").exists, "the tool that was open: a request does not end it, a denial does")
        world.baton("deny", request["request_id"])
        ended = world.ended(job)
        assert (ended["status"], ended["ended_by"]) == ("error", "budget")
        assert "USD" in ended["reason"]
        return
    while world.record(job)["status"] == "running":
        for each in world.baton("requests", "--json").json:
            world.baton("approve", each["request_id"], code=None)
    assert world.record(job)["status"] == "completed"
    assert model.find("s", 6) is not None, "it went on to the end of its script"
    answered = [each for each in world.baton("requests", "--all", "--json").json if each["state"] == "answered"]
    assert len(answered) >= 3
    spent = [each["call"]["spent_usd"] for each in answered]
    assert spent == sorted(spent)
    assert world.baton("result", job, "--json").json["cost_usd"] > 0.03


@pytest.mark.parametrize("options", [["--headless"], []], ids=["headless", "terminal"])
def test_codex_goes_on_beyond_its_budget_when_it_is_allowed(world, model, options):
    set_prices(world)
    model.scripts["s"] = [*([bash(f"sleep 1; touch {number}")] for number in range(4)), [Say("done")]]
    given = ("--agent", "codex", "--workdir", str(world.work), "--budget", "0.004", "--detach", *options)
    job = world.baton("submit", *given, f"{cue('s')} work").text.split()[0]
    request = world.until(lambda: world.baton("requests", "--json").json, "the budget request")[0]
    assert request["kind"] == "budget"
    while world.record(job)["status"] == "running":
        for each in world.baton("requests", "--json").json:
            world.baton("approve", each["request_id"], code=None)
    ended = world.record(job)
    assert (ended["status"], ended["attempt"]) == ("completed", 1), ended["reason"]
    # An interrupt may come before a call that the model has just asked for: a real model asks for it again.
    assert model.find("s", 4) is not None, "it went on to the end of its script"


@pytest.mark.parametrize("options", [["--headless"], []], ids=["headless", "terminal"])
def test_what_a_child_spends_counts_toward_the_budget_of_the_job_above_it(world, model, options):
    model.scripts["inner"] = [*([bash(f"sleep 1; touch {number}")] for number in range(6)), [Say("done")]]
    child = f"{world.baton.program} submit '{cue('inner')} work' --agent claude-code --workdir {world.work} --headless"
    model.scripts["s"] = [[bash(f"{child} --detach; touch begun; sleep 60")], [Say("done")]]
    given = ("--agent", "claude-code", "--workdir", str(world.work), "--budget", "0.025", "--detach", *options)
    job = world.baton("submit", *given, f"{cue('s')} work").text.split()[0]
    request = world.until(lambda: world.baton("requests", "--json").json, "the budget request", 120)[0]
    assert request["kind"] == "budget", request
    spent = {each["job_id"]: each["cost_usd"] or 0 for each in world.baton("list", "--cost", "--json").json}
    assert spent[job] < 0.025, "its own spending alone is beyond the budget"
    assert (world.work / "begun").exists()
    world.baton("deny", request["request_id"])
    ended = world.ended(request["job_id"])
    assert (ended["status"], ended["ended_by"]) == ("error", "budget")
    assert model.find("inner", 6) is None, "the child went on to its end"
    world.baton("cancel", job, code=None)


# -- in a session that takes jobs by its name --------------------------------------------------------------------------


def named_session(world) -> None:
    world.baton("session", "create", "named", "--agent", "claude-code", "--workdir", str(world.work))
    world.until(lambda: "for shortcuts" in world.screen("named"), "the prompt of Claude Code")


def test_a_named_session_goes_on_after_a_limit(world, model):
    subscribe(world)
    named_session(world)
    model.will(bash("touch before"), limit(3), bash("touch after"), Say("all done"))
    job = world.baton("submit", "--session", "named", "--idle-timeout", "20", "--detach", "work").text.split()[0]
    world.until(lambda: (world.record(job)["activity"] or {}).get("kind") == "limited", "the limit", 40)
    ended = world.ended(job, within_sec=150)
    assert (ended["status"], ended["attempt"], ended["parked"]) == ("completed", 1, None), ended
    assert (world.work / "after").exists()
    assert world.session("named")["state"] == "running"


def test_a_named_session_is_interrupted_at_the_budget_and_goes_on(world, model):
    named_session(world)
    model.scripts["s"] = [*([bash(f"sleep 1; touch {number}")] for number in range(4)), [Say("done")]]
    given = ("--session", "named", "--budget", "0.008", "--detach")
    job = world.baton("submit", *given, f"{cue('s')} work").text.split()[0]
    world.until(lambda: world.baton("requests", "--json").json, "the budget request")
    while world.record(job)["status"] == "running":
        for each in world.baton("requests", "--json").json:
            world.baton("approve", each["request_id"], code=None)
    ended = world.record(job)
    assert (ended["status"], ended["attempt"]) == ("completed", 1), ended["reason"]
    assert world.session("named")["state"] == "running"
