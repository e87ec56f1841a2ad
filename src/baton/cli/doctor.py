"""doctor: check the installation, the folders, the jobs and the agents, and print one line for each."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from baton.adapters import agent_names, find_agent
from baton.adapters.contract import Agent
from baton.broker.local import known_broker, server_program
from baton.cli import options as opt
from baton.cli.output import counted, json_text
from baton.cli.parser import Options, Verb
from baton.config import Settings, hide_password, rules_file
from baton.core.clock import format_time, parse_time
from baton.core.errors import AgentUnusable, BatonError, BrokerUnavailable, InvalidValue, TmuxUnavailable, UsageError
from baton.core.fields import one_line
from baton.core.rule_file import marks
from baton.delegation.reconcile import has_monitor
from baton.history.verify import verify_log
from baton.jobs.reconciliation import find_disagreements
from baton.jobs.rules import read_rules
from baton.jobs.verbs import Jobs, open_jobs
from baton.live_agents import open_directory
from baton.live_agents.record import State as EntryState
from baton.own_files import others_can_read
from baton.registry import other_registry_here, registry_url
from baton.sessions.attach import is_utf8, locale_setting, usable_terminal
from baton.sessions.inventory import Inventory
from baton.sessions.release import release_in
from baton.sessions.session import State
from baton.sessions.tmux import Tmux
from baton.storage.files import network_fs_kind
from baton.storage.homes import load_settings
from baton.storage.installation import EXTRAS, install_command, path_advice
from baton.storage.sqlite import LEAST_SQLITE

_VERSION_SEC = 10
_NUMBER = re.compile(r"\d+\.\d+[\w.+-]*\b")
_LOGS = 100  # the newest logs that are verified
_SHOWN = 5  # names in one line
_USERS = {"postgres": "PostgreSQL", "tls": "`baton broker init`", "board": "`baton board`"}


class Finding(NamedTuple):
    state: str  # ok, warning, broken, or - for what is absent and not needed by the settings
    what: str
    detail: str  # how it is, and what to do about it


_ok = partial(Finding, "ok")
_absent = partial(Finding, "-")
_warning = partial(Finding, "warning")
_broken = partial(Finding, "broken")


def doctor(options: Options) -> int:
    findings = list(_examine(options))
    if options.json:
        print(json_text([finding._asdict() for finding in findings]))
    else:
        for state, what, detail in findings:
            print(f"{state:<7}  {one_line(what)}: {one_line(detail, 500)}")
    return 1 if any(finding.state == "broken" for finding in findings) else 0


def _examine(options: Options) -> Iterator[Finding]:
    # First of all: in an untrusted home no program is run.
    try:
        settings, refused = load_settings(vars(options)), None
    except InvalidValue as error:
        settings, refused = None, error
    yield _ok("python", f"{sys.version.split()[0]} at {sys.executable}")
    yield from (_sqlite(), _tmux(), _locale())
    yield from _terminal()
    yield _path()
    yield from _rules()
    if settings is None:
        yield _broken("config", f"{refused}; until it is fixed, commands that use the settings are refused")
    else:
        yield from (_warning("home", warning) for warning in settings.warnings)
        for check in (_config, _folders, _file_system, _registry, _broker, _sessions, _live_agents, _agents, _notify):
            yield from check(settings)
    for extra, module in EXTRAS.items():
        if find_spec(module) is not None:
            yield _ok(f"extra {extra}", "installed")
        else:
            yield _absent(f"extra {extra}", f"not installed; {_USERS[extra]} needs it: {install_command(extra)}")


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version_info
    if version < LEAST_SQLITE:
        least = ".".join(map(str, LEAST_SQLITE))
        return _broken("sqlite", f"{sqlite3.sqlite_version} is too old, {least} is needed; install a newer Python")
    fixed = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    note = "" if fixed else " (has the WAL-reset bug, which baton's lock prevents)"
    return _ok("sqlite", sqlite3.sqlite_version + note)


def _tmux() -> Finding:
    try:
        return _ok("tmux", Tmux("any").check_version())
    except TmuxUnavailable as error:
        return _broken("tmux", f"{error}; sessions, submit and demo need it")


def _version(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_VERSION_SEC, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown version ({type(error).__name__})"
    printed = (done.stdout + done.stderr).strip()
    lines = [line for line in printed.splitlines() if _NUMBER.search(line)]
    if done.returncode and not lines:
        why = printed.partition("\n")[0] or f"exit code {done.returncode}"
        return f"unknown version ({why})"
    return lines[0].strip() if lines else "unknown version"


def _locale() -> Finding:
    variable, locale = locale_setting()
    if locale and not is_utf8(locale):
        use = f"set {variable}=C.UTF-8 to show prompts, paths and what agents print correctly"
        return _warning("locale", f"{variable}={locale} is not UTF-8; {use}")
    for encoding in (sys.getfilesystemencoding(), sys.stdout.encoding or "none"):
        if encoding.lower().replace("-", "") != "utf8":
            return _warning("locale", f"{encoding}, not UTF-8; set LANG=C.UTF-8 to show prompts and paths correctly")
    return _ok("locale", "UTF-8")


def _terminal() -> Iterator[Finding]:
    """Check that tmux can draw on the terminal, if the command has one."""
    if not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr) if stream is not None):
        return
    name = os.environ.get("TERM", "")
    try:
        usable = usable_terminal(name)
    except UsageError as error:
        yield _warning("terminal", str(error))
        return
    if usable == name:
        yield _ok("terminal", name)
    else:
        fix = "to install it, run on the machine of the terminal: infocmp -x | ssh HOST tic -x -"
        yield _warning("terminal", f"this machine does not know {name}; attach treats it as {usable}; {fix}")


def _rules() -> Iterator[Finding]:
    path, refused = rules_file(os.environ), list[str]()
    book = read_rules(os.environ, refused.append)
    if refused:
        yield _broken("rules", refused[0])
    elif os.path.exists(path):
        yield _ok("rules", f"{path}: {counted(len(book.rules), 'rule')}, {counted(len(book.answerers), 'answerer')}")
        for mark in marks(book):
            yield _warning("rules", f"rule {mark.number} {mark.describe()}; see `baton rules list`")


def _path() -> Finding:
    if (found := shutil.which("baton")) is not None:
        return _ok("PATH", found)
    return _warning("PATH", f"`baton` is not on PATH (agents get it from baton); {path_advice()}")


def _notify(settings: Settings) -> Iterator[Finding]:
    if settings.notify is None:
        return
    if settings.notify.command:
        program = settings.notify.command[0]
        found = shutil.which(program)
        fix = f"install it, or change command in [notify] of {settings.files[0]}"
        yield _broken("notify", f"there is no program {program}; {fix}") if found is None else _ok("notify", found)
    key_file = settings.notify.webhook_key_file
    if key_file is not None and not os.access(key_file, os.R_OK):
        yield _broken("notify", f"{key_file} cannot be read; write the key of the webhook into it")


def _agents(settings: Settings) -> Iterator[Finding]:
    for name in agent_names(settings):
        what = f"agent {name}"
        try:
            agent = find_agent(settings, name)
        except BatonError as error:
            yield _broken(what, str(error))
            continue
        found = shutil.which(agent.program)
        if found is not None:
            yield _ok(what, found) if name == "shell" else _agent_version(what, agent, found)
        else:
            finding = _warning if name == settings.agent else _absent
            yield finding(what, f"{agent.program} is not installed: {agent.install}")


def _agent_version(what: str, agent: Agent, path: str) -> Finding:
    """Return the version of an agent's program, with a warning if baton was not tested with it."""
    version, tested = _version(agent.program, "--version"), agent.tested_version
    release = release_in(version)
    try:
        agent.check_release(release or tested)
    except AgentUnusable as error:
        return _warning(what, f"{version} at {path}; {error}")
    if not tested or release == tested:
        return _ok(what, f"{version} at {path}")
    if release is None:
        return _warning(what, f"{version} at {path}")
    return _warning(what, f"{version} at {path}; this release was not tested, baton was tested with {tested}")


