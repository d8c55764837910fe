"""Listen addresses of a run's services, and the addresses advertised to other machines."""

import socket

import pytest

from astraflow.cli.ports import free_ports, is_free
from astraflow.cli.running.service_addresses import ServiceAddresses, choose_addresses
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.http.hosts import WILDCARDS
from tests.errors import raises_code
from tests.fakes.addresses import beyond_loopback

EVERYWHERE = WILDCARDS[0]
needs_address = pytest.mark.needs("address")


def test_loopback_addresses_have_no_tls_and_no_enrolment() -> None:
    places = choose_addresses("127.0.0.1", advertise="", tls=None, web_port=0, metrics="off")
    assert not places.is_tls
    assert places.enroll == ""
    assert places.dataflow == f"127.0.0.1:{places.dataflow_port}"
    assert places.weights == f"127.0.0.1:{places.weights_port}"


@needs_address
def test_addresses_beyond_loopback_have_tls_and_enrolment() -> None:
    places = choose_addresses(beyond_loopback(), advertise="", tls=None, web_port=0, metrics="off")
    assert places.is_tls
    assert places.enroll == f"{beyond_loopback()}:{places.enroll_port}"


def test_remote_machines_get_the_advertised_name_and_local_services_use_loopback() -> None:
    places = choose_addresses(EVERYWHERE, advertise="runs.example.org", tls=None, web_port=0, metrics="off")
    assert places.is_tls
    assert places.enroll == f"runs.example.org:{places.enroll_port}"
    assert places.weights == f"runs.example.org:{places.weights_port}"
    assert places.dataflow == f"127.0.0.1:{places.dataflow_port}"


@pytest.mark.parametrize(
    ("host", "advertise", "says"),
    [
        (EVERYWHERE, "", "stands for all addresses"),
        ("127.0.0.1", "runs.example.org", "which other machines cannot reach"),
        (EVERYWHERE, "127.0.0.1", "a loopback address"),
    ],
)
def test_unreachable_addresses_are_refused(host: str, advertise: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        choose_addresses(host, advertise=advertise, tls=None, web_port=0, metrics="off")


def test_services_take_consecutive_ports_and_refuse_one_in_use() -> None:
    def chosen(first_port: int) -> ServiceAddresses:
        return choose_addresses("127.0.0.1", advertise="", tls=True, web_port=0, metrics="off", first_port=first_port)

    first = next(port for port in free_ports(100) if all(is_free(port + offset) for offset in range(4)))
    addresses = chosen(first)
    ports = (addresses.enroll_port, addresses.dataflow_port, addresses.weights_port, addresses.fleet_port)
    assert ports == (first, first + 1, first + 2, first + 3)
    with socket.create_server(("127.0.0.1", first + 2)), raises_code(InvalidInput, "cli.port_in_use"):
        chosen(first)
