"""Read the arguments of a tool call for the user's rules: its command, and every file that it names.

Each agent words its arguments in its own way, and a later release, or a server of tools, in another. A name is known as
a whole alone. What an unknown argument means is not guessed: no allow rule matches the call, and to a deny or an ask
rule every text in it may be a path."""

from __future__ import annotations

import re
from functools import partial

from baton.core.rules import Bound, Call, absolute, out_of_bounds
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Resolve = Callable[[str], str]

_DEEPEST = 8
_LONGEST_PATH = 4096
_MOST_FILES = 1000
_COMMANDS = frozenset({"command", "cmd", "commands", "script"})
# The folder of a command; without a command, a file as any other.
_FOLDERS = frozenset({
    "cwd", "workdir", "working_dir", "working_directory", "workingDirectory", "directory", "dir_path",
})  # fmt: skip
_BESIDE_COMMANDS = frozenset({
    "description", "timeout", "timeout_ms", "run_in_background", "is_background",
})  # fmt: skip
_FILES = _FOLDERS | {
    "file_path", "file_paths", "filePath", "filePaths", "filepath", "notebook_path", "notebookPath", "path", "paths",
    "file", "files", "filename", "fileName", "file_name", "absolute_path", "absolutePath", "relative_path",
    "relativePath", "relative_workspace_path", "target_file", "targetFile", "target_path", "targetPath",
    "target_directory", "target_notebook", "dirPath", "dir", "folder", "parentDir", "grantRoot", "grant_root", "root",
    "source", "destination", "src", "dst", "dest", "source_path", "sourcePath", "destination_path", "destinationPath",
    "old_path", "oldPath", "new_path", "newPath", "move_path", "movePath", "local_path", "localPath", "scriptPath",
    "output_path", "outputPath", "out_dir", "abs_path", "absPath", "uri", "uris", "fileUri",
}  # fmt: skip
_URLS = frozenset({"url", "urls"})
_PATTERNS = frozenset({"pattern", "patterns", "glob", "globs", "include", "includes", "include_pattern"})
_INCLUDED = frozenset({"include", "includes"})
_SEARCHES = frozenset({"grep", "grep_search", "search_file_content", "search", "rg"})  # a text is their `pattern`
_PATCHES = frozenset({"patchText", "patch", "input"})
# They hold arguments of their own, or an object with a path as each name.
_CHANGES = frozenset({"changes", "edits", "operations", "locations"})
# What is written, and where in a file: nothing without a file.
_DIFFS = frozenset({"diff", "unified_diff"})
_CONTENTS = _DIFFS | {
    "content", "contents", "file_text", "new_source", "old_string", "new_string", "oldString", "newString", "old_str",
    "new_str", "insert_text", "insert_line", "replace_all", "replaceAll", "allow_multiple", "expected_replacements",
    "instruction", "cell_id", "cell_type", "edit_mode", "kind", "view_range", "range",
    "oldText", "newText", "newFileContents", "intention", "line", "character",
}  # fmt: skip
_HARMLESS = frozenset({
    "description", "reason", "query", "queries", "prompt", "subagent_type", "todos", "questions", "timeout",
    "timeout_ms", "run_in_background", "is_background", "offset", "limit", "pages", "start_line", "end_line",
    "head_limit", "output_mode", "context", "before", "after", "-A", "-B", "-C", "-n", "-i", "-o", "multiline", "type",
    "case_sensitive", "fixed_strings", "names_only", "max_matches_per_file", "total_max_matches", "recursive", "ignore",
    "exclude", "exclude_pattern", "useDefaultExcludes", "respect_git_ignore", "respect_gemini_ignore",
    "respect_qwen_ignore", "file_filtering_options", "no_ignore", "allowed_domains", "blocked_domains", "format",
    "numResults", "max_results", "livecrawl", "contextMaxCharacters", "tokensNum", "task_id", "taskId", "shell_id",
    "bash_id", "server", "serverName", "message", "requestedSchema",
})  # fmt: skip
_DATA = frozenset({"todos", "questions", "requestedSchema"})  # what is in them is shown, and names nothing
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ELSEWHERE = re.compile(r"(^|[{,])\s*[/~]|\.\.")  # in a pattern, which may also name what is in braces
_PATCHED = re.compile(r"(?:\*\*\* *[A-Za-z ]+:|(?:rename|copy) (?:from|to) |--- |\+\+\+ |Index: )(.*)", re.DOTALL)
_OTHER_LINES = ("*** Begin Patch", "*** End Patch", "*** End of File")


