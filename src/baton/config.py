"""Read the settings: built-in default < config file < environment < option. Each value knows its source.

The config file is `baton.toml`: first the user's in $XDG_CONFIG_HOME/baton/, with a table [repository."PATH"] for each
repository that needs other values, then the one in the home, which wins. BATON_CONFIG names one file to read in their
place. The file in the home cannot set what only the user may allow; a home in place, which others may write, sets a
few values alone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache

from baton.core.errors import InvalidValue
from baton.core.job import (
    DEFAULT_AGENT,
    DEFAULT_BACKGROUND_TIMEOUT_SEC,
    DEFAULT_IDLE_TIMEOUT_SEC,
    DEFAULT_TIMEOUT_SEC,
    HIDDEN,
    agent_name,
)
from baton.core.job_checks import ON_LIMIT
from baton.core.value import Any, Value
from baton.own_files import why_shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.notification import NotifySettings
    from baton.core.spending import Price

DEFAULT_HOME = ".hermes"
DEFAULT_AGENT_NAME_PREFIX = "HOUMAO-"
DEFAULT_LEASE_SEC = 60
DEFAULT_DEPTH_LIMIT = 3
DEFAULT_RUNNING_LIMIT = 32

# name: (environment variable, type, what it is)
KNOWN: dict[str, tuple[str | None, type, str]] = {
    "home": ("BATON_HOME", str, "folder of jobs, sessions and audit logs"),
    "registry_dir": (None, str, "folder of the job registry (default: jobs in the home)"),
    "registry": ("BATON_REGISTRY", str, "url of the job registry (default: the one in registry_dir)"),
    "logs_dir": ("DELEGATE_JOB_LOGS_DIR", str, "folder of the audit logs (default: delegate_job_logs in the home)"),
    "state_dir": ("BATON_STATE_DIR", str, "folder of homes, local broker, live agents (default: ~/.local/state/baton)"),
    "directory": ("BATON_DIRECTORY", str, "url of the directory of live agents (default: your own)"),
    "agent_name_prefix": ("BATON_AGENT_NAME_PREFIX", str, "prefix of the canonical name of every live agent"),
    "tmux_socket": ("BATON_TMUX_SOCKET", str, "tmux server of agent sessions: a name or a path"),
    "host": ("BATON_HOST", str, "name of this machine in records (default: its host name)"),
    "allow_network_fs": ("BATON_ALLOW_NETWORK_FS", bool, "accept a registry on a network file system"),
    "agent": ("BATON_AGENT", str, "agent of a job that names none"),
    "timeout_sec": ("BATON_TIMEOUT_SEC", int, "seconds after which a job fails"),
    "idle_timeout_sec": ("BATON_IDLE_TIMEOUT_SEC", int, "seconds of silence after which a job fails"),
    "tool_timeout_sec": ("BATON_TOOL_TIMEOUT_SEC", int, "seconds after which a tool call is stalled (default: none)"),
    "background_timeout_sec": ("BATON_BACKGROUND_TIMEOUT_SEC", int, "seconds that a job waits for a background shell"),
    "on_limit": ("BATON_ON_LIMIT", str, "what a job does at a usage limit: wait for its end, or fail"),
    "worktree": ("BATON_WORKTREE", bool, "run each submitted job in a git worktree of its own"),
    "worktree_base": (None, str, "commit, branch or tag that a worktree begins with (default: the current commit)"),
    "depth_limit": ("BATON_DEPTH_LIMIT", int, "how many jobs may stand above a job that an agent starts"),
    "running_limit": ("BATON_RUNNING_LIMIT", int, "how many jobs that agents started run below one job at once"),
    "lease_sec": ("BATON_LEASE_SEC", int, "seconds after which a dead or hanging runner loses its job"),
    "keep_days": ("BATON_KEEP_DAYS", int, "days after which the monitor removes what ended (default: never)"),
    "keep_output_mb": ("BATON_KEEP_OUTPUT_MB", int, "megabytes that are kept of an agent's output, from its end"),
    "mqtt_host": ("MQTT_BROKER", str, "host of the MQTT broker (default: a local broker of the user)"),
    "mqtt_port": ("MQTT_PORT", int, "port of the broker (default: 1883, with TLS 8883)"),
    "mqtt_tls": ("MQTT_TLS", bool, "use TLS"),
    "mqtt_tls_1_2": ("MQTT_TLS_1_2", bool, "accept TLS 1.2 as well as 1.3"),
    "mqtt_ca_certs": ("MQTT_CA_CERTS", str, "file of the CA certificates to trust"),
    "mqtt_certfile": ("MQTT_CERTFILE", str, "file of the client certificate"),
    "mqtt_keyfile": ("MQTT_KEYFILE", str, "file of the key of the client certificate"),
    "mqtt_username": ("MQTT_USERNAME", str, "user name of the broker login"),
    "mqtt_password": ("MQTT_PASSWORD", str, "password of the broker login"),
    "allow_plaintext": ("BATON_ALLOW_PLAINTEXT", bool, "connect to a broker on another host without TLS"),
}
# name: (type, what it is). Only in [repository."PATH"] of the user's file: they run commands and copy files.
OF_REPOSITORY: dict[str, tuple[type, str]] = {
    "worktree_copy": (list, "files and folders, by pattern, that a new worktree gets from the work tree"),
    "worktree_setup": (str, "shell command that prepares a new worktree"),
    "worktree_keep": (str, "`unmerged`: `baton merge` removes a worktree that holds no other work; `always`: never"),
}
_KEEP = ("unmerged", "always")
NOT_IN_FILES = frozenset({"home"})
_NOT_IN_HOME = frozenset({"allow_plaintext", "state_dir", "depth_limit", "running_limit"})
SET_IN_PLACE = frozenset({"agent", "timeout_sec", "idle_timeout_sec", "tool_timeout_sec", "lease_sec", "labels"})
MCP_ALLOW = ("shell", "validate", "workdir")
_TABLES = frozenset({"agents", "repository", "notify", "prices", "mcp"})
_OF_THE_USER = frozenset({"repository", "notify", "prices", "mcp"})  # tables of the user's own file alone
_LONGEST_FILE = 1 << 20
_PATHS = frozenset({"home", "registry_dir", "logs_dir", "state_dir", "mqtt_ca_certs", "mqtt_certfile", "mqtt_keyfile"})


class Home(Value):
    """A home. `made`: it exists; else the first write makes it. `folder` is the folder it serves; of a home that the
    user named by its path, that path. `link` is the name of its link in the folder, None without one. `registry` is the
    url to which its jobs were moved. `warnings` are lines for the user."""

    path: str
    home_id: str
    folder: str
    in_place: bool = False
    made: bool = True
    link: str | None = None
    registry: str | None = None
    warnings: tuple[str, ...] = ()


def machine_of(host: str) -> str | None:
    """Return the id of this machine, for a record with this host name; None if that is not the machine's own name.

    It is the machine's id with its process namespace: containers of one machine, or of one image, may share an id."""
    return this_machine() if host == os.uname().nodename else None


