"""Find the home of a working folder. `new_homes` makes it on the first write.

A home keeps jobs, sessions and audit logs. It lives in the user's state, out of reach of git:

    <state>/folders/<sha256 of the real path>   the home that serves this folder; nothing else decides
    <state>/homes/<id>/                         a home; `home.json` in it names its id and its folder
    FOLDER/.hermes                              a link to the home, for people and scripts; baton never follows it

A home may also stay in place, at a path that the user names. Then its own path is the key, and `home.json` in it must
carry the recorded id. A real `.hermes` that is not recorded is untrusted: it may have come with a clone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping

from baton.config import DEFAULT_HOME, Home, Settings
from baton.core.errors import BatonError, InvalidValue, UntrustedHome
from baton.core.fields import parse_json
from baton.core.hashing import sha256
from baton.core.value import Any
from baton.origin import obeyed_environment
from baton.own_files import is_closed, why_shared
from baton.storage import files

HOME_FILE = "home.json"
MOST_OPEN = 30  # registries of many homes that stay open: each has three files open, and a process may open 1,024
_ID = re.compile(r"[0-9a-f]{16}")
_SMALL = 65536
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)  # missing, a link, a pipe
_FOLDERS = ("jobs", "sessions", "delegate_job_logs")
_FILES = (HOME_FILE, "agent-sessions.db", "jobs/registry.db")
_OF_THE_STATE = ("homes", "folders", "broker", "registry")
_OTHER_HOME = ".mam"  # some versions of the scripts that baton replaces use this name


def load_settings(
    flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, here: str | None = None
) -> Settings:
    """Return the settings of a command in the folder `here` (default: the current one), with its home, which the first
    write below it makes. UntrustedHome if the command would use a home that the user has not trusted."""
    env = obeyed_environment((flags or {}).get("home")) if env is None else env
    settings = Settings(flags, env)
    home = find(settings.state_dir, settings.home, env.get("HOME"), here)
    if not home.made:
        files.on_first_write(home.path, lambda: _make(settings, home))
        if home.link is not None:  # a registry may be named by its path below the link
            files.on_first_write(os.path.join(home.folder, home.link), lambda: _make(settings, home))
    else:
        _check_folders(home)
    if home.made and not _link_is_right(home):
        from baton.storage.new_homes import keep_link

        home = keep_link(settings.state_dir, home)
    settings.use_home(home, _repository(here) if "repository" in settings.tables else "")
    return settings


def _make(settings: Settings, home: Home) -> None:
    from baton.storage.new_homes import make

    settings.home_id = make(settings.state_dir, home).home_id


def find(state_dir: str, named: str = DEFAULT_HOME, user_home: str | None = None, here: str | None = None) -> Home:
    """Return the home that a command in the folder `here` uses; make nothing. `named`: its path, or the plain name of
    its link. `user_home`: $HOME. Raise UntrustedHome."""
    state = check_state(state_dir)
    if "/" in named or named in (".", ".."):
        return _find_at(state, os.path.abspath(named))
    if named in ("", ".git"):
        raise InvalidValue("home", "must be a path or a name, and not .git, which belongs to git")
    return _find_above(state, _working_folder(here), named, os.path.realpath(user_home) if user_home else "")


def settings_of(state_dir: str, home: Home) -> Settings:
    """Return the settings of a command in the folder of a known home. Touch nothing there. BatonError if the home is
    gone or was replaced."""
    if (now := look_up(check_state(state_dir), home.folder)) is None:
        raise BatonError(f"another home is at {home.path}; see `baton trust`")
    if not now.made:
        raise BatonError(f"its home {home.path} is gone; `baton trust --remove {home.folder}` forgets it")
    settings = Settings(None, {name: value for name, value in obeyed_environment().items() if name != "BATON_HOME"})
    _check_folders(now)
    settings.use_home(now, _repository(now.folder) if "repository" in settings.tables else "")
    return settings


def known(state_dir: str, skip: Callable[[BatonError], None] = lambda _error: None) -> list[Home]:
    """Return every home of the user, by folder. Call `skip` for each entry that cannot be read."""
    state = check_state(state_dir)
    found = []
    try:
        names = os.listdir(os.path.join(state, "folders"))
    except FileNotFoundError:
        return []
    for name in names:
        try:
            home = _read_entry(state, os.path.join(state, "folders", name)) if len(name) == 64 else None
        except BatonError as error:
            skip(error)
            continue
        if home is not None:
            found.append(home)
    return sorted(found, key=lambda home: home.folder)


def look_up(state: str, folder: str) -> Home | None:
    """Return the home that the map names for the real path of a folder, or for the path of a home in place. None for a
    home in place that was replaced: its `home.json` does not carry the recorded id."""
    home = _read_entry(state, entry_path(state, folder))
    if home is None or home.folder != folder:
        return None
    if not home.in_place:
        return home if os.path.lexists(os.path.join(home.path, HOME_FILE)) else home.replace(made=False)
    if _is_unused(home.path):
        return home.replace(made=False)
    return home if read_home_id(home.path) == home.home_id else None  # guard: replaced-home


def entry_path(state: str, folder: str) -> str:
    """Return the path of a folder's entry in the map."""
    return os.path.join(state, "folders", sha256(os.fsencode(folder)).hexdigest())


