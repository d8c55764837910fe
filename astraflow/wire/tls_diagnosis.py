"""Diagnoses failed TLS connections: gRPC reports a failed handshake only as an unreachable peer.

It opens a second connection with the standard library's TLS, which gives reasons.
"""

import asyncio
import os
import ssl
from datetime import UTC, datetime

from astraflow.contract.errors import AstraFlowError, NotAuthenticated

PROBE_TIMEOUT_S = 3.0
"""Time limit of a diagnosis."""

REFUSED_ATTEMPTS = 3
"""Consecutive disconnects after which a service counts as refusing the caller: a stopping service disconnects once."""


async def diagnose_tls(
    address: str, *, ca: bytes | None, certificate: bytes | None = None, key: bytes | None = None
) -> AstraFlowError | None:
    """Returns the TLS problem that prevents the connection; None when it is not about TLS or the service is
    unreachable.

    ca: PEM, for a caller that uses TLS; certificate, key: the caller's own, if any.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            if ca is None:
                return await _problem_without_tls(address)
            return _own_certificate_problem(certificate) or await _problem_with_tls(address, ca, certificate, key)
    except (OSError, TimeoutError):
        return None


async def _problem_without_tls(address: str) -> AstraFlowError | None:
    try:
        _, writer = await open_tls_connection(address, unverified_context())
        writer.transport.abort()
    except ssl.SSLError:
        return None  # the service does not use TLS either
    return NotAuthenticated(
        f"cannot connect to {address!r}: the service requires TLS; join with a token that `astraflow token` prints, "
        "or give --ca-hash with the run token",
        code="tls.required",
    )


async def _problem_with_tls(
    address: str, ca: bytes, certificate: bytes | None, key: bytes | None
) -> AstraFlowError | None:
    context = unverified_context()
    context.check_hostname, context.verify_mode = True, ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=ca.decode("ascii"))
    if certificate is not None and key is not None:
        _load_certificate(context, certificate, key)
    try:
        is_refused = all([await _is_refused(address, context) for _ in range(REFUSED_ATTEMPTS)])
    except ssl.SSLCertVerificationError as problem:
        return NotAuthenticated(
            f"cannot trust {address!r}: its certificate is not valid for this caller ({problem.verify_message}); check "
            "that it is this run's service and not an interceptor, or add the name with --advertise",
            code="tls.untrusted_service",
        )
    except ssl.SSLError:
        return NotAuthenticated(
            f"cannot connect to {address!r}: the service does not use TLS; check the address", code="tls.not_offered"
        )
    if not is_refused:
        return None
    if certificate is None:
        return NotAuthenticated(
            f"cannot connect to {address!r}: the service requires a certificate; join with a token (astraflow token)",
            code="tls.certificate_required",
        )
    return NotAuthenticated(
        f"cannot connect to {address!r}: the service refuses this caller's certificate, which is another run's or "
        "expired; join again with a new token (astraflow token)",
        code="tls.certificate_refused",
    )


async def _is_refused(address: str, context: ssl.SSLContext) -> bool:
    """Returns whether the service disconnects after the handshake: with TLS 1.3 it sees the caller's certificate only
    then.

    A service that accepts the certificate sends data first. Raises: ssl.SSLError when this side refuses; OSError.
    """
    reader, writer = await open_tls_connection(address, context)
    try:
        return not await reader.read(1)
    except (ssl.SSLError, ConnectionResetError):
        return True
    finally:
        writer.transport.abort()


def _own_certificate_problem(certificate: bytes | None) -> AstraFlowError | None:
    if certificate is None:
        return None
    from cryptography import x509  # 7 MB, loaded only with TLS

    expires_at = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    if expires_at > datetime.now(UTC):
        return None
    return NotAuthenticated(
        f"cannot connect: this caller's certificate expired at {expires_at:%Y-%m-%d %H:%M} UTC; "
        "join again with a new token (astraflow token)",
        code="tls.certificate_expired",
    )


def unverified_context() -> ssl.SSLContext:
    """Returns a context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads the certificate through an anonymous file: the library reads files only, and other users must not read the
    key."""
    if not hasattr(os, "memfd_create"):
        return  # not Linux: diagnose without the certificate
    descriptor = os.memfd_create("astraflow-certificate")
    try:
        os.write(descriptor, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


async def open_tls_connection(
    address: str, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to `HOST:PORT` and returns reader and writer after the handshake. Raises: ssl.SSLError, OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
