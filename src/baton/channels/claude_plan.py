"""Read the plan that Claude Code wants approved. Its call has no plan: that is in a file, which the transcript names.

What is read is what a person is shown, and what an answer is for. A file that is not certainly Claude's own plan is
named, and the call is not exact."""

from __future__ import annotations

import errno
import os
import stat

from baton.core.fields import UNEXPECTED_SHAPE, one_line, parse_json
from baton.core.request import MAX_CALL_BYTES
from baton.core.value import Any, Value
from baton.storage.files import open_given_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO

CHANGED = "the plan was changed after it was shown; it is asked again, as it is now"
MOST_CHANGES = 20  # of one plan while it waits for approval
_FOLDER = "plans"  # in Claude's configuration folder
_NAMED = b'"planFilePath":'
_LONGEST_PLAN = MAX_CALL_BYTES // 2  # the call also has escapes and the path
_CHUNK_BYTES = 1024 * 1024
_LOOK_BACK_BYTES = 64 * _CHUNK_BYTES
_LONGEST_LINE = 4 * _CHUNK_BYTES


class Plan(Value):
    """A plan as it is now. `call` is what a person is shown; `why_inexact` says why it may not be the whole plan.
    `given` are the arguments that approve it. `file` is the content of its file, and what is wrong with that file."""

    call: Any
    given: Any = None
    why_inexact: str = ""
    file: tuple[bytes, str] | None = None


def read_plan(given: Any, transcript: str | None, folder: str, before: Plan | None = None) -> Plan:
    """Return the plan of a call with these arguments. Claude writes it to a file, and names that in the call, together
    with the plan, or in the transcript alone. `folder` is Claude's configuration folder, where the transcript and the
    plans must be. `before` is the plan as it was shown: it stays while the file does."""
    call = dict(given) if isinstance(given, dict) else {"input": given}
    text, path = call.get("plan"), call.get("planFilePath")
    if not isinstance(path, str):
        path = _find_file(transcript, folder) if transcript is not None and not isinstance(text, str) else None
    file = None if path is None else _read(path, folder)
    if before is not None and before.file == file:
        return before
    if isinstance(text, str):
        # What approves the call names the plan: Claude goes on with this text, whatever is in the file.
        if before is not None and file is not None:
            call, why = (call, file[1]) if file[1] else (call | {"plan": _text(file[0])}, "")
            return Plan(call=call, given=call, why_inexact=why, file=file)
        return Plan(call=call, given=given, file=file)
    if path is None or file is None:
        return Plan(call=call, given=given, why_inexact="the conversation does not name the file of its plan")
    call["planFilePath"] = path
    content, why = file
    if content or not why:
        call["plan"] = _text(content)
    return Plan(call=call, given=given, why_inexact=why, file=file)


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


class _Shown:
    """A plan that waits for approval, as it was shown. `given` are the arguments of Claude's call."""

    def __init__(self, given: Any, plan: Plan) -> None:
        self.given, self.plan, self.changes = given, plan, 0


class Plans:
    """The plans that wait for approval, by the keys of their questions. `transcript` returns the path of the session's
    transcript, if it is known."""

    def __init__(self, folder: str, transcript: Callable[[], str | None]) -> None:
        self._folder, self._transcript = folder, transcript
        self._shown: dict[str, _Shown] = {}

    def __bool__(self) -> bool:
        return bool(self._shown)

    def ask(self, key: str, given: Any) -> Plan:
        """Return the plan to show for this question."""
        plan = read_plan(given, self._transcript(), self._folder)
        self._shown[key] = _Shown(given, plan)
        return plan

    def given(self, key: str, otherwise: Any) -> Any:
        """Return the arguments that approve the plan that was shown; `otherwise` for another question."""
        shown = self._shown.get(key)
        return otherwise if shown is None else shown.plan.given

    def take_change(self, key: str, new_key: str) -> Plan | None:
        """Return the plan if it is no longer what was shown: it is asked again, under the new key. None if it is.

        A plan that changes all the time is asked a last time as it is then, as one that is not exact."""
        shown = self._shown.get(key)
        if shown is None or shown.changes > MOST_CHANGES:
            return None
        plan = read_plan(shown.given, self._transcript(), self._folder, shown.plan)
        if plan == shown.plan:
            return None
        shown.changes += 1
        if shown.changes > MOST_CHANGES:  # guard: plan-changes
            plan = plan.replace(why_inexact=f"the plan has changed {shown.changes} times while it waited for an answer")
        shown.plan = plan
        self._shown[new_key] = self._shown.pop(key)
        return plan

    def forget(self, key: str) -> None:
        """Forget a question that is not open any more."""
        self._shown.pop(key, None)


