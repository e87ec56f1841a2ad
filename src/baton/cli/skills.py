"""skills install: copy the skills to the folders where agents read them."""

import argparse
import json
import os
from typing import NamedTuple

from baton import __version__
from baton.cli import options as opt
from baton.cli.output import counted, json_text, say
from baton.cli.parser import Verb
from baton.core.errors import BatonError, UsageError
from baton.core.fields import printable
from baton.core.hashing import sha256
from baton.storage.files import outside, read_given_file

# Claude Code reads the first folder, Codex and Gemini the second.
_PLACES = {"claude": os.path.join(".claude", "skills"), "agents": os.path.join(".agents", "skills")}
# Lists the installed files with their hashes: a file with another hash was changed by the user.
_MANIFEST = ".baton-skills.json"


class _Step(NamedTuple):
    path: str
    done: str
    content: bytes | None  # None when the file is removed


def shipped() -> dict[str, bytes]:
    """Return the files of all skills, by their path below the folder of the skills."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Inside an installed package, or beside `src` in a checkout.
    for folder in (os.path.join(package, "skills"), os.path.join(package, "..", "..", "skills")):
        if os.path.isdir(folder):
            walk = [(parent, names) for parent, _, names in os.walk(folder) if "__pycache__" not in parent]
            paths = sorted(os.path.join(parent, name) for parent, names in walk for name in names)
            return {os.path.relpath(path, folder): read_given_file(path) for path in paths}
    raise BatonError("this installation of baton has no skills; install it again: pip install tmux-baton")


def install(options: argparse.Namespace) -> None:
    files = shipped()
    targets = _targets(options)
    for folder in targets:
        _refuse_links(options.dir or ".", folder, files)
    plans = {folder: _plan(folder, files, force=options.force) for folder in targets}
    steps = [step for plan in plans.values() for step in plan]
    changed = [step.path for step in steps if step.done == "changed"]
    if options.dry_run:
        _report(steps, options)
    if changed:
        raise BatonError(
            f"nothing was installed: {counted(len(changed), 'file')} changed or not from baton: {', '.join(changed)}; "
            "--force replaces each and keeps it as FILE.bak"
        )
    if not options.dry_run:
        for folder, plan in plans.items():
            _apply(folder, plan, files)
        _report(steps, options)


def _targets(options: argparse.Namespace) -> list[str]:
    if options.dir is not None:
        if not options.dir:
            raise UsageError("--dir must be a path")
        return [options.dir]
    folders = [_PLACES[name] for name in _PLACES if getattr(options, name)] or list(_PLACES.values())
    # If a link makes two of them one folder, use the first.
    return list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[::-1]


def _refuse_links(base: str, folder: str, files: dict[str, bytes]) -> None:
    """Refuse a folder to write to that is a link out of `base`: it may have come with a clone."""
    for name in files:
        place = os.path.dirname(os.path.join(folder, name))
        while place not in ("", "/", base):
            if os.path.islink(place) and outside(os.path.relpath(place, base), base):  # guard: link-out-of-the-skills
                away = f"{place} is a link that leaves {os.path.abspath(base)}"
                raise BatonError(f"nothing was installed: {away}; --dir names a folder elsewhere")
            place = os.path.dirname(place)


def _plan(folder: str, files: dict[str, bytes], *, force: bool) -> list[_Step]:
    before = _recorded_hashes(folder)
    steps = []
    for name, content in files.items():
        path = os.path.join(folder, name)
        if (present := _content(path)) is None:
            done = "new"
        elif present == content:
            done = "unchanged"
        elif before.get(name) == _digest(present) and not os.path.islink(path):
            done = "updated"
        else:
            done = "replaced" if force else "changed"
        steps.append(_Step(path, done, content))
    for name, digest in before.items():
        # The manifest may come from a clone: its paths must not leave the folder.
        if name in files or outside(name, folder):
            continue
        path = os.path.join(folder, name)
        if (present := _content(path)) is not None and _digest(present) == digest:
            steps.append(_Step(path, "removed", None))
    return steps


def _content(path: str) -> bytes | None:
    if not os.path.lexists(path):
        return None
    return read_given_file(path) if os.path.exists(path) else b""  # a dangling link is a file of the user, too


def _recorded_hashes(folder: str) -> dict[str, str]:
    """Return the hashes that an earlier installation recorded; none if the manifest is invalid."""
    try:
        files = json.loads(read_given_file(os.path.join(folder, _MANIFEST)))["files"]
        return {str(name): str(digest) for name, digest in files.items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _digest(content: bytes) -> str:
    return str(sha256(content).hexdigest())


def _apply(folder: str, plan: list[_Step], files: dict[str, bytes]) -> None:
    for step in plan:
        if step.content is None:
            os.unlink(step.path)
        elif step.done != "unchanged":
            if step.done == "replaced":
                free, number = f"{step.path}.bak", 1
                while os.path.lexists(free):
                    number += 1
                    free = f"{step.path}.bak{number}"
                os.rename(step.path, free)
            _write(step.path, step.content)
    note = {"version": __version__, "files": {name: _digest(content) for name, content in files.items()}}
    _write(os.path.join(folder, _MANIFEST), json.dumps(note, indent=2).encode() + b"\n")


def _write(path: str, content: bytes) -> None:
    """Replace a file atomically, with the usual mode of a project's files: skills are not private."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _report(steps: list[_Step], options: argparse.Namespace) -> None:
    if options.json:
        print(json_text([{"path": step.path, "done": step.done} for step in steps], indent=2))
        return
    changes = [step for step in steps if step.done != "unchanged"]
    for step in changes:
        print(f"{step.done}\t{printable(step.path)}")
    if not changes:
        say("all skills are installed already")
    elif options.dry_run:
        say("dry run: nothing was changed")


_ACTIONS = (
    Verb("install", (opt.SKILLS_PLACE, opt.DRY_RUN, opt.FORCE), install,
         "install the skills where Claude Code, Codex and Gemini read them", reads_settings=False),
)  # fmt: skip
VERBS = (Verb("skills", (opt.JSON,), actions=_ACTIONS),)
