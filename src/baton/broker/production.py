"""Write the configuration set of a production broker: CA, certificates, logins, rights, configuration.

There are two roles: the orchestrator only reads events, a worker only writes them.
"""

import base64
import hashlib
import json
import os
import shlex
from collections.abc import Sequence

from baton.broker.certificates import ROLES, certificate_hosts, host_name, issue_certificates
from baton.core.errors import InvalidValue, WrongState
from baton.core.job import new_token
from baton.storage.files import make_private_dir, replace_file

_PASSWORD_ROUNDS = 101  # what mosquitto_passwd uses; the passwords are 256 random bits

_MOSQUITTO = """\
# Written by `baton broker init --mosquitto`. Start with: mosquitto -c {itself}
listener {port}
allow_anonymous false
acl_file {folder}/acl
{login}
cafile {folder}/ca.crt
certfile {folder}/server.crt
keyfile {folder}/server.key
tls_version tlsv1.3
# Without this every publish over TLS waits 40 ms for a delayed acknowledgement.
set_tcp_nodelay true
persistence true
persistence_location {folder}/data/
# Mosquitto 2.0 writes its messages to disk at exit and at this interval. baton does not depend on it.
autosave_interval 30
max_packet_size 200000
"""
_MOSQUITTO_ACL = """\
user orchestrator
topic read python/mqtt/jobs/+/events

user worker
topic write python/mqtt/jobs/+/events
"""
_NATS = """\
# Written by `baton broker init --nats`. Start with: nats-server -c {itself}
server_name: baton
listen: "127.0.0.1:-1"  # unused: any free port
max_payload: 1MB
jetstream {{ store_dir: {data}, sync_interval: always }}
mqtt {{
  listen: "0.0.0.0:{port}", ack_wait: "2s", max_ack_pending: 1024
  tls {{ cert_file: {cert}, key_file: {key}, ca_file: {ca}, verify_and_map: {map}, min_version: "1.3" }}
}}
authorization {{ users: [
  {{ user: {worker}, allowed_connection_types: ["MQTT"],
     permissions: {{ publish: {{ allow: ["python.mqtt.jobs.*.events"] }}, subscribe: {{ deny: ">" }} }} }},
  {{ user: {orchestrator}, allowed_connection_types: ["MQTT"],
     permissions: {{ publish: {{ deny: ">" }}, subscribe: {{ allow: ["python.mqtt.jobs.*.events"] }} }} }}
] }}
"""


def write_set(kind: str, folder: str, *, hosts: Sequence[str], port: int, mtls: bool, renew: bool = False) -> list[str]:
    """Write the set and return the names of the files.

    `renew` issues new certificates of the same CA, for the same names unless `hosts` are given, and keeps logins and
    configuration. Without it, a folder that already holds a set is refused. As root, give every file to the owner of
    the folder.
    """
    folder = os.path.abspath(folder)
    there = os.path.exists(os.path.join(folder, "ca.key"))
    if there and not renew:
        raise WrongState("folder", f"{folder} already holds a set; --renew issues its certificates anew")
    if renew and not there:
        raise WrongState("folder", f"{folder} holds no set to renew")
    if renew and not os.path.exists(os.path.join(folder, f"{kind}.conf")):
        other = "nats" if kind == "mosquitto" else "mosquitto"
        raise WrongState("folder", f"{folder} holds a set for another broker; renew it with --{other}")
    if not folder.isprintable():
        raise InvalidValue("folder", "must not have line breaks or other unprintable characters in its name")
    for host in hosts:
        host_name(host)
    make_private_dir(folder)
    if renew:
        files = issue_certificates(folder, _all_names(hosts) if hosts else certificate_hosts(folder), new_ca=False)
        return _write(folder, files | (_environments_for_host(folder, hosts[0]) if hosts else {}))
    names = _all_names(hosts)
    files = issue_certificates(folder, names, new_ca=True)
    data = os.path.join(folder, "data")
    make_private_dir(data)
    if owner := _owner(folder):
        os.chown(data, *owner, follow_symlinks=False)
    passwords = {role: new_token() for role in ROLES}
    if kind == "mosquitto":
        files |= _mosquitto(folder, port, passwords, mtls=mtls)
    else:
        files |= _nats(folder, port, passwords, mtls=mtls)
    for role in ROLES:
        files[f"{role}.env"] = _environment(folder, role, names[0], port, None if mtls else passwords[role])
    return _write(folder, files)


