"""What a job left: the agent's last message, what it printed, what its validation printed, and its artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from support.command import BATON, Baton
from support.sessions import SessionDesk
from support.waiting import wait_until

# A headless Claude Code that does what its first prompt, which is Python, says, until its input ends.
CLAUDE = """\
#!{python}
import json, os, sys
def line(**message):
    print(json.dumps(message), flush=True)
def say(text):
    line(type="assistant", message={{"content": [{{"type": "text", "text": text}}]}})
def end(text):
    say(text)
    line(type="result", subtype="success", result=text)
line(type="system", subtype="init", session_id=sys.argv[sys.argv.index("--session-id") + 1])
for number, text in enumerate(sys.stdin):
    given = json.loads(text)["message"]["content"]
    if number:
        with open("told", "a") as file:
            file.write(given + "\\n--\\n")
        end("I tried again")
    else:
        exec(given.partition("# end")[0])
"""
REFUSED = "not completed: the validation failed with exit code 1: 1 failed"
ANSWER = "# The answer\n\n" + "".join(f"{number}. see /srv/project/src/module_{number}.py\n" for number in range(400))


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    program = folder / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE.format(python=sys.executable))
    program.chmod(0o755)
    desk = SessionDesk(folder, PATH=f"{program.parent}:{os.environ['PATH']}")
    yield desk
    desk.close()


def begin(desk, prompt, *more, agent="shell", options=()):
    job = desk.register(prompt, *more, agent=agent)
    desk("session", "create", f"s-{job}", "--job", job, *options)
    return job


def done(desk, prompt, *more, **settings):
    """The id of a job that has ended."""
    job = begin(desk, prompt, *more, **settings)
    desk.until_over(job)
    return job


def by_claude(desk, prompt, *more):
    return done(desk, f"{prompt}\n# end", *more, agent="claude-code", options=["--headless"])


def outputs(desk, job):
    folder = os.path.join(desk.home, "outputs", job)
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


def test_the_output_of_a_command_is_kept_as_it_was_printed(desk):
    job = done(
        desk, r"""seq 3000; printf '\033[1;31mred\033[0m \033]0;title\007end\r\n'; echo '  File "/srv/a/b.py"'"""
    )
    wanted = "".join(f"{number}\n" for number in range(1, 3001)) + 'red end\n  File "/srv/a/b.py"\n'
    assert desk("result", job).out == wanted
    assert desk("result", job[:6], "--output").out == wanted
    (path,) = outputs(desk, job)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_a_command_without_output_says_so(desk):
    job = done(desk, "true")
    assert desk.refused("result", job).startswith(f"baton: job {job} is completed and left no message and no output")
    assert desk("result", job, "--json").json["output"] == {"host": "here", "here": False}


def test_the_whole_answer_of_an_agent_is_kept(desk):
    job = by_claude(desk, f"say('I look at it'); end({ANSWER!r})")
    assert desk("result", job).out == ANSWER
    record = desk.job(job)
    assert record["status"] == "completed"
    assert len(record["detail"]) <= 300
    assert "/srv/" not in record["detail"]
    assert "/srv/" not in desk("logs", job, "--json").out
    assert desk("result", job, "--output").out == f"I look at it\n{ANSWER}\n"
    found = desk("result", job, "--json").json
    assert (found["message"], found["attempts"], found["status"]) == (ANSWER, 1, "completed")


def test_the_last_message_counts_also_when_the_agent_has_published_its_end_before(desk):
    publish = f"{BATON} publish --event completed --detail one-sentence --attempts 1"
    job = by_claude(desk, f"os.system({publish!r}); end({ANSWER!r})")
    wait_until(lambda: desk("result", job).out == ANSWER)
    assert desk.job(job)["detail"] == "one-sentence"


def test_the_artifacts_have_sizes_and_hashes(desk):
    job = done(desk, "printf 12345 > made; mkdir many; touch many/1", "--expect", "made", "--expect", "many")
    found = desk("result", job, "--json").json
    assert found["artifacts"] == [
        {"path": "made", "size": 5, "sha256": hashlib.sha256(b"12345").hexdigest()},
        {"path": "many", "size": None, "sha256": None},
    ]
    assert 0 < found["duration_sec"] < 60
    assert {found[name] for name in ("tokens", "cost_usd", "worktree", "commits", "message", "validation")} == {None}


def test_an_agent_that_is_sent_back_learns_what_the_validation_printed(desk):
    validate = "seq 1000 1299; echo FAILED /srv/tests/test_a.py::test_b; exit 1"
    job = by_claude(desk, "end('done')", "--validate", validate)
    lines = [*map(str, range(1101, 1300)), "FAILED /srv/tests/test_a.py::test_b"]
    with open(os.path.join(desk.folder, "told")) as file:
        told = file.read().split("\n--\n")
    assert len(told) == 4  # three times, and the end of the file
    assert told[0].endswith("\n".join(lines))
    found = desk("result", job, "--json").json
    assert found["validation"].splitlines() == lines
    assert found["ended_by"] == "verification"
    reason = found["reason"].splitlines()
    assert reason[0].startswith("not completed: the validation failed with exit code 1")
    assert reason[-100:] == lines[-100:]
    assert "/srv/" not in desk("logs", job, "--json").out


@pytest.mark.parametrize(("work", "out"), [("echo work", "work\n"), ("true", f"baton: {REFUSED}\n")])
def test_what_a_failed_validation_printed_is_shown_below_the_message_and_not_in_lists(desk, work, out):
    job = done(desk, work, "--validate", "echo test_sort /srv/a; echo '  expected 1'; echo 1 failed; exit 1")
    shown = desk("result", job)
    assert shown.out == out
    assert "the validation printed:\ntest_sort /srv/a\n  expected 1\n1 failed\n" in shown.err
    assert "publish again" not in shown.err
    assert "test_sort" not in desk("result", job, "--output").err
    assert desk("list", "--columns", "id,reason").out.count(f"{job}\t{REFUSED}\n") == 1
    assert desk("wait", job, code=1).out == f"{job}\terror\t{REFUSED}\n"


def test_a_validation_that_printed_one_line_is_not_repeated_in_the_reason(desk):
    job = done(desk, "true", "--validate", "echo test_sort failed; exit 1")
    assert desk.job(job)["reason"] == "not completed: the validation failed with exit code 1: test_sort failed"


def test_the_reason_of_a_failure_is_the_agents_own(desk):
    job = by_claude(
        desk, "print('--dangerously-skip-permissions cannot be used as root', file=sys.stderr); sys.exit(1)"
    )
    assert desk.job(job)["reason"] == (
        "claude-code ended with exit code 1 before it said that the job was done: "
        "--dangerously-skip-permissions cannot be used as root"
    )
    failed = done(desk, "echo 'Traceback:'; echo '  File \"/srv/a.py\", line 3'; exit 2")
    assert desk.job(failed)["reason"] == ('the command ended with exit code 2:\nTraceback:\n  File "/srv/a.py", line 3')
    assert "/srv/" not in desk("logs", failed, "--json").out
    assert '  File "/srv/a.py", line 3' in desk("session", "capture", f"s-{failed}").out


def test_an_unfinished_job_is_followed(desk):
    job = begin(desk, "echo one; until test -e go; do sleep 0.02; done; echo two")
    wait_until(lambda: os.path.isdir(os.path.join(desk.home, "outputs", job)))
    assert desk.refused("result", job) == f"baton: job {job} is still running; -f follows\n"
    so_far = desk("result", job, "--output", code=1)
    assert (so_far.out, so_far.err) == ("one\n", f"baton: job {job} is still running; -f follows\n")
    following = subprocess.Popen(
        [BATON, "result", job, "-f"], cwd=desk.folder, env=desk.env, stdout=subprocess.PIPE, text=True
    )
    assert following.stdout.readline() == "one\n"
    with open(os.path.join(desk.folder, "go"), "w"):
        pass
    assert following.stdout.readline() == "two\n"
    assert following.communicate(timeout=20)[0] == ""
    assert following.returncode == 0
    pending = desk.register("true")
    assert desk.refused("result", pending) == f"baton: job {pending} is still pending; -f follows\n"
    assert "one job" in desk.refused("result", job, pending, "-f", code=64)


def test_a_kill_loses_at_most_a_second_of_the_output(desk):
    job = begin(desk, "seq 200; echo last; sleep 600")
    wait_until(lambda: desk("result", job, "--output", code=None).out.endswith("last\n"))
    os.kill(desk.row(f"s-{job}")["pane_pid"], signal.SIGKILL)
    desk("cancel", job)
    assert desk("result", job).out == "".join(f"{number}\n" for number in range(1, 201)) + "last\n"


def test_of_a_long_output_the_end_is_kept(desk, monkeypatch):
    monkeypatch.setitem(desk.env, "BATON_KEEP_OUTPUT_MB", "1")
    job = done(desk, "seq 400000; echo the end")
    shown = desk("result", job)
    lines = shown.out.splitlines()
    assert lines[-1] == "the end"
    assert lines[:-1] == [str(number) for number in range(int(lines[0]), 400_001)]
    assert 400_000 < len(shown.out) <= 1_000_000
    assert sum(map(os.path.getsize, outputs(desk, job))) <= 1_000_000
    assert shown.err.splitlines() == [
        "baton: the beginning of this output is not kept: it is longer than 1 MB",
        f"job {job} done: unchecked: only the word of its agent",
    ]


def test_batons_own_keys_are_in_no_result(desk):
    job = done(desk, 'baton get "$BATON_JOB_ID" --show-secrets; echo "$MQTT_PASSWORD" | sed s/./\\&/', "--validate",
               'baton get "$BATON_JOB_ID" --show-secrets', options=[])  # fmt: skip
    key = desk("get", job, "--show-secrets").json["auth_token"]
    shown = desk("result", job).out
    assert '"auth_token": "***"' in shown
    found = desk("result", job, "--json").json
    assert '"auth_token": "***"' in found["validation"]
    assert key not in shown + json.dumps(found)
    answered = by_claude(desk, f"end('the key is ' + os.popen('{BATON} get $BATON_JOB_ID --show-secrets').read())")
    assert '"auth_token": "***"' in desk("result", answered).out


def test_several_jobs(desk):
    first, second = done(desk, "echo first"), done(desk, "echo second")
    assert desk("result", first, second).out == f"==> {first} <==\nfirst\n==> {second} <==\nsecond\n"
    assert [each["job_id"] for each in desk("result", first, second, "--json").json] == [first, second]


def test_a_job_that_was_sent_to_a_running_shell_has_its_own_output(desk):
    desk("session", "create", "worker", "--agent", "shell")
    queue = f"agent:{desk.row('worker')['agent_id']}"
    first, second = (desk.register(f"echo from {name}", "--agent-session", queue) for name in ("one", "two"))
    desk.until_over(second)
    assert desk("result", first).out.count("from one\n") == desk("result", second).out.count("from two\n") == 1
    assert "from one" not in desk("result", second).out


class TestWithoutASession:
    @pytest.fixture
    def baton(self, tmp_path):
        return Baton(tmp_path, BATON_AGENT="shell", MQTT_BROKER="127.0.0.1", MQTT_PORT="9", BATON_HOST="here")

    def test_a_published_message_is_kept_whole(self, baton):
        job = baton("register", "true").text
        key = baton("get", job, "--show-secrets").json["auth_token"]
        text = f"{ANSWER}\nsigned with {key}"
        baton("publish", job, "--event", "completed", "--detail", text, "--attempts", "1")
        assert baton("result", job).out == text.replace(key, "***") + "\n"
        assert "/srv/" not in baton("get", job).json["detail"]
        assert baton("result", job, LANG="C", LC_ALL="C").out == text.replace(key, "***") + "\n"

    def test_a_refused_publish_shows_what_the_validation_printed(self, baton):
        job = baton("register", "true", "--validate", "echo first; echo /srv/last; false").text
        refused = baton("publish", job, "--event", "completed", "--attempts", "1", code=1)
        assert refused.err.splitlines()[-3:-1] == ["first", "/srv/last"]
        assert refused.err.splitlines()[-1].startswith(f"baton: job {job} is not completed")

    def test_the_output_is_on_the_host_where_the_job_ran(self, baton):
        job = baton("register", "true").text
        baton("pick", "--holder", "gpu-7:123")
        assert baton.refused("result", job, "-f") == (
            f"baton: the output of job {job} is on gpu-7, where it ran; run `baton result` there\n"
        )
        baton("publish", job, "--event", "completed", "--detail", "all done", "--attempts", "1")
        assert baton("result", job).out == "all done\n"
        assert baton.refused("result", job, "--output") == (
            f"baton: the output of job {job} is on gpu-7, where it ran; run `baton result` there\n"
        )
        assert baton("result", job, "--json").json["output"] == {"host": "gpu-7", "here": False}

    def test_results_move_with_the_registry(self, baton):
        job = baton("register", "true", "--validate", "echo fine").text
        baton("publish", job, "--event", "completed", "--detail", ANSWER, "--attempts", "1")
        baton("registry", "migrate", "--to", "file:.hermes/other")
        found = baton("result", job, "--json").json
        assert (found["message"], found["validation"]) == (ANSWER, "fine")
