"""Write files into the user's project: never through a link that leaves it, each file as a whole or not at all."""

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from baton.cli.output import json_text, say
from baton.core.errors import BatonError
from baton.core.fields import printable
from baton.storage.files import outside


class Step(NamedTuple):
    path: str
    done: str
    content: bytes | None  # None when the file is removed


def refuse_links(base: str, folder: str, names: Iterable[str], hint: str) -> None:
    """Refuse a folder to write to that is a link out of `base`: it may have come with a clone."""
    for name in names:
        place = os.path.dirname(os.path.join(folder, name))
        while place not in ("", "/", base):
            if os.path.islink(place) and outside(os.path.relpath(place, base), base):  # guard: link-out-of-the-skills
                raise BatonError(f"nothing was changed: {place} is a link that leaves {os.path.abspath(base)}; {hint}")
            place = os.path.dirname(place)


def write_file(path: str, content: bytes) -> None:
    """Replace a file atomically. A new file gets the usual mode of a project's files, an old one keeps its own."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            if os.path.isfile(path) and not os.path.islink(path):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def remove_with_folders(path: str, base: str) -> None:
    """Remove a file, and each folder between it and `base` that is empty then."""
    os.unlink(path)
    folder = os.path.dirname(path)
    while folder not in ("", "/", base) and not os.path.islink(folder) and not os.listdir(folder):
        os.rmdir(folder)
        folder = os.path.dirname(folder)


def report(steps: Iterable[Step], *, nothing: str, as_json: bool, dry_run: bool) -> None:
    """Print what was done to each file; `nothing` is the message for no change."""
    if as_json:
        print(json_text([{"path": step.path, "done": step.done} for step in steps], indent=2))
        return
    changes = [step for step in steps if step.done != "unchanged"]
    for step in changes:
        print(f"{step.done}\t{printable(step.path)}")
    if not changes:
        say(nothing)
    elif dry_run:
        say("dry run: nothing was changed")
