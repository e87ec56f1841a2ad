"""skills install | list: what agents read to use baton, put where they look for it."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from baton import __version__
from baton.cli import options as opt
from baton.cli.output import counted, json_text, say
from baton.cli.parser import Verb
from baton.core.errors import BatonError, UsageError
from baton.core.hashing import sha256
from baton.storage.files import outside, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Final

# Claude Code reads the one, Codex and Gemini the other.
_PLACES: Final = {"claude": os.path.join(".claude", "skills"), "agents": os.path.join(".agents", "skills")}
# What we put there, by its hash: whatever differs later was changed by somebody else.
_MANIFEST: Final = ".baton-skills.json"


class _Step(NamedTuple):
    """What is to be done with one file; `content` is None when it is to go."""

    path: str
    done: str
    content: bytes | None


def shipped() -> dict[str, bytes]:
    """The files of all skills, by their path below the folder that holds them."""
    folder = _source()
    return {os.path.relpath(path, folder): read_file(path) for path in sorted(_files(folder))}


def _source() -> str:
    """In an installed package they lie inside it, in a checkout beside `src`."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (os.path.join(package, "skills"), os.path.join(package, "..", "..", "skills")):
        if os.path.isdir(folder):
            return os.path.realpath(folder)
    raise BatonError("this installation of baton has no skills in it; install it again: pip install tmux-baton")


def _files(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(parent, name) for name in names)


# -- install -------------------------------------------------------------------------------------------------


def _install(options: argparse.Namespace) -> int:
    files = shipped()
    plans = {folder: _plan(folder, files, force=options.force) for folder in _targets(options)}
    steps = [step for plan in plans.values() for step in plan]
    changed = [step.path for step in steps if step.done == "changed"]
    if options.dry_run:
        _report(steps, options)
    if changed:
        raise BatonError(
            f"nothing was installed: {counted(len(changed), 'file')} changed by somebody, or not ours: "
            f"{', '.join(changed)}; --force replaces what is there and keeps it as FILE.bak"
        )
    if not options.dry_run:
        for folder, plan in plans.items():
            _carry_out(folder, plan, files)
        _report(steps, options)
    return 0


def _targets(options: argparse.Namespace) -> list[str]:
    if options.dir is not None:
        if not options.dir:
            raise UsageError("--dir must be a path")
        return [options.dir]
    chosen = [name for name in _PLACES if getattr(options, name)] or list(_PLACES)
    folders = [_PLACES[name] for name in chosen]
    # Of two that are one by a link, the first: nothing is to be done twice.
    return list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[::-1]


def _plan(folder: str, files: dict[str, bytes], *, force: bool) -> list[_Step]:
    before = _installed(folder)
    steps = []
    for name, content in files.items():
        path = os.path.join(folder, name)
        present = _content(path)
        if present is None:
            done = "new"
        elif present == content:
            done = "unchanged"
        elif before.get(name) == _digest(present) and not os.path.islink(path):
            done = "updated"
        else:
            done = "replaced" if force else "changed"
        steps.append(_Step(path, done, content))
    for name, digest in before.items():
        # The note lies in a folder that came from anywhere: it must not lead out of it.
        if name in files or outside(name, folder):
            continue
        path = os.path.join(folder, name)
        present = _content(path)
        if present is not None and _digest(present) == digest:
            steps.append(_Step(path, "removed", None))
    return steps


def _content(path: str) -> bytes | None:
    if not os.path.lexists(path):
        return None
    return read_file(path) if os.path.exists(path) else b""  # a link to nothing is somebody's, too


def _installed(folder: str) -> dict[str, str]:
    """What an earlier installation noted there. Where that cannot be read, nothing is known to be ours."""
    try:
        files = json.loads(read_file(os.path.join(folder, _MANIFEST)))["files"]
        return {str(name): str(digest) for name, digest in files.items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _digest(content: bytes) -> str:
    return str(sha256(content).hexdigest())


def _carry_out(folder: str, plan: list[_Step], files: dict[str, bytes]) -> None:
    for step in plan:
        if step.content is None:
            os.unlink(step.path)
        elif step.done != "unchanged":
            if step.done == "replaced":
                os.rename(step.path, _free(f"{step.path}.bak"))
            _write(step.path, step.content)
    note = {"version": __version__, "files": {name: _digest(content) for name, content in files.items()}}
    _write(os.path.join(folder, _MANIFEST), json.dumps(note, indent=2).encode() + b"\n")


def _write(path: str, content: bytes) -> None:
    """Whole or not at all; like any file of the project, and so not private as baton's own are."""
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


def _free(path: str) -> str:
    """That path, or with a number that nobody has yet."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = f"{path}{number}"
    return free


def _report(steps: list[_Step], options: argparse.Namespace) -> None:
    if options.json:
        print(json_text([{"path": step.path, "done": step.done} for step in steps], indent=2))
        return
    told = [step for step in steps if step.done != "unchanged"]
    for step in told:
        print(f"{step.done}\t{step.path}")
    if not told:
        say("everything is there already")
    elif options.dry_run:
        say("nothing was done")


VERBS = (
    Verb(
        "skills",
        (opt.JSON,),
        actions=(
            Verb(
                "install",
                (opt.SKILLS_PLACE, opt.DRY_RUN, opt.FORCE),
                _install,
                "install the skills where Claude Code, Codex and Gemini read them",
                reads_settings=False,
            ),
        ),
    ),
)
