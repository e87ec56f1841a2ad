"""Issue the certificates of a production broker: a CA, the server, and each role."""

import ipaddress
import os
import re
from datetime import UTC, datetime, timedelta

from baton.core.errors import InvalidValue, MissingExtra
from baton.storage.files import read_given_file
from baton.storage.installation import install_command

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingExtra("writing certificates", install_command("tls")) from None

from collections.abc import Sequence

ROLES = ("orchestrator", "worker")
_CA_DAYS = 3650
_LEAF_DAYS = 397


def certificate_hosts(folder: str) -> list[str]:
    """Return the host names in the server's certificate, in their order."""
    certificate = x509.load_pem_x509_certificate(read_given_file(os.path.join(folder, "server.crt")))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def issue_certificates(folder: str, hosts: Sequence[str], *, new_ca: bool) -> dict[str, bytes]:
    """Return new keys and certificates by file name: of the server for these hosts, of each role, of a new CA."""
    files: dict[str, bytes] = {}
    if new_ca:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = _certificate("baton CA", ca_key, None, ca_key, days=_CA_DAYS)
        files |= {"ca.key": _pem_key(ca_key), "ca.crt": _pem(ca)}
    else:
        loaded = serialization.load_pem_private_key(read_given_file(os.path.join(folder, "ca.key")), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        ca_key = loaded
        ca = x509.load_pem_x509_certificate(read_given_file(os.path.join(folder, "ca.crt")))
    for name in ("server", *ROLES):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, ca, ca_key, days=_LEAF_DAYS, hosts=hosts if name == "server" else ())
        files |= {f"{name}.key": _pem_key(key), f"{name}.crt": _pem(certificate)}
    return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate | None,
    ca_key: ec.EllipticCurvePrivateKey,
    *,
    days: int,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=0 if ca is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(_key_usage(ca=ca is None), critical=True)
    )
    if ca is not None:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([host_name(host) for host in hosts]), critical=False
        )
    return builder.sign(ca_key, hashes.SHA256())


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    unused = ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    unused += ["encipher_only", "decipher_only"]
    return x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **dict.fromkeys(unused, False))


def host_name(host: str) -> x509.GeneralName:
    """Return a host as a certificate names it; raise InvalidValue when it is no host name and no address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"\w([\w.-]{0,251}\w)?", host, re.ASCII):
            why = f"{host[:60]!r} is not a host name or an address; write broker.example.com"
            raise InvalidValue("--host", why) from None
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
