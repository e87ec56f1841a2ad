"""An agent that calls baton brings nothing that decides: its runner's environment counts, and its runner's job is its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from baton import origin
from baton.core.signal import ALLOW, Asked, Settled
from baton.jobs import caller
from baton.jobs.requests import ask, settle
from baton.jobs.verbs import open_jobs
from support.command import BATON
from support.escapes import AS_ITSELF, NAMESPACES, OwnTmux
from support.mcp import allow
from support.office import Office
from support.waiting import wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(ROOT, "skills", "tmux-agent-orchestrate-delegate-job", "scripts")
RULES = '[[answerer]]\nagent = "shell"\n'


@pytest.fixture
def office(tmp_path):
    path = os.path.dirname(BATON) + os.pathsep + os.environ["PATH"]
    with Office(tmp_path, PATH=path) as office:
        yield office


def ask_for(office, job_id):
    """Open a request in the name of the agent of a job that runs."""
    with open_jobs(office.settings) as jobs:
        return ask(
            jobs, jobs.get_job(job_id), Asked(key="k", kind="tool", tool="Bash", call={"command": "make deploy"})
        )


def state_of(office, request):
    with open_jobs(office.settings) as jobs:
        return jobs.registry.get_request(request.request_id).state


def use_answer(office, request):
    """Wait for the answer, and use it in the name of the agent, as its runner tells it: only then `approve` succeeds."""
    wait_until(lambda: state_of(office, request) == "answered", "for the answer")
    with open_jobs(office.settings) as jobs:
        used = settle(jobs, request.request_id, Settled(key=request.key, decision=ALLOW, by="hook"))
    assert (used.answer, used.applied) == (ALLOW, "yes")


def said(folder, name="said"):
    path = folder / name
    return wait_until(lambda: path.exists() and "exit" in path.read_text() and path.read_text(), f"for {name}")


def write_rules(folder, text=RULES):
    os.makedirs(folder / "baton")
    (folder / "baton" / "rules.toml").write_text(text)


def job_of(office, title):
    """The job with this title, wherever it was asked for."""
    return next(job for job in office.jobs() if job["title"] == title)


# -- the environment -------------------------------------------------------------------------------------------------

# What an agent could bring: the variable, and what stands there for the user.
BROUGHT = [
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "HOME", "PATH", "BATON_CONFIG", "BATON_STATE_DIR",
    "BATON_TMUX_SOCKET", "BATON_DEPTH_LIMIT", "BATON_SESSION_DIR", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND", "PYTHONPATH",
    "PYTHONUSERBASE", "PYTHONSTARTUP", "LD_PRELOAD_OF_NOTHING", "LD_LIBRARY_PATH", "TMPDIR", "TMUX_TMPDIR", "SHELL",
    "USER", "LOGNAME", "MQTT_BROKER", "SSL_CERT_FILE", "NO_PROXY", "https_proxy", "NODE_OPTIONS", "CLAUDE_CONFIG_DIR",
    "CODEX_HOME", "BASH_ENV", "DELEGATE_JOB_LOGS_DIR", "BATON_DIRECTORY", "BATON_HOST",
]  # fmt: skip
DUMP = "env > seen.new; mv seen.new seen; sleep 0.2"
PLANTED = "/planted"


def mcp_call(**arguments):
    messages = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"id": 1, "method": "tools/call", "params": {"name": "submit", "arguments": arguments}},
    ]
    lines = "\n".join(json.dumps({"jsonrpc": "2.0", **each}) for each in messages)
    return f"printf '%s\\n' {shlex.quote(lines)} | baton mcp"


PYTHON = f"{sys.executable} -c"
SUBMIT_BY_PYTHON = f"import baton; baton.submit({DUMP!r}, agent='shell', title='child')"
SURFACES = {
    "submit": f"baton submit {shlex.quote(DUMP)} --agent shell --title child",
    "detached": f"baton submit {shlex.quote(DUMP)} --agent shell --title child --detach",
    "batch": "baton submit --batch batch",
    "python": f"{PYTHON} {shlex.quote(SUBMIT_BY_PYTHON)}",
    "mcp": mcp_call(prompt=DUMP, agent="shell", title="child"),
    "worker": f"baton register {shlex.quote(DUMP)} --agent shell --title child --queue q; "
    "baton worker --queue q --until-empty",
    "skills": f"{sys.executable} {SCRIPTS}/registry.py register {shlex.quote(DUMP)} --agent shell --title child "
    "--queue q; baton worker --queue q --until-empty",
    "session": "baton session create other --agent shell --headless --prompt " + shlex.quote(DUMP),
}


@pytest.mark.parametrize("surface", SURFACES)
def test_what_an_agent_starts_has_the_environment_of_its_runner(office, tmp_path, surface):
    (tmp_path / "batch").write_text(json.dumps({"prompt": DUMP, "agent": "shell", "title": "child"}) + "\n")
    allow(tmp_path, "shell", folder=tmp_path / "config" / "baton")
    planted = " ".join(f"export {name}={PLANTED};" for name in BROUGHT if name != "PATH")
    script = (
        f'env > own; {planted} export PATH="{PLANTED}:$PATH"; {SURFACES[surface]} > said 2>&1; echo "exit $?" >> said'
    )
    script += "; until test -e seen; do sleep 0.05; done"
    office.submit(script, XDG_CONFIG_HOME=str(tmp_path / "config"), GIT_SSH_COMMAND="mine")
    assert "exit 0" in said(tmp_path)

    def variables(name):
        return dict(line.split("=", 1) for line in (tmp_path / name).read_text().splitlines() if "=" in line)

    own, seen = variables("own"), variables("seen")
    assert PLANTED not in " ".join(seen.values())
    for name in {*BROUGHT} - {"BATON_SESSION_DIR"}:
        assert seen.get(name) == own.get(name), name
    assert seen["XDG_CONFIG_HOME"] == str(tmp_path / "config")


ATTACKS = {
    "XDG_CONFIG_HOME": "XDG_CONFIG_HOME=$PWD/evil",
    "HOME": "HOME=$PWD/evil-home",
    "everything": 'env -i PATH="$PATH" HOME="$PWD/evil-home" BATON_HOME="$BATON_HOME" XDG_CONFIG_HOME="$PWD/evil"',
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_agent_cannot_bring_rules_by_which_what_it_starts_answers(office, tmp_path, attack):
    """The request is that of another job, so that the rules alone decide."""
    write_rules(tmp_path / "evil")
    write_rules(tmp_path / "evil-home" / ".config")
    other = office.detached("sleep 1000")
    office.wait_for_status(other, "running")
    request = ask_for(office, other)
    answer = f'baton approve {request.request_id} > said 2>&1; echo "exit $?" >> said'
    office.submit(f"{ATTACKS[attack]} baton submit {shlex.quote(answer)} --agent shell")
    assert "no [[answerer]]" in said(tmp_path)
    assert state_of(office, request) == "open"
    office("cancel", other)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_agent_cannot_bring_settings_by_which_its_mcp_server_allows_more(office, tmp_path, attack):
    allow(tmp_path, "shell", folder=tmp_path / "evil" / "baton")
    allow(tmp_path / "evil-home", "shell")
    call = shlex.quote(mcp_call(prompt="true", agent="shell"))
    office.submit(f"{ATTACKS[attack]} sh -c {call} > said 2>&1; echo exit $? >> said")
    own = tmp_path / ".config" / "baton" / "baton.toml"
    assert f'ask the user to add \\"shell\\" to allow in [mcp] of {own}' in said(tmp_path)
    assert len(office.jobs()) == 1


def test_rules_of_an_agent_allow_nothing_in_what_it_starts(office, tmp_path):
    """A rule is read by the runner of the new job."""
    write_rules(tmp_path / "evil", '[[rule]]\ndecision = "allow"\ntool = "Bash"\n')
    script = "XDG_CONFIG_HOME=$PWD/evil baton submit 'sleep 1000' --agent shell --detach --title child; sleep 1000"
    starter = office.detached(script)
    wait_until(lambda: [job for job in office.jobs("running") if job["title"] == "child"], "for the child")
    child = job_of(office, "child")["job_id"]
    request = ask_for(office, child)
    assert state_of(office, request) == "open"
    for job in (child, starter):
        office("cancel", job)


def test_the_default_job_of_publish_is_that_of_the_runner(office, tmp_path):
    other = office.detached("sleep 1000")
    script = f"BATON_JOB_ID={other} BATON_ATTEMPT=1 baton publish --event progress --detail mine > one; "
    script += "env -u BATON_JOB_ID -u BATON_ATTEMPT baton publish --event progress --detail mine > two; "
    script += f"BATON_JOB_ID={other} baton status > three"
    office.submit(script, "--title", "own")
    own = job_of(office, "own")["job_id"]
    assert [json.loads((tmp_path / name).read_text())["job_id"] for name in ("one", "two")] == [own, own]
    assert (tmp_path / "three").read_text().strip() == "running"
    assert "mine" not in office("logs", other).out
    office("cancel", other)


def test_a_home_that_an_agent_names_keeps_its_jobs_and_the_users_get_none(office, tmp_path):
    """A test suite that an agent runs has a home of its own. Rules and state are those of the user all the same."""
    for number, call in enumerate(
        (
            "BATON_HOME=$PWD/apart baton submit",
            "baton submit --home $PWD/apart",
            "BATON_REGISTRY=sqlite:$PWD/b.db baton register",
        )
    ):
        office.submit(
            f"XDG_CONFIG_HOME=/x {call} 'echo $BATON_HOME $XDG_CONFIG_HOME > at' > said 2>&1; echo exit $? >> said"
        )
        assert "exit 0" in said(tmp_path), call
        assert len(office.jobs()) == number + 1, "the job of this test alone"
    assert (tmp_path / "at").read_text().strip() == str(tmp_path / "apart")
    assert (tmp_path / "b.db").exists()
    apart = office("list", "--home", str(tmp_path / "apart"), "--json").json
    assert len(apart if isinstance(apart, list) else apart["jobs"]) == 2


def test_a_state_of_its_own_without_a_home_is_refused(office, tmp_path):
    script = "env -u BATON_HOME BATON_STATE_DIR=$PWD/s baton register x > said 2>&1; echo exit $? >> said"
    office.submit(script)
    assert "name a home: --home DIR or BATON_HOME=DIR" in said(tmp_path)
    assert len(office.jobs()) == 1
    assert not (tmp_path / "s").exists()


# -- labels, and who is above ----------------------------------------------------------------------------------------

BY_LABEL = '[[answerer]]\nagent = "shell"\nlabel = "reviewer"\n'


@pytest.mark.parametrize("surface", ["submit", "mcp"])
def test_a_label_that_an_agent_gives_makes_no_answerer(office, tmp_path, surface):
    write_rules(tmp_path / ".config", BY_LABEL)
    allow(tmp_path, "shell")
    other = office.detached("sleep 1000")
    office.wait_for_status(other, "running")
    request = ask_for(office, other)
    answer = f'baton approve {request.request_id} > said 2>&1; echo "exit $?" >> said'
    calls = {
        "submit": f"baton submit {shlex.quote(answer)} --agent shell --label reviewer",
        "mcp": mcp_call(prompt=answer, agent="shell", labels=["reviewer"])
        + "; until test -e said; do sleep 0.05; done",
    }
    office.submit(f"{calls[surface]} > started 2>&1")
    assert "labels of a job that an agent started do not count" in said(tmp_path)
    assert state_of(office, request) == "open"
    office("cancel", other)


def test_a_label_that_the_user_gives_makes_an_answerer(office, tmp_path):
    write_rules(tmp_path / ".config", BY_LABEL)
    other = office.detached("sleep 1000")
    office.wait_for_status(other, "running")
    request = ask_for(office, other)
    answerer = office.start("submit", f"baton approve {request.request_id}", "--label", "reviewer")
    use_answer(office, request)
    done = answerer.end()
    assert done.code == 0, done
    office("cancel", other)


def test_a_label_of_a_job_that_a_session_without_a_job_started_does_not_count(office, tmp_path):
    write_rules(tmp_path / ".config", BY_LABEL)
    other = office.detached("sleep 1000")
    office.wait_for_status(other, "running")
    request = ask_for(office, other)
    answer = f'baton approve {request.request_id} > said 2>&1; echo "exit $?" >> said'
    inner = f"baton submit {shlex.quote(answer)} --agent shell --label reviewer --title child"
    office("session", "create", "lead", "--agent", "shell", "--headless", "--prompt", inner)
    assert "labels of a job that an agent started do not count" in said(tmp_path)
    assert job_of(office, "child")["parent"] is None
    assert len(job_of(office, "child")["above"]) == 1
    office("cancel", other)


def test_no_job_answers_for_one_above_it_or_beside_it(office, tmp_path):
    write_rules(tmp_path / ".config")
    inner = 'baton approve $(cat above) > said.above 2>&1; echo "exit $?" >> said.above; until test -e beside; do sleep 0.05; done; '
    inner += 'baton approve $(cat beside) > said.beside 2>&1; echo "exit $?" >> said.beside'
    script = (
        "until test -e above; do sleep 0.05; done; baton submit 'sleep 1000' --agent shell --title beside --detach; "
    )
    starter = office.detached(f"{script} baton submit {shlex.quote(inner)} --agent shell; sleep 1000")
    office.wait_for_status(starter, "running")
    above = ask_for(office, starter)
    (tmp_path / "above.new").write_text(above.request_id)
    (tmp_path / "above.new").rename(tmp_path / "above")
    assert "does not answer for itself, for a job that it started, or for one above it" in said(tmp_path, "said.above")
    beside = ask_for(office, job_of(office, "beside")["job_id"])
    (tmp_path / "beside.new").write_text(beside.request_id)
    (tmp_path / "beside.new").rename(tmp_path / "beside")
    assert "does not answer for itself" in said(tmp_path, "said.beside")
    assert [state_of(office, each) for each in (above, beside)] == ["open", "open"]
    office("cancel", job_of(office, "beside")["job_id"])
    office("cancel", starter)


# -- the parent ------------------------------------------------------------------------------------------------------

HIDERS = {
    "unset": "env -u BATON_JOB_ID",
    "everything unset": 'env -i PATH="$PATH"',
    "forged": "BATON_JOB_ID=0123456789abcdef",
    "another session": "BATON_SESSION_ID=0123456789abcdef BATON_JOB_ID=",
    "far away": 'env -i PATH="$PATH" setsid --wait',
    "without a parent": 'env -i PATH="$PATH" setsid --fork',
}
STARTS = {
    "submit": "baton submit true --agent shell --title child",
    "register": "baton register true --agent shell --title child --queue q",
    "retry": "baton retry $(cat first) --detach",
    "python": f"{PYTHON} \"import baton; baton.register_job('true', title='child')\"",
    "python that says another": f"{PYTHON} \"import baton; baton.open_jobs().register_job('true', title='child', "
    "parent='0123456789abcdef')\"",
    "mcp": f"sh -c {shlex.quote(mcp_call(prompt='true', agent='shell', title='child'))}",
}


@pytest.mark.parametrize("hider", HIDERS)
def test_an_agent_cannot_hide_that_it_started_a_job(office, tmp_path, hider):
    script = f'{HIDERS[hider]} {STARTS["submit"]} > said 2>&1; until baton list --json | grep -q \'"title": *"child"\'; do sleep 0.05; done'
    office.submit(script, "--title", "own")
    assert job_of(office, "child")["parent"] == job_of(office, "own")["job_id"]


@pytest.mark.parametrize("start", STARTS)
def test_no_surface_hides_it_either(office, tmp_path, start):
    allow(tmp_path, "shell")
    first = (
        office.the_job()["job_id"]
        if office.submit("true", "--title", "child").code is None
        else office.jobs()[0]["job_id"]
    )
    (tmp_path / "first").write_text(first)
    office.submit(f"env -u BATON_JOB_ID {STARTS[start]} > said 2>&1; echo exit $? >> said", "--title", "own")
    assert "exit 0" in said(tmp_path)
    child = next(job for job in office.jobs() if job["title"] == "child" and job["job_id"] != first)
    own = job_of(office, "own")["job_id"]
    assert (child["parent"], child["above"]) == (own, [own])


def test_a_session_that_an_agent_made_leads_to_its_job(office, tmp_path):
    inner = "baton submit true --agent shell --title child > said 2>&1; echo exit $? >> said"
    office.submit(
        f"baton session create other --agent shell --headless --prompt {shlex.quote(inner)}; until test -e said; do sleep 0.05; done;"
        "sleep 1000 & until grep -q exit said; do sleep 0.05; done", "--title", "own",
    )  # fmt: skip
    own = job_of(office, "own")["job_id"]
    assert job_of(office, "child")["above"][0] == own


UNKNOWN = {
    "in another user namespace": "unshare -c",
    "by tmux": "tmux run-shell -b",
}


@pytest.mark.parametrize("way", UNKNOWN)
@pytest.mark.parametrize("verb", ["submit", "register", "session"])
def test_a_session_that_is_not_known_starts_nothing(office, tmp_path, way, verb):
    calls = {
        "submit": "baton submit true --agent shell",
        "register": "baton register true",
        "session": "baton session create other --agent shell --headless --prompt true",
    }
    home = tmp_path / ".hermes"
    where = f"--home {home} --registry-dir {home}/jobs"
    (tmp_path / "call").write_text(
        f"cd {tmp_path}; {calls[verb]} {where} > said.new 2>&1; echo exit $? >> said.new; mv said.new said\n"
    )
    clean = f'env -i PATH="$PATH" HOME="$HOME" BATON_TMUX_SOCKET={office.socket}'
    run = f"{UNKNOWN[way]} {clean} sh call" if "tmux" not in way else f'{UNKNOWN[way]} "{clean} sh $PWD/call"'
    office.submit(f"{run}; until test -e said; do sleep 0.05; done")
    assert "the job of this session cannot be found from here, so nothing is started" in said(tmp_path)
    assert len(office.jobs()) == 1


# -- a runner that is none -------------------------------------------------------------------------------------------

_FORGED = """
import fcntl, json, os, subprocess, sys
fd = os.memfd_create("baton-runner")
origin = {"environment": {**os.environ, "XDG_CONFIG_HOME": os.getcwd() + "/evil"}, "workdir": os.getcwd(),
          "job_id": "0123456789abcdef", "attempt": 1, "above": [], "has_budget": False, "knows_job": True}
