"""What the user's rules decide, and which rules files are valid."""

from __future__ import annotations

import os

import pytest

from baton.core.rule_file import format_rule, marks, parse_rules, read_rule, without_rule
from baton.core.rules import Answerer, Bound, Rule, RuleBook, decide, plain_words
from baton.core.tool_arguments import read_call

NOW = 1_800_000_000 * 10**9


def allow(*command, **fields):
    return Rule(decision="allow", command=command or None, **fields)


def call(arguments, tool="Bash", *, agent="claude-code", exact=True, workdir="/w", reserved=(), **more):
    return read_call(
        agent,
        tool,
        arguments,
        exact=exact,
        workdir=workdir,
        resolve=os.path.normpath,
        user_home="/u",
        reserved=reserved,
        **more,
    )


def decision(rules, arguments, tool="Bash", **more):
    found = decide(rules, call(arguments, tool, **more), now_ns=NOW)
    return None if found is None else found.decision


GIT_STATUS = allow("git", "status")
LS = allow("ls", "*")


@pytest.mark.parametrize("line", ["git status", "  git   status ", "'git' \"status\"", "gi't' st\"atus\""])
def test_a_command_with_exactly_these_words_is_allowed(line):
    assert decision([GIT_STATUS], {"command": line, "description": "look", "timeout": 5}) == "allow"


@pytest.mark.parametrize(
    "arguments",
    [
        {"typed": "git status\n", "terminal": "1", "runs": "git status", "launched in": "/w"},
        {"checkpoint": "git status", "cwd": "/w"},
        {"checkpoint": "ls"},
    ],
)
@pytest.mark.parametrize("tool", ["typed text", "human command", "Bash"])
def test_text_for_a_running_program_and_a_checkpoint_match_no_rule_for_commands_and_no_allow_rule(arguments, tool):
    rules = [
        GIT_STATUS,
        LS,
        allow("*"),
        allow(),
        allow(tool=tool),
        allow(agent="claude-code"),
        Rule(decision="deny", command=("git",)),
    ]
    assert decision(rules, arguments, tool) is None
    assert decision([Rule(decision="deny", tool=tool)], arguments, tool) == "deny"


@pytest.mark.parametrize(
    "line",
    [
        "git", "git status -s", "git  'status -s'", "git status ''", "/usr/bin/git status", "Git status",
        "g\u0456t status", "git\u00a0status", "git\u3000status", "git\tstatus", "git\nstatus", "git status\n",
        "git 'status", "status git", "git st\u0430tus", "git\u200b status", "git status\u202e", "\ufeffgit status", "",
        " ", "''", "sudo git status", "env git status", "command git status", "g\u0131t status", "gi\u0301t status",
    ],
)  # fmt: skip
def test_another_command_is_not(line):
    assert decision([GIT_STATUS], {"command": line}) is None


@pytest.mark.parametrize("character", [*";|&<>$(){}*?[~\\#!`", "]", "^", "\n", "\r", "\x0b", "\x00", "\u2028", "\x85"])
@pytest.mark.parametrize("place", ["ls x{}", "ls {}x", "ls 'x{}'", 'ls "a{}b"', "{} ls", "ls{}evil"])
def test_a_command_with_an_active_character_matches_no_allow_rule(character, place):
    line = place.replace("{}", character)
    assert plain_words(line) is None
    assert decision([LS], {"command": line}) is None
    assert decision([LS], {"command": ["ls", line]}) is None


@pytest.mark.parametrize("line", ["A=1 ls", "A+=1 ls", "'A=1' ls", "A= ls", "=ls", "ls =evil"])
def test_an_assignment_before_the_program_matches_no_allow_rule(line):
    assert (
        decision([LS, allow("A=1", "*"), allow("A+=1", "*"), allow("A=", "*"), allow("=ls")], {"command": line}) is None
    )


