"""Requests and activities of agents, written to a registry without an agent."""

from __future__ import annotations

import time

from baton.core.clock import SECOND_NS, format_time
from baton.core.request import Request, RequestKind, new_request_id

QUESTION = {"question": "Which colour?", "choices": ["red", "green"], "several": False}


def a_request(job, **changes) -> Request:
    """A request for a tool call of this job."""
    fields = {
        "request_id": new_request_id(), "job_id": job.job_id, "attempt": job.attempt, "key": "k1",
        "kind": RequestKind.TOOL, "agent_ref": None, "tool": "Bash", "call": {"command": "git push origin main"},
        "call_sha256": None, "exact": True, "summary": "Bash: git push origin main", "options": (),
        "asked_at": format_time(time.time_ns()),
    }  # fmt: skip
    fields |= changes
    return Request(**fields | {"kind": RequestKind(fields["kind"])})


def ask(registry, job, **changes) -> Request:
    """Open a request of a running job."""
    request = a_request(job, **changes)
    opened = registry.open_request(job.job_id, request, attempt=job.attempt, detail=request.summary, data={})
    return opened.after


def set_activity(registry, job, kind, cause="", *, since_sec=0.0, lease_sec=60.0, **more):
    """Write what the agent of a running job does."""
    since = format_time(time.time_ns() - int(since_sec * SECOND_NS))
    activity = {"kind": kind, "since": since, "cause": cause, **more}
    return registry.set_activity(job.job_id, activity, attempt=job.attempt, lease_sec=lease_sec)


def running(jobs, prompt="work", **fields):
    """A job that this test holds."""
    job = jobs.register_job(prompt, **{"agent": "claude-code"} | fields)
    return jobs.pick_job(job.job_id, holder=f"{jobs._host}:test:1", lease_sec=60)
