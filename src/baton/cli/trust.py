"""trust: show what a folder holds that would become a home, and make it one when the user agrees."""

import os
import sys
from collections.abc import Iterator

from baton.cli import options as opt
from baton.cli.output import ask, json_text, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import DEFAULT_HOME, SET_IN_PLACE, Home, Settings, hide_password
from baton.core.errors import BatonError, UsageError, WrongState
from baton.core.fields import one_line
from baton.jobs.caller import refuse_agents
from baton.registry import FILES_NOTE, LOCAL_SCHEMES
from baton.sessions.copies import end_copied_work, folder_of_runner, runs_elsewhere, upgrade_registry
from baton.storage.adoption import Candidate, Kind, find_candidate, is_copy, take_over
from baton.storage.homes import known, look_up
from baton.storage.inspection import Contents, inspect
from baton.storage.new_homes import forget, keep_registry

_SHOWN = 200


def trust(options: Options) -> int:
    refuse_agents("trust")
    settings = Settings(vars(options))
    by_path = "/" in settings.home
    name = DEFAULT_HOME if by_path else settings.home
    if options.list:
        _print_known(options, settings)
        return 0
    if options.remove:
        return _remove(settings, options.dir or ".", name)
    if options.owner and options.in_place:
        raise UsageError("--owner moves the content to a home of root; leave --in-place out")
    if options.owner and os.geteuid() != 0:
        raise UsageError("--owner is for root; a user trusts only folders of their own")
    if by_path and options.dir is None:
        candidate = find_candidate(settings.state_dir, settings.home, "", moved_from=options.moved_from)
    else:
        candidate = find_candidate(settings.state_dir, options.dir or ".", name, moved_from=options.moved_from)
    if candidate.kind is Kind.NOTHING:
        say(f"{candidate.folder} has no {name}: there is nothing to trust, the first command that writes makes a home")
        return 0
    if candidate.kind is Kind.KNOWN:
        if candidate.home is not None and settings.sources["registry"] == "--registry":
            keep_registry(settings.state_dir, candidate.home.home_id, settings.registry)
        say(f"{candidate.folder} is trusted already; its home is {candidate.content}")
        return 0
    return _adopt(options, settings, candidate)


def _adopt(options: Options, settings: Settings, candidate: Candidate) -> int:
    in_place = candidate.kind is Kind.FOLDER and (options.in_place or candidate.link is None)
    owner = os.lstat(candidate.content).st_uid
    if owner != os.geteuid() and not options.owner:  # guard: trust-of-another-user
        hint = "; add --owner to take it over as root" if os.geteuid() == 0 else ""
        raise BatonError(f"{candidate.content} belongs to another user ({owner}){hint}")
    contents = inspect(candidate.content, scratch=settings.state_dir, owner=owner, in_place=in_place)
    copied = candidate.kind in (Kind.FOLDER, Kind.COPY) and (
        is_copy(settings.state_dir, candidate, contents) or runs_elsewhere(candidate.content, contents.sessions)
    )
    for line in _lines(candidate, contents, in_place=in_place, copied=copied):
        text = " " * (len(line) - len(line.lstrip(" "))) + one_line(line, 1000)
        print(text, file=sys.stderr if options.json else sys.stdout)
    if contents.refused:
        raise BatonError(
            f"{candidate.content} cannot be a home: {'; '.join(contents.refused[:3])}"
            f"{f'; and {len(contents.refused) - 3} more' if len(contents.refused) > 3 else ''}; move them away first"
        )
    if candidate.kind is Kind.MOVED and candidate.home is not None and options.yes and not options.moved_from:
        raise BatonError(f"{candidate.content} is the home of {candidate.home.folder}; confirm that with --from")
    registry = _moved_registry(options, settings, candidate, contents)
    if not options.yes and not ask(f"Trust {candidate.content}?"):
        raise BatonError("nothing was changed")
    home, left = take_over(
        settings.state_dir,
        candidate,
        contents,
        in_place=in_place,
        owner=owner,
        registry=registry,
        end_copied_work=(lambda path: end_copied_work(path, settings.host)) if copied else None,
    )
    if candidate.kind is Kind.FOLDER and not in_place:
        try:
            upgrade_registry(home.path, settings.host)
        except BatonError as error:
            say(f"baton: warning: {error}")
    if left is not None:
        say(f"baton: warning: {left} is left: it could not be removed, or files appeared in it meanwhile")
    for warning in home.warnings:
        say(f"baton: warning: {warning}")
    text = one_line(f"trusted {candidate.folder}; its home is {home.path}")
    print(json_text(_record(home)) if options.json else text)
    return 0


