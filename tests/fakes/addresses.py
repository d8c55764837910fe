"""The IPv4 address of this machine beyond loopback, where it has one."""

import socket

import psutil

from astraflow.runtime.http.hosts import is_loopback


def beyond_loopback() -> str:
    """Returns an IPv4 address of a network interface other than loopback; empty when the machine has none."""
    candidates = (
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    )
    return next((address for address in candidates if not is_loopback(address)), "")
