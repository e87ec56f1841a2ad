"""Send notifications to the user: run a command, ring the terminal, call a webhook.

A notification is due from the change that it announces until it was sent. The runner sends those of its job; a monitor
those whose runner was killed. Each is claimed first, so that one process sends it. A sender that dies in between leaves
it to another: then it may arrive twice, with the same id.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from baton.config import Settings
from baton.core.clock import SECOND_NS, format_micros, parse_time
from baton.core.ending import ending_of
from baton.core.errors import BatonError
from baton.core.fields import one_line
from baton.core.hashing import hmac_sha256
from baton.core.notification import WAITING, Due, NotifySettings, claim, due_to, settle
from baton.core.outline import asks_at_screen, present_activity
from baton.core.request import Request
from baton.core.value import Value
from baton.jobs.verbs import Jobs, open_jobs
from baton.origin import obeyed_environment
from baton.registry.contract import JobFilter
from baton.sessions.processes import ProcessId
from baton.storage.files import read_file

_COMMAND_SEC = 15.0
_WEBHOOK_SEC = 5.0
_OLD_NS = 600 * SECOND_NS
_TOO_OLD_NS = 86400 * SECOND_NS
_TEXT = 300


class Sent(Value):
    """A notification that this process sent, or could not send: then `error` says why."""

    due: Due
    error: str | None


def find_due(jobs: Jobs) -> list[Due]:
    """Return the notifications that are due to this user. The cost does not grow with old jobs."""
    user = jobs.user_here()
    return [due for job in jobs.each_job(JobFilter(notify_due=True)) for due in due_to(job, user)]


def send(settings: Settings, jobs: Jobs, found: Iterable[Due]) -> Iterator[Sent]:
    """Send those of these notifications that no other process sends."""
    sender = str(ProcessId.current())
    change = jobs.registry.change_notifications
    for due in found:
        job_id, key = due.job.job_id, due.key
        claimed = change(job_id, partial(claim, key=key, sender=sender, is_dead=_is_dead))
        if claimed.after is claimed.before:
            continue
        errors: dict[str, str | None] = {}
        present = due.replace(job=claimed.after)
        if settings.notify is not None and not _is_outdated(jobs, present):
            errors = _deliver(settings.notify, jobs, present)
        done = [channel for channel, error in errors.items() if error is None]
        failed = "; ".join(error for error in errors.values() if error is not None)
        change(job_id, partial(settle, key=key, sender=sender, done=done, failed=bool(failed)))
        yield Sent(due=due, error=failed or None)


def send_of_job(settings: Settings, job_id: str, log: Callable[[str], None], *, ended: bool = True) -> None:
    """Send the notifications of one job; without `ended`, not that of its end. Log what could not be sent: the monitor
    tries again."""
    if settings.notify is None:
        return
    with open_jobs(settings) as jobs:
        found = [due for due in due_to(jobs.get_job(job_id), jobs.user_here()) if ended or due.number]
        for each in send(settings, jobs, found):
            if each.error is not None:
                log(f"baton: notification {each.due.id}: {each.error}")


def send_soon(settings: Settings, jobs: Jobs, job_id: str, log: Callable[[str], None]) -> None:
    """Send the notifications of a running job from a thread: a command of the user may take seconds. That of its end is
    sent by the runner before it ends itself."""

    def work() -> None:
        try:
            send_of_job(settings, job_id, log, ended=False)
        except (BatonError, OSError) as error:
            log(f"baton: notifications of job {job_id}: {error}; the monitor tries again")

    try:
        due = due_to(jobs.get_job(job_id), jobs.user_here())
    except (BatonError, OSError):
        return  # the next event, or the monitor, tries again
    if any(each.number for each in due):
        from threading import Thread

        Thread(target=work, daemon=True).start()


def _is_dead(sender: str) -> bool:
    process = ProcessId.parse(sender)
    return process is None or not process.is_alive()


def _is_outdated(jobs: Jobs, due: Due) -> bool:
    """Return whether the notification would only disturb: the job goes on, or it ended long ago, or its end was seen
    since."""
    job = due.job
    if due.is_at_screen:
        return not asks_at_screen(job, now_ns=time.time_ns())
    if due.kind == WAITING:
        return _open_request(jobs, due) is None
    if due.number:
        present = present_activity(job, now_ns=time.time_ns())
        return present is None or present["kind"] != due.kind
    age_ns = time.time_ns() - parse_time(job.finished_at or job.updated_at)
    return age_ns > (_TOO_OLD_NS if job.seen_at is None else _OLD_NS)


def _deliver(wanted: NotifySettings, jobs: Jobs, due: Due) -> dict[str, str | None]:
    """Deliver a notification on the channels that have not had it; return why each failed, or None."""
    event = _describe(jobs, due)
    results: dict[str, str | None] = {}
    if wanted.bell and "bell" not in due.done:
        results["bell"] = _ring(event)
    if wanted.command and "command" not in due.done:
        results["command"] = _run(wanted.command, event)
    if wanted.webhook is not None and wanted.webhook_key_file is not None and "webhook" not in due.done:
        redact = jobs.redactor(due.job).text
        # What leaves the machine has no paths and no secrets.
        event |= {name: redact(event[name]) for name in ("title", "reason", "ending") if event[name]} | {
            "workdir": None
        }
        results["webhook"] = _post(wanted.webhook, wanted.webhook_key_file, event)
    return results


def _describe(jobs: Jobs, due: Due) -> dict[str, Any]:
    """Return what is sent. The prompt is not: it may be long, and private."""
    job = due.job.public()
    names = ("job_id", "attempt", "status", "title", "reason", "ended_by", "agent", "workdir", "finished_at")
    about = {"id": due.id, "kind": due.kind, "sent_at": format_micros(time.time_ns())}
    event = about | {name: job[name] for name in names} | {"request_id": None}
    if due.kind == WAITING and (request := _open_request(jobs, due)) is not None:
        event |= {"reason": request.summary, "request_id": request.request_id}
    elif due.number and due.job.activity is not None:
        event["reason"] = due.job.activity["cause"]
    ending = None if due.number else ending_of(due.job)
    about_end = {"ending": None if ending is None else ending.text, "grade": due.job.grade, "changed": due.job.changed}
    return event | about_end


def _open_request(jobs: Jobs, due: Due) -> Request | None:
    """Return the open request that a notification is about; None if it is not open any more."""
    found = jobs.registry.list_requests(job_id=due.job.job_id)
    return next((request for request in found if request.request_id == due.number), None)


def _ring(event: dict[str, Any]) -> str | None:
    """Ring the bell of this process's terminal, if it has one, with a notification for terminals that show one (OSC
    777). Return why that failed, or None."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    # A semicolon would begin the next part of the sequence, and a control character end it.
    words = (f"baton: {event['ending'] or event['kind']}", event["title"] or event["job_id"])
    title, text = (one_line(word, _TEXT).replace(";", ",") for word in words)  # guard: notification-on-terminal
    try:
        os.write(2, f"\x1b]777;notify;{title};{text}\x07\x07".encode(errors="replace"))
    except OSError as error:
        return f"the terminal could not be written: {error.strerror}"
    return None


