"""Define the record of a session: one tmux session with an agent in it, from its creation to its end."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum

from baton.adapters.contract import CONVERSATION_ID, Mode
from baton.config import machine_of, present_host, process_domain
from baton.core import fields
from baton.core.errors import InvalidSession
from baton.core.job import LIVE_QUEUE, Job
from baton.core.value import Any, Value
from baton.sessions.processes import ProcessId

SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
SESSION_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
# A path, or a plain name: tmux would take ../x for a name of a socket elsewhere.
TMUX_SOCKET = re.compile(r"/[^\0]{1,4000}|[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class State(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"  # on request, with its conversation kept
    TERMINATED = "terminated"  # killed, or found dead
    ARCHIVED = "archived"  # released, with its tmux session left running


class Session(Value):
    """A row of the inventory.

    `made_for` is the job that the session was created for and ends with; `job_id` is the job in it now.
    `stop_requested` is the reason of a stop that has begun and not ended; `stopper` is the process (pid/start) that
    stops the session. `pane_pid` and `pane_started` are the identity of the runner, where the process numbers of
    `domain` are valid. `machine` identifies the machine, whose name (`host`) may change. `parent` is the job whose
    agent created the session.
    """

    name: str
    session_id: str
    state: State
    agent: str
    mode: Mode
    workdir: str
    yolo: bool
    conversation_id: str | None = None
    made_for: str | None = None
    job_id: str | None = None
    reason: str | None = None
    exit: str | None = None
    created_at: str
    updated_at: str
    ended_at: str | None = None
    stop_requested: str | None = None  # stored as "ending"
    stopper: str | None = None
    agent_name: str
    agent_id: str
    generation_id: str
    host: str
    socket: str
    pane_id: str | None = None
    pane_pid: int | None = None
    pane_started: int | None = None
    machine: str | None = None
    parent: str | None = None
    domain: str | None = None

    @classmethod
    def parse(cls, record: Mapping[str, Any], row: str = "") -> Session:
        """Return the session in the record of the row of that name; raise InvalidSession. Ignore unknown fields of a
        later version."""
        values: dict[str, Any] = {}
        for name, check in _CHECKS.items():
            try:
                values[name] = check(record.get(_STORED_AS.get(name, name)))  # guard: session-row
            except ValueError as error:
                raise InvalidSession(row, name, str(error)) from None
        return cls(**values | {"host": present_host(values["host"], values["machine"])})

    def record(self) -> dict[str, Any]:
        """Return the session as it is stored and shown."""
        return {_STORED_AS.get(name, name): value for name, value in self.as_dict().items()}

    def runner(self) -> ProcessId | None:
        """Return the process in the pane; None before it was started."""
        if self.pane_pid is None or self.pane_started is None:
            return None
        return ProcessId(pid=self.pane_pid, started=self.pane_started)

    def has_live_runner(self) -> bool:
        """Return whether the process in the pane runs. Valid only on the session's own host."""
        runner = self.runner()
        return runner is not None and runner.is_alive()

    def has_live_stopper(self) -> bool:
        """Return whether a process is stopping the session. Valid only on the session's own host."""
        stopper = ProcessId.parse(self.stopper)
        return stopper is not None and stopper.is_alive()

    def is_lost(self) -> bool:
        """Return whether the runner has ended without a trace: it was one of the processes that this process sees, is
        none of them now, and no other process is stopping the session. False where that is not certain."""
        runner = self.runner()
        if self.state is not State.RUNNING or runner is None or runner.is_alive():
            return False
        if not self._is_here():  # guard: lost-elsewhere
            return False
        return not self.has_live_stopper()

    def _is_here(self) -> bool:
        """Return whether the runner is among the processes that this process sees, as far as the record tells: another
        machine, or a container, may have the same name."""
        if self.domain is not None:
            return self.domain == process_domain()
        return self.machine is not None and self.machine == machine_of(os.uname().nodename)

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.state}>"


_STORED_AS = {"stop_requested": "ending"}


def _form(pattern: re.Pattern[str], what: str) -> fields.Check:
    def check(value: object) -> str:
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        raise ValueError(f"is not {what}")

    return check


def _long_text(value: object) -> str:
    return fields.text(value, 65536)


_text, _time = fields.optional(_long_text), fields.optional(fields.time)
_job, _number = fields.optional(fields.job_id), fields.optional(fields.whole(0))
_agent_id = _form(SESSION_NAME, "the id of an agent or a generation")
_CHECKS: dict[str, fields.Check] = {
    "name": _form(SESSION_NAME, "the name of a session"),
    "session_id": _form(SESSION_ID, "an id of 16 characters of 0-9 and a-f"),
    "state": lambda value: State(str(value)),
    "agent": fields.label,
    "mode": lambda value: Mode(str(value)),
    "workdir": _form(re.compile(r"/[^\0]*"), "an absolute path"),
    "yolo": fields.boolean,
    "conversation_id": fields.optional(_form(CONVERSATION_ID, "the id of a conversation")),
    "made_for": _job,
    "job_id": _job,
    "reason": _text,
    "exit": _text,
    "created_at": fields.time,
    "updated_at": fields.time,
    "ended_at": _time,
    "stop_requested": _text,
    "stopper": _text,
    "agent_name": fields.label,
    "agent_id": _agent_id,
    "generation_id": _agent_id,
    "host": fields.label,
    "socket": _form(TMUX_SOCKET, "a path or a plain name of a tmux socket"),
    "pane_id": fields.optional(_form(re.compile(r"%[0-9]{1,18}", re.ASCII), "a pane of tmux")),
    "pane_pid": _number,
    "pane_started": _number,
    "machine": fields.optional(fields.label),
    "parent": _job,
    "domain": fields.optional(fields.label),
}


def session_name(job: Job) -> str:
    """Return the name of a session that is created for this attempt of a job."""
    return f"job-{job.job_id}-{job.attempt}"


def job_label(agent_id: str) -> str:
    """Return the queue of jobs for the session of this live agent."""
    return f"{LIVE_QUEUE}{agent_id}"
