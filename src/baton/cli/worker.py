"""worker: run the jobs of a queue, each in its own session."""

import os
import signal
import time
from collections import Counter

from baton.cli import options as opt
from baton.cli.output import say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.clock import duration_text
from baton.core.errors import InvalidValue
from baton.core.fields import check_label, one_line
from baton.core.job import Status
from baton.delegation.worker import Worker
from baton.jobs.verbs import open_jobs
from baton.sessions.launch import usable_agent
from baton.sessions.tmux import Tmux


def work(options: Options, settings: Settings) -> int:
    """Run jobs until the worker is stopped, has run --max-jobs, or finds the queue empty with --until-empty."""
    for name, least in (("concurrency", 1), ("max_jobs", 1), ("drain", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise InvalidValue(f"--{name.replace('_', '-')}", f"must be at least {least}")
    agent = usable_agent(settings, settings.agent)
    Tmux(settings.tmux_socket).check_version()
    if not os.path.isdir(options.workdir):
        raise InvalidValue("--workdir", f"{options.workdir} is not a folder")
    queue = f"tmux:{settings.agent}" if options.agent_session is None else options.agent_session
    check_label("--queue", queue)
    same = ("concurrency", "max_jobs", "headless", "yolo", "until_empty")
    with open_jobs(settings) as jobs:
        if not jobs.registry.multi_host:
            jobs.registry.schema()  # a file that cannot be used now will not get better, unlike a server
        worker = Worker(
            settings,
            jobs,
            queue,
            agent=agent.name,
            workdir=os.path.abspath(options.workdir),
            drain_sec=options.drain,
            log=lambda line: say(f"baton: {one_line(line, 300)}"),
            **{name: getattr(options, name) for name in same},
        )

        def stop(number: int, _frame: object) -> None:
            if worker.stopping or number == signal.SIGINT:
                worker.drain_sec = 0.0
            else:
                # Not by `say`: the signal may arrive while another line is printed.
                os.write(2, b"baton: stopping when the running jobs have ended; SIGTERM again requeues them\n")
            worker.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        say(f"baton: taking jobs of {queue}, {options.concurrency} at a time")
        began_ns = time.monotonic_ns()
        worker.run()
    say(f"baton: {_summary(worker.ended)} in {duration_text(time.monotonic_ns() - began_ns)}")
    return 0


def _summary(ended: Counter[Status]) -> str:
    """Return how many jobs ended how: `3 done, 1 failed`, and how many were cancelled, if any."""
    words = f"{ended[Status.COMPLETED]} done, {ended[Status.ERROR]} failed"
    return f"{words}, {ended[Status.CANCELLED]} cancelled" if ended[Status.CANCELLED] else words


VERBS = (Verb("worker", (
    opt.AGENT, opt.QUEUE,
    opt.WORKDIR.but(default=".", help="work here if a job names no folder (default: the current folder)"),
    opt.CONCURRENCY, opt.MAX_JOBS, opt.UNTIL_EMPTY, opt.HEADLESS.but(default=False), opt.YOLO.but(default=False),
    opt.DRAIN, opt.TMUX_SOCKET, opt.ALLOW_PLAINTEXT,
), work),)  # fmt: skip