def home_path(state: str, home_id: str) -> str:
    return os.path.join(state, "homes", home_id)


def check_state(state_dir: str) -> str:
    """Return the real path of the user's state. Refuse one that another user owns, can write or can replace."""
    state = os.path.realpath(state_dir)
    try:
        owner = os.stat(state).st_uid
    except FileNotFoundError:
        owner = os.geteuid()  # it will be
    if owner != os.geteuid():  # guard: state-of-another-user
        raise BatonError(f"{state} belongs to another user; set BATON_STATE_DIR to a folder of your own")
    if (why := why_shared(state_dir)) is not None:  # guard: state-of-others
        raise BatonError(f"{state_dir} {why}, or set BATON_STATE_DIR to a folder of your own")
    _refuse_shared(state, _OF_THE_STATE)
    return state


def _check_folders(home: Home) -> None:
    """Refuse a home that others can write, or in which they can write what baton reads, except one in place; refuse a
    folder of it that leads elsewhere."""
    if not home.in_place and (why := why_shared(home.path)) is not None:  # guard: home-of-others
        raise BatonError(f"{home.path} {why}")
    for name in _FOLDERS:
        files.refuse_link(os.path.join(home.path, name))
    if not home.in_place:
        _refuse_shared(home.path, (*_FOLDERS, *_FILES))


def _refuse_shared(folder: str, names: tuple[str, ...]) -> None:
    """Refuse what others can change in a folder that they can enter. baton makes each of its folders closed to them."""
    try:
        if is_closed(os.stat(folder)):
            return
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if (why := why_shared(path)) is not None:  # guard: what-is-in-a-home
            raise BatonError(f"{path} {why}")


def make_state(state_dir: str, below: str = "") -> str:
    """Create the folder of the user's state, and the folder `below` in it. Return the real path of the state.
    BatonError if they cannot be created."""
    try:
        files.make_private_dir(os.path.join(state_dir, below) if below else state_dir)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise BatonError(
            f"{error.filename or state_dir}: {error.strerror}, so baton cannot make {state_dir} for its files; set "
            "BATON_STATE_DIR to a folder that you may write"
        ) from None
    return check_state(state_dir)


def read_home_id(path: str) -> str | None:
    """Return the id in the `home.json` of a home; None without a valid one."""
    return _read_home_file(path)[0]


def read_served_folder(path: str) -> str:
    """Return the folder in the `home.json` of a home; "" without a valid one."""
    return _read_home_file(path)[1]


def read_mount(path: str) -> str:
    """Return where the file system of the served folder was mounted when the home was made; "" if that is unknown."""
    return _read_home_file(path)[2]


