"""TLS towards a broker: certificates and host names are verified, TLS 1.3 unless told otherwise, never below 1.2."""

from __future__ import annotations

import ssl

from baton.errors import InvalidValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.broker.address import Address


def tls_context(address: Address) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise InvalidValue("MQTT_CA_CERTS", f"{address.ca_certs} cannot be used: {_why(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if address.tls_1_2 else ssl.TLSVersion.TLSv1_3
    if address.certfile:
        try:
            context.load_cert_chain(address.certfile, address.keyfile, _no_pass_phrase)
        except (OSError, ssl.SSLError) as error:
            raise InvalidValue(
                "MQTT_CERTFILE", f"{address.certfile} with MQTT_KEYFILE cannot be used: {_why(error)}"
            ) from None
    return context


def _no_pass_phrase() -> str:
    """OpenSSL would ask the terminal, and wait for ever where nobody sits."""
    raise InvalidValue("MQTT_KEYFILE", "is encrypted; write it without a pass phrase (openssl pkey) and name that one")


def _why(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
