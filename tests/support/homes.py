"""Homes as the first command in a folder makes them, and homes that the user has trusted in place."""

from __future__ import annotations

import json
import os
import sqlite3

from baton.config import Home, Settings
from baton.jobs.verbs import open_jobs
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


def make_many(root, count: int, env=None) -> list[str]:
    """Makes so many folders `root/0`, `root/1`, ... with a home each, in which one job has ended: copies of the first
    one, a thousand in half a second. The folders."""
    folders = [os.path.join(os.path.realpath(root), str(number)) for number in range(count)]
    state = state_of(root, env)
    os.makedirs(folders[0])
    settings = settings_in(folders[0], env)
    with open_jobs(settings) as jobs:
        jobs.update_status(jobs.register_job("work", title="a job").job_id, "cancelled")
    path = os.path.join(settings.home, "jobs", "registry.db")
    small = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = DELETE", "page_size = 512"):
        small.execute(f"PRAGMA {pragma}")
    small.execute("VACUUM")
    small.execute("PRAGMA journal_mode = WAL")
    small.close()
    with open(path, "rb") as file:
        registry = file.read()
    for folder in folders[1:]:
        os.mkdir(folder)
        home = homes.new_home(state, folder)
        os.makedirs(os.path.join(home.path, "jobs"), 0o700)
        entry = {"path": folder, "home": home.home_id, "in_place": False, "uid": os.geteuid()}
        for name, content in (
            (os.path.join(home.path, "jobs", "registry.db"), registry),
            (os.path.join(home.path, "jobs", ".lock"), b""),
            (
                os.path.join(home.path, homes.HOME_FILE),
                json.dumps({"home_id": home.home_id, "folder": folder}).encode(),
            ),
            (os.path.join(home.path, ".gitignore"), b"*\n"),
            (homes.entry_path(state, folder), json.dumps(entry).encode()),
        ):
            with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(content)
    return folders
