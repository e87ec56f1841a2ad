"""What may be said out loud: events leave this machine, so paths and secrets do not go with them.

A net, not a proof: it knows the usual shapes of keys, the secrets in this process's environment, and absolute
paths. It errs towards hiding.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Final

PATH: Final = "<path>"
SECRET: Final = "<secret>"  # noqa: S105  what stands in its place
_CUT: Final = " … (cut)"


class _Pattern:
    """A regular expression that is compiled when it is first needed: most of what is said needs none of them, and
    compiling all takes longer than the rest of a publish."""

    __slots__ = ("_compiled", "_flags", "_text")

    def __init__(self, text: str, flags: int = 0) -> None:
        self._text = text
        self._flags = flags
        self._compiled: re.Pattern[str] | None = None

    def sub(self, replacement: str, text: str) -> str:
        if self._compiled is None:
            self._compiled = re.compile(self._text, self._flags)
        return self._compiled.sub(replacement, text)


_ESCAPES: Final = _Pattern(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and its kin: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)
_UNSEEN: Final = _Pattern(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
    r"|[\ud800-\udfff\U000e0000-\U000e007f]"
)
_KEYS: Final = _Pattern(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"
    r"|\b(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}"
    r"|\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{30,}|\bya29\.[0-9A-Za-z_-]{20,}"
    r"|\bxox[abeoprs]-[0-9A-Za-z-]{10,}|\bnpm_[A-Za-z0-9]{30,}|\bhf_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_-]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    re.DOTALL,
)
# What stands behind a telling name: keep the name, hide the value.
_NAMED: Final = _Pattern(
    r"(?i)(\b[\w-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|access[_-]?key|credentials?)"
    r"[\"']?\s*[=:]\s*[\"']?)(?!<secret>)([^\s\"',;&]{4,})"
)
_BEARER: Final = _Pattern(r"(?i)\b((?:authorization:\s*)?(?:bearer|basic)\s+)([A-Za-z0-9+/_.~=-]{8,})")
_URL_LOGIN: Final = _Pattern(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+(?=@)", re.IGNORECASE)
_PATHS: Final = _Pattern(
    # Two parts at least, or one of the system's own roots: "/help" and "and/or" are words.
    r"(?<![\w:/.<>~*)\]-])(?:~[\w.-]*|\$HOME|\$\{HOME\})?/(?:[\w.@+,=%~-]+/)+[\w.@+,=%~-]*"
    r"|(?<![\w:/.<>*)\]-])~[\w.-]*/[\w.@+,=%~-]+"
    r"|(?<![\w:/.<>~*)\]-])/(?:bin|boot|dev|etc|home|lib|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var|Users|"
    r"Volumes|private|workspace|work)\b/?"
    r"|(?<=file://)/[^\s\"']+"
    r"|(?<![\w])[A-Za-z]:\\(?:[^\s\\\"'<>|]+\\?)+"
    r"|\\\\[\w.-]+\\[\w.$-]+(?:\\[^\s\\\"'<>|]+)*"
)
_TELLING: Final = ("passw", "secret", "token", "api_key", "apikey", "credential", "private")
_SHORTEST_SECRET: Final = 6
_SHORTEST_KEY: Final = 15


class Redactor:
    """Cleans what goes on the wire. Built once per process: it remembers the secrets of the environment."""

    def __init__(self, env: Mapping[str, str], *, secrets: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
        found = [value for name, value in env.items() if _is_telling(name.lower())]
        found += secrets
        # The longest first: one may be part of another.
        self._secrets = sorted({each for each in found if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True)
        known = [env.get("HOME", ""), *folders]
        self._folders = sorted({each.rstrip("/") for each in known if len(each) > 1}, key=len, reverse=True)

    def text(self, text: str) -> str:
        # Each pattern stands behind a test that costs nothing and that whatever it matches must pass.
        if not text.isprintable():
            text = _UNSEEN.sub("", _ESCAPES.sub("", text))
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        if "-----BEGIN" in text or any(len(word) >= _SHORTEST_KEY for word in text.split()):
            text = _KEYS.sub(SECRET, text)
        if "://" in text and "@" in text:
            text = _URL_LOGIN.sub(rf"\1{SECRET}", text)
        lower = text.lower()
        if "bearer" in lower or "basic" in lower:
            text = _BEARER.sub(rf"\1{SECRET}", text)
        if "=" in text or ":" in text:
            text = _NAMED.sub(rf"\1{SECRET}", text)
        for folder in self._folders:
            if folder in text:
                # A folder with spaces in its name is no path to the pattern below; it is one to us.
                text = re.sub(re.escape(folder) + r"(?=$|[^\w-])[^\s\"']*", PATH, text)
        return _PATHS.sub(PATH, text) if "/" in text or "\\" in text else text

    def value(self, value: Any) -> Any:
        """The same for every text in a JSON value, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self.value(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value


def _is_telling(name: str) -> bool:
    """Whether an environment variable of that name is likely to hold a secret."""
    return any(part in name for part in _TELLING) or name.startswith("auth") or name.endswith(("_auth", "_key"))


def process_redactor(*, secrets: Iterable[str | None] = (), workdir: str | None = None) -> Redactor:
    """For what this process says about one job."""
    folders = [workdir] if workdir else []
    try:
        folders.append(os.getcwd())
    except FileNotFoundError:
        pass  # it was removed under us
    return Redactor(os.environ, secrets=[each for each in secrets if each], folders=folders)


def shorten(text: str, longest: int) -> str:
    """At most so many bytes of UTF-8, cut at a character."""
    raw = text.encode()
    if len(raw) <= longest:
        return text
    return raw[: longest - len(_CUT.encode())].decode(errors="ignore") + _CUT
