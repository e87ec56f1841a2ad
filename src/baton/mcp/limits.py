"""Refuse what would lead a client out of its own sandbox, unless the user's settings allow it.

A client may be held in its folder, without a shell. This server is not: a job that runs commands, or that works
elsewhere, is a way out. So a job for a command (the agent `shell`, or an agent of the user's own whose prompt baton
hands to a program), a validation, and a work folder outside of the folder in which the client has started the server
need a word in [mcp] allow. A session that asks for no permissions (--yolo) is never given a prompt.
"""

from __future__ import annotations

import os

from baton.adapters import find_agent
from baton.adapters.shell import Shell
from baton.config import MCP_ALLOW, Settings
from baton.core.clock import SystemClock
from baton.core.errors import BatonError
from baton.core.job import Status, agent_name
from baton.core.outline import Outline, activity_of, present_ns
from baton.core.value import Any
from baton.jobs.caller import refuse_inside_session
from baton.jobs.requests import list_open
from baton.storage.files import outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.session import Session

_SHELL, _VALIDATE, _WORKDIR = MCP_ALLOW
# What an agent does while its screen asks nothing, as far as baton knows.
_ASKS_NOTHING = frozenset({"working", "idle", "retrying", "limited"})


class Limits:
    """What a client may ask for. `folder` is the one in which it has started the server."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self._settings = settings
        self._folder = folder

    def bind(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a new job, bound to the folder: a link that is changed before the job starts leads it
        nowhere else. Raise BatonError for what the user does not allow."""
        if "validate" in given and _VALIDATE not in self._settings.mcp_allow:  # guard: mcp-validate
            raise self._refused("a validation is a shell command", _VALIDATE)
        if "to" in given:
            self._check_live_agent(given["to"])
        else:
            self._check_agent(given.get("agent", self._settings.agent))
        workdir = os.path.realpath(given.get("workdir") or ".")
        self._check_folder(workdir)
        if "to" in given or _WORKDIR in self._settings.mcp_allow:
            return given
        if given.get("worktree", self._settings.worktree):
            self._check_repository(workdir)
        return given | {"workdir": workdir, "within": self._folder}

    def check_message(self, job: Job, session: Session | None) -> None:
        """Raise BatonError if a text for this job would go where the user does not let the client go. `session` is that
        of the job, None without one."""
        if job.start_options.get("yolo") or (session is not None and session.yolo):  # guard: mcp-yolo
            raise BatonError(
                f"job {job.job_id} runs with --yolo, so its agent asks for no permissions: no message is passed on; "
                f"ask the user to run: baton follow-up {job.job_id}"
            )
        self._check_agent(job.agent if session is None else session.agent)
        # The worktree of a job lies outside: its repository counts.
        workdir = job.workdir if session is None or job.worktree is not None else session.workdir
        self._check_folder(workdir or "/")

    def runs_commands(self, name: str) -> bool:
        """Return whether the prompt of an agent is a command, as far as baton can know: of an agent that the user has
        defined by a command of its own, baton does not know what that does with the prompt."""
        from baton.adapters.custom import Custom

        return isinstance(find_agent(self._settings, name), Shell | Custom)

    def _check_agent(self, name: str) -> None:
        name, allow = agent_name(name), self._settings.mcp_allow
        is_named = name in allow and name not in MCP_ALLOW
        if self.runs_commands(name) and _SHELL not in allow and not is_named:  # guard: mcp-shell
            what = "is a shell command" if name == Shell.name else "goes to a command of your user's own"
            raise self._refused(f"the prompt of agent {name} {what}", _SHELL if name in MCP_ALLOW else name)

    def _check_folder(self, workdir: str) -> None:
        if _WORKDIR not in self._settings.mcp_allow and outside(workdir, self._folder):  # guard: mcp-workdir
            raise self._refused(f"{workdir} lies outside of {self._folder}, where this server was started", _WORKDIR)

    def _check_repository(self, workdir: str) -> None:
        """Refuse a worktree of a repository that a file in the folder names, and that lies elsewhere."""
        from baton.worktrees.git import find_repository

        source = find_repository(workdir)
        if outside(source.top, self._folder):
            return  # the folder lies in that repository, so the client has not made its .git
        if outside(source.common, self._folder) and not source.names_its_work_tree():  # guard: mcp-repository
            where = f"the repository of {workdir} is {source.common}"
            raise self._refused(f"{where}, outside of {self._folder}, where this server was started", _WORKDIR)

    def _check_live_agent(self, name: str) -> None:
        """Refuse a live agent whose jobs are in another home, where the other tools would not find the job, and one
        whose session may not get a prompt of the client."""
        from baton.delegation.targets import target_live_agent
        from baton.sessions.inventory import Inventory
        from baton.sessions.session import State, job_label

        target = target_live_agent(self._settings, name)
        if target.note is not None:
            raise BatonError(f"{target.note}, where these tools do not find it; use baton in the folder of that agent")
        running = Inventory(self._settings).all(State.RUNNING)
        session = next((each for each in running if job_label(each.agent_id) == target.queue), None)
        if session is None or target.workdir is None:
            what = f"baton cannot see here where {name} works and what it asks, because its session is on another host"
            raise BatonError(f"{what}; ask the user to run: baton submit --to {name}")
        if session.yolo:  # guard: mcp-yolo-agent
            raise BatonError(f"{name} runs with --yolo, so it asks for no permissions: it gets no job from here")
        self._check_agent(session.agent)
        self._check_folder(session.workdir)

    def _refused(self, why: str, word: str) -> BatonError:
        return BatonError(f'{why}; ask the user to add "{word}" to allow in [mcp] of {self._settings.own_file}')


def check_screen(jobs: Jobs, job: Job) -> None:
    """Raise BatonError if the screen of a running job may ask something: a text that is typed then is an answer, and
    answers have a tool of their own, which the user may not have given to this client."""
    refuse_inside_session("typing into the session of a job")
    asked = list_open(jobs, job.job_id)
    shown = Outline.of(job, jobs.last_event(job), tuple(each.summary for each in asked))
    activity = activity_of(shown, now_ns=present_ns(job, SystemClock()))
    if job.status is Status.PENDING or activity in _ASKS_NOTHING:  # guard: mcp-typing
        return
    if asked:
        raise BatonError(f"job {job.job_id} asks ({asked[0].request_id}: {asked[0].summary}); call answer")
    raise BatonError(
        f"the agent of job {job.job_id} is {activity}: a text may answer its screen; call wait until it works, or ask "
        f"the user to look: baton attach {job.job_id}"
    )
