"""Whether the authority behind a service is the pinned one, before anything is said to it."""

import asyncio
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from astraflow.access.authority import pin_of
from astraflow.contract.errors import NotAuthenticated, Unavailable
from astraflow.wire.diagnosis import PROBE_S, connected, unchecked


async def pinned_authority(address: str, pin: str) -> bytes:
    """The certificate (PEM) of the authority behind a service, if its public key is the pinned one.

    Nothing is believed but the pin: what is found is only good for checking the connection that follows.
    Raises: Unavailable; NotAuthenticated when it does not speak TLS, or another authority is behind it.
    """
    try:
        async with asyncio.timeout(PROBE_S):
            chain = await _chain(address)
    except ssl.SSLError:
        raise NotAuthenticated(f"{address} does not speak TLS: is the address the one to join at?") from None
    except (OSError, TimeoutError) as problem:
        raise Unavailable(f"{address} cannot be reached ({str(problem) or 'no answer in time'})") from None
    for certificate in chain:
        if pin_of(certificate) == pin:
            return certificate.public_bytes(Encoding.PEM)
    raise NotAuthenticated(
        f"{address} is of another authority than the pinned {pin}: this is another run, or somebody stands in between; "
        "nothing was sent"
    )


async def _chain(address: str) -> list[x509.Certificate]:
    """What a service shows, unchecked. Raises: ssl.SSLError when it speaks no TLS; OSError."""
    _, writer = await connected(address, unchecked())
    try:
        found = writer.get_extra_info("ssl_object")
        # Public from Python 3.13 on; `truststore`, which pip uses, reads it from the same place before.
        shown = getattr(found, "get_unverified_chain", None) or found._sslobj.get_unverified_chain
        return [_parsed(one) for one in shown()]
    finally:
        writer.transport.abort()


def _parsed(shown: object) -> x509.Certificate:
    if isinstance(shown, bytes):
        return x509.load_der_x509_certificate(shown)
    encoded = shown.public_bytes(ssl._ssl.ENCODING_DER)  # type: ignore[attr-defined]  # see `_chain`
    return x509.load_der_x509_certificate(encoded)
