"""Hosts that other machines can reach, and hosts that they cannot."""

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.http.hosts import WILDCARDS, require_reachable_host
from tests.errors import raises_code

EVERYWHERE = WILDCARDS[0]


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::2", "runs.example.org", "gpu-1", "192.0.2.2"])
def test_a_reachable_host_is_accepted_unchanged(host: str) -> None:
    assert require_reachable_host(host, what="--join-host") == host


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1", "host.not_reachable"),
        ("127.0.0.2", "host.not_reachable"),
        ("::1", "host.not_reachable"),
        ("localhost", "host.not_reachable"),
        (EVERYWHERE, "host.not_reachable"),
        ("::", "host.not_reachable"),
        ("", "host.invalid"),
        ("--tls", "host.invalid"),
        ("10.0.0.5:7001", "host.invalid"),
        ("a b", "host.invalid"),
        ("a\n", "host.invalid"),
        ("x" * 300, "host.invalid"),
    ],
)
def test_an_unreachable_host_is_refused_with_its_option(host: str, code: str) -> None:
    with raises_code(InvalidInput, code, repr(host[:80]), "--join-host"):
        require_reachable_host(host, what="--join-host")
