"""The first characters of a job id are enough, in every verb that takes one; several jobs in one command."""

from __future__ import annotations

import pytest

from baton.core.drafts import new_job
from baton.registry.sqlite import SqliteRegistry
from support.command import BATON, Baton
from support.homes import home_of
from support.terminal import Terminal

ONE, TWO, THREE = "abcd1111", "abcd2222", "00ff3333"


@pytest.fixture
def baton(tmp_path):
    """The command, in a folder with three jobs: the ids of two begin alike."""
    baton = Baton(tmp_path, MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    baton("cancel", baton("register", "x").text)
    add(tmp_path, ONE, "the first")
    add(tmp_path, TWO, "the second", title="fix it")
    add(tmp_path, THREE, "the third")
    return baton


def add(folder, job_id, prompt, **fields):
    registry = SqliteRegistry(f"{home_of(folder)}/jobs/registry.db")
    title = fields.pop("title", None)
    job = new_job(prompt, now_ns=2**60, agent="shell", agent_session="q", **fields)
    registry.register_job(job.replace(job_id=job_id, topic_prefix=f"python/mqtt/jobs/{job_id}", title=title))
    registry.close()


def test_the_beginning_of_an_id_names_a_job(baton):
    assert baton("get", "abcd1").json["job_id"] == ONE
    assert baton("get", "--job", "00ff").json["job_id"] == THREE
    assert baton("status", "abcd2").text == "pending"
    assert baton("publish", "00ff", "--event", "started", "--attempts", "1").json["job_id"] == THREE
    assert baton("renew", "00ff", "--attempt", "1", "--lease", "60", "--json").json["job_id"] == THREE
    assert baton("release", "00ff").text == "pending"
    assert baton("subscribe", "--job", "00ff3", "--timeout", "0.1", code=2).out.count(THREE) == 2
    assert baton("cancel", "00ff").text == "cancelled"
    ended = baton("wait", "00ff33", "--json", code=4).json
    assert (ended["job_id"], ended["status"]) == (THREE, "cancelled")
    assert baton("logs", "00ff", "--tail", "1").out.endswith("→ cancelled  attempt 1\n")
    assert "unbroken" in baton("logs", "00ff", "--verify").out
    assert baton("retry", "00ff", "--detach", "--json").json["job_id"] != THREE
    assert f"job {THREE} was cancelled" in baton.refused("attach", "00ff")


def test_what_begins_several_ids_names_them_all(baton):
    for verb in (["get"], ["status"], ["cancel"], ["wait"], ["attach"], ["publish", "--event", "started"]):
        said = baton.refused(verb[0], "abcd", *verb[1:])
        assert f"{ONE} (pending, the first), {TWO} (pending, fix it)" in said
        assert "type more characters" in said
    assert baton("list", "--status", "pending").out.count("abcd") == 2


def test_what_begins_no_id_or_cannot_begin_one_is_refused(baton, tmp_path):
    """The message names the folder; the registry only if the user has named it."""
    hint = "`baton list` shows all jobs, with --all-homes also those of other folders"
    url = f"sqlite:{home_of(tmp_path)}/jobs/registry.db"
    for typed in ("ffff", "ffffffff"):
        assert baton.refused("get", typed) == f"baton: no job {typed} in {tmp_path}; {hint}\n"
        assert f"no job {typed} in {url}; " in baton.refused("get", typed, "--registry", url)
    assert f"no request ffff in {tmp_path}; " in baton.refused("approve", "ffff")
    for wrong in ("abc", "../abcd1111", "ABCD", "", "abcd*"):
        assert "job id must be" in baton("get", wrong, code=None).err


def test_the_beginning_of_a_longer_id_may_be_as_long_as_an_id(baton, tmp_path):
    add(tmp_path, "1234567890abcdef", "long")
    assert baton("get", "12345678").json["job_id"] == "1234567890abcdef"
    assert baton("cancel", "1234567890").text == "cancelled"
    assert "no job 123456789f" in baton.refused("get", "123456789f")


def test_a_log_of_a_job_that_was_pruned_is_found_by_the_beginning_of_its_id(baton):
    baton("cancel", "00ff")
    baton("registry", "prune", "--older-than", "0s")
    assert "cancelled" in baton("logs", "00ff").out
    assert "no audit log of job ffff" in baton.refused("logs", "ffff")


class TestSeveralJobs:
    def test_get_prints_an_array_of_several_and_the_object_of_one(self, baton):
        assert [job["job_id"] for job in baton("get", "abcd2", THREE, "--job", ONE).json] == [TWO, THREE, ONE]
        assert baton("get", ONE, ONE).json["job_id"] == ONE

    def test_each_gets_its_line(self, baton):
        assert baton("status", ONE, "00ff").out == f"{ONE} pending\n{THREE} pending\n"
        assert baton("status", ONE, THREE, "--set", "running").out == f"{ONE} running\n{THREE} running\n"
        assert baton("release", ONE, THREE).out == f"{ONE} pending\n{THREE} pending\n"
        assert baton("cancel", ONE, THREE).out == f"{ONE} cancelled\n{THREE} cancelled\n"
        waited = baton("wait", ONE, THREE, code=4).out
        assert [line.split("\t")[:2] for line in waited.splitlines()] == [[ONE, "cancelled"], [THREE, "cancelled"]]
        assert [job["status"] for job in baton("status", ONE, TWO, "--json").json] == ["cancelled", "pending"]
        logs = baton("logs", ONE, "00ff").out
        assert [logs.count(ONE), logs.count(THREE), logs.count("cancelled")] == [4, 4, 2]
        assert baton("logs", ONE, THREE, "--verify").out.count("unbroken") == 2

    def test_one_that_fails_does_not_keep_the_others_from_being_done(self, baton):
        done = baton("cancel", ONE, "ffff", "abcd2", "nonsense", code=1)
        assert done.out == f"{ONE} cancelled\n{TWO} cancelled\n"
        assert [line[:16] for line in done.err.splitlines()] == ["baton: no job ff", "baton: job id mu"]
        again = baton("status", ONE, TWO, THREE, "--set", "running", code=1)
        assert again.out == f"{THREE} running\n"
        assert again.err.count("is cancelled already and cannot be started") == 2
        assert [job["job_id"] for job in baton("get", "ffff", THREE, code=1).json] == [THREE]
        assert baton("get", "ffff", "fffe", code=1).json == []
        waited = baton("wait", "ffff", ONE, code=1)
        assert waited.out.startswith(f"{ONE}\tcancelled\tcancelled by ")
        assert waited.out.count("\n") == 1
        missing, ended = waited.err.splitlines()
        assert missing.startswith("baton: no job ffff")
        assert ended.startswith(f"job {ONE} cancelled: cancelled by ")
        logs = baton("logs", "ffff", ONE, code=1)
        assert logs.out.startswith(f"{ONE}  ")
        assert "no audit log of job ffff" in logs.err

    def test_retry_takes_several_and_all_that_failed(self, baton):
        for job in (ONE, TWO, THREE):
            baton("status", job, "--set", "running")
        baton("status", ONE, THREE, "--set", "error")
        done = baton("retry", ONE, TWO, "ffff", "--detach", code=1)
        assert len(done.out.split()) == 1
        assert "two agents would do the same work" in done.err
        assert "no job ffff" in done.err
        assert f"  {THREE}  error" in baton("retry", "--all", "--detach", code=1).err
        (again,) = baton("retry", "--all", "--yes", "--detach").out.split()
        assert baton("get", again).json["retry_of"] == THREE
        assert "no jobs to retry" in baton("retry", "--all", "--yes").err
        assert len(baton("retry", "--all", "--yes", "--status", "cancelled", "--detach").out.split()) == 1
        assert "give both" in baton.refused("retry", ONE, "--status", "error", code=64)

    def test_all_need_an_answer_or_yes(self, baton):
        said = baton("cancel", "--all", code=1)
        assert said.out == ""
        assert f"  {TWO}  pending    fix it" in said.err
        assert "nothing was changed: answer on a terminal, or add --yes" in said.err
        assert "either job IDs or --all" in baton.refused("cancel", "--all", ONE, code=64)
        assert baton("cancel", "--all", "--yes").out.count("cancelled") == 3
        assert "no jobs to cancel" in baton("cancel", "--all", "--yes").err

    @pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
    def test_all_are_named_on_a_terminal_with_a_question(self, baton, tmp_path, answer, code):
        with Terminal([BATON, "cancel", "--all"], cwd=tmp_path, env=baton.env) as terminal:
            terminal.see(f"{ONE}  pending")
            terminal.see("cancel 3 jobs? [y/N]")
            terminal.type(answer + "\r")
            assert terminal.end() == code
        assert baton("status", ONE).text == ("cancelled" if code == 0 else "pending")
