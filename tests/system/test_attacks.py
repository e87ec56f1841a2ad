"""Faults that somebody found who tried hard. Each stays found."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
import time

import psycopg
import pytest

import baton as api
from baton.config import Settings
from baton.core.drafts import new_job
from baton.core.errors import InvalidRecord, MigrationFailed, RegistryUnavailable
from baton.core.job import Job, Status
from baton.history.log import append_event, iter_logged_events, list_logged_jobs
from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from baton.registry import open_url
from baton.registry.migrate import migrate
from baton.storage.files import FileLock
from support.command import Baton
from support.waiting import wait_until
from unit.test_model import SEED_RECORD

NOW = 1_800_000_000 * 10**9


def draft(prompt="x", **more):
    return new_job(prompt, now_ns=time.time_ns(), agent="a", **more)


class TestStores:
    def test_a_fork_with_an_open_registry_loses_nothing(self, url):
        registry = open_url(url)
        registry.register_job(draft("before"))
        child = os.fork()
        if child == 0:
            try:
                own = open_url(url)
                for number in range(5):
                    own.register_job(draft(f"child {number}"))
                own.close()
            finally:
                os._exit(0)
        registry.close()
        assert os.waitpid(child, 0)[1] == 0
        for number in range(5):
            registry.register_job(draft(f"parent {number}"))
        assert registry.stats()["pending"] == 11
        registry.close()

    def test_odd_things_in_place_of_records(self, tmp_path):
        registry = open_url(f"file:{tmp_path}")
        job = registry.register_job(draft())
        os.mkdir(tmp_path / "abcdef01.json")
        os.mkfifo(tmp_path / "abcdef02.json")
        os.symlink("abcdef03.json", tmp_path / "abcdef03.json")
        (tmp_path / "abcdef04.json").write_text(json.dumps(SEED_RECORD | {"job_id": "abcdef04", "x": "\ud800"}))
        (tmp_path / "abcdef05.json").write_text(json.dumps(SEED_RECORD | {"job_id": "abcdef05", "x": float("nan")}))
        (tmp_path / "abcdef06.json").write_text(
            json.dumps(SEED_RECORD | {"job_id": "abcdef06", "lease_mark": "b/soon"})
        )
        page = registry.list_jobs()
        assert [each.job_id for each in page] == [job.job_id]
        assert sorted(error.job_id for error in page.bad) == [f"abcdef0{n}" for n in range(1, 7)]
        assert registry.pick_pending("tmux:a", holder="me").after.job_id == job.job_id
        assert registry.expire_leases() == []

    def test_a_time_out_beyond_all_calendars_is_refused(self, tmp_path):
        assert "--timeout" in Baton(tmp_path).refused("register", "x", "--timeout", "9999999999", code=64)
        with pytest.raises(InvalidRecord, match="timeout_sec"):
            Job.parse(SEED_RECORD | {"timeout_sec": 10**11})

    def test_a_lock_that_somebody_removed_is_no_lock(self, tmp_path):
        path = tmp_path / ".lock"
        with FileLock(str(path)):
            path.unlink()
            with FileLock(str(path), timeout_sec=1):
                assert path.exists()

    def test_a_registry_does_not_follow_chdir(self, tmp_path, monkeypatch):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with open_jobs(Settings(env={"HOME": str(tmp_path)})) as jobs:
            jobs.register_job("x")
            monkeypatch.chdir(tmp_path / "elsewhere")
            jobs.register_job("y")
            assert jobs.stats()["pending"] == 2
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_record_that_came_during_a_verb_is_found_after_a_listing(self, tmp_path):
        registry = open_url(f"file:{tmp_path}")
        registry.register_job(draft())
        registry.pick_pending("tmux:a", holder="me")
        moment = os.stat(tmp_path).st_mtime_ns
        (tmp_path / "abc12345.json").write_text(json.dumps(SEED_RECORD))
        os.utime(tmp_path, ns=(moment, moment))  # as if a verb of ours had ended just after
        assert registry.pick_pending("tmux:claude", holder="me") is None
        registry.list_jobs()
        assert registry.pick_pending("tmux:claude", holder="me").after.job_id == "abc12345"

    def test_marking_what_is_not_there_yet_marks_nothing(self, registry):
        job = registry.register_job(draft())
        registry.record_event(job.job_id, api.EventName.STARTED)
        registry.mark_sent(job.job_id, [1, 2])
        registry.record_event(job.job_id, api.EventName.COMPLETED)
        assert [event.seq for event in registry.unsent_events()] == [2]

    def test_a_disk_that_cannot_be_read_is_what_is_complained_about(self, tmp_path):
        registry = open_url(f"sqlite:{tmp_path}/registry.db")
        registry.register_job(draft())
        with pytest.raises(RegistryUnavailable, match="disk I/O error"), registry._reading() as tx:
            tx.raw.execute("ROLLBACK")  # as SQLite does then
            raise sqlite3.OperationalError("disk I/O error")
        assert registry.stats()["pending"] == 1
        registry.close()

    def test_a_reader_without_rights_sees_what_is_there_now(self, tmp_path):
        registry = open_url(f"sqlite:{tmp_path}/registry.db")
        job = registry.register_job(draft())
        registry.close()
        reader = open_url(f"sqlite:{tmp_path}/registry.db")
        real = reader._file._connect
        reader._file._connect = lambda options: real("mode=ro&immutable=1") if "immutable" in options else _refusing()
        assert reader.get_job(job.job_id).status is Status.PENDING
        registry.update_status(job.job_id, Status.CANCELLED)
        registry.close()
        assert reader.get_job(job.job_id).status is Status.CANCELLED
        assert reader.stats()["cancelled"] == 1

    def test_an_interrupted_migration_does_not_undo_what_came_after(self, tmp_path):
        source, target = open_url(f"file:{tmp_path}/a"), open_url(f"sqlite:{tmp_path}/b/registry.db")
        job = source.register_job(draft())
        target.import_entries(list(source.export()))
        target.update_status(job.job_id, Status.CANCELLED)
        with pytest.raises(MigrationFailed, match="already holds"):
            migrate(source, target)
        assert target.get_job(job.job_id).status is Status.CANCELLED
        target.close()


def _refusing():
    class Refusing:
        def execute(self, _statement):
            raise sqlite3.OperationalError("unable to open database file")

        def close(self):
            pass

    return Refusing()


class TestPostgres:
    def test_strangers_in_the_schema_are_not_dropped(self, tmp_path, postgres):
        source = open_url(f"file:{tmp_path}")
        source.register_job(draft())
        url = postgres.new_url()
        target = open_url(url)
        target.stats()
        schema = url.rpartition("schema=")[2]
        with psycopg.connect(postgres.url, autocommit=True) as raw:
            raw.execute(f"CREATE TABLE {schema}.customers (name text)")
        with pytest.raises(MigrationFailed, match="customers"):
            migrate(source, target)
        with psycopg.connect(postgres.url) as raw:
            raw.execute(f"SELECT * FROM {schema}.customers")
        assert source.stats()["pending"] == 1
        target.close()

    def test_the_public_schema_is_refused(self, postgres):
        with pytest.raises(api.InvalidValue, match="schema"):
            open_url(postgres.url + "&schema=public")

    @pytest.mark.parametrize("login", ["u:p@ssWORD1", "u:ssWORD1%", "u@corp:ssWORD1"])
    def test_no_error_shows_a_piece_of_the_password(self, login):
        with pytest.raises((RegistryUnavailable, api.InvalidValue)) as error:
            open_url(f"postgresql://{login}@127.0.0.1:1/x").stats()
        assert "ssWORD1" not in str(error.value)


class TestAuditLog:
    def test_registering_and_picking_at_once_is_no_tampering(self, tmp_path):
        settings = Settings({"home": str(tmp_path / "h")}, {"HOME": str(tmp_path)})
        done = threading.Event()

        def pick():
            with open_jobs(settings) as jobs:
                while not done.is_set():
                    jobs.pick_pending("tmux:a")

        pickers = [threading.Thread(target=pick) for _ in range(3)]
        for picker in pickers:
            picker.start()
        with open_jobs(settings) as jobs:
            for _ in range(40):
                jobs.register_job("x", agent="a")
            wait_until(lambda: not jobs.stats()["pending"])
        done.set()
        for picker in pickers:
            picker.join()
        for job_id in list_logged_jobs(settings.logs_dir):
            assert verify_log(job_id, settings.logs_dir).damage == []
            lines = list(iter_logged_events(job_id, settings.logs_dir))
            assert [line["event"] for line in lines] == ["registered", "status_changed"]

    def test_verifying_while_somebody_appends_is_no_tampering(self, tmp_path):
        logs_dir = str(tmp_path)
        append_event("abc12345", {"event": "received"}, now_ns=NOW, logs_dir=logs_dir)
        done = threading.Event()

        def append():
            while not done.is_set():
                append_event("abc12345", {"event": "received"}, now_ns=NOW, logs_dir=logs_dir)

        appender = threading.Thread(target=append)
        appender.start()
        try:
            for _ in range(200):
                assert verify_log("abc12345", logs_dir).damage == []
        finally:
            done.set()
            appender.join()

    def test_a_line_that_comes_late_does_not_bring_a_job_back(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        job = api.register_job("x", agent="a")
        with api.open_jobs() as first, api.open_jobs() as second:
            real = first.history.add_change

            def slow(before, after, reason=None):
                second.update_status(job.job_id, "cancelled")
                real(before, after, reason)

            first.history.add_change = slow
            first.pick_pending("tmux:a")
        assert api.read_logged_status(job.job_id) == "cancelled"
        assert api.verify_log(job.job_id).damage == []

    def test_a_status_from_before_the_first_line_is_forged(self, tmp_path):
        logs_dir = str(tmp_path)
        append_event("abc12345", {"event": "received"}, now_ns=NOW, logs_dir=logs_dir)
        path = tmp_path / "abc12345" / "status.json"
        path.write_text(json.dumps({"status": "completed", "updated_at": "x", "n": 0, "head": "0" * 64}))
        assert verify_log("abc12345", logs_dir).damage

    def test_a_log_without_its_first_line_is_only_noted(self, tmp_path):
        folder = tmp_path / "abc12345"
        folder.mkdir()
        (folder / "events.ndjson").touch()
        verdict = verify_log("abc12345", str(tmp_path))
        assert (verdict.damage, len(verdict.notes)) == ([], 1)

    def test_an_id_whose_log_is_still_there_is_not_given_out_again(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        job = api.register_job("x")
        api.update_status(job.job_id, "cancelled")
        with api.open_jobs() as jobs:
            jobs.prune(time.time_ns())
            again = jobs.register_many([job.replace(status=Status.PENDING)])[0]
        assert again.job_id != job.job_id


class TestCommandLine:
    @pytest.fixture
    def baton(self, tmp_path):
        return Baton(tmp_path)

    def test_an_empty_id_is_not_the_job_of_the_environment(self, baton):
        job = baton("register", "x").text
        assert "job id" in baton.refused("cancel", "", code=64, BATON_JOB_ID=job)
        assert baton("status", BATON_JOB_ID=job).text == "pending"

    def test_debug_changes_no_exit_code(self, baton):
        assert "Traceback" in baton("pick", "--debug", code=3).err
        assert "Traceback" in baton("get", "--debug", code=64).err

    @pytest.mark.parametrize(
        "arguments",
        [["list", "--after", "9" * 40 + "-abc12345"], ["list", "--newer-than", "999999999w"],
         ["registry", "prune", "--older-than", "999999999w"], ["release", "abc12345", "--reason", "\udcff"]],
    )  # fmt: skip
    def test_large_and_odd_values_get_a_plain_answer(self, baton, arguments):
        assert "unexpected" not in baton.refused(*arguments, code=64)

    def test_nothing_a_stranger_wrote_acts_on_the_terminal(self, baton, tmp_path):
        job = baton("register", "a \x1b[31m\u202e\x9b31m b").text
        (tmp_path / ".hermes" / "baton.toml").write_text('agent = "\\u001b[31mevil\\u202e"\n')
        log = tmp_path / ".hermes" / "delegate_job_logs" / job / "events.ndjson"
        outputs = [baton("config", "show").out, baton("get", job).out, baton("list").out, baton("list", "--json").out]
        log.write_text(json.dumps({"n": 1, "event": "damaged", "detail": "\x1b[31m\u202e", "ts": "\x1b"}) + "\n")
        (tmp_path / ".hermes" / "delegate_job_logs" / job / "status.json").write_text('{"status": "\\u001b[31m"}')
        outputs += [baton("logs", job).out, baton("logs", job, "--json").out, baton("logs", "--list").out]
        outputs += [baton("logs", job, "--verify", code=1).err, baton("doctor", code=None).out]
        (tmp_path / ".hermes" / "baton.toml").write_text('"\\u001b[31mevil" = 1\n')
        outputs.append(baton("list", code=64).err)
        for output in outputs:
            assert not set("\x1b\x9b\u202e") & set(output)

    def test_a_folder_that_is_gone(self, tmp_path):
        (tmp_path / "gone").mkdir()
        done = subprocess.run(
            'cd gone && rmdir ../gone && "$0" register x', shell=True, executable="/bin/bash", cwd=tmp_path,
            env=Baton(tmp_path).env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
