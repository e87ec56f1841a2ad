"""`baton monitor --all-homes`: one monitor for every folder of the user."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess

import pytest

from support.command import BATON, Baton
from support.waiting import wait_until

NUMBERS = itertools.count()


@pytest.fixture
def user(tmp_path):
    def at(name):
        folder = tmp_path / name
        folder.mkdir()
        return Baton(folder, HOME=str(tmp_path), BATON_AGENT="shell")

    return at


def with_expired_lease(baton) -> str:
    queue = f"q{next(NUMBERS)}"
    job = baton("register", "x", "--max-attempts", "2", "--queue", queue).text
    assert baton("pick", "--lease", "0.05", "--queue", queue).text == job
    return job


class Watching:
    """A monitor that runs until the block ends."""

    def __init__(self, baton, *options: str) -> None:
        self._process = subprocess.Popen(
            [BATON, "monitor", "--interval", "0.05", *options],
            cwd=baton.folder, env=baton.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def line(self) -> str:
        return self._process.stderr.readline()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.communicate()


def is_pending(baton, job: str) -> bool:
    return baton("status", job).text == "pending"


def test_one_sweep_looks_after_every_folder_and_names_a_home_that_cannot_be_read(user):
    shop, blog, bad = user("shop"), user("blog"), user("bad")
    jobs = {str(each.folder): with_expired_lease(each) for each in (shop, blog)}
    bad("register", "x")
    with open(os.path.join(os.path.realpath(bad.folder / ".hermes"), "jobs", "registry.db"), "w") as file:
        file.write("no database")
    planned = shop("monitor", "--all-homes", "--once", "--dry-run", "--json", code=1)
    found = [json.loads(line) for line in planned.out.splitlines()]
    assert {(each["folder"], each["what"]) for each in found if each["done"]} == {
        (folder, f"job {job}") for folder, job in jobs.items()
    }
    assert str(bad.folder) in planned.out + planned.err
    assert shop("status", jobs[str(shop.folder)]).text == "running"
    swept = shop("monitor", "--all-homes", "--once", code=1)
    for folder, job in jobs.items():
        assert any(folder in line and job in line for line in swept.out.splitlines()), swept
    assert is_pending(shop, jobs[str(shop.folder)])
    assert is_pending(blog, jobs[str(blog.folder)])


def test_it_goes_on_with_folders_that_come_later_and_stands_by_where_another_monitor_is_at_work(user, tmp_path):
    shop, blog = user("shop"), user("blog")
    shop("register", "x")
    blog("register", "x")
    with Watching(blog) as other:
        assert "watching" in other.line()
        with Watching(shop, "--all-homes") as every:
            lines = [every.line(), every.line()]
            assert any("every 0.05 s" in line for line in lines), lines
            assert any(f"another monitor is at work in {blog.folder}" in line for line in lines), lines
            later = user("later")
            job = with_expired_lease(later)
            wait_until(lambda: is_pending(later, job), "the new folder")
            assert other.stop() == 0
            job = with_expired_lease(blog)
            wait_until(lambda: is_pending(blog, job), "the folder of the other monitor")
            assert every.stop() == 0


def test_the_monitor_of_all_homes_is_the_monitor_of_each(user):
    shop = user("shop")
    shop("register", "x")
    with Watching(shop, "--all-homes") as every:
        assert "every 0.05 s" in every.line()
        assert "ok monitor: running" in " ".join(shop("doctor", code=None).out.split())
        with Watching(shop) as one, Watching(shop, "--all-homes") as second:
            assert "another monitor is at work here; standing by" in one.line()
            assert "another monitor is at work in all homes; standing by" in second.line()
            assert every.stop() == 0
            assert "watching every home" in second.line()


def test_a_registry_that_moves_and_a_home_that_goes_away_do_not_end_it(user):
    shop, blog = user("shop"), user("blog")
    blog("register", "x")
    shop("register", "x")
    with Watching(shop, "--all-homes") as every:
        assert "watching" in every.line()
        blog("registry", "migrate", "--to", f"file:{blog.folder}/elsewhere")
        job = with_expired_lease(blog)
        wait_until(lambda: is_pending(blog, job), "the registry at its new place")
        blog("trust", "--remove", str(blog.folder))
        job = with_expired_lease(shop)
        wait_until(lambda: is_pending(shop, job), "the other folder")
        assert every.stop() == 0


def test_an_option_for_one_home_is_refused(user):
    shop = user("shop")
    assert "leave out --registry" in shop.refused(
        "monitor", "--all-homes", "--registry", f"sqlite:{shop.folder}/r.db", code=64
    )
