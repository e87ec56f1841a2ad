"""Find the broker of a job's events, and the login for it.

Weakest to strongest: the local broker, the config file, the environment, the job's record. MQTT_TLS and certificates
are settings of this machine, so for them the environment overrides the record. The login in a record is for publishing;
a subscriber uses its own, if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton.config import Settings
from baton.core.cpython import socket
from baton.core.errors import BrokerUnavailable, InvalidValue
from baton.core.job import Job
from baton.core.value import Value


class Address(Value):
    """Where a broker is, and how to connect. `sources` names the settings of the files, for messages. With
    `own_process`, the login goes only to a process of this user or of root."""

    host: str
    port: int
    tls: bool = False
    tls_1_2: bool = False
    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    username: str | None = None
    password: str | None = None
    sources: Mapping[str, str] = {}
    own_process: bool = False
    is_local: bool = False  # the local broker, about which the user has set nothing

    def __repr__(self) -> str:
        return f"<Address {self.host}:{self.port} tls={self.tls} user={self.username}>"


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address, and not a name that only begins like one."""
    if host.lower() == "localhost":
        return True
    family, own = (socket.AF_INET6, bytes(15) + b"\x01") if ":" in host else (socket.AF_INET, b"\x7f")
    try:
        return socket.inet_pton(family, host).startswith(own)
    except (OSError, ValueError):
        return False


def broker_record(settings: Settings, login_file: str | None = None) -> dict[str, object] | None:
    """Return the broker of these settings for a job's record: its place, for publishers and listeners elsewhere. None
    for the local broker. Each publisher has its own login, unless a file holds one for this job."""
    if settings.mqtt_host is None:
        if login_file is not None:
            raise InvalidValue("--broker-login", "is for a broker of its own: set MQTT_BROKER")
        return None
    place: dict[str, object] = {"host": settings.mqtt_host, "port": settings.mqtt_port, "tls": settings.mqtt_tls}
    if login_file is not None:
        from baton.broker.login import read_login

        place |= read_login("--broker-login", login_file)
    return place


def broker_address(settings: Settings, job: Job | None, *, reading: bool = False) -> Address:
    """Return the broker for a job's events. Start the local broker when none is named and it does not run."""
    record = job.broker if job is not None else None
    host = (record and record.host) or settings.mqtt_host
    if host is None:
        from baton.broker.local import running_broker

        return running_broker(settings.state_dir).address(reading=reading)
    tls, recorded_tls = settings.mqtt_tls, record.tls if record is not None else None
    if recorded_tls is not None and (tls is None or settings.sources["mqtt_tls"] != "MQTT_TLS"):
        tls = recorded_tls
    own = (settings.mqtt_username, settings.mqtt_password)
    recorded = (record.username, record.password) if record is not None else (None, None)
    first, second = (own, recorded) if reading else (recorded, own)
    username, password = login = first if first[0] is not None else second
    port = (record.port if record is not None and record.host else None) or settings.mqtt_port
    port = port or (8883 if tls else 1883)
    if login is own and username is not None:
        _refuse_foreign_login(settings, host, port, tls=bool(tls))
    if not tls and not is_loopback(host) and not settings.allow_plaintext:  # guard: plaintext-broker
        raise BrokerUnavailable(
            f"the broker at {host}:{port} is not on this machine and would be talked to without TLS; "
            "set MQTT_TLS=1, or insist with --allow-plaintext or BATON_ALLOW_PLAINTEXT=1",
            transient=False,
        )
    return Address(
        host=host,
        port=port,
        tls=bool(tls),
        tls_1_2=bool(settings.mqtt_tls_1_2),
        ca_certs=settings.mqtt_ca_certs,
        certfile=settings.mqtt_certfile,
        keyfile=settings.mqtt_keyfile,
        username=username,
        password=password,
        sources={name: settings.name_of(f"mqtt_{name}") for name in ("ca_certs", "certfile")},
        # A verified certificate proves more than the owner of a process.
        own_process=is_loopback(host) and not tls and password is not None and not settings.allow_plaintext,
    )


def _refuse_foreign_login(settings: Settings, host: str, port: int, *, tls: bool) -> None:
    """Refuse to send the user's login anywhere but to the host, port and CA of the user's own settings. A job's record
    or the config file of a folder may name others."""
    file = settings.home_file
    sources = [settings.sources[name] for name in ("mqtt_username", "mqtt_password")]
    own_port = settings.mqtt_port or (8883 if tls else 1883)
    named = host == settings.mqtt_host and port == own_port and tls >= bool(settings.mqtt_tls)
    places = ("mqtt_host", "mqtt_port", "mqtt_ca_certs", *(() if tls else ("mqtt_tls",)))
    of_folder = file is not None and file in [settings.sources[name] for name in places]
    # guard: login-for-folder-broker, login-for-record-broker
    if (named and not of_folder) or sources == [file, file]:
        return
    source = sources[0] if sources[0] != file else sources[1]
    needed = f"MQTT_BROKER={host} MQTT_PORT={port}"
    if of_folder and settings.mqtt_ca_certs is not None:
        needed += f" MQTT_CA_CERTS={settings.mqtt_ca_certs}"
    raise BrokerUnavailable(
        f"{file if named else 'the record of the job'} names the broker {host}:{port}, but the login is from {source}; "
        f"if it is meant for that broker, set {needed}",
        transient=False,
    )