def test_a_star_at_the_end_of_a_rule_allows_further_words_but_no_options_and_no_other_programs():
    lines = (
        "ls",
        "ls /x y",
        "ls ''",
        "ls 'a -b'",
        "lsx",
        "l s",
        "ls -l",
        "ls x --all",
        "ls '-l'",
        'ls "-"',
        "ls x\\-l",
    )
    assert [decision([LS], {"command": line}) for line in lines] == ["allow"] * 4 + [None] * 7
    assert decision([LS], {"command": ["ls", "x"]}) == "allow"
    assert decision([LS], {"command": ["ls", "-l"]}) is None
    assert decision([LS], {"command": "ls " + "x" * 5000}) is None


@pytest.mark.parametrize(
    "line",
    [
        "make test SHELL=/w/x",
        "make test A+=1",
        "make test A:=1",
        "make test SHELL:::=/w/x",
        "make test \u00e9=1",
        "make test A?=1",
    ],
)
def test_a_star_allows_no_variables(line):
    assert decision([allow("make", "test", "*")], {"command": line}) is None
    assert decision([allow("make", "test", "*")], {"command": "make test a.b=1 =x"}) is None  # zsh replaces =x
    assert decision([allow("make", "test", "*")], {"command": "make test a/b=1 c"}) == "allow"


def test_two_stars_allow_any_further_words():
    rule = allow("git", "log", "**")
    lines = ("git log", "git log x", "git log --output=x", "git log -p A=1", "git -p log", "git log; ls")
    assert [decision([rule], {"command": line}) for line in lines] == ["allow"] * 4 + [None] * 2


@pytest.mark.parametrize("stars", [["*"], ["**"], []])
@pytest.mark.parametrize("kind", ["deny", "ask"])
def test_a_star_of_a_deny_or_an_ask_rule_is_every_word(kind, stars):
    rule = Rule(decision=kind, command=("git", "push", *stars))
    for line in ("git push", "git push x", "git push --force", "git push A=1", "git -C x push -f; ls"):
        assert decision([rule, allow("git", "**")], {"command": line}) == kind


def test_words_for_a_program_are_compared_one_by_one():
    assert decision([GIT_STATUS], {"command": ["git", "status"]}) == "allow"
    assert decision([GIT_STATUS], {"command": ["git status"]}) is None
    assert decision([GIT_STATUS], {"command": ["bash", "-lc", "git status"]}) is None


def test_a_call_that_is_not_exact_matches_no_allow_rule():
    assert decision([GIT_STATUS], {"command": "git status"}, exact=False) is None
    assert decision([Rule(decision="deny", tool="Bash")], {"command": "git status"}, exact=False) == "deny"


@pytest.mark.parametrize(
    "more",
    [
        {"dangerouslyDisableSandbox": True},
        {"cwd": "/elsewhere"},
        {"cmd": "rm x"},
        {"env": {"PATH": "."}},
        {"cwd": 3},
        {"server": "x"},
    ],
)
def test_an_argument_that_rules_do_not_know_matches_no_allow_rule(more):
    assert decision([GIT_STATUS], {"command": "git status"} | more) is None
    assert decision([GIT_STATUS], {"command": "git status", "cwd": "/w"}) == "allow"
    assert decision([GIT_STATUS], {"command": "git status", "cwd": "."}) == "allow"


@pytest.mark.parametrize(
    ("rule", "tool", "arguments"),
    [
        (allow(tool="Bash"), "Bash", {"command": "git status"}),
        (allow(tool="Edit"), "Edit", {"file_path": "/w/a"}),
        (allow(path="."), "Bash", {"command": "git status"}),
        (allow(path="."), "Glob", {"pattern": "../../*"}),
        (allow(path="."), "Edit", {"file_path": ["/w/a", 3]}),
        (allow("git", "status"), "Edit", {"file_path": "/w/a"}),
        (allow(tool="X"), "X", {"command": {"not": "text"}}),
    ],
)
def test_a_rule_matches_no_wider_call_than_it_names(rule, tool, arguments):
    assert decision([rule], arguments, tool) is None


