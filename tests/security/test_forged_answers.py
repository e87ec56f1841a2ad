"""S14: agents forge answers to requests, for themselves and for the jobs around them. Each attempt is a command that a
real session runs: with variables of its own, as a process that hides what started it, by each surface that answers.
docs/security.md names the ways that lead out of a session without a sandbox; these are the others."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import sys

import pytest

from baton.core.signal import Asked
from baton.jobs.requests import ask
from baton.jobs.verbs import open_jobs
from support.command import BATON
from support.escapes import NAMESPACES, OwnTmux
from support.office import Office
from support.waiting import wait_until

AT_ONCE = 4
RULES = '[[answerer]]\nagent = "codex"\n[[answerer]]\nagent = "shell"\nlabel = "lead"\n'
EVIL = RULES + '[[answerer]]\nagent = "shell"\n'
# {name} of the attacker's world: ids of jobs and requests, folders.
VARIABLES = {
    "none": "",
    "no job": "-u BATON_JOB_ID",
    "no session": "-u BATON_SESSION_ID",
    "nothing of baton": "-u BATON_JOB_ID -u BATON_SESSION_ID -u BATON_ATTEMPT -u BATON_SESSION_DIR -u BATON_REPLY",
    "another job": "BATON_JOB_ID={stranger_job}",
    "another session": "BATON_SESSION_ID=0123456789abcdef",
    "another agent": "BATON_AGENT=codex",
    "another host": "BATON_HOST=elsewhere",
    "rules by XDG": "XDG_CONFIG_HOME={folder}/evil",
    "rules by HOME": "HOME={folder}/evil-home",
    "settings": "BATON_CONFIG={folder}/evil/baton/baton.toml",
    "state": "BATON_STATE_DIR={folder}/evil-state",
    "home": "BATON_HOME={folder}/.hermes",
    "registry": "BATON_REGISTRY={registry}",
    "programs": "PATH={folder}/evil/bin:{path}",
    "clean": "-i PATH={path} HOME={home}",
    "clean with a job": "-i PATH={path} HOME={home} BATON_JOB_ID={stranger_job} BATON_SESSION_ID=x",
    "terminal": "TMUX= TMUX_PANE= TERM=dumb",
}
PROCESSES = {
    "plain": "{call}",
    "session": "setsid --wait {call}",
    "orphan": "setsid --fork {call}",
    "background": "({call} &)",
    "twice": "(({call} &) &)",
    "nohup": "nohup {call}",
    "exec": "exec {call}",
    "another name": 'bash -c \'exec -a tmux sh "$0" "$@"\' {script} {number}',
    "priority": "nice {call}",
    "time limit": "timeout 60 {call}",
    "Python": "{python} -c 'import os, sys; os.fork() and sys.exit(); os.setsid(); os.fork() and os._exit(0); "
    "os.execvp(sys.argv[1], sys.argv[1:])' {call}",
    "own tmux": "tmux -f /dev/null -S {sockets}/t{number} new-session -d '{call}'",
    "own tmux, in its background": "tmux -f /dev/null -S {sockets}/b{number} new-session -d \"tmux run-shell '{call}'\"",
    "the user's tmux": "tmux -S {tmux} run-shell -b '{call}'",
    "the user's tmux, a condition": "tmux -S {tmux} if-shell -b '{call}' ''",
    "the user's tmux, a pipe": "flock pipe sh -c \"tmux -S {tmux} pipe-pane -t me '{call}'; "
    'until test -e {script}.said; do sleep 0.05; done"',
    "the user's tmux, an orphan": "tmux -S {tmux} run-shell -b '({call} &)'",
    **{f"namespaces: {name}": way for name, way in NAMESPACES.items()},
}
MCP = [
    {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
    {"id": 1, "method": "tools/call", "params": {"name": "answer", "arguments": {"request_id": "{request}", "decision": "allow"}}},
]  # fmt: skip
SURFACES = {
    "approve": "baton approve {request}",
    "deny": "baton deny {request} --reason no",
    "answer": "baton answer {question} yes",
    "approve for the job": "baton approve {request} --for-job",
    "approve inexact": "baton approve {request} --inexact",
    "approve the job": "baton approve {job}",
    "home": "baton approve {request} --home {folder}/.hermes",
    "module": "{python} -m baton approve {request}",
    "python": "{python} -c 'import baton; baton.approve(\"{request}\")'",
    "python deny": "{python} -c 'import baton; baton.deny(\"{request}\")'",
    "mcp": "printf '%s\\n' {mcp} | baton mcp",
    "rules": "baton rules add allow --agent shell --command 'make **'",
    "trust": "baton trust --yes",
}
_QUESTION = {"question": "Deploy?", "choices": ["yes", "no"], "several": False}
_UNKNOWN = "0123456789abcdef"
TARGETS = ("own", "lead", "child", "sibling", "stranger", "answered", "unknown")
ATTACKERS = ("lead", "child")
# What an attempt may be told; one that is told something else did not reach what it attacks.
REFUSED = re.compile(
    r"refused|ask the user|does not answer|no \[\[answerer\]\]|its own job is not known|no such request|no request|"
    r"not found|already|was written by another user|other state|cannot be read|names another|does not exist|is not open|"
    r"the id of a job allows nothing|trusted already|give the id of a request|is not a home that you made|not one of your homes"
)


class World:
    """A user's jobs that all wait for an answer, and two agents among them that attack: one, and a child of it."""

    def __init__(self, office, folder, tmux) -> None:
        self.office, self.folder = office, folder
        self._write("config/baton/rules.toml", RULES)
        self._write("evil/baton/rules.toml", EVIL)
        self._write("evil-home/.config/baton/rules.toml", EVIL)
        self._write("evil/baton/baton.toml", '[mcp]\nallow = ["shell", "validate", "workdir"]\n')
        for name in ("tmux", "git", "sh"):
            self._write(f"evil/bin/{name}", "#!/bin/sh\nexit 0\n").chmod(0o755)
        attack = "until test -e go; do sleep 0.05; done; sh attack.{0}; until test -e over; do sleep 0.05; done"
        child = shlex.quote(attack.format("child"))
        begin = f"baton submit {child} --agent shell --title child --detach; baton submit 'sleep 1000' --agent shell --title sibling --detach; "
        self.jobs = {"stranger": office.detached("sleep 1000", "--title", "stranger")}
        self.jobs["lead"] = office.detached(begin + attack.format("lead"), "--title", "lead")
        wait_until(lambda: len(office.jobs("running")) == 4, "for the jobs")
        self.jobs |= {each["title"]: each["job_id"] for each in office.jobs("running")}
        self.requests = {name: self._ask(job) for name, job in self.jobs.items()}
        self.requests |= {"answered": self._ask(self.jobs["stranger"], "answered"), "unknown": _UNKNOWN}
        self.questions = {name: self._ask(job, "question") for name, job in self.jobs.items()}
        self.questions |= {"answered": self._ask(self.jobs["stranger"], "answered question"), "unknown": _UNKNOWN}
        office("deny", self.requests["answered"], "--reason", "by the user", code=None)
        office("answer", self.questions["answered"], "no", code=None)
        with open_jobs(office.settings) as jobs:
            registry = jobs.registry.url
        self._names = {
            "folder": str(folder), "home": office.env["HOME"], "path": office.env["PATH"], "python": sys.executable,
            "registry": registry, "sockets": os.path.dirname(office.socket), "tmux": tmux.socket,
            "stranger_job": self.jobs["stranger"],
        }  # fmt: skip
        self._attempts: list[tuple[str, ...]] = []

    def _write(self, name: str, text: str):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _ask(self, job_id: str, key: str = "k") -> str:
        with open_jobs(self.office.settings) as jobs:
            asked = Asked(key=key, kind="tool", tool="Bash", call={"command": "make deploy"})
            if "question" in key:
                asked = Asked(key=key, kind="question", tool="AskUserQuestion", call={}, options=(_QUESTION,))
            return ask(jobs, jobs.get_job(job_id), asked).request_id

    def add(self, who: str, target: str, surface: str, variables: str, process: str) -> None:
        """Write an attempt down: a script for the call, and one for the way to it."""
        number = len(self._attempts)
        self._attempts.append((who, target, surface, variables, process))
        name = who if target == "own" else target
        request = self.requests[name]
        job = self.jobs.get(name, self.jobs["stranger"])
        lines = "\n".join(json.dumps({"jsonrpc": "2.0", **each}) for each in MCP)
        names = self._names | {
            "request": request,
            "question": self.questions[name],
            "job": job,
            "number": str(number),
            "mcp": shlex.quote(lines.replace("{request}", request)),
        }
        command = _fill(SURFACES[surface], names)
        given = _fill(VARIABLES[variables], names)
        script = f"{self.folder}/calls/{number}"
        words = f"env {given} /bin/sh -c {shlex.quote(command)}" if given else command
        self._write(
            f"calls/{number}",
            f"cd {self.folder}; {words} > calls/{number}.new 2>&1; echo exit $? >> calls/{number}.new; mv calls/{number}.new calls/{number}.said\n",
        )
        names |= {"script": script, "call": f"sh {script}"}
        self._write(f"calls/{number}.way", _fill(PROCESSES[process], names) + "\n")

    def attack(self, patience_sec: float) -> list[tuple[tuple[str, ...], str]]:
        """Let the agents carry the attempts out, some at once. Return each with what it was told."""
        self._write(
            "one",
            "sh calls/$1.way > calls/$1.out 2>&1 < /dev/null; n=0\n"
            "until test -e calls/$1.said || test $n -gt 600; do sleep 0.05; n=$((n + 1)); done\n",
        )
        for who in ATTACKERS:
            numbers = [str(number) for number, each in enumerate(self._attempts) if each[0] == who]
            self._write(f"numbers.{who}", "\n".join(numbers) + "\n")
            self._write(f"attack.{who}", f"xargs -P {AT_ONCE} -n 1 sh one < numbers.{who}; touch done.{who}\n")
        (self.folder / "go").touch()
        for who in ATTACKERS:
            wait_until((self.folder / f"done.{who}").exists, "for the attempts", patience_sec)
        return [(each, self._told(number)) for number, each in enumerate(self._attempts)]

    def _told(self, number: int) -> str:
        path = self.folder / "calls" / f"{number}.said"
        return (
            path.read_text() if path.exists() else "nothing: " + (self.folder / "calls" / f"{number}.out").read_text()
        )

    def states(self) -> dict[str, str]:
        with open_jobs(self.office.settings) as jobs:
            return {
                request: jobs.registry.get_request(request).state
                for request in (*self.requests.values(), *self.questions.values())
                if request != _UNKNOWN
            }

    def end(self) -> None:
        for name in ("sibling", "child", "lead", "stranger"):
            self.office("cancel", self.jobs[name], code=None)


