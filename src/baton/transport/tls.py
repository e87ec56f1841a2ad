"""Set up TLS to a broker: verify certificates and host names; TLS 1.3, or 1.2 if the settings allow it."""

import ssl

from baton.broker.address import Address
from baton.core.errors import BrokerUnavailable

_OTHER_NAME = (62, 64)  # OpenSSL: the certificate is for another host name, another address


def tls_context(address: Address) -> ssl.SSLContext:
    """Return the TLS settings for a broker. Raise BrokerUnavailable when a certificate file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=address.ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(address, "ca_certs", address.ca_certs, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if address.tls_1_2 else ssl.TLSVersion.TLSv1_3
    if address.certfile:
        try:
            context.load_cert_chain(address.certfile, address.keyfile, _no_pass_phrase)
        except (OSError, ssl.SSLError) as error:
            files = f"{address.certfile} with the key {address.keyfile or 'inside'}"
            raise _unusable(address, "certfile", files, error) from None
    return context


def tls_failure(address: Address, error: OSError) -> BrokerUnavailable:
    """Return the cause and the remedy of a failed TLS handshake."""
    where = f"the broker at {address.host}:{address.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        if error.verify_code in _OTHER_NAME:
            words = f"shows a certificate for other names ({why}); check MQTT_BROKER, or add that name where the "
            words += "certificate is made: baton broker init --renew --host NAME"
        else:
            words = f"shows a certificate that is not trusted ({why}); check MQTT_CA_CERTS"
        return BrokerUnavailable(f"{where} {words}", transient=False)
    if isinstance(error, TimeoutError):
        return BrokerUnavailable(f"{where} does not answer our TLS greeting; is this its TLS port? check MQTT_PORT")
    why = str(getattr(error, "reason", None) or error.strerror or "closed").lower().replace("_", " ")
    return BrokerUnavailable(
        f"{where} does not agree on TLS ({why}); check MQTT_TLS, MQTT_PORT, MQTT_CERTFILE and MQTT_KEYFILE"
    )


def _unusable(address: Address, name: str, path: str | None, error: OSError) -> BrokerUnavailable:
    why = getattr(error, "reason", None) or error.strerror or error
    setting = address.sources.get(name, f"mqtt_{name}")
    return BrokerUnavailable(f"{setting} cannot be used: {path}: {why}", transient=False)


def _no_pass_phrase() -> str:
    """Refuse an encrypted key: OpenSSL would ask for its pass phrase on the terminal, and wait for ever."""
    raise BrokerUnavailable(
        "MQTT_KEYFILE is encrypted; write it without a pass phrase (openssl pkey) and name that one", transient=False
    )
