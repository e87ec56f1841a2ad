"""A fork closes every SQLite connection of the process first: SQLite counts its locks by process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from baton.core.drafts import new_job
from baton.core.event import EventName
from baton.registry import open_url
from baton.storage.files import LOCK_TIMEOUT_SEC, FileLock


@pytest.fixture
def registry(tmp_path):
    registry = open_url(f"sqlite:{tmp_path}/registry.db")
    yield registry
    registry.close()


@pytest.fixture
def unraisable(monkeypatch):
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: found.append(repr(each.exc_value)))
    return found


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_one_thread_forks_while_another_has_the_registry_open(registry, unraisable):
    job = registry.register_job(new_job("x", now_ns=1, agent="a"))
    opened, forked = threading.Event(), threading.Event()
    seqs = []

    def use():
        with_own = open_url(registry.url)
        seqs.append(with_own.record_event(job.job_id, EventName.STARTED).event.seq)
        opened.set()
        assert forked.wait(30)
        seqs.append(with_own.record_event(job.job_id, EventName.PROGRESS).event.seq)
        with_own.close()

    thread = threading.Thread(target=use)
    thread.start()
    assert opened.wait(30)
    fork()
    forked.set()
    thread.join()
    assert unraisable == []
    assert seqs == [1, 2]


def test_a_process_that_ends_does_not_wait_for_the_lock(registry):
    """At the end of a process no thread runs that could wait for it."""
    registry.register_job(new_job("x", now_ns=1, agent="a"))
    script = "import sys\nfrom baton.registry import open_url\nregistry = open_url(sys.argv[1])\n"
    script += "registry.prune(1)\nprint('open', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", script, registry.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        with FileLock(registry.lock_path):
            process.stdin.close()
            assert process.wait(LOCK_TIMEOUT_SEC / 2) == 0


def test_a_forgotten_connection_does_not_wait_for_the_lock_of_its_own_thread(registry):
    registry.register_job(new_job("x", now_ns=1, agent="a"))
    forgotten = open_url(registry.url)
    forgotten.prune(1)
    began = time.monotonic()
    with FileLock(registry.lock_path):
        del forgotten
        gc.collect()
    assert time.monotonic() - began < LOCK_TIMEOUT_SEC / 2


def test_a_fork_waits_for_the_transaction_of_another_thread(registry, unraisable):
    begun, may_end = threading.Event(), threading.Event()

    def jobs():
        yield new_job("first", now_ns=1, agent="a")
        begun.set()
        assert may_end.wait(30)
        yield new_job("second", now_ns=2, agent="a")

    registered = []
    thread = threading.Thread(target=lambda: registered.extend(registry.register_many(jobs())))
    thread.start()
    assert begun.wait(30)
    threading.Timer(0.2, may_end.set).start()
    fork()
    thread.join()
    assert unraisable == []
    assert [registry.get_job(job.job_id).prompt for job in registered] == ["first", "second"]
