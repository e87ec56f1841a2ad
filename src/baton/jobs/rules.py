"""Read the user's rules, and resolve the paths of a tool call for them.

The rules are in one file of the user: a home, a repository or an agent cannot bring rules of its own."""

from __future__ import annotations

import os

from baton.config import rules_file, state_folder, user_file
from baton.core.errors import JobNotFound
from baton.core.rule_file import LONGEST_FILE, parse_rules
from baton.core.rules import Bound, Call, RuleBook
from baton.core.tool_arguments import read_call
from baton.own_files import why_shared
from baton.storage.files import open_given_file, read_open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

# In the environment of a session: files and folders with settings of programs that run later.
_SETTINGS = (
    "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR",
    "QWEN_CODE_SYSTEM_DEFAULTS_PATH", "QWEN_CODE_SYSTEM_SETTINGS_PATH", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM",
    "NPM_CONFIG_USERCONFIG", "npm_config_userconfig", "BASH_ENV", "ENV", "PYTHONSTARTUP",
)  # fmt: skip


def read_rules(env: Mapping[str, str], warn: Callable[[str], None]) -> RuleBook:
    """Return the rules of the user. A file that cannot be used allows nothing: warn, and return no rules."""
    path = rules_file(env)
    try:
        return parse_rules(read_text(path))
    except FileNotFoundError:
        return RuleBook()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        warn(f"{path} {why}; no rule is used until it is fixed, every request is asked")
        return RuleBook()


def read_text(path: str) -> str:
    """Return the text of a rules file. OSError or ValueError for a file that others could have written."""
    if not path:
        raise FileNotFoundError
    with open_given_file(path) as file:  # it may be a link: many users keep their settings in a repository
        if (why := why_shared(path, os.fstat(file.fileno()))) is not None:  # guard: rules-of-others
            raise ValueError(why)
        content = read_open_file(file, path, LONGEST_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError("is not valid UTF-8") from None


def call_for_rules(
    agent: str,
    tool: str,
    arguments: Any,
    *,
    exact: bool,
    workdir: str | None,
    env: Mapping[str, str],
    home: str | None = None,
    bounds: Sequence[Bound] = (),
) -> Call:
    """Return what rules decide about, with every path resolved on this machine."""
    call = read_call(
        agent, tool, arguments, exact=exact, workdir=workdir, resolve=_real, user_home=env.get("HOME", ""),
        bounds=bounds,
    )  # fmt: skip
    settings = _settings_in(env, call.workdir, home)
    reserved = [each for path in settings for each in (os.path.abspath(path), _real(path))]  # guard: rule-settings
    repositories = {each for places in call.paths for place in places for each in _repositories_at(place)}
    return call.replace(reserved=(*dict.fromkeys(reserved), *sorted(repositories)))  # guard: rule-in-repository


def bounds_of(jobs: Jobs, job: Job) -> list[Bound]:
    """Return within which folders the rules for paths hold: those of the job whose agent started this one, of the job
    above that, and so on."""
    found = list[Bound]()
    seen = {job.job_id}
    while job.parent is not None:
        above = None
        if job.parent not in seen:
            seen.add(job.parent)
            try:
                above = jobs.get_job(job.parent)
            except JobNotFound:
                above = None  # it was pruned, or is in another home
        within = None if above is None or above.folder is None else _real(above.folder)
        found.append(Bound(folder=_real(job.folder or "/"), asked=_real(job.workdir or "/"), within=within))
        if above is None:
            break
        job = above
    return found


def _settings_in(env: Mapping[str, str], workdir: str, home: str | None) -> list[str]:
    """Return the files and folders of baton, and those that the environment names as settings of other programs."""
    rules, settings = rules_file(env), user_file(env)
    named = [path for name in _SETTINGS if os.path.isabs(path := env.get(name, "")) and not _holds(path, workdir)]
    relative = [] if os.path.isabs(settings) else [os.path.join(workdir, settings)]
    places = [os.path.dirname(rules), rules, settings, *(relative if settings else []), state_folder(env), home, *named]
    return [each for each in places if each]


def _holds(path: str, workdir: str) -> bool:
    """Return whether the work folder is, or is in, a folder of settings: the user has chosen to work there."""
    return f"{workdir}/".startswith(f"{_real(path).rstrip('/')}/")


def _repositories_at(path: str) -> Iterator[str]:
    """Yield each folder, from a path upwards, that git takes for a repository without a work tree: with settings."""
    folder = path
    while True:
        here = os.path.join(folder, "HEAD")
        if os.path.lexists(here) and any(
            all(os.path.exists(os.path.join(folder, name)) for name in names)
            for names in (("objects", "refs"), ("commondir",))
        ):
            yield folder
        if folder in ("/", ""):
            return
        folder = os.path.dirname(folder)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path  # no file can have this path
