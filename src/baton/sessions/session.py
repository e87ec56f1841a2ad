"""A session: one tmux session with an agent in it, from its creation to its end."""

from __future__ import annotations

from enum import StrEnum

from baton.adapters.contract import Mode
from baton.core.value import Value
from baton.sessions.processes import ProcessId

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from baton.core.job import Job


class State(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"  # on purpose, the conversation kept
    TERMINATED = "terminated"  # killed, or found dead
    ARCHIVED = "archived"  # ours no longer; tmux was left alive


class Session(Value):
    """What the inventory knows. `ending` is the reason somebody gave for stopping it, until it has stopped, and
    `stopper` that process (pid/start).
    `made_for` is the job it was created for, and ends with; `job_id` the one that is in it now."""

    name: str
    session_id: str
    state: State
    agent: str
    mode: Mode
    workdir: str
    yolo: bool
    conversation_id: str | None
    made_for: str | None
    job_id: str | None
    agent_name: str
    agent_id: str
    generation_id: str
    host: str
    socket: str
    pane_id: str | None
    pane_pid: int | None
    pane_started: int | None
    created_at: str
    updated_at: str
    ended_at: str | None
    ending: str | None
    stopper: str | None
    reason: str | None
    exit: str | None

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Session:
        """From our own inventory: a field that a later version added is passed over, one it lacks is empty."""
        values: dict[str, Any] = {name: record.get(name) for name in cls.fields()}
        return cls(**values | {"state": State(record["state"]), "mode": Mode(record["mode"])})

    def runner(self) -> ProcessId | None:
        """Return the process in the pane; None until it was started."""
        if self.pane_pid is None or self.pane_started is None:
            return None
        return ProcessId(pid=self.pane_pid, started=self.pane_started)

    def has_live_runner(self) -> bool:
        """Return whether the process in the pane runs. Ask only on the session's own host."""
        runner = self.runner()
        return runner is not None and runner.is_alive()

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ORDER}

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.state}>"


def session_name(job: Job) -> str:
    """Of a session that is made for this attempt of a job."""
    return f"job-{job.job_id}-{job.attempt}"


def job_label(agent_id: str) -> str:
    """The queue of jobs that are meant for the session of this live agent alone."""
    return f"agent:{agent_id}"


_ORDER: Final = (
    "name", "session_id", "state", "agent", "mode", "workdir", "yolo", "conversation_id", "made_for", "job_id",
    "reason", "exit", "created_at", "updated_at", "ended_at", "ending", "stopper", "agent_name", "agent_id",
    "generation_id", "host", "socket", "pane_id", "pane_pid", "pane_started",
)  # fmt: skip
