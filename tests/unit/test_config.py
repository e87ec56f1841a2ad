from __future__ import annotations

import os
import pwd
import tomllib

import pytest

from baton.config import KNOWN, Home, Settings, hide_password
from baton.core.errors import InvalidValue
from support.command import Baton


@pytest.fixture
def env(tmp_path):
    return {"HOME": str(tmp_path / "user"), "BATON_HOME": str(tmp_path / "home")}


@pytest.fixture
def home(tmp_path):
    """What `Settings` needs of a home."""
    return Home(path=str(tmp_path / "home"), home_id="0" * 16, folder=str(tmp_path))


def settings_of(home, env, flags=None, repository=""):
    settings = Settings(flags, env)
    settings.use_home(home, repository)
    return settings


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_defaults_follow_from_the_home():
    settings = Settings(env={"HOME": "/u"})
    assert (settings.home, settings.registry_dir, settings.logs_dir) == (
        ".hermes", ".hermes/jobs", ".hermes/delegate_job_logs",
    )  # fmt: skip
    assert settings.state_dir == "/u/.local/state/baton"
    assert set(settings.sources.values()) == {"default"}


@pytest.mark.parametrize("env", [{"HOME": ""}, {}, {"HOME": "."}, {"XDG_STATE_HOME": "x", "XDG_CONFIG_HOME": "x"}])
def test_a_folder_of_the_user_is_never_in_the_working_folder(env, tmp_path, monkeypatch):
    """A clone could hold it, with a config file that names programs."""
    write(tmp_path / "x" / "baton" / "baton.toml", 'agent = "evil"')
    write(tmp_path / ".config" / "baton" / "baton.toml", 'agent = "evil"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", ".")
    settings = Settings(env=env)
    assert settings.state_dir == os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".local/state/baton")
    assert settings.agent != "evil"


def test_each_source_beats_the_one_before_it(env, home, tmp_path):
    assert Settings(env=env).agent == "claude-code"
    user_file = tmp_path / "user" / ".config" / "baton" / "baton.toml"
    write(user_file, 'agent = "from-user-file"')
    settings = Settings(env=env)
    assert (settings.agent, settings.sources["agent"]) == ("from-user-file", str(user_file))
    home_file = tmp_path / "home" / "baton.toml"
    write(home_file, 'agent = "from-home-file"\ntimeout_sec = 7\n[agents.mine]\ncommand = "x"')
    settings = settings_of(home, env)
    assert (settings.agent, settings.timeout_sec) == ("from-home-file", 7)
    env["BATON_AGENT"] = "from-environment"
    settings = settings_of(home, env)
    assert (settings.agent, settings.sources["agent"]) == ("from-environment", "BATON_AGENT")
    settings = settings_of(home, env, {"agent": "from-flag"})
    assert (settings.agent, settings.sources["agent"]) == ("from-flag", "--agent")


