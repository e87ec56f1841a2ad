"""`baton skills install --mcp`: the MCP server in the settings of a project, shown first, and removed again."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib

import pytest

from support.command import BATON, Baton
from support.terminal import Terminal

INSTALL = ("skills", "install", "--mcp")
ENTRY = {"command": "baton", "args": ["mcp"]}
CLAUDE, CODEX, GEMINI = ".mcp.json", ".codex/config.toml", ".gemini/settings.json"
FILES = [CLAUDE, CODEX, GEMINI]


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def baton(tmp_path, work):
    (tmp_path / "user").mkdir()
    return Baton(work, HOME=str(tmp_path / "user"), PATH=f"{os.path.dirname(BATON)}:{os.environ['PATH']}")


def tree(folder):
    """Every file below the folder with its bytes; a link with where it leads."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def put(work, name, text):
    (work / name).parent.mkdir(exist_ok=True)
    (work / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return work / name


# -- in a pipe -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("usual_umask")
def test_each_agent_gets_the_server_in_its_own_file_of_the_project(baton, work, tmp_path):
    done = baton(*INSTALL, "--yes")
    assert done.out.splitlines() == [f"new\t{name}" for name in FILES]
    assert json.loads((work / CLAUDE).read_text()) == json.loads((work / GEMINI).read_text())
    assert json.loads((work / CLAUDE).read_text()) == {"mcpServers": {"baton": ENTRY}}
    server = tomllib.loads((work / CODEX).read_text())["mcp_servers"]["baton"]
    assert (server["command"], server["args"]) == ("baton", ["mcp"])
    assert "asks you to approve" in done.err and "warning" not in done.err
    assert "may need your approval of its tools (docs/how-to/use-mcp.md)" in done.err
    assert done.err.endswith("the skills are separate: baton skills install\n")
    assert os.listdir(tmp_path / "user") == []  # nothing in the user's own configuration
    assert {stat.S_IMODE((work / name).stat().st_mode) & 0o444 for name in FILES} == {0o444}


def test_what_is_written_is_shown_before(baton, work):
    shown = baton(*INSTALL, "--dry-run").err
    for name in FILES:
        assert name in shown
    assert os.listdir(work) == []
    baton(*INSTALL, "--yes")
    for line in (work / CODEX).read_text().splitlines():
        assert line.startswith("#") or line in shown
    assert '"baton": {"command": "baton", "args": ["mcp"]}' in shown


def test_without_yes_nothing_is_written_in_a_pipe(baton, work):
    done = baton(*INSTALL, code=1, stdin="y\n")
    assert done.err.splitlines()[-1] == "baton: nothing was changed: answer on a terminal, or add --yes"
    assert os.listdir(work) == []


def test_a_second_install_changes_nothing_and_says_so(baton, work):
    baton(*INSTALL, "--yes")
    before = {name: ((work / name).read_bytes(), (work / name).stat().st_ino) for name in FILES}
    again = baton(*INSTALL)  # it needs no answer
    assert again.out == "" and again.err == "the MCP server is installed already\n"
    assert {name: ((work / name).read_bytes(), (work / name).stat().st_ino) for name in FILES} == before
    assert {each["done"] for each in baton(*INSTALL, "--json").json} == {"unchanged"}


@pytest.mark.parametrize(("flag", "names"), [("--claude", [CLAUDE]), ("--agents", [CODEX, GEMINI])])
def test_the_agents_can_be_chosen(baton, work, flag, names):
    baton(*INSTALL, flag, "--yes")
    assert sorted(tree(work)) == sorted(names)


def test_other_content_stays_byte_for_byte_both_ways(baton, work):
    put(work, CLAUDE, '{ "mcpServers": {\n\t"other":   {"command": "x", "env": {"TOKEN": "s3cret"}} } }\r\n')
    put(work, CODEX, '# mine\nmodel = "x"   # keep\n\n[mcp_servers.other]\ncommand = "y"\n')
    put(work, GEMINI, '{\n    "ui": {"theme": "Dracula"}\n}').chmod(0o640)
    before = tree(work)
    done = baton(*INSTALL, "--yes")
    assert "s3cret" not in done.err + done.out
    assert done.out.splitlines() == [f"updated\t{name}" for name in FILES]
    after = tree(work)
    assert after[CODEX].startswith(before[CODEX])
    assert json.loads(after[GEMINI]) == {"ui": {"theme": "Dracula"}, "mcpServers": {"baton": ENTRY}}
    assert json.loads(after[CLAUDE])["mcpServers"]["other"]["env"] == {"TOKEN": "s3cret"}
    assert stat.S_IMODE((work / GEMINI).stat().st_mode) == 0o640
    removed = baton(*INSTALL, "--uninstall", "--yes")
    assert removed.out.splitlines() == [f"updated\t{name}" for name in FILES]
    assert tree(work) == before
    assert stat.S_IMODE((work / GEMINI).stat().st_mode) == 0o640


def test_uninstall_removes_files_and_folders_that_hold_nothing_else(baton, work):
    baton(*INSTALL, "--yes")
    (work / ".gemini/mine.md").write_text("mine")
    done = baton(*INSTALL, "--uninstall", "--yes")
    assert done.out.splitlines() == [f"removed\t{name}" for name in FILES]
    assert sorted(os.listdir(work)) == [".gemini"]
    again = baton(*INSTALL, "--uninstall")
    assert again.out == "" and "no MCP server of baton is installed here" in again.err


def test_uninstall_asks_too(baton, work):
    baton(*INSTALL, "--yes")
    before = tree(work)
    assert "add --yes" in baton(*INSTALL, "--uninstall", code=1).err
    assert "remove from" in baton(*INSTALL, "--uninstall", "--dry-run").err
    assert tree(work) == before


def test_uninstall_keeps_what_the_user_changed_and_names_it(baton, work):
    baton(*INSTALL, "--yes")
    put(work, CLAUDE, json.dumps({"mcpServers": {"baton": ENTRY | {"env": {"BATON_HOME": "x"}}}}))
    put(work, CODEX, (work / CODEX).read_text().replace('"mcp"', '"mcp", "x"'))
    before = tree(work)
    done = baton(*INSTALL, "--uninstall", "--yes")
    assert done.out.splitlines() == [f"kept\t{CLAUDE}", f"kept\t{CODEX}", f"removed\t{GEMINI}"]
    assert tree(work) == {name: before[name] for name in (CLAUDE, CODEX)}


def test_uninstalling_the_skills_says_that_the_server_is_still_there(baton, work):
    baton("skills", "install")
    baton(*INSTALL, "--yes")
    done = baton("skills", "install", "--uninstall")
    assert "baton skills install --mcp --uninstall" in done.err
    assert sorted(tree(work)) == sorted(FILES)
    baton(*INSTALL, "--uninstall", "--yes")
    assert os.listdir(work) == []


def test_a_command_that_the_agents_would_not_find_is_a_warning(baton):
    assert "baton is not on your PATH" in baton(*INSTALL, "--yes", PATH="/usr/bin:/bin").err


@pytest.mark.parametrize("more", [["--dir", "x"], ["--force"], ["--claude", "--agents"]])
def test_options_that_do_not_fit_are_refused(baton, work, more):
    baton.refused(*INSTALL, *more, code=64)
    assert os.listdir(work) == []


# -- hostile files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [[], ["--uninstall"]])
@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (CLAUDE, '{"mcpServers": {', "is not JSON"),
        (CLAUDE, '{"mcpServers": {"a": {}}, "mcpServers": {"b": {}}}', "is not JSON"),
        (CLAUDE, "", "is not JSON"),
        (GEMINI, '{\n  // a comment\n  "ui": {}\n}', "by hand"),
        (GEMINI, "[" * 200_000, "is not JSON"),
        (GEMINI, b'{"a": "\xff"}', "is not UTF-8"),
        (CODEX, "model = \n", "is not TOML"),
        (CODEX, "a = " + "[" * 100_000, "is not TOML"),
        (CLAUDE, b" " * (1 << 20) + b"{}", "is longer than"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_refused_with_one_line(baton, work, name, text, complaint, verb):
    put(work, name, text)
    before = tree(work)
    line = baton.refused(*INSTALL, *verb, "--yes")
    assert name in line and complaint in line
    assert tree(work) == before  # no other file was written either


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (CLAUDE, '{"mcpServers": {"baton": {"command": "/tmp/evil"}}}'),
        (CODEX, '[mcp_servers.baton]\ncommand = "/tmp/evil"\n'),
        (CODEX, 'mcp_servers.baton.command = "/tmp/evil"\n'),
        (GEMINI, '{"mcpServers": {"baton": {"httpUrl": "http://127.0.0.1:1"}}}'),
    ],
)
def test_another_server_named_baton_is_neither_replaced_nor_removed(baton, work, name, text):
    put(work, name, text)
    before = tree(work)
    assert f"{name} has another server named baton" in baton.refused(*INSTALL, "--yes")
    assert baton(*INSTALL, "--uninstall", "--yes").out == f"kept\t{name}\n"
    assert tree(work) == before


