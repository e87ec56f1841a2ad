"""What people get: the wheel and the sdist, in environments of their own, outside the checkout."""

from __future__ import annotations

import ast
import glob
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest

from baton.cli.main import VERBS, describe
from support.command import Baton

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
POSTGRES = "baton: PostgreSQL needs an extra package: pip install 'tmux-baton[postgres]'\n"
BOARD = "baton: the board needs an extra package: pip install 'tmux-baton[board]'\n"
TLS = "baton: writing certificates needs an extra package: pip install 'tmux-baton[tls]'\n"


# With the home of whoever runs this, where pip's settings and its cache are; tests have another.
ENVIRONMENT = dict(os.environ)


def run(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd="/", env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done


def install(environment, *what):
    run("pip", "--disable-pip-version-check", "--python", str(environment), "install", *what)


def new_environment(folder, *what):
    """One with nothing in it but this."""
    venv.create(folder, symlinks=True)
    install(folder, *what)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made of the sdist alone."""
    folder = tmp_path_factory.mktemp("built")
    run("build", "--no-isolation", "--outdir", str(folder), ROOT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    return new_environment(tmp_path_factory.mktemp("environment"), wheel)


def command_of(environment, folder):
    # Agents are given the command they need; another one on PATH would hide it when they are not.
    path = [each for each in os.environ["PATH"].split(os.pathsep) if not os.path.exists(os.path.join(each, "baton"))]
    baton = Baton(folder, PATH=os.pathsep.join(path))
    baton.program = f"{environment}/bin/baton"
    return baton


@pytest.fixture
def baton(environment, tmp_path):
    return command_of(environment, tmp_path)


def files(folder):
    return {
        os.path.relpath(os.path.join(where, name), folder)
        for where, _, names in os.walk(folder)
        for name in names
        if not name.endswith(".pyc")
    }


def test_the_package_and_the_skills_are_inside(wheel):
    with zipfile.ZipFile(wheel) as content:
        inside = {name.removeprefix("baton/") for name in content.namelist() if name.startswith("baton/")}
    skills = {f"skills/{name}" for name in files(f"{ROOT}/skills")}
    assert inside == files(f"{ROOT}/src/baton") | skills


def test_the_checkout_makes_the_same_wheel_as_the_sdist(wheel, tmp_path):
    run("build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), ROOT)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_demo_runs(baton):
    assert "Fix the greeting\n" in baton("demo").out


def test_the_doctor_finds_nothing_broken_and_names_the_extras(baton):
    told = baton("doctor").out
    assert "extra postgres: not installed; PostgreSQL needs it: pip install 'tmux-baton[postgres]'" in told
    assert "extra tls: not installed; `baton broker init` needs it: pip install 'tmux-baton[tls]'" in told
    assert "extra board: not installed; `baton board` needs it: pip install 'tmux-baton[board]'" in told
    findings = baton("doctor", "--json").json
    assert "broken" not in {each["state"] for each in findings}
    (python,) = (each["detail"] for each in findings if each["what"] == "python")
    assert python.endswith(os.path.join(os.path.dirname(baton.program), "python"))


def test_an_installation_whose_programs_are_not_on_path_finds_what_is_beside_them(wheel, environment, tmp_path, tmux):
    """`pip install --user`, from cron or before the next login: no PATH leads to ~/.local/bin."""
    base = tmp_path / "user"
    python = sys._base_executable
    options = ["--user", "--break-system-packages", "--no-deps", "--no-index", "--no-warn-script-location"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", *options, wheel],
        cwd="/", env=ENVIRONMENT | {"PYTHONUSERBASE": str(base)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    # What it depends on, as pip would have put it there.
    (site,) = base.glob("lib/python*/site-packages")
    (packages,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{packages}\n")
    (base / "bin" / "nats-server").symlink_to(environment / "bin" / "nats-server")
    baton = command_of(base, tmp_path)
    baton.env |= {"PYTHONUSERBASE": str(base), "BATON_TMUX_SOCKET": tmux.socket}
    try:
        done = baton("submit", "--agent", "shell", "command -v baton > out; baton version >> out", "--expect", "out")
        assert "nats-server" not in done.err
        assert (tmp_path / "out").read_text().splitlines()[0] == baton.program
        assert baton("broker", "status").out.startswith("running")
        for prefix, program in (([], baton.program), ([python, "-m"], "baton")):
            baton.prefix, baton.program = prefix, program
            told = baton("doctor").out
            assert f"PATH: `baton` is not on PATH (agents get it from baton); add {base}/bin\n" in told
            extra = f"{python} -m pip install --user" + " --break-system-packages" * is_managed()
            assert f" needs it: {extra} 'tmux-baton[" in told
    finally:
        baton("broker", "down")


def is_managed():
    """Whether the system's Python refuses pip without a further option."""
    return os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))


