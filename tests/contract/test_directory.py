"""What a directory of live agents does, on files and on PostgreSQL. The names of the tests below "stale" follow the
seed's list."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from baton.core.errors import AgentNotFound, AgentTaken, InvalidValue, OwnershipLost, RegistryUnavailable, RemoteAgent
from baton.live_agents import ownership
from baton.live_agents.files import FileDirectory
from baton.live_agents.names import Names, derived_id
from baton.live_agents.postgres import PostgresDirectory
from baton.live_agents.record import State, new_record
from baton.live_agents.resolve import Reason, resolve
from baton.registry.postgres import PostgresRegistry
from baton.sessions.live_agents import Action, Observer, cleanup_entries, control_target
from support.open_files import no_more_files

HOUR = 3600 * 10**9
DAY = 24 * HOUR


class Store:
    """A directory, and how to damage it."""

    def __init__(self, kind, tmp_path, request):
        self.kind = kind
        if kind == "files":
            self.folder = str(tmp_path / "registry")
            self.directory = FileDirectory(self.folder)
        else:
            self.url = request.getfixturevalue("postgres").new_url()
            self.directory = PostgresDirectory(self.url)

    def another(self):
        return FileDirectory(self.folder) if self.kind == "files" else PostgresDirectory(self.url)

    def write(self, agent_id, name, content, *, age_sec=0):
        """What somebody else left there."""
        if self.kind == "files":
            folder = os.path.join(self.folder, "live_agents", agent_id)
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, "record.json")
            with open(path, "wb") as file:
                file.write(content)
            then = os.stat(path).st_mtime - age_sec
            os.utime(path, (then, then))
        else:
            with self.directory.locked(agent_id):
                pass  # makes the tables
            touched = self.directory.now_ns() - int(age_sec * 10**9)
            self.directory._database.connection().execute(
                "INSERT INTO live_agents VALUES (%s, %s, %s, %s) ON CONFLICT (agent_id) DO UPDATE"
                " SET agent_name = excluded.agent_name, touched_at = excluded.touched_at, record = excluded.record",
                [agent_id, name, touched, content.decode()],
            )


@pytest.fixture(params=["files", "postgresql"])
def store(request, tmp_path):
    store = Store(request.param, tmp_path, request)
    yield store
    store.directory.close()


@pytest.fixture
def directory(store):
    return store.directory


def record(directory, name="gpu", generation="g1", *, agent_id=None, age_ns=0, lease_ns=DAY, session="s1"):
    canonical = Names().canonical(name)
    return new_record(
        canonical,
        agent_id or derived_id(canonical),
        generation,
        now_ns=directory.now_ns() - age_ns,
        lease_ns=lease_ns,
        tool="shell",
        manifest_path="/nowhere/manifest.json",
        session_name=session,
        socket="/nowhere/socket",
        host="here",
    )


def plant(directory, record):
    """Puts a record there as it is, whether it may be published or not."""
    with directory.locked(record.agent_id) as entry:
        directory.put(entry, record)
    return record


def find(directory, wanted):
    return resolve(directory, Names(), wanted)


# -- ownership -------------------------------------------------------------------------------------------------


def test_a_published_record_is_found_by_both_spellings_and_by_its_id(directory):
    published = ownership.publish(directory, record(directory))
    for wanted in ("gpu", "HOUMAO-gpu", published.agent_id):
        assert find(directory, wanted).record == published
    assert directory.get(published.agent_id).record == published


def test_a_fresh_name_is_refused_to_another_generation_and_the_refusal_says_who_owns_it(directory):
    owner = ownership.publish(directory, record(directory))
    with pytest.raises(AgentTaken) as refused:
        ownership.publish(directory, record(directory, generation="g2"))
    assert refused.value.owner == owner
    for part in ("HOUMAO-gpu", "'s1' on here", "generation g1", owner.published_at, owner.lease_expires_at):
        assert part.partition(".")[0] in str(refused.value)
    assert find(directory, "gpu").record == owner


def test_publishing_again_keeps_the_generation_and_the_moment_it_began(directory):
    first = ownership.publish(directory, record(directory))
    again = ownership.publish(directory, record(directory, lease_ns=2 * DAY))
    assert again.published_at == first.published_at
    assert again.lease_expires_at > first.lease_expires_at
    assert find(directory, "gpu").record == again


@pytest.mark.parametrize("change", [{"session_name": "s2"}, {"socket": "/nowhere/else"}, {"host": "there"}])
def test_a_generation_is_one_session_and_no_other_may_publish_with_it(directory, change):
    owner = ownership.publish(directory, record(directory))
    other = record(directory).replace(**change)
    with pytest.raises(AgentTaken, match=r"generation g1.*is one session, this is another"):
        ownership.publish(directory, other)
    assert find(directory, "gpu").record == owner
    ownership.publish(directory, other, takeover=True)
    assert find(directory, "gpu").record.replace(published_at=other.published_at) == other


def test_what_has_expired_already_is_not_published(directory):
    with pytest.raises(InvalidValue, match="lease_expires_at has passed"):
        ownership.publish(directory, record(directory, age_ns=2 * HOUR, lease_ns=HOUR))
    assert list(directory.all()) == []


def test_a_clock_that_was_set_back_stops_no_refresh(directory):
    ahead = plant(directory, record(directory, age_ns=-3 * HOUR))
    renewed = ownership.refresh(directory, ahead.agent_id, "g1", lease_ns=HOUR)
    assert find(directory, "gpu").record == renewed
    assert renewed.published_at < ahead.published_at
    assert ownership.publish(directory, record(directory, lease_ns=HOUR)).agent_id == ahead.agent_id


@pytest.mark.parametrize("lease_ns", [0, -1, 11 * 365 * DAY])
def test_a_lease_that_makes_no_sense_is_refused(directory, lease_ns):
    mine = ownership.publish(directory, record(directory))
    with pytest.raises(InvalidValue, match="lease must be more than 0 and at most 10 years"):
        ownership.refresh(directory, mine.agent_id, "g1", lease_ns=lease_ns)
    assert find(directory, "gpu").record == mine


@pytest.mark.parametrize("grace_sec", [float("nan"), float("inf"), -1])
def test_a_grace_period_that_makes_no_sense_is_refused(directory, grace_sec):
    with pytest.raises(InvalidValue, match="grace_sec must be"):
        list(cleanup_entries(directory, observer=None, grace_sec=grace_sec))


def test_an_expired_name_is_free_for_another_generation(directory):
    plant(directory, record(directory, age_ns=2 * HOUR, lease_ns=HOUR))
    replacement = ownership.publish(directory, record(directory, generation="g2"))
    assert find(directory, "gpu").record == replacement


def test_a_takeover_is_explicit_and_the_loser_stands_down(directory):
    ownership.publish(directory, record(directory))
    winner = ownership.publish(directory, record(directory, generation="g2"), takeover=True)
    with pytest.raises(OwnershipLost, match=r"generation g2.* owns HOUMAO-gpu since .*stop using the name"):
        ownership.refresh(directory, winner.agent_id, "g1", lease_ns=DAY)
    with pytest.raises(OwnershipLost, match="nothing was removed"):
        ownership.remove(directory, winner.agent_id, "g1")
    assert find(directory, "gpu").record == winner


def test_the_loser_stays_the_loser_when_the_winner_has_expired(directory):
    ownership.publish(directory, record(directory))
    winner = record(directory, generation="g2", age_ns=2 * HOUR, lease_ns=HOUR)
    plant(directory, winner)
    with pytest.raises(OwnershipLost):
        ownership.refresh(directory, winner.agent_id, "g1", lease_ns=DAY)


def test_a_refresh_keeps_everything_but_the_end_of_the_lease(directory):
    first = ownership.publish(directory, record(directory, lease_ns=HOUR))
    renewed = ownership.refresh(directory, first.agent_id, "g1", lease_ns=DAY)
    assert renewed.expires_ns() > first.expires_ns()
    assert renewed.replace(lease_expires_at=first.lease_expires_at) == first


def test_the_owner_may_refresh_a_lease_that_has_run_out(directory):
    stale = plant(directory, record(directory, age_ns=2 * HOUR, lease_ns=HOUR))
    assert find(directory, "gpu").record is None
    renewed = ownership.refresh(directory, stale.agent_id, "g1", lease_ns=HOUR)
    assert find(directory, "gpu").record == renewed


def test_a_refresh_of_what_is_gone_needs_the_record(directory):
    mine = record(directory)
    with pytest.raises(OwnershipLost, match="publish it again"):
        ownership.refresh(directory, mine.agent_id, "g1", lease_ns=HOUR)
    renewed = ownership.refresh(directory, mine.agent_id, "g1", lease_ns=HOUR, record=mine)
    assert find(directory, "gpu").record == renewed


def test_removal_frees_the_name(directory):
    mine = ownership.publish(directory, record(directory))
    assert ownership.remove(directory, mine.agent_id, "g1") == mine
    assert ownership.remove(directory, mine.agent_id, "g1") is None
    assert find(directory, "gpu").reason is State.MISSING
    assert list(directory.all()) == []
    ownership.publish(directory, record(directory, generation="g2"))


def test_ownership_is_by_id_so_two_ids_may_share_a_name(directory):
    ownership.publish(directory, record(directory))
    ownership.publish(directory, record(directory, agent_id="second", generation="g2", session="s2"))
    assert find(directory, "second").record.session_name == "s2"
    assert len(directory.find_named("HOUMAO-gpu")) == 2


def test_an_id_may_change_its_name(directory):
    ownership.publish(directory, record(directory, "gpu", agent_id="one"))
    ownership.publish(directory, record(directory, "cpu", agent_id="one"))
    assert find(directory, "gpu").record is None
    assert find(directory, "cpu").record.agent_id == "one"


def test_what_does_not_fit_is_not_published(directory):
    with pytest.raises(InvalidValue, match="session_name"):
        ownership.publish(directory, record(directory).replace(session_name="a\nb"))
    assert list(directory.all()) == []


# -- stale: no live record -----------------------------------------------------------------------------------


def test_missing(directory):
    found = find(directory, "gpu")
    assert (found.record, found.reason) == (None, State.MISSING)
    with pytest.raises(AgentNotFound, match="no live agent HOUMAO-gpu"):
        found.found()


def test_malformed_json(store, directory):
    store.write(derived_id("HOUMAO-gpu"), "HOUMAO-gpu", b"{ this is no JSON")
    assert (find(directory, "gpu").record, find(directory, "gpu").reason) == (None, State.MALFORMED)


def test_schema_invalid_under_the_strict_model(store, directory):
    wrong = json.dumps(record(directory).record() | {"surprise": 1}).encode()
    store.write(derived_id("HOUMAO-gpu"), "HOUMAO-gpu", wrong)
    found = find(directory, "gpu")
    assert (found.record, found.reason) == (None, State.INVALID)
    assert "surprise" in found.text


def test_expired(directory):
    plant(directory, record(directory, age_ns=2 * HOUR, lease_ns=HOUR))
    found = find(directory, "gpu")
    assert (found.record, found.reason) == (None, State.EXPIRED)
    assert "expired at" in found.text


def test_published_under_a_different_canonical_name(directory):
    ownership.publish(directory, record(directory, "cpu", agent_id=derived_id("HOUMAO-gpu")))
    found = find(directory, "gpu")
    assert (found.record, found.reason) == (None, Reason.OTHER_NAME)
    assert "taken by HOUMAO-cpu" in found.text


def test_ambiguous_because_more_than_one_fresh_agent_id_matches(directory):
    ownership.publish(directory, record(directory))
    ownership.publish(directory, record(directory, agent_id="second", generation="g2", session="s2"))
    found = find(directory, "gpu")
    assert (found.record, found.reason) == (None, Reason.AMBIGUOUS)
    assert "second (tmux session 's2' on here)" in found.text
    assert derived_id("HOUMAO-gpu") in found.text


def test_a_stale_namesake_makes_nothing_ambiguous(directory):
    owner = ownership.publish(directory, record(directory))
    plant(directory, record(directory, agent_id="old", age_ns=2 * HOUR, lease_ns=HOUR))
    assert find(directory, "gpu").record == owner


def test_a_word_that_is_the_name_of_one_and_the_id_of_another_is_ambiguous(directory):
    ownership.publish(directory, record(directory, "gpu"))
    ownership.publish(directory, record(directory, "cpu", agent_id="gpu", generation="g2"))
    assert find(directory, "gpu").reason is Reason.AMBIGUOUS
    assert find(directory, "HOUMAO-gpu").record.agent_name == "HOUMAO-gpu"


def test_an_id_does_not_answer_for_a_name_that_has_expired(directory):
    plant(directory, record(directory, "gpu", age_ns=2 * HOUR, lease_ns=HOUR))
    other = ownership.publish(directory, record(directory, "cpu", agent_id="gpu", generation="g2"))
    assert find(directory, "gpu").reason is State.EXPIRED
    assert resolve(directory, Names(), "gpu", by_id=True).record == other
    assert find(directory, "cpu").record == other


def test_what_is_given_as_an_id_is_only_an_id(directory):
    ownership.publish(directory, record(directory, "gpu"))
    found = resolve(directory, Names(), "gpu", by_id=True)
    assert (found.record, found.reason) == (None, State.MISSING)
    assert "there is no live agent with id gpu" in found.text
    assert resolve(directory, Names(), derived_id("HOUMAO-gpu"), by_id=True).record is not None
    with pytest.raises(InvalidValue, match="agent id"):
        resolve(directory, Names(), "../x", by_id=True)


def test_a_near_miss_is_told(directory):
    ownership.publish(directory, record(directory, "reviewer"))
    assert "did you mean HOUMAO-reviewer?" in find(directory, "reveiwer").text


def test_one_bad_record_hides_no_other(store, directory):
    good = ownership.publish(directory, record(directory, "good"))
    content = b"\xff\xfe\x00" if store.kind == "files" else b"no JSON"
    store.write("bad", "HOUMAO-good", content)
    store.write(derived_id("HOUMAO-gpu"), "HOUMAO-gpu", content)
    assert find(directory, "good").record == good
    states = {entry.agent_id: entry.state for entry in directory.all()}
    assert states == {"bad": State.MALFORMED, derived_id("HOUMAO-gpu"): State.MALFORMED, good.agent_id: State.FRESH}
    list(cleanup_entries(directory, observer=None))


def test_a_malformed_record_does_not_block_its_name(store, directory):
    store.write(derived_id("HOUMAO-gpu"), "HOUMAO-gpu", b"rubbish")
    mine = ownership.publish(directory, record(directory))
    assert find(directory, "gpu").record == mine


def test_a_record_of_a_newer_baton_is_not_overwritten(store, directory):
    newer = json.dumps({"schema_version": 2, "other": "shape"}).encode()
    store.write(derived_id("HOUMAO-gpu"), "HOUMAO-gpu", newer)
    assert find(directory, "gpu").reason is State.NEWER
    with pytest.raises(AgentTaken, match="newer baton"):
        ownership.publish(directory, record(directory))
    assert [each.action for each in cleanup_entries(directory, observer=None, grace_sec=0)] == [Action.KEEP]
    ownership.publish(directory, record(directory), takeover=True)


# -- clean-up --------------------------------------------------------------------------------------------------


def actions(directory, **more):
    more = {"observer": None, "grace_sec": 300} | more
    return {each.entry.agent_id: each.action for each in cleanup_entries(directory, **more)}


def test_cleanup_removes_what_expired_before_the_grace_period_and_nothing_else(store, directory):
    ownership.publish(directory, record(directory, "fresh", agent_id="fresh"))
    plant(directory, record(directory, "just", agent_id="just", age_ns=HOUR, lease_ns=HOUR - 60 * 10**9))
    plant(directory, record(directory, "old", agent_id="old", age_ns=2 * HOUR, lease_ns=HOUR))
    expected = {"fresh": Action.KEEP, "just": Action.KEEP, "old": Action.REMOVE}
    assert actions(directory, dry_run=True) == expected
    assert len(list(directory.all())) == 3
    assert actions(directory) == expected
    assert {entry.agent_id for entry in directory.all()} == {"fresh", "just"}
    assert find(directory, "fresh").record is not None


def test_cleanup_sets_malformed_records_aside_after_the_grace_period(store, directory):
    store.write("young", "HOUMAO-young", b"rubbish")
    store.write("old", "HOUMAO-old", b"rubbish", age_sec=400)
    decisions = {each.entry.agent_id: each for each in cleanup_entries(directory, observer=None)}
    assert decisions["young"].action is Action.KEEP
    assert decisions["old"].action is Action.QUARANTINE
    assert {entry.agent_id for entry in directory.all()} == {"young"}
    place = decisions["old"].why.rpartition("now in ")[2]
    if store.kind == "files":
        with open(os.path.join(place, "record.json"), "rb") as file:
            assert file.read() == b"rubbish"


# -- many at once ----------------------------------------------------------------------------------------------


def test_of_many_publishers_at_once_one_wins(store):
    def publish(number):
        directory = store.another()
        try:
            ownership.publish(directory, record(directory, generation=f"g{number}", session=f"s{number}"))
            return number
        except AgentTaken:
            return None
        finally:
            directory.close()

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(publish, range(8)) if number is not None]
    assert len(won) == 1
    assert find(store.directory, "gpu").record.session_name == f"s{won[0]}"


def test_cleanup_beside_many_publications_deletes_nothing_fresh(store, full):
    """Each name expires, is cleaned up and published again, over and over: a clean-up that acted on what it saw a moment
    ago would sooner or later take a fresh one."""
    rounds = 1000 if full else 250
    done = []

    def publish():
        directory = store.another()
        for number in range(rounds):
            name = f"n{number % 5}"
            stale = record(directory, name, agent_id=name, generation=f"old{number}", age_ns=2 * HOUR, lease_ns=HOUR)
            plant(directory, stale)
            fresh = ownership.publish(directory, record(directory, name, agent_id=name, generation=f"new{number}"))
            assert directory.get(name).record == fresh, "a fresh record went"
        done.append(True)
        directory.close()

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        directory = store.another()
        removed = 0
        while not publishing.done():
            removed += sum(
                each.action is Action.REMOVE for each in cleanup_entries(directory, observer=None, grace_sec=0)
            )
        directory.close()
        publishing.result()
    assert done
    assert removed > 0, "the two never met"


# -- files alone -----------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    return FileDirectory(str(tmp_path / "registry"))


def test_files_are_private_whatever_the_umask(files):
    before = os.umask(0)
    try:
        ownership.publish(files, record(files))
    finally:
        os.umask(before)
    for folder, _, names in os.walk(files.where):
        assert os.stat(folder).st_mode & 0o777 == 0o700, folder
        for name in names:
            assert os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600, name


def test_a_record_that_was_dropped_in_is_found_by_name(files):
    mine = ownership.publish(files, record(files))
    dropped = record(files, "cpu", agent_id="foreign")
    folder = files.folder_of("foreign")
    os.makedirs(folder)
    with open(os.path.join(folder, "record.json"), "wb") as file:
        file.write(dropped.content())
    assert find(files, "cpu").record == dropped
    assert find(files, "gpu").record == mine
    with open(os.path.join(folder, "record.json"), "wb") as file:
        file.write(dropped.replace(agent_name="HOUMAO-gpu").content())
    assert find(files, "cpu").record is None


def test_after_a_reboot_names_are_still_found(files, clock):
    mine = ownership.publish(files, record(files))
    for folder, _, _ in os.walk(os.path.join(files.where, "names"), topdown=False):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
    clock.wall = files.now_ns()
    rebooted = FileDirectory(files.where, clock=clock)
    assert find(rebooted, "gpu").record == mine


def test_a_lookup_by_name_opens_no_other_record(files, monkeypatch):
    for number in range(30):
        ownership.publish(files, record(files, f"n{number}", generation=f"g{number}"))
    opened = []
    real = files.get
    monkeypatch.setattr(files, "get", lambda agent_id: opened.append(agent_id) or real(agent_id))
    assert find(files, "n7").record is not None
    assert len(opened) <= 2


def test_a_folder_without_its_record_goes_after_the_grace_period(files):
    ownership.publish(files, record(files))
    for age, name in ((0, "young"), (400, "old")):
        folder = files.folder_of(name)
        os.makedirs(folder)
        then = os.stat(folder).st_mtime - age
        os.utime(folder, (then, then))
    assert find(files, "young").reason is State.MISSING
    decided = actions(files)
    assert (decided["young"], decided["old"]) == (Action.KEEP, Action.REMOVE)
    assert not os.path.exists(files.folder_of("old"))


def test_what_somebody_else_put_beside_a_record_is_not_deleted(files):
    ownership.publish(files, record(files, agent_id="mine"))
    with open(os.path.join(files.folder_of("mine"), "notes.txt"), "w") as file:
        file.write("precious")
    ownership.remove(files, "mine", "g1")
    assert list(files.all()) == []
    kept = os.listdir(os.path.join(files.where, "quarantine"))
    assert len(kept) == 1
    assert kept[0].startswith("mine-")


def test_a_pipe_in_place_of_a_record_stops_nobody(files):
    os.makedirs(files.folder_of("trap"))
    os.mkfifo(os.path.join(files.folder_of("trap"), "record.json"))
    assert [entry.state for entry in files.all()] == [State.MALFORMED]
    assert find(files, "trap").record is None


def test_a_lookup_works_where_one_may_not_write(files):
    mine = ownership.publish(files, record(files))
    os.utime(os.path.join(files.where, "live_agents"))  # the seal is broken,
    os.unlink(os.path.join(files.where, ".lock"))
    os.mkdir(os.path.join(files.where, ".lock"))  # and cannot be mended
    assert find(files, "gpu").record == mine


def test_removal_leaves_no_lock_behind(files):
    mine = ownership.publish(files, record(files))
    ownership.remove(files, mine.agent_id, "g1")
    assert ownership.remove(files, mine.agent_id, "g1") is None
    assert os.listdir(os.path.join(files.where, "locks")) == []
    assert os.listdir(os.path.join(files.where, "names")) == [".whole"]


def drop(files, record, content=None):
    """What somebody else puts there."""
    folder = files.folder_of(record.agent_id)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "record.json"), "wb") as file:
        file.write(content or record.content())


def age(files):
    """As if nobody had touched the folder for a while."""
    os.utime(os.path.join(files.where, "live_agents"), (10**9, 10**9))


def test_a_record_that_could_not_be_read_is_found_once_it_can(files):
    later = record(files, "cpu", agent_id="later")
    drop(files, later, b"half of a rec")
    age(files)
    assert find(files, "cpu").record is None
    drop(files, later)
    assert find(files, "cpu").record == later


def test_a_record_that_comes_while_names_are_noted_is_found(files, monkeypatch):
    drop(files, record(files, "gpu", agent_id="first"))
    age(files)
    late = record(files, "cpu", agent_id="late")
    real = files.get

    def get(agent_id):
        if agent_id == "first":
            drop(files, late)
        return real(agent_id)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(files, "get", get)
        assert find(files, "gpu").record is not None
    assert find(files, "cpu").record == late


def test_names_that_were_lost_are_noted_anew(files):
    first = ownership.publish(files, record(files, agent_id="first"))
    shutil.rmtree(os.path.join(files.where, "names"))
    assert find(files, "gpu").record == first
    shutil.rmtree(os.path.join(files.where, "names"))
    ownership.publish(files, record(files, "cpu", agent_id="second", generation="g2"))
    assert find(files, "gpu").record == first


def test_the_next_lookup_opens_no_other_record_once_names_are_noted(files, monkeypatch):
    for number in range(10):
        drop(files, record(files, f"n{number}", agent_id=f"id{number}"))
    age(files)
    assert find(files, "n7").record is not None
    opened = []
    real = files.get
    monkeypatch.setattr(files, "get", lambda agent_id: opened.append(agent_id) or real(agent_id))
    assert find(files, "n7").record is not None
    assert len(opened) <= 3


def test_a_record_is_not_malformed_because_the_system_fails_to_read_it(files):
    first = ownership.publish(files, record(files, agent_id="first"))
    with no_more_files():
        assert files.get("first").state is State.UNREADABLE
    assert files.get("first").record == first


def test_a_huge_record_is_not_read(files):
    mine = ownership.publish(files, record(files))
    drop(files, record(files, agent_id="huge"))
    with open(os.path.join(files.folder_of("huge"), "record.json"), "r+b") as file:
        file.truncate(200 * 10**9)
    assert files.get("huge").state is State.INVALID
    assert "longer than" in files.get("huge").why
    assert find(files, "gpu").record == mine


def put_file(path, elsewhere):
    with open(path, "w") as file:
        file.write("not a folder")


def put_link(path, elsewhere):
    os.symlink(elsewhere, path)


def put_dangling_link(path, elsewhere):
    os.symlink("/nowhere/at/all", path)


@pytest.mark.parametrize("put", [put_file, put_link, put_dangling_link])
def test_what_is_no_folder_is_set_aside_and_blocks_nothing(files, tmp_path, put):
    theirs = record(files, agent_id="trap", age_ns=2 * HOUR, lease_ns=HOUR)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "record.json").write_bytes(theirs.content())
    ownership.publish(files, record(files, "last", agent_id="z"))
    for name in ("again", "trap"):
        put(files.folder_of(name), str(elsewhere))
    assert files.get("trap").state is State.MALFORMED
    mine = ownership.publish(files, record(files, "again", agent_id="again", generation="g2"))
    assert files.get("again").record == mine
    decided = {each.entry.agent_id: each for each in cleanup_entries(files, observer=None, grace_sec=0)}
    assert decided["trap"].action is Action.QUARANTINE
    assert not os.path.lexists(files.folder_of("trap"))
    assert (elsewhere / "record.json").read_bytes() == theirs.content(), "somebody else's file"
    assert len(os.listdir(os.path.join(files.where, "quarantine"))) == 2


def test_a_record_that_is_a_link_is_not_followed(files, tmp_path):
    theirs = record(files)
    (tmp_path / "theirs.json").write_bytes(theirs.content())
    os.makedirs(files.folder_of(theirs.agent_id))
    os.symlink(tmp_path / "theirs.json", os.path.join(files.folder_of(theirs.agent_id), "record.json"))
    assert files.get(theirs.agent_id).state is State.MALFORMED


def test_one_entry_that_cannot_be_removed_stops_no_other(files, monkeypatch):
    for name in ("a", "b", "c"):
        plant(files, record(files, name, agent_id=name, age_ns=2 * HOUR, lease_ns=HOUR))
    real = files.remove

    def remove(entry):
        if entry.agent_id == "b":
            raise PermissionError(13, "Permission denied", "/some/place")
        real(entry)

    monkeypatch.setattr(files, "remove", remove)
    decided = {each.entry.agent_id: each for each in cleanup_entries(files, observer=None)}
    assert [decided[name].action for name in "abc"] == [Action.REMOVE, Action.KEEP, Action.REMOVE]
    assert [decided[name].failed for name in "abc"] == [False, True, False]
    assert "could not remove it: /some/place: Permission denied" in decided["b"].why
    assert "nothing was changed" not in decided["b"].why, "who can say"


def test_a_name_that_is_gone_is_not_suggested(files):
    mine = ownership.publish(files, record(files, "reviewer", agent_id="r"))
    drop(files, mine, b"rubbish")
    os.utime(os.path.join(files.folder_of("r"), "record.json"), (1, 1))
    assert "did you mean" not in find(files, "reviewer").text
    assert actions(files)["r"] is Action.QUARANTINE
    assert "did you mean" not in find(files, "reveiwer").text


# -- PostgreSQL alone ------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path, request):
    store = Store("postgresql", tmp_path, request)
    yield store
    store.directory.close()


def test_a_shared_record_without_its_host_is_nobodys_neighbour(shared):
    directory = shared.directory
    lost = record(directory, age_ns=2 * HOUR, lease_ns=HOUR).replace(host=None)
    plant(directory, lost)
    decided = list(cleanup_entries(directory, observer=Observer("here"), grace_sec=0))
    assert decided[0].action is Action.KEEP
    assert "it is on a host that is not named" in decided[0].why
    with pytest.raises(RemoteAgent, match="not named"):
        control_target(directory.get(lost.agent_id).record, host="here")
    # Whoever runs it gives it its host back.
    mine = ownership.publish(directory, record(directory))
    assert directory.get(mine.agent_id).record == mine


def test_a_row_whose_id_is_none_is_passed_over(shared):
    directory = shared.directory
    mine = ownership.publish(directory, record(directory))
    connection = directory._database.connection()
    for number in range(600):
        connection.execute("INSERT INTO live_agents VALUES (%s, 'HOUMAO-gpu', 0, '{}')", [f"../{number}"])
    assert [entry.agent_id for entry in directory.all()] == [mine.agent_id]
    assert find(directory, "gpu").record == mine
    assert len(list(cleanup_entries(directory, observer=None, grace_sec=0))) == 1


def test_a_server_that_isolates_more_by_default_stops_nobody(shared, postgres):
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("ALTER DATABASE postgres SET default_transaction_isolation TO 'serializable'")
        try:

            def publish(number):
                directory = shared.another()
                try:
                    for turn in range(20):
                        fresh = record(directory, generation=f"g{number}-{turn}")
                        ownership.publish(directory, fresh, takeover=True)
                finally:
                    directory.close()

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(publish, range(4)))
        finally:
            admin.execute("ALTER DATABASE postgres RESET default_transaction_isolation")
    assert find(shared.directory, "gpu").record.generation_id in {f"g{number}-19" for number in range(4)}


def test_the_registrys_schema_may_not_be_a_directorys(postgres):
    with pytest.raises(InvalidValue, match=r"schema .* must not end in _directory"):
        PostgresRegistry(f"{postgres.url}&schema=team_directory")


@pytest.mark.parametrize("made", [False, True])
def test_who_may_not_make_a_schema_is_told_what_to_ask_for(postgres, made):
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE guest{made:d} LOGIN")
        directory = PostgresDirectory(postgres.new_url().replace("baton@", f"guest{made:d}@"))
        if made:
            admin.execute(f"CREATE SCHEMA {directory._database.schema}")
        with pytest.raises(RegistryUnavailable, match="administrator") as refused:
            ownership.publish(directory, record(FileDirectory("/nowhere")))
        advice = str(refused.value).rpartition("run: ")[2]
        admin.execute(advice.encode())
        assert directory.get("x").absent
        directory.close()


def test_a_huge_row_is_not_fetched(shared):
    shared.write("huge", "HOUMAO-huge", b" " * 10**6)
    assert "longer than" in shared.directory.get("huge").why
