"""This machine's address beyond loopback, where it has one."""

import socket

import psutil

from astraflow.runtime.hosts import is_loopback


def beyond_loopback() -> str:
    """An IPv4 address of a network interface; empty for a machine that has none but loopback."""
    found = (
        one.address for addresses in psutil.net_if_addrs().values() for one in addresses if one.family == socket.AF_INET
    )
    return next((address for address in found if not is_loopback(address)), "")
