"""Talk with headless Copilot: by ACP, which says nothing while Copilot tries a model service again, and by its log.

The log of the conversation has each error, because there is a hook for it, of a plugin that baton gives it for one run.
"""

from __future__ import annotations

import json
import os

from baton.adapters.copilot import PLUGIN, log_file, state_folder
from baton.channels.acp import Acp
from baton.channels.acp_work import Turn
from baton.channels.contract import Setup
from baton.channels.copilot_log import reason_of
from baton.channels.tail import Tail
from baton.core.fields import UNEXPECTED_SHAPE, json_object
from baton.core.signal import Retrying
from baton.storage.files import make_private_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.channels.contract import Hear
    from baton.core.signal import Signal
    from baton.core.value import Any

_HOOKS = {"errorOccurred": [{"type": "command", "bash": "true", "timeoutSec": 5}]}
_ABOUT = {"name": "baton", "version": "1.0.0", "description": "Makes Copilot log errors.", "hooks": "hooks.json"}


class CopilotAcp(Acp):
    _log: Tail | None = None
    _turn: Turn | None = None  # to which `_tries` belongs
    _tries = 0

    def open(self, hear: Hear) -> Setup:
        super().open(hear)
        make_private_dir(os.path.join(self._task.folder, PLUGIN))
        files = {"plugin.json": _ABOUT, "hooks.json": {"version": 1, "hooks": _HOOKS}}
        return Setup(files={os.path.join(PLUGIN, name): json.dumps(about) for name, about in files.items()})

    def _by_time(self) -> Iterator[Signal]:
        known = self._session or self._next_session
        if self._log is None and known is not None and self._how.is_conversation(known):
            environment = self._task.environment or os.environ
            self._log = Tail(log_file(environment, known), state_folder(environment), from_start=not self._task.resume)
        for line in self._log.read() if self._log is not None else ():
            try:
                yield from self._failed(json_object(line.decode(errors="replace")))
            except UNEXPECTED_SHAPE:
                self._unknown += 1
        yield from super()._by_time()

    def _failed(self, event: Mapping[str, Any]) -> Iterator[Signal]:
        turn = self._work.turn
        if event.get("type") != "hook.start" or event.get("agentId") or turn is None:
            return
        if event["data"]["hookType"] == "errorOccurred":
            self._tries = self._tries + 1 if turn is self._turn else 1
            self._turn = turn
            why = reason_of(str(event["data"]["input"]["error"]["message"]))
            self._work.note_word(f"it tried again ({why})")
            yield Retrying(number=self._tries, most=0, why=why)
