"""Hosts that other machines can reach, and hosts that they cannot."""

import os
import pty
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.http.hosts import WILDCARDS, may_show_link, require_reachable_host
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


HERE, ELSEWHERE = "http://127.0.0.1:7/login?token=a", "https://page.example/login?token=a"


def test_a_login_link_may_be_shown_where_it_does_not_stay_for_others(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    reader, writer = os.pipe()
    with os.fdopen(terminal, "w") as screen, os.fdopen(writer, "w") as pipe, (tmp_path / "log").open("w") as file:
        assert may_show_link(ELSEWHERE, screen)
        assert may_show_link(HERE, pipe)
        assert not may_show_link(ELSEWHERE, pipe), "a container's log"
        assert not may_show_link(HERE, file)
    os.close(reader)
    os.close(controller)