def test_every_command_tells_its_help(baton):
    verbs = [verb for verb, (_, text) in VERBS.items() if text]
    actions = [[verb, name] for verb in verbs for name in describe(verb).actions]
    assert "usage: baton VERB" in baton("--help").out
    for words in [*([verb] for verb in verbs), *actions]:
        result = baton(*words, "--help")
        assert result.out.startswith(f"usage: baton {' '.join(words)} "), result
        assert result.err == ""


def test_every_public_name_can_be_imported(environment, tmp_path):
    code = "import baton; [getattr(baton, name) for name in baton.__all__]; print(baton.__file__)"
    done = subprocess.run(
        [environment / "bin/python", "-P", "-W", "error", "-c", code],
        cwd=tmp_path, env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(str(environment)), done


def imported(path):
    with open(path, encoding="utf-8") as file:
        nodes = list(ast.walk(ast.parse(file.read())))
    yield from (alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names)
    yield from (node.module for node in nodes if isinstance(node, ast.ImportFrom))


def test_all_that_it_imports_comes_with_it_but_the_extras(environment):
    names = {name.split(".")[0] for path in glob.glob(f"{ROOT}/src/**/*.py", recursive=True) for name in imported(path)}
    modules = [name for name in names if not name.startswith("_")]  # _sha2 is in one Python, _sha256 in another
    code = "import sys; from importlib.util import find_spec; print(*(name for name in sys.argv[1:] if not find_spec(name)))"
    missing = subprocess.check_output([environment / "bin/python", "-P", "-c", code, *modules], env={}, text=True)
    assert set(missing.split()) == {"cryptography", "psycopg", "textual"}


def test_the_skills_can_be_installed_from_it(baton, environment, tmp_path):
    baton("skills", "install", "--claude")
    script = tmp_path / ".claude/skills/tmux-agent-orchestrate-delegate-job/scripts/registry.py"
    baton.prefix, baton.program = [environment / "bin/python"], script
    assert len(baton("register", "--prompt", "x").text) == 8


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["register", "x"],
        ["submit", "--agent", "shell", "true"],
        ["worker", "--agent", "shell"],
        ["monitor"],
        ["subscribe", "--follow-all"],
        ["session", "create", "x", "--agent", "shell"],
        ["agent", "list"],
    ],
    ids=" ".join,
)
def test_without_its_extra_a_postgresql_registry_names_it(baton, words):
    assert baton.refused(*words, BATON_REGISTRY="postgresql://nobody@nowhere.invalid/x") == POSTGRES


def test_without_its_extra_the_board_names_it(baton):
    assert baton.refused("board") == BOARD


def test_without_its_extra_nothing_is_migrated_to_postgresql(baton):
    job = baton("register", "x").text
    assert baton.refused("registry", "migrate", "--to", "postgresql://nobody@nowhere.invalid/x") == POSTGRES
    assert baton("status", job).text == "pending"


def test_without_its_extra_no_broker_is_set_up(baton, tmp_path):
    assert baton.refused("broker", "init", "--mosquitto", "broker") == TLS
    assert not (tmp_path / "broker").exists()


def test_each_extra_brings_what_was_missing(wheel, tmp_path, postgres):
    environment = new_environment(tmp_path / "environment", f"{wheel}[postgres]")
    baton = command_of(environment, tmp_path)
    baton("register", "x", BATON_REGISTRY=postgres.new_url())
    assert baton.refused("broker", "init", "--mosquitto", "broker") == TLS
    install(environment, f"{wheel}[tls]")
    baton("broker", "init", "--mosquitto", "broker")
    told = baton("doctor").out
    assert "extra postgres: installed" in told
    assert "extra tls: installed" in told


def test_all_is_every_other_extra(wheel):
    with zipfile.ZipFile(wheel) as content:
        (metadata,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        lines = content.read(metadata).decode().splitlines()
    needed = [line.partition("; extra == ") for line in lines if "; extra == " in line]
    assert {what for what, _, extra in needed if extra == "'all'"} == {
        what for what, _, extra in needed if extra != "'all'"
    }


def test_the_oldest_dependencies_will_do(wheel, tmp_path):
    with open(f"{ROOT}/pyproject.toml", "rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    oldest = [each.replace(">=", "==") for each in needed]
    baton = command_of(new_environment(tmp_path / "environment", wheel, *oldest), tmp_path)
    try:
        assert "persistent session: kept" in baton("broker", "check").out
    finally:
        baton("broker", "down")
