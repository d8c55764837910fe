"""gRPC options: gRPC ignores unknown ones silently."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from astraflow.wire import channel, listener_limits, server

OURS = sorted(
    {
        name
        for name, _ in (
            *channel.OPTIONS,
            *channel._OWN_CONNECTION,
            *server._OPTIONS,
            *listener_limits.ENROLMENT_LIMITS.options(),
        )
    }
)


@pytest.fixture(scope="module")
def compiled() -> bytes:
    module_spec = find_spec("grpc._cython.cygrpc")
    assert module_spec is not None and module_spec.origin is not None
    return Path(module_spec.origin).read_bytes()


@pytest.mark.parametrize("name", OURS)
def test_every_channel_option_is_known_to_the_installed_grpc(name: str, compiled: bytes) -> None:
    assert name.encode() + b"\0" in compiled


def test_a_misspelt_option_is_unknown(compiled: bytes) -> None:
    assert b"grpc.http2.min_recv_ping_interval_without_data_ms\0" not in compiled


def test_idle_clients_ping_less_often_than_servers_allow() -> None:
    """Keeps the server from closing a watch that stays idle for a while."""
    client, allowed = dict(channel.OPTIONS), dict(server._OPTIONS)
    pings_every_ms = client["grpc.keepalive_time_ms"]
    assert pings_every_ms > allowed["grpc.http2.min_ping_interval_without_data_ms"]
