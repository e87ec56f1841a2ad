"""demo: run three jobs with the shell as their agent, and remove everything again."""

import argparse
import os
import shutil
import signal
import tempfile
import time
from functools import partial

from baton.broker.local import stop_broker
from baton.cli import options as opt
from baton.cli.logs import readable
from baton.cli.output import on_terminal, say
from baton.cli.parser import Verb
from baton.cli.progress_view import Lines, LiveTable
from baton.config import Settings
from baton.core.errors import BatonError, TmuxUnavailable
from baton.delegation.submit import Delegation, build_submission
from baton.history.log import iter_logged_events
from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.processes import end_processes
from baton.sessions.stop import all_processes
from baton.sessions.tmux import Tmux
from baton.storage.files import replace_file
from baton.storage.homes import load_settings

# For each job: the expected file, the status it must end with, and the script of its agent.
_JOBS = (
    ("haiku.txt", "completed", """
for line in 'a baton is passed' 'the runner fades, the work stays' 'the log keeps the count'; do
    echo "$line" >> haiku.txt
    baton publish --event progress --detail "$line" > /dev/null
    sleep 0.7
done
"""),
    ("answer.txt", "completed", """
baton publish --event progress --detail 'claims to be done, but is not' > /dev/null
baton publish --event completed || echo 'refused: now it does the work'
sleep 1
echo 42 > answer.txt
baton publish --event completed --detail 'now the file exists' > /dev/null
"""),
    ("never.txt", "error", """
baton publish --event progress --detail 'works until its session is killed' > /dev/null
sleep 1
kill -9 $PPID
sleep 30
"""),
)  # fmt: skip


def demo(options: argparse.Namespace) -> int:
    Tmux("demo").check_version()
    folder = tempfile.mkdtemp(prefix="baton-demo-", dir="/tmp" if os.path.isdir("/tmp") else None)  # noqa: S108
    # The settings of real work must not apply here.
    for name in [name for name in os.environ if name.startswith(("BATON_", "MQTT_", "DELEGATE_"))]:
        del os.environ[name]
    config = os.path.join(folder, "baton.toml")
    replace_file(config, b"", durable=False)
    os.environ |= {
        "BATON_CONFIG": config,
        "BATON_HOME": os.path.join(folder, "home"),
        "BATON_STATE_DIR": os.path.join(folder, "state"),
        "BATON_TMUX_SOCKET": os.path.join(folder, "tmux"),
    }
    settings = load_settings()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        return _show(settings, folder)
    finally:
        # A second Ctrl-C would interrupt the clean-up.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _clean_up(settings, folder, keep=options.keep)


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit(143)


def _show(settings: Settings, folder: str) -> int:
    began = time.monotonic()
    work = os.path.join(folder, "work")
    os.mkdir(work, 0o700)
    print("Three agents run at once, each in its own tmux session. One does its work, one claims to be done")
    print("before it is, and one is killed while it works.\n", flush=True)
    submissions = [
        build_submission(settings, script.strip(), agent="shell", workdir=work, expect=[name])
        for name, _, script in _JOBS
    ]
    with open_jobs(settings) as jobs:
        delegation = Delegation(
            settings, jobs, submissions, parallel=len(submissions), log=lambda line: say(f"baton: {line}")
        )
        with LiveTable(delegation.jobs) if on_terminal() else Lines(as_json=False) as view:
            for payload in delegation:
                view.show(payload)
        ended = [jobs.get_job(job.job_id) for job in delegation.jobs]
        print(f"\nAll jobs ended after {time.monotonic() - began:.1f} s. The audit log of the second job:\n")
        for line in iter_logged_events(ended[1].job_id, jobs.logs_dir):
            print(readable(line))
        print("\nThe audit logs, verified:\n")
        as_planned = True
        for job, (_, wanted, _) in zip(ended, _JOBS, strict=True):
            verdict = verify_log(job.job_id, jobs.logs_dir)
            state = "DAMAGED" if verdict.damage else "unbroken"
            print(f"{job.job_id}  {job.status:<9}  {verdict.lines} lines, {state}")
            as_planned = as_planned and job.status == wanted and not verdict.damage
    print("\nTry next:\n")
    print("    baton submit --agent shell 'date > now.txt' --expect now.txt")
    print('    baton submit "Write a haiku about tmux into haiku.txt" --expect haiku.txt    # with Claude Code')
    print("    baton --help")
    return 0 if as_planned else 1


def _clean_up(settings: Settings, folder: str, *, keep: bool) -> None:
    """End all processes that may write into the folder: first tmux, so that nothing new starts, then the rest."""
    try:
        Tmux(settings.tmux_socket).run("kill-server")
    except TmuxUnavailable:
        pass  # the server ended with its last session
    inventory = Inventory(settings)
    for session in inventory.all():
        end_processes(partial(all_processes, inventory, session), grace_sec=0)
    try:
        stop_broker(settings.state_dir)
    except BatonError as error:
        say(f"baton: {error}")
    if keep:
        say(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


VERBS = (Verb("demo", (opt.KEEP,), demo, reads_settings=False),)
