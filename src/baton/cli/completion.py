"""completion: print the completion script for bash, zsh or fish, built from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from baton.adapters import BUILT_IN
from baton.cli import options as opt
from baton.cli.main import VERBS as KNOWN_VERBS
from baton.cli.main import describe
from baton.cli.parser import Parser, Verb
from baton.core.event import EventName
from baton.core.job import Status

Words = dict[str, list[str]]  # the typed verb and action: the words that may follow

# The metavar of an argument: the command that lists its values.
_LISTED = {"ID": "list", "NAME": "session list --all"}
# The values of an option; with a verb where the option means something else elsewhere.
_VALUES = {
    "--agent": [*BUILT_IN],
    "--event": [*EventName],
    "status --set": [*Status],
    "--status": [*Status],
    "--mode": [*opt.STOP_MODE.settings["choices"]],
}


def completion(options: argparse.Namespace) -> None:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](), end="")


def _words() -> tuple[Words, dict[str, str]]:
    """Return, for each verb and action, the words that may follow and the command that lists its arguments."""
    words: Words = {"": [verb for verb, (_, text) in KNOWN_VERBS.items() if text]}
    listed: dict[str, str] = {}
    for verb in words[""]:
        parser = describe(verb)
        words[verb] = [*_options(parser), *_choices(parser)]
        if (found := _listing(parser)) is not None:
            listed[verb] = found
        for name, action in _actions(parser):
            words[f"{verb} {name}"] = [*_options(action), *_choices(action)]
            if (found := _listing(action)) is not None:
                listed[f"{verb} {name}"] = "agent list" if verb == "agent" else found
    return words, listed


def _options(parser: Parser | argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings if action.help != argparse.SUPPRESS]


def _choices(parser: Parser | argparse.ArgumentParser) -> list[str]:
    return [str(name) for action in parser._actions if not action.option_strings for name in action.choices or ()]


def _actions(parser: Parser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _listing(parser: Parser | argparse.ArgumentParser) -> str | None:
    for action in parser._actions:
        if isinstance(action.metavar, str) and action.metavar in _LISTED:
            return _LISTED[action.metavar]
    return None


# -- the three shells ------------------------------------------------------------------------------------------


def _bash() -> str:
    words, listed = _words()
    return f"""# baton's completion for bash: . <(baton completion bash)
_baton() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} place="" words="" listing=""
    local index
    for ((index = 1; index < COMP_CWORD; index++)); do
        [[ ${{COMP_WORDS[index]}} == -* ]] && break
        case "$place ${{COMP_WORDS[index]}}" in
{_cases("place", {f" {place}" if " " not in place else place: place for place in words if place})}
            *) break ;;
        esac
    done
    case "$place $prev" in
{_value_cases()}
    esac
    case "$place" in
{_cases("words", {place: " ".join(following) for place, following in words.items()})}
    esac
    case "$place" in
{_cases("listing", listed)}
    esac
    if [[ -n $listing && $cur != -* ]]; then
        words+=" $(baton $listing 2>/dev/null | cut -f1)"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _baton baton
"""


def _zsh() -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash().replace("for bash", "for zsh")


def _fish() -> str:
    words, listed = _words()
    lines = ["# baton's completion for fish: baton completion fish | source", "complete -c baton -f"]
    for place, following in words.items():
        condition = _fish_condition(place, words)
        for word in following:
            if word.startswith("--"):
                kind = f"-l {word[2:]}"
            elif word.startswith("-"):
                kind = f"-s {word[1:]}"
            else:
                text = KNOWN_VERBS[word][1] if not place else ""
                kind = f"-a {word}" + (f" -d '{_fish_quoted(text)}'" if text else "")
            offered = _VALUES.get(f"{place} {word}", _VALUES.get(word))
            values = f" -x -a '{' '.join(offered)}'" if offered else ""
            lines.append(f"complete -c baton -n '{condition}' {kind}{values}")
        if place in listed:
            lines.append(f"complete -c baton -n '{condition}' -a '(baton {listed[place]} 2>/dev/null | cut -f1)'")
    return "\n".join(lines) + "\n"


def _fish_condition(place: str, words: Words) -> str:
    if not place:
        return "__fish_use_subcommand"
    verb, _, action = place.partition(" ")
    if action:
        return f"__fish_seen_subcommand_from {verb}; and __fish_seen_subcommand_from {action}"
    actions = [name.partition(" ")[2] for name in words if name.startswith(f"{verb} ")]
    without = f"; and not __fish_seen_subcommand_from {' '.join(actions)}" if actions else ""
    return f"__fish_seen_subcommand_from {verb}{without}"


def _fish_quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _cases(variable: str, values: dict[str, str]) -> str:
    return "\n".join(f'        "{typed}") {variable}="{value}" ;;' for typed, value in values.items())


def _value_cases() -> str:
    patterns = {f'"{name}"' if " " in name else f'*" {name}"': " ".join(values) for name, values in _VALUES.items()}
    return "\n".join(
        f'        {pattern}) COMPREPLY=($(compgen -W "{values}" -- "$cur")); return ;;'
        for pattern, values in patterns.items()
    )


_EPILOG = "In bash: . <(baton completion bash). In fish: baton completion fish | source."
VERBS = (Verb("completion", (opt.SHELL,), completion, epilog=_EPILOG, reads_settings=False),)