def _config(settings: Settings) -> Iterator[Finding]:
    urls = {"registry": settings.registry, "directory": settings.directory}
    with_password = [name for name, url in urls.items() if hide_password(url) != url]
    sources = [settings.sources[name] for name in (*with_password, "mqtt_password")]
    for path in settings.files:
        if path in sources and others_can_read(os.stat(path)):
            yield _warning("config", f"{path} holds a password and other users can read it; run: chmod 600 {path}")
        else:
            yield _ok("config", path)


def _folders(settings: Settings) -> Iterator[Finding]:
    for what, path in (("home", settings.home), ("audit logs", settings.logs_dir)):
        if not os.path.exists(path):
            parent = path
            while not os.path.isdir(parent):
                parent = os.path.dirname(os.path.abspath(parent))
            if os.access(parent, os.W_OK):
                yield _ok(what, f"{path} does not exist yet; the first `baton register` makes it")
            else:
                remedy = "; set BATON_STATE_DIR to a folder that you may write"
                in_state = path.startswith(os.path.join(settings.state_dir, ""))
                yield _broken(what, f"{path} does not exist, and {parent} is not writable{remedy if in_state else ''}")
        elif not os.path.isdir(path):
            yield _broken(what, f"{path} is a file, not a folder; move it, or use another folder with --home")
        elif others_can_read(os.stat(path)):
            yield _warning(what, f"other users can read {path}; run: chmod 700 {path}")
        elif not os.access(path, os.W_OK):
            yield _broken(what, f"{path} is not writable")
        else:
            yield _ok(what, path)


