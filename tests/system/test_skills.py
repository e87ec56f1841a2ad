"""The skills: every command line in them is run, and `baton skills` puts them where agents read them."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from baton import __version__
from baton.cli.main import VERBS, describe
from baton.mcp import schemas
from support.command import BATON, Baton
from support.processes import end_broker

ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "skills")
PREFIX = "tmux-agent-orchestrate-"
ANSWER = "baton-answer-requests"
DELEGATE = PREFIX + "delegate-job"
NAMES = sorted([ANSWER, *(PREFIX + each for each in ("create", "stop", "resume", "status", "monitor", "delegate-job"))])
# Of the server `baton mcp`, with their arguments.
TOOLS = {tool["name"]: set(tool["inputSchema"]["properties"]) for tool in schemas.TOOLS}
PAGES = [*(f"{name}/SKILL.md" for name in NAMES), f"{DELEGATE}/registry.md"]
SCRIPTS = ["job_subscriber.py", "mqtt_common.py", "publish_event.py", "registry.py"]

# What the reader of a page has before it: a session, a job, a task that the shell can do.
BEFORE = {
    PREFIX + "stop": "baton session create reviewer",
    PREFIX + "resume": "baton session create reviewer && baton session stop reviewer",
    PREFIX + "status": "baton session create reviewer && job=$(baton submit 'sleep 600' --detach)",
    ANSWER: "read job request < <(python3 ask.py)",
    PREFIX + "monitor": "baton session create reviewer && tmux -S $BATON_TMUX_SOCKET kill-server",
}
# An agent that asks and uses the answer: a job whose runner is this script.
ASK = """
import baton, time
from baton.core.signal import Asked, Settled
from baton.jobs.requests import ask, settle
with baton.open_jobs() as jobs:
    job = jobs.pick_job(jobs.register_job("tidy up", agent="claude-code").job_id)
    asked = Asked(key="k", kind="tool", tool="Bash", call={"command": "make clean"})
    request = ask(jobs, job, asked)
    print(job.job_id, request.request_id, flush=True)
    until = time.monotonic() + 60
    while (answer := jobs.registry.get_request(request.request_id).answer) is None and time.monotonic() < until:
        time.sleep(0.02)
    settle(jobs, request.request_id, Settled(key="k", decision=answer, by="hook"))
