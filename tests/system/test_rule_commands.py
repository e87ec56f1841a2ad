"""`baton rules`, as a user types it: which rule decides, and what becomes of the file."""

from __future__ import annotations

import os
import stat

import pytest

from support.command import Baton


@pytest.fixture
def user(tmp_path):
    (tmp_path / "work").mkdir()
    baton = Baton(tmp_path / "work", HOME=str(tmp_path))
    baton.rules = tmp_path / ".config" / "baton" / "rules.toml"
    return baton


def test_rules_are_added_listed_tested_and_removed(user):
    assert "there are no rules" in user("rules", "list").err
    user("rules", "add", "allow", "--tool", "Bash", "--command", "git status")
    user("rules", "add", "deny", "--command", "git push", "--agent", "claude-code")
    user("rules", "add", "allow", "--path", "src", "--expires", "8h")
    assert stat.S_IMODE(os.stat(user.rules).st_mode) == 0o600
    lines = user("rules", "list").text.splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["1", "allow", "tool Bash, command git status"],
        ["2", "deny", "agent claude-code, command git push"],
        ["3", "allow", "path src"],
    ]
    assert user("rules", "list", "--json").json["rules"][0]["command"] == ["git", "status"]

    def decided(*arguments):
        return user("rules", "test", *arguments).text.partition(":")[0]

    assert decided("--command", "sudo git push") == "deny"
    assert decided("--path", "src/a.py") == "allow"
    assert decided("--path", "src/.git/config") == "ask"
    unclear = user("rules", "test", "--command", "git status; ls")
    assert unclear.text == "ask: no rule matches"
    assert "active character" in unclear.err
    assert user("rules", "test", "--command", "git status", "--json").json["number"] == 1

    assert user("rules", "remove", "2").text == "removed: deny agent claude-code, command git push"
    assert len(user("rules", "list").text.splitlines()) == 2
    assert "from 1 to 2" in user.refused("rules", "remove", "3", code=64)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["allow"], "needs tool, command or path"),
        (["allow", "--command", "ls; rm x"], "matches no command"),
        (["allow", "--command", "ls 'x"], "not closed"),
        (["allow", "--command", "uv run *"], "every program"),
        (["allow", "--command", "docker run **"], "every program"),
        (["allow", "--path", ".github"], "no rule allows that"),
        (["maybe"], "invalid choice"),
    ],
)
def test_a_wrong_rule_is_refused_and_nothing_is_written(user, arguments, why):
    assert why in user.refused("rules", "add", *arguments, code=64)
    assert not user.rules.exists()


def test_comments_of_the_user_stay(user):
    user.rules.parent.mkdir(parents=True)
    user.rules.write_text('# mine\n[[rule]]\ndecision = "deny" # why\n')
    user("rules", "add", "ask", "--tool", "Edit")
    assert (
        user.rules.read_text()
        == '# mine\n[[rule]]\ndecision = "deny" # why\n\n[[rule]]\ndecision = "ask"\ntool = "Edit"\n'
    )
    user("rules", "remove", "2")
    assert user.rules.read_text().rstrip() == '# mine\n[[rule]]\ndecision = "deny" # why'


def test_a_link_to_the_file_stays_a_link(user, tmp_path):
    user.rules.parent.mkdir(parents=True)
    (tmp_path / "dotfiles").mkdir()
    user.rules.symlink_to(tmp_path / "dotfiles" / "rules.toml")
    user("rules", "add", "ask", "--tool", "Edit")
    assert user.rules.is_symlink()
    assert (tmp_path / "dotfiles" / "rules.toml").is_file()


def test_a_file_that_cannot_be_parsed_is_named_and_not_changed(user):
    user.rules.parent.mkdir(parents=True)
    user.rules.write_text("[[rule")
    for arguments in (["list"], ["add", "ask", "--tool", "x"], ["remove", "1"]):
        assert str(user.rules) in user.refused("rules", *arguments)
    assert user.rules.read_text() == "[[rule"


def test_a_file_that_other_users_may_write_is_not_used(user):
    user.rules.parent.mkdir(parents=True)
    user.rules.touch()
    user.rules.chmod(0o666)
    assert "run `chmod go-w " in user.refused("rules", "test", "--command", "ls")


def test_an_agent_may_not_use_rules(user):
    for arguments in (["list"], ["add", "ask", "--tool", "x"]):
        assert "refused inside a session" in user.refused("rules", *arguments, BATON_SESSION_ID="0123456789abcdef")


OF_0_2_0 = """[[rule]]
decision = "allow"
command = ["git", "log", "*"]

[[rule]]
decision = "allow"
command = ["npm", "exec", "*"]

[[rule]]
decision = "deny"
command = ["git", "push", "*"]
"""


def test_after_an_upgrade_each_rule_that_allows_less_is_marked_with_the_line_that_restores_it(user):
    user.rules.parent.mkdir(parents=True)
    user.rules.write_text(OF_0_2_0)
    listed = user("rules", "list")
    notes = [line.split("\t")[4] for line in listed.text.splitlines()]
    assert 'restore it: command = ["git", "log", "**"]' in notes[0]
    assert "allows nothing: npm exec runs other programs" in notes[1]
    assert notes[2] == "-"
    assert 'release = "0.3.0"' in listed.err
    assert [each["number"] for each in user("rules", "list", "--json").json["marks"]] == [1, 2]
    doctor = user("doctor", "--json", code=None).json
    found = [each["detail"] for each in doctor if each["what"] == "rules" and each["state"] == "warning"]
    assert [detail.split()[:2] for detail in found] == [["rule", "1"], ["rule", "2"]]
    assert 'command = ["git", "log", "**"]' in found[0]
    assert user("rules", "test", "--command", "git log --output=x").text.startswith("ask")
    assert user("rules", "test", "--command", "git push --force").text.startswith("deny")

    user.rules.write_text('release = "0.3.0"\n' + OF_0_2_0.replace('"log", "*"', '"log", "**"'))
    assert [line.split("\t")[4][:15] for line in user("rules", "list").text.splitlines()] == [
        "-",
        "allows nothing:",
        "-",
    ]
    assert user("rules", "test", "--command", "git log --output=x").text.startswith("allow")


def test_a_rule_that_is_added_now_is_not_marked(user):
    for rule in (["deny", "--command", "rm *"], ["allow", "--command", "ls *"], ["allow", "--path", "src"]):
        user("rules", "add", *rule)
    assert [line.split("\t")[4] for line in user("rules", "list").text.splitlines()] == ["-", "-", "-"]
    assert user.rules.read_text().count("release = ") == 1
    user("rules", "remove", "1")
    assert user.rules.read_text().startswith('release = "0.3.0"\n')


def test_a_rule_that_is_added_to_a_file_of_before_leaves_its_marks(user):
    user.rules.parent.mkdir(parents=True)
    user.rules.write_text(OF_0_2_0)
    user("rules", "add", "allow", "--command", "git status")
    assert user.rules.read_text().startswith(OF_0_2_0)
    assert len(user("rules", "list", "--json").json["marks"]) == 2