def read_call(
    agent: str,
    tool: str,
    arguments: Any,
    *,
    exact: bool,
    workdir: str | None,
    resolve: Resolve,
    user_home: str = "",
    reserved: Sequence[str] = (),
    bounds: Sequence[Bound] = (),
) -> Call:
    """Return what rules decide about, from the arguments of a tool call. `resolve` returns the real path of an absolute
    path."""
    places = _Places(workdir, resolve, user_home)
    found = _Arguments(tool)
    if isinstance(arguments, dict):
        found.read_call(arguments, places)
    else:
        found.read_text(arguments)
    files = found.files[:_MOST_FILES]
    paths = [places.of(each) for each in files]
    odd = found.odd or workdir is None or len(files) < len(found.files) or any(map(places.is_odd, files))
    matched = [*found.patterns, *(f"{folder}/{each}" for each in found.patterns for folder in files)]
    hints = [path for each in [*files, *matched, *found.hints][:_MOST_FILES] for path in places.forms(each)]
    return Call(
        agent=agent, tool=tool, exact=exact, command=found.command, more_commands=tuple(found.more_commands),
        paths=tuple(paths), hints=tuple(dict.fromkeys(hints)),
        searches=found.searches and not paths, workdir=places.folder, reserved=tuple(reserved),
        bounds=tuple(bounds), user_home=user_home, odd=odd or (found.has_content and not paths),
    )  # fmt: skip


