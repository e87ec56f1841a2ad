"""config show, version: print the settings and the version."""

import argparse
import os

from baton import __version__
from baton.cli import options as opt
from baton.cli.output import json_text, print_table, say
from baton.cli.parser import Verb
from baton.config import Settings, hide_password
from baton.core.errors import BatonError
from baton.registry import registry_url


def version(options: argparse.Namespace) -> None:
    print(json_text({"version": __version__}) if options.json else f"baton {__version__}")


def show(options: argparse.Namespace, settings: Settings) -> None:
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
    return str(value).lower() if isinstance(value, bool) else str(value)


VERBS = (
    Verb("config", (opt.JSON,), actions=(Verb("show", (), show, "print every setting and where it comes from"),)),
    Verb("version", (opt.JSON,), version, reads_settings=False),
)
