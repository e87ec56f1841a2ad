"""Writes commands.md, settings.md and errors.md of docs/reference from the program itself; `--check` only compares."""

from __future__ import annotations

import argparse
import inspect
import os
import sys

from baton.cli.main import VERBS, describe, overview
from baton.config import KNOWN, Settings
from baton.core import errors

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDER = os.path.join(ROOT, "docs", "reference")
_GENERATED = "<!-- Made by scripts/reference.py from the program itself: `make reference` writes it anew. -->\n"


def commands() -> str:
    os.environ["COLUMNS"] = "100"
    parts = [
        "# Every command\n\n", _GENERATED, "\n```text\n", overview(), "\n```\n",
    ]  # fmt: skip
    for verb, (_, text) in VERBS.items():
        if not text:
            continue
        parser = describe(verb)
        parts.append(f"\n## baton {verb}\n\n```text\n{parser.format_help().strip()}\n```\n")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, each in action.choices.items():
                    parts.append(f"\n### baton {verb} {name}\n\n```text\n{each.format_help().strip()}\n```\n")
    return "".join(parts)


def settings() -> str:
    """Every setting with its default; paths of whoever runs this are left out."""
    defaults = Settings(env={"HOME": "$HOME"})
    rows = ["| setting | environment | default | what it is |", "|---|---|---|---|"]
    for name, (variable, _, text) in KNOWN.items():
        default = getattr(defaults, name)
        shown = "this machine's" if name == "host" else "" if default is None else f"`{default}`"
        rows.append(f"| `{name}` | {f'`{variable}`' if variable else ''} | {shown} | {text} |")
    return (
        f"# Settings\n\n{_GENERATED}\n"
        "Weakest to strongest: built-in default, config file, environment, flag. `baton config show` prints each\n"
        "value with where it came from. The config file is `baton.toml`: the user's in `$XDG_CONFIG_HOME/baton/`,\n"
        "then the one in the home folder (`.hermes/baton.toml`), which wins; or the one that `BATON_CONFIG` names.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def error_tree() -> str:
    tree = inspect.getdoc(errors) or ""
    return (
        f"# Errors\n\n{_GENERATED}\n"
        "An error is one line on stderr: what is wrong, why, and what to do next. In Python each is an exception\n"
        "of its own, with the exit code the command ends with. Those that calls from Python raise are in `baton`\n"
        "(`baton.JobNotFound`, ...), all of them in `baton.core.errors`:\n\n"
        f"```text\n{tree}\n```\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a page is not as it would be written")
    options = parser.parse_args()
    stale = []
    for name, text in (("commands.md", commands()), ("settings.md", settings()), ("errors.md", error_tree())):
        path = os.path.join(_FOLDER, name)
        if options.check:
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    stale.append(name)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    if stale:
        print(f"not as the program says: {', '.join(stale)}; run `make reference`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
