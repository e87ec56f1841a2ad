"""Every option of every verb refuses a wrong value with exit code 64, and so does a verb that does not exist."""

from __future__ import annotations

import itertools
import os

import pytest

from baton.core.drafts import new_job
from baton.registry.sqlite import SqliteRegistry
from support.every_verb import JOB, MORE, options_of_verbs, required_arguments, single
from support.homes import home_of
from support.many_commands import ManyCommands

LINES = "two\nlines"
# Values that are wrong for every option with this metavar, or for one option.
WRONG = {
    "N": ["x", "1.5", "-1", ""],
    "S": ["x", "-1", "nan", ""],
    "T": ["soon", "-1", "0", "nan"],
    "AGE": ["soon", "5", "-1d"],
    "A": ["no-such-agent", LINES],
    "E": ["finished"],
    "STATUS": ["done"],
    "--status": ["done"],
    "ID": ["xyz", "abc", "ABCD1234", "../../etc"],
    "QUEUE": [LINES, ""],
    "KEY": [LINES, ""],
    "--title": [LINES, ""],
    "--label": [""],
    "--holder": [LINES, ""],
    "CURSOR": ["x"],
    "NAMES": ["id,nonsense", ""],
    "K=V": ["x", "=y"],
    "URL": ["nonsense"],
    "--host": [LINES],
    "--batch": ["no-such-file"],
    "--prompt-file": ["no-such-file"],
    "--broker-login": ["no-such-file"],
    "--expect": ["../outside", ""],
    "--validate": [" "],
    "--workdir": ["no-such-folder"],
    "--priority": ["x", "1.5", "9999999999"],
    "--port": ["x", "0", "65536"],
    "--mode": ["x"],
    "--keep": ["x"],
    "--role": ["x"],
    "decision": ["x"],
    "shell": ["x"],
    "--since": ["soon"],
    "REF": ["nonsense", "-x", ""],
    "--on-limit": ["perhaps", ""],
    "TIME": ["soon", "-1", "2026-13-01", ""],
    "ACTION": ["x"],
    "LIST": ["everything", "view,everything"],
    "ADDRESS": ["", "nowhere.invalid"],
    "USD": ["0", "-1", "nan", "much", ""],
}
# Free text, other places, and names that only the store or the server behind them knows.
FREE = {
    "CMD", "D", "DIR", "FILE", "G", "K", "L", "NAME", "OLD", "PROMPT", "TEXT", "AGENT", "--tool", "--agent-id", "--session",
    "LINE", "CHOICE", "HOST",
}  # fmt: skip
# What a name of the table means for one verb alone.
ELSEWHERE = {
    ("list", "--agent"),
    ("list", "--queue"),
    ("list", "--label"),
    ("pick", "--agent"),
    ("rules", "--agent"),
}  # a condition that nothing meets


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a running job."""
    folder = tmp_path_factory.mktemp("wrong")
    registry = SqliteRegistry(f"{home_of(folder)}/jobs/registry.db")
    job = new_job("x", now_ns=2**60, agent="shell")
    registry.register_job(job.replace(job_id=JOB, topic_prefix=f"python/mqtt/jobs/{JOB}"))
    registry.pick_job(JOB, holder="me", lease_sec=600)
    registry.close()
    return folder


@pytest.fixture(scope="module")
def baton(folder):
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "1"}
    with ManyCommands(str(folder), env) as run:
        yield run


def wrong_values(words, option):
    name = option.names[0]
    metavar = option.settings.get("metavar")
    if (words[0], name) in ELSEWHERE:
        return ()
    if words == ("agent", "watch") and name == "--timeout":
        return ("soon", "-1")
    if name in WRONG:
        return WRONG[name]
    if name in FREE or metavar in FREE:
        return ()
    return WRONG[metavar]


OPTIONS = {words: options for words, options in options_of_verbs() if words != ("hook",)}


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_a_wrong_value_is_64(words, baton):
    required = required_arguments(words, OPTIONS[words])
    for option in single(OPTIONS[words]):
        if option.settings.get("action") in ("store_true", "store_const"):
            continue
        name = option.names[0]
        rest = [*itertools.chain(*(given for other, given in required.items() if other != name)), *MORE.get(words, [])]
        if name == "--job" and JOB in rest:
            rest.remove(JOB)  # of several jobs, one that is wrong is an error of that job: 1
        if name in rest:
            place = rest.index(name)
            del rest[place : place + 2]
        for value in wrong_values(words, option):
            given = [f"{name}={value}"] if name.startswith("-") else [value]
            done = baton(*words, *rest, *given)
            assert done.code == 64, (words, rest, given, done)
            assert done.err.startswith("baton: "), (given, done)
            assert done.err.count("\n") == 1, (given, done)


@pytest.mark.parametrize("url", ["nonsense", "sqlite:", "mysql://x", ""])
def test_a_registry_that_cannot_be_one_is_64(baton, url):
    assert baton("list", f"--registry={url}").code == 64
