"""Free ports of this machine outside the kernel's range for outgoing connections, so that they stay free."""

import errno
import random
import socket
from pathlib import Path

from astraflow.contract.errors import InvalidInput

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 15000, 32000


def free_ports(count: int, *, host: str = "127.0.0.1") -> list[int]:
    """Returns `count` different free ports.

    A restarted service needs its port again. A port of the kernel's range could be taken meanwhile by an outgoing
    connection, even by a node that connects to this port. Raises: InvalidInput.
    """
    first_ephemeral = _first_ephemeral()
    candidates = list(range(_LOWEST, first_ephemeral if _LOWEST < first_ephemeral < _HIGHEST else _HIGHEST))
    random.shuffle(candidates)
    ports: list[int] = []
    for port in candidates:
        if len(ports) == count:
            break
        if is_free(port, host=host):
            ports.append(port)
    if len(ports) < count:
        raise InvalidInput(
            f"cannot choose ports: {host!r} has fewer than {count} free ports between {_LOWEST} and {_HIGHEST}; free "
            "some, or choose another --host",
            code="cli.no_free_ports",
        )
    return ports


def is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Returns True if a service can listen there now. Raises: InvalidInput for a host that is not on this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror as problem:
            raise InvalidInput(
                f"cannot listen on {host!r}: unknown host name: {problem.strerror}; use a name or address of this "
                "machine",
                code="cli.unknown_host",
            ) from None
        except OSError as problem:
            if problem.errno == errno.EADDRNOTAVAIL:
                raise InvalidInput(
                    f"cannot listen on {host!r}: it is not an address of this machine; choose one of its addresses",
                    code="cli.foreign_address",
                ) from None
            return False
    return True


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _HIGHEST  # on systems other than Linux the range starts above it
