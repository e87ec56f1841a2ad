"""submit, retry, follow-up: run a task with an agent and wait until its result is verified."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from baton.adapters.contract import Mode
from baton.cli import options as opt
from baton.cli.jobs import each_job
from baton.cli.main import INTERRUPTED
from baton.cli.options import job_and_text, jobs_of
from baton.cli.output import counted, json_text, on_terminal, say, say_ends
from baton.cli.parser import Options, Verb, read_text
from baton.cli.progress_view import open_view, summarize
from baton.config import Settings
from baton.core.errors import BatonError, InvalidValue, RegistryUnavailable, UsageError, describe_system_error
from baton.core.fields import json_object, parse_json, texts_of
from baton.core.job import TERMINAL, Job, Status
from baton.core.limits import may_wait
from baton.core.outline import run_of
from baton.delegation.attempts import Attempts, this_submitter
from baton.delegation.submit import (
    GIVEN,
    Delegation,
    Submission,
    build_submission,
    describe_failed,
    describe_pending,
    register,
    repeat_submission,
    start_alone,
)
from baton.delegation.worktrees import trust_place
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.release import known_release, note_untested

if TYPE_CHECKING:
    from baton.delegation.targets import Target

CANCELLED = 4
_EPILOG = (
    "Ctrl-C asks: Enter detaches from the running jobs (exit code 130), c cancels them (exit code 4). Without a "
    "terminal it detaches, as after SIGTERM (143) and SIGHUP (129). Jobs of a batch that have not started are "
    "cancelled in each case, except jobs in the queue of a worker."
)
_FORCE = "retry a job that has not ended: then two agents work (default: refuse)"


def submit(options: Options, settings: Settings) -> int:
    """Run new jobs."""
    settings, submissions = _build_submissions(options, settings)
    return _run(options, settings, submissions)


def retry(options: Options, settings: Settings) -> int:
    """Run jobs again, as new jobs."""
    if options.status and not options.all:
        raise UsageError("--status chooses the jobs of --all; give both")
    with open_jobs(settings) as jobs:
        if options.all:
            from baton.cli.all_jobs import confirm_all

            options.ids = confirm_all(
                jobs, options, "retry", options.status or ["error"], lambda job: job.retried_by is None
            )
            if not options.ids:
                return 0
        again, code = each_job(jobs, jobs_of(options), lambda job_id: _repeat(jobs.get_job(job_id), settings, options))
        if any(each.job.after for each in again):
            from baton.delegation.order import order_retries

            again = order_retries(jobs, again)
    ran = _run(options, settings, again) if again else code
    return code or ran


def _repeat(job: Job, settings: Settings, options: Options) -> Submission:
    if job.status not in TERMINAL:
        if not options.force:  # guard: retry-ended-only
            what = f"job {job.job_id} is {job.status}: with a retry, two agents would do the same work"
            raise BatonError(f"{what}; cancel it first, or retry it with --force")
        say(f"baton: note: job {job.job_id} is still {job.status}: two agents will do the same work")
    again = repeat_submission(settings, job, headless=bool(options.headless), yolo=bool(options.yolo))
    if again.yolo and not options.yolo:
        say(f"baton: note: it runs with --yolo, as job {job.job_id} did")
    return again


def follow_up(options: Options, settings: Settings) -> int:
    """Run a new job in the conversation of an ended one."""
    from baton.delegation.follow_up import follow_submission

    job_id = job_and_text(options, "prompt")
    if (options.prompt is None) == (options.prompt_file is None):
        raise UsageError("give the task as one of: a PROMPT, --prompt-file FILE")
    prompt = read_text("prompt", options.prompt, file=options.prompt_file)
    with open_jobs(settings) as jobs:
        first = jobs.with_id(job_id, jobs.get_job)
    following = follow_submission(settings, first, prompt, **_given(options))
    if following.yolo and not options.yolo:
        say(f"baton: note: it runs with --yolo, as job {first.job_id} did")
    return _run(options, settings, [following])


def _run(options: Options, settings: Settings, submissions: list[Submission]) -> int:
    _warn_of_blockers(settings, submissions)
    _Untested(settings, submissions).look()
    return (_detach if options.detach else _follow)(settings, submissions, options)


def _warn_of_blockers(settings: Settings, submissions: Sequence[Submission]) -> None:
    """Print what stops an interactive agent until a person answers."""
    seen = set()
    for each in submissions:
        if each.agent is None or each.mode is Mode.HEADLESS:
            continue
        workdir = trust_place(settings, each.agent, each.job)
        if (each.agent.name, workdir) in seen:
            continue
        seen.add((each.agent.name, workdir))
        for problem in each.agent.startup_blockers(workdir, os.environ):
            say(f"baton: note: {problem}")


class _Untested:
    """Says that an agent's program is of a release with which baton was not tested: once for each release, as soon as
    that is known."""

    def __init__(self, settings: Settings, submissions: Sequence[Submission]) -> None:
        self._state_dir = settings.state_dir
        self._agents = {each.agent.name: each.agent for each in submissions if each.agent is not None}

    def look(self, jobs: Sequence[Job] = ()) -> None:
        """Look for releases that were not known before, also in the records of these jobs."""
        ran = {job.agent: run_of(job)["agent_version"] for job in jobs}
        for name, agent in list(self._agents.items()):
            release = ran.get(name) or known_release(self._state_dir, agent, os.environ)
            if release is None:
                continue
            del self._agents[name]
            note = note_untested(self._state_dir, agent, release)
            if note is not None:
                say(f"baton: note: {note}")


# -- which jobs ------------------------------------------------------------------------------------------------


def _given(options: Options) -> dict[str, Any]:
    """Return the options that describe the job or its session, as `build_submission` takes them."""
    given = {name: value for name, value in vars(options).items() if name in GIVEN and value is not None}
    given.pop("prompt", None)  # it may stand in a file
    return given


def _check_options(options: Options) -> None:
    if sum(each is not None for each in (options.prompt, options.prompt_file, options.batch)) != 1:
        raise UsageError("give the task as one of: a PROMPT, --prompt-file FILE, --batch FILE")
    if sum(each is not None for each in (options.session, options.to, options.agent_session)) > 1:
        raise UsageError("--session, --to and --queue exclude each other; give one of them")
    if options.agent_def_dir is not None and options.to is None:
        raise UsageError("--agent-def-dir belongs to the agent of --to; give both")
    for name in ("agent", "workdir", "headless", "yolo"):
        if (options.session or options.to) and getattr(options, name) is not None:
            raise UsageError(f"--{name}: the session runs already and has its own; leave it out")


def _build_submissions(options: Options, settings: Settings) -> tuple[Settings, list[Submission]]:
    """Return the jobs, and the settings of the home that they are registered in."""
    _check_options(options)
    queue = options.agent_session
    if queue is not None:
        options.workdir = options.workdir or "."
    if options.session is not None or options.to is not None:
        target = _find_target(options, settings)
        settings, queue, options.agent = target.settings, target.queue, target.agent
        options.workdir = options.workdir or target.workdir
    common = _given(options) | {"queue": queue}
    if options.batch is None:
        prompt = read_text("prompt", options.prompt, file=options.prompt_file)
        return settings, _in_order(settings, [build_submission(settings, prompt, **common)], [options.after])
    lines = read_text("--batch", None, file=options.batch).splitlines()
    parsed = [_parse_line(settings, common, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    jobs = [job for job, _ in parsed]
    if not jobs:
        raise InvalidValue("--batch", f"{options.batch} contains no job")
    if len(jobs) > 1 and options.idempotency_key is not None:
        raise UsageError("--idempotency-key is for one job; give each line of the batch its own idempotency_key")
    return settings, _in_order(settings, jobs, [names for _, names in parsed])


def _in_order(settings: Settings, jobs: list[Submission], names: Sequence[Sequence[str]]) -> list[Submission]:
    """Return the jobs, each after those that these names stand for."""
    if not any(names):
        return jobs
    from baton.delegation.order import order_submissions

    return order_submissions(settings, jobs, names)


def _parse_line(settings: Settings, common: dict[str, Any], number: int, line: str) -> tuple[Submission, Sequence[str]]:
    """Return the job of a line of the batch, and the names of the jobs that it comes after."""
    try:
        given = parse_json(line)
        if not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
            raise InvalidValue("prompt", "is missing: each line must be an object with a prompt")
        label = [given["label"]] if isinstance(given.get("label"), str) else given.get("label") or []
        if isinstance(label, list):  # a line adds labels to those of the command line
            given["label"] = [*common["label"], *label]
        if "agent_session" in given:
            given.setdefault("queue", given.pop("agent_session"))
        if "queue" in given and common["queue"] is None:
            given.setdefault("workdir", common.get("workdir", "."))
        given["after"] = [*common["after"], *texts_of("after", given.get("after"))]
        return build_submission(settings, **common | given), given["after"]
    except ValueError:
        raise InvalidValue("--batch", f"line {number} is not JSON") from None
    except BatonError as error:
        raise InvalidValue("--batch", f"line {number}: {error}") from None


def _find_target(options: Options, settings: Settings) -> "Target":
    from baton.delegation.targets import target_live_agent, target_session

    if options.session is not None:
        return target_session(settings, options.session)
    target = target_live_agent(settings, options.to, agent_def_dir=options.agent_def_dir)
    if target.note is not None:
        say(f"baton: note: {target.note}")
    return target


# -- run them --------------------------------------------------------------------------------------------------


def _detach(settings: Settings, submissions: list[Submission], options: Options) -> int:
    with_session = [each.job for each in submissions if each.agent is not None]
    if len(with_session) > 1 or any(may_wait(job) for job in with_session):
        job_ids = _run_in_background(settings, submissions, options)
    else:
        job_ids = _start(settings, submissions)
        _Untested(settings, submissions).look()
    for job_id in job_ids:
        print(json_text({"job_id": job_id}) if options.json else job_id)
    say(f"wait for {'it' if len(job_ids) == 1 else 'them'}: baton wait {' '.join(job_ids)}")
    return 0


def _start(settings: Settings, submissions: list[Submission]) -> list[str]:
    """Register jobs and start the session of the one that needs a session."""
    with open_jobs(settings) as jobs:
        signals = _Signals()
        registered = register(jobs, submissions)
        attempts = Attempts(settings, jobs, Inventory(settings))
        try:
            with signals:
                for each in registered:
                    if each.agent is not None:
                        start_alone(attempts, each)
        except (KeyboardInterrupt, _Terminated):
            _cancel_pending(attempts, [each.job.job_id for each in registered if each.agent is not None])
            raise SystemExit(128 + (signals.received or signal.SIGINT)) from None
    return [each.job.job_id for each in registered]


def _cancel_pending(attempts: Attempts, job_ids: Sequence[str]) -> None:
    """Cancel the jobs whose session has not claimed them yet: no process would start them."""
    for job_id in job_ids:
        if attempts.jobs.get_job(job_id).status is Status.PENDING:
            attempts.jobs.update_status(job_id, "cancelled")
            attempts.stop(job_id, "its job was cancelled", hard=True)  # it may be half started
            say(f"had not begun and is cancelled: {job_id}")
        else:
            say(f"it goes on; wait for it: baton wait {job_id}")


def _run_in_background(settings: Settings, submissions: list[Submission], options: Options) -> list[str]:
    """Let a new process run the jobs, as many at once as --parallel allows. Return their ids once it has registered
    them."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        _be_background(settings, submissions, options, writing)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        answered = json_object(answer.read())
    if "job_ids" not in answered:
        raise BatonError(str(answered.get("error", "the process of the batch ended before it registered the jobs")))
    return [str(each) for each in answered["job_ids"]]


