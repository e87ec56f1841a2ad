"""Write to audit logs from scripts, with the functions of the earlier scripts: a job id and what to write are enough.

They are best effort: a log that cannot be written is a warning on standard error and False, so that the work beside it
goes on. A wrong value raises InvalidValue.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import time_ns

from baton.core.clock import parse_time
from baton.core.errors import BatonError, InvalidValue
from baton.core.fields import check_job_id, storable_json
from baton.core.job import TERMINAL, check_status
from baton.core.value import Any
from baton.history import log


def init_job_log(record: Mapping[str, Any], logs_dir: str | None = None) -> bool:
    """Begin the history of a job with its record, secrets hidden; do nothing when it has begun already."""
    if not isinstance(record, Mapping):
        raise InvalidValue("record", f"must be values by name, not {type(record).__name__}")
    job_id = check_job_id(record.get("job_id"))
    check_status(str(record.get("status")))
    _check_json("record", record)
    return _try(job_id, lambda: log.init_job_log(record, now_ns=time_ns(), logs_dir=logs_dir))


def append_event(job_id: str, event: Mapping[str, Any], logs_dir: str | None = None) -> bool:
    """Append a line to the history of a job. `ts` may give its time, which must not be before the last line's."""
    check_job_id(job_id)
    if not isinstance(event, Mapping) or not isinstance(event.get("event"), str):
        raise InvalidValue("event", "must be values by name, with the name of the line as `event`")
    if reserved := {"n", "prev"} & event.keys():  # guard: chain-of-a-script
        raise InvalidValue(min(reserved), "is given to each line by baton; leave it out")
    _check_json("event", event)
    line = dict(event)
    given_ns = None
    if (given := line.pop("ts", None)) is not None:
        try:
            given_ns = parse_time(str(given))
        except ValueError as error:
            raise InvalidValue("ts", str(error)) from None

    def write() -> None:
        with _open(job_id, logs_dir, given_ns) as (fd, folder, now_ns):
            log.append_lines(fd, folder, [line], now_ns, None)

    return _try(job_id, write)


def update_logged_status(job_id: str, status: str, logs_dir: str | None = None) -> bool:
    """Append a change of status to the history of a job; nothing when it has that status. Raise InvalidValue when the
    job has ended with another one."""
    check_job_id(job_id)
    wanted = check_status(status)

    def write() -> None:
        with _open(job_id, logs_dir, None) as (fd, folder, now_ns):
            logged = log.read_logged_status(job_id, logs_dir)
            if logged in TERMINAL and logged != wanted:
                raise InvalidValue("status", f"cannot become {wanted}: job {job_id} is {logged}")
            if logged != wanted:
                line = {"event": "status_changed", "from": logged, "to": wanted}
                log.append_lines(fd, folder, [line], now_ns, wanted)

    return _try(job_id, write)


@contextmanager
def _open(job_id: str, logs_dir: str | None, given_ns: int | None) -> Iterator[tuple[int, str, int]]:
    """Lock a log; yield its descriptor, its folder and the time of the next line, which is never before the last."""
    with log.locked_log(job_id, logs_dir) as (fd, folder):
        last_ns = log.last_time_ns(fd)
        if given_ns is not None and given_ns < last_ns:  # guard: time-of-a-script
            raise InvalidValue("ts", "must not be before the last line of the log")
        yield fd, folder, given_ns if given_ns is not None else max(time_ns(), last_ns)


def _check_json(name: str, value: Mapping[str, Any]) -> None:
    try:
        storable_json(value)
    except ValueError as error:
        raise InvalidValue(name, f"must be JSON: {error}") from None


def _try(job_id: str, write: Callable[[], None]) -> bool:
    try:
        write()
    except InvalidValue:
        raise
    except (BatonError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        print(f"baton: warning: the audit log of job {job_id} could not be written: {why}", file=sys.stderr)
        return False
    return True
