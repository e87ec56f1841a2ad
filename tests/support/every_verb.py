"""Every verb and action of the command line, from the table that the command itself uses: a new one is included."""

from __future__ import annotations

import itertools

from baton.cli.main import VERBS, load_verb

JOB, SESSION, AGENT = "00000001", "hostile", "gpu"
# A value that is right, by the metavar of the option.
RIGHT = {
    "ID": JOB, "NAME": SESSION, "PROMPT": "true", "TEXT": "x", "E": "progress", "N": "1", "S": "1", "G": "g1", "AGE": "1s",
    "STATUS": "running", "shell": "bash", "ACTION": "token",
}  # fmt: skip
# What makes a command end soon, or reach what it prints.
MORE = {
    ("monitor",): ["--once"],
    ("worker",): ["--until-empty", "--agent", "shell"],
    ("subscribe",): ["--timeout", "0.2"],
    ("watch",): ["--timeout", "0.2"],
    ("wait",): ["--timeout", "0.2"],
    ("logs",): ["--timeout", "0.2"],
    ("result",): ["--timeout", "0.2"],
    ("submit",): ["--detach", "--agent-session", "q"],
    ("retry",): ["--detach"],
    ("follow-up",): ["--detach"],
    ("publish",): ["--attempts", "1"],
    ("agent", "watch"): ["--timeout", "0"],
    ("agent", "publish"): ["--session", "none"],
    ("broker", "init"): ["--nats", "set", "--host", "localhost"],
    ("session", "create"): ["--agent", "none"],
    ("hook",): ["claude-code"],
}


def options_of_verbs():
    """Yield the words of every verb and action, and its options."""
    for name in VERBS:
        verb = load_verb(name)
        if verb.actions:
            yield from (((name, action.name), (*verb.options, *action.options)) for action in verb.actions)
        else:
            yield (name,), verb.options or ()


def single(options):
    """Yield each option, also those that exclude each other."""
    for option in options:
        yield from getattr(option, "options", (option,))


def required_arguments(words, options) -> dict[str, list[str]]:
    """Return the arguments without which a verb is refused, by the name of the option, with right values."""
    required = {}
    for option in single(options):
        name, settings = option.names[0], option.settings
        is_option = name.startswith("-")
        if settings.get("action") == "store_true":
            continue
        if settings.get("required") or not (is_option or name in ("text", "prompt")):
            metavar = settings.get("metavar", name)
            usual = next(iter(settings.get("choices") or ["x"]))
            value = AGENT if words[0] == "agent" and metavar == "NAME" else RIGHT.get(metavar, usual)
            required[name] = [name, value] if is_option else [value]
    return required


def right_command(words, options) -> list[str]:
    """Return a command line of this verb that is not refused for its form."""
    return [*words, *itertools.chain(*required_arguments(words, options).values()), *MORE.get(words, [])]