def _be_background(settings: Settings, submissions: list[Submission], options: Options, writing: int) -> NoReturn:
    """Run the jobs in this new process, without a terminal. Tell the process that waits their ids, or the error."""
    code = 1
    try:
        with open(writing, "w", encoding="utf-8") as answer:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            submitter = this_submitter(settings.host)
            mine = [
                each.replace(job=each.job.replace(submitter=each.job.submitter and submitter)) for each in submissions
            ]

            def tell(jobs: Sequence[Job]) -> None:
                json.dump({"job_ids": [job.job_id for job in jobs]}, answer)
                answer.close()

            try:
                code = _follow(settings, mine, options, tell)
            except (BatonError, OSError, RuntimeError) as error:
                if not answer.closed:
                    json.dump({"error": describe_system_error(error) or str(error)}, answer)
    finally:
        os._exit(code)


def _follow(
    settings: Settings,
    submissions: list[Submission],
    options: Options,
    tell: Callable[[Sequence[Job]], None] = lambda _jobs: None,
) -> int:
    """Run the jobs until they end. `tell` is called with the registered jobs before the first of them starts."""
    with open_jobs(settings) as jobs:
        signals = _Signals()
        parallel = options.parallel if len(submissions) > 1 else 1
        delegation = Delegation(settings, jobs, submissions, parallel=parallel, log=lambda line: say(f"baton: {line}"))
        tell(delegation.jobs)
        try:
            try:
                with signals:
                    _show_events(delegation, settings, _Untested(settings, submissions), as_json=options.json)
            except KeyboardInterrupt:
                return _interrupted(delegation, signals)
        except (_Terminated, OSError):  # an OSError: the reader of the output has gone, perhaps with the terminal
            _leave(delegation)
            if not signals.received:
                raise
            return 128 + signals.received
        except (RegistryUnavailable, RuntimeError) as error:  # a RuntimeError: no thread can be started
            _leave(delegation, describe_system_error(error) or str(error))
            raise
        for job_id, problem in delegation.problems.items():
            say(f"baton: job {job_id} is completed, but {problem}")
        if delegation.subscription.timed_out is not None:
            say(f"baton: {delegation.subscription.timed_out}")
        for job in delegation.jobs if len(delegation.jobs) == 1 or not on_terminal() else ():
            say(f"log: {os.path.join(jobs.logs_dir, job.job_id)}")
        if not options.json:
            say_ends(delegation.current_jobs())
        return delegation.exit_code


