"""submit, retry: hand work to an agent and stay until it is truly done."""

from __future__ import annotations

import json
import os
import signal
import sys

from baton.adapters import find_agent
from baton.cli import options as opt
from baton.cli.main import INTERRUPTED
from baton.cli.options import job_of
from baton.cli.output import counted, json_text, on_terminal, say
from baton.cli.parser import Verb
from baton.cli.progress_view import Lines, LiveTable
from baton.cli.prompt import read_text
from baton.config import Settings
from baton.core.errors import BatonError, InvalidValue, RegistryUnavailable, UsageError
from baton.delegation.own_queue import is_own_queue
from baton.delegation.submit import Delegation, Order, order, register_orders, start_session
from baton.jobs.verbs import open_jobs
from baton.registry import registry_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from baton.jobs.verbs import Jobs

CANCELLED = 4
_EPILOG = (
    "Ctrl-C asks: Enter detaches from the running jobs (exit code 130), c cancels them (exit code 4). Without a "
    "terminal it detaches, as after SIGTERM (143) and SIGHUP (129). Jobs of a batch that have not started are "
    "cancelled in each case, except jobs in the queue of a worker."
)


def submit(options: argparse.Namespace, settings: Settings) -> int:
    settings, orders = _orders(options, settings)
    return _run(options, settings, orders)