os.write(fd, json.dumps(origin).encode())
subprocess.run(sys.argv[-1], shell=True)
"""


def test_a_program_of_an_agent_is_no_runner(office, tmp_path):
    """It has the name of a runner, and a file in its memory like a runner's."""
    write_rules(tmp_path / "evil")
    (tmp_path / "forged.py").write_text(_FORGED)
    call = "baton submit 'env > seen' --agent shell --title child > said 2>&1; echo exit $? >> said"
    script = f"env -u BATON_JOB_ID {sys.executable} forged.py baton.sessions.runner {shlex.quote(call)}"
    office.submit(script, "--title", "own")
    assert "exit 0" in said(tmp_path)
    assert job_of(office, "child")["parent"] == job_of(office, "own")["job_id"]
    assert "evil" not in (tmp_path / "seen").read_text()


# -- outside of the session ------------------------------------------------------------------------------------------


@pytest.fixture
def asked(office):
    """A job of the user that asks."""
    job = office.detached("sleep 1000")
    office.wait_for_status(job, "running")
    yield ask_for(office, job)
    office("cancel", job)


def from_agent(office, tmp_path, way):
    """Let the agent of a job answer its own request, in this way."""
    script = f"until test -e req; do sleep 0.05; done; {way}; until test -e seen; do sleep 0.05; done"
    job = office.detached(script)
    office.wait_for_status(job, "running")
    request = ask_for(office, job)
    call = f"cd {tmp_path}; baton approve {request.request_id} --home {tmp_path}/.hermes"
    (tmp_path / "call").write_text(f"{call} > said.new 2>&1; echo exit $? >> said.new; mv said.new said\n")
    (tmp_path / "req").touch()
    answer = said(tmp_path)
    assert state_of(office, request) == "open", answer
    (tmp_path / "seen").touch()
    office.wait_for_status(job, "completed")
    return answer