def test_a_tool_without_command_and_file_is_allowed_by_its_name():
    assert decision([allow(tool="WebSearch")], {"query": "x"}, "WebSearch") == "allow"
    assert decision([allow(tool="WebSearch")], {"query": "x"}, "websearch") is None
    assert decision([allow(tool="WebSearch", agent="codex")], {"query": "x"}, "WebSearch") is None


@pytest.mark.parametrize("path", ["/w/src/a.py", "src/a.py", "/w/src", "src/../src/b"])
def test_a_file_in_the_folder_of_a_rule_is_allowed(path):
    assert decision([allow(path="src")], {"file_path": path, "content": "x"}, "Write") == "allow"


@pytest.mark.parametrize(
    "path", ["/w/srcs", "/etc/passwd", "../x", "/w/src/../../etc/x", "~/x", "/w", "/w/src/a\0b", "/w/src/a\x1bb"]
)
def test_a_file_outside_is_not(path):
    assert decision([allow(path="src")], {"file_path": path}, "Write") is None


def test_a_link_that_leads_outside_is_not_allowed(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "link").symlink_to("/etc")
    found = [
        decide(
            [allow(path=".")],
            read_call("a", "Write", {"file_path": name}, exact=True, workdir=str(tmp_path), resolve=os.path.realpath),
            now_ns=NOW,
        )
        for name in ("src/x", "src/link/x", "src/link/../x")
    ]
    assert [bool(each) for each in found] == [True, False, False]


def decided_in(workdir, rules, arguments, tool="Write", **more):
    read = read_call("a", tool, arguments, exact=True, workdir=str(workdir), resolve=os.path.realpath, **more)
    found = decide(rules, read, now_ns=NOW)
    return found and found.decision


@pytest.fixture
def linked(tmp_path):
    """A work folder with a link to a folder inside it, and one to a folder outside of it, beside the folder `etc`."""
    work = tmp_path / "work"
    for folder in (work / "src" / "deep" / "er", tmp_path / "far" / "away", tmp_path / "etc", work / "etc"):
        folder.mkdir(parents=True)
    (work / "src" / "out").symlink_to(tmp_path / "far" / "away")
    (work / "src" / "in").symlink_to("deep/er")
    (work / "src" / "twice").symlink_to("in")
    return work


@pytest.mark.parametrize(
    "path",
    [
        "src/out/../../../work/src/x",  # inside by links, outside by its text
        "src/in/../../../etc/x",  # outside by its text
        "src/in/../x", "src/twice/../x", "src/out/../x", "src/in/y/../../x", "src/./in//../x",
    ],
)  # fmt: skip
def test_a_parent_of_a_link_is_not_allowed(linked, path):
    assert decided_in(linked, [allow(path=".")], {"file_path": path}) is None
    assert decided_in(linked, [allow(path=".")], {"file_path": f"{linked}/{path}"}) is None


@pytest.mark.parametrize("path", ["src/x", "src/deep/../x", "src/in/x", "src/new/../x", "src/twice/x"])
def test_a_parent_of_a_folder_is(linked, path):
    assert decided_in(linked, [allow(path="src")], {"file_path": path}) == "allow"
    assert decided_in(linked, [allow(path="src")], {"file_path": f"{linked}/{path}"}) == "allow"


def test_a_path_below_the_work_folder_as_it_was_named_is_inside(linked, tmp_path):
    (tmp_path / "named").symlink_to(linked)
    for path in (f"{tmp_path}/named/src/x", f"{linked}/src/x", "src/x", f"{tmp_path}/named/src/deep/../x"):
        assert decided_in(tmp_path / "named", [allow(path="src")], {"file_path": path}) == "allow", path
    for path in (f"{tmp_path}/named/../etc/x", f"{tmp_path}/named/src/in/../x", f"{tmp_path}/named-x/src/x"):
        assert decided_in(tmp_path / "named", [allow(path=".")], {"file_path": path}) is None, path


