"""Limits of a listener, against peers that hold connections and streams open."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.wire import listener_limits
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY, dial
from astraflow.wire.listener_limits import ENROLMENT_LIMITS, ListenerLimits
from astraflow.wire.server import ListenOptions, serving
from tests.fakes.http2_flood import Http2Flood
from tests.wire.plane import TOKEN, Plane, unary

pytestmark = pytest.mark.anyio

ATTACH = "/astraflow.v1.TrainerData/Attach"
ALL = [limits for limits in vars(listener_limits).values() if isinstance(limits, ListenerLimits)]


@asynccontextmanager
async def listening(**changed: Any) -> AsyncIterator[str]:
    """Runs a server with the limits of the enrolment port, some of them changed."""
    limits = replace(ENROLMENT_LIMITS, **changed)
    async with serving(ListenOptions(token=TOKEN, drain_s=0.1), Plane().register, limits=limits) as address:
        yield address


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def headers(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"), (PROTOCOL_KEY, PROTOCOL))


async def flooded(
    address: str, until: Callable[[Http2Flood], bool], *, token: str = TOKEN, calls: int = 0
) -> Http2Flood:
    """Returns a peer that began calls without sending their messages, once the server has reacted."""

    def work() -> Http2Flood:
        with connected(address) as connection:
            peer = Http2Flood(connection)
            peer.listen(lambda: peer.is_settled)
            for _ in range(calls):
                assert peer.request(ATTACH, headers(token), message_bytes=2**12)
            peer.listen(lambda: until(peer))
            return peer

    return await asyncio.to_thread(work)


async def test_a_connection_without_a_handshake_is_closed() -> None:
    async with listening(handshake_s=0.2) as address:
        with connected(address) as silent:
            received = [1]
            while received:
                received = list(await asyncio.to_thread(silent.recv, 2**12))
            assert received == [], "the connection has an end"


async def test_a_connection_without_calls_is_closed() -> None:
    async with listening(idle_s=0.2) as address:
        assert (await flooded(address, lambda peer: peer.is_closed)).ended == []


async def test_an_endless_message_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_limits, "_GRACE_S", 0.1)
    async with listening(age_s=0.2) as address:
        assert (await flooded(address, lambda peer: peer.is_closed, calls=2)).is_closed


async def test_the_stream_limit_is_announced_to_a_connection() -> None:
    async with listening(streams=3) as address:
        assert (await flooded(address, lambda peer: True)).most_streams == 3


async def test_excess_connections_are_closed_and_others_continue() -> None:
    async with listening(connections=3) as address, dial(address, token=TOKEN) as link:
        assert await unary(link) == "run"
        with ExitStack() as held:
            for _ in range(2):
                held.enter_context(connected(address))
            refused = held.enter_context(connected(address))
            assert await asyncio.to_thread(refused.recv, 1) == b""
            assert await unary(link) == "run"


async def test_a_too_large_message_is_refused() -> None:
    async with listening(message_bytes=2**12) as address, dial(address, token=TOKEN) as link:
        with pytest.raises(InvalidInput):
            await unary(link, payload="x" * 2**13)
        assert await unary(link) == "run"


@pytest.mark.parametrize("token", ["wrong", TOKEN + "x"])
async def test_a_wrong_token_is_refused_before_the_message_arrives(token: str) -> None:
    async with listening(age_s=None) as address:
        assert (await flooded(address, lambda peer: len(peer.ended) >= 2, token=token, calls=2)).sent_bytes == 0


async def test_another_protocol_is_refused_before_the_message_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(age_s=None) as address:
        monkeypatch.setitem(globals(), "PROTOCOL", "0")
        assert (await flooded(address, lambda peer: bool(peer.ended), calls=1)).sent_bytes == 0


@pytest.mark.parametrize("limits", ALL)
def test_every_listener_limits_messages_streams_and_metadata(limits: ListenerLimits) -> None:
    options = dict(limits.options())
    assert 0 < options["grpc.max_receive_message_length"] <= 64 * 2**20
    assert 0 < options["grpc.max_concurrent_streams"] <= 256
    assert 0 < options["grpc.absolute_max_metadata_size"] <= 16 * 2**10
    assert options["grpc.server_handshake_timeout_ms"] <= 20_000


def test_peers_without_certificates_get_smaller_windows() -> None:
    assert (
        listener_limits.limits_without_certificates(listener_limits.WEIGHTS_LIMITS).window_bytes
        < listener_limits.WEIGHTS_LIMITS.window_bytes
    )
