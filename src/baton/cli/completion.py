"""completion: print the completion script for bash, zsh or fish, built from the parsers."""

from baton.adapters import BUILT_IN
from baton.cli import options as opt
from baton.cli.main import VERBS as KNOWN_VERBS
from baton.cli.main import describe
from baton.cli.parser import Options, Verb
from baton.core.event import EventName
from baton.core.job import Status

Words = dict[str, list[str]]  # the typed verb and action: the words that may follow

# The metavar of an argument: the command that lists its values.
_LISTED = {"ID": "list", "NAME": "session list --all"}
_LISTED_BY_VERB = {"agent": "agent list"} | dict.fromkeys(("requests", "approve", "deny", "answer"), "requests")
# The values of an option; with a verb where the option means something else elsewhere.
_VALUES = {
    "--agent": [*BUILT_IN],
    "--event": [*EventName],
    "status --set": [*Status],
    "--status": [*Status],
    "--mode": [*opt.STOP_MODE.settings["choices"]],
}


def completion(options: Options) -> None:
    script = _fish() if options.shell == "fish" else _bash()
    if options.shell == "zsh":
        script = "autoload -U +X bashcompinit && bashcompinit\n" + script.replace("for bash", "for zsh")
    print(script, end="")


def _words() -> tuple[Words, dict[str, str]]:
    """Return, for each verb and action, the words that may follow and the command that lists its arguments."""
    words: Words = {"": [verb for verb, (_, text) in KNOWN_VERBS.items() if text]}
    listed: dict[str, str] = {}
    for verb in words[""]:
        parser = describe(verb)
        for each in (parser, *parser.actions.values()):
            place = each.name
            words[place] = [
                word
                for option in each.options
                for word in (option.settings.get("choices", ()) if option.is_positional else option.names)
                if option.settings["help"]
            ]
            words[place] += each.actions
            for option in each.options:
                if option.metavar in _LISTED:
                    listed.setdefault(place, _LISTED_BY_VERB.get(verb, _LISTED[option.metavar]))
    return words, listed


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
                text = "" if place else KNOWN_VERBS[word][1].replace("\\", "\\\\").replace("'", "\\'")
                kind = f"-a {word}" + (f" -d '{text}'" if text else "")
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


def _cases(variable: str, values: dict[str, str]) -> str:
    return "\n".join(f'        "{typed}") {variable}="{value}" ;;' for typed, value in values.items())


def _value_cases() -> str:
    patterns = {f'"{name}"' if " " in name else f'*" {name}"': " ".join(values) for name, values in _VALUES.items()}
    case = '        {}) COMPREPLY=($(compgen -W "{}" -- "$cur")); return ;;'
    return "\n".join(case.format(pattern, values) for pattern, values in patterns.items())


_EPILOG = "In bash: . <(baton completion bash). In fish: baton completion fish | source."
VERBS = (Verb("completion", (opt.SHELL,), completion, epilog=_EPILOG, reads_settings=False),)
