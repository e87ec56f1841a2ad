"""Remove paths and secrets from texts that leave this machine.

It knows the usual forms of keys, the secrets in this process's environment, and absolute paths. It may miss a secret;
in doubt it hides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from baton.core.value import Any

PATH = "<path>"
SECRET = "<secret>"  # noqa: S105  # nosec B105: the replacement, not a secret
LONGEST = 64 * 1024
_CUT = " … (cut)"


# The patterns are text, which `re` compiles at the first use: most texts need none, and compiling all takes longer than
# the rest of a publish. Each runs in linear time for every text: what may repeat without limit comes last in a pattern,
# so that all text it reads is replaced, or cannot be read twice.
_ESCAPES = (
    r"(?s)\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and similar: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_INVISIBLE = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
    r"|[\ud800-\udfff\U000e0000-\U000e007f]"
)
_KEYS = (
    r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}"
    r"|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])|AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,}"
    r"|GOCSPX-[A-Za-z0-9_-]{16,}|xox[a-z]-[0-9A-Za-z%/+=-]{10,}|xapp-[0-9A-Za-z-]{10,}"
    r"|npm_[A-Za-z0-9]{30,}|hf_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|do[opr]_v1_[a-f0-9]{32,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|whsec_[A-Za-z0-9+/=_-]{16,}|AGE-SECRET-KEY-1[0-9A-Z]{40,}"
    r"|[0-9]{6,12}:AA[A-Za-z0-9_-]{25,}"  # a Telegram bot
    r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,4}"  # a JWT, or its first part: JSON as base64
    r")"
)
_WEBHOOKS = r"(hooks\.slack\.com/services/|/api/webhooks/)[A-Za-z0-9/_-]{8,}"
# An ordinary word in the place of a secret has neither a digit nor a capital in the middle.
_UNLIKE_A_WORD = r"(?=[^\s\"']{0,80}?(?:[0-9]|[a-z][A-Z]|[!@#$%^*+=~|]))"
_NAMES = (
    r"(?i:passw(?:or)?d|passphrase|secret(?:[_-]?key)?|token|(?:api|private|access|account)[_-]?key|credentials?"
    r"|authorization|_pass|_pwd|_pat)"
)
_HIDDEN = r"(?!<secret>|<path>)"
# After a revealing name: keep the name, hide the value. In quotes all of it, after "=" to the next space, after ":"
# only what looks like a secret, because prose has colons, too.
_QUOTED = rf"(?s)({_NAMES}\\?[\"']?\s{{0,8}}[=:]\s{{0,8}}\\?([\"']))(?!<secret>\\?\2)(?:(?!\\?\2).)+(?=\\?\2)"
_ASSIGNED = rf"({_NAMES}\\?[\"']?\s{{0,8}}=\s{{0,8}}\\?[\"']?){_HIDDEN}[^\s\"']{{3,}}"
_AFTER_COLON = rf"({_NAMES}\\?[\"']?\s{{0,8}}:\s{{0,8}}\\?[\"']?){_HIDDEN}{_UNLIKE_A_WORD}[^\s\"']{{4,}}"
_OPTION = (
    rf"((?<![\w-])--(?:[a-z0-9]{{1,20}}-){{0,3}}{_NAMES}[ \t]{{1,8}}){_HIDDEN}"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s-]\S*)"
)
_NAMED = (_QUOTED, _ASSIGNED, _AFTER_COLON, _OPTION)
_NAMED_WORDS = (
    "passw", "passphrase", "secret", "token", "key", "credential", "authorization", "_pass", "_pwd", "_pat",
)  # fmt: skip
_BEARER = rf"\b((?i:bearer|basic|digest|negotiate)\s{{1,8}}){_UNLIKE_A_WORD}[A-Za-z0-9+/_.~=-]{{8,}}"
_COOKIE = r"((?i:cookie):\s{0,4})[^\s=<>]{1,64}=[^\r\n]+"
_URL_LOGIN = (
    # A password may have "/" and "@"; a number and a "/" after the first ":" are a port.
    r"(?<=://)(?:[^\s/@:\"'<>]{0,200}:(?![0-9]{1,5}/)[^\s\"'<>]{1,200}"
    rf"|{_UNLIKE_A_WORD}[^\s/@:\"'<>]{{16,200}})(?=@)"
)
_PART = r"[\w.@+,=%~-]"
_ROOTS = (
    r"(?:bin|boot|dev|etc|home|lib|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var|Users|Volumes|private|workspace"
    r"|work)\b"
)
_BEFORE = r"(?<![\w/.<~*)\]-])(?<!<path>)(?<!<secret>)"
_PATHS = (
    r"(?<=file://)/[^\s\"']+"
    # Below a root of the system, anywhere, also after an option such as -I.
    rf"|(?:(?<![\w/.~-])(?<!<path>)(?<!<secret>)|(?<=^-[A-Za-z])|(?<=[\s=]-[A-Za-z]))/{_ROOTS}(?:/+{_PART}*)*"
    rf"|(?<![\w/.~:-])(?<!<path>)(?<!<secret>)//+{_ROOTS}(?:/+{_PART}*)*"
    # Any other path has at least two parts: "/help" and "and/or" are words.
    rf"|(?:{_BEFORE}(?:~[\w.-]{{0,64}}|\$HOME|\$\{{HOME\}})?|(?<=^-[A-Za-z])|(?<=[\s=]-[A-Za-z]))"
    rf"/(?:{_PART}+/+)+{_PART}*"
    rf"|{_BEFORE}~[\w.-]{{0,64}}/{_PART}+"
    r"|(?<!\w)[A-Za-z]:\\[^\s\"'<>|]*"
    r"|\\\\[\w.-]+\\[^\s\"'<>|]+"
)
_REVEALING = ("passw", "passphrase", "secret", "token", "api_key", "apikey", "access_key", "credential", "private")
_REVEALING_ENDS = ("_auth", "_key", "_pass", "_pwd", "_pat")
_SHORTEST_SECRET = 6
_SHORTEST_KEY = 15


class Redactor:
    """Removes paths and secrets from texts, with the secrets of the environment it was built with."""

    def __init__(self, env: Mapping[str, str], *, secrets: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
        found = [value for name, value in env.items() if _is_revealing(name.lower())]
        found += secrets
        found += [password for value in env.values() if (password := url_password(value))]
        # The longest first: a secret may be part of another.
        self._secrets = sorted({each for each in found if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True)
        known = [each.rstrip("/") for each in (env.get("HOME", ""), *folders)]
        self._folders = sorted({each for each in known if len(each) > 1}, key=len, reverse=True)

    def text(self, text: str, longest: int = LONGEST) -> str:  # noqa: C901  one step a pattern
        """Return the text without paths and secrets, cut to about `longest` characters before the search."""
        # Each pattern runs only after a cheap test that every match of it passes.
        if not text.isprintable():
            text = re.sub(_INVISIBLE, "", re.sub(_ESCAPES, "", text))
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        if len(text) > longest:
            # Not within a word: half of a key cannot be recognised.
            text = (text[:longest].rsplit(maxsplit=1) or [""])[0] + _CUT
        if "-----BEGIN" in text or any(len(word) >= _SHORTEST_KEY for word in text.split()):
            text = re.sub(_WEBHOOKS, rf"\1{SECRET}", re.sub(_KEYS, SECRET, text))
        if "://" in text and "@" in text:
            text = re.sub(_URL_LOGIN, SECRET, text)
        lower = text.lower()
        if any(word in lower for word in ("bearer", "basic", "digest", "negotiate")):
            text = re.sub(_BEARER, rf"\1{SECRET}", text)
        if "cookie:" in lower:
            text = re.sub(_COOKIE, rf"\1{SECRET}", text)
        if any(word in lower for word in _NAMED_WORDS):
            for pattern in _NAMED:
                text = re.sub(pattern, rf"\1{SECRET}", text)
        for folder in self._folders:
            if folder in text:
                # The pattern below does not recognise a folder with spaces in its name.
                text = re.sub(re.escape(folder) + r"(?=$|[^\w-])[^\s\"']*", PATH, text)
        return re.sub(_PATHS, PATH, text) if "/" in text or "\\" in text else text

    def value(self, value: Any) -> Any:
        """Redact every text in a JSON value, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            cleaned: dict[Any, Any] = {}
            for key, each in value.items():
                cleaned[_unused_key(self.text(key), cleaned) if isinstance(key, str) else key] = self.value(each)
            return cleaned
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value