def read_small(path: str) -> bytes | None:
    """Return the content of a small regular file; None for anything else. Never follow a link, never block. OSError
    when the file may be there and cannot be opened, such as with too many open files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # guard: small-file-kind
            return None
        content = os.read(fd, _SMALL + 1)
        return content if len(content) <= _SMALL else None
    finally:
        os.close(fd)


# -- finding ---------------------------------------------------------------------------------------------------------


def _find_above(state: str, here: str, name: str, user_home: str) -> Home:
    """Return the home of the nearest folder upwards that has one, not beyond the file system; else a new one for
    `here`, or for the main work tree if `here` is in a linked one."""
    homes = os.path.join(state, "homes", "")
    if here.startswith(homes):  # reached by the link
        return _known_by_id(state, here.removeprefix(homes).partition("/")[0])
    warnings: list[str] = []
    untrusted: UntrustedHome | None = None
    for folder, new in _folders_above(here, user_home):  # noqa: B007  the last `new` counts
        home = look_up(state, folder)
        try:
            home = home or _examine(state, folder, name, warnings)
        except UntrustedHome as error:
            if untrusted or main_work_tree(folder) in (None, user_home):
                raise untrusted or error from None
            untrusted = error  # the main work tree may have a home
        if home is not None:
            if untrusted:
                warnings.append(f"{untrusted.place} is not used: the home of this work tree is that of {folder}")
            return home.replace(link=None if home.in_place else name, warnings=tuple(warnings))
    if untrusted:
        raise untrusted
    if name == DEFAULT_HOME and os.path.isdir(other := os.path.join(new, _OTHER_HOME, "jobs")):
        warnings.append(f"{other} is not used; to take it over: BATON_HOME={_OTHER_HOME} baton trust")
    return new_home(state, new).replace(link=name, warnings=tuple(warnings))


def _folders_above(here: str, user_home: str) -> Iterator[tuple[str, str]]:
    """Yield each folder whose home counts, nearest first, with the folder where a new home would be made. From the top
    of a linked work tree, go on in the main one."""
    folder = new = here
    device = os.stat(here).st_dev
    while True:
        if folder == here or folder != user_home:
            yield folder, new
        main = main_work_tree(folder) if new == here else None
        if main is not None and main != user_home:
            folder = new = main
            device = os.stat(main).st_dev
            continue
        parent = os.path.dirname(folder)
        try:
            if parent == folder or os.stat(parent).st_dev != device:
                return
        except PermissionError:
            return
        folder = parent


def new_home(state: str, folder: str) -> Home:
    """Return a home that the first write makes. Its id is derived from the folder and the state, so that commands that
    begin at the same moment agree; an id that an earlier home of this folder has is not used again."""
    number = 0
    while True:
        home_id = sha256(os.fsencode(f"{state}\0{folder}\0{number}")).hexdigest()[:16]
        if not os.path.lexists(path := home_path(state, home_id)):
            return Home(path=path, home_id=home_id, folder=folder, made=False)
        if (home := look_up(state, folder)) is not None:
            return home  # made a moment ago by another command
        number += 1


def _examine(state: str, folder: str, name: str, warnings: list[str]) -> Home | None:
    """Return a home in place of that name in the folder. UntrustedHome if it is not recorded. Pass over one of another
    user, and links that lead out of the user's state."""
    place = os.path.join(folder, name)
    try:
        found = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    is_link = stat.S_ISLNK(found.st_mode)
    if not is_link and not stat.S_ISDIR(found.st_mode):
        return None
    if found.st_uid != os.geteuid():  # guard: home-of-another-user
        warnings.append(f"{place} belongs to another user and is not used")
        return None
    if not is_link:
        home = look_up(state, place)
        if home is not None and home.in_place:
            return home
        raise UntrustedHome(place, folder)
    # guard: link-of-another-folder
    target = os.path.normpath(os.path.join(folder, os.readlink(place)))
    parent, home_id = os.path.split(target)
    if os.path.basename(parent) == "homes" and _ID.fullmatch(home_id):  # a link that baton made
        if not os.path.isdir(home_path(state, home_id)):
            return None  # in another state, for example of a container; or the state was removed
        if (home := look_up(state, folder)) is not None:
            return home  # made a moment ago by another command
    raise UntrustedHome(place, folder)


def _find_at(state: str, path: str) -> Home:
    """Return the home at a path that the user names. A missing or empty folder of the user becomes one."""
    real = os.path.realpath(path)
    parent, home_id = os.path.split(real)
    if parent == os.path.join(state, "homes"):
        folder = os.path.realpath(os.path.dirname(path))
        if os.path.islink(path) and ((home := look_up(state, folder)) is None or home.path != real):
            raise UntrustedHome(path, folder)
        return _known_by_id(state, home_id)
    for _ in range(2):  # again, because another command may make it right now: entry first, then its content
        home = look_up(state, real)
        if home is not None and home.in_place:
            return home
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return Home(path=real, home_id="", folder=real, in_place=True, made=False)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and _is_unused(real):
            return Home(path=real, home_id="", folder=real, in_place=True, made=False)
    if not os.path.isdir(real):
        raise InvalidValue("home", f"cannot be {path}, which is not a folder")
    if os.stat(real).st_uid != os.geteuid():
        raise BatonError(f"the home {path} belongs to another user; name another one with --home")
    raise UntrustedHome(path, path)


def _known_by_id(state: str, home_id: str) -> Home:
    path = home_path(state, home_id)
    found, folder, _ = _read_home_file(path)
    if not _ID.fullmatch(home_id) or found != home_id:
        raise BatonError(f"{path} is not a home: its {HOME_FILE} is missing or names another one; see `baton trust`")
    registry = home.registry if (home := look_up(state, folder)) and home.home_id == home_id else None
    return Home(path=path, home_id=home_id, folder=folder, registry=registry)


