"""config show | init, version: print the settings, write a config file with every setting, print the version."""

import os

from baton import __version__
from baton.cli import options as opt
from baton.cli.output import json_text, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import KNOWN, NOT_IN_FILES, TYPE_NAMES, Settings, hide_password, user_file
from baton.core.errors import BatonError, InvalidValue, WrongState
from baton.registry import registry_url
from baton.storage.files import make_private_dir, open_private, remove_file, write_all

_HEAD = """\
# Settings of baton: remove the # in front of a setting to change it.
# A variable of the environment (in brackets) takes precedence, and an option of a command over both.
# `baton config show` prints every value and where it comes from.
"""
_TABLES = """
# Values for the folders below a path:
#[repository."~/code/site"]
#agent = "codex"

# How to notify you when a job fails or completes:
#[notify]
#command = ["notify-send", "baton"]
#bell = true
#webhook = "https://example.com/hook"
#webhook_key_file = "~/.config/baton/webhook.key"
#kinds = ["failed", "completed"]

# What a client of `baton mcp` may do, too: run commands, name a validation, work outside of its folder.
#[mcp]
#allow = ["shell", "validate", "workdir"]

# An agent of your own, for --agent NAME:
#[agents.NAME]
#headless = ["program", "--prompt-file", "{prompt_file}"]
"""


def version(options: Options) -> None:
    print(json_text({"version": __version__}) if options.json else f"baton {__version__}")


def show(options: Options, settings: Settings) -> None:
    rows = settings.shown()
    if settings.registry is None:
        # Not set: the files in the registry folder decide.
        source = "found in registry_dir" if os.path.isdir(settings.registry_dir) else "default"
        try:
            found = ("registry", hide_password(registry_url(settings)), source)
        except BatonError as error:
            found = ("registry", None, str(error))
        rows = [found if row[0] == "registry" else row for row in rows]
    if settings.ignored:
        say(f"baton: warning: {settings.home_file} is in a home in place; ignored: {', '.join(settings.ignored)}")
    if options.json:
        print(json_text({name: {"value": value, "source": source} for name, value, source in rows}))
    else:
        print_table(("SETTING", "VALUE", "FROM"), [(name, _shown(value), source) for name, value, source in rows])


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def init(options: Options) -> None:
    """Write the config file of the user, with every setting as a comment."""
    if not (path := user_file(os.environ)):
        raise InvalidValue("HOME", "is not set, and this user has no home folder; name the file with BATON_CONFIG")
    path = os.path.abspath(path)
    try:
        make_private_dir(os.path.dirname(path))
        fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError as error:
        if os.path.lexists(path):
            raise BatonError(f"{path} exists and is not changed; edit it, or move it away and run this again") from None
        raise WrongState("config file", f"{path} cannot be written: {error.strerror}") from None
    try:
        write_all(fd, _file_of_defaults().encode())
    except BaseException:
        remove_file(path)
        raise
    finally:
        os.close(fd)
    print(json_text({"path": path}) if options.json else path)


def _file_of_defaults() -> str:
    """Return a config file that changes nothing: each setting with what it is and its default."""
    parts = [_HEAD]
    for name, (variable, kind, text) in KNOWN.items():
        if name not in NOT_IN_FILES:
            default = getattr(Settings, name, None)
            value = f"<{TYPE_NAMES[kind]}>" if default is None else json_text(default)
            parts.append(f"\n# {text[0].upper()}{text[1:]}{f' [{variable}]' if variable else ''}\n#{name} = {value}\n")
    return "".join([*parts, _TABLES])


VERBS = (
    Verb("config", (opt.JSON,), actions=(
        Verb("show", (), show, "print every setting and where it comes from"),
        Verb("init", (), init, "write your config file with every setting, its default and what it is",
             reads_settings=False),
    )),
    Verb("version", (opt.JSON,), version, reads_settings=False),
)  # fmt: skip
