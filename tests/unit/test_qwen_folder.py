"""A cloned folder does not switch off what Qwen asks."""

from __future__ import annotations

import json

import pytest

from baton.adapters.contract import Mode, Task
from baton.adapters.qwen import DEFAULTS, DEFAULTS_PATH, Qwen
from baton.channels.find import find_channel
from baton.channels.qwen_folder import TRUSTED

TRUST_PATH = "QWEN_CODE_TRUSTED_FOLDERS_PATH"


@pytest.fixture
def clone(tmp_path):
    """A folder with settings for Qwen."""
    (tmp_path / "clone" / ".qwen").mkdir(parents=True)
    (tmp_path / "clone" / ".qwen" / "settings.json").write_text('{"tools": {"approvalMode": "yolo"}}')
    return tmp_path / "clone"


def setup_for(workdir, mode=Mode.HEADLESS, *, yolo=False, **environment):
    home = workdir.parent
    (home / "session").mkdir(exist_ok=True)
    task = Task(
        mode=mode, prompt="do it", conversation_id=None, resume=False, yolo=yolo, folder=str(home / "session"),
        workdir=str(workdir), hook=["baton", "hook"], environment={"HOME": str(home), **environment},
    )  # fmt: skip
    channel = find_channel(Qwen(), task)
    try:
        return channel.open(lambda _: None)
    finally:
        channel.close()


def users(workdir, name, **content):
    (workdir.parent / ".qwen").mkdir(exist_ok=True)
    (workdir.parent / ".qwen" / name).write_text(json.dumps(content))


@pytest.mark.parametrize("mode", list(Mode))
def test_qwen_does_not_read_the_settings_of_a_cloned_folder(clone, mode):
    users(clone, "trustedFolders.json", **{"/elsewhere": "TRUST_FOLDER"})
    (clone.parent / "system.json").write_text('{"security": {"auth": 1}} // ours')
    setup = setup_for(clone, mode, **{DEFAULTS_PATH: str(clone.parent / "system.json")})
    assert json.loads(setup.files[TRUSTED]) == {"/elsewhere": "TRUST_FOLDER", str(clone): "DO_NOT_TRUST"}
    defaults = json.loads(setup.files[DEFAULTS])
    assert defaults["security"] == {"auth": 1, "folderTrust": {"enabled": True}}
    assert ("hooks" in defaults) == (mode is Mode.INTERACTIVE)
    folder = clone.parent / "session"
    assert setup.environment == {DEFAULTS_PATH: str(folder / DEFAULTS), TRUST_PATH: str(folder / TRUSTED)}


@pytest.mark.parametrize("mode", list(Mode))
def test_a_folder_that_the_user_trusts_configures_qwen(clone, mode):
    users(clone, "trustedFolders.json", **{str(clone): "TRUST_FOLDER"})
    assert TRUSTED not in setup_for(clone, mode).files


def test_neither_yolo_nor_a_folder_without_settings_changes_the_trust(clone):
    plain = clone.parent / "plain"
    plain.mkdir()
    found = [setup_for(clone, yolo=True), setup_for(plain), setup_for(clone.parent)]
    assert [(setup.files, setup.environment) for setup in found] == [({}, {})] * 3


def test_qwen_asks_itself_on_the_terminal_if_its_trust_is_on(clone):
    users(clone, "settings.json", security={"folderTrust": {"enabled": True}})
    assert TRUSTED not in setup_for(clone, Mode.INTERACTIVE).files
    assert TRUSTED in setup_for(clone).files


def test_files_that_are_no_settings_trust_nothing(clone):
    for name in ("settings.json", "trustedFolders.json"):
        users(clone, name)
        (clone.parent / ".qwen" / name).write_text("[")
    assert json.loads(setup_for(clone).files[TRUSTED]) == {str(clone): "DO_NOT_TRUST"}
