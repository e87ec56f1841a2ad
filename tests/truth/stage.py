"""The stage of one row: a real agent program with a home, a tmux server and a model of its own, a person at its keyboard,
and a reader that asks baton every 200 ms."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from agents.conftest import World
from agents.homes import LOGINS
from baton.config import Settings
from baton.delegation.looking import may_be_lost, settle_lost
from baton.jobs.activity_file import read_snapshot
from baton.jobs.verbs import open_jobs
from support.tmux import TmuxServer
from support.waiting import poll
from truth.catalogue import HEADLESS
from truth.judge import ENDED, LOOK_SEC, WITHIN_SEC, Phase, Sample
from truth.programs import PROGRAMS, UNTOLD
from truth.scripted_model import ScriptedModel, cue

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import Broker
    from truth.catalogue import Row

IDLE_SEC = 15  # of the rows with an idle limit: Claude takes some seconds to start
IDLE = str(IDLE_SEC)
LIMIT_WITHIN_SEC = WITHIN_SEC + 3.0  # the idle clock begins when the silence is noticed, and the agent is ended first
_PATIENCE_SEC = 60.0
_BETWEEN_KEYS_SEC = 0.3
_OVER_LOOKS = 25
_TAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tap")


class NotReached(Exception):
    """The scenario did not get where its script wants it."""


def _drain(master: int) -> None:
    with os.fdopen(master, "rb", buffering=0) as screen, suppress(OSError):  # its other end is closed
        while screen.read(65536):
            pass


class Stage(World):
    """Play a scenario. `expect` notes what is so from now on; `require` notes what else must hold."""

    def __init__(self, folder, broker: Broker, row: Row) -> None:
        self.program = PROGRAMS[row.agent]
        self.untold = UNTOLD.get((row.agent, row.scenario))
        self.headless = row.mode == HEADLESS
        self.phases: list[Phase] = []
        self.wrong: list[str] = []
        self.readers: list[Reader] = []
        self._terminal: int | None = None  # of the person who looks
        self.usage: int | None = None  # tokens of the job, where a row is about them
        self.tap_path = str(folder / "heard.jsonl")
        tmux = TmuxServer()
        super().__init__(folder, tmux, broker, ScriptedModel())
        self.baton.env |= {"CLAUDE_CODE_MAX_RETRIES": "2"} | (
            {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        )
        # The runner is started by the tmux server, which gives it this environment: the tap that records what it hears.
        path = os.pathsep.join(filter(None, (_TAP, os.environ.get("PYTHONPATH"))))
        environment = self.baton.env | {"PYTHONPATH": path, "TRUTH_TAP": self.tap_path}
        subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", tmux.socket, "new-session", "-d", "-s", "keep", "sleep", "100000"],
            env=environment, check=True, timeout=20,
        )  # fmt: skip

    def watch(self, session: str = "s") -> None:
        """Look at the session, as a person does who attaches to its terminal."""
        if self._terminal is not None:
            return
        master, self._terminal = pty.openpty()
        subprocess.Popen(  # it ends with its server
            ["tmux", "-S", self.tmux.socket, "attach-session", "-f", "ignore-size", "-t", f"={session}"],
            env=self.baton.env | {"TERM": "xterm-256color"}, stdin=self._terminal, stdout=self._terminal,
            stderr=self._terminal, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=_drain, args=(master,), daemon=True).start()

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        for each in self.baton("session", "list", "--json").json:
            self.baton("session", "stop", each["name"], "--mode", "hard", code=None)
        self.tmux.remove()
        self.model.close()
        if self._terminal is not None:
            os.close(self._terminal)

    def log_out(self) -> None:
        """Take all logins away, as of a user who has just installed the program."""
        for name in itertools.chain(*LOGINS.values()):
            self.baton.env.pop(name, None)
        self._write(".codex/config.toml", "check_for_update_on_startup = false\n")
        for path in (".qwen/settings.json", ".gemini/settings.json"):
            self._write(path, json.dumps(json.loads((self.home / path).read_text()) | {"security": {}}))

    # -- the work ------------------------------------------------------------------------------------------------------

    def begin(self, script: list, *options: str, prompt: str = "Do your part.", session: str = "s") -> Reader:
        """Start a job that plays this script, and wait until the model is asked for its first step."""
        reader = self.start(script, *options, prompt=prompt, session=session)
        self.working_from(session, 0)
        return reader

    def start(self, script: list, *options: str, prompt: str = "Do your part.", session: str = "s") -> Reader:
        self.model.scripts[session] = script
        job = self.job(f"{prompt} {cue(session)}", *options, agent=self.program.agent)
        reader = self.read(job)
        self.expect("starting", "pending", within=_PATIENCE_SEC)
        self.baton("session", "create", session, "--job", job, *(["--headless"] if self.headless else []))
        return reader

    def idle_session(self) -> None:
        """Start a session without a job, and wait for its prompt."""
        self.baton("session", "create", "s", "--agent", self.program.agent, "--workdir", str(self.work))
        self.shown(self.program.prompt)

    def read(self, job: str) -> Reader:
        reader = Reader(self, job)
        self.readers.append(reader)
        return reader

    def working_from(self, script: str, step: int, *, cause: str = "") -> None:
        """Wait for this request, and expect that baton says working since."""
        early = self.program.begins_sec  # before it come hooks
        self.expect("working", at=self.asked(script, step).at, cause=cause, early=early)

    def asked(self, script: str, step: int, *, answered: bool = False, within_sec: float = _PATIENCE_SEC):
        wanted = f"the request for step {step} of {script}"
        return self.reach(lambda: self.model.find(script, step, answered=answered), wanted, within_sec)

    def expect(
        self, *states: str, at: float | None = None, cause: str = "", within: float = WITHIN_SEC, early: float = 0.7
    ) -> None:
        """Expect this from now on. In a cell that is untold, what the program does not say may be said otherwise."""
        untold = self.untold.states.get(states[0], ()) if self.untold else ()
        self.phases.append(Phase(states, time.monotonic() if at is None else at, cause, within, early, untold))

    def completes(self, at: float | None = None, *, cause: str = "", within: float = WITHIN_SEC) -> None:
        self.expect("completed", at=at, cause=cause, within=within)
        self.ends()

    def fails(self, cause: str, *, at: float | None = None, within: float = WITHIN_SEC) -> None:
        self.expect("error", at=at, cause=cause, within=within)
        self.ends()

    def ends(self, within_sec: float = _PATIENCE_SEC) -> None:
        """Wait until the job is over."""
        poll(lambda: self.readers[0].ended, within_sec, interval_sec=0.05)

    def answered_last(self, script: str = "s") -> float:
        """Return when the newest answer of this script had been sent."""
        return max(asked.answered_at or asked.at for asked in self.model.log if asked.script == script)

    def expect_usage(self) -> None:
        """Expect that all tokens that the model has counted are counted."""
        self.usage = sum(asked.tokens for asked in self.model.log)

    def require(self, holds: object, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def stay(self, sec: float = WITHIN_SEC + 1) -> None:
        """Let this much of the scenario's time go by."""
        time.sleep(sec)  # a scenario is made of times

    # -- what is outside baton -----------------------------------------------------------------------------------------

    def file(self, name: str, within_sec: float = _PATIENCE_SEC) -> float:
        """Wait for a file that a tool writes; return when it was there."""
        self.reach((self.work / name).exists, f"the file {name}", within_sec)
        return time.monotonic()

    def reach(self, look: Callable, what: str, within_sec: float = _PATIENCE_SEC):
        found = poll(lambda: look() or self._is_over(), within_sec, interval_sec=0.05)
        if not found or not (found := look()):
            raise NotReached(f"{what} did not come; the screen shows: {self.last_screen()}")
        return found

    def _is_over(self) -> bool:
        """Return whether every job has been over for some seconds, unexpectedly: nothing more comes of it."""
        if self.phases and self.phases[-1].states[0] in ENDED:
            return False
        looks = [sample for reader in self.readers for sample in reader.samples[-_OVER_LOOKS:]]
        return len(looks) >= _OVER_LOOKS and all(sample.state in ENDED for sample in looks)

    def shown(self, text: str, session: str = "s", within_sec: float = _PATIENCE_SEC) -> float:
        """Wait until the agent's screen shows this, as the person at it does."""
        self.reach(lambda: re.search(text, self.pane(session)), f"{text!r} on the screen", within_sec)
        return time.monotonic()

    def pane(self, session: str = "s") -> str:
        done = subprocess.run(["tmux", "-S", self.tmux.socket, "capture-pane", "-p", "-t", f"={session}:"],
                              capture_output=True, text=True, check=False, timeout=20)  # fmt: skip
        return done.stdout

    def last_screen(self) -> str:
        lines = [line.strip() for line in self.pane().splitlines() if line.strip()]
        return " / ".join(lines[-12:])[-600:]

    def press(self, *keys: str, session: str = "s") -> float:
        """Press keys as a person does: a moment after each other, or the program takes two for one."""
        for number, key in enumerate(keys):
            time.sleep(_BETWEEN_KEYS_SEC if number else 0)  # a person's pause
            self.tmux("send-keys", "-t", f"={session}:", key)
        return time.monotonic()

    def type(self, text: str, session: str = "s") -> float:
        self.tmux("send-keys", "-t", f"={session}:", "-l", text)
        self.reach(lambda: text in self.pane(session), f"{text!r} at the prompt")
        return self.press("Enter", session=session)

    def runner_pid(self) -> int:
        return int(self.tmux("display-message", "-p", "-t", "=s:", "#{pane_pid}"))

    def agent_pid(self) -> int:
        """Return the process of the agent's program below the runner in the pane. Of a program that starts itself again,
        it is the last: the others only wait for it."""
        pid, command = self._child_of(self.runner_pid())
        if not pid:
            raise NotReached("no agent below the pane")
        while (child := self._child_of(pid))[0] and child[1][-1] == command[-1]:
            pid = child[0]
        return pid

    def _child_of(self, parent: int) -> tuple[int, list[bytes]]:
        """Return the child whose command names the program, and its command."""
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    is_child = int(file.read().rpartition(")")[2].split()[1]) == parent
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    command = file.read().rstrip(b"\0").split(b"\0")
            except OSError:
                continue
            if is_child and any(self.program.process.encode() in each for each in command):
                return int(pid), command
        return 0, []

    # -- requests ------------------------------------------------------------------------------------------------------

    def requests(self) -> list[dict]:
        return self.baton("requests", "--json").json

    def open_request(self) -> dict:
        return self.reach(self.requests, "an open request", 20)[0]

    def request(self, request_id: str) -> dict:
        return self.baton("requests", request_id, "--json").json

    def approve(self, asked: dict) -> None:
        """Approve the request, also one whose call is known by a title only. Some agents say only at the end of a tool
        that they use the answer: then the command ends with 1. Whether they go on, the row says."""
        self.baton("approve", asked["request_id"], *([] if asked["exact"] else ["--inexact"]), code=None)

    def configure(self, **settings: object) -> None:
        """Write the user's own settings of Claude."""
        self._write(".claude/settings.json", json.dumps(settings))


