"""Define the record of a session: one tmux session with an agent in it, from its creation to its end."""

from __future__ import annotations

from enum import StrEnum

from baton.adapters.contract import Mode
from baton.config import present_host
from baton.core.job import Job
from baton.core.value import Any, Value
from baton.sessions.processes import ProcessId


class State(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"  # on request, with its conversation kept
    TERMINATED = "terminated"  # killed, or found dead
    ARCHIVED = "archived"  # released, with its tmux session left running


class Session(Value):
    """A row of the inventory.

    `made_for` is the job that the session was created for and ends with; `job_id` is the job in it now.
    `stop_requested` is the reason of a stop that has begun and not ended; `stopper` is the process (pid/start) that
    stops the session. `pane_pid` and `pane_started` are the identity of the runner. `machine` identifies the machine,
    whose name (`host`) may change.
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

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Session:
        """Return the session of an inventory row. Ignore unknown fields of a later version; missing ones are None."""
        values: dict[str, Any] = {name: record.get(_STORED_AS.get(name, name)) for name in cls.fields()}
        checked = {"state": State(record["state"]), "mode": Mode(record["mode"])}
        return cls(**values | checked | {"host": present_host(values["host"], values["machine"])})

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

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.state}>"


_STORED_AS = {"stop_requested": "ending"}


def session_name(job: Job) -> str:
    """Return the name of a session that is created for this attempt of a job."""
    return f"job-{job.job_id}-{job.attempt}"


def job_label(agent_id: str) -> str:
    """Return the queue of jobs for the session of this live agent."""
    return f"agent:{agent_id}"
