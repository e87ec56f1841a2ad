"""Settings: built-in default < config file < environment < flag. Each value knows where it came from.

The config file is `baton.toml`: the user's in $XDG_CONFIG_HOME/baton/, then the one in the home folder, which
wins; or the one file that BATON_CONFIG names. The one in the home folder may have come with a clone: it cannot allow
what only the user may allow.
"""

from __future__ import annotations

import os
import re

from baton.core.errors import InvalidValue
from baton.core.job import DEFAULT_AGENT, DEFAULT_IDLE_TIMEOUT_SEC, DEFAULT_TIMEOUT_SEC, HIDDEN, agent_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

DEFAULT_HOME = ".hermes"
DEFAULT_AGENT_NAME_PREFIX = "HOUMAO-"
DEFAULT_LEASE_SEC = 60

# name: (environment variable, type, what it is)
KNOWN: Final[dict[str, tuple[str | None, type, str]]] = {
    "home": ("BATON_HOME", str, "where baton keeps its state"),
    "registry_dir": (None, str, "folder of the job registry"),
    "registry": ("BATON_REGISTRY", str, "url of the job registry"),
    "logs_dir": ("DELEGATE_JOB_LOGS_DIR", str, "folder of the audit logs"),
    "state_dir": ("BATON_STATE_DIR", str, "what belongs to the user, not to a folder"),
    "directory": ("BATON_DIRECTORY", str, "url of the directory of live agents"),
    "agent_name_prefix": ("BATON_AGENT_NAME_PREFIX", str, "what the canonical name of every live agent begins with"),
    "tmux_socket": ("BATON_TMUX_SOCKET", str, "the tmux server of agent sessions: a name, or a path"),
    "host": ("BATON_HOST", str, "the name of this machine, for others"),
    "allow_network_fs": ("BATON_ALLOW_NETWORK_FS", bool, "accept a registry on a network file system"),
    "agent": ("BATON_AGENT", str, "agent of a job that names none"),
    "timeout_sec": ("BATON_TIMEOUT_SEC", int, "time a job may take"),
    "idle_timeout_sec": ("BATON_IDLE_TIMEOUT_SEC", int, "time a job may say nothing"),
    "lease_sec": ("BATON_LEASE_SEC", int, "time after which a job is taken from a runner that died or hangs"),
    "mqtt_host": ("MQTT_BROKER", str, "the MQTT broker; none: a local one of your own"),
    "mqtt_port": ("MQTT_PORT", int, "its port (default: 1883, 8883 with TLS)"),
    "mqtt_tls": ("MQTT_TLS", bool, "encrypt the connection to it"),
    "mqtt_tls_1_2": ("MQTT_TLS_1_2", bool, "accept TLS 1.2 as well as 1.3"),
    "mqtt_ca_certs": ("MQTT_CA_CERTS", str, "certificates to trust it by"),
    "mqtt_certfile": ("MQTT_CERTFILE", str, "our certificate, where it wants one"),
    "mqtt_keyfile": ("MQTT_KEYFILE", str, "the key of our certificate"),
    "mqtt_username": ("MQTT_USERNAME", str, "our login"),
    "mqtt_password": ("MQTT_PASSWORD", str, "and password"),
    "allow_plaintext": ("BATON_ALLOW_PLAINTEXT", bool, "talk to a broker off this machine without TLS"),
}
_NOT_IN_FILES: Final = frozenset({"home"})
_NOT_IN_HOME: Final = frozenset({"allow_plaintext"})
_PATHS: Final = frozenset(
    {"home", "registry_dir", "logs_dir", "state_dir", "mqtt_ca_certs", "mqtt_certfile", "mqtt_keyfile"}
)


