"""Listen addresses of a run's services, and the addresses advertised to other machines."""

import pytest

from astraflow.cli.service_addresses import choose_addresses
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.hosts import WILDCARDS
from tests.fakes.addresses import beyond_loopback

EVERYWHERE = WILDCARDS[0]
needs_address = pytest.mark.needs("address")


def test_on_loopback_nothing_is_encrypted_and_nobody_else_is_told_anything() -> None:
    places = choose_addresses("127.0.0.1", advertise="", tls=None, web_port=0, metrics="off")
    assert not places.is_tls
    assert places.enroll == ""
    assert places.dataflow == f"127.0.0.1:{places.dataflow_port}"
    assert places.weights == f"127.0.0.1:{places.weights_port}"


@needs_address
def test_beyond_loopback_tls_is_on() -> None:
    places = choose_addresses(beyond_loopback(), advertise="", tls=None, web_port=0, metrics="off")
    assert places.is_tls
    assert places.enroll == f"{beyond_loopback()}:{places.enroll_port}"


def test_machines_elsewhere_are_told_the_name_and_this_machine_goes_no_long_way_round() -> None:
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
def test_what_would_let_nobody_in_is_refused(host: str, advertise: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        choose_addresses(host, advertise=advertise, tls=None, web_port=0, metrics="off")