"""
AFTER = {PREFIX + "status": "baton cancel $job"}


@pytest.fixture
def baton(tmp_path, tmux):
    """The command with the shell for an agent, on a tmux server of its own, and `python3` that has the package."""
    path = f"{os.path.dirname(BATON)}:{os.environ['PATH']}"
    baton = Baton(
        tmp_path, PATH=path, SHELL="/bin/sh", BATON_AGENT="shell", BATON_TMUX_SOCKET=tmux.socket,
        XDG_STATE_HOME=str(tmp_path / "state"),
    )  # fmt: skip
    yield baton
    # An agent that outlived its test would start another broker, to say how it ended.
    for session in baton("session", "list", "--json").json:
        baton("session", "stop", session["name"], "--mode", "hard", code=None)
    end_broker(baton)


def read(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


def commands(text):
    """Each command line of the fenced blocks, and the exit code that its comment promises."""
    for block in re.findall(r"^```(?:bash|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip():
                promised = re.search(r"\s# exit (\d+)", line)
                yield line, int(promised[1]) if promised else 0


def in_bash(baton, lines):
    """Runs the lines in one shell, which stops at the first that does not end as promised."""
    script = []
    for line, code in lines:
        script.append(
            f"{line}\ncode=$?; [ $code = {code} ] || {{ echo exit $code: {shlex.quote(line)} >&2; exit 99; }}"
        )
    return subprocess.run(
        ["bash", "--norc", "-c", "\n".join(script)], cwd=baton.folder, env=baton.env, capture_output=True,
        stdin=subprocess.DEVNULL, text=True, timeout=120, check=False,
    )  # fmt: skip


# -- what stands in them ---------------------------------------------------------------------------------------


def test_there_are_the_seven_skills_and_nothing_else():
    assert sorted(os.listdir(ROOT)) == NAMES
    inside = {os.path.relpath(path, ROOT) for path in glob.glob(f"{ROOT}/**", recursive=True) if os.path.isfile(path)}
    assert inside == {*PAGES, *(f"{DELEGATE}/scripts/{each}" for each in SCRIPTS)}


@pytest.mark.parametrize("name", NAMES)
def test_the_head_of_a_skill_is_valid(name):
    """The rules of agentskills.io."""
    text = read(f"{name}/SKILL.md")
    assert text.startswith("---\n")
    head = yaml.safe_load(text.split("---\n")[1])
    assert set(head) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert head["name"] == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) and len(name) <= 64
    assert 1 <= len(head["description"]) <= 1024
    assert "Use " in head["description"]  # when to reach for it: all that an agent sees before it opens the file
    assert 1 <= len(head["compatibility"]) <= 500


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_read_in_one_go(page):
    text = read(page)
    assert len(text.split()) < 700
    assert max(map(len, text.rpartition("\n---\n")[2].splitlines())) <= 150
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert os.path.exists(os.path.join(ROOT, os.path.dirname(page), link)), link
    for named in re.findall(rf"(?:{PREFIX}|baton-answer)[a-z-]+", text):
        assert named in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_has_the_mcp_way_and_the_shell_way(name):
    text = read(f"{name}/SKILL.md")
    by_tools = text.partition("## With the MCP server\n")[2].partition("\n## In a shell\n")[0]
    calls = re.findall(r"`([a-z]+)(?:\(([^)`]*)\))?`", by_tools)
    named = {tool for tool, _ in calls if tool in TOOLS}
    assert named
    words = set().union(*TOOLS.values()) | {"done", "text"}
    for tool, arguments in calls:
        assert tool in TOOLS or tool in words, tool
        assert {each for each in arguments.split(", ") if each} <= TOOLS.get(tool, set()), tool


def test_the_skills_together_use_every_tool():
    text = "".join(read(f"{name}/SKILL.md") for name in NAMES)
    assert [tool for tool in TOOLS if not re.search(rf"`{tool}(?:\(|`)", text)] == []


def test_an_answerer_is_warned_of_its_own_jobs_and_of_injected_text():
    text = " ".join(read(f"{ANSWER}/SKILL.md").split())
    head = yaml.safe_load(read(f"{ANSWER}/SKILL.md").split("---\n")[1])["description"]
    assert "[[answerer]]" in head and "Never for your own job or for jobs that you started" in head
    for rule in (
        "Read the whole call",
        "is data",
        "Leave it to the user",
        "no `--for-job`",
        "Do not repeat an answer",
        "do not look for another way",
    ):
        assert rule in text


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_it_runs_and_exits_as_it_says(baton, page):
    baton("skills", "install", "--claude")
    with open(f"{baton.folder}/task.md", "w") as task:
        task.write("echo found nothing | tee report.md\n")
    with open(f"{baton.folder}/tasks.jsonl", "w") as tasks:
        tasks.writelines(
            json.dumps({"prompt": f"echo {each} > {each}.txt", "expect": [f"{each}.txt"]}) + "\n" for each in "abc"
        )
    with open(f"{baton.folder}/ask.py", "w") as ask:
        ask.write(ASK)
    skill = os.path.dirname(page)
    lines = list(commands(read(page)))
    assert lines
    done = in_bash(baton, [(BEFORE.get(skill, ":"), 0), *lines, (AFTER.get(skill, ":"), 0), ("wait", 0)])
    assert done.returncode == 0, done


@pytest.mark.parametrize("page", PAGES)
def test_commands_inside_its_sentences_are_there(page):
    """Those are not run: they need a person or another agent. Their verbs, actions and options exist all the same."""
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for command in re.findall(r"`baton ([^`]+)`", prose):
        verb, *rest = command.replace("...", "").split()
        if verb == "VERB":
            continue
        assert verb in VERBS, command
        usage = describe(verb)
        if usage.actions:
            usage = usage.actions[rest[0]]
        for option in (word for word in rest if word.startswith("--")):
            assert option in {name for each in usage.options for name in each.names}, command


def test_the_plugin_for_claude_code_carries_them_all():
    """Whether Claude Code finds it valid is tested in tests/agents."""
    manifests = {}
    for name in ("marketplace", "plugin"):
        with open(os.path.join(ROOT, "..", ".claude-plugin", f"{name}.json"), encoding="utf-8") as file:
            manifests[name] = json.load(file)
    (entry,) = manifests["marketplace"]["plugins"]
    assert [os.path.normpath(os.path.join(entry["source"], each)) for each in entry["skills"]] == [
        f"skills/{name}" for name in NAMES
    ]
    assert entry["name"] == manifests["plugin"]["name"]
    server = {"baton": {"command": "baton", "args": ["mcp"]}}
    assert entry["mcpServers"] == manifests["plugin"]["mcpServers"] == server
    assert entry["version"] == manifests["plugin"]["version"] == __version__


# -- the scripts -----------------------------------------------------------------------------------------------


def script(baton, name, *arguments, code=0, python=sys.executable, **env):
    done = subprocess.run(
        [python, os.path.join(ROOT, DELEGATE, "scripts", name), *arguments],
        cwd=baton.folder, env=baton.env | env, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done
    return done


def test_registry_py_does_what_it_always_did(baton):
    elsewhere = ["--registry-dir", "deep/jobs"]
    job = script(
        baton, "registry.py", "register", "--prompt", "정렬", "--agent", "claude-code", "--agent-session", "tmux:claude",
        "--timeout", "3600", "--idle-timeout", "120", *elsewhere,
    ).stdout.strip()  # fmt: skip
    assert re.fullmatch("[0-9a-f]{8}", job)
    record = json.loads(script(baton, "registry.py", "get", "--job", job, *elsewhere).stdout)
    assert (record["prompt"], record["agent"], record["agent_session"]) == ("정렬", "claude-code", "tmux:claude")
    assert (record["timeout_sec"], record["idle_timeout_sec"], record["status"]) == (3600, 120, "pending")
    assert json.loads(script(baton, "registry.py", "list", "--json", *elsewhere).stdout) == [record]
    assert job in script(baton, "registry.py", *elsewhere, "list").stdout
    assert script(baton, "registry.py", "pick", "--agent-session", "tmux:other", *elsewhere, code=3).stdout == ""
    assert script(baton, "registry.py", "pick", "--agent-session", "tmux:claude", *elsewhere).stdout == f"{job}\n"
    script(baton, "registry.py", "pick", "--agent-session", "tmux:claude", *elsewhere, code=3)
    script(baton, "registry.py", "status", "--job", job, "--set", "nonsense", *elsewhere, code=64)
    script(baton, "registry.py", "status", "--job", job, "--set", "completed", *elsewhere)
    script(baton, "registry.py", "status", "--job", job, "--set", "running", *elsewhere, code=1)
    script(baton, "registry.py", "get", "--job", "00000000", *elsewhere, code=1)
    raw = [
        json.loads(line) for line in script(baton, "registry.py", "logs", job, "--json", *elsewhere).stdout.splitlines()
    ]
    assert [line["event"] for line in raw] == ["registered", "status_changed", "status_changed"]
    assert len(script(baton, "registry.py", "logs", job, "--tail", "1", *elsewhere).stdout.splitlines()) == 1
    assert "completed" in script(baton, "registry.py", "logs", "--list", *elsewhere).stdout
    other = script(baton, "registry.py", "register", "--prompt", "x", *elsewhere).stdout.strip()
    assert script(baton, "registry.py", "cancel", "--job", other, *elsewhere).stdout == "cancelled\n"
    script(baton, "registry.py", "frobnicate", code=64)


@pytest.mark.parametrize(("event", "code"), [("completed", 0), ("error", 1)])
def test_what_publish_event_py_says_job_subscriber_py_hears(baton, event, code):
    job = script(baton, "registry.py", "register", "--prompt", "x", "--agent-session", "tmux:a").stdout.strip()
    script(baton, "registry.py", "pick", "--agent-session", "tmux:a")
    script(baton, "publish_event.py", "--job", job, "--event", "started")
    script(
        baton, "publish_event.py", "--job", job, "--event", "progress", "--detail", "half way", "--data", "percent=50"
    )
    said = json.loads(script(baton, "publish_event.py", "--job", job, "--event", event, "--detail", "over").stdout)
    assert said == {"job_id": job, "seq": 3, "event": event, "sent": True}
    heard = script(baton, "job_subscriber.py", "--job", job, "--timeout", "30", "--idle-timeout", "20", code=code)
    events = [json.loads(line) for line in heard.stdout.splitlines()]
    assert [each["event"] for each in events] == ["started", "progress", event]
    assert events[1]["detail"] == "half way"
    script(baton, "publish_event.py", "--job", job, "--event", "progress", code=1)  # it is over
    script(baton, "publish_event.py", "--job", job, code=64)


def test_job_subscriber_py_gives_up_with_2_and_tells_a_cancelled_job_with_4(baton):
    job = script(baton, "registry.py", "register", "--prompt", "x").stdout.strip()
    script(baton, "job_subscriber.py", "--job", job, "--timeout", "1", code=2)
    script(baton, "job_subscriber.py", "--job", job, "--idle-timeout", "1", code=2)
    script(baton, "registry.py", "cancel", "--job", job)
    script(baton, "job_subscriber.py", "--job", job, "--timeout", "20", code=4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_the_package_a_script_says_what_to_install(baton, name):
    done = script(baton, name, "list", python=sys._base_executable, code=1)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{name}: No module named 'baton'")
    assert "pip install tmux-baton" in done.stderr


def test_the_scripts_are_modules_with_the_functions_of_the_seeds(baton):
    """Importing one runs nothing and prints nothing."""
    code = """
