"""The home of a folder: found by the map of folders, made by the first write, never taken from a clone."""

from __future__ import annotations

import json
import os

import pytest

from baton.core.errors import BatonError, UntrustedHome
from baton.storage import homes, new_homes
from baton.storage.files import make_private_dir


@pytest.fixture
def state(tmp_path):
    return str(tmp_path / "state")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def make(state, named=".hermes"):
    return new_homes.make(state, homes.find(state, named))


def test_a_home_is_in_the_state_and_the_folder_has_a_link(state, folder):
    planned = homes.find(state)
    assert not planned.made
    assert not os.path.exists(state)
    home = make(state)
    assert home.path == planned.path == os.path.join(state, "homes", home.home_id)
    assert os.readlink(folder / ".hermes") == home.path
    assert os.stat(home.path).st_mode & 0o777 == 0o700
    assert homes.find(state).replace(link=home.link) == home
    assert [each.folder for each in homes.known(state)] == [str(folder)]


def test_an_unrecorded_folder_is_untrusted(state, folder):
    (folder / ".hermes").mkdir()
    with pytest.raises(UntrustedHome, match=f"baton trust {folder}"):
        homes.find(state)


def test_the_first_folder_below_a_home_makes_it(state, folder):
    settings = homes.load_settings({"state_dir": state}, {"HOME": "/nowhere"})
    assert not os.path.exists(state)
    make_private_dir(settings.registry_dir)
    assert homes.find(state).made
    with open(os.path.join(settings.home, "home.json")) as file:
        assert json.load(file)["home_id"] == settings.home_id


def test_a_state_of_another_user_is_refused(state, folder, monkeypatch):
    make(state)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(BatonError, match="belongs to another user"):
        homes.find(state)


def test_the_home_of_other_scripts_is_named_where_there_is_none(state, folder):
    (folder / ".mam" / "jobs").mkdir(parents=True)
    expected = f"{folder}/.mam/jobs is not used; to take it over: BATON_HOME=.mam baton trust"
    assert homes.find(state).warnings == (expected,)
    with pytest.raises(UntrustedHome):
        homes.find(state, ".mam")
    make(state)
    assert homes.find(state).warnings == ()
