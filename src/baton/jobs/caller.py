"""Decide what an agent may do that calls baton inside a session: which job is its own, and for which it answers."""

from __future__ import annotations

import os

from baton.core.errors import BatonError, JobNotFound
from baton.core.fields import parse_json
from baton.origin import (
    Origin,
    caller,
    is_inside_session,
    is_runner,
    read_origin,
    runners_above,
    runs_in_background_of_tmux,
)
from baton.origin import ancestors as ancestors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from baton.config import Home
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

WITNESS = "witness.sock"  # in the session's folder: its runner says whose child asks
INSIDE, OUTSIDE = b"inside", b"outside"
_WITNESS_SEC = 2.0
_FIRST_NAMESPACE = "/4026531836"  # the kernel's own, in which every process is seen
_MANIFEST = "manifest.json"
_LONGEST_MANIFEST = 65536


def origin_of(job: Job) -> Origin | None:
    """Return the origin of the session that holds the job, or of the session that this process runs in; None without
    one."""
    holder = (job.claimed_by or "").rpartition(":")[2]
    return read_origin(holder) or caller()


def refuse_inside_session(what: str) -> None:
    """Raise BatonError if an agent called this process: `what` is for people."""
    if is_inside_session():  # guard: inside-session
        raise BatonError(f"{what} is refused inside a session; ask the user to run this command")


def refuse_agents(what: str) -> None:
    """Raise BatonError if an agent called this process, as far as that can be noticed: `what` is for people, as it
    changes what agents may do."""
    refuse_inside_session(what)
    refuse_in_background(what)
    if _is_hidden_agent():  # guard: hidden-change
        raise BatonError(
            f"{what} is refused in a process namespace that an agent made; run this command outside of it, or ask the "
            "user to run it"
        )


def refuse_in_background(what: str) -> None:
    """Raise BatonError if a tmux server started this process without a terminal: an agent can have asked for that."""
    if runs_in_background_of_tmux():  # guard: background-of-tmux
        raise BatonError(
            f"{what} is refused in the background of tmux (run-shell, if-shell), where an agent may have started it; "
            "run this command in a pane, a window or a popup"
        )


def starter_here() -> Origin | None:
    """Return the session whose agent starts a job or a session from this process; None for a person. Raise BatonError
    inside a session that is not known: its agent could hide what it starts."""
    found = caller()
    if found is None and is_inside_session():  # guard: unknown-starter
        raise BatonError(
            "the job of this session cannot be found from here, so nothing is started; run this command as a plain "
            "child of the agent, or ask the user to run it"
        )
    return found


# -- who answers -------------------------------------------------------------------------------------------------------


def answerer_here(jobs: Jobs, target: Job) -> str:
    """Return who answers a request of this job from this process: the user, or an agent that an [[answerer]] in the
    user's rules names. Raise BatonError for other agents, and always for the agent's own job, and for every job that an
    agent above both started."""
    if not is_inside_session():
        refuse_in_background("an answer")
        _refuse_hidden(jobs, target)
        return jobs.user_here()
    origin = caller()
    own = None if origin is None else _job_of(jobs, origin)
    if origin is None or own is None:  # guard: answerer-unknown
        raise BatonError("an agent does not answer requests here: its own job is not known; ask the user to answer")
    if _is_held_here(jobs, target) or _lines_meet(jobs, own, target):  # guard: answer-for-itself
        raise BatonError(
            "an agent does not answer for itself, for a job that it started, or for one above it "
            f"({target.job_id}); ask the user to answer"
        )
    from baton.jobs.rules import read_rules

    named = read_rules(origin.environment, jobs.warn).answerers
    labels = () if _is_of_agent(own) else own.labels  # guard: label-by-an-agent
    is_named = any(each.agent == own.agent and each.label in (None, *labels) for each in named)
    if not is_named:  # guard: answerer-not-named
        of_agent = "; the labels of a job that an agent started do not count" if _is_of_agent(own) else ""
        raise BatonError(f"no [[answerer]] in your user's rules names {own.agent}{of_agent}; ask the user to answer")
    return f"{own.agent} in job {own.job_id}"


def _job_of(jobs: Jobs, origin: Origin) -> Job | None:
    """Return the present job of a session; None if it has none here."""
    job_id = origin.job_id if origin.knows_job else os.environ.get("BATON_JOB_ID")
    try:
        job = None if not job_id else jobs.get_job(job_id)
    except JobNotFound:
        return None  # it is in another home
    return job if job is not None and _is_held_here(jobs, job) else None


def _is_held_here(jobs: Jobs, job: Job) -> bool:
    """Return whether the job runs in the session that called this process."""
    host, *_, pid = (job.claimed_by or ":").split(":")  # HOST:PID or HOST:SESSION:PID
    return host == jobs.holder_here().partition(":")[0] and pid in ancestors_of()


def _is_of_agent(job: Job) -> bool:
    """Return whether an agent started the job."""
    return job.parent is not None or bool(job.above)


def _lines_meet(jobs: Jobs, own: Job, target: Job) -> bool:
    """Return whether one of both jobs led to the other, or an agent above started both: it would answer for what it
    started, by the other."""
    return not {own.job_id, *own.above, *_jobs_above(jobs, own)}.isdisjoint(
        {target.job_id, *target.above, *_jobs_above(jobs, target)}
    )