REFUSED = ("refused in a process namespace", "its own job is not known")
# To an ordinary user who is root in a namespace, the state belongs to another user.
OF_ANOTHER = ("was written by another user",) if os.geteuid() else ()


@pytest.mark.parametrize("way", NAMESPACES)
def test_an_agent_in_namespaces_of_its_own_is_still_an_agent(office, tmp_path, way):
    answer = from_agent(office, tmp_path, NAMESPACES[way].format(call="sh call"))
    assert [why for why in REFUSED + OF_ANOTHER * (way == "user and process") if why in answer], answer


def test_an_agent_without_the_socket_of_its_runner_is_still_an_agent(office, tmp_path):
    way = f"rm $BATON_SESSION_DIR/witness.sock; {NAMESPACES['process'].format(call='sh call')}"
    assert "refused in a process namespace" in from_agent(office, tmp_path, way)


@pytest.fixture
def own_tmux(office):
    with OwnTmux(office) as tmux:
        yield tmux


@pytest.mark.parametrize("way", ["run-shell", "if-shell", "pipe-pane", "orphan"])
def test_an_agent_does_not_answer_by_own_tmux_of_the_user(office, tmp_path, own_tmux, way):
    way = BACKGROUND[way].format(socket=own_tmux.socket, call=f"sh {tmp_path}/call")
    assert "refused in the background of tmux" in from_agent(office, tmp_path, way)