def _mosquitto(folder: str, port: int, passwords: dict[str, str], *, mtls: bool) -> dict[str, bytes]:
    login = f"password_file {folder}/passwords"
    files = {"acl": _MOSQUITTO_ACL.encode()}
    if mtls:
        login = "require_certificate true\nuse_identity_as_username true"
    else:
        files["passwords"] = "".join(f"{role}:{_hash_password(passwords[role])}\n" for role in ROLES).encode()
    itself = shlex.quote(f"{folder}/mosquitto.conf")
    files["mosquitto.conf"] = _MOSQUITTO.format(folder=folder, itself=itself, port=port, login=login).encode()
    return files


def _nats(folder: str, port: int, passwords: dict[str, str], *, mtls: bool) -> dict[str, bytes]:
    users = {role: f'"CN={role}"' if mtls else f"{role}, password: {json.dumps(passwords[role])}" for role in ROLES}
    # NATS knows the escapes of JSON for quotes and backslashes, but not \u.
    paths = {name: json.dumps(f"{folder}/{file}", ensure_ascii=False) for name, file in _NATS_PATHS.items()}
    config = _NATS.format(itself=shlex.quote(f"{folder}/nats.conf"), port=port, map=str(mtls).lower(), **users, **paths)
    return {"nats.conf": config.encode()}


_NATS_PATHS = {"data": "data", "cert": "server.crt", "key": "server.key", "ca": "ca.crt"}


def _environment(folder: str, role: str, host: str, port: int, password: str | None) -> bytes:
    """Return the environment variables for a role."""
    lines = {"MQTT_BROKER": host, "MQTT_PORT": str(port), "MQTT_TLS": "1", "MQTT_CA_CERTS": f"{folder}/ca.crt"}
    if password is None:
        lines |= {"MQTT_CERTFILE": f"{folder}/{role}.crt", "MQTT_KEYFILE": f"{folder}/{role}.key"}
    else:
        lines |= {"MQTT_USERNAME": role, "MQTT_PASSWORD": password}
    return "".join(f"{_export_line(name, value)}\n" for name, value in lines.items()).encode()


def _environments_for_host(folder: str, host: str) -> dict[str, bytes]:
    """Return the existing environments with another host for the broker."""
    files = {}
    for role in ROLES:
        path = os.path.join(folder, f"{role}.env")
        if os.path.exists(path):
            # Do not follow links: root may run this in the folder of another user.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, encoding="utf-8") as file:
                lines = file.read().splitlines()
            moved = _export_line("MQTT_BROKER", host)
            lines = [moved if line.startswith("export MQTT_BROKER=") else line for line in lines]
            files[f"{role}.env"] = "".join(f"{line}\n" for line in lines).encode()
    return files


def _export_line(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"


def _hash_password(password: str) -> str:
    """Hash a password as mosquitto_passwd does: PBKDF2 with SHA-512."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _PASSWORD_ROUNDS)
    return f"$7${_PASSWORD_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _all_names(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))


def _write(folder: str, files: dict[str, bytes]) -> list[str]:
    for name, content in files.items():
        replace_file(os.path.join(folder, name), content, owner=_owner(folder))
    return sorted(files)


def _owner(folder: str) -> tuple[int, int] | None:
    """Return whom root must give the files to: a broker that root starts drops its rights, and must still read them."""
    if os.geteuid() != 0:
        return None
    status = os.stat(folder)
    return status.st_uid, status.st_gid
