"""Free ports of this machine that stay free: outside the range from which the kernel takes them for outgoing calls."""

import errno
import random
import socket
from pathlib import Path

from astraflow.contract.errors import InvalidInput

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 15000, 32000


def free_ports(count: int, *, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nobody listens on.

    A service that restarts wants its port back. From the kernel's own range somebody's outgoing call might take it
    meanwhile, even the call of a node that tries to reach this very port. Raises: InvalidInput.
    """
    first_ephemeral = _first_ephemeral()
    candidates = list(range(_LOWEST, first_ephemeral if _LOWEST < first_ephemeral < _HIGHEST else _HIGHEST))
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if is_free(port, host=host):
            found.append(port)
    if len(found) < count:
        raise InvalidInput(f"{host} has no {count} free ports between {_LOWEST} and {_HIGHEST}: give it another --host")
    return found


def is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Whether a service could listen there now. Raises: InvalidInput for a host that is not this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror as problem:
            raise InvalidInput(f"{host} is not a host name that is known here: {problem.strerror}") from None
        except OSError as problem:
            if problem.errno == errno.EADDRNOTAVAIL:
                raise InvalidInput(f"{host} is not an address of this machine: choose one that is") from None
            return False
    return True


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _HIGHEST  # not Linux: other systems begin above it
