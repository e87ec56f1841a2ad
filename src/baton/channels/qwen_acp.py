"""Talk with headless Qwen."""

from __future__ import annotations

import os

from baton.adapters.qwen import system_defaults
from baton.channels.acp import Acp
from baton.channels.contract import Setup
from baton.channels.qwen_folder import distrusts, folder_setup, settings_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.channels.contract import Hear


class QwenAcp(Acp):
    def open(self, hear: Hear) -> Setup:
        super().open(hear)
        environment = self._task.environment or os.environ
        if not distrusts(self._task, environment):
            return Setup()
        return folder_setup(self._task, environment, settings_of(system_defaults(environment)))