def test_one_named_file_replaces_the_others(env, home, tmp_path):
    write(tmp_path / "home" / "baton.toml", 'agent = "no"')
    write(tmp_path / "named.toml", "idle_timeout_sec = 9")
    settings = settings_of(home, env | {"BATON_CONFIG": str(tmp_path / "named.toml")})
    assert (settings.agent, settings.idle_timeout_sec) == ("claude-code", 9)
    with pytest.raises(InvalidValue, match="cannot be read"):
        settings_of(home, env | {"BATON_CONFIG": str(tmp_path / "missing.toml")})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent = ", "not TOML"),
        ('agnet = "x"', "'agnet'"),
        ("agent = 7", "agent must be text"),
        ('timeout_sec = "7"', "timeout_sec must be a whole number"),
        ("timeout_sec = true", "timeout_sec must be a whole number"),
        ('home = "x"', "'home'"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(env, home, tmp_path, text, words):
    write(tmp_path / "home" / "baton.toml", text)
    with pytest.raises(InvalidValue, match=words) as error:
        settings_of(home, env)
    assert "baton.toml" in str(error.value)


def test_plaintext_is_for_the_user_to_allow_not_for_a_folder(env, home, tmp_path):
    write(tmp_path / "user" / ".config" / "baton" / "baton.toml", "allow_plaintext = true")
    assert Settings(env=env).allow_plaintext
    write(tmp_path / "named.toml", "allow_plaintext = true")
    assert Settings(env=env | {"BATON_CONFIG": str(tmp_path / "named.toml")}).allow_plaintext
    write(tmp_path / "home" / "baton.toml", "allow_plaintext = true")
    with pytest.raises(InvalidValue, match=r"home/baton\.toml sets allow_plaintext, which only the user may allow"):
        settings_of(home, env)


@pytest.mark.parametrize(("name", "value"), [("BATON_TIMEOUT_SEC", "soon"), ("BATON_ALLOW_NETWORK_FS", "maybe")])
def test_a_wrong_environment_variable_is_named(env, name, value):
    with pytest.raises(InvalidValue, match=name):
        Settings(env=env | {name: value})


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_a_port_that_is_none_is_refused_by_the_name_it_was_set_under(env, home, tmp_path, port):
    with pytest.raises(InvalidValue, match=r"^MQTT_PORT must be from 1 to 65535"):
        Settings(env=env | {"MQTT_PORT": port})
    write(tmp_path / "home" / "baton.toml", f"mqtt_port = {port}")
    with pytest.raises(InvalidValue, match=r"^mqtt_port in /.*baton\.toml must be"):
        settings_of(home, env)


@pytest.mark.parametrize(
    "host", ["mqtt://me:hunter2@b.example:8883", "b example", "b.example:8883", "b.example/x", " "]
)
def test_a_broker_that_is_not_a_name_alone_is_refused(env, host):
    with pytest.raises(InvalidValue, match=r"^MQTT_BROKER must be a name or an address alone.*MQTT_PORT") as error:
        Settings(env=env | {"MQTT_BROKER": host})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "host", ["b.example", "localhost", "10.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "bröker"]
)
def test_a_broker_by_name_or_address(env, host):
    assert Settings(env=env | {"MQTT_BROKER": host}).mqtt_host == host


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:se@cr:et@host/db?x=1", "postgresql://me:***@host/db?x=1"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("sqlite:/a/b.db", "sqlite:/a/b.db"),
        ("postgresql://u:pa/ss@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u@corp:ss@host/db", "postgresql://u@corp:***@host/db"),
        ("postgresql://h/db?sslpassword=secret", "postgresql://h/db?sslpassword=***"),
        ("postgresql://h/db?%70assword=secret", "postgresql://h/db?%70assword=***"),
        ("postgresql:host=x password=secret", "postgresql:host=x password=***"),
        (None, None),
    ],
)
def test_a_password_in_a_url_is_never_shown(url, shown):
    assert hide_password(url) == shown
    settings = Settings({"registry": url}, {"HOME": "/u"})
    assert ("registry", shown) in [(name, value) for name, value, _ in settings.shown()]


@pytest.mark.parametrize("table", ["agent.x", "mqtt"])
def test_a_table_that_nobody_reads_is_refused(env, home, tmp_path, table):
    write(tmp_path / "home" / "baton.toml", f"[{table}]\nhost = 'b'")
    with pytest.raises(InvalidValue, match=rf"has a table \[{table.partition('.')[0]}\]"):
        settings_of(home, env)


def test_an_agent_has_one_name_however_it_was_called(env, home, tmp_path):
    write(tmp_path / "home" / "baton.toml", "agent = 'claude'")
    assert settings_of(home, env).agent == settings_of(home, env, {"agent": "claude"}).agent == "claude-code"


def test_a_lease_of_no_time_is_refused(env):
    assert Settings(env=env).lease_sec == 60
    assert Settings(env=env | {"BATON_LEASE_SEC": "2"}).lease_sec == 2
    with pytest.raises(InvalidValue, match="BATON_LEASE_SEC must be at least 1"):
        Settings(env=env | {"BATON_LEASE_SEC": "0"})


def test_the_home_of_the_users_own_state_cannot_move_the_state(env, home, tmp_path):
    write(tmp_path / "home" / "baton.toml", "state_dir = '/elsewhere'")
    with pytest.raises(InvalidValue, match="sets state_dir, which only the user may allow"):
        settings_of(home, env)
    write(tmp_path / "user" / ".config" / "baton" / "baton.toml", "state_dir = '/elsewhere'")
    assert Settings(env=env).state_dir == "/elsewhere"


def test_a_home_in_place_sets_a_few_values_alone(env, home, tmp_path):
    write(
        tmp_path / "home" / "baton.toml",
        "agent = 'codex'\nlease_sec = 7\nregistry = 'postgresql://evil'\nmqtt_host = 'evil'\nnonsense = 1\n"
        "[agents.codex]\ncommand = ['evil']\n",
    )
    settings = settings_of(home.replace(in_place=True), env)
    assert (settings.agent, settings.lease_sec, settings.registry, settings.mqtt_host) == ("codex", 7, None, None)
    assert settings.tables == {}
    assert settings.ignored == ["agents", "mqtt_host", "nonsense", "registry"]


