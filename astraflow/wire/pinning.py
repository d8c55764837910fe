"""Verifies the pinned authority of a service before any data is sent."""

import asyncio
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from astraflow.access.authority import pin_of
from astraflow.contract.errors import NotAuthenticated, Unavailable
from astraflow.wire.tls_diagnosis import PROBE_TIMEOUT_S, open_tls_connection, unverified_context


async def pinned_authority(address: str, pin: str) -> bytes:
    """Returns the authority certificate (PEM) of a service if its public key matches the pin.

    Only the pin is trusted: use the result only to verify the connection that follows. Raises: Unavailable;
    NotAuthenticated when the service does not use TLS or has another authority.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            chain = await _chain(address)
    except ssl.SSLError:
        raise NotAuthenticated(
            f"cannot verify {address!r}: it does not use TLS; check that it is the address to join at",
            code="tls.not_offered",
        ) from None
    except (OSError, TimeoutError) as problem:
        raise Unavailable(
            f"cannot reach {address!r}: {str(problem) or 'no answer in time'}; check that the service runs and that "
            "the address is right",
            code="channel.unreachable",
        ) from None
    for certificate in chain:
        if pin_of(certificate) == pin:
            return certificate.public_bytes(Encoding.PEM)
    raise NotAuthenticated(
        f"cannot trust {address!r}: its authority does not match the pin {pin!r} and nothing was sent; check that it "
        "is this run's service and not an interceptor",
        code="tls.pin_mismatch",
    )


async def _chain(address: str) -> list[x509.Certificate]:
    """Returns a service's certificate chain, unverified. Raises: ssl.SSLError when it does not use TLS; OSError."""
    _, writer = await open_tls_connection(address, unverified_context())
    try:
        tls_object = writer.get_extra_info("ssl_object")
        # Public from Python 3.13 on; `truststore`, which pip uses, reads the same attribute in earlier versions.
        unverified_chain = getattr(tls_object, "get_unverified_chain", None) or tls_object._sslobj.get_unverified_chain
        return [_parsed(certificate) for certificate in unverified_chain()]
    finally:
        writer.transport.abort()


def _parsed(certificate: object) -> x509.Certificate:
    if isinstance(certificate, bytes):
        return x509.load_der_x509_certificate(certificate)
    encoded = certificate.public_bytes(ssl._ssl.ENCODING_DER)  # type: ignore[attr-defined]  # see `_chain`
    return x509.load_der_x509_certificate(encoded)
