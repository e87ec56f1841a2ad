"""config show, version"""

from __future__ import annotations

import json
import os

from baton import __version__
from baton.cli import options as opt
from baton.cli.output import print_table
from baton.cli.parser import Verb
from baton.config import hide_password
from baton.registry import registry_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from baton.config import Settings


def version(options: argparse.Namespace) -> int:
    print(json.dumps({"version": __version__}) if options.json else f"baton {__version__}")
    return 0


def show(options: argparse.Namespace, settings: Settings) -> int:
    rows = settings.shown()
    if settings.registry is None:
        # Not set: it follows from what lies in the registry folder.
        found = "found in registry_dir" if os.path.isdir(settings.registry_dir) else "default"
        rows = [
            (name, hide_password(registry_url(settings)), found) if name == "registry" else (name, value, source)
            for name, value, source in rows
        ]
    if options.json:
        print(json.dumps({name: {"value": value, "source": source} for name, value, source in rows}))
    else:
        print_table(
            ("SETTING", "VALUE", "FROM"),
            [(name, _shown(value), source) for name, value, source in rows],
            [None] * len(rows),
        )
    return 0


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


VERBS = (
    Verb("config", (opt.JSON,), actions=(Verb("show", (), show, "print every setting and where it comes from"),)),
    Verb("version", (opt.JSON,), version, reads_settings=False),
)