def _file_system(settings: Settings) -> Iterator[Finding]:
    what, kind = "file system", network_fs_kind(settings.home)
    if kind is None:
        return
    if settings.allow_network_fs:
        yield _warning(what, f"{settings.home} is on {kind}, allowed by {settings.name_of('allow_network_fs')}")
    elif registry_url(settings).startswith("postgres"):
        yield _warning(what, f"{settings.home} is on {kind}; jobs are on the server, but sessions need a local home")
    else:
        yield _broken(what, f"{settings.home} is on {kind}; use a local folder or PostgreSQL")


def _registry(settings: Settings) -> Iterator[Finding]:
    try:
        with open_jobs(settings) as jobs:
            yield from _jobs(jobs)
            yield from _audit(jobs)
    except (BatonError, OSError) as error:
        yield _broken("registry", str(error))
        return
    if (other := other_registry_here(settings)) is not None:
        yield _warning("registry", other)


def _jobs(jobs: Jobs) -> Iterator[Finding]:
    counts = jobs.stats()
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "empty"
    yield _ok("registry", f"{jobs.registry.where}: {summary}")
    if unsent := counts.get("unsent"):
        yield _warning("events", f"{counted(unsent, 'event')} not sent yet; `baton monitor --once` sends them")
    for error in jobs.list_jobs(limit=1000).bad:
        yield _broken("registry", f"{error}; repair it or move it away")
    newest = jobs.list_jobs(limit=1).jobs
    if newest and parse_time(newest[0].updated_at) > time.time_ns() + 60 * 10**9:
        what = f"job {newest[0].job_id} was changed in the future ({newest[0].updated_at})"
        yield _warning("clock", f"{what}: check the date of this machine")
    else:
        yield _ok("clock", format_time(time.time_ns() // 10**9 * 10**9))


def _audit(jobs: Jobs) -> Iterator[Finding]:
    found = list(find_disagreements(jobs))
    for each in found:
        if each.lost:
            settle = f"`baton registry reconcile {each.job_id} --keep registry` or `--keep history` settles it"
            finding = _warning if each.missing else _broken
            yield finding("audit", f"job {each.job_id}: {each.why}; {settle}")
        else:
            yield _warning("audit", f"job {each.job_id}: {each.why}; `baton logs {each.job_id}` adds them")
    newest = jobs.list_jobs(limit=_LOGS).jobs
    damaged = [job.job_id for job in newest if verify_log(job.job_id, jobs.logs_dir).damage]
    if damaged:
        yield _broken("audit", f"tampered with: {', '.join(damaged[:_SHOWN])}; `baton logs ID --verify` shows where")
    elif not found:
        yield _ok("audit", "no gaps")


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.mqtt_host is not None:
        source = settings.sources["mqtt_host"]
        yield _ok("broker", f"{settings.mqtt_host}, from {source}; `baton broker check` tests it")
    elif (broker := known_broker(settings.state_dir)) is not None and broker.alive():
        yield _ok("broker", f"local, at 127.0.0.1:{broker.port}")
    else:
        try:
            server_program()
        except BrokerUnavailable as error:
            yield _warning("broker", f"{error}; until then commands read the registry again and again")
        else:
            yield _ok("broker", "local, not running; the first `baton publish` starts it")


def _sessions(settings: Settings) -> Iterator[Finding]:
    try:
        inventory = Inventory(settings)
        running, invalid = inventory.all(State.RUNNING), inventory.invalid()
        here = [session for session in running if session.host == settings.host and session.pane_pid is not None]
        lost = [session.name for session in here if not session.has_live_runner()]
        note = inventory.note()
    except (BatonError, OSError) as error:
        yield _broken("sessions", str(error))
        return
    if note is not None:
        yield _warning("sessions", note)
    for row in invalid:
        yield _broken("sessions", str(row))
    if lost:
        names = ", ".join(lost[:_SHOWN])
        yield _warning("sessions", f"gone from tmux: {names}; `baton monitor --once` records how they ended")
    yield _ok("sessions", f"{len(running) - len(lost)} running")
    found = has_monitor(settings)
    yield _ok("monitor", "running" if found else "not running; `baton monitor` finds dead jobs and sessions")


def _live_agents(settings: Settings) -> Iterator[Finding]:
    try:
        with open_directory(settings) as directory:
            states = [entry.state for entry in directory.all()]
    except (BatonError, OSError) as error:
        yield _broken("live agents", str(error))
        return
    fresh = states.count(EntryState.FRESH)
    if stale := len(states) - fresh:
        yield _warning("live agents", f"{fresh} fresh, {stale} not; `baton agent cleanup --dry-run` shows why")
    else:
        yield _ok("live agents", f"{fresh} fresh, in {directory.where}")


_EPILOG = (
    "Each line begins with ok, warning, broken (the exit code is then 1), or - for an agent or an extra that is not "
    "installed and that your settings do not need."
)
# The settings are read by the checks: that they cannot be is one of the findings.
VERBS = (Verb("doctor", (opt.JSON,), doctor, epilog=_EPILOG, reads_settings=False),)
