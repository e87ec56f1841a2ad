"""What holds the house together: which way imports go, and what the quick verbs load."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import baton
from baton.core import cpython

ROOT = os.path.dirname(baton.__file__)
DOCS = Path(__file__).parents[2] / "docs"

# A package imports only from those before it in this list.
ORDER = [
    "baton", "baton.core", "baton.own_files", "baton.config", "baton.origin", "baton.storage", "baton.wire", "baton.registry", "baton.history",
    "baton.worktrees", "baton.jobs",
    "baton.broker", "baton.transport", "baton.live_agents", "baton.adapters", "baton.channels",
    "baton.sessions", "baton.delegation",
    "baton.live_agent_api", "baton.api", "baton.delegation_api", "baton.session_api",
    "baton.board", "baton.mcp", "baton.cli", "baton.__main__",
]  # fmt: skip
# `baton` itself only passes on names, when they are asked for.
LAZY = {"baton"}


def modules():
    for folder, folders, files in os.walk(ROOT):
        if folder == ROOT:
            folders[:] = [each for each in folders if each != "skills"]  # in the wheel: programs, nobody imports them
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                name = "baton." + os.path.relpath(path, ROOT).removesuffix(".py").replace(os.sep, ".")
                yield name.removesuffix(".__init__"), path


def imports(path):
    with open(path) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "baton":
            yield from (f"baton.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def place(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in ORDER:
            return ORDER.index(".".join(parts[:length]))
    raise AssertionError(f"{name} has no place in the order: add it")


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_go_one_way(name, path):
    if name in LAZY:
        return
    for imported in imports(path):
        if imported.split(".")[0] == "baton" and imported != "baton.__version__":
            assert place(imported) <= place(name), f"{name} imports {imported}"


@pytest.mark.parametrize(
    "package", sorted(name for name in ORDER if os.path.isdir(os.path.join(ROOT, name.removeprefix("baton."))))
)
def test_a_package_says_what_it_is_for(package):
    with open(os.path.join(ROOT, package.removeprefix("baton."), "__init__.py")) as file:
        assert len((ast.get_docstring(ast.parse(file.read())) or "").splitlines()) >= 3, (
            f"{package}: purpose and limits"
        )


# -- errors that are passed over ------------------------------------------------------------------------------------


def silent_handlers():
    """Yield every except clause that passes the error over: its place and its lines."""
    for _, path in modules():
        lines = Path(path).read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(e, ast.Pass | ast.Continue) for e in node.body):
                yield f"{os.path.relpath(path, ROOT)}:{node.lineno}", lines[node.lineno - 1 : node.end_lineno]


def test_an_error_that_is_passed_over_has_its_reason_beside_it():
    assert [place for place, lines in silent_handlers() if not any("#" in line for line in lines)] == []


def test_errors_are_passed_over_by_an_except_clause_alone():
    assert [name for name, path in modules() if "suppress(" in Path(path).read_text()] == []


# -- what differs between releases of Python ------------------------------------------------------------------------


def lines_with(pattern):
    """Yield the module of each line of the sources that the pattern is found in."""
    for name, path in modules():
        yield from (name for line in Path(path).read_text().splitlines() if re.search(pattern, line))


def test_private_modules_of_python_are_imported_in_one_place():
    assert set(lines_with(r"^\s*(from|import) _(?!_future__)")) == set()


# Each reads what baton itself has just written, or has checked before.
_READ_THEIR_OWN = {
    "baton.board.details", "baton.cli.demo_agent", "baton.jobs.job_history", "baton.mcp.tools",
    "baton.origin", "baton.sessions.reporter", "baton.storage.installation", "baton.transport.publish",
}  # fmt: skip


# Each reads what decides nothing (a terminal, a secret to hide), or only the process of a command, which has the
# environment of its runner, or that of the runner itself.
_READ_VARIABLES = {
    "baton.adapters.claude_code", "baton.adapters.copilot", "baton.adapters.gemini", "baton.adapters.shell",
    "baton.board.query", "baton.channels.claude_stream", "baton.channels.copilot_acp", "baton.channels.gateway_channel",
    "baton.channels.qwen_acp", "baton.cli.config", "baton.cli.demo", "baton.cli.doctor", "baton.cli.hook",
    "baton.cli.options", "baton.cli.parser", "baton.cli.publish", "baton.cli.rules", "baton.cli.server_install",
    "baton.cli.session", "baton.cli.submit", "baton.cli.terminal", "baton.config", "baton.core.redact",
    "baton.jobs.activity_file", "baton.jobs.caller", "baton.jobs.report", "baton.jobs.requests",
    "baton.jobs.verification", "baton.origin", "baton.registry", "baton.sessions.attach",
    "baton.sessions.instructions", "baton.sessions.runner",
}  # fmt: skip


def test_variables_that_decide_are_read_in_one_place():
    """Inside a session they are those of the runner: `baton.origin.obeyed_environment`."""
    assert set(lines_with(r"os\.environ|getenv")) == _READ_VARIABLES


def test_json_of_other_programs_is_read_by_one_function():
    """How deep it may be nested differs between releases of Python."""
    assert set(lines_with(r"json\.loads?\(")) == _READ_THEIR_OWN


# The private modules are there, but not for baton: other modules of Python need them.
_WITH_PUBLIC_MODULES = """
import builtins, sys
def without_private(name, *more, found=builtins.__import__):
    if name in private and sys._getframe(1).f_globals["__name__"] == "baton.core.cpython":
        raise ImportError(name)
    return found(name, *more)
