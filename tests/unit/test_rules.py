"""What the user's rules decide, and which rules files are valid."""

from __future__ import annotations

import os

import pytest

from baton.core.rule_file import format_rule, parse_rules, read_rule, without_rule
from baton.core.rules import Answerer, Rule, RuleBook, decide, plain_words, read_call

NOW = 1_800_000_000 * 10**9


def allow(*command, **fields):
    return Rule(decision="allow", command=command or None, **fields)


def call(arguments, tool="Bash", *, agent="claude-code", exact=True, workdir="/w", reserved=()):
    return read_call(
        agent,
        tool,
        arguments,
        exact=exact,
        workdir=workdir,
        resolve=os.path.normpath,
        user_home="/u",
        reserved=reserved,
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


def test_a_star_at_the_end_of_a_rule_allows_further_words_but_not_other_programs():
    assert [decision([LS], {"command": line}) for line in ("ls", "ls -l /x", "ls ''", "lsx", "l s")] == [
        "allow", "allow", "allow", None, None,
    ]  # fmt: skip
    assert decision([LS], {"command": "ls " + "x" * 5000}) is None


def test_words_for_a_program_are_compared_one_by_one():
    assert decision([GIT_STATUS], {"command": ["git", "status"]}) == "allow"
    assert decision([GIT_STATUS], {"command": ["git status"]}) is None
    assert decision([GIT_STATUS], {"command": ["bash", "-lc", "git status"]}) is None


def test_a_call_that_is_not_exact_matches_no_allow_rule():
    assert decision([GIT_STATUS], {"command": "git status"}, exact=False) is None
    assert decision([Rule(decision="deny", tool="Bash")], {"command": "git status"}, exact=False) == "deny"


@pytest.mark.parametrize(
    "more",
    [{"dangerouslyDisableSandbox": True}, {"cwd": "/elsewhere"}, {"cmd": "rm x"}, {"env": {"PATH": "."}}, {"cwd": 3}],
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


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".GIT/hooks/x", "sub/.git/config", ".hermes/x", ".claude/settings.json", "CLAUDE.md", ".mcp.json",
        "x/AGENTS.md", ".codex/config.toml", ".gemini/x", ".git", ".git./config",
    ],
)  # fmt: skip
def test_a_file_out_of_bounds_is_never_allowed(path):
    assert decision([allow(path=".")], {"file_path": path}, "Write") is None
    assert decision([allow(path=".")], {"file_path": "x"}, "Write", workdir="/r/.git/w") is None


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
        ('[[rule]]\ndecision = "allow"\ncommand = ["*"]', "only as its last word"),
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


@pytest.mark.parametrize("program", ["bash", "env", "sudo", "xargs", "/usr/bin/env", "eval", "ssh"])
def test_a_rule_does_not_allow_other_programs_by_a_star(program):
    with pytest.raises(ValueError, match="every program"):
        read_rule({"decision": "allow", "command": [program, "*"]})
    assert read_rule({"decision": "allow", "command": [program, "ls"]}).command == (program, "ls")


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
