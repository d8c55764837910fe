"""Host names and addresses: loopback checks, formatting and validation."""

import ipaddress
import re

from astraflow.contract.errors import InvalidInput

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)
"""Wildcard addresses: valid to listen on, not to connect to."""

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}))*\.?")


def is_loopback(host: str) -> bool:
    """Returns whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    if not _is_address(host) and not _NAME.fullmatch(host):
        raise InvalidInput(
            f"cannot use {host[:80]!r} for {what}: not a host name or address; use one as 10.0.0.5 or runs.example.org",
            code="host.invalid",
        )
    return host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
