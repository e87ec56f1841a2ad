"""Every verb that writes, once, on a registry prepared for it; each acknowledged on stdout when it returned.

    python -m support.writing_verbs SABOTAGE TASK=PLACE TASK=PLACE ...

A task is a verb, or VERB@SETTING to tell several from each other; a place is a url, or a folder of logs.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

from baton.core.drafts import new_job
from baton.core.event import EventName
from baton.core.job import Status
from baton.core.request import Answer, Request, RequestKind, RequestState
from baton.history.log import append_event, init_job_log, update_logged_status
from baton.registry import open_url
from baton.storage import files as fsio
from baton.storage.sqlite import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.core.job import Job
    from baton.registry.verbs import Registry

LABEL = "tmux:claude"
OTHER_LABEL = "tmux:other"
LOGGED_JOB = "feedc0de"
OPEN, ANSWERED = "aaaa0001", "aaaa0002"
YES = Answer(answer="allow", by="me@host", via="cli")
ACTIVITY = {"kind": "working", "since": "2026-01-01T00:00:00Z", "cause": "Bash"}
USAGE = {
    "attempt": 1, "input_tokens": 10, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 5, "cost_usd": 0.5,
    "at": "2026-01-01T00:00:00Z",
}  # fmt: skip
RUN = {"attempt": 1, "agent_version": "2.1.400", "agent_mode": "auto", "model": None}
PARKED = {
    "attempt": 1, "since": "2026-01-01T00:00:00Z", "until": "2126-01-01T00:00:00Z", "why": "a limit",
    "conversation_id": "c", "host": "h", "in_a_row": 1,
}  # fmt: skip
_A_MOMENT_SEC = 1e-6


def prepare_registry(registry: Registry) -> None:
    """A job for each verb to work on, named by its prompt, and one that none touches."""
    for prompt, lease_sec, max_attempts in (
        ("running", 1000, 9),
        ("asking", 1000, 9),
        ("late", _A_MOMENT_SEC, 9),
        ("late for the last time", _A_MOMENT_SEC, 1),
        ("ended", None, 1),
        ("ended too", None, 1),
    ):
        job = registry.register_job(draft(prompt, max_attempts=max_attempts))
        registry.pick_pending(LABEL, holder="me", lease_sec=lease_sec)
        registry.record_event(job.job_id, EventName.STARTED)
        if prompt == "asking":
            for request_id in (OPEN, ANSWERED):
                registry.open_request(job.job_id, question(request_id), attempt=1)
            registry.answer_request(ANSWERED, YES)
        if prompt.startswith("ended"):
            registry.record_event(job.job_id, EventName.COMPLETED)
            registry.mark_sent(job.job_id, [1, 2])
    registry.register_job(draft("pending"))
    registry.register_job(draft("submitted", submitter="host:1:2"))
    registry.register_job(draft("waiting", agent_session=OTHER_LABEL))


def draft(prompt: str, **fields) -> Job:
    return new_job(prompt, now_ns=time.time_ns(), agent="claude", **({"agent_session": LABEL} | fields))


def question(request_id: str) -> Request:
    return Request(
        request_id=request_id,
        job_id=LOGGED_JOB,
        attempt=1,
        key=request_id,
        kind=RequestKind.TOOL,
        agent_ref=None,
        tool="Bash",
        call={"command": "make"},
        call_sha256=None,
        exact=True,
        summary="Bash: make",
        options=(),
        asked_at="2026-01-01T00:00:00Z",
    )


def _id(registry: Registry, prompt: str) -> str:
    return next(job.job_id for job in registry.list_jobs().jobs if job.prompt == prompt)


REGISTRY_VERBS: dict[str, Callable[[Registry], object]] = {
    "register_job": lambda it: it.register_job(draft("new")),
    "register_many": lambda it: it.register_many([draft(f"new {i}") for i in range(3)]),
    "retry": lambda it: it.register_job(draft("again", retry_of=_id(it, "ended"))),
    "pick_pending": lambda it: it.pick_pending(LABEL, holder="you", lease_sec=1000),
    "pick_job": lambda it: it.pick_job(_id(it, "submitted"), holder="you", lease_sec=1000),
    "clear_submitter": lambda it: it.clear_submitter(_id(it, "submitted")),
    "update_status": lambda it: it.update_status(_id(it, "running"), Status.COMPLETED),
    "requeue": lambda it: it.requeue(_id(it, "running")),
    "renew_lease": lambda it: it.renew_lease(_id(it, "running"), attempt=1, lease_sec=2000),
    "set_activity": lambda it: it.set_activity(_id(it, "running"), ACTIVITY, attempt=1, lease_sec=2000),
    "note_usage": lambda it: it.note_usage(_id(it, "running"), USAGE),
    "note_run": lambda it: it.note_run(_id(it, "running"), RUN),
    "park": lambda it: it.record_event(_id(it, "running"), EventName.ERROR, attempt=1, outcome={"parked": PARKED}),
    "open_request": lambda it: it.open_request(_id(it, "asking"), question("aaaa0003"), attempt=1, expires_sec=9),
    "answer_request": lambda it: it.answer_request(OPEN, YES),
    "close_request": lambda it: it.close_request(OPEN, RequestState.ELSEWHERE, answer="allow"),
    "note_sent": lambda it: it.note_sent(ANSWERED),
    "note_applied": lambda it: it.note_applied(ANSWERED, "no", "user_reject"),
    "expire_leases": lambda it: it.expire_leases(),
    "record_event": lambda it: it.record_event(_id(it, "running"), EventName.PROGRESS, detail="half way"),
    "next_seq": lambda it: it.next_seq(_id(it, "running")),
    "mark_sent": lambda it: it.mark_sent(_id(it, "running"), [1]),
    "prune": lambda it: it.prune(time.time_ns()),
}


def prepare_log(logs_dir: str) -> None:
    _begin_log(logs_dir)
    update_logged_status(LOGGED_JOB, "pending", "running", now_ns=time.time_ns(), logs_dir=logs_dir)


def logged_job() -> Job:
    return new_job("logged", now_ns=10**18, agent="claude").replace(job_id=LOGGED_JOB, auth_token="key")


def _begin_log(logs_dir: str) -> None:
    init_job_log(logged_job().record(), now_ns=time.time_ns(), logs_dir=logs_dir)


LOG_VERBS: dict[str, Callable[[str], object]] = {
    "init_job_log": _begin_log,
    "append_event": lambda logs_dir: append_event(
        LOGGED_JOB, {"event": "published"}, now_ns=time.time_ns(), logs_dir=logs_dir
    ),
    "update_logged_status": lambda logs_dir: update_logged_status(
        LOGGED_JOB, "running", "completed", now_ns=time.time_ns(), logs_dir=logs_dir
    ),
}
STATUS_AFTER = {
    "init_job_log": Status.PENDING,
    "append_event": Status.RUNNING,
    "update_logged_status": Status.COMPLETED,
}


# -- sabotage: what the tests must notice ------------------------------------------------------------------

_real_fsync = os.fsync
_real_open = SqliteFile._open


def _is_folder(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def _never_sync() -> None:
    os.fsync = lambda fd: None


def _sync_no_files() -> None:
    os.fsync = lambda fd: _real_fsync(fd) if _is_folder(fd) else None


def _sync_no_folders() -> None:
    os.fsync = lambda fd: None if _is_folder(fd) else _real_fsync(fd)


def _write_in_place() -> None:
    def replace_file(path: str, content: bytes, **_: object) -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(content)
            _real_fsync(file.fileno())
        fsio.fsync_dir(os.path.dirname(path))

    fsio.replace_file = replace_file


def _sqlite_without_sync() -> None:
    def open_unsynced(self: SqliteFile, *, write: bool):
        connection = _real_open(self, write=write)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    SqliteFile._open = open_unsynced


SABOTAGE: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "never sync": _never_sync,
    "sync no files": _sync_no_files,
    "sync no folders": _sync_no_folders,
    "write in place": _write_in_place,
    "sqlite without sync": _sqlite_without_sync,
}


def main(sabotage: str, *arguments: str) -> None:
    SABOTAGE[sabotage]()
    for argument in arguments:
        task, _, place = argument.partition("=")
        verb = task.partition("@")[0]
        if verb in LOG_VERBS:
            LOG_VERBS[verb](place)
            os.write(1, task.encode())
        else:
            with closing(open_url(place)) as registry:
                REGISTRY_VERBS[verb](registry)
                os.write(1, task.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
