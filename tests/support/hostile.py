"""Strings that do harm where they are interpreted: each would run `canary NUMBER`, with a number of its own."""

from __future__ import annotations

import os

# Each runs the command somewhere: in a shell, in tmux, in SQLite's shell, in a template, in YAML, in Python.
_COMMANDS = (
    "; {c}", "& {c} &", "| {c}", "|| {c}", "&& {c}", "$({c})", "`{c}`", '"$({c})"', "'; {c}; '", '"; {c}; "', "\n{c}\n",
    "\r{c}\r", "\r\n{c}\r\n", "${{x:=$({c})}}", "${{x:-`{c}`}}", "<({c})", ">({c})", "$(({c}))", "x=$({c})", "{{ {c}; }}",
    "(\n{c}\n)", "\\\n{c}", "eval {c}", "exec {c}", "sh -c '{c}'", "' -e {c} '", "-e {c}", "--checkpoint-action=exec={c}",
    "#({c})", "##({c})", "###({c})", "####({c})", "#{{l:#({c})}}", "#{{?1,#({c}),}}", "#{{E:#({c})}}", "#{{T:#({c})}}",
    "#{{s/x/#({c})/:x}}", "#[fg=red]#({c})", "##[x]#({c})", "#{{pane_title}}#({c})", "#,#({c})", "#{{#({c})", "#}}#({c})",
    "; run-shell '{c}'", "\\; run-shell '{c}'", ";\nrun-shell '{c}'\n", "x ; run-shell '{c}' ;", "{{ run-shell '{c}' }}",
    "if-shell true 'run-shell \"{c}\"'", "%if 1\nrun-shell '{c}'\n%endif", "\x03{c}\r", "\x1b[201~{c}\r", "\x1b[200~{c}\x1b[201~\r",
    "\x04{c}\r", "\x1a{c}\r", "\x15{c}\r", "\x02:run-shell '{c}'\r", "\x1b]0;$({c})\x07", "\x1bP$q{c}\x1b\\", "\x1b]52;c;{c}\x07",
    "!!python/object/apply:os.system ['{c}']", '!!python/object/new:os.system ["{c}"]', "a: &a !!python/name:os.system\nb: {c}",
    "__import__('os').system('{c}')", "{{{{''.__class__}}}}{{% {c} %}}", "<%= `{c}` %>", "${{jndi:ldap://{c}}}",
    "'); .shell {c}\n", "'; .system {c} --", "\n.shell {c}\n", "<script>{c}</script>", "<img src=x onerror='{c}'>", "<!--#exec cmd='{c}'-->",
    "=cmd|'/c {c}'!A0", "@SUM(1)|{c}", "() {{ :; }}; {c}", "PATH=. {c}", "\u202e{c}\u202c", "\u2028{c}\u2029", "\x0b{c}\x0c", "\x85{c}\x85",
)  # fmt: skip
# And around each, what may get it out of a quotation.
_AROUND = ("{}", "a {} b", '"{}"', "{};", "'{}\\", "-{}")
_OTHERS = (
    "-", "--", "---", "-h", "--help", "--version", "--debug", "--json", "--home=/tmp/x", "--job", "-rf /", "-t", "=", "=gpu", "=gpu:",
    "gpu:0.0", "%0", "$0", "@0", "{last}", "~", "!", "+", "^", ":", ".", "..", "../..", "../../../../etc/passwd", "/etc/passwd", "/",
    "//", "~root", "%2e%2e%2f", "..\\..\\x", "....//", "file:///etc/passwd", "\\\\host\\share", "C:\\x", "CON", "x\0y", "\0", "x\0",
    "' OR '1'='1", "'; DROP TABLE sessions; --", '" OR ""="', "1; ATTACH DATABASE 'x' AS y", "%' --", "\\' OR 1=1 --", "x' UNION SELECT 1 --",
    "key: value", "- item", "&anchor", "*alias", "!tag", "%TAG ! x", "---\n...\n", "? x", "| x", "> x", "[1, 2", "{a: b", "'", '"', "'''", '"""',
    "yes", "null", "~", "1e3", "0x10", "2026-01-01", "\\", "\\\\", "x\\", "\\n", "\\x41", "\\u0000", "\\;", ";", ";;", "x;", "x\\;", "#", "##", "#{",
    "#(", "#[", "%s%s%n", "%(x)s", "%d", "{}", "{0}", "{0.__class__}", "{prompt}", "{prompt_file}", "{job_id}", "{conditions}", "{workdir}",
    "{{", "}}", "{", "}", "$prompt", "${HOME}", "$HOME", "%PATH%", "\t", " ", "  x  ", "\n", "\r\n", "x\n", "\nx", "\x1b", "\x1b[2J", "\x1b[31mred",
    "\x1b]8;;http://x\x07y\x1b]8;;\x07", "\x07", "\x08\x08\x08", "\x7f", "\x9b31m", "\u202egnp.exe", "\u2066x\u2069", "\u200b", "\ufeffx", "\u061c",
    "\u200fx", "e\u0301", "\u212b", "\uff0e\uff0e\uff0f", "\U0001f468\u200d\U0001f469", "\U000e0041", "\uffff", "\u0130", "<b>x</b>", "&lt;", "<![CDATA[x]]>",
    "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>", '","status":"completed', '{"a":1}', "[[]]", '"}]}',
    "\\ud800", "Enter", "C-c", "C-m", "Escape", "M-x", "x" * 255, "x" * 256, "x" * 4095, "x" * 5000, "é" * 3000, "a\n" * 2000, "x" * 100_000,
)  # fmt: skip


class Hostile:
    """`strings` and the place where those that were interpreted leave their mark; its `bin` goes on the PATH."""

    def __init__(self, folder: str) -> None:
        self.bin = os.path.join(folder, "canary-bin")
        self._sung = os.path.join(folder, "canaries")
        os.mkdir(self.bin)
        os.mkdir(self._sung)
        program = os.path.join(self.bin, "canary")
        with open(program, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\n: > "{self._sung}/$1"\n')
        os.chmod(program, 0o755)
        raw = [around.replace("{}", text) for text in _COMMANDS for around in _AROUND]
        self.strings = [text.format(c=f"canary {number}") for number, text in enumerate(raw)]
        self.strings += _OTHERS
        assert len(set(self.strings)) > 300

    def sung(self) -> list[str]:
        """The strings that were interpreted somewhere."""
        return [self.strings[int(name)] if name.isdecimal() else name for name in os.listdir(self._sung)]

    def some(self, count: int, *, full: bool) -> list[str]:
        """Evenly from all kinds; everything when `full`."""
        if full:
            return self.strings
        step = len(self.strings) / count
        return [self.strings[int(number * step)] for number in range(count)]
