"""Which broker a job's events go to, and how to get in.

Weakest to strongest: the local broker, the config file, the environment, the job's own record; but the toggle
MQTT_TLS and the certificates are about this machine, so the environment's win over the record. The login in a
record is the one for publishing; a subscriber uses its own, if it has one.
"""

from __future__ import annotations

import _socket

from baton.core.errors import BrokerUnavailable
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.config import Settings
    from baton.core.job import Job


class Address(Value):
    host: str
    port: int
    tls: bool
    tls_1_2: bool
    ca_certs: str | None
    certfile: str | None
    keyfile: str | None
    username: str | None
    password: str | None
    sources: dict[str, str]
    """How the settings of the files are called where they were set, for messages."""

    def __repr__(self) -> str:
        return f"<Address {self.host}:{self.port} tls={self.tls} user={self.username}>"


def is_loopback(host: str) -> bool:
    """`localhost`, or an address of this machine alone; a name that merely begins like one is somebody else's."""
    if host.lower() == "localhost":
        return True
    for family, own in ((_socket.AF_INET, b"\x7f"), (_socket.AF_INET6, bytes(15) + b"\x01")):
        try:
            if _socket.inet_pton(family, host).startswith(own):
                return True
        except (OSError, ValueError):
            continue
    return False


def broker_record(settings: Settings) -> dict[str, object] | None:
    """What a job's record says about the broker these settings name: where it is, so that whoever publishes or listens
    elsewhere finds it, but no login, which is everybody's own. None for the local broker."""
    if settings.mqtt_host is None:
        return None
    return {"host": settings.mqtt_host, "port": settings.mqtt_port, "tls": settings.mqtt_tls}


def broker_address(settings: Settings, job: Job | None, *, reading: bool = False) -> Address:
    """The broker for this job's events. Starts the local broker when none is named and it is not running."""
    record = job.broker if job is not None else None
    host = (record and record.host) or settings.mqtt_host
    if host is None:
        from baton.broker.local import running_broker

        return running_broker(settings.state_dir).address(reading=reading)
    tls = settings.mqtt_tls
    if tls is None or (record is not None and record.tls is not None and settings.sources["mqtt_tls"] != "MQTT_TLS"):
        tls = record.tls if record is not None and record.tls is not None else tls
    own = (settings.mqtt_username, settings.mqtt_password)
    recorded = (record.username, record.password) if record is not None else (None, None)
    first, second = (own, recorded) if reading else (recorded, own)
    username, password = login = first if first[0] is not None else second
    if login is own and username is not None:
        _refuse_foreign_login(settings, host)
    port = (record.port if record is not None and record.host else None) or settings.mqtt_port
    address = Address(
        host=host,
        port=port or (8883 if tls else 1883),
        tls=bool(tls),
        tls_1_2=bool(settings.mqtt_tls_1_2),
        ca_certs=settings.mqtt_ca_certs,
        certfile=settings.mqtt_certfile,
        keyfile=settings.mqtt_keyfile,
        username=username,
        password=password,
        sources={name: settings.named(f"mqtt_{name}") for name in ("ca_certs", "certfile")},
    )
    if not address.tls and not is_loopback(address.host) and not settings.allow_plaintext:  # guard: plaintext-broker
        raise BrokerUnavailable(
            f"the broker at {address.host}:{address.port} is not on this machine and would be talked to without TLS; "
            "set MQTT_TLS=1, or insist with BATON_ALLOW_PLAINTEXT=1",
            transient=False,
        )
    return address


def _refuse_foreign_login(settings: Settings, host: str) -> None:
    """The user's login goes to the broker that the user names: neither a config file that came with a clone nor the
    record of a job gets it sent to where it likes."""
    file = settings.home_file
    sources = [settings.sources[name] for name in ("mqtt_username", "mqtt_password")]
    named = host == settings.mqtt_host
    # guard: login-for-folder-broker, login-for-record-broker
    if (named and settings.sources["mqtt_host"] != file) or sources == [file, file]:
        return
    source = sources[0] if sources[0] != file else sources[1]
    raise BrokerUnavailable(
        f"{file if named else 'the record of the job'} names the broker {host}, but the login is from {source}; "
        f"if it is meant for that broker, set MQTT_BROKER={host}",
        transient=False,
    )
