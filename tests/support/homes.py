"""Homes as the first command in a folder makes them, and homes that the user has trusted in place."""

from __future__ import annotations

import os

from baton.config import Home, Settings
from baton.storage import homes, new_homes


def state_of(folder, env=None) -> str:
    state = Settings(env=env or {"HOME": str(folder)}).state_dir
    os.makedirs(os.path.join(state, "folders"), mode=0o700, exist_ok=True)
    return homes.check_state(state)


def settings_in(folder, env=None) -> Settings:
    """The settings of a command in that folder; what writes first makes its home."""
    return homes.load_settings(env=env or {"HOME": str(folder)}, here=str(folder))


def home_of(folder, env=None) -> str:
    """Makes the home of a folder, as its first command would; the path of the home."""
    state, folder = state_of(folder, env), os.path.realpath(folder)
    home = homes.look_up(state, folder) or homes.new_home(state, folder).replace(link=".hermes")
    return new_homes.make(state, home).path


def trust_in_place(path, *environments) -> str:
    """Makes what is at a path a home that stays there, of the user in each of these environments."""
    path = os.path.realpath(path)
    home = Home(path=path, home_id=os.urandom(8).hex(), folder=path, in_place=True)
    for env in environments:
        new_homes.record(state_of(path, env), home, replace=True)
    new_homes.write_home(home)
    return path