private = {"_thread", "_operator", "_datetime", "_sha2", "_sha256", "_socket", "_sqlite3"}
builtins.__import__ = without_private
from baton.core import cpython
from baton.cli.main import main
main(sys.argv[1:])
for name in cpython._PLACES.keys() & vars(cpython).keys():
    module, attribute = cpython._PLACES[name][-1]
    expected = sys.modules[module] if attribute is None else getattr(sys.modules[module], attribute)
    assert getattr(cpython, name) is expected, name
    print(name, file=sys.stderr)
"""


def test_the_quick_verbs_work_with_the_public_modules_of_python(tmp_path):
    def baton(*words):
        done = subprocess.run(
            [sys.executable, "-c", _WITH_PUBLIC_MODULES, *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        used.update(done.stderr.split())
        return done.stdout.strip()

    environment = os.environ | {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "1"}
    used = set()
    job = baton("register", "x", "--queue", "q")
    assert baton("pick", "--queue", "q") == job
    assert json.loads(baton("publish", job, "--event", "progress"))["event"] == "progress"
    assert json.loads(baton("get", job))["status"] == "running"
    baton("status", job, "--set", "completed")
    assert baton("status", job) == "completed"
    assert used >= cpython.__dict__["_PLACES"].keys()


# -- what is loaded --------------------------------------------------------------------------------------------------


def loaded_by(*arguments, folder, stdin=""):
    """Modules that a command loads beyond what the interpreter loads by itself."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from baton.cli.main import main\n"
        "main(sys.argv[1:])\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, check=True, input=stdin
    )
    return set(done.stderr.split()), done.stdout.strip()


# Each costs milliseconds that an agent pays hundreds of times a day.
HEAVY = {
    "annotationlib", "argparse", "ast", "asyncio", "dataclasses", "datetime", "hmac", "inspect", "locale", "logging",
    "pathlib", "psycopg", "random", "rich", "secrets", "shutil", "socket", "sqlite3", "ssl", "subprocess", "tempfile",
    "tomllib", "typing", "unittest", "urllib", "uuid",
}  # fmt: skip


def test_the_quick_verbs_load_nothing_heavy(tmp_path):
    _, job = loaded_by("register", "x", folder=tmp_path)
    for verb in (["get", job], ["status", job], ["pick"], ["status", job, "--set", "completed"]):
        modules, _ = loaded_by(*verb, folder=tmp_path)
        assert sorted(modules & HEAVY) == [], verb
        third_party = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"baton"}
        assert not third_party, verb


def test_the_mcp_server_loads_nothing_heavy_before_the_first_call(tmp_path):
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in
            (("protocolVersion", "2026-07-28"), ("clientCapabilities", {}))}  # fmt: skip
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    modules, answer = loaded_by("mcp", folder=tmp_path, stdin=json.dumps(message) + "\n")
    assert '"submit"' in answer
    assert sorted(modules & HEAVY) == []
    assert not [name for name in modules if name.startswith(("baton.registry", "baton.storage", "baton.jobs"))]


def test_reading_loads_no_audit_log(tmp_path):
    _, job = loaded_by("register", "x", folder=tmp_path)
    for verb in (["get", job], ["status", job]):
        assert not [name for name in loaded_by(*verb, folder=tmp_path)[0] if name.startswith("baton.history")]


# Each case runs in a process of its own, which has what every runner loads.
_LOADED_BY_RUNNERS = """
import os, sys, baton.sessions.runner
from baton.adapters import BUILT_IN, find_agent
from baton.adapters.contract import Mode, Task
from baton.channels.find import CHANNELS, find_channel
from baton.config import Settings
adapters = {f"baton.adapters.{module}" for module, _ in BUILT_IN.values()}
channels = {f"baton.channels.{module}" for module, _ in CHANNELS.values()}
print("every", "runner", *(adapters | channels) & set(sys.modules))
for name in BUILT_IN:
    for mode in Mode:
        sys.stdout.flush()
        if os.fork():
            os.wait()
            continue
        task = Task(mode=mode, prompt="x", conversation_id=None, resume=False, yolo=False, folder="/x", workdir="/",
                    hook=[], environment={"HOME": "/x"})
        agent = find_agent(Settings(env={"HOME": "/x"}), name)
        needed = {each.__module__ for used in (agent, find_channel(agent, task)) for each in type(used).__mro__}
        print(name, mode, *((adapters | channels) & set(sys.modules)) - needed)
        sys.stdout.flush()
        os._exit(0)
"""


def test_a_runner_loads_the_adapter_and_the_channel_of_its_agent_alone():
    done = subprocess.run([sys.executable, "-c", _LOADED_BY_RUNNERS], capture_output=True, text=True, check=True)
    cases = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert len(cases) == 15
    assert [case for case in cases if len(case) > 2] == []


def _names_for_type_checkers():
    with open(baton.__file__) as file:
        tree = ast.parse(file.read())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in block.body for alias in node.names if alias.asname == alias.name}


def test_every_public_name_is_there_and_documented():
    import inspect

    for name in baton.__all__:
        value = getattr(baton, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__module__.startswith("baton."), name
    assert _names_for_type_checkers() == baton._MODULE_OF
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert [name for name in baton.__all__ if not re.search(rf"\b{name}\b", pages)] == []
    with pytest.raises(AttributeError, match="nonsense"):
        baton.nonsense  # noqa: B018
