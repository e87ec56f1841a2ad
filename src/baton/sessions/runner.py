"""What runs in the pane: it owns the agent, on the same terminal, so that a person can attach and type.

It claims the job, says `started`, renews the lease and the live-agent record, passes on what the agent's output tells,
and ends with a terminal event in every case. Only its own death leaves that to the monitor.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.clock import format_time
from baton.core.errors import BatonError, EventRefused, IllegalTransition, NotVerified, OwnershipLost, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status
from baton.jobs.report import report
from baton.jobs.verbs import open_jobs
from baton.live_agents import open_directory, ownership
from baton.registry.query import JobFilter
from baton.sessions.ending import end_session
from baton.sessions.env_pipe import receive
from baton.sessions.instructions import job_prompt
from baton.sessions.inventory import Inventory
from baton.sessions.launch import BEGUN, LAST_SCREEN, LAUNCH, RUNNER_LOG, Plan, task_for
from baton.sessions.outbox import Outbox
from baton.sessions.processes import ProcessId, end_processes, marked_processes
from baton.sessions.reporter import Story
from baton.sessions.session import State, job_label
from baton.sessions.terminal import (
    continue_if_suspended,
    disable_flow_control,
    give_terminal,
    has_terminal,
    take_terminal,
)
from baton.sessions.tmux import Tmux
from baton.storage.files import read_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from baton.adapters.contract import Launch, Signal
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.session import Session

_LOOK_SEC: Final = 1.0
_PULSE_SEC: Final = 20.0
_REFRESH_SEC: Final = 600.0
_DEADLINE_SLACK_SEC: Final = 5.0
_GRACE_SEC: Final = 10.0
_SCREEN_LINES: Final = 500
_AT_ONCE_BYTES: Final = 1 << 20
_LONGEST_LINE_BYTES: Final = 16 << 20
_LEFTOVER_GRACE_SEC: Final = 2.0
_REFUSALS: Final = 2  # how often a headless agent is sent back to mend what is missing


class Runner:
    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        session: Session,
        folder: str,
        plan: Plan,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._session = session
        self._folder = folder
        self._plan = plan
        self._agent = find_agent(settings, session.agent)
        self._outbox = Outbox(settings)
        self._stop_asked: str | None = None  # why we are to end, once somebody wants that
        self._on_purpose = False  # and whether that was meant to keep the conversation
        self._ended_by_stop = False  # and whether `stop` sees to the agent, with its own patience
        self._names_are_ours = True
        self._last_shown = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Runs the agent to its end; returns our own exit code."""
        signal.set_wakeup_fd(self._wake)
        disable_flow_control()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C in the pane is the agent's. Not ignored: the agent would inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked_by_signal)
        reason, exit_text = "it did not begin", None
        with open_jobs(self._settings) as jobs:
            story = Story(jobs, self._outbox)
            try:
                story.begin(self._claim(jobs))
                reason, exit_text = self._run_agent(story)
            except Exception as error:  # noqa: BLE001  whatever it is, the job must not be left running
                reason = _tell_failed(self._folder, error)
                story.failed(reason)
            finally:
                self._end_processes(_LEFTOVER_GRACE_SEC)
                self._finish(reason, exit_text, story.redact)
        self._outbox.close()
        return 0

    # -- the job -------------------------------------------------------------------------------------------------

    def _claim(self, jobs: Jobs) -> Job | None:
        """Makes the job ours that the session was made for, if it was made for one."""
        job_id, attempt = self._plan.job_id, self._plan.attempt
        if job_id is None:
            return None
        if attempt is not None:
            return jobs.renew_lease(job_id, attempt=attempt, lease_sec=self._settings.lease_sec)
        try:
            return jobs.pick_job(job_id, holder=self._holder(), lease_sec=self._settings.lease_sec)
        except IllegalTransition as error:
            raise BatonError(f"job {job_id} is {error.current} already: it is not taken up twice") from None

    def _holder(self) -> str:
        return f"{self._session.host}:{self._session.name}:{os.getpid()}"

    # -- the agent -----------------------------------------------------------------------------------------------

    def _run_agent(self, story: Story) -> tuple[str, str | None]:
        """Starts the agent, again where it has to mend something, and returns why it ended and how it exited."""
        prompt, resume = self._plan.prompt, self._plan.resume
        if story.job is not None:
            prompt = job_prompt(self._agent, story.job)
        for refusals in range(_REFUSALS + 1):
            launch = self._agent.launch(task_for(self._session, self._folder, prompt=prompt, resume=resume))
            told = _Told()
            exit_text, code = self._run_once(launch, story, told)
            if self._stop_asked is not None:
                story.failed(told.with_trouble(f"the session was stopped: {self._stop_asked}"))
                return self._stop_asked, exit_text
            try:
                self._judge(story, told, code, exit_text)
                return f"the agent ended ({exit_text})", exit_text
            except NotVerified as error:
                _say(f"baton: {error}")
                can_mend = launch.reads_lines and self._agent.keeps_conversation and self._session.conversation_id
                if not can_mend or refusals == _REFUSALS:
                    story.failed(error.why)
                    return error.why, exit_text
                prompt, resume = f"baton refused your work: {error}", True
        raise AssertionError("unreachable")

    def _judge(self, story: Story, told: _Told, code: int, exit_text: str) -> None:
        """What the agent's end means for its job. NotVerified when it claims success and the results are not there."""
        if story.over():
            story.send()  # whoever ended it may have had no network
            return
        ended = "the command ended" if self._agent.exit_is_verdict else f"{self._agent.name} ended"
        if told.failed is not None:
            story.failed(told.failed)
        elif code == 0 and (self._agent.exit_is_verdict or told.finished is not None):
            self._complete(story, told.finished or f"{ended} with {exit_text}")
        elif self._agent.exit_is_verdict:
            line = _last_line(self._screen())
            story.failed(f"{ended} with {exit_text}" + (f": {line}" if line else ""))
        else:
            when = "before it said" if told.finished is None else "though it had said"
            story.failed(told.with_trouble(f"{ended} with {exit_text} {when} that the job was done"))

    def _complete(self, story: Story, words: str) -> None:
        """In a thread of its own: a validation that takes long must not cost us the job, nor keep us from stopping."""
        assert story.job is not None
        job_id, attempt = story.job.job_id, story.job.attempt
        failure: list[Exception] = []

        def verify_and_record() -> None:
            try:
                with open_jobs(self._settings) as jobs:
                    report(jobs, job_id, EventName.COMPLETED, detail=words, attempt=attempt)
            except Exception as error:  # noqa: BLE001  raised again where it can be dealt with
                failure.append(error)

        thread = threading.Thread(target=verify_and_record, daemon=True)
        thread.start()
        chores = self._chores()
        while thread.is_alive():
            thread.join(0.05)
            self._do_chores(chores, story)
            if self._stop_asked is not None:
                self._end_processes(_LEFTOVER_GRACE_SEC)
        if self._stop_asked is not None and failure:
            story.failed(f"the session was stopped: {self._stop_asked}")
        elif failure and not isinstance(failure[0], EventRefused | StaleAttempt):
            raise failure[0]
        story.send()

    def _run_once(self, launch: Launch, story: Story, told: _Told) -> tuple[str, int]:
        for name, content in launch.files.items():
            replace_file(os.path.join(self._folder, name), content.encode())
        environment = os.environ | story.environment()
        stdin = subprocess.PIPE if launch.stdin is not None else None
        try:
            child = subprocess.Popen(
                launch.argv,
                cwd=self._session.workdir,
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE if launch.reads_lines else None,
                process_group=0,
                # Before it can read from there: what is in the background then may get an error instead of a pause.
                preexec_fn=take_terminal,  # noqa: PLW1509  it takes no lock
            )
        except OSError as error:
            raise BatonError(f"{launch.argv[0]} could not be started: {error.strerror}") from None
        self._child = child
        give_terminal(child.pid)
        try:
            story.started(self._session, child.pid)
            _tell_begun(self._folder, pid=child.pid)
            self._feed(child, launch.stdin)
            code = self._watch(child, story, told)
        finally:
            give_terminal(os.getpgrp())
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None
        return (f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"), code

    def _feed(self, child: subprocess.Popen[bytes], text: str | None) -> None:
        """The prompt, from a thread: an agent that does not read it must not hold us up."""
        if text is None or child.stdin is None:
            return
        import _thread

        pipe = child.stdin
        child.stdin = None

        def write() -> None:
            try:
                with pipe:
                    pipe.write(text.encode())
            except OSError:
                pass  # it did not want to hear it all

        _thread.start_new_thread(write, ())

    def _watch(self, child: subprocess.Popen[bytes], story: Story, told: _Told) -> int:
        """Until the agent has ended: listens to it, keeps what is ours, and sees what became of the job meanwhile."""
        chores = self._chores()
        output = child.stdout
        if output is not None:
            os.set_blocking(output.fileno(), False)
        rest = b""
        while True:
            waiting = [self._woken] if output is None else [self._woken, output.fileno()]
            ready = select.select(waiting, [], [], min(timer.left() for timer, _ in chores))[0]
            if self._woken in ready:
                os.read(self._woken, 4096)
                continue_if_suspended(child.pid)
            # An agent that has ended is heard to its last line, but not for what its children may still hold open.
            ended = child.poll() is not None
            if output is not None and (ended or output.fileno() in ready):
                rest, closed = self._read_lines(output.fileno(), rest, story, told)
                output = None if closed else output
            if ended:
                self._try(self._look, story)
                return child.returncode
            self._do_chores(chores, story)
            if self._stop_asked is not None and not self._ended_by_stop:
                self._end_processes(_GRACE_SEC)

    def _chores(self) -> list[tuple[_Timer, Callable[[Story], None]]]:
        """What has to be done now and then, whatever else goes on."""
        return [
            (_Timer(self._settings.lease_sec / 4), self._renew),
            (_Timer(_LOOK_SEC), self._look),
            (_Timer(_PULSE_SEC), self._feel_pulse),
            (_Timer(_REFRESH_SEC), self._refresh_name),
        ]

    def _do_chores(self, chores: list[tuple[_Timer, Callable[[Story], None]]], story: Story) -> None:
        for timer, chore in chores:
            if timer.due():
                self._try(chore, story)

    def _try(self, chore: Callable[[Story], None], story: Story) -> None:
        try:
            chore(story)
        except (BatonError, OSError) as error:
            _say(f"baton: {error}")  # the store is away, or the disk full: the next time may do

    def _read_lines(self, fd: int, rest: bytes, story: Story, told: _Told) -> tuple[bytes, bool]:
        """What is there to be read now, up to a limit; the rest of its last line; and whether that was all there will
        be. An agent that floods us is heard by turns with everything else there is to do."""
        piece = b""
        closed = False
        try:
            while not closed and len(piece) < _AT_ONCE_BYTES:
                more = os.read(fd, 1 << 16)
                piece += more
                closed = not more
        except BlockingIOError:
            pass
        *lines, rest = (rest + piece + (b"\n" if closed else b"")).split(b"\n")
        for line in lines:
            self._heard(self._agent.read_output(line.decode(errors="replace")), story, told)
        return rest[-_LONGEST_LINE_BYTES:], closed

    def _heard(self, said: Signal | None, story: Story, told: _Told) -> None:
        if said is None:
            return
        if said.conversation_id and said.conversation_id != self._session.conversation_id:
            self._session = self._inventory.remember_conversation(self._session, said.conversation_id)
        if said.failed is not None:
            told.failed = said.failed
        elif said.finished is not None:
            told.finished = said.finished
        elif said.trouble is not None:
            _say(said.trouble)
            told.trouble = said.trouble
        elif said.progress is not None:
            told.trouble = None
            _say(said.progress)
            story.progress(said.progress)
        elif said.permission is not None:
            story.permission_required(said.permission)

    # -- while it runs -------------------------------------------------------------------------------------------

    def _look(self, story: Story) -> None:
        """What others decided meanwhile: about the job, and about the session."""
        session = self._inventory.find(self._session.session_id)
        if session is not None and session.stop_requested is not None and self._stop_asked is None:
            self._stop_asked, self._on_purpose, self._ended_by_stop = session.stop_requested, True, True
        if self._ended_by_stop and session is not None:
            stopper = ProcessId.parse(session.stopper)
            self._ended_by_stop = stopper is not None and stopper.is_alive()
        status = story.status()
        if self._stop_asked is not None:
            return
        if self._session.made_for is not None:
            self._look_at_own_job(story, status)
        elif self._session.mode is Mode.INTERACTIVE:
            self._look_at_sent_job(story, status)

    def _look_at_own_job(self, story: Story, status: Status | None) -> None:
        """The job the session was made for: they end together. A headless agent ends by itself when it is done."""
        if status is not None and status not in TERMINAL:
            self._stop_asked = story.overdue(_DEADLINE_SLACK_SEC)
        elif status is Status.CANCELLED or (status is not None and self._session.mode is Mode.INTERACTIVE):
            self._stop_asked, self._on_purpose = f"its job is {status}", True

    def _look_at_sent_job(self, story: Story, status: Status | None) -> None:
        """A job that was sent to a session which was there before it, and stays."""
        if status is not None and status not in TERMINAL:
            why = story.overdue(_DEADLINE_SLACK_SEC)
            if why is not None:
                story.failed(why)
                self._interrupt()
            return
        if story.ended_from_outside():
            self._try(lambda _: self._interrupt(), story)
        self._take_next(story)

    def _interrupt(self) -> None:
        """The agent goes on living; what it is doing for a job that is over, it need not do."""
        assert self._session.pane_id is not None
        Tmux(self._session.socket).press(self._session.pane_id, [self._agent.interrupt_key])

    def _is_free(self) -> bool:
        """Whether a shell is at its prompt: what is typed ahead would run whenever it gets there."""
        return not self._agent.exit_is_verdict or self._child is None or has_terminal(self._child.pid)

    def _take_next(self, story: Story) -> None:
        """A session that is free takes the next job that was sent to it by its name, and the agent is told."""
        label = job_label(self._session.agent_id)
        waiting = story.jobs.list_jobs(JobFilter(statuses=[Status.PENDING], agent_session=label), limit=1).jobs
        waiting = waiting if self._is_free() else []
        if not waiting and story.job is None:
            return
        job = (
            story.jobs.pick_pending(label, holder=self._holder(), lease_sec=self._settings.lease_sec)
            if waiting
            else None
        )
        story.begin(job)
        self._session = self._inventory.change(
            self._session, lambda current: current.replace(job_id=job.job_id if job else None)
        )
        if job is None:
            return
        file = os.path.join(self._folder, f"job-{job.job_id}")
        publish = [sys.executable, "-P", "-m", "baton", "publish", "--job", job.job_id, "--attempt", str(job.attempt)]
        text, files = self._agent.job_input(job_prompt(self._agent, job), file, [*publish, "--event"])
        for path, content in files.items():
            replace_file(path, content.encode())
        story.started(self._session, self._child.pid if self._child else 0)
        assert self._session.pane_id is not None
        try:
            Tmux(self._session.socket).paste(self._session.pane_id, text, enter=True)
        except BatonError as error:
            story.failed(str(error))  # the job's fault, or tmux's: the session lives on

    def _feel_pulse(self, story: Story) -> None:
        """A command has no hooks to tell what it is doing, and an agent in a long turn may use none: that its screen
        moves is a sign of life. One that waits for somebody stands still."""
        if not story.silent(_PULSE_SEC / 2):
            return
        shown = self._screen()
        if shown != self._last_shown:
            self._last_shown = shown
            story.progress((self._agent.exit_is_verdict and _last_line(shown)) or "it is working")

    def _renew(self, story: Story) -> None:
        try:
            story.renew(self._settings.lease_sec)
        except StaleAttempt as error:
            self._stop_asked = str(error)

    def _refresh_name(self, _: Story) -> None:
        if not self._names_are_ours:
            return
        try:
            self._refresh_record()
        except OwnershipLost as error:
            self._names_are_ours = False  # another leads that name now: this session goes on without it
            _say(f"baton: {error}")

    def _refresh_record(self) -> None:
        directory = open_directory(self._settings)
        try:
            ownership.refresh(
                directory,
                self._session.agent_id,
                self._session.generation_id,
                lease_ns=ownership.DEFAULT_LEASE_SEC * 10**9,
            )
        finally:
            directory.close()

    def _asked_by_signal(self, number: int, _frame: object) -> None:
        self._ended_by_stop = False
        if self._stop_asked is None:
            self._stop_asked = f"the session was ended from outside ({signal.Signals(number).name})"

    # -- the end -------------------------------------------------------------------------------------------------

    def _end_processes(self, grace_sec: float) -> None:
        """The agent, if it is there, and everything it started, wherever that has put itself."""
        end_processes(lambda: marked_processes(self._session.session_id), grace_sec=grace_sec)

    def _screen(self) -> str:
        if self._session.pane_id is None:
            return ""
        try:
            return Tmux(self._session.socket).capture(self._session.pane_id, _SCREEN_LINES)
        except BatonError:
            return ""  # the pane is gone

    def _finish(self, reason: str, exit_text: str | None, redact: Callable[[str], str]) -> None:
        screen = redact("\n".join(line.rstrip() for line in self._screen().splitlines())).strip("\n")
        if screen:  # the pane closes with us, and with it what would tell why
            _write(os.path.join(self._folder, LAST_SCREEN), screen + "\n")
        told = {"reason": reason, "exit": exit_text, "at": format_time(time.time_ns())}
        _write(os.path.join(self._folder, "exit.json"), json.dumps(told))
        state = State.STOPPED if self._on_purpose else State.TERMINATED
        end_session(self._settings, self._inventory, self._session, state, reason=reason, exit_text=exit_text)


class _Timer:
    def __init__(self, every_sec: float) -> None:
        self._every_sec = every_sec
        self._at = time.monotonic() + every_sec

    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def due(self) -> bool:
        if self.left() > 0:
            return False
        self._at = time.monotonic() + self._every_sec
        return True


class _Told:
    """What the agent's own output said about how it went."""

    finished: str | None = None
    failed: str | None = None
    trouble: str | None = None

    def with_trouble(self, why: str) -> str:
        return f"{why}; before that: {self.trouble}" if self.trouble else why


def _last_line(screen: str) -> str:
    lines = [line.strip() for line in screen.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)  # a real-time signal, which has none


# -- what others see ---------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    flat = " ".join(text.split())
    try:
        print("".join(each if each.isprintable() else "\ufffd" for each in flat), flush=True)
    except OSError:
        pass  # nobody is there to read


def _write(path: str, text: str) -> None:
    """For people to read; that it cannot be written must not keep us from what counts."""
    try:
        replace_file(path, text.encode(errors="replace"))
    except OSError as error:
        _say(f"baton: {path}: {error.strerror}")


def _tell_begun(folder: str, **told: object) -> None:
    path = os.path.join(folder, BEGUN)
    if not os.path.exists(path):
        replace_file(path, json.dumps(told).encode(), durable=False)


def _tell_failed(folder: str, error: Exception) -> str:
    """For whoever made the session, looks at the pane, or looks later; returns why."""
    reason = str(error)
    if not isinstance(error, BatonError):
        import traceback

        path = os.path.join(folder, RUNNER_LOG)  # the pane closes with us, and what it showed
        _write(path, traceback.format_exc())
        reason = f"the runner failed: {type(error).__name__}: {error}; see {path}"
    _say(f"baton: {reason}")
    try:
        _tell_begun(folder, failed=reason)
    except OSError:
        pass  # then that we end has to tell it; the job must still hear of it
    return reason


def main(folder: str) -> int:
    environment = receive(folder)
    if environment is None:
        return 1  # whoever made the session has given up, and cleans up after itself
    terminal = {name: os.environ[name] for name in ("TERM", "TMUX", "TMUX_PANE", "COLORTERM") if name in os.environ}
    os.environ.clear()
    os.environ.update(environment | terminal)
    try:
        return _run(folder)
    except Exception as error:  # noqa: BLE001  the pane closes with us: nobody would ever see it
        _tell_failed(folder, error)
        return 1


def _run(folder: str) -> int:
    settings = Settings()
    inventory = Inventory(settings)
    session = inventory.find(os.path.basename(folder))
    if session is None:
        return 1
    plan = Plan(**json.loads(read_file(os.path.join(folder, LAUNCH))))
    return Runner(settings, inventory, session, folder, plan).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
