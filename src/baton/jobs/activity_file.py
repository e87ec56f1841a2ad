"""Keep what a session's agent is doing in a file of the session's folder: `baton explain` shows it, and `baton publish`
refuses `completed` while other work is open.

The runner replaces the file at each change. It is not synced: after a crash of the machine, the agent is gone, too."""

from __future__ import annotations

import json
import os

from baton.core.errors import NotVerified
from baton.core.fields import parse_json
from baton.core.value import Any, Value
from baton.storage.files import read_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.core.job import Job

ACTIVITY = "activity.json"


class Snapshot(Value):
    """What the runner knew at the time `at`. `facts` are objects with `fact`, `value`, `source` and `since`; `rule` is
    the one that decided `kind`. `idle_for` is how long the idle clock had been running, None while it pauses.
    `open_work` is why `baton publish --event completed` is refused: what is open besides the tool call in which it
    runs. `channel` is what the channel says about itself."""

    job_id: str
    attempt: int
    at: str
    kind: str
    since: str
    cause: str
    rule: str
    idle_for: str | None = None
    facts: Sequence[Mapping[str, Any]] = ()
    open_work: str | None = None
    channel: Mapping[str, Any] = {}


def write_snapshot(folder: str, snapshot: Snapshot) -> None:
    """Replace the file in the folder of a session."""
    content = json.dumps(snapshot.as_dict(), default=str)
    replace_file(os.path.join(folder, ACTIVITY), content.encode(errors="replace"), durable=False)


def read_snapshot(folder: str) -> Snapshot | None:
    """Return what the file in the folder of a session says; None without one that can be read."""
    try:
        found = parse_json(read_file(os.path.join(folder, ACTIVITY)))
        known = {name: value for name, value in found.items() if name in Snapshot.fields()}
        return Snapshot(**known)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def refuse_open_work(job: Job) -> None:
    """Raise NotVerified if the agent of the job calls this process while it has other work open. The runner alone knows
    that; it leaves it in the folder of its session."""
    folder = os.environ.get("BATON_SESSION_DIR")
    found = None if folder is None else read_snapshot(folder)
    if found is None or (found.job_id, found.attempt) != (job.job_id, job.attempt):
        return
    if found.open_work is not None:  # guard: open-work
        why = f"not completed: {found.open_work}"
        raise NotVerified(f"job {job.job_id} is {why}; wait until it is over, and publish again", why)