def test_the_folder_of_a_command_is_the_work_folder_by_its_text_and_by_its_links(linked, tmp_path):
    (tmp_path / "named").symlink_to(linked)
    for workdir, folder, wanted in (
        (linked, linked, "allow"), (linked, ".", "allow"), (linked, "src/..", "allow"), (tmp_path / "named", linked, "allow"),
        (tmp_path / "named", tmp_path / "named", "allow"), (linked, "src/in/../..", None), (linked, "src", None),
        (linked, f"{linked}/src/out/../../work", None), (linked, " ", None), (linked, "~", None),
    ):  # fmt: skip
        arguments = {"command": "git status", "cwd": str(folder)}
        assert decided_in(workdir, [GIT_STATUS], arguments, "Bash") == wanted, folder


@pytest.mark.parametrize("path", ["src/in/../../../etc/x", "src/in/../../../../etc/x"])
def test_a_deny_rule_for_a_path_sees_what_its_text_and_what_its_links_lead_to(linked, path):
    places = {os.path.normpath(linked / path), os.path.realpath(linked / path)}
    assert len(places) == 2
    for place in places:
        assert decided_in(linked, [Rule(decision="deny", path=place)], {"file_path": path}) == "deny"


@pytest.mark.parametrize(
    "path",
    [
        " src/x", "src/x ", "\tsrc/x", "file:///w/src/x", "file:src/x", "FILE:///w/src/x", "vscode-remote:/w/src/x", "a:b",
        "data:src/x", "untitled:src/x", "", " ", "~", "~root/x", "{src/x,/etc/passwd}", "src/{a,../../etc}/x", "src/*", "s?c",
    ],
)  # fmt: skip
def test_a_path_that_tools_may_read_in_two_ways_is_not_allowed(path):
    assert decision([allow(path=".")], {"file_path": path}, "Write") is None
    assert decision([allow(tool="Write")], {"file_path": path}, "Write") is None


@pytest.mark.parametrize(
    "path",
    [
        " secret/x", "secret/x\n", "file:///w/secret/x", "file://host/w/secret/x", "file:secret/x", "secret%2Fx", "SECRET/x",
        "file:///w/secr%65t/x", "'secret/x'", "\ufeffsecret/x", "/w/secret", "src/../secret/x", "x:/w/secret",
    ],
)  # fmt: skip
def test_a_deny_rule_for_a_path_sees_what_it_may_mean(path):
    assert decision([Rule(decision="deny", path="secret")], {"file_path": path}, "Write") == "deny"


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".GIT/hooks/x", "sub/.git/config", ".hermes/x", ".claude/settings.json", "CLAUDE.md", ".mcp.json",
        "x/AGENTS.md", ".codex/config.toml", ".gemini/x", ".git", ".git./config", ".github/workflows/x.yml", ".vscode/tasks.json",
        "x/.claude-plugin/plugin.json", ".env", ".env.local", "x/.envrc", ".ENV", ".husky/pre-commit", "HEAD", "x/HEAD", "x/head",
        ".idea/x", ".devcontainer/devcontainer.json", ".devcontainer.json", ".gitmodules", ".gitattributes", ".gitlab-ci.yml",
        ".pre-commit-config.yaml", "lefthook.yml", ".npmrc", ".yarnrc.yml", ".yarn/releases/x.cjs", ".pnpmfile.cjs",
        "bunfig.toml", ".cargo/config.toml", ".bundle/config", "mise.toml", ".bashrc", ".ssh/config", ".config/x", ".exrc",
    ],
)  # fmt: skip
def test_a_file_out_of_bounds_is_never_allowed(path):
    assert decision([allow(path=".")], {"file_path": path}, "Write") is None
    assert decision([allow(path=".")], {"file_path": "x"}, "Write", workdir="/r/.git/w") is None


@pytest.mark.parametrize("path", ["env", "environment.py", "x.env", "src/heads.py", "HEAD/x", "github/x", "src/.keep"])
def test_a_file_with_a_name_that_is_like_one_is(path):
    assert decision([allow(path=".")], {"file_path": path}, "Write") == "allow"