def _moved_registry(options: Options, settings: Settings, candidate: Candidate, contents: Contents) -> str | None:
    """Return the url to which a migration moved the jobs, if it leads out of the content: the user must confirm it."""
    url = contents.moved_to
    if url is None or candidate.kind in (Kind.MOVED, Kind.AGAIN):
        return None
    scheme, _, path = url.partition(":")
    folder = os.path.join(candidate.content, "jobs")
    if scheme in LOCAL_SCHEMES and os.path.normpath(os.path.join(folder, path)).startswith(candidate.content + "/"):
        return url if os.path.isabs(path) else None
    shown = hide_password(url)
    if settings.sources["registry"] == "--registry" and settings.registry == url:
        return url
    if options.yes:
        raise BatonError(f"{folder}/.moved leads to {shown}, out of this folder; confirm it with --registry {shown}")
    if not ask(f"Its jobs were moved to {shown}. Use that registry?"):
        raise BatonError("its jobs are in another registry; nothing was changed")
    return url


def _lines(candidate: Candidate, contents: Contents, *, in_place: bool, copied: bool) -> Iterator[str]:
    """Yield what the content is and what would happen to it, a line for each part."""
    yield candidate.content
    yield f"  {_fate(candidate, in_place=in_place)}"
    if copied:
        yield "  it is a copy of another home: its running jobs end, its sessions are archived"
    counts = ", ".join(f"{count} {status}" for status, count in contents.jobs.items())
    yield f"  jobs: {counts or 'none'}"
    for job in contents.unfinished:
        check = f"; baton would run: {job.validate}" if job.validate else ""
        agent = f"{job.agent} without asking (yolo)" if job.yolo else job.agent
        yield f"    {job.job_id} {job.status}, agent {agent}: {one_line(job.prompt, 80)}{check}"
    unfinished = sum(contents.jobs.get(status, 0) for status in ("pending", "running"))
    if (more := unfinished - len(contents.unfinished)) > 0:
        yield f"    and {more} more that are not listed"
    yield from (f"  running session: {session.name}, agent {session.agent}" for session in contents.sessions)
    for setting, value in contents.settings.items():
        note = " (the jobs there are not listed)" if setting in ("registry", "registry_dir") else ""
        if in_place and setting not in SET_IN_PLACE:
            note = " (ignored in place)"
        yield f"  setting {setting} = {one_line(value, _SHOWN)}{note}"
    yield from (f"  database {path}: {what}" for path, what in contents.databases.items())
    if contents.moved_to not in (None, FILES_NOTE):
        yield f"  its jobs were moved to {hide_password(contents.moved_to)}; they are not listed"
    yield from (f"  refused: {each}" for each in contents.refused)


def _fate(candidate: Candidate, *, in_place: bool) -> str:
    if candidate.kind is Kind.MOVED and candidate.home is not None:
        return f"the home of {candidate.home.folder}, which is gone: it would serve {candidate.folder}"
    if candidate.kind is Kind.AGAIN:
        return f"a home that you removed from the list: it would serve {candidate.folder} again"
    if in_place:
        return "its content would stay where it is"
    if candidate.kind is Kind.COPY:
        other = "another folder" if candidate.home is None else candidate.home.folder
        return f"the home of {other}: it would be copied into a new home for {candidate.folder}"
    return f"its content would move into a new home for {candidate.folder}, in your own state"


def _record(home: Home) -> dict[str, object]:
    return {"folder": home.folder, "home": home.path, "home_id": home.home_id, "in_place": home.in_place}


def _print_known(options: Options, settings: Settings) -> None:
    homes = known(settings.state_dir)
    if options.json:
        print(json_text([_record(home) for home in homes], indent=2))
    elif not homes:
        say("no folder has a home yet")
    else:
        rows = [(home.folder, _state(home), home.path) for home in homes]
        print_table(("FOLDER", "STATE", "HOME"), rows)


def _state(home: Home) -> str:
    if not os.path.isdir(home.folder):
        return "folder gone"
    if not os.path.isdir(home.path):
        return "home gone"
    return "in place" if home.in_place else "ok"


def _remove(settings: Settings, directory: str, name: str) -> int:
    path = os.path.realpath(directory)
    if os.path.basename(os.path.abspath(directory)) == name:
        path = os.path.realpath(os.path.dirname(os.path.abspath(directory)))
    home = look_up(settings.state_dir, path) or look_up(settings.state_dir, os.path.join(path, name))
    if home is None:
        raise WrongState("DIR", f"{path} has no home that you trust; `baton trust --list` shows all")
    exists = os.path.isdir(home.path)
    for session in inspect(home.path, scratch=settings.state_dir, owner=os.geteuid()).sessions if exists else ():
        if folder_of_runner(session) is not None:
            raise BatonError(f"session {session.name} runs in {home.path}; stop it first")
    forget(settings.state_dir, home)
    if home.link is not None and os.path.realpath(os.path.join(home.folder, home.link)) == home.path:
        os.unlink(os.path.join(home.folder, home.link))
    where = f"its jobs and logs stay in {home.path}, `baton trust` uses them again"
    print(one_line(f"{path} is not trusted any more; {where}"))
    return 0


VERBS = (
    Verb("trust", (
        opt.TRUST_DIR, opt.YES, opt.IN_PLACE, opt.OWNER, opt.FROM, opt.LIST_HOMES, opt.REMOVE_HOME, opt.JSON,
    ), trust, reads_settings=False),
)  # fmt: skip