class _NotThePlan(Exception):
    """A file is not certainly the plan of Claude. The message says why."""


def _read(path: str, folder: str) -> tuple[bytes, str]:
    """Return the content of a plan file, and why it cannot be taken for the plan; "" if it can."""
    content = b""
    try:
        with _open(path, folder) as file:
            content = file.read(_LONGEST_PLAN + 1)
        if len(content) > _LONGEST_PLAN:  # guard: plan-too-long
            content = content[:_LONGEST_PLAN]
            raise _NotThePlan(f"is longer than {_LONGEST_PLAN // 1024} KiB")
        if _text(content).encode(errors="replace") != content:
            raise _NotThePlan("is not valid UTF-8")
    except (_NotThePlan, OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        why = {errno.ENOENT: "is gone", errno.ELOOP: "is a link"}.get(number or 0, "cannot be read")
        return content, f"the plan file {one_line(path, 200)} {error if isinstance(error, _NotThePlan) else why}"
    return content, ""


def _open(path: str, folder: str) -> IO[bytes]:
    place = os.path.join(folder, _FOLDER)
    is_there = os.path.isabs(path) and os.path.realpath(os.path.dirname(path)) == os.path.realpath(place)
    if not is_there:  # guard: plan-folder
        raise _NotThePlan(f"is outside {place}, where Claude Code keeps plans")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):  # guard: plan-regular-file
            raise _NotThePlan("is not a regular file")
        if found.st_uid != os.geteuid():  # guard: plan-owner
            raise _NotThePlan("belongs to another user")
    except _NotThePlan:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def _find_file(transcript: str, folder: str) -> str | None:
    """Return the plan file that the transcript names last."""
    inside = os.path.realpath(folder) + os.sep
    if not os.path.realpath(transcript).startswith(inside):  # guard: plan-transcript
        return None
    try:
        with open_given_file(transcript) as file:
            size = file.seek(0, os.SEEK_END)
            for line in _lines_back(file.fileno(), size):
                if _NAMED in line and (path := _path_in(line)) is not None:
                    return path
    except OSError:
        return None
    return None


def _lines_back(fd: int, size: int) -> Iterator[bytes]:
    """Yield the complete lines of a file from its end, within limits. A longer line is left out."""
    rest, end = b"", size
    while end > max(0, size - _LOOK_BACK_BYTES):
        start = max(0, end - _CHUNK_BYTES)
        first, *lines = (os.pread(fd, end - start, start) + rest).split(b"\n")
        yield from reversed(lines)
        rest, end = first if len(first) <= _LONGEST_LINE else b"", start
    if end == 0:
        yield rest


def _path_in(line: bytes) -> str | None:
    """Return the plan file that a line of Claude's own names. What the model or a tool said is in other lines."""
    try:
        message: Mapping[str, Any] = parse_json(line.decode(errors="replace"))
        about = message["attachment"]
        is_own = message["type"] == "attachment" and str(about["type"]).startswith("plan_mode")
        if is_own and not message.get("isSidechain") and not about.get("isSubAgent"):
            return str(about["planFilePath"])
    except UNEXPECTED_SHAPE:
        return None  # it is another line
    return None


def find_transcript(folder: str, conversation: str | None) -> str | None:
    """Return the transcript of a conversation, whose folder has a name of Claude's own making."""
    projects = os.path.join(folder, "projects")
    if not conversation:
        return None
    try:
        names = os.listdir(projects)
    except OSError:
        return None
    found = [os.path.join(projects, name, f"{conversation}.jsonl") for name in names]
    return next((path for path in found if os.path.isfile(path)), None)