@pytest.mark.parametrize("verb", [[], ["--uninstall"]])
@pytest.mark.parametrize("link", [CLAUDE, ".codex", CODEX, ".gemini", GEMINI])
def test_a_link_that_leaves_the_folder_is_not_written_through(baton, work, tmp_path, link, verb):
    """A cloned repository may bring it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("config.toml", "settings.json"):
        (outside / name).write_text("")
    (work / link).parent.mkdir(exist_ok=True)
    (work / link).symlink_to(outside if link.count(".") == 1 else outside / os.path.basename(link))
    before, there = tree(work), tree(outside)
    assert re.search(rf"{re.escape(link)}:? is a link", baton.refused(*INSTALL, *verb, "--yes"))
    assert (tree(work), tree(outside)) == (before, there)


def test_a_folder_that_is_a_link_inside_of_the_project_is_used(baton, work):
    (work / "agents").mkdir()
    (work / ".codex").symlink_to("agents")
    baton(*INSTALL, "--yes")
    assert (work / "agents/config.toml").is_file()
    baton(*INSTALL, "--yes", "--uninstall")
    assert sorted(os.listdir(work)) == [".codex", "agents"]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_file_is_refused_and_nothing_hangs(baton, work, name, kind):
    (work / name).parent.mkdir(exist_ok=True)
    (os.mkfifo if kind == "pipe" else os.mkdir)(work / name)
    assert name in baton.refused(*INSTALL, "--yes")
    assert tree(work) == {}


def test_the_users_own_configuration_is_never_written(baton, tmp_path):
    user = tmp_path / "user"
    home = Baton(user, HOME=str(user))
    assert "your own configuration" in home.refused(*INSTALL, "--yes")
    assert "your own configuration" in baton.refused(*INSTALL, "--yes", CODEX_HOME=str(tmp_path / "work/.codex"))
    assert "your own configuration" in baton.refused(*INSTALL, "--yes", GEMINI_CLI_HOME=str(tmp_path / "work"))
    for name in (".codex", ".gemini"):  # in a folder above the home, behind a link that stays inside
        (user / name).mkdir()
        (tmp_path / name).symlink_to(f"user/{name}")
    above = Baton(tmp_path, HOME=str(user))
    assert "your own configuration" in above.refused(*INSTALL, "--yes")
    assert tree(user) == {}


# -- on a terminal -------------------------------------------------------------------------------------------------------


def at_terminal(baton, *more):
    return Terminal([BATON, *INSTALL, *more], cwd=str(baton.folder), env=baton.env)


def test_on_a_terminal_it_shows_and_asks(baton, work):
    with at_terminal(baton) as person:
        person.see('"baton": {"command": "baton", "args": ["mcp"]}')
        person.see("[mcp_servers.baton]")
        person.see("Change .mcp.json, .codex/config.toml, .gemini/settings.json? [y/N]")
        assert os.listdir(work) == []
        person.type("y", "\n")
        assert person.end() == 0
    assert sorted(tree(work)) == sorted(FILES)
    with at_terminal(baton, "--uninstall") as person:
        person.see("[y/N]")
        person.type("y", "\n")
        assert person.end() == 0
    assert os.listdir(work) == []


@pytest.mark.parametrize(("answer", "code"), [("\n", 1), ("n\n", 1), ("\x04", 1), ("\x03", 130)])
def test_any_other_answer_and_ctrl_c_change_nothing(baton, work, answer, code):
    with at_terminal(baton) as person:
        person.see("[y/N]")
        person.type(answer)
        assert person.end() == code
    assert os.listdir(work) == []


def test_a_file_that_changes_while_the_user_reads_is_not_overwritten(baton, work):
    with at_terminal(baton) as person:
        person.see("[y/N]")
        put(work, CLAUDE, '{"mine": 1}')
        person.type("y", "\n")
        assert person.end() == 1
        person.see("was changed after it was shown", seconds=0)
    assert tree(work) == {CLAUDE: b'{"mine": 1}'}
