"""Agents of the config file: any program can be one."""

from __future__ import annotations

import json
import sys

import pytest

from support.command import Baton
from support.homes import home_of
from support.processes import end_broker
from support.waiting import wait_until

# Writes down how it was called, then does what it was told: its prompt is Python.
PROGRAM = """\
#!{python}
import json, os, sys
prompt = sys.stdin.read() if "--stdin" in sys.argv else open(sys.argv[2]).read() if sys.argv[1] == "--file" else ""
json.dump(sys.argv[1:], open("called.new", "w"))
os.replace("called.new", "called")
exec(prompt)
"""


@pytest.fixture
def baton(tmp_path, tmux):
    program = tmp_path / "bin" / "parrot"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    baton = Baton(tmp_path, BATON_TMUX_SOCKET=tmux.socket)
    home_of(tmp_path, baton.env)
    baton.env["PATH"] = f"{program.parent}:{baton.env['PATH']}"
    yield baton
    end_broker(baton)


def configure(baton, *lines: str) -> None:
    (baton.folder / ".hermes" / "baton.toml").write_text("\n".join(["[agents.parrot]", *lines]))


def job(baton, prompt: str, *options: str) -> str:
    given = ("--agent", "parrot", "--workdir", str(baton.folder / "work"), *options, "-")
    return baton("register", *given, stdin=prompt).text


def ended(baton, name: str) -> dict:
    """The session once it is over."""
    return wait_until(lambda: shown if (shown := baton("session", "show", name).json)["state"] != "running" else None)


def done(baton, prompt: str, *options: str) -> dict:
    """The job once a session has done it."""
    work = job(baton, prompt)
    baton("session", "create", "s", "--job", work, "--replace", *options)
    ended(baton, "s")
    return baton("get", work).json


def called(baton) -> list[str]:
    return json.loads((baton.folder / "work" / "called").read_text())


def test_a_prompt_is_an_argument_of_its_own_and_nothing_in_it_is_filled_in(baton):
    configure(baton, 'interactive = ["parrot", "--in={workdir}", "{prompt}", "{prompt}"]')
    prompt = "--help\n'a' \"b\" $(touch canary) {workdir} {prompt_file} {prompt};"
    assert done(baton, prompt)["status"] == "completed"
    assert called(baton) == [f"--in={baton.folder / 'work'}", prompt, prompt]
    assert not list(baton.folder.rglob("canary"))


@pytest.mark.parametrize("way", ['interactive = ["parrot", "--file", "{prompt_file}"]', 'interactive = ["parrot", "--stdin"]\nstdin = true'])  # fmt: skip
def test_a_prompt_in_a_file_or_on_standard_input_may_be_long(baton, way):
    configure(baton, way)
    long = f"open('out', 'w').write({'x' * 1_000_000!r})"
    assert done(baton, long)["status"] == "completed"
    assert (baton.folder / "work" / "out").stat().st_size == 1_000_000


def test_a_prompt_that_fits_into_no_argument_is_refused_before_anything_is_made(baton):
    configure(baton, 'interactive = ["parrot", "{prompt}"]')
    work = job(baton, "x" * 200_000)
    assert "takes no prompt of more than" in baton.refused("session", "create", "s", "--job", work)
    assert baton("status", work).text == "pending"


def test_the_exit_code_is_the_verdict(baton):
    configure(baton, 'interactive = ["parrot", "--file", "{prompt_file}"]')
    record = done(baton, "sys.exit(3)")
    assert (record["status"], record["detail"]) == ("error", "the command ended with exit code 3")


def test_its_output_is_read_as_the_config_file_says(baton):
    configure(
        baton,
        'headless = ["parrot", "--file", "{prompt_file}"]',
        'resume = ["parrot", "--go-on", "{conversation_id}"]',
        "[agents.parrot.output]",
        "conversation_id = '^session (\\S+)$'",
        "progress = '^step: (.*)'",
        "finished = '^done'",
        "failed = '^sorry, (.*)'",
    )
    record = done(baton, "print('session 4711'); print('step: one'); print('done and dusted')", "--headless")
    assert (record["status"], record["detail"]) == ("completed", "done")
    assert baton("session", "show", "s").json["conversation_id"] == "4711"
    baton("session", "resume", "s")
    ended(baton, "s")
    assert called(baton) == ["--go-on", "4711"]
    record = done(baton, "print('sorry, no time', end='')", "--headless")
    assert (record["status"], record["detail"]) == ("error", "no time")


@pytest.mark.parametrize(
    ("said", "when"),
    [("done", "though it had said that the job was done"), ("-", "before it said that the job was done")],
)
def test_what_it_said_and_how_it_ended_are_both_told(baton, said, when):
    configure(
        baton,
        f'headless = ["sh", "-c", "echo {said}; exit 3", "{{prompt}}"]',
        "exit_is_verdict = false",
        "[agents.parrot.output]",
        "finished = '^done'",
    )
    record = done(baton, "x", "--headless")
    assert (record["status"], record["detail"]) == (
        "error",
        f"parrot ended with exit code 3 {when}; its last line: {said}",
    )


def test_an_id_of_our_choice_is_the_one_it_goes_on_with(baton):
    configure(
        baton,
        'interactive = ["parrot", "--new", "{conversation_id}"]',
        'resume = ["parrot", "--go-on", "{conversation_id}", "{prompt}"]',
        "chooses_id = true",
    )
    baton("session", "create", "s", "--agent", "parrot", "--workdir", "work")
    conversation = ended(baton, "s")["conversation_id"]
    assert called(baton) == ["--new", conversation]
    baton("session", "resume", "s", "--prompt", "and then?")
    ended(baton, "s")
    assert called(baton) == ["--go-on", conversation, "and then?"]