@cache
def this_machine() -> str | None:
    """Return the id of this machine with the process namespace of this process; None if the machine has none."""
    try:
        with open("/etc/machine-id") as file:
            machine = file.read(64).strip()
        return f"{machine}/{os.stat('/proc/self/ns/pid').st_ino}" if machine else None
    except OSError:
        return None  # then its host name identifies it


@cache
def process_domain() -> str | None:
    """Return where the process numbers that this process sees are valid: the machine, by its id or else by that of its
    boot, and the process namespace; None if the system does not tell."""
    if (machine := this_machine()) is not None:
        return machine
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read(64).strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def present_host(host: str, machine: str | None) -> str:
    """Return the host name of a record; if it was written on this machine under another name, the present one."""
    name = os.uname().nodename
    is_renamed = machine is not None and not os.environ.get("BATON_HOST") and machine == machine_of(name)
    return name if is_renamed else host  # guard: machine-id


def user_file(env: Mapping[str, str]) -> str:
    """Return the path of the config file of the user, which need not exist; "" if the user has no home folder."""
    folder = _user_folder(env, "XDG_CONFIG_HOME", ".config")
    return env.get("BATON_CONFIG") or (os.path.join(folder, "baton.toml") if folder else "")


def rules_file(env: Mapping[str, str]) -> str:
    """Return the path of the rules of the user, which need not exist; "" if the user has no home folder."""
    folder = _user_folder(env, "XDG_CONFIG_HOME", ".config")
    return os.path.join(folder, "rules.toml") if folder else ""


