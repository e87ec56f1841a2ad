"""attach: attach the terminal to the session that runs a job."""

from __future__ import annotations

import argparse

from baton.cli import options as opt
from baton.cli.options import job_of
from baton.cli.parser import Verb
from baton.cli.session_view import attach_to
from baton.config import Settings
from baton.core.errors import SessionGone
from baton.core.job import TERMINAL
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.session import State


def attach(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.get_job(job_of(options))
    inventory = Inventory(settings)
    for session in inventory.all(State.RUNNING):
        if job.job_id in (session.job_id, session.made_for):
            attach_to(session.name, inventory, read_only=options.read_only)
    if job.status in TERMINAL:
        raise SessionGone(f"job {job.job_id} is {job.status}, no session runs it; `baton logs {job.job_id}` shows why")
    holder = f", held by {job.claimed_by}" if job.claimed_by else ""
    raise SessionGone(f"no session on this host runs job {job.job_id}: it is {job.status}{holder}")


VERBS = (Verb("attach", (*opt.JOB, opt.READ_ONLY), attach),)
