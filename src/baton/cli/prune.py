"""prune: remove what jobs that ended long ago have left."""

import time

from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import counted, json_text, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.delegation.prune import Prune, size_text
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory


def prune(options: Options, settings: Settings) -> int:
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
    errors = [error for step in steps for error in step.errors]
    for error in errors:
        say(f"baton: {error}")
    return 1 if errors else 0


VERBS = (Verb("prune", (
    opt.OLDER_THAN.but(required=True, help="remove what ended this long ago, such as 30d"),
    opt.STOPPED, opt.DRY_RUN, opt.JSON,
), prune),)  # fmt: skip
