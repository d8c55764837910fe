"""Why a service cannot be talked to, as a sentence: gRPC says of a failed handshake only that nobody answers.

A second connection looks, with the standard library's TLS, which has reasons.
"""

import asyncio
import os
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from astraflow.access.authority import pin_of
from astraflow.contract.errors import AstraFlowError, NotAuthenticated, Unavailable

PROBE_S = 3.0
"""How long to look."""

REFUSALS = 3
"""In a row, before a service that hangs up is said to refuse: one that is being stopped hangs up once."""


async def tls_trouble(
    address: str, *, ca: bytes | None, certificate: bytes | None = None, key: bytes | None = None
) -> AstraFlowError | None:
    """What keeps two sides from talking, as far as it is about TLS; None when it is not, or nobody is there.

    ca: PEM, for a caller with TLS; certificate, key: what it shows, if anything.
    """
    try:
        async with asyncio.timeout(PROBE_S):
            if ca is None:
                return await _trouble_without_tls(address)
            return _own_trouble(certificate) or await _trouble_with_tls(address, ca, certificate, key)
    except (OSError, TimeoutError):
        return None


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


async def _trouble_without_tls(address: str) -> AstraFlowError | None:
    try:
        await _chain(address)
    except ssl.SSLError:
        return None  # it speaks no TLS either
    return NotAuthenticated(
        f"{address} speaks TLS, and was dialled without: join with a token that `astraflow token` prints, or give "
        "--ca-hash with the run token"
    )


async def _trouble_with_tls(
    address: str, ca: bytes, certificate: bytes | None, key: bytes | None
) -> AstraFlowError | None:
    context = _context()
    context.check_hostname, context.verify_mode = True, ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=ca.decode("ascii"))
    if certificate is not None and key is not None:
        _show(context, certificate, key)
    try:
        is_refused = all([await _is_refused(address, context) for _ in range(REFUSALS)])
    except ssl.SSLCertVerificationError as problem:
        return NotAuthenticated(
            f"the certificate of {address} is not good for this caller ({problem.verify_message}): this is another "
            "run's service, somebody stands in between, or it needs --advertise for the name it is reached by"
        )
    except ssl.SSLError:
        return NotAuthenticated(f"{address} does not speak TLS, and was dialled with: is the address right?")
    if not is_refused:
        return None
    if certificate is None:
        return NotAuthenticated(f"{address} wants a certificate: join with a token (astraflow token) to get one")
    return NotAuthenticated(
        f"{address} does not take the certificate of this caller: it is of another run, or expired; join again with "
        "a new token (astraflow token)"
    )


async def _is_refused(address: str, context: ssl.SSLContext) -> bool:
    """Whether the other side hangs up after the handshake: with TLS 1.3 it is only then that it has seen who calls.

    One that takes the certificate speaks first. Raises: ssl.SSLError when it is this side that refuses; OSError.
    """
    reader, writer = await _connect(address, context)
    try:
        return not await reader.read(1)
    except (ssl.SSLError, ConnectionResetError):
        return True
    finally:
        writer.transport.abort()


def _own_trouble(certificate: bytes | None) -> AstraFlowError | None:
    if certificate is None:
        return None
    until = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    if until > datetime.now(UTC):
        return None
    return NotAuthenticated(
        f"the own certificate expired at {until:%Y-%m-%d %H:%M} UTC: join again with a new token (astraflow token)"
    )


async def _chain(address: str) -> list[x509.Certificate]:
    """What a service shows, unchecked. Raises: ssl.SSLError when it speaks no TLS; OSError."""
    _, writer = await _connect(address, _context())
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


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The library takes files only: these are in memory, and nobody else's."""
    if not hasattr(os, "memfd_create"):
        return  # not Linux: it is looked at without
    descriptor = os.memfd_create("astraflow-certificate")
    try:
        os.write(descriptor, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


async def _connect(address: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