def _show_events(delegation: Delegation, settings: Settings, untested: _Untested, *, as_json: bool) -> None:
    subscription = delegation.subscription
    with open_view(
        delegation.jobs, as_json=as_json, read_requests=subscription.open_requests, settings=settings
    ) as view:
        subscription.events.on_end, subscription.events.on_read = view.end, view.read
        for payload in delegation:
            view.show(payload)
            untested.look()
        ended = delegation.current_jobs()
        untested.look(ended)
        view.over(ended)
    delegation.mark_seen(ended)


class _Terminated(BaseException):
    """SIGTERM arrived, or SIGHUP because the terminal was closed."""


class _Signals:
    """Raises `_Terminated` for the first SIGTERM or SIGHUP, and KeyboardInterrupt for SIGINT, and only inside a `with`
    block: outside, jobs are being registered or cancelled. A SIGINT from there is raised by the next block. A second
    one is raised at once: the registry may not answer."""

    def __init__(self) -> None:
        self.received = 0
        self._inside = self._is_interrupted = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
                signal.signal(number, self._handle)

    def __enter__(self) -> None:
        self._inside = True
        if self.received:
            raise _Terminated
        if self._is_interrupted:
            self._interrupt()

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _handle(self, number: int, _frame: object) -> None:
        first, self.received = not self.received, self.received or number
        if first and self._inside:
            raise _Terminated

    def _interrupt(self, *_: object) -> None:
        if self._inside or self._is_interrupted:
            self._inside = self._is_interrupted = False
            raise KeyboardInterrupt
        self._is_interrupted = True


