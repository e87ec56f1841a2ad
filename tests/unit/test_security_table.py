"""The table in docs/security.md: each row names the tests that hold it, and those tests exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACTORS = {"a folder", "an agent", "an agent with the tools of `baton mcp`", "another user", "another site"}
ACTORS |= {"a browser that you signed in", "a broker's operator", "a database login"}


def rows():
    text = (ROOT / "docs" / "security.md").read_text()
    lines = text.partition("## Who can do what")[2].partition("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")][1:]


def test_every_attacker_has_rows():
    assert {row[0] for row in rows()} == ACTORS


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[2]}"[:60])
def test_a_row_names_tests_that_exist(row):
    assert len(row) == 4, row
    named = re.findall(r"`(tests/[^`:]+)::(test_\w+)`", row[3])
    assert named, row
    for file, name in named:
        assert re.search(rf"def {name}\(", (ROOT / file).read_text()), f"{file} has no {name}"
