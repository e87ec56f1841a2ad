"""Open the registries that a command with --all-homes reads: one for each home of the user."""

from __future__ import annotations

import os
from contextlib import contextmanager

from baton.cli.output import say
from baton.cli.parser import Options
from baton.core.errors import BatonError, UsageError
from baton.core.fields import one_line
from baton.delegation.looking import settle_lost
from baton.jobs.verbs import open_jobs
from baton.registry import other_registry_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.config import Settings
    from baton.jobs.verbs import Jobs


OF_OTHERS = "--all-homes shows those of other folders"


class Home:
    """The jobs of one home. `folder` is the folder that it serves. `alone`: the command reads no other. `stays_open`:
    its registry is one of the few that stay open. `unsettled` are the jobs whose session was killed, where that could
    not be recorded, each with the reason."""

    def __init__(
        self, folder: str, jobs: Jobs, unsettled: Mapping[str, str], *, alone: bool, stays_open: bool = True
    ) -> None:
        self.folder = folder
        self.jobs = jobs
        self.unsettled = unsettled
        self.alone = alone
        self._stays_open = stays_open

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Name this home, and go on with the others, if it cannot be read."""
        try:
            yield
        except (BatonError, OSError) as error:
            if self.alone:
                raise
            _skip(self.folder, error)

    def release(self) -> None:
        """Close the registry, which opens again for the next look, if there are too many homes to keep all open."""
        if not self._stays_open:
            self.jobs.registry.close()


def this_home(settings: Settings) -> Home:
    """Return the home of the settings."""
    jobs = open_jobs(settings)
    if (other := other_registry_here(settings)) is not None:
        say(f"baton: note: {other}")
    return Home(settings.folder, jobs, settle_lost(settings, jobs, say), alone=True)


def all_homes(options: Options, settings: Settings) -> list[Home]:
    """Return every home of the user. Homes with the same registry are one. Name each that cannot be read."""
    from baton.storage.homes import MOST_OPEN, known, settings_of

    refuse_one_home(options, "--all-homes")
    found: dict[str, Home] = {}
    for home in known(settings.state_dir, lambda error: say(f"baton: skipped {error}")):
        try:
            of_home = settings_of(settings.state_dir, home)
            jobs = open_jobs(of_home)
        except (BatonError, OSError) as error:
            _skip(home.folder, error)
            continue
        shared = found.get(jobs.registry.url)
        folder = home.folder if shared is None else jobs.registry.where
        unsettled = {**(shared.unsettled if shared else {}), **settle_lost(of_home, jobs, say)}
        found[jobs.registry.url] = Home(folder, jobs, unsettled, alone=False, stays_open=len(found) < MOST_OPEN)
    return list(found.values())


def refuse_one_home(options: Options, what: str) -> None:
    """Raise UsageError for options that name one registry, in a command that reads all of them."""
    for name in ("home", "registry", "registry_dir"):
        if getattr(options, name, None) is not None:
            raise UsageError(f"{what} reads the registry of every home; leave out --{name.replace('_', '-')}")


def short_folder(folder: str) -> str:
    """Return a folder for a person: `~` for the user's own."""
    user = os.path.expanduser("~")
    return one_line(f"~{folder[len(user) :]}" if f"{folder}/".startswith(f"{user}/") else folder)


def _skip(where: str, error: BatonError | OSError) -> None:
    why = f"{error.filename or where}: {error.strerror}" if isinstance(error, OSError) else error
    say(f"baton: skipped {where}: {why}")