def test_one_that_remembers_by_itself_needs_no_id(baton):
    configure(baton, 'interactive = ["parrot"," "]', 'resume = ["parrot", "--restore"]')
    baton("session", "create", "s", "--agent", "parrot", "--workdir", "work")
    ended(baton, "s")
    baton("session", "resume", "s")
    ended(baton, "s")
    assert called(baton) == ["--restore"]


def sent_back(baton, *resume: str) -> dict:
    """The job once it is over, whose file was missing when its agent ended for the first time."""
    configure(
        baton,
        'headless = ["sh", "-c", "echo session 4711"]',
        *resume,
        "[agents.parrot.output]",
        "conversation_id = '^session (\\S+)$'",
    )
    work = job(baton, "write it", "--expect", "out")
    baton("session", "create", "s", "--job", work, "--headless")
    ended(baton, "s")
    return baton("get", work).json


def test_a_headless_job_is_sent_back_by_the_headless_command(baton):
    record = sent_back(
        baton,
        """resume_interactive = ["sh", "-c", "sleep 600"]""",
        """resume_headless = ["sh", "-c", "echo $1 > out; cat $2 >> out", "sh", "{conversation_id}", "{prompt_file}"]""",
    )
    assert record["status"] == "completed"
    assert (baton.folder / "work" / "out").read_text().startswith("4711\nbaton refused your work: ")


def test_a_conversation_that_needs_no_id_is_sent_back_without_one(baton):
    configure(
        baton, 'headless = ["true"]', 'resume_headless = ["cp", "{prompt_file}", "out"]', "[agents.parrot.output]"
    )
    work = job(baton, "write it", "--expect", "out")
    baton("session", "create", "s", "--job", work, "--headless")
    ended(baton, "s")
    assert baton("get", work).json["status"] == "completed"


@pytest.mark.parametrize("resume", ['resume = ["sleep", "600"]', 'resume_headless = ["sleep", "600"]'])
def test_a_headless_job_is_not_sent_back_without_a_headless_command_for_a_prompt(baton, resume):
    record = sent_back(baton, resume)
    assert (record["status"], record["detail"]) == ("error", "not completed: out is missing")


def test_each_mode_has_its_own_command_to_resume(baton):
    configure(baton, 'headless = ["parrot", "x"]', 'resume_headless = ["parrot", "{prompt}"]', 'yolo = ["-y"]')
    first = job(baton, "x")
    baton("session", "create", "s", "--job", first, "--headless")
    ended(baton, "s")
    assert "has no `resume_interactive` in the config file" in baton.refused("session", "resume", "s")
    baton("follow-up", first, "go on", "--timeout", "60")
    assert called(baton) == ["go on"]


SUCCESS = ('headless = ["parrot", "--file", "{prompt_file}"]', "success = '^all (good|well)$'")


def test_exit_code_0_without_the_words_of_success_is_an_error_that_says_so(baton):
    configure(baton, *SUCCESS)
    assert done(baton, "print('all good')", "--headless")["status"] == "completed"
    record = done(baton, "print('the service is down')\nprint()", "--headless")
    why = "the command ended with exit code 0; no line of its output matches `success`; its last line: "
    assert (record["status"], record["detail"]) == ("error", f"{why}the service is down")
    record = done(baton, "print('all good'); sys.exit('no')", "--headless")
    why = "the command ended with exit code 1; its last line: all good: no"
    assert (record["status"], record["detail"]) == ("error", why)


def test_a_job_whose_success_could_not_be_heard_is_refused(baton):
    configure(baton, 'interactive = ["parrot", "x"]', *SUCCESS)
    work = job(baton, "x")
    assert "use --headless" in baton.refused("session", "create", "s", "--job", work)
    baton("session", "create", "s", "--agent", "parrot", "--workdir", "work", "--prompt", "x")


def test_yolo_is_only_what_the_config_file_says(baton):
    configure(baton, 'interactive = ["parrot", "x"]')
    create = ("session", "create", "s", "--agent", "parrot", "--workdir", "work", "--yolo")
    assert "has no `yolo` in the config file" in baton.refused(*create)
    configure(baton, 'interactive = ["parrot", "x"]', 'yolo = ["--anything-goes"]')
    baton(*create)
    assert ended(baton, "s")["yolo"] is True
    assert called(baton) == ["x", "--anything-goes"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (['interactive = "parrot"'], "interactive must be a list of arguments"),
        (['interactive = ["parrot"]', "interactiv = 1"], "has 'interactiv', which is none of"),
        (['yolo = ["-y"]'], "needs `interactive` or `headless`"),
        (['interactive = ["parrot"]', "[agents.parrot.output]", "progress = '('"], "output.progress is not a valid pattern"),
        (['interactive = ["parrot"]', "[agents.parrot.output]", "sorrow = 'x'"], "has 'output.sorrow', which is none of"),
        (['interactive = ["no-such-program-anywhere"]', 'install = "pip install it"'], "not on your PATH: pip install it"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(baton, lines, told):
    configure(baton, *lines)
    code = 1 if "PATH" in told else 64
    assert told in baton.refused("session", "create", "s", "--agent", "parrot", code=code)