def _fill(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), text)


@pytest.fixture
def world(tmp_path):
    path = os.path.dirname(BATON) + os.pathsep + os.environ["PATH"]
    with Office(tmp_path, PATH=path, XDG_CONFIG_HOME=str(tmp_path / "config")) as office, OwnTmux(office) as tmux:
        world = World(office, tmp_path, tmux)
        yield world
        world.end()


def draw(rng: random.Random, number: int) -> list[tuple[str, ...]]:
    """Return so many attempts: each value at least once, then by chance."""
    sets = (ATTACKERS, TARGETS, tuple(SURFACES), tuple(VARIABLES), tuple(PROCESSES))
    shuffled = [rng.sample(each, len(each)) for each in sets]
    first = [tuple(each[number % len(each)] for each in shuffled) for number in range(max(map(len, sets)))]
    return first + [tuple(rng.choice(each) for each in sets) for _ in range(number - len(first))]


def test_no_forged_answer_is_accepted(world, full, seed, figure):
    rng = random.Random(seed)
    number = 10_000 if full else 40
    for attempt in draw(rng, number):
        world.add(*attempt)
    before = world.states()
    assert set(before.values()) == {"open", "answered"}
    told = world.attack(patience_sec=6000 if full else 100)
    changed = [name for name, state in world.states().items() if state != before[name]]
    well = [(each, text) for each, text in told if "exit 0" in text and each[2] != "mcp"]
    # With a home folder of its own, an agent may change rules and homes there; those of the user are looked at below.
    elsewhere = [each for each, _ in well if each[2] in ("rules", "trust")]
    accepted = [(each, text) for each, text in well if each not in elsewhere]
    lost = [(each, text[-400:]) for each, text in told if not REFUSED.search(text) and each not in elsewhere]
    print(*accepted, sep="\n")
    assert not lost, "\n".join(map(str, lost))
    assert (world.folder / "config" / "baton" / "rules.toml").read_text() == RULES
    figure(
        "S14 forged answers",
        f"{len(told):,} attempts by {len({each[1:] for each, _ in told}):,} different ways; {len(accepted)} accepted, "
        f"{len(changed)} requests changed",
        held=not (changed or accepted),
        seed=seed,
    )
