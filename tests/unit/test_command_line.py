"""What the words of a command line mean, and how a verb's help is laid out."""

from __future__ import annotations

import pytest

from baton.cli import parser as parsers
from baton.cli.main import VERBS, describe, overview
from baton.core.errors import UsageError


def parse(line):
    verb, *words = line.split("|")
    return describe(verb).parse(words)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("get", {"ids": [], "job": [], "json": False}),
        ("get|a|--json|b", {"ids": ["a", "b"], "json": True}),
        ("get|--job|a|--job=b", {"job": ["a", "b"]}),
        ("submit|-5", {"prompt": "-5"}),
        ("submit|- fix this", {"prompt": "- fix this"}),
        ("submit|-x y", {"prompt": "-x y"}),
        ("submit|-", {"prompt": "-"}),
        ("submit|--|--json", {"prompt": "--json", "json": False}),
        ("submit|--title=--|x", {"prompt": "x", "title": "--"}),
        ("submit|--title=-x=y", {"title": "-x=y"}),
        ("submit|--priority|-1", {"priority": -1}),
        ("submit|--worktree", {"worktree": True}),
        ("submit|--no-worktree", {"worktree": False}),
        ("submit", {"prompt": None, "worktree": None, "expect": None, "label": [], "timeout_sec": None}),
        ("submit|--timeout|5|--timeout|10m", {"timeout_sec": 600}),
        ("send|--job|a|--json|text", {"id": "text", "job": "a", "text": None}),
        ("send|a|--json|text", {"id": "a", "text": "text"}),
        ("answer|a|1|2", {"id": "a", "choice": ["1", "2"]}),
        ("answer|a|--json|1", {"id": "a", "choice": ["1"]}),
        ("session|--json|list|--all", {"action": "list", "json": True, "all": True, "name": None}),
        ("session|list|--json", {"action": "list", "json": True}),
        ("session|stop|x", {"mode": "graceful", "grace": 10.0}),
        ("session|stop|x|--graceful", {"mode": "graceful"}),
        ("registry|migrate|--to|x", {"drain": None}),
        ("registry|migrate|--drain|--to|x", {"drain": 366 * 86400.0}),
        ("registry|migrate|--drain|5|--to|x", {"drain": 5.0}),
        ("agent|cleanup|--grace|9", {"grace_seconds": "9"}),
    ],
)
def test_what_words_mean(line, expected):
    options = vars(parse(line))
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("get|--jsno", "unrecognized arguments: --jsno; did you mean --json?; see `baton get --help`"),
        ("get|--jso", "unrecognized arguments: --jso; did you mean --json?; see `baton get --help`"),
        ("get|-x", "unrecognized arguments: -x; see `baton get --help`"),
        ("submit|fix|this", "unrecognized arguments: this; see `baton submit --help`"),
        ("get|--json=1", "argument --json: ignored explicit argument '1'; see `baton get --help`"),
        ("get|--job", "argument --job: expected one argument; see `baton get --help`"),
        ("get|--job|--json", "argument --job: expected one argument; see `baton get --help`"),
        ("get|--job|--|x", "argument --job: expected one argument; see `baton get --help`"),
        ("list|--limit|x", "argument --limit: must be a whole number, not 'x'; see `baton list --help`"),
        ("pick|--lease|x", "argument --lease: must be a number, not 'x'; see `baton pick --help`"),
        ("submit|--retries|-1", "argument --retries: must be a whole number of at least 0, not '-1'; see `baton submit --help`"),
        ("submit|--on-limit|x", "argument --on-limit: invalid choice: 'x' (choose from wait, fail); see `baton submit --help`"),
        ("publish", "the following arguments are required: --event; see `baton publish --help`"),
        ("answer|x", "the following arguments are required: CHOICE; see `baton answer --help`"),
        ("rules", "the following arguments are required: ACTION; see `baton rules --help`"),
        ("skills|x", "argument ACTION: invalid choice: 'x' (choose from install); see `baton skills --help`"),
        ("submit|--no-worktree|--worktree", "argument --worktree: not allowed with argument --no-worktree; see `baton submit --help`"),
        ("broker|init", "one of the arguments --mosquitto --nats is required; see `baton broker init --help`"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused_in_one_line(line, why):
    with pytest.raises(UsageError) as refused:
        parse(line)
    assert str(refused.value) == why


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_help_fits_into_its_width(width, monkeypatch):
    monkeypatch.setattr(parsers, "help_width", lambda: width)
    verbs = [describe(verb) for verb, (_, text) in VERBS.items() if text]
    for parser in (each for verb in verbs for each in (verb, *verb.actions.values())):
        text = parser.format_help()
        # Options that exclude each other stay in one line.
        assert [line for line in text.splitlines() if len(line) > width and " | " not in line] == []
        for option in parser.options:
            names = (option.metavar,) if option.is_positional else option.names
            assert all(name in text for name in names) or not option.settings["help"], names


def test_the_overview_fits_into_its_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    parsers.help_width.cache_clear()
    assert max(map(len, overview().splitlines())) <= 60
    parsers.help_width.cache_clear()
