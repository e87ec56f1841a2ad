"""skills install --mcp: add the MCP server `baton mcp` to a project's settings for its agents, or remove it."""

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from baton.cli.output import ask, say
from baton.cli.parser import Options
from baton.cli.project_files import Step, refuse_links, remove_with_folders, report, write_file
from baton.cli.server_entry import Edit, add_to_json, add_to_toml, remove_from_json, remove_from_toml
from baton.core.errors import BatonError, UsageError
from baton.core.fields import printable_lines
from baton.storage.files import read_file
from baton.storage.installation import path_advice

_LONGEST_FILE = 1 << 20
_HINT = "replace it by a folder"


class _Place(NamedTuple):
    """A file in which an agent looks for servers. `flag` chooses it; `where` names the part of the file; `note` says
    what the agent wants before it starts a server."""

    agent: str
    flag: str
    path: str
    where: str
    add: Callable[[str | None], Edit]
    remove: Callable[[str], Edit]
    note: str


_IF_TRUSTED = "reads the file in a folder that you trust there"
_PLACES = (
    _Place("Claude Code", "claude", ".mcp.json", "mcpServers in ", add_to_json, remove_from_json,
           "asks you to approve the server"),
    _Place("Codex", "agents", os.path.join(".codex", "config.toml"), "", add_to_toml, remove_from_toml,
           f"{_IF_TRUSTED}, and may need your approval of its tools (docs/how-to/use-mcp.md)"),
    _Place("Gemini", "agents", os.path.join(".gemini", "settings.json"), "mcpServers in ", add_to_json,
           remove_from_json, _IF_TRUSTED),
)  # fmt: skip


class _Change(NamedTuple):
    place: _Place
    step: Step
    part: str


def install_server(options: Options) -> None:
    if options.dir is not None or options.force:
        raise UsageError("--dir and --force are for skills; with --mcp run the command in the folder of the project")
    chosen = [place for place in _PLACES if getattr(options, place.flag)] or list(_PLACES)
    plan = _plan(chosen, remove=options.uninstall)
    steps = [change.step for change in plan]
    changes = [change for change in plan if change.part]
    for change in changes:
        _show(change, "remove from" if options.uninstall else "add to")
    if changes and not options.dry_run:
        if not options.yes and not ask(f"Change {', '.join(change.step.path for change in changes)}?"):
            raise BatonError("nothing was changed")
        if _plan(chosen, remove=options.uninstall) != plan:  # guard: settings-changed-meanwhile
            raise BatonError("nothing was changed: a file was changed after it was shown; run the command again")
        for change in changes:
            _apply(change.step)
    nothing = "no MCP server of baton is installed here" if options.uninstall else "the MCP server is installed already"
    report(steps, nothing=nothing, as_json=options.json, dry_run=options.dry_run)
    if changes and not options.uninstall and not options.dry_run:
        say("; ".join(f"{change.place.agent} {change.place.note}" for change in changes))
        say("the skills are separate: baton skills install")
        if shutil.which("baton") is None:
            where = "baton is not on your PATH, and the agents start the server by that name"
            say(f"baton: warning: {where}; {path_advice()}")


def has_server() -> bool:
    """Return whether the settings of the current folder have a server that baton added."""
    try:
        return any(change.part for change in _plan(list(_PLACES), remove=True))
    except (BatonError, OSError):
        return False


def _plan(places: list[_Place], *, remove: bool) -> list[_Change]:
    """Return what would be done to each file; refuse all if one is refused."""
    _refuse_own_settings(places)
    refuse_links(".", ".", [place.path for place in places], _HINT)
    plan = []
    for place in places:
        before = _read(place.path)
        if before is None and remove:
            continue
        try:
            edit = place.remove(before) if remove and before is not None else place.add(before)
        except BatonError as error:
            raise BatonError(f"nothing was changed: {place.path} {error}") from None
        if edit.is_foreign and not remove:
            raise BatonError(
                f"nothing was installed: {place.path} has another server named baton, or one that was changed; "
                "rename or remove it first"
            )
        plan.append(_Change(place, _step(place.path, before, edit), edit.part))
    return plan


def _step(path: str, before: str | None, edit: Edit) -> Step:
    if edit.is_foreign:
        done = "kept"
    elif edit.text == before:
        done = "unchanged"
    elif edit.text is None:
        done = "removed"
    else:
        done = "new" if before is None else "updated"
    return Step(path, done, None if edit.text is None else edit.text.encode())


def _refuse_own_settings(places: list[_Place]) -> None:
    """Refuse to write where an agent keeps the user's own configuration: in the home folder, these are those files."""
    env = os.environ
    home = os.path.expanduser("~")
    own = [home, os.path.join(home, ".codex"), os.path.join(home, ".gemini"), env.get("CODEX_HOME") or home]
    own.append(os.path.join(env.get("GEMINI_CLI_HOME") or home, ".gemini"))
    users = {os.path.realpath(each) for each in own}
    for place in places:
        if os.path.realpath(os.path.dirname(place.path) or ".") in users:  # guard: own-settings-of-an-agent
            raise BatonError(f"nothing was changed: {place.path} is your own configuration here; run this in a project")


def _read(path: str) -> str | None:
    try:
        return read_file(path, _LONGEST_FILE).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BatonError(f"nothing was changed: {path} is not UTF-8") from None


def _show(change: _Change, verb: str) -> None:
    say(f"{verb} {change.place.where}{change.step.path}:")
    for line in printable_lines(change.part).splitlines():
        say(f"  {line}")


def _apply(step: Step) -> None:
    if step.content is None:
        remove_with_folders(step.path, ".")
    else:
        write_file(step.path, step.content)
