import socket

import pytest

from astraflow.cli.ports import free_ports, is_free
from astraflow.contract.errors import InvalidInput


def test_free_ports_are_distinct_and_available() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        free_ports(1, host=host)
    assert caught.value.code in ("cli.foreign_address", "cli.unknown_host")
