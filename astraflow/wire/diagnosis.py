"""Why a service cannot be talked to, as a sentence: gRPC says of a failed handshake only that nobody answers.

A second connection looks, with the standard library's TLS, which has reasons.
"""

import asyncio
import os
import ssl
from datetime import UTC, datetime

from astraflow.contract.errors import AstraFlowError, NotAuthenticated

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


async def _trouble_without_tls(address: str) -> AstraFlowError | None:
    try:
        _, writer = await connected(address, unchecked())
        writer.transport.abort()
    except ssl.SSLError:
        return None  # it speaks no TLS either
    return NotAuthenticated(
        f"{address} speaks TLS, and was dialled without: join with a token that `astraflow token` prints, or give "
        "--ca-hash with the run token"
    )


async def _trouble_with_tls(
    address: str, ca: bytes, certificate: bytes | None, key: bytes | None
) -> AstraFlowError | None:
    context = unchecked()
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
    reader, writer = await connected(address, context)
    try:
        return not await reader.read(1)
    except (ssl.SSLError, ConnectionResetError):
        return True
    finally:
        writer.transport.abort()


def _own_trouble(certificate: bytes | None) -> AstraFlowError | None:
    if certificate is None:
        return None
    from cryptography import x509  # 7 MB, for those who speak TLS

    until = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    if until > datetime.now(UTC):
        return None
    return NotAuthenticated(
        f"the own certificate expired at {until:%Y-%m-%d %H:%M} UTC: join again with a new token (astraflow token)"
    )


def unchecked() -> ssl.SSLContext:
    """A context that takes whatever the other side shows."""
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


async def connected(address: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Both ends of a connection to `HOST:PORT`, after the handshake. Raises: ssl.SSLError, OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
