"""Run an agent in a tmux pane: the program that `launch` starts there.

The runner shares the terminal with the agent, so that a user can attach and type. It claims the job, reports `started`,
renews the lease and the live-agent record, and reports what the agent's output says. Every job ends with a terminal
event; only when the runner itself dies, the monitor has to report it.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from functools import partial

from baton.adapters import check_place, find_agent
from baton.adapters.contract import Launch, Mode, Task
from baton.channels.contract import Channel, Setup, Silent
from baton.channels.find import find_channel
from baton.config import Settings
from baton.core import errors
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS, Clock, SystemClock, format_micros
from baton.core.job import Job, Status
from baton.core.limits import Limit
from baton.core.result import hide_keys
from baton.core.signal import WELL, Gone, Said, Stated
from baton.core.value import Value
from baton.jobs.output import OutputReader
from baton.jobs.verbs import open_jobs
from baton.live_agents import open_directory, ownership
from baton.origin import Origin, keep_origin
from baton.sessions.agent_process import AgentProcess
from baton.sessions.budget import has_budget
from baton.sessions.chores import Chores, attempt
from baton.sessions.ending import EXIT, end_session
from baton.sessions.env_pipe import receive
from baton.sessions.in_thread import InThread
from baton.sessions.instructions import go_on_prompt, job_prompt
from baton.sessions.inventory import Inventory
from baton.sessions.job_at_work import JobAtWork
from baton.sessions.launch import LAST_SCREEN, Plan, read_plan, task_for
from baton.sessions.notify import send_of_job
from baton.sessions.pane_output import JobOutput, PaneOutput
from baton.sessions.processes import (
    adopt_orphans,
    end_processes,
    ended_children,
    is_stopped,
    marked_processes,
)
from baton.sessions.release import Reading
from baton.sessions.reporter import BackgroundSender, Reporter
from baton.sessions.runner_notes import show_failure, write, write_begun
from baton.sessions.screen import Screen
from baton.sessions.sent_jobs import SentJobs
from baton.sessions.session import Session, State
from baton.sessions.terminal import continue_if_suspended, disable_flow_control, print_line
from baton.sessions.verdict import ExitStatus
from baton.sessions.witness import open_witness
from baton.storage.files import replace_file
from baton.storage.homes import load_settings

_CHECK_SEC = 1.0
_REAP_SEC = 5.0
_BUDGET_SEC = 5.0
_REFRESH_SEC = 600.0
_LIMIT_SLACK_SEC = 0.5  # `submit` enforces the same limits, and acts first
_GRACE_SEC = 10.0
_LEFTOVER_GRACE_SEC = 2.0
_REPORT_PATIENCE_SEC = 120.0
_RELEASE_NS = 3 * SECOND_NS  # for the release of a program that did not begin
_STOPPED_WITH_NS = 2 * SECOND_NS  # what stops an agent with its runner stops both within that time


class Stop(Value):
    """Why the runner ends. `on_request`: the session counts as stopped. `by_other`: another process ends the agent.
    `ended_by` is for the record of its job."""

    reason: str
    on_request: bool = False
    by_other: bool = False
    ended_by: str = "cancelled"

    @property
    def why(self) -> str:
        """Return the reason for the job: a limit is one, everything else first stops the session."""
        return self.reason if self.ended_by in ("timeout", "idle") else f"the session was stopped: {self.reason}"


class Runner:
    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        session: Session,
        folder: str,
        plan: Plan,
        origin: Origin,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._session = session
        self._folder = folder
        self._plan = plan
        self._origin = origin
        real_clock = clock or SystemClock()
        self._clock = AwakeClock(real_clock)
        self._agent = find_agent(settings, session.agent)
        self._jobs = open_jobs(settings)
        self._sender = BackgroundSender(settings)
        send = self._sender.send
        self._reporter = Reporter(self._jobs, send, patience_sec=_REPORT_PATIENCE_SEC, clock=self._clock)
        self._holder = f"{session.host}:{session.name}:{os.getpid()}"
        self._process: AgentProcess | None = None
        self._output = JobOutput(settings, self._jobs)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._screen = Screen(session, self._clock)
        self._job = JobAtWork(
            settings, self._agent, session.mode, self._reporter, self._output, folder, self._clock,
            send=send, wake=self._wake_up, remember=self._remember_conversation,
            conversation=lambda: self._session.conversation_id, shows_life=self._screen.shows_life,
            is_watched=self._screen.is_watched, is_stopping=self._is_stopping, may_continue=self._may_continue,
            parks=session.made_for is not None, begun=self._keep_origin,
        )  # fmt: skip
        self._sent_jobs = SentJobs(
            settings, inventory, self._agent, folder, self._reporter, self._job, self._holder, self._clock
        )
        self._pane: PaneOutput | None = None
        self._release: Reading | None = None  # of the program that runs
        self._stop: Stop | None = None
        self._owns_name = True
        self._ended: set[int] = set()
        self._reason = "it did not begin"
        self._exit_text: str | None = None
        self._began = False
        self._is_opening = False
        self._was_continued = False
        self._continued_ns: int | None = None  # for a moment
        self._chores = Chores(
            real_clock,  # the lease is renewed, whatever is left out
            [
                (settings.lease_sec / 4, self._renew_lease),
                (_CHECK_SEC, self._check),
                (_REAP_SEC, self._reap_orphans),
                (_BUDGET_SEC, self._check_budget),
                (_REFRESH_SEC, self._refresh_name),
            ],
        )

    def run(self) -> None:
        """Run the agent to its end."""
        signal.set_wakeup_fd(self._wake)
        disable_flow_control()
        attempt(adopt_orphans)
        attempt(partial(open_witness, self._folder))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGCONT, self._note_continue)
        # Ctrl-C in the pane is for the agent. The signal is not ignored, because the agent would inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop_by_signal)
        self._job.begin(self._claim())
        if self._reporter.job is not None and self._reporter.job.worktree is not None and not self._prepare():
            return
        if not self._agent.exit_is_verdict:  # a command may be over at once
            attempt(self._job.work.store)
        self._reason = self._run_agent()

    def fail(self, reason: str) -> None:
        """Report that the runner failed. Before the agent ran, it was refused or stopped; later, it is lost."""
        self._reason = reason if self._stop is None else self._stop.reason
        ended_by = "lost" if self._began else "refused"
        self._reporter.failed(reason, ended_by=ended_by if self._stop is None else self._stop.ended_by)

    def close(self) -> None:
        """End what the agent has left running, write the end of the session, and send the last events."""
        try:
            self._end_processes(_LEFTOVER_GRACE_SEC)
            self._write_end()
        finally:
            self._jobs.registry.close()
            self._sender.close()
            if self._session.made_for is not None and self._settings.notify is not None:
                attempt(partial(send_of_job, self._settings, self._session.made_for, print_line))

    def _write_end(self) -> None:
        job = self._reporter.job
        keys = self._jobs.keys(job) if job is not None else ()
        screen = hide_keys("\n".join(line.rstrip() for line in self._screen.text().splitlines()).strip("\n"), keys)
        if screen and job is not None and not OutputReader(self._settings.home, job).exists():
            self._keep_output(f"{screen}\n".encode(errors="replace"))  # of an agent without a channel
            self._output.flush()
        if screen:  # the pane closes with the runner
            write(os.path.join(self._folder, LAST_SCREEN), screen + "\n")
        end = {"reason": self._reason, "exit": self._exit_text, "at": format_micros(self._clock.wall_ns())}
        write(os.path.join(self._folder, EXIT), json.dumps(end))
        state = State.STOPPED if self._stop is not None and self._stop.on_request else State.TERMINATED
        end_session(
            self._settings, self._inventory, self._session, state, reason=self._reason, exit_text=self._exit_text
        )

    def _claim(self) -> Job | None:
        """Claim the job that the session was created for, unless a worker has already claimed it."""
        job_id, lease_sec = self._session.made_for, self._settings.lease_sec
        if job_id is None:
            return None
        if self._plan.attempt is not None:
            return self._jobs.renew_lease(job_id, attempt=self._plan.attempt, lease_sec=lease_sec)
        try:
            return self._jobs.pick_job(job_id, holder=self._holder, lease_sec=lease_sec)
        except errors.IllegalTransition as error:
            raise errors.BatonError(f"job {job_id} is {error.current} already: it is not started twice") from None

    def _keep_origin(self, job: Job | None) -> None:
        """Keep, for what the agent calls, which job is its own and which led to it."""
        above = self._plan.above if job is None else job.above
        keep_origin(
            self._origin.replace(
                job_id=None if job is None else job.job_id,
                attempt=0 if job is None else job.attempt,
                above=above,
                has_budget=job is not None and has_budget(self._jobs, job),
            )
        )

    def _prepare(self) -> bool:
        """Make the worktree of the job, and work there. Return False if the session was stopped meanwhile."""
        from baton.sessions.preparation import Preparation, enter

        assert self._reporter.job is not None
        self._check_place()
        write_begun(self._folder, pid=os.getpid())  # `launch` does not wait for a checkout, which may take minutes
        self._job.work.prepare("its worktree is being made")
        self._preparation = Preparation(self._settings, self._reporter.job, self._wake_up)
        while not self._preparation.is_done:
            self._wait()
            self._chores.run_due()
            if self._stop is not None:
                self._preparation.stop()
        if self._stop is not None:
            self._reason = self._stop.reason
            self._reporter.failed(self._stop.why, ended_by=self._stop.ended_by)
            return False
        self._reporter.job = self._preparation.result(self._jobs)
        self._job.work.prepare("")
        self._session = enter(self._inventory, self._session, self._reporter.job)
        return True

    def _run_agent(self) -> str:
        """Run the agent until its work is accepted, or refused for the last time; return why the session ends."""
        prompt, resume = self._plan.prompt, self._plan.resume
        if self._reporter.job is not None:
            prompt = job_prompt(self._agent, self._reporter.job, resumed=resume)
        while True:
            left_usd = self._job.left_usd
            task = task_for(self._session, self._folder, prompt=prompt, resume=resume, budget_usd=left_usd)
            launch = self._agent.checked_launch(task)
            ended = self._run_once(task, launch)
            self._exit_text = ended.text
            refused = self._conclude()
            if self._stop is not None:
                self._reporter.failed(self._stop.why, ended_by=self._stop.ended_by)
                return self._stop.reason
            if self._job.goes_on and self._reporter.job is not None:
                prompt, resume = go_on_prompt(self._reporter.job, "You may spend more now."), True
                self._job.begin_again()
                continue
            if refused is None:
                return f"the agent ended ({ended.text})"
            print_line(f"baton: {refused.why}")
            if not self._can_continue() or not self._reporter.may_try_again():
                self._reporter.refused(refused)
                return refused.why
            prompt, resume = refused.with_output(f"baton refused your work: {refused}"), True
            self._job.begin_again()

    def _can_continue(self) -> bool:
        """Return whether the agent's program can be started again, to go on in its conversation without a person."""
        return self._session.mode is Mode.HEADLESS and self._may_continue()

    def _may_continue(self) -> bool:
        """Return whether the agent's program can be started again, to go on in its conversation."""
        is_known = self._session.conversation_id is not None or not self._agent.resumes_by_id
        return self._agent.resumes(self._session.mode) and is_known

    def _run_once(self, task: Task, launch: Launch) -> ExitStatus:
        """Run the agent's program to its end, and hear how it ended."""
        self._check_place()
        environment = {**os.environ, **self._reporter.environment()}
        channel = find_channel(self._agent, task.replace(environment=environment)) or Silent()
        self._release = Reading(self._settings.state_dir, self._agent, environment, self._folder, self._wake_up)
        try:
            self._check_release()
            setup = self._open(channel)
            self._job.use(channel)
            for name, content in {**launch.files, **setup.files}.items():
                replace_file(os.path.join(self._folder, name), content.encode())
            if self._agent.exit_is_verdict and not launch.reads_lines and self._pane is None and self._session.pane_id:
                self._pane = PaneOutput(self._session.socket, self._session.pane_id)
            if setup.argv is not None:
                launch = launch.replace(argv=list(setup.argv))
            environment |= setup.environment
            workdir = self._session.workdir
            with AgentProcess(launch, workdir=workdir, environment=environment, inherit=setup.descriptors) as process:
                self._process = process
                self._began = True
                self._reporter.started(self._session, process.pid)
                write_begun(self._folder, pid=process.pid)
                process.feed(launch.stdin)
                channel.attach(*process.take_pipes())
                channel.begin(process.pid)
                self._watch(process, channel)
            if self._pane is not None:
                self._pane.read_rest(self._keep_output)
            self._output.flush()
        finally:
            channel.close()
        ended = ExitStatus(process.exit_code)
        self._note_end(ended)
        attempt(self._job.work.store_usage)
        return ended

    def _check_place(self) -> None:
        if self._reporter.job is not None:
            check_place(self._reporter.job)

    def _open(self, channel: Channel) -> Setup:
        """Open the channel. A server that takes long to begin costs the job neither its lease nor a stop."""
        opening = InThread(partial(channel.open, self._job.ear.hear), self._wake_up)
        self._is_opening = True
        while not opening.is_done:
            self._wait()
            if self._job.wait_sec() == 0:
                attempt(self._job.work.keep)
            self._chores.run_due()
            if self._stop is not None and not self._stop.by_other:
                self._end_processes(_LEFTOVER_GRACE_SEC)
            self._check_release()
        self._is_opening = False
        if self._is_stopping() and self._stop is not None:
            raise errors.AgentUnusable(self._stop.why)
        try:
            setup: Setup = opening.result()
        except errors.AgentUnusable:
            self._wait_for_release()  # it may be the reason
            raise
        return setup

    def _check_release(self) -> None:
        """Note the release of the agent's program once it is known. AgentUnusable if baton cannot work with it."""
        release = None if self._release is None else self._release.take()
        if release is not None:
            self._job.work.note(Stated(release=release, assumed=True), "program")
            self._agent.check_release(release)
        stated = self._job.work.facts.stated
        if self._release is not None and stated is not None and stated.signal.release and not stated.signal.assumed:
            self._release.correct(stated.signal.release)

    def _wait_for_release(self) -> None:
        until_ns = self._clock.monotonic_ns() + _RELEASE_NS
        while self._release is not None and not self._release.is_done and self._clock.monotonic_ns() < until_ns:
            self._wait()
            self._chores.run_due()
        self._check_release()

    def _note_end(self, ended: ExitStatus) -> None:
        who, when = "the command", ""
        if not self._agent.exit_is_verdict:
            turn = self._job.work.facts.job_turn
            said = "though it had said" if turn is not None and turn.how == WELL else "before it said"
            who, when = self._agent.name, f"{said} that the job was done"
        screen = self._screen.text if self._stop is None else lambda: ""
        cause = self._agent.exit_cause(ended.code)
        why = ended.describe(who, screen, when, cause)
        self._job.work.note(Gone(why=why, ok=ended.ok and not cause), "process")

    def _watch(self, process: AgentProcess, channel: Channel) -> None:
        """Handle what the agent says and do the chores until its program has ended."""
        while True:
            outputs = channel.outputs + (self._pane.outputs() if self._pane is not None else [])
            if self._wait(outputs, channel.inputs):
                continue_if_suspended(process.pid)
            # Read all that an ended agent has written, but do not wait for processes that keep its output open.
            has_ended = process.has_ended()
            if self._pane is not None and (content := self._pane.read()):
                self._keep_output(content)
                self._job.work.note(Said(text=""), "pane")
            channel.read()
            channel.write()
            self._keep_output(channel.take_text().encode(errors="replace"))
            attempt(self._check_release)
            is_over = channel.is_over  # before the step, which handles what the channel said about that
            self._job.step()
            if has_ended:
                self._process = None
                attempt(self._check)
                return
            self._chores.run_due()
            if is_over or self._job.ends_program or (self._stop is not None and not self._stop.by_other):
                self._end_processes(_GRACE_SEC)

    def _wait(self, outputs: Sequence[int] = (), inputs: Sequence[int] = ()) -> bool:
        """Wait until a descriptor is ready, or a chore or a step is due; look for answers meanwhile. Return whether a
        signal of the system, or of another thread, came."""
        watched = [self._woken, *outputs]
        while True:
            wait_sec = min(self._chores.wait_sec(), self._job.wait_sec())
            answers_sec = self._job.asking.wait_sec()
            is_look = answers_sec is not None and answers_sec < wait_sec
            wait_sec = answers_sec if is_look and answers_sec is not None else wait_sec
            self._clock.will_read_in(wait_sec)
            readable, writable, _ = select.select(watched, inputs, [], wait_sec)
            self._leave_out_pause()
            if self._clock.take_wake():
                self._chores.hurry()  # first of all it renews the lease
            if not is_look or readable or writable:
                break
            attempt(self._job.asking.check)
        if self._woken not in readable:
            return False
        os.read(self._woken, 4096)
        return True

    def _leave_out_pause(self) -> None:
        """Leave out the time in which the agent's program is stopped, if the runner was stopped with it. tmux continues
        the runner at once, but not the agent."""
        was_continued, self._was_continued = self._was_continued, False
        if not was_continued and self._continued_ns is None:
            return
        if self._process is not None and is_stopped(self._process.pid):
            self._clock.leave_out()
        now_ns = self._clock.monotonic_ns()
        if was_continued:
            self._continued_ns = now_ns
        elif self._continued_ns is not None and now_ns - self._continued_ns > _STOPPED_WITH_NS:
            self._continued_ns = None

    def _note_continue(self, _number: int, _frame: object) -> None:
        self._was_continued = True

    def _conclude(self) -> errors.NotVerified | None:
        """Report how the job ended with the agent's program. Return why its results were refused, if they were."""
        if self._reporter.is_over():
            self._reporter.send()
            message = self._job.work.verdict().message
            if message and self._reporter.job is not None:
                self._jobs.add_message(self._reporter.job, message)  # the agent had published its end before
            return None
        while self._stop is None or self._job.is_verifying:
            attempt(self._job.decide)
            if self._job.is_settled or (not self._job.is_verifying and self._reporter.is_over()):
                break
            self._wait()
            self._chores.run_due()
            if self._stop is not None:
                self._end_processes(_LEFTOVER_GRACE_SEC)
        return self._job.refused

    def _wake_up(self) -> None:
        """Wake the main thread, from any thread."""
        try:
            os.write(self._wake, b"\0")
        except BlockingIOError:
            return  # it is awake

    def _keep_output(self, content: bytes) -> None:
        self._output.write(self._reporter.job, content)

    def _remember_conversation(self, conversation_id: str) -> None:
        if conversation_id != self._session.conversation_id and self._agent.is_conversation(conversation_id):
            self._session = self._inventory.remember_conversation(self._session, conversation_id)

    def _check(self) -> None:
        """Look whether the session is to be stopped, whether its job was ended, and whether it exceeds a limit."""
        if self._is_stopping():
            return
        self._job.check()
        if self._session.made_for is not None:
            self._check_own_job()
        elif self._session.mode is Mode.INTERACTIVE and self._process is not None:
            self._session = self._sent_jobs.check(self._session, self._process.pid, _LIMIT_SLACK_SEC)

    def _is_stopping(self) -> bool:
        """Return whether the runner ends, or was asked to."""
        stored = self._inventory.find(self._session.session_id)
        if stored is not None and stored.stop_requested is not None:
            lives = stored.has_live_stopper()
            if self._stop is None:
                self._stop = Stop(reason=stored.stop_requested, on_request=True, by_other=lives)
            elif not lives:
                self._stop = self._stop.replace(by_other=False)
        return self._stop is not None

    def _check_own_job(self) -> None:
        """Stop with the job that the session was created for. A headless agent ends by itself when it is done, and one
        whose program has ended needs no stop."""
        status = self._reporter.status()
        if status is Status.RUNNING:
            limit = self._job.exceeded_limit(_LIMIT_SLACK_SEC)
            if limit is Limit.TIME or (limit is not None and not self._is_opening):
                self._stop = Stop(reason=self._job.late_reason(limit), ended_by=limit.ended_by)
        elif status in (Status.CANCELLED, Status.PENDING):
            self._stop = Stop(reason=f"its job is {status}", on_request=True)
        elif status is not None and self._process is not None:
            if self._session.mode is Mode.INTERACTIVE or self._job.is_overdue:
                self._stop = Stop(reason=f"its job is {status}", on_request=True)
            else:
                self._job.finish()

    def _reap_orphans(self) -> None:
        """Wait for adopted processes that have ended, if they were seen before: the parts of the runner that start a
        program wait for it themselves, at once. While results are verified, wait for none."""
        if self._process is None:
            return
        ended = ended_children() - {self._process.pid}
        for pid in ended & self._ended:
            os.waitpid(pid, os.WNOHANG)
        self._ended = ended

    def _check_budget(self) -> None:
        if self._process is not None and not self._is_stopping():
            self._job.check_budget()

    def _renew_lease(self) -> None:
        try:
            self._job.work.store(lease_sec=self._settings.lease_sec)
        except errors.StaleAttempt as error:
            self._stop = self._stop or Stop(reason=str(error), ended_by="lost")

    def _refresh_name(self) -> None:
        if not self._owns_name:
            return
        try:
            with open_directory(self._settings) as directory:
                lease_ns = ownership.DEFAULT_LEASE_SEC * SECOND_NS
                ownership.refresh(directory, self._session.agent_id, self._session.generation_id, lease_ns=lease_ns)
        except errors.OwnershipLost as error:
            self._owns_name = False
            print_line(f"baton: {error}")

    def _stop_by_signal(self, number: int, _frame: object) -> None:
        reason = f"the session was ended from outside ({signal.Signals(number).name})"
        self._stop = Stop(reason=reason, ended_by="lost") if self._stop is None else self._stop.replace(by_other=False)

    def _end_processes(self, grace_sec: float) -> None:
        """End the agent and everything that it started."""
        find = partial(marked_processes, home=self._inventory.home, home_id=self._inventory.home_id)
        end_processes(lambda: find(self._session.session_id, os.getpid()), grace_sec=grace_sec)


def _open_runner(folder: str, origin: Origin) -> Runner | None:
    settings = load_settings()
    inventory = Inventory(settings)
    session = inventory.find(os.path.basename(folder))
    if session is None:
        return None
    return Runner(settings, inventory, session, folder, read_plan(folder), origin)


def main(folder: str) -> int:
    environment = receive(folder)
    if environment is None:
        return 1  # the process that created the session gave up, and cleans up
    terminal = {name: os.environ[name] for name in ("TERM", "TMUX", "TMUX_PANE", "COLORTERM") if name in os.environ}
    os.environ.clear()
    os.environ.update(environment | terminal)
    origin = Origin(environment=environment, workdir=os.getcwd(), knows_job=True)
    keep_origin(origin)
    runner = None
    try:
        runner = _open_runner(folder, origin)
        if runner is not None:
            runner.run()
    except Exception as error:  # noqa: BLE001  the pane closes with this process, and its job must not stay running
        reason = show_failure(folder, error)
        if runner is not None:
            runner.fail(reason)
    finally:
        if runner is not None:
            runner.close()
    return 0 if runner is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