class _Arguments:
    """What the arguments of a call name. `odd`: one may change what the call does in a way that rules do not know."""

    def __init__(self, tool: str, depth: int = 0) -> None:
        self.command: str | tuple[str, ...] | None = None
        self.more_commands: list[str | tuple[str, ...]] = []
        self.files: list[str] = []
        self.patterns: list[str] = []
        self.hints: list[str] = []
        self.odd = self.has_content = self.searches = False
        self._tool, self._depth = tool, depth

    def read_call(self, given: Mapping[str, Any], places: _Places) -> None:
        """Read the arguments of the call itself: beside a command nothing may stand that changes how it runs."""
        values = [value for name, value in given.items() if name in _COMMANDS and value is not None]
        commands = [each for each in map(_command, values) if each is not None]
        rest = {name: value for name, value in given.items() if name not in _COMMANDS}
        if values:
            self.odd = len(values) > 1 or not commands
            self.command, self.more_commands = (commands[0] if commands else ""), commands[1:]
            rest = {name: value for name, value in rest.items() if not _is_beside(name, value, places)}
            self.odd = self.odd or bool(rest)  # guard: rule-beside-command
        self.read(rest)

    def read(self, given: Mapping[str, Any]) -> None:
        """Read arguments that count: each names files that the call uses, or has to be known as harmless."""
        if self._depth > _DEEPEST:
            self.odd = True
            return
        for name, value in given.items():
            if value is not None:
                self._read_argument(name, value)
        if given.get("grantRoot") or given.get("grant_root"):
            self.odd = True  # guard: rule-granted-root

    def _read_argument(self, name: str, value: Any) -> None:
        readers = (
            (_FILES, self._read_files), (_CHANGES, self._read_changes), (_PATCHES, self._read_patch),
            (_URLS, self._read_urls), (_PATTERNS, partial(self._read_patterns, name)),
        )  # fmt: skip
        read = next((read for names, read in readers if name in names), None)
        if name == "kind" and isinstance(value, dict):  # of a change of Codex: it has the path that a file is moved to
            self._read_inner(value)
        elif read is not None:
            read(value)
        elif name in _CONTENTS or name in _HARMLESS:
            self.has_content = self.has_content or name in _CONTENTS
            is_clear = self._look_at(value, is_known=name not in _DIFFS)
            if not is_clear and name not in _DATA:  # guard: rule-nested-argument
                self.odd = True
        else:
            self.odd = True  # guard: rule-unknown-argument
            if name in _COMMANDS and (command := _command(value)) is not None:
                self.more_commands.append(command)
            self._look_at(value)

    def read_text(self, value: Any) -> None:
        """Read a call that is no object: of one that is too long, the JSON is left as a text."""
        self.odd = True
        if isinstance(value, str):
            self.more_commands.append(value)
            self.hints += re.findall(r'"([^"\\\n]{1,1024})"', value)
        self._look_at(value)

    def _look_at(self, value: Any, *, is_known: bool = False) -> bool:
        """Note what a deny or an ask rule may be about, and return whether all in it is harmless. Texts of known
        arguments are no paths."""
        if isinstance(value, dict):
            inner = _Arguments(self._tool, self._depth + 1)
            inner.read(value)
            self._add_hints(inner)
            self.hints += [] if is_known else [*value]
            return not (inner.odd or inner.files)
        if isinstance(value, list):
            found = [self._look_at(each, is_known=is_known) for each in value]
            return all(found)
        if isinstance(value, str) and not is_known:
            self.hints += [value, *_patched(value)[0]]
        return True

    def _add_hints(self, inner: _Arguments) -> None:
        self.hints += inner.files + inner.hints
        self.patterns += inner.patterns
        self.more_commands += inner.more_commands

    def _read_files(self, value: Any) -> None:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                self.files.append(each)
            elif isinstance(each, dict) and isinstance(value, list):
                self._read_inner(each)
            else:  # the names of an object may be paths
                self.odd = True
                self._look_at(each)

    def _read_changes(self, value: Any) -> None:
        """Read changes: a list of objects, or an object with a path as each name."""
        if isinstance(value, dict):
            self.files += value
            value = list(value.values())
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                self._read_inner(each)
            else:
                self.odd = True
                self._look_at(each)

    def _read_inner(self, given: Mapping[str, Any]) -> None:
        inner = _Arguments(self._tool, self._depth + 1)
        inner.read(given)
        self.files += inner.files
        self._add_hints(inner)
        self.odd = self.odd or inner.odd
        self.has_content = self.has_content or inner.has_content

    def _read_patch(self, value: Any) -> None:
        files, is_clear = _patched(value) if isinstance(value, str) else ([], False)
        self.files += files
        if not (files and is_clear):  # guard: rule-patch
            self.odd = True
            self._look_at(value)

    def _read_urls(self, value: Any) -> None:
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str) or not each.startswith(("https://", "http://")):  # guard: rule-scheme-of-url
                self._read_files(each)

    def _read_patterns(self, name: str, value: Any) -> None:
        self.searches = True
        tool = self._tool.casefold()
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str) or _ELSEWHERE.search(each):  # guard: rule-pattern
                self.odd = True
            if name in _INCLUDED and (tool not in _SEARCHES or "/" in str(each)):
                self._read_files(each)  # of the work folder; in a search, the names of files below `path`
            elif isinstance(each, str) and not (name == "pattern" and tool in _SEARCHES):
                self.odd = self.odd or bool(out_of_bounds(each))
                self.patterns.append(each)