BACKGROUND = {
    "run-shell": 'tmux -S {socket} run-shell -b "{call}"',
    "if-shell": "tmux -S {socket} if-shell -b '{call}' ''",
    "pipe-pane": "tmux -S {socket} pipe-pane -t me '{call}; sleep 1'",
    "orphan": "tmux -S {socket} run-shell -b '({call} &)'",
}
CHANGES = ["rules add allow --agent shell --command 'git log'", "rules remove 1", "trust --yes", "web --port 1"]


def changes_from(office, tmp_path, verb, way):
    """Let the agent of a job run a command that changes what agents may do, in this way."""
    write_rules(tmp_path / ".config", '[[rule]]\ndecision = "ask"\ncommand = ["make"]\n')
    before = (tmp_path / ".config" / "baton" / "rules.toml").read_text()
    (tmp_path / "call").write_text(
        f"cd {tmp_path}; timeout 20 baton {verb} > said.new 2>&1; echo exit $? >> said.new; mv said.new said\n"
    )
    office.submit(f"{way}; until test -e said; do sleep 0.05; done")
    answer = said(tmp_path)
    assert (tmp_path / ".config" / "baton" / "rules.toml").read_text() == before, answer
    return answer


@pytest.mark.parametrize("verb", CHANGES)
def test_nor_does_it_change_what_is_allowed(office, tmp_path, own_tmux, verb):
    way = BACKGROUND["run-shell"].format(socket=own_tmux.socket, call=f"sh {tmp_path}/call")
    assert "refused in the background of tmux" in changes_from(office, tmp_path, verb, way)


