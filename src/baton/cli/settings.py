"""config show, version"""

from __future__ import annotations

import json
import os

from baton import __version__
from baton.cli.main import verb_parser
from baton.cli.output import print_table
from baton.config import Settings, hide_password
from baton.registry import registry_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    parser.add_argument("--json", action="store_true", help="print data as JSON")
    if verb == "config":
        parser.add_argument("action", choices=["show"], help="print every setting and where it comes from")
    options = parser.parse_args(arguments)
    if verb == "version":
        print(json.dumps({"version": __version__}) if options.json else f"baton {__version__}")
        return 0
    settings = Settings(vars(options))
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
