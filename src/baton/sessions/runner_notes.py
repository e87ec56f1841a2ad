"""Write the files by which a runner tells `launch` and the user how it began, how it failed and how it ended."""

import json
import os
from functools import partial

from baton.core import errors
from baton.sessions.chores import attempt
from baton.sessions.launch import BEGUN, RUNNER_LOG
from baton.sessions.terminal import print_line
from baton.storage.files import replace_file


def write(path: str, text: str) -> None:
    """Write a file for the user. A failure is shown, and nothing else."""
    try:
        replace_file(path, text.encode(errors="replace"))
    except OSError as error:
        print_line(f"baton: {path}: {error.strerror}")


def write_begun(folder: str, **content: object) -> None:
    """Notify `launch`, which waits for this file."""
    path = os.path.join(folder, BEGUN)
    if not os.path.exists(path):
        replace_file(path, json.dumps(content).encode(), durable=False)


def show_failure(folder: str, error: Exception) -> str:
    """Show on the pane, and to `launch`, why the runner failed; return it. A bug's traceback goes to a file."""
    reason = str(error)
    if not isinstance(error, errors.BatonError):
        import traceback

        path = os.path.join(folder, RUNNER_LOG)
        write(path, traceback.format_exc())
        what = errors.describe_system_error(error) or f"{type(error).__name__}: {error}"
        reason = f"the runner failed: {what}; see {path}"
    print_line(f"baton: {reason}")
    busy = isinstance(error, errors.RegistryUnavailable)  # guard: refused-claim
    attempt(partial(write_begun, folder, failed=reason, busy=busy))
    return reason
