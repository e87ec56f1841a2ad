"""Read and write the manifest of a session, which says where it is in tmux and which process it is."""

import json
from typing import Any

from baton.config import present_host
from baton.core.errors import ManifestGone, ManifestInvalid
from baton.core.fields import parse_json
from baton.core.value import Value
from baton.live_agents.record import AgentRecord, new_record
from baton.sessions.processes import ProcessId, started_at
from baton.storage.files import read_file, replace_file

SCHEMA_VERSION = 1
_MAX_BYTES = 64 * 1024
_TEXTS = ("agent_name", "agent_id", "generation_id", "backend", "tool", "session_name")


class Manifest(Value):
    """`pane_pid` and `pane_started` identify the process in the pane: another session may get the same name later."""

    agent_name: str
    agent_id: str
    generation_id: str
    backend: str
    tool: str
    session_name: str
    socket: str | None
    host: str | None
    machine: str | None = None
    workdir: str | None
    pane_pid: int | None
    pane_started: int | None
    home_id: str | None = None

    def process_lives(self) -> bool | None:
        """Return whether the process in the pane still runs on this host; None when the manifest names none."""
        if self.pane_pid is None:
            return None
        if self.pane_started is None:
            return started_at(self.pane_pid) is not None
        return ProcessId(pid=self.pane_pid, started=self.pane_started).is_alive()

    def agent_record(self, path: str, *, now_ns: int, lease_ns: int, **others: Any) -> AgentRecord:
        """Return the record of the agent whose manifest is at this path, ready to be published."""
        same = {name: each for name, each in self.as_dict().items() if name in AgentRecord.fields()}
        return new_record(now_ns=now_ns, lease_ns=lease_ns, manifest_path=path, **same, **others)

    def write(self, path: str) -> None:
        record = {"schema_version": SCHEMA_VERSION} | self.as_dict()
        replace_file(path, json.dumps(record, indent=2).encode() + b"\n")


def read_manifest(path: str) -> Manifest:
    """Return the manifest in a file. Raise ManifestGone when there is no file, ManifestInvalid when it is not one."""
    try:
        record = parse_json(read_file(path, _MAX_BYTES))
    except FileNotFoundError:
        raise ManifestGone(f"manifest {path} no longer exists") from None
    except OSError as error:
        raise ManifestInvalid(f"manifest {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ManifestInvalid(f"manifest {path} is not JSON") from None
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
        raise ManifestInvalid(f"manifest {path} is not of schema_version {SCHEMA_VERSION}")
    values: dict[str, Any] = {}
    for name in Manifest.fields():
        value = record.get(name)
        wanted = int if name.startswith("pane_") else str
        if type(value) is not wanted and not (value is None and name not in _TEXTS):
            raise ManifestInvalid(f"manifest {path}: {name} is not {'a number' if wanted is int else 'text'}")
        values[name] = value
    if values["host"] is not None:
        values["host"] = present_host(values["host"], values["machine"])
    return Manifest(**values)