def test_a_repository_has_settings_of_its_own_in_the_file_of_the_user(env, home, tmp_path):
    path = tmp_path / "user" / ".config" / "baton" / "baton.toml"
    write(
        path,
        f"agent = 'all'\ntimeout_sec = 1\n[repository.\"{tmp_path}\"]\nagent = 'outer'\n"
        f"[repository.\"{tmp_path}/repo\"]\nagent = 'inner'\n[repository.\"{tmp_path}/rep\"]\nagent = 'no'\n",
    )
    for place, agent in (("", "outer"), ("/repo", "inner"), ("/repo/deep/down", "inner"), ("/repos", "outer")):
        settings = settings_of(home, env, repository=f"{tmp_path}{place}")
        assert (settings.agent, settings.timeout_sec, settings.sources["agent"]) == (agent, 1, str(path)), place
    assert settings_of(home, env, repository="/").agent == "all"
    assert settings_of(home, env | {"BATON_AGENT": "env"}, repository=f"{tmp_path}/repo").agent == "env"
    write(tmp_path / "home" / "baton.toml", "agent = 'of-home'")
    assert settings_of(home, env, repository=f"{tmp_path}/repo").agent == "of-home"
    write(tmp_path / "home" / "baton.toml", f"[repository.\"{tmp_path}\"]\nagent = 'x'")
    with pytest.raises(InvalidValue, match=r"has a table \[repository\]"):
        settings_of(home, env)
    for text, words in (("state_dir = 'x'", "same for all repositories"), ("agnet = 1", "'agnet'")):
        write(path, f'[repository."{tmp_path}"]\n{text}')
        with pytest.raises(InvalidValue, match=words):
            settings_of(home, env, repository=str(tmp_path))


def test_an_option_for_the_registry_folder_beats_the_registry_of_the_home(env, home, tmp_path):
    write(tmp_path / "home" / "baton.toml", "registry = 'sqlite:/of/the/home'")
    assert settings_of(home, env).registry == "sqlite:/of/the/home"
    settings = settings_of(home, env, {"registry_dir": "/here"})
    assert (settings.registry, settings.registry_dir) == (None, "/here")


def test_a_settings_file_is_a_small_regular_file(env, home, tmp_path):
    path = tmp_path / "home" / "baton.toml"
    write(path, "# " + "x" * (1 << 20))
    with pytest.raises(InvalidValue, match="larger than 1 MiB"):
        settings_of(home, env)
    path.unlink()
    write(tmp_path / "other.toml", "agent = 'linked'")
    path.symlink_to(tmp_path / "other.toml")
    with pytest.raises(InvalidValue, match="cannot be read"):
        settings_of(home, env)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidValue, match="not a regular file"):
        settings_of(home, env)


def test_the_users_own_file_may_be_a_link(env, tmp_path):
    path = tmp_path / "user" / ".config" / "baton" / "baton.toml"
    write(tmp_path / "dotfiles.toml", "agent = 'linked'")
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "dotfiles.toml")
    assert Settings(env=env).agent == "linked"


class TestInit:
    """`baton config init`."""

    @pytest.fixture
    def baton(self, tmp_path):
        return Baton(tmp_path)

    def test_it_writes_every_setting_as_a_comment_and_changes_nothing(self, baton, tmp_path):
        path = tmp_path / ".config" / "baton" / "baton.toml"
        assert baton("config", "init").text == str(path)
        assert path.stat().st_mode & 0o777 == 0o600
        text = path.read_text()
        assert tomllib.loads(text) == {}
        for name, (variable, _, explanation) in KNOWN.items():
            if name != "home":
                assert explanation[1:] in text
                assert f"\n#{name} = " in text
                assert variable is None or f"[{variable}]" in text
        assert set(dict(row.split("\t")[::2] for row in baton("config", "show").out.splitlines()).values()) <= {
            "default", "BATON_HOME",
        }  # fmt: skip

    def test_a_setting_without_its_mark_is_its_default(self, baton, env, tmp_path):
        path = tmp_path / "named.toml"
        assert baton("config", "init", "--json", BATON_CONFIG=str(path)).json == {"path": str(path)}
        given = [line.removeprefix("#") for line in path.read_text().partition("\n#[")[0].splitlines()]
        write(path, "\n".join(line for line in given if " = " in line and "<" not in line and line[0] != " "))
        settings, defaults = Settings(env=env | {"BATON_CONFIG": str(path)}), Settings(env=env)
        named = [name for name, source in settings.sources.items() if source == str(path)]
        assert {"agent", "timeout_sec", "lease_sec", "allow_plaintext"} <= set(named)
        assert [getattr(settings, name) for name in named] == [getattr(defaults, name) for name in named]

    def test_a_file_that_exists_is_not_changed(self, baton, tmp_path):
        path = tmp_path / ".config" / "baton" / "baton.toml"
        write(path, "agent = 'mine")  # it is not even TOML
        assert f"{path} exists and is not changed; edit it" in baton.refused("config", "init")
        assert path.read_text() == "agent = 'mine"
        path.unlink()
        path.symlink_to(tmp_path / "nowhere")
        assert "exists" in baton.refused("config", "init")
        assert not (tmp_path / "nowhere").exists()

    def test_a_place_that_cannot_be_written_is_named(self, baton, tmp_path):
        (tmp_path / "file").write_text("")
        assert "file/baton.toml cannot be written" in baton.refused(
            "config", "init", BATON_CONFIG=str(tmp_path / "file" / "baton.toml")
        )