def retry(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        orders = [_again(jobs, settings, options)]
    return _run(options, settings, orders)


def _run(options: argparse.Namespace, settings: Settings, orders: list[Order]) -> int:
    _warn(settings, orders)
    if options.detach:
        return _detach(settings, orders, options)
    return _see_through(settings, orders, options)


def _warn(settings: Settings, orders: Sequence[Order]) -> None:
    """What will stand in the way of an agent that only a person can answer."""
    asked = {(each.agent, each.workdir) for each in orders if each.label is None and not each.headless}
    for agent, workdir in sorted(asked, key=str):
        for problem in find_agent(settings, agent).startup_blockers(workdir or ".", os.environ):
            say(f"baton: note: {problem}")


# -- what is to be done ----------------------------------------------------------------------------------------


def _orders(options: argparse.Namespace, settings: Settings) -> tuple[Settings, list[Order]]:
    if sum(each is not None for each in (options.prompt, options.prompt_file, options.batch)) != 1:
        raise UsageError("what is to be done? give one of: a PROMPT, --prompt-file FILE, --batch FILE")
    if sum(each is not None for each in (options.session, options.to, options.agent_session)) > 1:
        raise UsageError("--session, --to or --agent-session: one of them")
    if options.parallel < 1:
        raise InvalidValue("--parallel", "must be at least 1")
    for name in ("agent", "workdir", "headless", "yolo"):
        if (options.session or options.to) and getattr(options, name) is not None:
            raise UsageError(f"--{name}: the session is there already, with its own; leave it out")
    label = options.agent_session
    if label is not None:
        options.workdir = options.workdir or "."
    if options.session is not None:
        label = _session_label(options, settings)
    elif options.to is not None:
        settings, label = _agent_label(options, settings)
    common = {
        name: getattr(options, name)
        for name in (
            "agent", "workdir", "timeout_sec", "idle_timeout_sec", "expect", "allow_existing", "validate",
            "max_attempts", "headless", "yolo",
        )
    }  # fmt: skip
    common = {name: value for name, value in common.items() if value is not None} | {"label": label}
    if options.batch is None:
        prompt = read_text("prompt", options.prompt, file=options.prompt_file)
        return settings, [order(settings, prompt, **common)]
    return settings, [_batch_order(settings, common, number, line) for number, line in _batch_lines(options.batch)]


def _batch_lines(path: str) -> list[tuple[int, str]]:
    lines = read_text("--batch", None, file=path).splitlines()
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InvalidValue("--batch", f"{path} holds nothing to do")
    return found


def _batch_order(settings: Settings, common: dict[str, Any], number: int, line: str) -> Order:
    try:
        given = json.loads(line)
        if not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
            raise InvalidValue("prompt", "is missing: each line is an object with at least that")
        return order(settings, **common | given)
    except (ValueError, RecursionError):
        raise InvalidValue("--batch", f"line {number} is not JSON") from None
    except BatonError as error:
        raise InvalidValue("--batch", f"line {number}: {error}") from None


def _session_label(options: argparse.Namespace, settings: Settings) -> str:
    from baton.sessions.inventory import Inventory
    from baton.sessions.session import State, job_label

    session = Inventory(settings).get(options.session)
    if session.state is not State.RUNNING or session.made_for is not None:
        what = f"is {session.state}" if session.state is not State.RUNNING else f"was made for job {session.made_for}"
        raise InvalidValue("--session", f"{options.session!r} {what}; it takes no jobs")
    if not session.has_live_runner():
        raise InvalidValue("--session", f"{options.session!r} has died; `baton monitor --once` notes what became of it")
    options.agent = session.agent
    options.workdir = options.workdir or session.workdir
    return job_label(session.agent_id)


def _agent_label(options: argparse.Namespace, settings: Settings) -> tuple[Settings, str]:
    """The queue of a live agent, and the settings that lead to it: its registry may be another folder's."""
    from baton.live_agents import open_directory
    from baton.live_agents.names import Names
    from baton.live_agents.resolve import resolve
    from baton.registry import open_registry
    from baton.sessions.live_agent_control import control_target
    from baton.sessions.session import job_label

    with open_directory(settings) as directory:
        record = resolve(directory, Names(settings.agent_name_prefix), options.to).found()
    if record.session_root is None:
        raise InvalidValue("--to", f"{options.to} was published by hand: nothing runs there that takes jobs from baton")
    options.agent = record.tool
    remote = record.host is not None and record.host != settings.host
    shared = open_registry(settings).multi_host
    if remote and not shared:
        raise InvalidValue("--to", f"{options.to} is on {record.host}: sending it a job needs a registry on PostgreSQL")
    if not remote:
        target = control_target(record, host=settings.host)
        options.workdir = options.workdir or target.manifest.workdir
        if not shared:
            home = os.path.dirname(os.path.dirname(record.session_root))
            if os.path.realpath(home) != os.path.realpath(settings.home):
                say(f"baton: note: {record.agent_name} belongs to {home}: the job is registered there")
                settings = _settings_of(home)
    return settings, job_label(record.agent_id)


def _settings_of(home: str) -> Settings:
    """As somebody in that home would have them, whatever our own environment says about ours."""
    theirs = {name: value for name, value in os.environ.items() if name not in _OF_A_HOME}
    there = Settings({"home": home}, theirs)
    return Settings({"home": home, "registry": registry_url(there), "logs_dir": there.logs_dir})


_OF_A_HOME = frozenset({"BATON_HOME", "BATON_REGISTRY", "DELEGATE_JOB_LOGS_DIR"})


def _again(jobs: Jobs, settings: Settings, options: argparse.Namespace) -> Order:
    job = jobs.get_job(job_of(options))
    made_for_it = is_own_queue(job.agent_session)
    return order(
        settings,
        job.prompt,
        agent=job.agent,
        workdir=job.workdir,
        expect=list(job.expected_artifacts),
        validate=job.validate,
        timeout_sec=job.timeout_sec,
        idle_timeout_sec=job.idle_timeout_sec,
        max_attempts=job.max_attempts,
        priority=job.priority,
        allow_existing=not job.extra.get("fresh_artifacts"),
        label=None if made_for_it else job.agent_session,
        labels=list(job.labels),
        headless=options.headless,
        yolo=options.yolo,
    )


# -- doing it --------------------------------------------------------------------------------------------------


def _detach(settings: Settings, orders: list[Order], options: argparse.Namespace) -> int:
    from baton.sessions.ending import fail_job
    from baton.sessions.inventory import Inventory

    if len(orders) > 1 and any(each.label is None for each in orders):
        raise UsageError("--detach with a batch: let a `baton worker` take the jobs, or stay")
    with open_jobs(settings) as jobs:
        registered = register_orders(settings, jobs, orders)
        for job, each in zip(registered, orders, strict=True):
            if each.label is None:
                try:
                    start_session(settings, Inventory(settings), job, each)
                except BatonError as error:
                    fail_job(settings, jobs, job, None, str(error))
                    raise
            print(json_text({"job_id": job.job_id}) if options.json else job.job_id)
    say(f"wait for it: baton wait {' '.join(job.job_id for job in registered)}")
    return 0


def _see_through(settings: Settings, orders: list[Order], options: argparse.Namespace) -> int:
    signals = _Signals()
    with open_jobs(settings) as jobs:
        parallel = options.parallel if len(orders) > 1 else 1
        delegation = Delegation(settings, jobs, orders, parallel=parallel, log=lambda line: say(f"baton: {line}"))
        try:
            with signals:
                try:
                    _watch(delegation, as_json=options.json)
                except KeyboardInterrupt:
                    return _interrupted(delegation)
        except (_Told, OSError):  # an OSError: whoever read our output has gone, perhaps with the terminal
            _let_go(delegation)
            if not signals.told:
                raise
            return 128 + signals.told
        except RegistryUnavailable:
            ids = " ".join(job.job_id for job in delegation.jobs)
            say(f"what has begun goes on; once the registry is back: baton wait {ids}")
            raise
        for job_id, problems in delegation.problems().items():
            say(f"baton: job {job_id} says it is completed, but: {'; '.join(problems)}")
        if delegation.subscription.timed_out is not None:
            say(f"baton: {delegation.subscription.timed_out}")
        for job in delegation.jobs:
            say(f"log: {os.path.join(jobs.logs_dir, job.job_id)}")
        return delegation.exit_code


def _watch(delegation: Delegation, *, as_json: bool) -> None:
    live = on_terminal() and not as_json
    with LiveTable(delegation.jobs) if live else Lines(as_json=as_json) as view:
        for payload in delegation:
            view.show(payload)
        view.over(delegation.statuses())


class _Told(BaseException):
    """Somebody wants us to end: SIGTERM, or SIGHUP when the terminal is closed."""


class _Signals:
    """`_Told` is raised inside of the `with` block alone, and once: else there is nothing to let go of."""

    def __init__(self) -> None:
        self.told = 0
        self._inside = False
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
                signal.signal(number, self._heed)

    def __enter__(self) -> None:
        self._inside = True
        if self.told:
            raise _Told

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _heed(self, number: int, _frame: object) -> None:
        first, self.told = not self.told, self.told or number
        if first and self._inside:
            raise _Told


def _interrupted(delegation: Delegation) -> int:
    """Asked once: the work goes on without us, or ends with us."""
    ids = " ".join(job.job_id for job in delegation.jobs)
    answer = ""
    if sys.stdin.isatty():
        try:
            answer = input(_question(delegation.not_begun())).strip().lower()
        except (EOFError, KeyboardInterrupt, OSError):
            answer = ""
    if answer.startswith("c"):
        delegation.cancel()
        say(f"cancelled {ids}")
        return CANCELLED
    _let_go(delegation)
    return INTERRUPTED


def _question(not_begun: int) -> str:
    if not not_begun:
        return "\nlet it go on without you (Enter), or cancel it (c)? "
    them = f"{counted(not_begun, 'job')} not begun {'is' if not_begun == 1 else 'are'}"
    return f"\nlet it go on without you (Enter; {them} cancelled), or cancel all (c)? "


def _let_go(delegation: Delegation) -> None:
    """What has begun goes on without us; what has not never would."""
    withdrawn = delegation.withdraw()
    going_on = [job.job_id for job in delegation.jobs if job.job_id not in withdrawn]
    try:
        _tell_of(withdrawn, going_on)
    except OSError:
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the terminal has been closed: what is left goes nowhere, and is no failure of ours
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tell_of(withdrawn: list[str], going_on: list[str]) -> None:
    if withdrawn:
        say(f"had not begun and {'is' if len(withdrawn) == 1 else 'are'} cancelled: {' '.join(withdrawn)}")
    if going_on:
        say(f"it goes on; wait for it: baton wait {' '.join(going_on)}")


_HOW = (opt.DETACH, opt.HEADLESS, opt.YOLO, opt.TMUX_SOCKET, opt.JSON)
VERBS = (
    Verb(
        "submit",
        (
            opt.PROMPT,
            opt.PROMPT_FILE,
            opt.AGENT,
            opt.SESSION,
            opt.TO,
            opt.QUEUE.but(help="add the job to this queue, for a worker to take (default: start a session now)"),
            opt.WORKDIR,
            opt.TIMEOUT,
            opt.IDLE_TIMEOUT,
            opt.EXPECT.but(help="require this file, new or changed by the job, at the end; repeatable"),
            opt.ALLOW_EXISTING,
            opt.VALIDATE,
            opt.MAX_ATTEMPTS,
            opt.BATCH,
            opt.PARALLEL,
            *_HOW,
        ),
        submit,
        epilog=_EPILOG,
    ),
    Verb("retry", (*opt.JOB, *_HOW), retry, epilog=_EPILOG),
)