@pytest.mark.parametrize("path", ["state/baton/x", "state/baton", "state", "."])
def test_a_reserved_place_is_never_allowed(path):
    assert decision([allow(path=".")], {"file_path": path}, "Write", reserved=["/w/state/baton"]) is None
    assert decision([allow(path=".")], {"file_path": "stated"}, "Write", reserved=["/w/state/baton"]) == "allow"


DENY_RM = Rule(decision="deny", command=("rm",))
ASK_PUSH = Rule(decision="ask", command=("git", "push"))


@pytest.mark.parametrize(
    "line",
    [
        "rm x", "/bin/rm x", "RM x", "ls; rm x", "ls&&rm x", "sudo rm x", "xargs rm", "sh -c 'rm x'", "r\\m x", "'r'm x",
        "A=1 rm x", "$(rm x)", "`rm`", "ls\nrm x", "r\\\nm x",
    ],
)  # fmt: skip
def test_a_deny_rule_matches_however_the_command_is_written(line):
    assert decision([allow("ls", "*"), DENY_RM], {"command": line}) == "deny"


def test_deny_beats_ask_beats_allow_in_any_order():
    everything = [allow("git", "*"), ASK_PUSH, Rule(decision="deny", command=("git", "push", "--force"))]
    for rules in (everything, everything[::-1]):
        found = [
            decision(rules, {"command": f"git {rest}"}) for rest in ("log", "push", "-C . push", "push origin --force")
        ]
        assert found == ["allow", "ask", "ask", "deny"]


