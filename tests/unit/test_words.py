"""Refuse words that hide who acts, or that replace a standard term. docs/glossary.md has the words to use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What to write instead: the actor (the runner, the worker, the user), or the standard term.
UNWANTED = {
    "name the actor": r"whoever|somebody|nobody|anybody|everybody",
    "fix, repair": r"mend|mends|mended|mending",
    "report, notify, say": r"told|(?:tell|tells|telling) of",
    "history, audit log": r"story|stories",
    "requeue": r"(?:hand|hands|handed|handing) back",
    "corrupt": r"ruin|ruins|ruined|ruining",
    "hide, remove": r"bury|buries|buried",
    "end, go": r"fare|fares|fared",
    "do, run, check": r"(?:see|sees|seen|seeing|saw) to",
    "check that it is alive": r"(?:feel|feels) the pulse",
    "its own message": r"a word of its own",
    "block, prevent": r"in the way",
}
_UNWANTED = re.compile(rf"\b(?:{'|'.join(UNWANTED.values())})\b".replace(" ", r"[\s#]+"), re.IGNORECASE)

PLACES = ["README.md", "CHANGELOG.md", "SECURITY.md", "docs", "skills", "scripts", "src"]
# Where such a word is right: the file, the exact text, and why.
ALLOWED = [
    ("docs/glossary.md", "| story |", "names the word that the glossary replaces"),
    ("docs/glossary.md", "| hand back |", "names the word that the glossary replaces"),
    ("docs/audit-log.md", "`mended`", "the name of a line in stored audit logs"),
    ("src/baton/history/log.py", '"mended"', "the name of a line in stored audit logs"),
    ("docs/guarantees.md", "0 told otherwise (held)", "the output of a recorded run"),
]


def files(place: str) -> list[str]:
    folder = ROOT / place
    found = [folder] if folder.is_file() else [*folder.rglob("*.md"), *folder.rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def unwanted(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    for file, words, _ in ALLOWED:
        if file == name:
            text = text.replace(words, "")
    return [f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}" for found in _UNWANTED.finditer(text)]


@pytest.mark.parametrize("place", PLACES)
def test_the_words_are_plain(place):
    names = files(place)
    assert names
    assert [line for name in names for line in unwanted(name)] == []


@pytest.mark.parametrize(("name", "words", "reason"), ALLOWED)
def test_an_exception_is_still_needed(name, words, reason):
    assert words in (ROOT / name).read_text(encoding="utf-8"), f"remove the exception: {reason}"
    assert _UNWANTED.search(words)


@pytest.mark.parametrize(
    "line", ["Mend it", "what WAS TOLD", "it is seen to", "a tell of it", "whoever", "handed\n    # back"]
)
def test_an_unwanted_word_is_found(line):
    assert _UNWANTED.search(line)


@pytest.mark.parametrize("line", ["recommended", "history", "amend", "in_the_way", "welfare", "a storyline"])
def test_other_words_that_contain_it_are_not(line):
    assert not _UNWANTED.search(line)
