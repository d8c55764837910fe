"""Hosts: which are this machine alone, and how a name or address is written."""

import ipaddress
import re

from astraflow.contract.errors import InvalidInput

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (told apart, not bound)
"""Every address of a machine: to listen on, not to be reached under."""

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}))*\.?")


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_port(host: str, port: int) -> str:
    """`HOST:PORT`, with an IPv6 address in brackets.

    >>> host_port("10.0.0.5", 7001), host_port("fd00::2", 7001)
    ('10.0.0.5:7001', '[fd00::2]:7001')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str, *, what: str) -> str:
    """`host`, if machines elsewhere could reach this one under it. what: begins the message, as in `--advertise`.

    Raises: InvalidInput for loopback, for every address at once, and for what is no host name or address.
    """
    if host in WILDCARDS:
        raise InvalidInput(f"{what}: {host} is every address and none: give the one under which others reach this host")
    if is_loopback(host):
        raise InvalidInput(f"{what}: {host} is each machine's own loopback: others do not reach this host under it")
    if not _is_address(host) and not _NAME.fullmatch(host):
        raise InvalidInput(f"{what}: {host[:80]!r} is no host name or address; as in 10.0.0.5 or runs.example.org")
    return host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
