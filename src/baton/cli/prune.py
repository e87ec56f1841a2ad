"""prune: remove what jobs that ended long ago have left, and the homes of folders that are gone."""

import time

from baton.cli import options as opt
from baton.cli.homes import refuse_one_home
from baton.cli.options import parse_duration
from baton.cli.output import ask, counted, json_text, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import BatonError, UsageError
from baton.core.fields import one_line
from baton.delegation.gone_homes import count_gone, find_gone, remove_gone
from baton.delegation.prune import Prune, size_text
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory

_SHOWN = 20


def prune(options: Options, settings: Settings) -> int:
    if options.homes:
        return _prune_homes(options, settings)
    if options.older_than is None:
        raise UsageError("give --older-than AGE, such as 30d; or --homes for the homes of folders that are gone")
    before_ns = time.time_ns() - parse_duration("--older-than", options.older_than)
    stopped, dry_run = options.stopped, options.dry_run
    with open_jobs(settings) as jobs:
        steps = Prune(settings, jobs, Inventory(settings), before_ns, stopped_too=stopped, dry_run=dry_run).run()
    size = sum(step.size for step in steps)
    removed = ", ".join(counted(step.count, step.what.removesuffix("s")) for step in steps if step.count)
    if options.json:
        print(json_text({step.what: step.count for step in steps} | {"bytes": size}))
    elif not removed:
        print("nothing ended that long ago")
    else:
        done, freed = ("would remove", "") if dry_run else ("removed", " freed")
        print(f"{done} {removed}: {size_text(size)}{freed}")
    kept = {step.what: step.kept for step in steps}
    if kept["jobs"]:
        say(f"kept {counted(kept['jobs'], 'job')} with events that are not sent yet; `baton monitor --once` sends them")
    if kept["sessions"]:
        say(f"kept {counted(kept['sessions'], 'session')} that can be resumed; --stopped removes them too")
    if gone := count_gone(settings.state_dir):
        what = "a folder that is gone" if gone == 1 else "folders that are gone"
        say(f"{counted(gone, 'home')} of {what}: `baton prune --homes` removes those that hold nothing unfinished")
    errors = [error for step in steps for error in step.errors]
    for error in errors:
        say(f"baton: {error}")
    return 1 if errors else 0


def _prune_homes(options: Options, settings: Settings) -> int:
    """Remove the homes whose folder is gone, if the user agrees on the terminal or with --yes."""
    refuse_one_home(options, "--homes")
    if options.older_than is not None or options.stopped:
        raise UsageError("--homes removes whole homes; leave out --older-than and --stopped")
    found = list(find_gone(settings))
    going = [each for each in found if each.why is None]
    if going and not options.dry_run:
        if not options.yes:
            for each in going[:_SHOWN]:
                say(f"  {one_line(each.home.folder)}  {size_text(each.size)}")
            if len(going) > _SHOWN:
                say(f"  and {len(going) - _SHOWN} more")
            what = counted(len(going), "home")
            if not ask(f"Remove {what} of folders that are gone, with all jobs, results and audit logs?"):
                raise BatonError("nothing was changed")
        going = list(remove_gone(settings, going))
    kept = [each for each in found if each.why is not None] + [each for each in going if each.why is not None]
    removed = [each for each in going if each.why is None]
    size = sum(each.size for each in removed)
    if options.json:
        names = [each.home.folder for each in removed]
        reasons = [{"folder": each.home.folder, "home": each.home.path, "why": each.why} for each in kept]
        print(json_text({"homes": names, "kept": reasons, "bytes": size}))
        return 0
    done, freed = ("would remove", "") if options.dry_run else ("removed", " freed")
    for each in removed:
        print(one_line(f"{done} the home of {each.home.folder}: {size_text(each.size)}", 1000))
    print(f"{done} {counted(len(removed), 'home')}: {size_text(size)}{freed}" if removed else "no home can be removed")
    for each in kept:
        say(one_line(f"kept the home of {each.home.folder}: {each.why}", 1000))
    return 0


VERBS = (Verb("prune", (
    opt.OLDER_THAN.but(help="remove what ended this long ago, such as 30d (default: none; give this or --homes)"),
    opt.STOPPED, opt.HOMES, opt.YES, opt.DRY_RUN, opt.JSON,
), prune),)  # fmt: skip