def _interrupted(delegation: Delegation, signals: _Signals) -> int:
    """Ask the user whether the jobs continue or are cancelled, and return the exit code."""
    answer = ""
    if sys.stdin.isatty():
        try:
            with signals:
                answer = input(_question(delegation.not_started())).strip().lower()
        except (EOFError, KeyboardInterrupt, OSError):
            answer = ""
    if answer.startswith("c"):
        delegation.cancel()
        say(summarize(delegation.current_jobs()))
        return CANCELLED
    _leave(delegation)
    return INTERRUPTED


def _question(not_started: int) -> str:
    if not not_started:
        return "\nlet it go on without you (Enter), or cancel it (c, then Enter)? "
    them = f"{counted(not_started, 'job')} not begun {'is' if not_started == 1 else 'are'}"
    return f"\nlet it go on without you (Enter; {them} cancelled), or cancel all (c, then Enter)? "


def _leave(delegation: Delegation, why: str | None = None) -> None:
    """Cancel the jobs that have not started, or, with `why`, fail them. Print what became of each, if the terminal is
    still there."""
    ended, pending = delegation.withdraw(why)
    continuing = [job_id for job_id in delegation.going_on() if job_id not in (*ended, *pending)]
    lines = []
    if ended and why is None:
        lines = [f"had not begun and {'is' if len(ended) == 1 else 'are'} cancelled: {' '.join(ended)}"]
    elif ended:
        lines = [describe_failed(ended)]
    if pending:
        lines += [describe_pending(pending)]
    if continuing:
        lines += [f"it goes on; wait for it: baton wait {' '.join(continuing)}"]
    try:
        for line in lines:
            say(line)
    except OSError:
        pass  # the terminal was closed; the jobs are ended all the same
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the terminal was closed: discard the rest, so that the exit code stays as it is
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_HOW = (opt.DETACH, opt.HEADLESS, opt.YOLO, opt.TMUX_SOCKET, opt.ALLOW_PLAINTEXT, opt.JSON)
VERBS = (
    Verb("submit", (
        opt.PROMPT, opt.PROMPT_FILE, opt.AGENT, opt.SESSION, opt.TO,
        opt.AGENT_DEF_DIR.but(help="check this definition folder, not that of the record of --to (default: none)"),
        opt.QUEUE.but(help="add the job to this queue, for a worker to take (default: start a session now)"),
        opt.WORKDIR, opt.TIMEOUT, opt.IDLE_TIMEOUT, opt.TOOL_TIMEOUT, opt.BACKGROUND_TIMEOUT,
        opt.EXPECT.but(help="require this file, new or changed by the job, at the end; repeatable (default: none)"),
        opt.ALLOW_EXISTING, opt.VALIDATE, opt.WORKTREE, opt.BASE, opt.ON_LIMIT, opt.BUDGET, opt.MAX_ATTEMPTS,
        opt.PRIORITY, opt.TITLE, opt.LABEL, *opt.ORDER, opt.IDEMPOTENCY_KEY, opt.BATCH, opt.PARALLEL, opt.BROKER_LOGIN,
        *_HOW,
    ), submit, epilog=_EPILOG),
    Verb("retry", (
        *opt.JOBS,
        opt.ALL.but(help="retry every failed job that was not retried yet, after a question (default: the jobs named)"),
        opt.STATUS.but(help="with --all, retry jobs with this status; repeatable (default: error)"),
        opt.YES, opt.PARALLEL, opt.FORCE.but(help=_FORCE), *_HOW,
    ), retry, epilog=_EPILOG),
    Verb("follow-up", (
        *opt.JOB_AND, opt.PROMPT, opt.PROMPT_FILE, opt.TIMEOUT, opt.IDLE_TIMEOUT, opt.TOOL_TIMEOUT,
        opt.BACKGROUND_TIMEOUT,
        opt.EXPECT.but(help="require this file, new or changed by the job, at the end; repeatable (default: none)"),
        opt.ALLOW_EXISTING, opt.VALIDATE, opt.ON_LIMIT, opt.BUDGET, opt.MAX_ATTEMPTS, opt.PRIORITY, opt.NOT_BEFORE,
        opt.RETRIES, opt.BACKOFF,
        opt.TITLE.but(help="name the job in lists and messages (default: the title of the first job)"),
        opt.LABEL.but(help="tag the job with this text; repeatable (default: the labels of the first job)"),
        opt.BROKER_LOGIN, *_HOW,
    ), follow_up, epilog=_EPILOG),
)  # fmt: skip
