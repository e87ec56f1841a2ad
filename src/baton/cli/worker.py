"""worker: keeps taking jobs of a queue."""

from __future__ import annotations

import os
import signal

from baton.cli.main import verb_parser
from baton.cli.output import one_line, say
from baton.config import Settings
from baton.core.errors import InvalidValue
from baton.delegation.worker import Worker
from baton.jobs.verbs import open_jobs
from baton.sessions.launch import usable_agent
from baton.sessions.tmux import Tmux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    parser.add_argument("--agent", metavar="A", help="the agent that does them (default: the agent setting)")
    parser.add_argument("--agent-session", metavar="LABEL", help="the queue (default: tmux:<agent>)")
    parser.add_argument("--workdir", metavar="DIR", default=".", help="where, for jobs that do not say (default: here)")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="so many at a time (default: 1)")
    parser.add_argument("--max-jobs", type=int, metavar="N", help="end after so many")
    parser.add_argument("--until-empty", action="store_true", help="end when there is nothing left to do")
    parser.add_argument("--headless", action="store_true", help="no questions, output for programs")
    parser.add_argument("--yolo", action="store_true", help="let the agent do everything without asking")
    parser.add_argument("--drain", type=float, default=30.0, metavar="S", help="on SIGTERM, time for jobs to end (30)")
    parser.add_argument("--tmux-socket", metavar="L", help="a tmux server of your choice (default: baton)")
    options = parser.parse_args(arguments)
    for name, least in (("concurrency", 1), ("max_jobs", 1), ("drain", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise InvalidValue(f"--{name.replace('_', '-')}", f"must be at least {least}")
    settings = Settings(vars(options))
    agent = usable_agent(settings, settings.agent)
    Tmux(settings.tmux_socket).check_version()
    if not os.path.isdir(options.workdir):
        raise InvalidValue("--workdir", f"{options.workdir} is not a folder")
    label = options.agent_session or f"tmux:{settings.agent}"
    with open_jobs(settings) as jobs:
        worker = Worker(
            settings,
            jobs,
            label,
            agent=agent.name,
            workdir=os.path.abspath(options.workdir),
            concurrency=options.concurrency,
            max_jobs=options.max_jobs,
            headless=options.headless,
            yolo=options.yolo,
            until_empty=options.until_empty,
            drain_sec=options.drain,
            log=lambda line: say(f"baton: {one_line(line, 300)}"),
        )

        def stop(number: int, _frame: object) -> None:
            if worker.stopping or number == signal.SIGINT:
                worker.drain_sec = 0.0  # twice, or Ctrl-C: now
            elif not worker.stopping:
                # Not by `say`: this may come in the middle of another line.
                os.write(2, b"baton: stopping once what is at work has ended; SIGTERM again hands it back\n")
            worker.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        say(f"baton: taking jobs of {label}, {options.concurrency} at a time")
        worker.run()
    say(f"baton: {worker.done} done")
    return 0