def _read_entry(state: str, path: str) -> Home | None:
    """Return the home that an entry of the map names; None if there is no entry. BatonError if it is not valid."""
    try:
        content = read_small(path)
        if content is None and not os.path.lexists(path):
            return None
        content = content or read_small(path)  # again: another command may have written it a moment ago
    except OSError as error:
        raise BatonError(f"{path} cannot be read: {error.strerror}; keep it, it names the home of a folder") from None
    if content is None:
        raise BatonError(f"{path} is not a regular file; move it away, then run `baton trust` in the folder it was for")
    try:
        entry = parse_json(content)
        folder, home_id, in_place, uid = entry["path"], entry["home"], entry["in_place"], entry["uid"]
        link, registry = entry.get("link"), entry.get("registry")
        if not isinstance(folder, str) or not folder.startswith("/") or not _ID.fullmatch(home_id):
            raise ValueError
        if any(not isinstance(each, str | None) for each in (link, registry)):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BatonError(f"{path} is damaged; move it away, then run `baton trust` in the folder it was for") from None
    if uid != os.geteuid() or os.lstat(path).st_uid != uid:  # guard: entry-of-another-user
        raise BatonError(f"{path} was written by another user; set BATON_STATE_DIR to a folder of your own")
    path = folder if in_place is True else home_path(state, home_id)
    return Home(path=path, home_id=home_id, folder=folder, in_place=in_place is True, link=link, registry=registry)


def _read_home_file(path: str) -> tuple[str | None, str, str]:
    """Return the id, the folder and the mount in the `home.json` of a home."""
    try:
        content = parse_json(read_small(os.path.join(path, HOME_FILE)) or b"null")
        home_id, folder, mount = content["home_id"], content["folder"], content.get("mount", "")
    except (ValueError, KeyError, TypeError):
        return None, "", ""
    is_valid = all(isinstance(each, str) for each in (home_id, folder, mount))
    return (home_id, folder, mount) if is_valid else (None, "", "")


def _is_unused(path: str) -> bool:
    """Return whether nothing is at a path, or an empty folder, or one where another command is making a home."""
    try:
        return all(re.fullmatch(r"\.home\.[0-9a-f]{8}\.tmp", name) for name in os.listdir(path))
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _link_is_right(home: Home) -> bool:
    """Return whether the folder has the link to its home, or needs none."""
    if home.link is None:
        return True
    try:
        return os.readlink(os.path.join(home.folder, home.link)) == home.path
    except OSError:
        return False


# -- git -------------------------------------------------------------------------------------------------------------


def main_work_tree(folder: str) -> str | None:
    """Return the main work tree if the folder is the top of a linked one; None otherwise."""
    git = linked_git_dir(folder)
    return os.path.dirname(git) if git is not None and os.path.basename(git) == ".git" else None


def linked_git_dir(folder: str) -> str | None:
    """Return the folder of the main repository if the folder is the top of a linked work tree. The `.git` file there is
    believed only if the repository names this work tree, too: it may have come with an archive."""
    admin = _named_git_dir(folder)
    if admin is None or os.path.basename(os.path.dirname(admin)) != "worktrees":
        return None
    back = _named_path(admin, _read_of_git(os.path.join(admin, "gitdir")))
    if back != os.path.join(folder, ".git"):  # guard: forged-git-file
        return None
    return os.path.dirname(os.path.dirname(admin))


def submodule_git_dir(folder: str) -> str | None:
    """Return the folder of the repository if the folder is the top of a submodule, which that repository names, too."""
    git = _named_git_dir(folder)
    if git is None:
        return None
    back = re.search(rb"^\s*worktree = (\S.*)$", _read_of_git(os.path.join(git, "config")) or b"", re.MULTILINE)
    if back is None or _named_path(git, back[1]) != folder:  # guard: forged-submodule
        return None
    return git


def _named_git_dir(folder: str) -> str | None:
    """Return the folder that a file `.git` names."""
    content = _read_of_git(os.path.join(folder, ".git"))
    return _named_path(folder, content[8:]) if content is not None and content.startswith(b"gitdir: ") else None


def _read_of_git(path: str) -> bytes | None:
    """Return the content of a small file of git; None for one that the user may not read: git does not, either."""
    try:
        return read_small(path)
    except PermissionError:
        return None


def _named_path(folder: str, name: bytes | None) -> str | None:
    return None if name is None or b"\0" in name else os.path.realpath(os.path.join(folder, os.fsdecode(name.strip())))


def _repository(here: str | None) -> str:
    """Return the working folder, or the same place in the main work tree if it is in a linked one."""
    folder = here = _working_folder(here)
    while folder != os.path.dirname(folder):
        if (main := main_work_tree(folder)) is not None:
            return os.path.join(main, os.path.relpath(here, folder))
        folder = os.path.dirname(folder)
    return here


def _working_folder(here: str | None) -> str:
    try:
        return os.getcwd() if here is None else os.path.realpath(here)
    except FileNotFoundError:
        raise BatonError("the current folder was removed; change to another one, or name a home with --home") from None
