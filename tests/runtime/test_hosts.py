"""Hosts that others reach, told from those that they do not."""

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.hosts import WILDCARDS, reachable

EVERYWHERE = WILDCARDS[0]


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::2", "runs.example.org", "gpu-1", "192.0.2.2"])
def test_what_others_may_reach_is_taken_as_it_is(host: str) -> None:
    assert reachable(host, what="--join-host") == host


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("127.0.0.1", "own loopback"),
        ("127.0.0.2", "own loopback"),
        ("::1", "own loopback"),
        ("localhost", "own loopback"),
        (EVERYWHERE, "every address and none"),
        ("::", "every address and none"),
        ("", "no host name"),
        ("--tls", "no host name"),
        ("10.0.0.5:7001", "no host name"),
        ("a b", "no host name"),
        ("a\n", "no host name"),
        ("x" * 300, "no host name"),
    ],
)
def test_what_leads_nowhere_is_refused_with_its_option_named(host: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        reachable(host, what="--join-host")
    assert str(refused.value).startswith("--join-host: ")