@pytest.mark.parametrize("verb", CHANGES)
def test_nor_does_it_from_namespaces_of_its_own(office, tmp_path, verb):
    way = NAMESPACES["process"].format(call=f"env BATON_STATE_DIR={tmp_path}/other sh call")
    answer = changes_from(office, tmp_path, verb, way)
    assert "refused in a process namespace that an agent made" in answer


def test_where_proc_is_of_another_process_namespace_nothing_fails(monkeypatch):
    """There, a process has another number than it knows of itself, which may be that of no process."""
    monkeypatch.setattr(os, "getpid", lambda: 4_194_305)
    assert origin.runs_in_background_of_tmux() is False


def test_a_state_folder_that_cannot_be_read_is_none_of_the_user(tmp_path):
    """To who is root in a user namespace, /root is the home folder, and closed."""
    (tmp_path / "file").touch()
    assert caller._known_homes(str(tmp_path / "file" / "state")) == []


def test_a_person_changes_rules_in_a_container_while_agents_work(office, tmp_path, asked):
    words = ["unshare", *AS_ITSELF.split(), "-mpfiu", "--mount-proc", BATON, *shlex.split(CHANGES[0])]
    done = subprocess.run(words, cwd=tmp_path, env=office.env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "added" in done.stdout) == (0, True), done