def test_a_deny_rule_for_a_path_sees_both_ways_to_it(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    rules = [allow(path="."), Rule(decision="deny", path="secret"), Rule(decision="ask", path="~/x")]

    def decided(name):
        given = {"file_path": name}
        read = read_call(
            "a", "Read", given, exact=True, workdir=str(tmp_path), resolve=os.path.realpath, user_home="/u"
        )
        found = decide(rules, read, now_ns=NOW)
        return found and found.decision

    assert [decided(name) for name in ("link/a", "SECRET/a", "other", "~/x/y", "/u/x", "/u/y")] == [
        "deny", "deny", "allow", "ask", "ask", None,
    ]  # fmt: skip


def bound(folder, within, asked=None):
    return Bound(folder=folder, asked=asked or folder, within=within)


@pytest.mark.parametrize(
    ("workdir", "bounds", "path", "wanted"),
    [
        ("/", [bound("/", "/w")], "/w/x", "allow"),
        ("/", [bound("/", "/w")], "/etc/passwd", None),
        ("/", [bound("/", "/w")], "/wx", None),
        ("/w/sub", [bound("/w/sub", "/w")], "x", "allow"),
        ("/", [bound("/", "/"), bound("/", "/w")], "/etc/passwd", None),
        ("/", [bound("/", "/"), bound("/", "/w")], "/w/x", "allow"),
        ("/", [bound("/", "/w"), bound("/w", "/w/sub")], "/w/x", None),
        ("/w", [bound("/w", None)], "x", None),
        ("/w", [bound("/w", "/w"), bound("/w", None)], "x", None),
        # in a worktree of its own, the job works on the folder that the agent asked for
        ("/trees/1", [bound("/trees/1", "/w", "/w")], "x", "allow"),
        ("/trees/1", [bound("/trees/1", "/w", "/elsewhere")], "x", None),
        ("/trees/1", [bound("/trees/1", "/w/sub", "/w")], "sub/x", "allow"),
        ("/trees/1", [bound("/trees/1", "/w/sub", "/w")], "x", None),
        ("/trees/2", [bound("/trees/2", "/trees/1", "/trees/1"), bound("/trees/1", "/w", "/w")], "x", "allow"),
        ("/trees/2", [bound("/trees/2", "/trees/1", "/trees/1"), bound("/trees/1", "/w", "/v")], "x", None),
    ],
)
def test_rules_for_paths_hold_within_the_work_folder_of_every_job_above(workdir, bounds, path, wanted):
    assert decision([allow(path=".")], {"file_path": path}, "Write", workdir=workdir, bounds=bounds) == wanted
    assert decision([GIT_STATUS], {"command": "git status"}, workdir=workdir, bounds=bounds) == "allow"


@pytest.mark.parametrize(
    ("workdir", "bounds", "path"),
    [
        ("/", [bound("/", "/w")], "/w/secret/x"),
        ("/w/sub", [bound("/w/sub", "/w")], "../secret/x"),
        ("/w/secret", [bound("/w/secret", "/w")], "x"),
        ("/", [bound("/", "/w/sub"), bound("/w/sub", "/w")], "/w/secret/x"),
        ("/trees/1", [bound("/trees/1", "/w", "/w/secret")], "x"),
    ],
)
def test_a_deny_rule_for_a_path_holds_in_the_work_folder_of_every_job_above(workdir, bounds, path):
    rules = [allow(path="."), Rule(decision="deny", path="secret")]
    assert decision(rules, {"file_path": path}, "Write", workdir=workdir, bounds=bounds) == "deny"


def test_a_folder_with_a_part_that_a_rule_denies_is_asked():
    for kind in ("deny", "ask"):
        rules = [allow(path="."), allow(tool="Glob"), Rule(decision=kind, path="src/secret")]
        assert decision(rules, {"path": "src", "pattern": "x"}, "Grep") is None
        assert decision(rules, {"path": "src/other", "pattern": "x"}, "Grep") == "allow"
        assert decision(rules, {"path": "src/secret", "pattern": "x"}, "Grep") == kind
        assert decision(rules, {"pattern": "x*"}, "Glob") is None
        assert decision(rules[:2], {"pattern": "x*"}, "Glob") == "allow"


def test_an_expired_rule_decides_nothing():
    rule = GIT_STATUS.replace(expires="2027-01-15T08:00:00Z")
    at = [decide([rule], call({"command": "git status"}), now_ns=NOW + each) for each in (-1, 0)]
    assert [bool(each) for each in at] == [True, False]


# -- the file ----------------------------------------------------------------------------------------------------------

FILE = """# my rules
[[rule]]
decision = "allow" # fine
command = ["git", "status"]

# about pushes
[[rule]]
decision = "ask"
command = ["git", "push"]
expires = 2030-01-01

[[answerer]]
agent = "claude-code"
label = "reviewer"
"""


def test_a_file_is_read():
    assert parse_rules(FILE) == RuleBook(
        rules=(GIT_STATUS, ASK_PUSH.replace(expires="2030-01-01T00:00:00Z")),
        answerers=(Answerer(agent="claude-code", label="reviewer"),),
    )
    assert parse_rules("") == RuleBook()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[rule", "TOML"),
        ("a = 1", "unknown part 'a'"),
        ("[rule]\n", r"\[\[rule\]\]"),
        ("rule = [1]", r"\[\[rule\]\]"),
        ("[[rule]]\n", "decision must be"),
        ('[[rule]]\ndecision = "maybe"', "decision must be"),
        ('[[rule]]\ndecision = "allow"', "needs tool, command or path"),
        ('[[rule]]\ndecision = "allow"\nagent = "x"', "needs tool, command or path"),
        ('[[rule]]\ndecision = "deny"\ntols = "x"', "no 'tols'"),
        ('[[rule]]\ndecision = "deny"\ntool = 3', "tool must be text"),
        ('[[rule]]\ndecision = "deny"\ncommand = "git status"', "list of words"),
        ('[[rule]]\ndecision = "deny"\ncommand = []', "list of words"),
        ('[[rule]]\ndecision = "deny"\ncommand = ["a", ""]', "one line"),
        ("release = 3", "release"),
        ('release = "new"', "release"),
        ('[[rule]]\ndecision = "allow"\ncommand = ["*"]', "only as its last word"),
        ('[[rule]]\ndecision = "allow"\ncommand = ["**"]', "only as its last word"),
        ('[[rule]]\ndecision = "deny"\ncommand = ["a", "**", "b"]', "only as its last word"),
        ('[[rule]]\ndecision = "allow"\ncommand = ["a", "*", "b"]', "only as its last word"),
        ('[[rule]]\ndecision = "allow"\ncommand = ["a", "b*"]', "matches no command"),
        ('[[rule]]\ndecision = "allow"\ncommand = ["A=1", "b"]', "matches no command"),
        ('[[rule]]\ndecision = "allow"\ncommand = ["a"]\npath = "b"', "exclude each other"),
        ('[[rule]]\ndecision = "allow"\npath = "/etc"', "in the work folder"),
        ('[[rule]]\ndecision = "allow"\npath = "a/../../b"', "in the work folder"),
        ('[[rule]]\ndecision = "allow"\npath = "*.md"', "without patterns"),
        ('[[rule]]\ndecision = "deny"\nexpires = "soon"', "expires"),
        ('[[rule]]\ndecision = "deny"\nexpires = 2030-01-01T00:00:00', "expires"),
        ("[[answerer]]\n", "agent is missing"),
        ('[[answerer]]\nagent = "x"\nname = "y"', "no 'name'"),
        (f"rule = [{'{decision=' + repr('deny') + '},'} ]" + "\n" * 2 + "[[rule]]", "TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_reason(text, why):
    with pytest.raises(ValueError, match=why):
        parse_rules(text)


@pytest.mark.parametrize("star", ["*", "**"])
@pytest.mark.parametrize(
    "line",
    [
        "bash", "env", "sudo", "xargs", "/usr/bin/env", "eval", "ssh", "rbash", "pwsh", "coproc", "trap", "taskset",
        "taskset 1", "systemd-run --user", "prlimit", "chrt", "ionice", "setsid", "script", "flock", "parallel", "watch",
        "timeout 60 make", "npm exec", "npm x", "npm", "npx", "npx eslint", "bunx", "bun x", "bun", "pnpm dlx", "yarn dlx",
        "uv run", "uv run --with x pytest", "uv", "uv run bash", "uv run python", "uvx", "uv tool run", "pipx run", "docker",
        "docker run", "docker run image", "docker exec x", "docker --context x", "docker compose", "docker compose exec x",
        "podman run", "podman exec", "kubectl exec x", "nix run", "ip netns exec x", "python", "python3.12", "python -c",
        "python -m", "node", "perl -n", "sed", "sed -n", "sqlite3 x.db", "poetry run", "bundle exec", "perf", "nsenter",
    ],
)  # fmt: skip
def test_a_rule_does_not_allow_other_programs_by_a_star(line, star):
    words = line.split()
    with pytest.raises(ValueError, match="every program"):
        read_rule({"decision": "allow", "command": [*words, star]})
    assert read_rule({"decision": "allow", "command": [*words, "ls"]}).command == (*words, "ls")
    assert read_rule({"decision": "deny", "command": [*words, star]}).command == (*words, star)
    for further in ("evil", "run evil", "exec evil"):
        assert decision([allow(*words, star)], {"command": f"{line} {further}"}) is None


@pytest.mark.parametrize(
    "line",
    [
        "git log", "npm run lint", "npm test", "uv run pytest", "uv pip", "docker ps", "docker compose ps", "pnpm lint",
        "python -m pytest", "python manage.py", "uv run python -m pytest", "node x.js", "sed -n p", "go test", "kubectl get",
        "7z", "ls", "poetry run pytest", "bun test", "ip addr", "make test", "yarn lint",
    ],
)  # fmt: skip
def test_a_rule_may_have_a_star_after_the_words_of_a_program_that_it_names(line):
    words = line.split()
    assert read_rule({"decision": "allow", "command": [*words, "*"]}).command == (*words, "*")
    assert decision([allow(*words, "*")], {"command": f"{line} x"}) == "allow"


@pytest.mark.parametrize("path", [".github", "x/.env", "sub/.git/hooks", "HEAD", ".vscode/"])
def test_a_rule_for_a_path_that_no_rule_allows_is_refused(path):
    with pytest.raises(ValueError, match="no rule allows that"):
        read_rule({"decision": "allow", "path": path})
    assert read_rule({"decision": "deny", "path": path}).path == path


OF_BEFORE = """[[rule]]
decision = "allow"
command = ["git", "log", "*"]
[[rule]]
decision = "allow"
command = ["uv", "run", "*"]
[[rule]]
decision = "allow"
path = ".github"
[[rule]]
decision = "allow"
path = "src"
[[rule]]
decision = "allow"
tool = "WebSearch"
[[rule]]
decision = "deny"
command = ["git", "push", "*"]
[[rule]]
decision = "allow"
command = ["git", "status"]
"""


def test_a_rule_that_allows_less_than_before_is_marked_with_what_restores_it():
    found = {mark.number: mark.describe() for mark in marks(parse_rules(OF_BEFORE))}
    assert list(found) == [1, 2, 3, 4, 5]
    assert 'command = ["git", "log", "**"]' in found[1]
    assert "allows nothing: uv run runs other programs" in found[2]
    assert 'command = ["uv", "run", "PROGRAM", "WORD"]' in found[2]
    assert "allows nothing: .github" in found[3]
    assert all("allows less than in 0.2.0" in found[number] for number in (1, 4, 5))
    restored = OF_BEFORE.replace('["git", "log", "*"]', '["git", "log", "**"]')
    assert [mark.number for mark in marks(parse_rules(restored))] == [2, 3, 4, 5]


@pytest.mark.parametrize(("release", "wanted"), [("0.2.9", 5), ("0.3.0", 2), ("0.10.0", 2), ("1.0.0", 2)])
def test_in_a_file_for_this_release_only_rules_without_effect_are_marked(release, wanted):
    assert len(marks(parse_rules(f'release = "{release}"\n{OF_BEFORE}'))) == wanted


def test_a_rule_of_before_that_would_run_every_program_leaves_the_others_in_force():
    rules = parse_rules(OF_BEFORE).rules
    assert [decision(rules, {"command": line}) for line in ("uv run evil", "git push x", "git status")] == [
        None, "deny", "allow",
    ]  # fmt: skip


def test_a_rule_is_written_as_it_is_read():
    rules = [
        Rule(decision="allow", agent="claude-code", tool="Bash", command=("git", "log", "a 'b' \"c\" ü😀", "*")),
        Rule(decision="deny", path="~/x", expires="2030-01-01T00:00:00Z"),
    ]
    assert parse_rules("\n".join(format_rule(rule) for rule in rules)).rules == tuple(rules)


def test_a_rule_is_removed_and_the_rest_stays_as_it_is():
    assert without_rule(FILE, 1) == FILE.replace(FILE[FILE.index("[[rule]]") : FILE.index("\n# about")], "")
    assert "# about pushes" in without_rule(FILE, 2)
    for number in (1, 2):
        left = parse_rules(without_rule(FILE, number))
        assert left.rules == (parse_rules(FILE).rules[2 - number],)
        assert left.answerers
    with pytest.raises(ValueError, match="edit it yourself"):
        without_rule('rule = [{decision = "deny"}]', 1)
    with pytest.raises(ValueError, match="edit it yourself"):
        without_rule("[[rule]]\ndecision = \"deny\"\n[[rule]]\ndecision = \"ask\"\npath = '''\n[[rule]]'''", 2)


def test_a_rule_is_described_in_one_line():
    rule = allow("git", "log", "a b", "*", agent="codex", tool="Bash")
    assert rule.describe() == "allow agent codex, tool Bash, command git log 'a b' *"
    assert Rule(decision="deny").describe() == "deny everything"
