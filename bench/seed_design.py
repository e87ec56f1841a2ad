"""The seeds' registry, written anew from its description, to measure against.

One JSON file per job, one flock over `.lock` around every read-modify-write, and a claim that reads every
record there is. As described: the record is synced to the disk before it takes its place, the folder is not.
The seeds' audit log is left out; it would make each change slower still.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class SeedRegistry:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def register_job(self, prompt: str, agent: str, agent_session: str) -> str:
        record = _new_record(prompt, agent, agent_session)
        with self._lock():
            self._write(record)
        return record["job_id"]

    def fill(self, count: int, prompt: str, agent: str, agent_session: str) -> None:
        """As `register_job` that many times, without waiting for the disk: not part of the design."""
        for _ in range(count):
            self._write(_new_record(prompt, agent, agent_session), durable=False)
        os.sync()

    def get_job(self, job_id: str) -> dict[str, Any]:
        with open(self._path(job_id), encoding="utf-8") as file:
            return json.load(file)

    def pick_pending(self, agent_session: str) -> str | None:
        with self._lock():
            oldest: dict[str, Any] | None = None
            for name in os.listdir(self.folder):
                if not name.endswith(".json"):
                    continue
                with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                    record = json.load(file)
                if (
                    record["status"] == "pending"
                    and record["agent_session"] == agent_session
                    and (oldest is None or record["created_at"] < oldest["created_at"])
                ):
                    oldest = record
            if oldest is None:
                return None
            oldest["status"] = "running"
            oldest["updated_at"] = _now()
            self._write(oldest)
            return oldest["job_id"]

    def update_status(self, job_id: str, status: str) -> None:
        with self._lock():
            record = self.get_job(job_id)
            record["status"] = status
            record["updated_at"] = _now()
            self._write(record)

    def next_seq(self, job_id: str) -> int:
        with self._lock():
            record = self.get_job(job_id)
            record["last_seq"] += 1
            record["updated_at"] = _now()
            self._write(record)
            return record["last_seq"]

    def _path(self, job_id: str) -> str:
        return os.path.join(self.folder, f"{job_id}.json")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with open(os.path.join(self.folder, ".lock"), "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, record: dict[str, Any], *, durable: bool = True) -> None:
        temporary = os.path.join(self.folder, f".{record['job_id']}.{secrets.token_hex(4)}.tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(record, file, ensure_ascii=False, indent=2)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, self._path(record["job_id"]))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _new_record(prompt: str, agent: str, agent_session: str) -> dict[str, Any]:
    job_id = secrets.token_hex(4)
    return {
        "schema_version": 1,
        "job_id": job_id,
        "status": "pending",
        "created_at": _now(),
        "updated_at": _now(),
        "prompt": prompt,
        "agent": agent,
        "agent_session": agent_session,
        "broker": {
            "host": "broker.hivemq.com", "port": 1883, "tls": False, "username": None, "password": None,
        },
        "topic_prefix": f"python/mqtt/jobs/{job_id}",
        "timeout_sec": 600,
        "idle_timeout_sec": 120,
        "expected_artifacts": ["sort_problems.md"],
        "last_seq": 0,
        "auth_token": None,
    }  # fmt: skip
