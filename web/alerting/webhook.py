"""Posts a notice to a webhook: to a checked address, signed, without redirects, within a deadline.

The host is resolved once and the connection goes to the address that was checked, so that a name which later leads
elsewhere (DNS rebinding) cannot reach this machine or its network.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from astraflow.contract.errors import Unavailable

POST_TIMEOUT_S = 10.0
MAX_HEADER_BYTES = 16 * 1024

SIGNATURE_HEADER = "X-AstraFlow-Signature"
TIME_HEADER = "X-AstraFlow-Time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a webhook."""

    status: int
    retry_after_s: float | None = None
    """Seconds of the header Retry-After; None without them."""


def signature(key: str, time: str, body: bytes) -> str:
    """Returns the value of the signature's header: over the header of the time, a dot and the body.

    >>> signature("key", "1700000000", b"{}")[:20]
    'sha256=9d713ed406bb7'
    """
    return "sha256=" + hmac.new(key.encode(), time.encode() + b"." + body, hashlib.sha256).hexdigest()


async def post_notice(
    url: str, body: bytes, *, key: str, at: float, allows_private: bool, trust: ssl.SSLContext | None = None
) -> Answer:
    """Posts JSON. trust: certificates that are trusted; None for those of the system.

    Raises: Unavailable, with a cause that never contains the path of the URL.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    context = (trust or ssl.create_default_context()) if parts.scheme == "https" else None
    time = str(int(at))
    request = "\r\n".join(
        (
            f"POST {parts.path or '/'}{'?' + parts.query if parts.query else ''} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "User-Agent: AstraFlow",
            f"{TIME_HEADER}: {time}",
            f"{SIGNATURE_HEADER}: {signature(key, time, body)}",
            "Connection: close",
            "\r\n",
        )
    )
    try:
        async with asyncio.timeout(POST_TIMEOUT_S):
            address = await checked_address(host, port, allows_private=allows_private)
            return await _exchange(address, port, request.encode("ascii") + body, context, host)
    except TimeoutError:
        raise _unavailable(host, f"no answer within {POST_TIMEOUT_S:.0f} s") from None
    except ssl.SSLError as problem:
        raise _unavailable(host, f"TLS failed: {getattr(problem, 'verify_message', '') or problem.reason}") from None
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as problem:
        raise _unavailable(host, getattr(problem, "strerror", None) or type(problem).__name__) from None


async def checked_address(host: str, port: int, *, allows_private: bool) -> str:
    """Returns the address to connect to. Raises: Unavailable if any address of the host is not public, unless allowed;
    OSError for an unknown host."""
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]).partition("%")[0] for entry in resolved]
    if not allows_private and not all(_is_public(address) for address in addresses):
        raise Unavailable(
            f"cannot notify the webhook at {host!r}: its address is not public; allow private addresses for this "
            "receiver, if it is yours",
            code="alert.private_address",
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    inner = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None) or parsed
    return inner.is_global and parsed.is_global and not inner.is_multicast


async def _exchange(address: str, port: int, request: bytes, context: ssl.SSLContext | None, host: str) -> Answer:
    reader, writer = await asyncio.open_connection(
        address, port, ssl=context, server_hostname=host if context else None, limit=MAX_HEADER_BYTES
    )
    try:
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    finally:
        writer.transport.abort()
    version, _, rest = head[0].partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ValueError("no answer of HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    after = headers.get("retry-after", "")
    return Answer(status=int(rest[:3]), retry_after_s=float(after) if after.isdecimal() and len(after) < 7 else None)


def _unavailable(host: str, cause: str) -> Unavailable:
    return Unavailable(
        f"cannot notify the webhook at {host!r}: {cause}; check its URL and that it is reachable from here",
        code="alert.webhook_unreachable",
    )
