"""The documentation: what it tells people to type is typed, page by page, and what can be generated is compared.

In a page,

    <!-- not run: why -->       right before a block: it cannot run here
    <!-- file: NAME -->         right before a block: this is what the reader puts into that file
    <!-- nothing to run: why -->    anywhere: the page has no block that could run
    <!-- with: postgres -->     anywhere: BATON_REGISTRY names a PostgreSQL that is there

and `# exit N` after a command says how it ends, when not with 0.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

import baton as package
from baton.cli.main import VERBS
from baton.core.job import JOB_FIELDS
from support.command import BATON, Baton
from support.processes import end_broker

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/tutorial.md",
    *sorted(os.path.relpath(path, ROOT) for path in glob.glob(f"{ROOT}/docs/how-to/*.md")),
]
PATIENCE_SEC = 120

_BLOCK = re.compile(r"^(?:<!-- (not run|file): ([^\n]*?) -->\n)?```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGE_MARK = re.compile(r"^<!-- (nothing to run|with): (.+?) -->$", re.MULTILINE)


class Step(NamedTuple):
    """`kind` is console, python or file; `name` that of the file, else why the step is not run, else empty."""

    kind: str
    name: str
    text: str


def read(page: str) -> str:
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


def steps(text: str) -> tuple[list[Step], list[Step]]:
    """What a reader of the page does, in order; and what is left out, with the reason."""
    run: list[Step] = []
    left_out: list[Step] = []
    for mark, words, kind, block in _BLOCK.findall(text):
        if mark == "file":
            run.append(Step("file", words, block))
        elif kind not in ("console", "python"):
            continue
        elif mark == "not run":
            left_out.append(Step(kind, words, block))
        elif kind == "python" and run and run[-1].kind == "python":
            run[-1] = run[-1]._replace(text=run[-1].text + block)  # goes on where the one before it ended
        else:
            run.append(Step(kind, "", block))
    return run, left_out


def commands(block: str) -> list[tuple[str, int]]:
    """Each command line of a console block, and the exit code it shows."""
    found = []
    for line in re.sub(r"\\\n", "", block).splitlines():
        if line.startswith("$ "):
            promised = re.search(r"\s# exit (\d+)\s*$", line)
            found.append((line[2:], int(promised[1]) if promised else 0))
    return found


def script(page_steps: list[Step], folder: str) -> str:
    """One shell for the whole page, which ends with 99 at the first command that does not end as the page says."""
    lines = []
    for number, step in enumerate(page_steps):
        path = os.path.join(folder, f"{number}.py")
        if step.kind == "console":
            todo = commands(step.text)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(step.text)
            name = shlex.quote(step.name).replace("'~/", "~/'")
            todo = [
                (f"python {path}" if step.kind == "python" else f"mkdir -p $(dirname {name}) && cp {path} {name}", 0)
            ]
        for command, code in todo:
            told = shlex.quote(f"$ {command}")
            lines += [
                f"printf '%s\\n' {told}",
                command,
                f"__code=$?; [ $__code = {code} ] || {{ echo exit $__code; exit 99; }}",
            ]
    return "\n".join(lines)


@pytest.fixture
def baton(tmp_path, tmux):
    """The command as a new user has it, with a tmux server that is `tmux -L baton` for this test alone."""
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    tmux.socket = os.path.join(tmux.folder, f"tmux-{os.getuid()}", "baton")
    baton = Baton(
        folder, PATH=f"{os.path.dirname(BATON)}:{os.environ['PATH']}", HOME=str(home), SHELL="/bin/sh",
        BATON_STATE_DIR=str(tmp_path / "state"), TMUX_TMPDIR=tmux.folder, BATON_TMUX_SOCKET="baton",
    )  # fmt: skip
    yield baton
    # An agent that outlived its test would start another broker, to say how it ended.
    for session in baton("session", "list", "--json").json:
        baton("session", "stop", session["name"], "--mode", "hard", code=None)
    end_broker(baton)


def typed(baton: Baton, text: str) -> tuple[int, str]:
    """Runs it in one bash; the exit code and everything that was printed."""
    shell = subprocess.Popen(
        ["bash", "--norc", "-c", text], cwd=baton.folder, env=baton.env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said = shell.communicate(timeout=PATIENCE_SEC)[0]
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        said = f"{shell.communicate()[0]}\nnot over after {PATIENCE_SEC} s"
    return shell.returncode, said


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_tells_to_type_works(baton, page, tmp_path, request):
    text = read(page)
    marks = dict(_PAGE_MARK.findall(text))
    run, left_out = steps(text)
    if "nothing to run" in marks:
        assert not run, "the page says that nothing can be run"
        return
    assert any(step.kind != "file" for step in run), "nothing of it is run: mark the page if that is meant"
    if marks.get("with") == "postgres":
        baton.env["BATON_REGISTRY"] = request.getfixturevalue("postgres").new_url()
    code, said = typed(baton, script(run, str(tmp_path)))
    print(said)
    for step in left_out:
        print(f"not run, {step.name}: {step.text.splitlines()[0]}")
    assert code == 0, said


@pytest.mark.parametrize("page", PAGES)
def test_what_is_left_out_has_a_reason(page):
    for step in steps(read(page))[1]:
        assert len(step.name) > 5


def test_every_verb_is_in_the_reference():
    text = read("docs/reference/commands.md")
    for verb in (verb for verb, (_, told) in VERBS.items() if told):
        assert f"\n## baton {verb}\n" in text


def test_every_field_of_a_job_is_in_the_reference():
    text = read("docs/reference/job-record.md")
    for field in JOB_FIELDS:
        assert f"`{field}`" in text, field


def test_every_module_is_in_the_architecture():
    text = read("docs/explanation/architecture.md")
    for name in os.listdir(os.path.dirname(package.__file__)):
        module = name.removesuffix(".py")
        if not module.startswith("_") and module not in ("py.typed", "skills"):
            assert f"`{module}`" in text, module


def test_the_generated_pages_are_what_the_program_says():
    done = subprocess.run(
        [sys.executable, "scripts/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_site_builds_without_a_warning(tmp_path):
    """Not with --quiet, which also keeps --strict from hearing of warnings."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_the_files_that_the_pages_name_exist():
    pages = ["README.md", *(os.path.relpath(path, ROOT) for path in glob.glob(f"{ROOT}/docs/**/*.md", recursive=True))]
    named = {name for page in pages for name in re.findall(r"`((?:src|tests|scripts|bench)/[a-z0-9_/.]+)`", read(page))}
    assert named
    assert [name for name in sorted(named) if not os.path.exists(os.path.join(ROOT, name))] == []


def test_the_first_page_names_every_page():
    pages = {os.path.relpath(path, f"{ROOT}/docs") for path in glob.glob(f"{ROOT}/docs/**/*.md", recursive=True)}
    assert pages - set(re.findall(r"\]\(([^)#]+)", read("docs/index.md"))) == {"index.md"}


def test_the_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read("README.md")):
        assert target.startswith("https://") or os.path.exists(os.path.join(ROOT, target)), target