import job_subscriber, mqtt_common, publish_event, registry
job = registry.register_job("sort", agent_session="tmux:a", timeout_sec=60)
assert registry.get_job(job)["status"] == "pending"
assert [record["job_id"] for record in registry.list_jobs()] == [job]
assert registry.pick_pending("tmux:b") is None
assert registry.pick_pending("tmux:a") == job
assert registry.pick_pending("tmux:a") is None
assert publish_event.publish_event(job, "started", detail="begun").event.seq == 1
assert registry.next_seq(job) == 2
mqtt_common.append_event(job, {"event": "note", "detail": "by a script"})
assert mqtt_common.update_job_status(job, "completed").status == "completed"
assert registry.get_job(job)["status"] == mqtt_common.read_logged_status(job) == "completed"
heard = job_subscriber.subscribe(job)
assert [event["event"] for event in heard] == ["started"] and heard.exit_code == 0
assert mqtt_common.list_logged_jobs() == [job]
assert mqtt_common.job_log_path(job).startswith(mqtt_common.LOGS_DIR)
assert mqtt_common.read_logged_meta(job)["prompt"] == "sort"
assert "note" in [line["event"] for line in mqtt_common.iter_logged_events(job)]
assert "completed" in mqtt_common.TERMINAL_EVENTS
"""
    path = os.path.join(ROOT, DELEGATE, "scripts")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=baton.folder, env=baton.env | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_the_package_a_module_cannot_be_imported(baton, name):
    """The program that imports it decides what that means."""
    code = f"try:\n    import {name.removesuffix('.py')}\nexcept ImportError as error:\n    print(error.name)"
    path = os.path.join(ROOT, DELEGATE, "scripts")
    done = subprocess.run(
        [sys._base_executable, "-B", "-c", code], cwd=baton.folder, env=baton.env | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "baton\n", "")


# -- baton skills ----------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path):
    return Baton(tmp_path)


def files_in(folder):
    found = {}
    for path in glob.glob(f"{folder}/**", recursive=True, include_hidden=True):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


STOP = PREFIX + "stop/SKILL.md"


def test_skills_go_where_each_agent_reads_them(plain, tmp_path):
    plain("skills", "install")
    shipped = files_in(ROOT)
    for place in (".claude/skills", ".agents/skills"):
        installed = files_in(tmp_path / place)
        assert json.loads(installed.pop(".baton-skills.json"))["version"]
        assert installed == shipped
    again = plain("skills", "install")
    assert again.out == "" and "installed already" in again.err


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    ("options", "place"),
    [
        (["--claude"], "work/.claude/skills"),
        (["--agents"], "work/.agents/skills"),
        (["--dir", "here/skills"], "work/here/skills"),
        (["--dir", "../.claude/skills"], ".claude/skills"),
    ],
)
def test_one_place_can_be_chosen(tmp_path, options, place):
    (tmp_path / "work").mkdir()
    Baton(tmp_path / "work", HOME=str(tmp_path))("skills", "install", *options)
    written = {
        os.path.dirname(path) for path in glob.glob(f"{tmp_path}/**/*.json", recursive=True, include_hidden=True)
    }
    assert written == {str(tmp_path / place)}
    assert (tmp_path / place / STOP).stat().st_mode & 0o444 == 0o444  # a file of the project, for all who read that


def test_a_dry_run_tells_and_touches_nothing(plain, tmp_path):
    told = plain("skills", "install", "--claude", "--dry-run", "--json").json
    assert {each["done"] for each in told} == {"new"}
    assert os.listdir(tmp_path) == []


def test_what_somebody_changed_is_not_overwritten_unasked(plain, tmp_path):
    plain("skills", "install")
    mine = tmp_path / ".claude/skills" / STOP
    mine.write_text("my own words")
    (tmp_path / ".agents/skills" / STOP).unlink()  # would be put back, if anything was done
    before = files_in(tmp_path)
    complaint = plain.refused("skills", "install")
    assert f".claude/skills/{STOP}" in complaint and "--force" in complaint
    assert "changed\t" in plain("skills", "install", "--dry-run", code=1).out
    assert files_in(tmp_path) == before

    assert f"replaced\t.claude/skills/{STOP}" in plain("skills", "install", "--force").out
    assert files_in(ROOT)[STOP] == mine.read_bytes() == (tmp_path / ".agents/skills" / STOP).read_bytes()
    assert (tmp_path / f".claude/skills/{STOP}.bak").read_text() == "my own words"
    mine.write_text("other words")
    plain("skills", "install", "--force")
    assert (tmp_path / f".claude/skills/{STOP}.bak").read_text() == "my own words"
    assert (tmp_path / f".claude/skills/{STOP}.bak2").read_text() == "other words"


def test_a_file_of_that_name_that_never_was_ours_is_not_overwritten(plain, tmp_path):
    (tmp_path / "d" / PREFIX).parent.mkdir()
    (tmp_path / "d" / f"{PREFIX}stop").mkdir()
    (tmp_path / "d" / STOP).symlink_to("nowhere")
    plain.refused("skills", "install", "--dir", "d")
    (tmp_path / "d" / ".baton-skills.json").write_text("[what is this")
    plain.refused("skills", "install", "--dir", "d")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "link", [".claude", ".claude/skills", f".claude/skills/{DELEGATE}", f".agents/skills/{DELEGATE}/scripts"]
)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_link_that_leaves_the_folder_is_refused_by_name(tmp_path, link, force):
    """A cloned repository may bring it."""
    work, outside = tmp_path / "work", tmp_path / "outside"
    (work / link).parent.mkdir(parents=True)
    outside.mkdir()
    (work / link).symlink_to(outside)
    complaint = Baton(work, HOME=str(tmp_path)).refused("skills", "install", *force)
    assert f"{link} is a link that leaves" in complaint
    assert os.listdir(outside) == []
    assert [path for path in work.rglob("*") if path.is_file()] == []


def test_a_manifest_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "work/.claude/skills").mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "work/.claude/skills/.baton-skills.json").symlink_to(tmp_path / "mine")
    Baton(tmp_path / "work", HOME=str(tmp_path))("skills", "install", "--claude")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_folder_that_the_user_names_may_lie_behind_a_link(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work/skills").symlink_to(tmp_path / "elsewhere")
    plain = Baton(tmp_path / "work", HOME=str(tmp_path))
    plain("skills", "install", "--dir", "skills")
    assert (tmp_path / "elsewhere" / STOP).exists()
    (tmp_path / "outside").mkdir()
    (tmp_path / "elsewhere" / "other").mkdir()
    (tmp_path / "elsewhere" / "other" / DELEGATE).symlink_to(tmp_path / "outside")
    plain.refused("skills", "install", "--dir", "skills/other")
    assert os.listdir(tmp_path / "outside") == []


def test_two_places_that_are_one_by_a_link_are_written_once(plain, tmp_path):
    (tmp_path / ".agents/skills").mkdir(parents=True)
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/skills").symlink_to("../.agents/skills")
    assert ".agents" not in plain("skills", "install").out
    (tmp_path / ".agents/skills" / STOP).write_text("my own words")
    plain("skills", "install", "--force")
    assert [path.name for path in (tmp_path / ".agents/skills" / STOP).parent.glob("*.bak*")] == ["SKILL.md.bak"]


def test_skills_of_an_older_version_are_brought_up_to_date(plain, tmp_path):
    """What we installed and nobody touched is updated; what is no longer shipped goes, unless somebody changed it."""
    plain("skills", "install", "--dir", "d")
    note = tmp_path / "d/.baton-skills.json"
    manifest = json.loads(note.read_text())
    (tmp_path / "outside").write_text("old")
    for name in (STOP, "gone.md", "kept.md", "../outside"):
        (tmp_path / "d" / name).write_text("old")
        manifest["files"][name] = hashlib.sha256(b"old").hexdigest()
    (tmp_path / "d/kept.md").write_text("changed since")
    note.write_text(json.dumps(manifest))
    done = plain("skills", "install", "--dir", "d").out
    assert sorted(done.splitlines()) == ["removed\td/gone.md", f"updated\td/{STOP}"]
    assert files_in(ROOT)[STOP] == (tmp_path / "d" / STOP).read_bytes()
    assert (tmp_path / "outside").exists() and (tmp_path / "d/kept.md").exists()
    assert set(json.loads(note.read_text())["files"]) == set(files_in(ROOT))


def test_uninstall_removes_what_was_installed(plain, tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_text("{}")
    plain("skills", "install")
    told = plain("skills", "install", "--uninstall", "--dry-run").out
    assert f"removed\t.claude/skills/{STOP}" in told.splitlines()
    assert files_in(tmp_path / ".agents/skills")[STOP] == files_in(ROOT)[STOP]
    assert plain("skills", "install", "--uninstall").out == told
    assert files_in(tmp_path) == {".claude/settings.json": b"{}"}
    assert os.listdir(tmp_path) == [".claude"]
    again = plain("skills", "install", "--uninstall")
    assert again.out == "" and "no skills of baton are installed here" in again.err


def test_uninstall_keeps_what_the_user_changed_and_names_it(plain, tmp_path):
    plain("skills", "install", "--dir", "d")
    (tmp_path / "d" / STOP).write_text("my own words")
    (tmp_path / "d" / DELEGATE / "mine.md").write_text("mine")
    done = plain("skills", "install", "--dir", "d", "--uninstall").out
    assert f"kept\td/{STOP}" in done.splitlines()
    assert files_in(tmp_path) == {f"d/{STOP}": b"my own words", f"d/{DELEGATE}/mine.md": b"mine"}


def test_uninstall_does_not_leave_the_folder(tmp_path):
    """A cloned repository may bring the list of files, and links."""
    work, mine = tmp_path / "work", tmp_path / "mine"
    (work / ".claude/skills").mkdir(parents=True)
    mine.mkdir()
    for folder in (mine, work):
        (folder / "mine.md").write_text("mine")
    digest = hashlib.sha256(b"mine").hexdigest()
    names = ["../../mine.md", "../../../mine/mine.md", str(mine / "mine.md")]
    note = work / ".claude/skills/.baton-skills.json"
    note.write_text(json.dumps({"files": dict.fromkeys(names, digest)}))
    plain = Baton(work, HOME=str(tmp_path))
    assert plain("skills", "install", "--uninstall").out == "removed\t.claude/skills/.baton-skills.json\n"
    (work / ".claude/skills").mkdir(parents=True)
    (work / ".claude/skills/x").symlink_to(mine)
    note.write_text(json.dumps({"files": {"x/mine.md": digest}}))
    assert "is a link that leaves" in plain.refused("skills", "install", "--uninstall")
    assert (mine / "mine.md").exists() and (work / "mine.md").exists()


def test_wrong_command_lines_are_refused(plain):
    plain.refused("skills", "install", "--uninstall", "--force", code=64)
    plain.refused("skills", "install", "--claude", "--agents", code=64)
    plain.refused("skills", "install", "--dir", "", code=64)
    plain.refused("skills", code=64)
