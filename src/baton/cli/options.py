"""The catalogue of options: each is defined here once, with its help and its default.

A verb lists the options it takes. Where an option means something else for a verb, `but` changes its help.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from baton.cli.parser import BadValue, OneOf, Option, Options
from baton.core.errors import InvalidValue, UsageError

UNIT_SEC = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_duration(field: str, text: str) -> int:
    """Return `90s`, `15m`, `2h`, `30d` or `4w` in nanoseconds. A number without a unit is refused."""
    match = re.fullmatch(r"(\d{1,5})([smhdw])", text.strip(), re.ASCII)
    if match is None:
        raise InvalidValue(field, f"must be a duration such as 90s, 15m, 2h, 30d or 4w, not {text[:40]!r}")
    return int(match[1]) * UNIT_SEC[match[2]] * 10**9


def parse_since(field: str, text: str, now_ns: int) -> int:
    """Return the moment that `2h` (this long ago), a date (its beginning in UTC) or a time such as 2026-06-19T09:30:00Z
    names, in nanoseconds."""
    return _parse_moment(field, text, now_ns, -1)


def parse_not_before(text: str) -> str:
    """Return the time that `2h` (this long from now), a date or a time names, as a record holds it."""
    from time import time_ns

    from baton.core.clock import format_time

    return format_time(_parse_moment("--not-before", text, time_ns(), 1))


def _parse_moment(field: str, text: str, now_ns: int, sign: int) -> int:
    from baton.core.clock import parse_time

    text = text.strip()
    try:
        return parse_time(f"{text}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) else text)
    except ValueError:
        try:
            return now_ns + sign * parse_duration(field, text)
        except InvalidValue:
            why = "must be a duration such as 90s, 15m, 2h, 30d, a date or a time such as 2026-06-19T09:30:00Z"
            raise InvalidValue(field, f"{why}, not {text[:40]!r}") from None


def time_limit(
    option: str, number: type[int | float] = float, years: int = 1, *, zero: bool = False
) -> Callable[[str], float]:
    """Return the type of an option that limits a time: seconds, or a duration such as `10m`."""

    def parse(text: str) -> float:
        try:
            seconds = number(text)
        except ValueError:
            try:
                seconds = number(parse_duration(option, text) // 10**9)
            except InvalidValue:
                why = f"must be seconds, or such as 90s, 10m or 2h, not {text[:40]!r}"
                raise BadValue(why) from None
        if not 0 <= seconds <= years * 366 * 86400 or (seconds == 0 and not zero):
            least = "at least" if zero else "more than"
            raise InvalidValue(option, f"must be {least} 0 and at most {years} year{'s' if years > 1 else ''}")
        return seconds

    return parse


def whole(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number of at least this."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise BadValue(f"must be a whole number of at least {least}, not {text[:40]!r}")
        return number

    return parse


def dollars(text: str) -> float:
    """Return an amount of US dollars: the type of an option."""
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0.000001 <= amount < 1e9:
        raise BadValue(f"must be an amount of US dollars, such as 2.50, not {text[:40]!r}")
    return amount


def job_of(options: Options) -> str:
    """Return the id of the job that a command line with the options JOB names."""
    given = {each for each in (options.id, options.job) if each is not None}
    if len(given) > 1:
        raise UsageError("two different jobs are named; give one ID")
    job_id: str | None = given.pop() if given else os.environ.get("BATON_JOB_ID")
    if job_id is None:
        raise UsageError("no job is named; give its ID (`baton list` shows them)")
    return job_id


def jobs_of(options: Options) -> list[str]:
    """Return the ids that a command line with the options JOBS names, each once."""
    named = dict.fromkeys([*options.ids, *options.job])
    if not named and (job_id := os.environ.get("BATON_JOB_ID")) is not None:
        named[job_id] = None
    if not named:
        raise UsageError("no job is named; give its ID (`baton list` shows them)")
    return list(named)


def job_and_text(options: Options, text: str) -> str:
    """Return the id of the job that a command line with the options JOB_AND and this positional argument names. With
    --job, the first positional argument is the text."""
    if options.job is not None and getattr(options, text) is None:
        setattr(options, text, options.id)
        options.id = None
    return job_of(options)


def _flag(name: str, text: str, **settings: object) -> Option:
    return Option(name, action="store_true", help=text, **settings)


def _value(name: str, metavar: str, text: str, **settings: object) -> Option:
    return Option(name, metavar=metavar, help=text, **settings)


# Every command
_REGISTRY_URL = "sqlite:PATH, file:DIR or postgresql://..."
COMMON = (
    _value("--home", "DIR", "use the home at this path, or give its link this name (default: .hermes)"),
    _value("--registry", "URL", f"use this job registry: {_REGISTRY_URL} (default: the one in --registry-dir)"),
    _value("--registry-dir", "DIR", "keep the registry in this folder (default: jobs in --home)"),
    _flag("--allow-network-fs", "", default=None),
    _flag("--debug", "show the traceback of an error (default: one line)"),
)
JSON = _flag("--json", "print JSON (default: text)")
JSON_ALWAYS = JSON.but(help="print JSON, as this command always does")

# Which job, session or live agent
JOB_ID = _value("--job", "ID", "use this job, as an option (default: $BATON_JOB_ID)")
_JOB_HELP = "use this job; the first characters of its id are enough (default: $BATON_JOB_ID)"
JOB = (_value("id", "ID", _JOB_HELP, nargs="?"), JOB_ID)
JOBS = (
    _value("ids", "ID", _JOB_HELP.replace("this job", "these jobs").replace("its id", "an id"), nargs="*"),
    JOB_ID.but(action="append", default=[], help="use this job, as an option; repeatable (default: $BATON_JOB_ID)"),
)
JOB_AND = (
    JOB[0].but(help="use this job; the first characters of its id are enough"),
    JOB_ID.but(help="use this job, as an option: then the text is the only argument (default: ID)"),
)
NAME = _value("name", "NAME", "use this session, or that of the job with this id")
AGENT_NAME = NAME.but(help="use this live agent, named by name or id")
BY_ID = _flag("--id", "read NAME as an id only (default: a name or an id)")
SESSION = _value("--session", "NAME", "give the job to this running session (default: a new session)")
DIRECTORY = _value("--directory", "URL", "use this directory: file:/FOLDER or postgresql://... (default: your own)")
TMUX_SOCKET = _value("--tmux-socket", "L", "use this tmux server: a name or a path (default: baton)")

# A job
_PROMPT_HELP = "give the agent this task; - reads it from standard input"
PROMPT = _value("prompt", "PROMPT", _PROMPT_HELP, nargs="?")
PROMPT_FILE = _value("--prompt-file", "FILE", "read the task from this file; - is standard input (default: none)")
TEXT = _value("text", "TEXT", "type this text; - reads it from standard input", nargs="?")
PROMPT_TEXT = TEXT.but(metavar="PROMPT", help=_PROMPT_HELP)
PROMPT_OPTION = _value("--prompt", "TEXT", "give the agent this task, as an option (default: PROMPT)")
FIRST_PROMPT = PROMPT_OPTION.but(help="send this text first; - reads it from standard input (default: nothing)")
_AGENTS = "claude-code, codex, copilot, gemini, opencode, qwen, shell, or one of the config file"
AGENT = _value("--agent", "A", f"use this agent: {_AGENTS} (default: the agent setting)")
QUEUE = Option(
    "--queue", "--agent-session", metavar="QUEUE", dest="agent_session",
    help="take jobs from this queue (default: tmux:AGENT)",
)  # fmt: skip
WORKDIR = _value("--workdir", "DIR", "work in this folder (default: the current folder)")
TIMEOUT = _value(
    "--timeout", "T", "fail if the job takes this long: seconds, or such as 90s, 10m, 2h (default: 3600s)",
    type=time_limit("--timeout", int), dest="timeout_sec",
)  # fmt: skip
IDLE_TIMEOUT = _value(
    "--idle-timeout", "T", "fail if the agent is silent for this long (default: 120s; agent shell: as --timeout)",
    type=time_limit("--idle-timeout", int), dest="idle_timeout_sec",
)  # fmt: skip
TOOL_TIMEOUT = _value(
    "--tool-timeout", "T", "count a tool call of this length as stalled: then --idle-timeout runs (default: never)",
    type=time_limit("--tool-timeout", int, years=10), dest="tool_timeout_sec",
)  # fmt: skip
BACKGROUND_TIMEOUT = _value(
    "--background-timeout", "T", "wait this long for a background shell after the agent is done (default: 600s)",
    type=time_limit("--background-timeout", int, years=10), dest="background_timeout_sec",
)  # fmt: skip
EXPECT = _value("--expect", "FILE", "require this file at the end; repeatable (default: none)", action="append")
ALLOW_EXISTING = _flag(
    "--allow-existing", "accept --expect files that the job did not change (default: refuse them)", default=None
)
VALIDATE = _value("--validate", "CMD", "require that this command succeeds in the work folder (default: none)")
WORKTREE = OneOf(
    _flag("--worktree", "work in a new git worktree, on a new branch (default: the worktree setting)", default=None),
    Option(
        "--no-worktree", action="store_const", const=False, dest="worktree", default=None,
        help="work in the work folder although the setting worktree is true (default: as the setting)",
    ),
)  # fmt: skip
BASE = _value(
    "--base", "REF", "begin the worktree with this commit, branch, tag or job (default: the current commit; after one "
    "job with a worktree, its branch)",
)  # fmt: skip
ON_LIMIT = Option(
    "--on-limit", choices=("wait", "fail"),
    help="at a usage limit, wait until the reset that the agent named, or fail (default: wait)",
)  # fmt: skip
BUDGET = _value(
    "--budget", "USD", "ask you when the job has cost this many US dollars, before it goes on (default: no limit)",
    type=dollars, dest="budget_usd",
)  # fmt: skip
PRIORITY = _value("--priority", "N", "claim jobs with a higher priority first (default: 0)", type=int, default=0)
MAX_ATTEMPTS = _value(
    "--max-attempts", "N", "start the job again when its session or worker is lost, up to N attempts (default: 1)",
    type=int,
)  # fmt: skip
AFTER = _value(
    "--after", "ID", "start when this job is completed; in a batch, its title will do; repeatable (default: at once)",
    action="append", default=[],
)  # fmt: skip
NOT_BEFORE = _value(
    "--not-before", "TIME", "start at this time: after 90s, 15m, 8h, or at a date or a time (default: at once)",
    type=parse_not_before,
)  # fmt: skip
RETRIES = _value("--retries", "N", "start the job again after an error, up to N times (default: 0)", type=whole(0))
BACKOFF = _value(
    "--backoff", "T", "wait this long before the first retry, twice as long before each later one (default: 0s)",
    type=time_limit("--backoff", int, years=10, zero=True), dest="backoff_sec",
)  # fmt: skip
ORDER = (AFTER, NOT_BEFORE, RETRIES, BACKOFF)
LABEL = _value("--label", "TEXT", "tag the job with this text; repeatable (default: none)", action="append", default=[])
TITLE = _value("--title", "TEXT", "name the job in lists and messages (default: its prompt)")
IDEMPOTENCY_KEY = _value(
    "--idempotency-key", "KEY", "use the job that was registered with this key, if there is one; refuse if it is for "
    "other work (default: always a new job)",
)  # fmt: skip
HEADLESS = _flag(
    "--headless", "run the agent without a screen: it asks through `baton requests` (default: on its screen)",
    default=None,
)  # fmt: skip
YOLO = _flag("--yolo", "let the agent do everything without asking (default: it asks)", default=None)

# Submit, worker, monitor
TO = _value("--to", "AGENT", "give the job to this live agent, also on another host (default: none)")
BATCH = _value(
    "--batch", "FILE", "run many jobs: a JSON object per line with prompt and, if needed, agent, workdir, expect, "
    "validate, timeout_sec, idle_timeout_sec, tool_timeout_sec, headless, title, labels, priority, queue, ...; - reads "
    "standard input (default: one job)",
)  # fmt: skip
PARALLEL = _value("--parallel", "N", "run at most N jobs at once (default: 4)", type=whole(1), default=4)
DETACH = _flag("--detach", "print the job id and return at once (default: wait for the end)")
CONCURRENCY = _value("--concurrency", "N", "run at most N jobs at once (default: 1)", type=int, default=1)
MAX_JOBS = _value("--max-jobs", "N", "end after N jobs (default: no limit)", type=int)
UNTIL_EMPTY = _flag("--until-empty", "end when the queue is empty (default: wait for jobs)")
DRAIN = _value("--drain", "S", "give jobs S seconds to end after SIGTERM (default: 30)", type=float, default=30.0)
ONCE = _flag("--once", "sweep once and end (default: sweep until stopped)")
DRY_RUN = _flag("--dry-run", "print what would be done and do nothing (default: do it)")
INTERVAL = _value("--interval", "S", "sweep every S seconds (default: 5)", type=float, default=5.0)

# Requests and rules
FOR_JOB = _flag("--for-job", "allow equal calls of this job from now on, too (default: this call only)")
INEXACT = _flag("--inexact", "allow a call although the agent may do more than is shown (default: refuse)")
CHOICE = _value(
    "choice", "CHOICE", "choose by number or text, or give the text of an open question; with several questions "
    "1=CHOICE 2=CHOICE; where several may be chosen 1,3", nargs="+",
)  # fmt: skip
OWN_WORDS = _flag("--text", "answer in your own words instead of with a choice (default: refuse other texts)")
DECISION = Option("decision", choices=("deny", "ask", "allow"), help="decide so; deny beats ask, ask beats allow")
RULE_COMMAND = _value("--command", "LINE", "")
RULE_PATH = _value("--path", "FILE", "")
EXPIRES = _value("--expires", "T", "end the rule after 90s, 15m, 8h, 7d, or at a date or a time (default: never)")
RULE_NUMBER = _value("number", "N", "remove this rule, as `baton rules list` numbers it", type=whole(1))

# Claims
LEASE = _value("--lease", "S", "requeue the job if the lease is not renewed for S seconds (default: never)", type=float)
WAIT = _value("--wait", "S", "wait up to S seconds for a job (default: 0)", type=float)
HOLDER = _value("--holder", "NAME", "record this name as the holder of the job (default: HOST:PID)")
ATTEMPT = _value("--attempt", "N", "refuse if another attempt than N holds the job (default: no check)", type=whole(1))
REASON = _value("--reason", "TEXT", "log this reason (default: released)", default="released")
_STATUSES = "pending, running, completed, error or cancelled"
SET_STATUS = _value("--set", "STATUS", f"set this status: {_STATUSES} (default: print the status)")

# Events
_EVENTS = "started, progress, permission_required, completed or error"
EVENT = _value("--event", "E", f"publish this event: {_EVENTS}", required=True)
DETAIL = _value("--detail", "TEXT", "add this sentence; paths and secrets are removed (default: none)", default="")
DATA = _value("--data", "K=V", "add this value; repeatable (default: none)", action="append", default=[])
BROKER_TRIES = _value("--attempts", "N", "try N times to reach the broker", type=int)
REQUIRE_BROKER = _flag("--require-broker", "fail if the event cannot be sent now (default: send it later)")
NO_VERIFY = _flag(
    "--no-verify", "accept completed without the expected results; refused inside a session (default: verify them)"
)
ALLOW_PLAINTEXT = _flag(
    "--allow-plaintext", "connect to a broker on another host without TLS (default: refuse)", default=None
)
BROKER_LOGIN = _value(
    "--broker-login", "FILE", "publish events of the job with the login in this file, which sets MQTT_USERNAME and "
    "MQTT_PASSWORD; the registry stores it (default: each publisher has its own login)",
)  # fmt: skip
_LISTEN_TIMEOUT = TIMEOUT.but(
    type=time_limit("--timeout"), dest="timeout",
    help="stop after this long: seconds, or such as 90s, 10m, 2h (default: the largest --timeout of the jobs)",
)  # fmt: skip
_LISTEN_IDLE_TIMEOUT = IDLE_TIMEOUT.but(
    type=time_limit("--idle-timeout"), dest="idle_timeout",
    help="stop after this long without an event of the jobs, also while they are pending (default: the largest "
    "--idle-timeout of the jobs)",
)  # fmt: skip
LISTENING = (*JOBS, _LISTEN_TIMEOUT, _LISTEN_IDLE_TIMEOUT, ALLOW_PLAINTEXT)
FOLLOW_ALL = _flag("--follow-all", "follow every job of the registry until interrupted (default: the named jobs)")

# Lists and logs
STATUS = _value("--status", "S", "show only this status; repeatable (default: all)", action="append", default=[])
NEWER_THAN = _value("--newer-than", "AGE", "show only jobs registered in the last 90s, 15m, 2h, 30d (default: all)")
OLDER_THAN = _value("--older-than", "AGE", "show only jobs registered more than 90s, 15m, 2h, 30d ago (default: all)")
LIMIT = _value("--limit", "N", "show at most N jobs (default: 50 on a terminal, else all)", type=int)
ONE_LABEL = LABEL.but(action="store", default=None, help="show only jobs with this label (default: all)")
NEEDS_ME = _flag(
    "--needs-me", "show only jobs that wait for an answer, also at the agent's screen, that are blocked or stalled, or "
    "that ended and you have not seen it (default: all)",
)  # fmt: skip
ALL_HOMES = _flag("--all-homes", "show the jobs of all your folders (default: of this folder)")
COST = _flag("--cost", "show the tokens and the US dollars of each job, too (default: not)")
COLUMNS = _value(
    "--columns", "NAMES", "show these columns, such as id,state,title (default: id, state, age, agent, title, reason "
    "on a terminal; else id, status, activity, agent, created, finished, queue, title, reason)",
)  # fmt: skip
CURSOR = Option(
    "--cursor", "--after", metavar="CURSOR", help="continue after the page that printed this cursor (default: none)"
)
SHOW_SECRETS = _flag("--show-secrets", "print signing keys and passwords (default: hidden)")
TAIL = _value("--tail", "N", "print the last N lines (default: all)", type=int)
FOLLOW = Option(
    "-f",
    "--follow",
    action="store_true",
    help="print new lines as they are added, until the jobs end (default: print what is there)",
)
OUTPUT = _flag("--output", "print what the agent printed (default: its last message; for agent shell, this)")
FOLLOW_TIMEOUT = _LISTEN_TIMEOUT.but(help="stop --follow after this long, with exit code 2 (default: never)")
LOG_SINCE = _value(
    "--since", "T", "print only what was added since then: 90s, 15m, 2h, 30d ago, or a time (default: all)"
)
SINCE = LOG_SINCE.but(help="show only jobs registered since then: 2h or 3d ago, or a date (default: all)")
LIST_LOGS = _flag(
    "--list", "list every job that has a log, with its status and the time of its last line (default: print one log)"
)
VERIFY = _flag("--verify", "check that no line was changed, added or removed (default: print the lines)")

# Sessions
REPLACE = _flag("--replace", "remove a stopped session of that name (default: refuse)")
STOP_MODE = Option(
    "--mode", choices=("graceful", "hard", "soft"), default="graceful",
    help="end the agent (graceful), kill it (hard), or archive the session and let it run (soft) (default: graceful)",
)  # fmt: skip
GRACEFUL = Option(
    "--graceful", action="store_const", const="graceful", dest="mode",
    help="end the agent and keep its conversation, as --mode graceful",
)  # fmt: skip
CAPTURE_ID = _flag(
    "--capture-id", "print the id of the conversation; fail if it is not known (default: do not print it)"
)
GRACE = _value("--grace", "S", "give the agent S seconds to end (default: 10)", type=float, default=10.0)
ALL = _flag("--all", "show ended sessions too (default: running ones)")
READ_ONLY = _flag("--read-only", "do not send what you type to the session (default: send it)")
NO_ENTER = _flag("--no-enter", "do not press Enter after the text (default: press it)")
KEY = _value(
    "--key",
    "K",
    "press this key, such as 1, Enter, Escape, Up, C-c; repeatable (default: none)",
    action="append",
    default=[],
)
LINES = _value("--lines", "N", "print N lines of the scrollback too (default: 0)", type=int)
STOPPED = _flag("--stopped", "remove sessions that could be resumed too (default: keep them)")
HOMES = _flag("--homes", "remove the homes of folders that are gone (default: what ended in this home)")
INVALID = _flag("--invalid", "remove rows of the inventory that are no sessions too (default: name them)")

# Worktrees
STAT = _flag("--stat", "print only how many lines each file has changed (default: the changes)")
SQUASH = _flag("--squash", "make one commit of all work (default: keep the commits of the job)")
CHECK_MERGE = _flag("--check", "run the job's --validate on the merged result first (default: do not run it)")
MERGED = _flag("--merged", "remove all worktrees that hold nothing else than what is merged (default: those named)")

# Live agents
MANIFEST = _value("--manifest", "FILE", "publish the session that this manifest describes (default: that of --session)")
TOOL = _value("--tool", "A", "record this agent as the one that runs there (default: the agent setting)")
AGENT_ID = _value("--agent-id", "ID", "publish under this id (default: derived from the name)")
GENERATION = _value("--generation", "G", "publish as this generation (default: a new one)")
AGENT_DEF_DIR = _value("--agent-def-dir", "DIR", "record this definition folder (default: none)")
NEED_AGENT_DEF_DIR = _flag(
    "--need-agent-def-dir", "fail if the agent has no usable definition folder (default: no check)"
)
TAKEOVER = _flag("--takeover", "take the name from another live session (default: refuse)")
NO_TMUX_CHECK = _flag("--no-tmux-check", "trust the manifest (default: check it with tmux)")
NAME_LEASE = LEASE.but(
    type=str, default="24h", metavar="AGE", help="own the name for this long: 90s, 15m, 24h, 7d (default: 24h)"
)
_KEEP_YOUNG = "keep entries that became stale less than S seconds ago; also 90s, 15m (default: 300)"
GRACE_SECONDS = Option("--grace-seconds", "--grace", metavar="S", help=_KEEP_YOUNG, default="300")
EXPLAIN = _flag("--explain", "print each entry that was examined and why it was used or not (default: the result only)")
CONTROL = _flag("--control", "check that the session can be controlled from this host (default: no check)")

# Homes
TRUST_DIR = _value("dir", "DIR", "trust this folder (default: the current folder)", nargs="?")
YES = _flag("--yes", "answer every question with yes (default: ask on the terminal)")
IN_PLACE = _flag("--in-place", "leave the content where it is, for other tools (default: move it to your state)")
OWNER = _flag("--owner", "take over a folder of another user, as root (default: refuse)")
FROM = _value(
    "--from", "OLD", "use the home of a folder that was moved from OLD to DIR (default: none)", dest="moved_from"
)
LIST_HOMES = LIST_LOGS.but(help="list every folder that has a home, and do nothing else (default: trust DIR)")
REMOVE_HOME = _flag("--remove", "forget the home of DIR; its content stays in your state (default: trust DIR)")

# Registry, broker, skills, demo, completion
MIGRATE_TO = TO.but(required=True, metavar="URL", help=f"move the jobs to this registry: {_REGISTRY_URL}")
BROKER_SET = OneOf(
    _value("--mosquitto", "DIR", "write a configuration set for Mosquitto"),
    _value("--nats", "DIR", "write a configuration set for nats-server"),
    required=True,
)
BROKER_HOST = _value(
    "--host", "NAME", "certify this host name; repeatable (default: localhost)", action="append", default=[]
)
PORT = _value("--port", "N", "listen on this port (default: 8883)", type=int, default=8883)
WEB_WHAT = Option(
    "what", nargs="?", choices=["token", "sign-out"], metavar="ACTION",
    help="print a new address for the board (token), or end all its logins (sign-out) (default: serve it)",
)  # fmt: skip
LISTEN = _value(
    "--listen", "ADDRESS", "listen at this address, or unix:PATH; beyond loopback with --cert and --key "
    "(default: 127.0.0.1)", default="127.0.0.1",
)  # fmt: skip
WEB_NAME = _value(
    "--name", "HOST", "let browsers call the board by this host name, too; repeatable (default: localhost)",
    action="append", default=[],
)  # fmt: skip
CERT = _value("--cert", "FILE", "serve TLS with this certificate chain (default: no TLS)")
CERT_KEY = KEY.but(
    metavar="FILE", help="use this private key, with --cert (default: that in the certificate file)", action="store",
    default=None,
)  # fmt: skip
RIGHTS = OneOf(
    _value("--rights", "LIST", "offer these of view,act,answer in the browser (default: view,act,answer)"),
    READ_ONLY.but(help="offer no action: the same as --rights view (default: all actions)"),
)
MTLS = _flag("--mtls", "require client certificates (default: passwords)")
RENEW = _flag("--renew", "issue all certificates again and keep the rest (default: refuse an existing set)")
CHECK_SET = SET_STATUS.but(
    metavar="DIR", help="check the broker of this configuration set in both roles (default: that of the settings)"
)
ROLE = Option("--role", choices=["worker", "orchestrator"], help="check what this role alone can do (default: both)")
SKILLS_PLACE = OneOf(
    _flag("--claude", "install for Claude Code only: .claude/skills, .mcp.json (default: for all)"),
    _flag("--agents", "install for Codex and Gemini only: .agents/skills, their settings (default: for all)"),
    _value("--dir", "D", "install into this folder (default: .claude/skills and .agents/skills)"),
)
MCP = _flag("--mcp", "install the MCP server `baton mcp` in the project's settings (default: the skills)")
UNINSTALL = _flag("--uninstall", "remove what the same command installed, and keep what you changed (default: install)")
FORCE = _flag("--force", "replace changed files and keep each as FILE.bak (default: refuse)")
KEEP = _flag("--keep", "keep the folder of the demonstration (default: remove it)")
AS_AGENT = _flag(
    "--acp", "be its agent, which speaks ACP on standard input and output (default: run the demonstration)"
)
KEEP_WHICH = KEEP.but(
    action="store", choices=("registry", "history"), required=True,
    help="keep the status of the registry, or set that of the audit log",
)  # fmt: skip
SHELL = Option("shell", choices=("bash", "zsh", "fish"), help="print the script for this shell")