def _run(command: tuple[str, ...], event: dict[str, Any]) -> str | None:
    """Run the user's command with the notification as JSON on its input; return why it failed, or None."""
    import subprocess

    about = {"BATON_NOTIFY_ID": event["id"], "BATON_NOTIFY_KIND": event["kind"], "BATON_JOB_ID": event["job_id"]}
    try:
        done = subprocess.run(
            command, input=json.dumps(event).encode(), env={**obeyed_environment(), **about}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, timeout=_COMMAND_SEC, check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {_COMMAND_SEC:g} s"
    except OSError as error:
        return f"{command[0]} could not be run: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return f"{command[0]} failed with exit code {done.returncode}" + (f": {lines[-1][:200]}" if lines else "")


def _post(url: str, key_file: str, event: dict[str, Any]) -> str | None:
    """Send the notification to the webhook, signed; return why that failed, or None. Follow no redirection."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    try:
        key = read_file(key_file).strip()
    except OSError as error:
        return f"{key_file} cannot be read: {error.strerror}"
    if not key:
        return f"{key_file} is empty: there is no key to sign with"
    body = json.dumps(event).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Baton-Id": event["id"],
        "X-Baton-Signature": f"sha256={hmac_sha256(key, body).hex()}",
    }
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_WEBHOOK_SEC)
    try:
        connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"the webhook could not be reached: {type(error).__name__}: {error}"
    finally:
        connection.close()
    return None if 200 <= status < 300 else f"the webhook answered {status}"
