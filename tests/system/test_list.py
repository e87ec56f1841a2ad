"""`baton list`: what happened and what now, on a terminal, in a pipe, and over all homes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time

import pytest

from baton.core.drafts import new_job
from baton.core.event import EventName
from baton.core.job import Status
from baton.core.outline import Outline, activity_of
from baton.jobs.verbs import open_jobs
from baton.registry.contract import JobFilter
from support.command import BATON, Baton
from support.homes import settings_in
from support.terminal import Terminal

HOUR_NS = 3600 * 10**9
REASON = "the validation `pytest -q` failed: tests/test_login.py::test_umlauts FAILED - AssertionError: 'M?ller'"


def fill(folder, env) -> dict[str, str]:
    """Register one job for each state a job can be in, the oldest first, and return their ids."""
    ids = {}
    with open_jobs(settings_in(folder, env)) as jobs:
        registry, now = jobs.registry, time.time_ns()

        def add(name, hours, **fields):
            job = new_job(f"do {name} " * 30, now_ns=now - hours * HOUR_NS, **{"agent": "shell"} | fields)
            ids[name] = registry.register_job(job).job_id
            return ids[name]

        registry.record_event(add("failed", 90), EventName.ERROR, detail="d", outcome={"reason": REASON})
        registry.record_event(add("done", 80, title="The notes"), EventName.COMPLETED)
        registry.record_event(add("working", 70, agent="claude-code"), EventName.STARTED)
        registry.record_event(
            add("waiting", 60, labels=["release"]), EventName.PERMISSION_REQUIRED, detail="may I push?"
        )
        registry.pick_job(add("starting", 50), holder="me")
        for number in range(60):
            job = add(f"seen {number}", 40)
            registry.record_event(job, EventName.COMPLETED)
            registry.mark_seen(job)
        registry.update_status(add("cancelled", 5), Status.CANCELLED)
        registry._dispute(add("disputed", 4), "the audit log says completed")
        add("queued", 3, agent_session="nightly")
    return ids


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    baton = Baton(tmp_path_factory.mktemp("list"))
    baton.ids = fill(baton.folder, baton.env)
    return baton


def rows_of(baton, *arguments):
    return [line.split("\t") for line in baton("list", *arguments).out.splitlines()]


def on_terminal(baton, columns, *arguments, **env):
    with Terminal(
        [BATON, "list", *arguments], cwd=str(baton.folder), env=baton.env | {"COLUMNS": str(columns)} | env
    ) as shown:
        assert shown.end() == 0, shown.shown
        return shown.shown.decode().replace("\r\n", "\n")


def test_in_a_pipe_the_columns_are_separated_by_tabs(desk):
    rows = {row[0]: row for row in rows_of(desk)}
    assert {len(row) for row in rows.values()} == {10}
    failed = desk("get", desk.ids["failed"]).json
    assert rows[desk.ids["failed"]] == [
        desk.ids["failed"], "error", "-", "shell", failed["created_at"], failed["finished_at"], "tmux:shell",
        rows[desk.ids["failed"]][7], REASON, f"failed: {REASON}",
    ]  # fmt: skip
    assert rows[desk.ids["done"]][7:] == ["The notes", "-", "done: unchecked: only the word of its agent"]
    assert rows[desk.ids["waiting"]][1:3] == ["running", "waiting"]
    assert rows[desk.ids["waiting"]][8] == "may I push?"
    assert rows[desk.ids["working"]][1:4] == ["running", "working", "claude-code"]
    assert rows[desk.ids["starting"]][2] == "starting"
    assert rows[desk.ids["disputed"]][1:3] == ["pending", "disputed"]
    assert rows[desk.ids["disputed"]][8] == "the audit log says completed"
    assert rows[desk.ids["queued"]][6] == "nightly"
    newest_first = [job["job_id"] for job in desk("list", "--json").json]
    assert [row[0] for row in rows_of(desk)] == newest_first


def test_columns_are_chosen_and_a_wrong_one_is_refused_with_the_right_ones(desk):
    assert rows_of(desk, "--columns", "id, title", "--limit", "1") == [
        [desk.ids["queued"], rows_of(desk, "--limit", "1")[0][7]]
    ]
    said = desk.refused("list", "--columns", "id,nonsense", code=64)
    assert "'nonsense'" in said
    assert "id, status, activity" in said
    desk.refused("list", "--columns", "", code=64)
    desk.refused("list", "--columns", "id", "--json", code=64)


def test_which_jobs(desk):
    def ids(*arguments):
        return [row[0] for row in rows_of(desk, *arguments)]

    assert ids("--needs-me") == [desk.ids["done"], desk.ids["failed"]]
    assert ids("--needs-me", "--status", "error") == [desk.ids["failed"]]
    assert ids("--label", "release") == [desk.ids["waiting"]]
    assert ids("--label", "rel") == []
    assert ids("--since", "4h") == [desk.ids["queued"]]
    assert len(ids("--since", "2020-01-01")) == 68
    assert ids("--since", "2220-01-01") == []
    assert "--since must be" in desk("list", "--since", "soon", code=None).err
    first = desk("list", "--limit", "2")
    cursor = first.err.split()[-1]
    assert ids("--limit", "1", "--cursor", cursor) == [desk.ids["cancelled"]]


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "LANG": "C", "LC_ALL": "C"}, {}])
def test_on_a_terminal_what_matters_is_on_top_and_it_fits(desk, columns, env):
    shown = on_terminal(desk, columns, **env)
    assert ("\x1b" not in shown) is ("NO_COLOR" in env)
    for code in ("0", "1", "1;33", "31", "32", "33", "36", "90"):
        shown = shown.replace(f"\x1b[{code}m", "")
    *lines, last = shown.splitlines()
    assert max(map(len, lines)) <= columns
    agent = ["AGENT"] if columns >= 72 else []
    assert lines[0].split() == ["ID", "STATE", "AGE", *agent, "QUEUE", "TITLE", "REASON"]
    top = [line.split()[0] for line in lines[1:7]]
    names = ("disputed", "waiting", "starting", "working", "failed", "done")
    assert top == [desk.ids[name] for name in names]
    assert [line.split()[1] for line in lines[1:7]] == [
        "disputed", "waiting", "starting", "working", "failed", "done"
    ]  # fmt: skip
    assert len(lines) == 51
    assert "--cursor" in last
    assert "The notes" in lines[6]
    if columns == 200:
        assert "may I push?" in lines[2]


def test_the_next_page_begins_where_the_first_ended(desk):
    first = on_terminal(desk, 80, NO_COLOR="1").splitlines()
    second = on_terminal(desk, 80, "--cursor", first[-1].split()[-1], NO_COLOR="1").splitlines()
    shown = [line.split()[0] for line in (*first[1:-1], *second[1:])]
    assert set(shown) == set(desk.ids.values())
    unsorted = {desk.ids[name] for name in ("failed", "done", "working", "waiting", "starting")}
    assert {each for each in shown if shown.count(each) > 1} <= unsorted, "only those that were put on top come again"


def test_past_its_lease_the_activity_is_unknown():
    job = new_job("x", now_ns=1, agent="shell").replace(status=Status.RUNNING, lease_expires_at="2026-01-01T00:00:00Z")
    outline = Outline.of(job, EventName.STARTED)
    assert activity_of(outline, now_ns=outline.lease_expires_ns) == "working"
    assert activity_of(outline, now_ns=outline.lease_expires_ns + 1) == "unknown"


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_needs_me_reads_no_old_job(tmp_path, kind):
    baton = Baton(tmp_path, BATON_REGISTRY=f"{kind}:{tmp_path}/registry")
    jobs = [baton("register", "x", "--agent", "shell").text for _ in range(3)]
    with open_jobs(settings_in(tmp_path, baton.env)) as opened:
        opened.registry.record_event(jobs[0], EventName.COMPLETED)
        if kind == "file":
            opened.registry.refresh_index()
            os.truncate(tmp_path / "registry" / f"{jobs[1]}.json", 0)  # a record that cannot be read
            opened.registry.stamp.set()
    needed = baton("list", "--needs-me", "--columns", "id")
    assert (needed.text, needed.err) == (jobs[0], "")
    if kind == "file":
        assert "skipped" in baton("list").err
        return
    with open_jobs(settings_in(tmp_path, baton.env)) as opened, opened.registry._reading() as tx:
        statements = []
        tx.raw.set_trace_callback(statements.append)
        tx.outlines(JobFilter(unseen=True), 50, None, opened.registry._is_past)
        tx.raw.set_trace_callback(None)
        plan = str(tx.rows(f"EXPLAIN QUERY PLAN {statements[0]}"))
        assert "USING INDEX jobs_unseen" in plan
        assert "TEMP B-TREE" not in plan


class TestAllHomes:
    @pytest.fixture
    def user(self, tmp_path):
        def at(name):
            folder = tmp_path / name
            folder.mkdir()
            return Baton(folder, HOME=str(tmp_path), BATON_AGENT="shell")

        return at

    def test_every_line_says_its_folder_and_a_home_that_cannot_be_read_is_named(self, user, tmp_path):
        shop, blog, bad = user("shop"), user("blog"), user("bad")
        one, two = shop("register", "first").text, blog("register", "second").text
        bad("register", "x")
        database = pathlib.Path(os.path.realpath(bad.folder / ".hermes"), "jobs", "registry.db")
        database.write_text("no database")
        listed = shop("list", "--all-homes")
        rows = [line.split("\t") for line in listed.out.splitlines()]
        assert [(row[0], row[9]) for row in rows] == [(two, str(blog.folder)), (one, str(shop.folder))]
        assert f"skipped {bad.folder}: " in listed.err
        assert listed.err.count("\n") == 1
        assert [(job["job_id"], job["folder"]) for job in blog("list", "--all-homes", "--json").json] == [
            (two, str(blog.folder)), (one, str(shop.folder)),
        ]  # fmt: skip
        first = blog("list", "--all-homes", "--limit", "1", "--columns", "id")
        assert first.text == two
        cursor = first.err.split()[-1]
        assert blog("list", "--all-homes", "--cursor", cursor, "--columns", "id").text == one
        shown = on_terminal(shop, 120, "--all-homes", NO_COLOR="1")
        assert "~/blog" in shown
        assert "FOLDER" in shown

    def test_one_registry_of_several_homes_is_read_once(self, user, tmp_path):
        shop, blog = user("shop"), user("blog")
        shop("register", "x"), blog("register", "y")
        shared = {"BATON_REGISTRY": f"sqlite:{tmp_path}/shared.db"}
        job = shop("register", "z", **shared).text
        assert blog("list", "--all-homes", "--columns", "id", **shared).text == job

    def test_a_home_that_is_gone_is_named_and_an_own_registry_is_refused(self, user):
        shop, blog = user("shop"), user("blog")
        shop("register", "x")
        blog("register", "y")
        home = os.path.realpath(blog.folder / ".hermes")
        os.rename(home, f"{home}.away")
        listed = shop("list", "--all-homes")
        assert len(listed.out.splitlines()) == 1
        assert f"skipped {blog.folder}: its home {home} is gone" in listed.err
        for option in (["--registry", "sqlite:x"], ["--registry-dir", "x"], ["--home", "./x"]):
            shop.refused("list", "--all-homes", *option, code=64)


@pytest.mark.parametrize(
    "command", ["list", "list --json", "--help", "submit --help", "config show", "logs --list", "doctor --json"]
)
def test_a_reader_that_has_read_enough_is_no_error(desk, command):
    """The reader is gone before the first byte: every command that prints ends quietly with 0."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"sleep 0.3 | {{ exec 0<&-; {BATON} {command}; }} | true"],
        cwd=desk.folder, env=desk.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_help_is_as_wide_as_the_terminal(desk):
    for words in (["--help"], ["submit", "--help"], ["session", "create", "--help"]):
        with Terminal([BATON, *words], cwd=str(desk.folder), env=desk.env) as shown:  # of 100 columns
            assert shown.end() == 0
            wide = shown.shown.decode().splitlines()
        with Terminal([BATON, *words], cwd=str(desk.folder), env=desk.env | {"COLUMNS": "60"}) as shown:
            shown.end()
            narrow = shown.shown.decode().splitlines()
        assert 80 < max(map(len, wide)) <= 100
        assert max(map(len, narrow)) <= 60
        assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(wide).split())


def test_json_is_as_it_was(desk):
    records = json.loads(desk("list", "--json", "--limit", "2").out)
    assert [record["job_id"] for record in records] == [desk.ids["queued"], desk.ids["disputed"]]
    assert "folder" not in records[0]
