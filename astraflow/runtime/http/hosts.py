"""Host names and addresses: loopback checks, formatting and validation."""

import ipaddress
import os
import re
import stat
from typing import TextIO
from urllib.parse import unquote, urlsplit

from astraflow.contract.errors import InvalidInput

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)
"""Wildcard addresses: valid to listen on, not to connect to."""

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}))*\.?")


_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&()*+=:@-]|%[0-9A-Fa-f]{2})+)*")
"""Path of a proxy's URL: encoded, and without characters that end an attribute of HTML or of a cookie."""


def proxy_url(url: str) -> str:
    """Returns the public URL of a reverse proxy without a slash at its end. It may have a path.

    >>> proxy_url("https://example.org/"), proxy_url("https://example.org/user/ada@lab/proxy/8080/")
    ('https://example.org', 'https://example.org/user/ada@lab/proxy/8080')

    Raises: ValueError for other URLs, and for `http` beyond this machine.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if not host or not _is_private(parts.scheme, host) or "@" in parts.netloc or {"?", "#"} & {*url}:
        raise ValueError(
            f"cannot use the proxy {url!r}: it needs an https:// URL without user, query and fragment; give its "
            "public URL, such as https://example.org/astraflow"
        )
    path = parts.path.rstrip("/")
    if not _PATH.fullmatch(path) or {".", ".."} & {*unquote(path).split("/")} or not unquote(path).isprintable():
        raise ValueError(
            f"cannot use the proxy {url!r}: its path has empty or relative parts, or characters that are not "
            "encoded; give it as a browser shows it, such as https://example.org/astraflow"
        )
    return f"{parts.scheme}://{parts.netloc}{path}"


def _is_private(scheme: str, host: str) -> bool:
    return scheme == "https" or (scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Returns whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_show_link(link: str, stream: TextIO) -> bool:
    """Returns whether a login link may be written to a stream: to a terminal, and to a pipe if only this machine
    reaches the page. A file would keep it for others to read."""
    if stream.isatty():
        return True
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except OSError:  # no file
        return False
    return is_pipe and is_loopback(urlsplit(link).hostname or "")


def host_port(host: str, port: int) -> str:
    """Returns `HOST:PORT`, with an IPv6 address in brackets.

    >>> host_port("10.0.0.5", 7001), host_port("fd00::2", 7001)
    ('10.0.0.5:7001', '[fd00::2]:7001')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_reachable_host(host: str, *, what: str) -> str:
    """Returns `host` if other machines could reach this one by it. what: option for the message, as in `--advertise`.

    Raises: InvalidInput for loopback, wildcard addresses, and invalid host names or addresses.
    """
    if host in WILDCARDS:
        raise InvalidInput(
            f"cannot use {host!r} for {what}: it is a wildcard address; give the address that others use",
            code="host.not_reachable",
        )
    if is_loopback(host):
        raise InvalidInput(
            f"cannot use {host!r} for {what}: it is a loopback address; give the address that others use",
            code="host.not_reachable",
        )
    if not is_address(host) and not _NAME.fullmatch(host):
        raise InvalidInput(
            f"cannot use {host[:80]!r} for {what}: not a host name or address; use one as 10.0.0.5 or runs.example.org",
            code="host.invalid",
        )
    return host


def is_address(host: str) -> bool:
    """Returns whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
