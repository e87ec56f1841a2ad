"""skills install: copy the skills to the folders where agents read them, or remove them again."""

import json
import os

from baton import __version__
from baton.cli import options as opt
from baton.cli.output import counted, say
from baton.cli.parser import Options, Verb
from baton.cli.project_files import Step, refuse_links, remove_with_folders, report, write_file
from baton.core.errors import BatonError, UsageError
from baton.core.fields import parse_json
from baton.core.hashing import sha256
from baton.storage.files import outside, read_given_file

# Claude Code reads the first folder, Codex and Gemini the second.
_PLACES = {"claude": os.path.join(".claude", "skills"), "agents": os.path.join(".agents", "skills")}
# Lists the installed files with their hashes: a file with another hash was changed by the user.
_MANIFEST = ".baton-skills.json"
_HINT = "--dir names a folder elsewhere"


def skill_files() -> dict[str, bytes]:
    """Return the files of all skills, by their path below the folder of the skills."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Inside an installed package, or beside `src` in a checkout.
    for folder in (os.path.join(package, "skills"), os.path.join(package, "..", "..", "skills")):
        if os.path.isdir(folder):
            walk = [(parent, names) for parent, _, names in os.walk(folder) if "__pycache__" not in parent]
            paths = sorted(os.path.join(parent, name) for parent, names in walk for name in names)
            return {os.path.relpath(path, folder): read_given_file(path) for path in paths}
    raise BatonError("this installation of baton has no skills; install it again: pip install tmux-baton")


def install(options: Options) -> None:
    if options.mcp:
        from baton.cli.server_install import install_server

        install_server(options)
    elif options.uninstall:
        _uninstall(options)
    else:
        _install(options)


def _install(options: Options) -> None:
    files = skill_files()
    targets = _targets(options)
    for folder in targets:
        refuse_links(options.dir or ".", folder, files, _HINT)
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


def _uninstall(options: Options) -> None:
    """Remove the files that were installed and not changed since, and folders that are empty then."""
    if options.force:
        raise UsageError("--force replaces files; --uninstall removes only files that you did not change")
    base = options.dir or "."
    steps = [step for folder in _targets(options) for step in _plan_removal(base, folder)]
    if not options.dry_run:
        for step in steps:
            if step.done == "removed":
                remove_with_folders(step.path, base)
    _report(steps, options, "no skills of baton are installed here")
    if options.dir is None:
        from baton.cli.server_install import has_server

        if has_server():
            say("the MCP server is still installed; baton skills install --mcp --uninstall removes it")


def _plan_removal(base: str, folder: str) -> list[Step]:
    refuse_links(base, folder, [_MANIFEST], _HINT)
    hashes = _recorded_hashes(folder)
    refuse_links(base, folder, hashes, _HINT)
    steps = []
    for name, digest in hashes.items():
        path = os.path.join(folder, name)
        # The manifest may come from a clone: its paths must not leave the folder.
        if outside(os.path.dirname(name), folder) or not os.path.lexists(path):  # guard: uninstall-inside
            continue
        steps.append(Step(path, "removed" if _is_unchanged(path, digest) else "kept", None))
    return [*steps, Step(os.path.join(folder, _MANIFEST), "removed", None)] if hashes else []


def _targets(options: Options) -> list[str]:
    if options.dir is not None:
        if not options.dir:
            raise UsageError("--dir must be a path")
        return [options.dir]
    folders = [_PLACES[name] for name in _PLACES if getattr(options, name)] or list(_PLACES.values())
    # If a link makes two of them one folder, use the first.
    return list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[::-1]


def _plan(folder: str, files: dict[str, bytes], *, force: bool) -> list[Step]:
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
        steps.append(Step(path, done, content))
    for name, digest in before.items():
        # The manifest may come from a clone: its paths must not leave the folder.
        if name in files or outside(name, folder):
            continue
        path = os.path.join(folder, name)
        if (present := _content(path)) is not None and _digest(present) == digest:
            steps.append(Step(path, "removed", None))
    return steps


def _content(path: str) -> bytes | None:
    if not os.path.lexists(path):
        return None
    return read_given_file(path) if os.path.exists(path) else b""  # a dangling link is a file of the user, too


def _is_unchanged(path: str, digest: str) -> bool:
    """Return whether it is a file that was installed with this hash."""
    return os.path.isfile(path) and not os.path.islink(path) and _digest(read_given_file(path)) == digest


def _recorded_hashes(folder: str) -> dict[str, str]:
    """Return the hashes that an earlier installation recorded; none if the manifest is invalid."""
    try:
        files = parse_json(read_given_file(os.path.join(folder, _MANIFEST)))["files"]
        return {str(name): str(digest) for name, digest in files.items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _digest(content: bytes) -> str:
    return str(sha256(content).hexdigest())


def _apply(folder: str, plan: list[Step], files: dict[str, bytes]) -> None:
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
            write_file(step.path, step.content)
    note = {"version": __version__, "files": {name: _digest(content) for name, content in files.items()}}
    write_file(os.path.join(folder, _MANIFEST), json.dumps(note, indent=2).encode() + b"\n")


def _report(steps: list[Step], options: Options, nothing: str = "all skills are installed already") -> None:
    report(steps, nothing=nothing, as_json=options.json, dry_run=options.dry_run)


_ACTIONS = (
    Verb("install", (opt.SKILLS_PLACE, opt.MCP, opt.UNINSTALL, opt.DRY_RUN, opt.FORCE, opt.YES), install,
         "install the skills, or the MCP server, where Claude Code, Codex and Gemini read them", reads_settings=False),
)  # fmt: skip
VERBS = (Verb("skills", (opt.JSON,), actions=_ACTIONS),)