def goes_on(office, request, person):
    """The call by which a person allows a request is believed, and ends with 0."""
    with person:
        try:
            use_answer(office, request)
        finally:
            told, _ = person.communicate(timeout=20)
    assert person.returncode == 0, told
    assert "allowed; the agent goes on" in told


def test_a_person_answers_in_a_tmux_of_their_own(office, tmp_path, own_tmux, asked):
    own_tmux("send-keys", "-t", "me", f"baton approve {asked.request_id} > said; echo exit $? >> said", "Enter")
    use_answer(office, asked)
    assert "exit 0" in said(tmp_path)


def test_a_person_answers_in_a_new_window_of_tmux(office, tmp_path, own_tmux, asked):
    own_tmux("new-window", "-d", "-c", str(tmp_path), f"baton approve {asked.request_id} > said; echo exit $? >> said")
    use_answer(office, asked)
    assert "exit 0" in said(tmp_path)


def test_a_person_answers_from_cron(office, tmp_path, asked):
    """cron starts a shell without a terminal, in a session of its own, with few variables; so does ssh without one."""
    few = {name: office.env[name] for name in ("PATH", "HOME")} | {"SHELL": "/bin/sh", "LOGNAME": "me"}
    call = ["/bin/sh", "-c", f"baton approve {asked.request_id}"]
    person = subprocess.Popen(
        call, cwd=tmp_path, env=few, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    goes_on(office, asked, person)


def test_a_person_answers_on_a_terminal(office, asked):
    person = office.start("approve", asked.request_id, terminal=True)
    use_answer(office, asked)
    done = person.end()
    assert done.code == 0, done


def test_a_person_answers_in_a_container_that_shares_the_home(office, tmp_path, asked):
    """A container has namespaces of its own, and nothing of a session above it. `unshare` makes such a one."""
    command = ["unshare", *AS_ITSELF.split(), "-mpfiu", "--mount-proc", BATON, "approve", asked.request_id]
    person = subprocess.Popen(
        command, cwd=tmp_path, env=office.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    goes_on(office, asked, person)


def test_a_person_answers_for_a_runner_that_was_killed(office, tmp_path, asked):
    job = asked.job_id
    pid = office.session_of(job)["pane_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "for its end")
    answer = office("approve", asked.request_id, code=None)
    assert "process namespace" not in answer.err


# -- how many ----------------------------------------------------------------------------------------------------------

DOWN = """
echo $1 >> levels
BATON_DEPTH_LIMIT=9 baton submit "sh down $(($1 + 1))" --agent shell > out.$1 2>&1; true
"""


@pytest.mark.parametrize(("given", "deepest"), [({}, 3), ({"BATON_DEPTH_LIMIT": "1"}, 1)], ids=["default", "set"])
def test_agents_start_jobs_to_a_depth(office, tmp_path, given, deepest):
    (tmp_path / "down").write_text(DOWN)
    office.submit("sh down 0", **given)
    assert (tmp_path / "levels").read_text().split() == [str(level) for level in range(deepest + 1)]
    assert f"to a depth of {deepest} below a person's job" in (tmp_path / f"out.{deepest}").read_text()
    assert len(office.jobs()) == deepest + 1


def test_so_many_jobs_run_below_one_and_not_more(office, tmp_path):
    start = "baton submit 'until test -e go; do sleep 0.05; done' --agent shell --detach"
    script = f"{start} --title a; {start} --title b; BATON_RUNNING_LIMIT=9 {start} > said 2>&1; echo exit $? >> said; "
    script += "touch go; until baton submit true --agent shell > again 2>&1; do sleep 0.1; done"
    office.submit(script, BATON_RUNNING_LIMIT="2")
    assert "and at most 2 may (running_limit in the user's baton.toml)" in said(tmp_path)
    assert len(office.jobs()) == 4


def test_a_batch_of_an_agent_runs_no_more_at_once_either(office, tmp_path):
    wait = "until test -e go; do sleep 0.05; done"
    lines = [json.dumps({"prompt": wait, "agent": "shell", "title": f"t{number}"}) for number in range(3)]
    (tmp_path / "batch").write_text("\n".join(lines))
    job = office.detached("baton submit --batch batch --parallel 3 > out 2>&1; true", BATON_RUNNING_LIMIT="2")
    wait_until(lambda: len(office.jobs("error")) == 1, "for the one that is not started")
    assert "at most 2 may" in office.jobs("error")[0]["reason"]
    (tmp_path / "go").touch()
    office.wait_for_status(job, "completed")
    assert len(office.jobs("completed")) == 3


def test_a_person_runs_as_many_as_they_like(office, tmp_path):
    jobs = [office("submit", "--detach", "sleep 1000", BATON_RUNNING_LIMIT="1").text for _ in range(3)]
    assert len(office.jobs("running")) == 3
    for job in jobs:
        office("cancel", job)


def test_what_an_agent_starts_below_a_budget_stays_where_it_counts(office, tmp_path):
    """The agent of this job says no cost; the budget stands above it all the same."""
    script = """
    baton submit true --agent shell > counted 2>&1; echo exit $? >> counted
    baton submit true --agent shell --home $PWD/apart > apart.said 2>&1; echo exit $? >> apart.said
    baton submit true --agent hidden > hidden.said 2>&1; echo exit $? >> hidden.said
    baton session create other --agent shell > session.said 2>&1; echo exit $? >> session.said
    """
    os.makedirs(tmp_path / ".config" / "baton")
    (tmp_path / ".config" / "baton" / "baton.toml").write_text('[agents.hidden]\nacp = ["true"]\n')
    with open_jobs(office.settings) as jobs:
        job = jobs.register_job(script, agent="shell", workdir=str(tmp_path), budget_usd=5.0)
    office("worker", "--until-empty")
    assert office.job(job.job_id)["status"] == "completed"
    assert "exit 0" in said(tmp_path, "counted")
    assert "is kept in its home" in said(tmp_path, "apart.said")
    assert "a job above has a budget" in said(tmp_path, "hidden.said")
    assert "start a job: baton submit" in said(tmp_path, "session.said")
