"""Read what a board shows of the selected job: its request with the exact call, screen or output, history, explanation,
result and diff.

Each function opens the registry of the job's home and closes it again, so it may run in any thread."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice

from baton.config import Settings
from baton.core.ending import ending_of
from baton.core.errors import BatonError
from baton.core.fields import visible
from baton.core.job import Job, Status
from baton.core.request import Request, RequestKind, notes
from baton.core.value import Any, Value
from baton.jobs.output import OutputReader, output_folder, parts_of
from baton.jobs.requests import call_lines
from baton.jobs.results import host_of, result_record
from baton.jobs.verbs import Jobs, open_jobs

_SCREENFUL = 64 * 1024  # bytes at the end of an output that a board shows
_MOST_LINES = 2000  # of a history
_LONGEST_DIFF = 512 * 1024


class View(Value):
    """What an agent shows. `kind` is `screen` (of a terminal), `output` (what it printed), or `none`: `note` says why.
    `text` may contain any character: a terminal must not get it as it is."""

    kind: str
    text: str
    note: str = ""


def read_job(settings: Settings, job_id: str) -> Job:
    """Return the job as it is now."""
    with open_jobs(settings) as jobs:
        return jobs.get_job(job_id)


def view(settings: Settings, job_id: str, *, screen: bool = True) -> View:
    """Return what the agent shows now: the screen of its session while it runs in a terminal, else the end of its
    output. `screen=False`: the output, if there is one. It needs one call of tmux at most."""
    job = read_job(settings, job_id)
    if screen and job.status is Status.RUNNING and (text := _screen(settings, job)) is not None:
        return View(kind="screen", text=text)
    text, begins_late = _output_end(settings.home, job)
    if text is not None:
        return View(kind="output", text=text, note="the beginning is not shown" if begins_late else "")
    host = host_of(job)
    if host is not None and host != settings.host:
        return View(kind="none", text="", note=f"the output is on {host}, where the job ran")
    if not screen and job.status is Status.RUNNING and (text := _screen(settings, job)) is not None:
        return View(kind="screen", text=text)
    why = "it has not been started yet" if job.status is Status.PENDING else "it has printed nothing that is kept here"
    return View(kind="none", text="", note=why)


def request_text(request: Request) -> str:
    """Return everything that an answer is for, in lines: the tool and the exact call, with control, hidden and bidi
    characters made visible; for a question, each question with its numbered choices."""
    lines = [f"tool: {request.tool}"]
    lines += notes(request)
    if request.agent_ref:
        lines.append(f"asked by subagent {request.agent_ref}")
    if request.kind is not RequestKind.QUESTION or not request.questions:
        lines += call_lines(request.call)
    for number, question in enumerate(request.questions, 1):
        lines.append(f"question {number}: {question.get('question')}")
        lines += [f"  {place}  {choice}" for place, choice in enumerate(question.get("choices") or (), 1)]
        if question.get("several"):
            lines.append("  (several may be chosen, such as 1,2)")
    return "\n".join(visible(line) for line in lines)


def describe_request(request: Request) -> dict[str, Any]:
    """Return an open request as JSON for a board: `text` is what the user must see before answering it, `text_sha256`
    names exactly this text."""
    from baton.core.hashing import sha256

    text = request_text(request)
    return {
        "request_id": request.request_id,
        "job_id": request.job_id,
        "kind": request.kind.value,
        "tool": visible(request.tool),
        "summary": request.summary,
        "text": text,
        "text_sha256": sha256(text.encode(errors="replace")).hexdigest(),
        "exact": request.exact,
        "screen_only": request.screen_only,
        "default_no": request.consent.default_no,
        "for_job": request.offers_for_job,
        "questions": [
            {
                "question": visible(str(each.get("question"))),
                "choices": [visible(str(choice)) for choice in each.get("choices") or ()],
                "several": bool(each.get("several")),
            }
            for each in request.questions
        ],
        "asked_at": request.asked_at,
        "expires_at": request.expires_at,
    }


def history(settings: Settings, job_id: str) -> list[dict[str, Any]]:
    """Return the lines of the audit log of a job, the oldest first; of a very long one, the last."""
    with open_jobs(settings) as jobs:
        lines = list(_lines(jobs, job_id))
    return lines[-_MOST_LINES:]


def explain(settings: Settings, job_id: str) -> dict[str, Any]:
    """Return what the job is doing and every fact behind it, as `baton explain --json` prints it."""
    from baton.sessions.explanation import explain_job

    with open_jobs(settings) as jobs:
        return explain_job(settings, jobs, jobs.get_job(job_id))


def result(settings: Settings, job_id: str) -> dict[str, Any] | None:
    """Return how a job ended and what it left, as `baton result --json` prints it; None before its end. It does not
    mark the end as seen: `actions.mark_seen` does."""
    with open_jobs(settings) as jobs:
        job = jobs.get_job(job_id)
        if (ending := ending_of(job)) is None:
            return None
        return {"ending": ending.text} | result_record(job, jobs.get_result(job_id), settings.home)


def diff(settings: Settings, job_id: str) -> str:
    """Return what the job changed in its worktree: committed, uncommitted and untracked. BatonError if it has none
    here."""
    from baton.worktrees import merging
    from baton.worktrees.trees import Tree, Trees

    job = read_job(settings, job_id)
    path = (job.checkout or {}).get("path")
    if path is None:
        missing = "yet" if job.worktree is not None else "; `baton submit --worktree` gives a job one"
        raise BatonError(f"job {job_id} has no worktree {missing}".replace(" ;", ";"))
    content, left_out = merging.diff(Trees(settings.data_dir).find_exact(path) or Tree.of_job(job))
    notes = [f"not shown: the nested repository {name}" for name in left_out]
    if len(content) > _LONGEST_DIFF:
        notes.append(f"not shown: what is beyond {_LONGEST_DIFF // 1024} KiB; `baton diff {job_id}` prints all")
    return "\n".join([content[:_LONGEST_DIFF].decode(errors="replace"), *notes])


def _screen(settings: Settings, job: Job) -> str | None:
    """Return the screen of the session that runs the job; None if it has none here."""
    from baton.adapters.contract import Mode
    from baton.sessions.inventory import Inventory
    from baton.sessions.of_job import running_session_of
    from baton.sessions.tmux import Tmux

    if not os.path.isdir(settings.home):
        return None
    session = running_session_of(Inventory(settings), job)
    if session is None or session.pane_id is None or session.host != settings.host or session.mode is Mode.HEADLESS:
        return None
    try:
        return Tmux(session.socket).capture_of(session.pane_id, session.pane_pid)
    except BatonError:
        return None  # the server has ended with its last session, or the pane is gone


def _output_end(home: str, job: Job) -> tuple[str | None, bool]:
    """Return the end of the output of the last attempt, and whether there is more before it; None without output."""
    folder = output_folder(home, job.job_id)
    if not parts_of(folder, job.attempt):
        return None, False
    reader = OutputReader(home, job)
    try:
        content, is_cut = b"", reader.begins_late
        for chunk in reader.read():
            content += chunk
            if len(content) > 4 * _SCREENFUL:
                content, is_cut = content[-_SCREENFUL:], True
    finally:
        reader.close()
    if len(content) > _SCREENFUL:
        content, is_cut = content[-_SCREENFUL:].partition(b"\n")[2], True
    return content.decode(errors="replace"), is_cut


def _lines(jobs: Jobs, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a history, without hashes; a payload as its detail and data."""
    for line in islice(jobs.history.lines(job_id), 100_000):
        shown = {name: value for name, value in line.items() if name not in ("prev", "payload")}
        payload = line.get("payload")
        if isinstance(payload, dict):
            data = {name: value for name, value in dict(payload.get("data") or {}).items() if name != "hmac_sig"}
            shown |= {"payload": {"event": payload.get("event"), "detail": payload.get("detail"), "data": data}}
        yield json.loads(json.dumps(shown, default=str))