def _unused_key(key: str, taken: Mapping[Any, Any]) -> str:
    """Return a key that is not taken: two keys may become equal, and no value is to be lost."""
    name, number = key, 1
    while name in taken:
        number += 1
        name = f"{key} ({number})"
    return name


def _is_revealing(name: str) -> bool:
    """Return whether an environment variable of this name probably has a secret."""
    return (
        any(part in name for part in _REVEALING)
        or name.startswith("auth")
        or name.endswith(_REVEALING_ENDS)
        or name in ("key", "pass", "pat")
    )


def url_password(url: str) -> str:
    """Return the password in `scheme://user:password@host`, or an empty text."""
    return url.partition("://")[2].rpartition("@")[0].partition(":")[2]


def without_keys(text: str, keys: Iterable[str | None]) -> str:
    """Return a text for the user's own files without these keys, and without what a terminal acts on or hides."""
    if not text.isprintable():
        text = re.sub(_INVISIBLE, "", re.sub(_ESCAPES, "", text))
    for key in sorted({key for key in keys if key and len(key) >= _SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(key, SECRET)
    return text


def process_redactor(*, secrets: Iterable[str | None] = (), workdir: str | None = None) -> Redactor:
    """Return the redactor for what this process reports about one job."""
    try:
        current = os.getcwd()
    except OSError:
        current = ""  # the current folder was removed
    return Redactor(os.environ, secrets=[each for each in secrets if each], folders=[workdir or "", current])


def shorten(text: str, longest: int) -> str:
    """Cut a text to at most so many bytes of UTF-8, between characters."""
    raw = text.encode()
    if len(raw) <= longest:
        return text
    return raw[: longest - len(_CUT.encode())].decode(errors="ignore") + _CUT