class Reader:
    """Look at the job every 200 ms, by the functions that `baton get` prints the result of."""

    def __init__(self, stage: Stage, job: str) -> None:
        self.job = job
        self.samples: list[Sample] = []
        self.record: dict = {}
        self._stage = stage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return bool(self.samples) and self.samples[-1].state in ENDED

    @property
    def detail(self) -> str:
        return str(self.record.get("detail") or "")

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        settings = Settings(env=self._stage.baton.env)
        with open_jobs(settings) as jobs:
            while not self._over.is_set():
                began = time.monotonic()
                if may_be_lost(settings, jobs.get_job(self.job)):
                    settle_lost(settings, jobs)
                self.record = jobs.get_job(self.job).public()
                self.samples.append(self._more_exact(sample_of(self.record, time.monotonic())))
                self._over.wait(max(0.0, began + LOOK_SEC - time.monotonic()))

    def _more_exact(self, sample: Sample) -> Sample:
        """Return the sample with the cause that `baton explain` shows: the registry has that of the last change of kind."""
        for path in self._stage.folder.glob("state/sessions/*"):
            found = read_snapshot(str(path))
            if found is not None and found.job_id == self.job and found.kind == sample.state:
                return sample._replace(cause=found.cause)
        return sample

    def spot_check(self) -> str:
        """Compare with what the command prints; return what differs."""
        printed = sample_of(self._stage.baton("get", self.job).json, 0.0)
        time.sleep(2 * LOOK_SEC)  # the reader has looked again
        near = {sample.state for sample in self.samples[-8:]}
        return "" if printed.state in near else f"baton get says {printed.state}, the reader {sorted(near)}"


def sample_of(record: dict, at: float) -> Sample:
    is_parked = record["status"] == "pending" and (record.get("activity") or {}).get("kind") == "limited"
    if record["status"] != "running" and not is_parked:
        return Sample(at, record["status"], str(record.get("detail") or ""))
    # The runner writes the first activity half a second after it has begun.
    activity = record.get("activity") or {"kind": "starting"}
    return Sample(at, activity["kind"], str(activity.get("cause") or ""))