def state_folder(env: Mapping[str, str]) -> str:
    """Return the folder of homes, local broker and live agents; "" if the user has no home folder."""
    return env.get("BATON_STATE_DIR") or _user_folder(env, "XDG_STATE_HOME", ".local/state")


def _user_folder(env: Mapping[str, str], variable: str, usual: str) -> str:
    """Return the folder of baton in a folder of the user: that of the variable, or the usual one in the home folder. ""
    without a home folder. Ignore relative paths: a clone could hold what they lead to."""
    base = env.get(variable, "")
    if not base.startswith("/"):  # guard: absolute-user-folder
        user = env.get("HOME", "")
        if not user.startswith("/"):
            import pwd

            try:
                user = pwd.getpwuid(os.getuid()).pw_dir
            except KeyError:
                return ""
        base = os.path.join(user, usual)
    return os.path.join(base, "baton")


class Settings:
    """The settings of one command. `sources` names where each value was found."""

    home: str = DEFAULT_HOME
    registry_dir: str
    registry: str | None = None
    logs_dir: str
    state_dir: str
    directory: str | None = None
    agent_name_prefix: str = DEFAULT_AGENT_NAME_PREFIX
    tmux_socket: str = "baton"
    host: str
    allow_network_fs: bool = False
    agent: str = DEFAULT_AGENT
    timeout_sec: int = DEFAULT_TIMEOUT_SEC
    idle_timeout_sec: int = DEFAULT_IDLE_TIMEOUT_SEC
    tool_timeout_sec: int | None = None
    background_timeout_sec: int = DEFAULT_BACKGROUND_TIMEOUT_SEC
    on_limit: str = ON_LIMIT[0]
    worktree: bool = False
    worktree_base: str | None = None
    worktree_copy: tuple[str, ...] = ()
    worktree_setup: str | None = None
    worktree_keep: str = "unmerged"
    depth_limit: int = DEFAULT_DEPTH_LIMIT
    running_limit: int = DEFAULT_RUNNING_LIMIT
    lease_sec: int = DEFAULT_LEASE_SEC
    keep_days: int | None = None
    keep_output_mb: int = 10
    mqtt_host: str | None = None
    mqtt_port: int | None = None
    mqtt_tls: bool | None = None
    mqtt_tls_1_2: bool | None = None
    mqtt_ca_certs: str | None = None
    mqtt_certfile: str | None = None
    mqtt_keyfile: str | None = None
    mqtt_username: str | None = None
    mqtt_password: str | None = None
    allow_plaintext: bool = False

    def __init__(self, flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        given = {name: value for name, value in (flags or {}).items() if value is not None and name in KNOWN}
        self.sources = dict.fromkeys((*KNOWN, *OF_REPOSITORY), "default")
        self.files: list[str] = []
        self.tables: dict[str, dict[str, Any]] = {}
        self.home_file: str | None = None
        """The config file in the home, if it was read."""
        self.home_id = ""
        """The id of the home; "" while it is not known."""
        self.folder = ""
        """The folder that the home serves."""
        self.moved_to: str | None = None
        """The url to which the jobs of the home were moved."""
        self.ignored: list[str] = []
        """What the config file of a home in place set in vain."""
        self.warnings: tuple[str, ...] = ()
        if env.get("BATON_HOME"):
            self._set("home", env["BATON_HOME"], "BATON_HOME")
        if "home" in given:
            self._set("home", given["home"], "--home")

        self.registry_dir = os.path.join(self.home, "jobs")
        self.logs_dir = os.path.join(self.home, "delegate_job_logs")
        self.state_dir = _user_folder(env, "XDG_STATE_HOME", ".local/state")
        self.data_dir = _user_folder(env, "XDG_DATA_HOME", ".local/share")
        """The folder of worktrees; "" if the user has no home folder."""
        self.host = os.uname().nodename
        self.own_file = own = user_file(env)
        """The config file of the user, which need not exist."""
        self._only_file = bool(env.get("BATON_CONFIG"))
        if self._only_file or os.path.lexists(own):
            self._read_file(own)
        for name, (variable, kind, _) in KNOWN.items():
            if variable and env.get(variable) and name != "home":
                self._set(name, _from_text(variable, env[variable], kind), variable)
        if "registry_dir" in given and "registry" not in given:
            self._set("registry", None, "--registry-dir")  # it replaces a registry of the environment or a file
        for name, value in given.items():
            self._set(name, value, "--" + name.removesuffix("_sec").replace("_", "-"))
        self.notify: NotifySettings | None = None
        """How the user wants to be notified; None: not at all."""
        if "notify" in self.tables:
            from baton.core.notification import NotifySettings

            self.notify = NotifySettings.parse(self.tables.pop("notify"), own)
        self.prices: dict[str, Price] = {}
        """What models cost, by their name."""
        for model, table in self.tables.pop("prices", {}).items():
            from baton.core.spending import Price

            self.prices[model] = Price.parse(table, f'[prices."{model}"] in {own}')
        self.mcp_allow = _parse_mcp(self.tables.pop("mcp", {}), self.tables.get("agents", {}), own)
        """What a client of `baton mcp` may do beside the usual: of MCP_ALLOW, and names of the user's own agents."""
        self._check()

    def name_of(self, name: str) -> str:
        """Return the name under which a setting was set: the variable, the option, or its name in a file."""
        source = self.sources[name]
        return f"{name} in {source}" if source in self.files else name if source == "default" else source

    def _check(self) -> None:
        if not self.state_dir:
            raise InvalidValue("HOME", "is not set, and this user has no home folder; set HOME or BATON_STATE_DIR")
        for name in ("lease_sec", "keep_days", "keep_output_mb", "running_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValue(self.name_of(name), f"must be at least 1, not {value}")
        if self.on_limit not in ON_LIMIT:
            raise InvalidValue(self.name_of("on_limit"), f"must be {' or '.join(ON_LIMIT)}, not {self.on_limit[:40]!r}")
        if self.mqtt_port is not None and not 1 <= self.mqtt_port <= 65535:
            raise InvalidValue(self.name_of("mqtt_port"), f"must be from 1 to 65535, not {self.mqtt_port}")
        if self.mqtt_host is not None and not re.fullmatch(_HOST, self.mqtt_host):
            # The message does not repeat the value: a url may hold a password.
            raise InvalidValue(
                self.name_of("mqtt_host"),
                "must be a name or an address alone, such as broker.example.com; the port goes into MQTT_PORT, TLS is "
                "MQTT_TLS=1, the login MQTT_USERNAME and MQTT_PASSWORD",
            )

    def shown(self) -> list[tuple[str, Any, str]]:
        """Return name, value and source of every setting. Passwords are hidden."""
        public = {name: getattr(self, name) for name in KNOWN}
        public |= {"registry": hide_password(self.registry), "directory": hide_password(self.directory)}
        public["mqtt_password"] = None if self.mqtt_password is None else HIDDEN
        public |= {name: getattr(self, name) for name in OF_REPOSITORY if self.sources[name] != "default"}
        rows = [(name, value, self.sources[name]) for name, value in public.items()]
        rows.append(("mcp.allow", list(self.mcp_allow), self.files[0] if self.mcp_allow else "default"))
        if self.notify is not None:
            rows += [(f"notify.{name}", value, self.files[0]) for name, value in self.notify.shown().items()]
        for model, price in self.prices.items():
            rows += [(f"prices.{model}.{name}", value, self.files[0]) for name, value in price.as_dict().items()]
        return rows

    def _set(self, name: str, value: Any, source: str) -> None:
        if name in _PATHS and isinstance(value, str) and value.startswith("~"):
            value = os.path.expanduser(value)
        if name == "agent":
            value = agent_name(value)
        setattr(self, name, value)
        self.sources[name] = source

    def use_home(self, home: Home, repository: str = "") -> None:
        """Complete the settings with the home: its folders and its config file, which stand below the environment and
        the options. `repository`: the folder whose [repository."PATH"] tables apply."""
        self.home, self.home_id, self.folder = home.path, home.home_id, home.folder
        self.moved_to, self.warnings = home.registry, home.warnings
        for name, folder in (("registry_dir", "jobs"), ("logs_dir", "delegate_job_logs")):
            if self.sources[name] == "default":
                setattr(self, name, os.path.join(self.home, folder))
        tables = self.tables.pop("repository", {})
        for path in sorted(tables, key=len):
            top = os.path.realpath(os.path.expanduser(path))
            if repository == top or repository.startswith(top.rstrip("/") + "/"):
                part = f'[repository."{path}"] in '
                rest = self._apply_repository(tables[path], self.files[0], part)
                self._apply(rest, self.files[0], NOT_IN_FILES | {"state_dir"}, part)
        file = os.path.join(self.home, "baton.toml")
        if not self._only_file and os.path.lexists(file) and file not in self.files:
            self.home_file = file
            self._read_file(file, in_home=True, in_place=home.in_place)
        self._check()

    def _read_file(self, path: str, *, in_home: bool = False, in_place: bool = False) -> None:
        import tomllib

        try:
            table = tomllib.loads(_read_settings(path, follow=not in_home, in_place=in_place).decode())
        except OSError as error:
            raise InvalidValue("config file", f"{path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValue("config file", f"{path} is not TOML: {error}") from None
        self.files.append(path)
        if in_place:
            self.ignored = sorted(table.keys() - SET_IN_PLACE)
            table = {name: value for name, value in table.items() if name in SET_IN_PLACE & KNOWN.keys()}
        for name in [name for name, value in table.items() if isinstance(value, dict)]:
            if name not in _TABLES or (in_home and name in _OF_THE_USER):  # guard: tables-of-the-user
                where = "" if in_home else ', [repository."PATH"], [prices."MODEL"], [notify] and [mcp]'
                raise InvalidValue(
                    "config file", f"{path} has a table [{name}]; the only ones are [agents.NAME]{where}"
                )
            self.tables.setdefault(name, {}).update(table.pop(name))  # [agents.NAME]: the adapters read them
        self._apply(table, path, NOT_IN_FILES | (_NOT_IN_HOME if in_home else set()))

    def _apply_repository(self, table: Mapping[str, Any], path: str, part: str) -> Mapping[str, Any]:
        """Set the values that only a table of a repository may set, and return the others."""
        if not isinstance(table, dict):
            return table
        for name, (kind, _) in OF_REPOSITORY.items():
            if (value := table.get(name)) is None:
                continue
            texts = value if kind is list and isinstance(value, list) else [value]
            if type(value) is not kind or not all(isinstance(each, str) and each.strip() for each in texts):
                raise InvalidValue("config file", f"{part}{path}: {name} must be {TYPE_NAMES[kind]}")
            if name == "worktree_keep" and value not in _KEEP:
                raise InvalidValue("config file", f"{part}{path}: {name} must be one of {', '.join(_KEEP)}")
            setattr(self, name, tuple(texts) if kind is list else value)
            self.sources[name] = path
        return {name: value for name, value in table.items() if name not in OF_REPOSITORY}

    def _apply(self, table: Mapping[str, Any], path: str, forbidden: AbstractSet[str], part: str = "") -> None:
        """Set the values of a table that no variable and no option has set."""
        if not isinstance(table, dict):
            raise InvalidValue("config file", f"{part}{path} must be a table")
        for name, value in table.items():
            if name not in KNOWN or name in NOT_IN_FILES:
                if name in OF_REPOSITORY:  # guard: repository-settings
                    only = 'belongs into [repository."PATH"] of your own baton.toml'
                    raise InvalidValue("config file", f"{part}{path} sets {name}, which {only}")
                allowed = ", ".join(key for key in KNOWN if key not in NOT_IN_FILES)
                raise InvalidValue("config file", f"{part}{path} sets {name!r}, which is not one of {allowed}")
            if name in forbidden:
                allow = f"; set {KNOWN[name][0]}, or set it in your own baton.toml"
                why = "is the same for all repositories" if part else f"only the user may allow{allow}"
                raise InvalidValue("config file", f"{part}{path} sets {name}, which {why}")
            kind = KNOWN[name][1]
            if type(value) is not kind:
                raise InvalidValue("config file", f"{part}{path}: {name} must be {TYPE_NAMES[kind]}")
            if self.sources[name] == "default" or self.sources[name] in self.files:
                self._set(name, value, path)


# Colons are allowed in IPv6 addresses only: at least two, so that name:port does not match.
_HOST = r"[^\s/:@]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*(?:%\w+)?"
TYPE_NAMES = {str: "text", int: "a whole number", bool: "true or false", list: "a list of texts"}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def _read_settings(path: str, *, follow: bool, in_place: bool) -> bytes:
    """Return the content of a config file: a regular file of at most 1 MiB that only the user can change, except in a
    home in place. The one in a home is not a link."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):  # guard: settings-file-kind
            raise OSError(errno.EINVAL, "it is not a regular file")
        if not in_place and (why := why_shared(path, found)) is not None:  # guard: settings-of-others
            raise InvalidValue("config file", f"{path} {why}")
        content = file.read(_LONGEST_FILE + 1)
    if len(content) > _LONGEST_FILE:  # guard: settings-file-size
        raise OSError(errno.EFBIG, "it is larger than 1 MiB")
    return content


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


def _parse_mcp(table: object, agents: object, path: str) -> tuple[str, ...]:
    """Return what the table [mcp] of the user's config file allows; InvalidValue for what is not valid."""
    if not isinstance(table, dict):
        raise InvalidValue("config file", f"{path}: mcp must be a table")
    if unknown := sorted(table.keys() - {"allow"}):
        raise InvalidValue("config file", f"[mcp] in {path} sets {unknown[0]!r}; there is only allow")
    allow = table.get("allow", [])
    if not isinstance(allow, list) or not all(isinstance(each, str) for each in allow):
        raise InvalidValue("config file", f"[mcp] in {path}: allow must be {TYPE_NAMES[list]}")
    own = sorted(agents) if isinstance(agents, dict) else []
    for each in allow:
        if each not in MCP_ALLOW and each not in own:
            known = ", ".join((*MCP_ALLOW, *own))
            raise InvalidValue("config file", f"[mcp] in {path}: allow has {each[:40]!r}, which is none of {known}")
    return tuple(allow)


def hide_password(url: str | None) -> str | None:
    """Return a url without its password: `postgresql://user:***@host/db`."""
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
    """Return a driver's message about that url without the parts of the password that it may quote."""
    login = url.partition("://")[2].rpartition("@")[0]
    secrets = [login.partition(":")[2], *re.findall(r"(?i)[?&][^=&]*(?:pass|%70)[^=&]*=([^&]*)", url)]
    for piece in re.split(r"[^\w]+", " ".join(secrets)):
        if len(piece) > 2:
            message = message.replace(piece, "***")
    return message