class Settings:
    """What every command runs with. `sources` names, for each value, where it was found."""

    home: str
    registry_dir: str
    registry: str | None
    logs_dir: str
    state_dir: str
    directory: str | None
    agent_name_prefix: str
    tmux_socket: str
    host: str
    allow_network_fs: bool
    agent: str
    timeout_sec: int
    idle_timeout_sec: int
    lease_sec: int
    mqtt_host: str | None
    mqtt_port: int | None
    mqtt_tls: bool | None
    mqtt_tls_1_2: bool | None
    mqtt_ca_certs: str | None
    mqtt_certfile: str | None
    mqtt_keyfile: str | None
    mqtt_username: str | None
    mqtt_password: str | None
    allow_plaintext: bool

    def __init__(self, flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        given = {name: value for name, value in (flags or {}).items() if value is not None and name in KNOWN}
        self.sources: dict[str, str] = {}
        self.files: list[str] = []
        self.tables: dict[str, dict[str, Any]] = {}
        self.home_file: str | None = None
        """The config file in the home folder, where one was read."""
        self._set("home", DEFAULT_HOME, "default")
        if env.get("BATON_HOME"):
            self._set("home", env["BATON_HOME"], "BATON_HOME")
        if "home" in given:
            self._set("home", given["home"], "--home")

        user = env.get("HOME") or os.path.expanduser("~")
        state = env.get("XDG_STATE_HOME") or os.path.join(user, ".local", "state")
        self._set("registry_dir", os.path.join(self.home, "jobs"), "default")
        self._set("registry", None, "default")
        self._set("logs_dir", os.path.join(self.home, "delegate_job_logs"), "default")
        self._set("state_dir", os.path.join(state, "baton"), "default")
        self._set("directory", None, "default")
        self._set("agent_name_prefix", DEFAULT_AGENT_NAME_PREFIX, "default")
        self._set("tmux_socket", "baton", "default")
        self._set("host", os.uname().nodename, "default")
        self._set("allow_network_fs", False, "default")
        self._set("agent", DEFAULT_AGENT, "default")
        self._set("timeout_sec", DEFAULT_TIMEOUT_SEC, "default")
        self._set("idle_timeout_sec", DEFAULT_IDLE_TIMEOUT_SEC, "default")
        self._set("lease_sec", DEFAULT_LEASE_SEC, "default")
        self._set("allow_plaintext", False, "default")
        for name in KNOWN:
            if name.startswith("mqtt_"):
                self._set(name, None, "default")
        for path in self._config_files(env, user):
            self._read_file(path)
        for name, (variable, kind, _) in KNOWN.items():
            if variable and env.get(variable) and name != "home":
                self._set(name, _from_text(variable, env[variable], kind), variable)
        if "registry_dir" in given and "registry" not in given:
            self._set("registry", None, "default")  # a folder named on the command line is the one to use
        for name, value in given.items():
            self._set(name, value, "--" + name.removesuffix("_sec").replace("_", "-"))
        self._check_lease()
        self._check_broker()

    def named(self, name: str) -> str:
        """A setting by the name it was set under: the variable, the option, or its name in a file."""
        source = self.sources[name]
        return f"{name} in {source}" if source in self.files else name if source == "default" else source

    def _check_lease(self) -> None:
        if self.lease_sec < 1:
            raise InvalidValue(self.named("lease_sec"), f"must be at least 1, not {self.lease_sec}")

    def _check_broker(self) -> None:
        if self.mqtt_port is not None and not 1 <= self.mqtt_port <= 65535:
            raise InvalidValue(self.named("mqtt_port"), f"must be from 1 to 65535, not {self.mqtt_port}")
        if self.mqtt_host is not None and not re.fullmatch(_HOST, self.mqtt_host):
            # What stands there is not repeated: a url may hold a password.
            raise InvalidValue(
                self.named("mqtt_host"),
                "must be a name or an address alone, such as broker.example.com; the port goes into MQTT_PORT, TLS is "
                "MQTT_TLS=1, the login MQTT_USERNAME and MQTT_PASSWORD",
            )

    def shown(self) -> list[tuple[str, Any, str]]:
        """Name, value and source of every setting, secrets hidden."""
        rows = []
        for name in KNOWN:
            value = getattr(self, name)
            if name in ("registry", "directory"):
                value = hide_password(value)
            elif name == "mqtt_password" and value is not None:
                value = HIDDEN
            rows.append((name, value, self.sources[name]))
        return rows

    def _set(self, name: str, value: Any, source: str) -> None:
        if name in _PATHS and isinstance(value, str) and value.startswith("~"):
            value = os.path.expanduser(value)
        if name == "agent":
            value = agent_name(value)
        setattr(self, name, value)
        self.sources[name] = source

    def _config_files(self, env: Mapping[str, str], user: str) -> list[str]:
        if env.get("BATON_CONFIG"):
            return [env["BATON_CONFIG"]]
        folder = env.get("XDG_CONFIG_HOME") or os.path.join(user, ".config")
        own, home = os.path.join(folder, "baton", "baton.toml"), os.path.join(self.home, "baton.toml")
        if os.path.isfile(home) and home != own:
            self.home_file = home
        return [path for path in (own, self.home_file) if path and os.path.isfile(path)]

    def _read_file(self, path: str) -> None:
        import tomllib

        try:
            with open(path, "rb") as file:
                table = tomllib.load(file)
        except OSError as error:
            raise InvalidValue("config file", f"{path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValue("config file", f"{path} is not TOML: {error}") from None
        self.files.append(path)
        for name, value in table.items():
            if isinstance(value, dict):
                if name != "agents":
                    raise InvalidValue("config file", f"{path} has a table [{name}]; the only ones are [agents.NAME]")
                self.tables.setdefault(name, {}).update(value)  # such as [agents.x]: whoever uses them reads them
                continue
            if name not in KNOWN or name in _NOT_IN_FILES:
                allowed = ", ".join(key for key in KNOWN if key not in _NOT_IN_FILES)
                raise InvalidValue("config file", f"{path} sets {name!r}, which is not one of {allowed}")
            if name in _NOT_IN_HOME and path == self.home_file:
                own = f"{KNOWN[name][0]}=1 or in your own baton.toml"
                raise InvalidValue(
                    "config file",
                    f"{path} sets {name}, which only you can, with {own}",
                )
            kind = KNOWN[name][1]
            if type(value) is not kind:
                raise InvalidValue("config file", f"{path}: {name} must be {_NAMES[kind]}")
            self._set(name, value, path)


# Colons are for IPv6 addresses: two at least, so that name:port is none.
_HOST: Final = r"[^\s/:@]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*(?:%\w+)?"
_NAMES: Final = {str: "text", int: "a whole number", bool: "true or false"}
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def _from_text(variable: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise InvalidValue(variable, f"must be 1 or 0, not {text!r}")
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise InvalidValue(variable, f"must be a whole number, not {text!r}") from None
    return text


def hide_password(url: str | None) -> str | None:
    """A url as it may be shown: `postgresql://user:***@host/db`."""
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url if re.match(r"(?:sqlite|file):", url) else re.sub(r"(?i)(pass\w*\s*=\s*)\S+", r"\1***", url)
    login, at, place = rest.rpartition("@")
    if at and ":" in login:
        login = login.partition(":")[0] + ":***"
    place = re.sub(r"([?&][^=&]*(?:pass|%70)[^=&]*=)[^&]*", r"\1***", place, flags=re.IGNORECASE)
    return f"{scheme}://{login}{at}{place}"


def scrub_password(message: str, url: str) -> str:
    """What a driver says about that url, without the pieces of its password that it may quote."""
    login = url.partition("://")[2].rpartition("@")[0]
    secrets = [login.partition(":")[2], *re.findall(r"(?i)[?&][^=&]*(?:pass|%70)[^=&]*=([^&]*)", url)]
    for piece in re.split(r"[^\w]+", " ".join(secrets)):
        if len(piece) > 2:
            message = message.replace(piece, "***")
    return message