class _Places:
    """The work folder of a call, and what paths lead to from there."""

    def __init__(self, workdir: str | None, resolve: Resolve, user_home: str) -> None:
        self._resolve, self._user_home = resolve, user_home
        self.folder = resolve(workdir) if workdir else "/"
        self._named = workdir.rstrip("/") if workdir else ""

    def is_work_folder(self, path: str) -> bool:
        return not self.is_odd(path) and set(self.of(path)) == {self.folder}  # guard: rule-folder-of-command

    def of(self, path: str) -> tuple[str, ...]:
        """Return every file that a tool may take a path for: some resolve `..` in the text, others after links."""
        joined = self._joined(path)
        text = absolute(joined, self.folder, "")
        return tuple(dict.fromkeys((self._resolve(joined), self._resolve(text), text)))

    def is_odd(self, path: str) -> bool:
        """Return whether tools may take the path for different files, or for several."""
        if path != path.strip() or not path or "\0" in path or path.startswith(("~", "@")):  # guard: rule-path-spaces
            return True
        if _SCHEME.match(path) or not {"*", "?", "{"}.isdisjoint(path):  # guard: rule-path-scheme
            return True
        parts: list[str] = []
        for part in self._joined(path).split("/"):
            if part != "..":
                parts += [part] if part not in ("", ".") else []
                continue
            before = "/" + "/".join(parts)
            if self._resolve(before) != before:  # guard: rule-parent-of-link
                return True
            del parts[-1:]
        return False

    def forms(self, path: str) -> Iterator[str]:
        """Yield, for deny and ask rules, everything that a text may mean as a path."""
        from urllib.parse import unquote

        bare = path.strip().strip("\ufeff").strip()  # as JavaScript trims
        for text in dict.fromkeys((path, path.strip(), bare, bare.strip("'\"@"))):
            if "\0" in text or len(text) > _LONGEST_PATH or "\n" in text:
                continue
            scheme = _SCHEME.match(text)
            rest = re.sub(r"^//[^/]*(?=/)", "", text[scheme.end() :]) if scheme else text
            for form in dict.fromkeys((text, rest, unquote(rest))):
                if "\0" not in form:
                    yield from (absolute(form, self.folder, self._user_home), *self.of(form))

    def _joined(self, path: str) -> str:
        """Return a path as absolute, below the real work folder if it lies below the one that was named."""
        path = path.replace("\0", "")
        if not path.startswith("/"):
            return f"{self.folder.rstrip('/')}/{path}"
        path = "/" + path.lstrip("/")
        is_below = self._named and f"{path}/".startswith(f"{self._named}/")
        return self.folder + path[len(self._named) :] if is_below else path


def _patched(text: str) -> tuple[list[str], bool]:
    """Return the paths in a patch, and whether every line that may name one was understood. A tool ends lines with a
    line feed, or with other characters, too."""
    found, is_clear = dict[str, None](), True
    is_marked = "*** Begin Patch" in text
    for line in dict.fromkeys((*text.split("\n"), *text.splitlines())):
        if is_marked and not line.lstrip().startswith("***"):
            continue  # of a file
        header = _PATCHED.match(line.strip())
        if header is None:
            is_other = line.strip() in _OTHER_LINES or not line.lstrip().startswith(("***", "diff --"))
            is_clear = is_clear and is_other
            continue
        name = (header[1] if is_marked else header[1].partition("\t")[0]).strip()
        is_clear = is_clear and not name.startswith('"')
        found |= dict.fromkeys([name] if is_marked or not name.startswith(("a/", "b/")) else [name, name[2:]])
    found.pop("/dev/null", None)
    return list(found), is_clear


def _is_beside(name: str, value: Any, places: _Places) -> bool:
    """Return whether a command runs as it would without this argument."""
    is_here = name in _FOLDERS and isinstance(value, str) and places.is_work_folder(value)
    return is_here or name in _BESIDE_COMMANDS


def _command(value: object) -> str | tuple[str, ...] | None:
    if isinstance(value, str):
        return value
    return tuple(value) if isinstance(value, list) and value and all(isinstance(each, str) for each in value) else None
