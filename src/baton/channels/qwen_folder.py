"""Keep Qwen from the settings of a folder that its user has not trusted: they could switch its questions off, and start
programs. Qwen has trust in folders, which is off unless the user switches it on; this is for one run."""

from __future__ import annotations

import json
import os

from baton.adapters.contract import Mode
from baton.adapters.folder_trust import trusts
from baton.adapters.qwen import DEFAULTS, DEFAULTS_PATH, qwen_home
from baton.channels.agent_settings import read_settings
from baton.channels.contract import Setup
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.adapters.contract import Task

TRUSTED = "qwen-trusted-folders.json"  # in the session's folder
_TRUST_PATH = "QWEN_CODE_TRUSTED_FOLDERS_PATH"


def distrusts(task: Task, environment: Mapping[str, str]) -> bool:
    """Return whether the folder has settings for Qwen, and nothing says that the user trusts it. On the terminal, Qwen
    asks, if the user has switched its trust on."""
    home, own = qwen_home(environment), os.path.join(task.workdir, ".qwen")
    if task.yolo or not os.path.lexists(own) or os.path.realpath(own) == os.path.realpath(home):
        return False
    security = settings_of(os.path.join(home, "settings.json")).get("security")
    trust = security.get("folderTrust") if isinstance(security, dict) else None
    asks = task.mode is Mode.INTERACTIVE and isinstance(trust, dict) and bool(trust.get("enabled"))
    return not asks and not trusts(_trust_file(environment), task.workdir)


def folder_setup(task: Task, environment: Mapping[str, str], defaults: Mapping[str, Any]) -> Setup:
    """Return the variables and files with which Qwen takes these defaults, and reads no settings of a folder that its
    user has not trusted."""
    variables, files = {DEFAULTS_PATH: os.path.join(task.folder, DEFAULTS)}, {}
    if distrusts(task, environment):  # guard: qwen-folder
        security = defaults.get("security")
        trusting = {**(security if isinstance(security, dict) else {}), "folderTrust": {"enabled": True}}
        defaults = {**defaults, "security": trusting}
        not_this = dict.fromkeys((task.workdir, os.path.realpath(task.workdir)), "DO_NOT_TRUST")
        files[TRUSTED] = json.dumps(settings_of(_trust_file(environment)) | not_this)
        variables[_TRUST_PATH] = os.path.join(task.folder, TRUSTED)
    files[DEFAULTS] = json.dumps(defaults, indent=2)
    return Setup(environment=variables, files=files)


def settings_of(path: str) -> dict[str, Any]:
    """Return the settings in this file of Qwen; none if it cannot be read."""
    try:
        return read_settings(path)
    except ValueError:
        return {}  # Qwen cannot read it either


def _trust_file(environment: Mapping[str, str]) -> str:
    return environment.get(_TRUST_PATH) or os.path.join(qwen_home(environment), "trustedFolders.json")