def _jobs_above(jobs: Jobs, job: Job) -> Iterator[str]:
    """Yield the job whose agent submitted this one, the job above that, and so on."""
    seen: set[str] = set()
    while job.parent is not None and job.parent not in seen:
        seen.add(job.parent)
        yield job.parent
        try:
            job = jobs.get_job(job.parent)
        except JobNotFound:
            return  # it was pruned


# -- a process in another process namespace ----------------------------------------------------------------------------


def _refuse_hidden(jobs: Jobs, target: Job) -> None:
    """Raise BatonError if this process is in a process namespace that does not show the runner of the job, and that
    runner sees an agent above it. A person in a container has none above."""
    _, *session, pid = (target.claimed_by or "").split(":")
    if not session or jobs.home is None or is_runner(pid):
        return
    from baton.config import this_machine

    folder, there = _session_of(jobs.home, session[0], pid)
    here = this_machine() or ""
    if folder is None or (there and there == here):
        return  # nothing is known, or the runner has ended: everything above this process is seen here
    is_near = bool(there) and there.partition("/")[0] == here.partition("/")[0]
    if (_ask_witness(folder) or (INSIDE if is_near else OUTSIDE)) == INSIDE:  # guard: hidden-agent
        raise BatonError(
            f"an answer is refused in a process namespace in which the session of job {target.job_id} is not seen: an "
            "agent may have made it; run this command outside of it"
        )


def _is_hidden_agent() -> bool:
    """Return whether a runner of this machine, in another process namespace, sees an agent above this process. The
    agent may have named another state folder: those that the user has without its variables count, too."""
    from baton.config import state_folder, this_machine

    here = this_machine() or ""
    if not here or here.endswith(_FIRST_NAMESPACE):
        return False
    given: tuple[Mapping[str, str], ...] = (os.environ, {"HOME": os.environ.get("HOME", "")}, {})
    homes = {home.path for each in given for home in _known_homes(state_folder(each))}
    for home in homes:
        for folder, _name, _pid, there in _sessions_in(home):
            is_near = there != here and there.partition("/")[0] == here.partition("/")[0]
            if is_near and _ask_witness(folder) == INSIDE:
                return True
    return False


def _known_homes(state_dir: str) -> list[Home]:
    from baton.storage.homes import known

    try:
        return known(state_dir, skip=lambda _error: None)
    except (BatonError, OSError):
        return []  # not a state folder of this user


def _session_of(home: str, name: str, pid: str) -> tuple[str | None, str]:
    """Return the folder of a session, and the machine and process namespace of its runner; "" if that is unknown."""
    found = (each for each in _sessions_in(home) if each[1:3] == (name, pid))
    folder, _, _, machine = next(found, (None, "", "", ""))
    return folder, machine


def _sessions_in(home: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield of each session: its folder, its name, the process id of its runner, and the machine and process namespace
    of that, "" if it is unknown."""
    folder = os.path.join(home, "sessions")
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for each in names:
        try:
            with open(os.path.join(folder, each, _MANIFEST), "rb") as file:
                manifest = parse_json(file.read(_LONGEST_MANIFEST))
            name, pid, machine = manifest["session_name"], str(manifest["pane_pid"]), str(manifest["machine"] or "")
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not the manifest of a session, or it was removed
        yield os.path.join(folder, each), name, pid, machine


def _ask_witness(folder: str) -> bytes:
    """Return what the runner says of this process, INSIDE or OUTSIDE; empty if it cannot be asked. A runner that has
    ended takes no answer."""
    from baton.core.cpython import socket

    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        client.settimeout(_WITNESS_SEC)
        client.connect(f"/proc/self/fd/{fd}/{WITNESS}")  # the kernel takes at most 107 bytes
        return bytes(client.recv(16))
    except ConnectionRefusedError:
        return OUTSIDE
    except OSError:
        return b""
    finally:
        os.close(fd)
        client.close()


def judge(pid: int) -> bytes:
    """Return whether an agent started the process of this id; 0 is one that is not below this process namespace."""
    return INSIDE if pid and runners_above(str(pid)) else OUTSIDE


# -- limits of what an agent starts ------------------------------------------------------------------------------------


def check_depth(starter: Origin, limit: int) -> None:
    """Raise BatonError if what an agent starts would be too deep below what a person started."""
    depth = len(starter.chain())
    if depth > limit:  # guard: depth-of-jobs
        raise BatonError(
            f"agents start jobs to a depth of {limit} below a person's job (depth_limit in the user's baton.toml), and "
            f"this would be {depth}; do the work here"
        )


def check_running(root: str, running: Iterable[Job], limit: int) -> None:
    """Raise BatonError if as many jobs as may run at once, of those that agents started, run below a job."""
    count = sum(1 for job in running if job.above[:1] == (root,))
    if count >= limit:  # guard: jobs-below-a-root
        raise BatonError(
            f"{count} jobs run below {root} that agents started, and at most {limit} may (running_limit in the user's "
            "baton.toml); wait for one to end"
        )
