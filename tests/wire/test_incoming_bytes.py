"""Memory of unfinished requests: its budget, the share of a peer, and the time that a request may take."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.contract.errors import AstraFlowError, InvalidInput, RateLimited
from astraflow.wire.channel import PIECE_BYTES, PROTOCOL, PROTOCOL_KEY, dial, unary_in_pieces
from astraflow.wire.listener_limits import DATA_LIMITS, FLEET_LIMITS, WEIGHTS_LIMITS, ListenerLimits
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.server import ListenOptions, serving
from tests.fakes.http2_flood import Http2Flood
from tests.wire.plane import TOKEN, Plane, register_push, unary

pytestmark = pytest.mark.anyio

ATTACH, PUSH = "/astraflow.v1.TrainerData/Attach", "/astraflow.v1.NodeData/Push"
MESSAGE_BYTES = 2**17


async def answer_size(request: bytes, context: Any) -> pb.PushReply:
    """Answers a push with its size."""
    return pb.PushReply(outcomes=[str(len(request))])


@asynccontextmanager
async def listening(plane: Plane | None = None, **changed: Any) -> AsyncIterator[str]:
    """Runs a server with small limits."""
    limits = replace(DATA_LIMITS, **{"message_bytes": MESSAGE_BYTES, **changed})
    register = (plane or Plane()).register
    options = ListenOptions(token=TOKEN, drain_s=0.1)

    def pushes(server: grpc.aio.Server) -> None:
        register_push(server, answer_size)

    async with serving(options, register, pushes, limits=limits) as address:
        yield address


def credential(role: Role = Role.TRAINER, name: str = "run") -> str:
    caller = Caller(id=new_id(), role=role, expires_at=2e10, name=name, pool="eu", issued_from="a token")
    return CredentialSigner(TOKEN).sign(caller)


@asynccontextmanager
async def flooding(
    address: str,
    until: Callable[[Http2Flood], bool],
    *,
    token: str = TOKEN,
    calls: int,
    path: str = ATTACH,
    message_bytes: int = MESSAGE_BYTES,
) -> AsyncIterator[Http2Flood]:
    """Begins calls and sends all but the last byte of their messages; yields once `until`, and keeps them open."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        peer = Http2Flood(connection)

        def work() -> None:
            peer.listen(lambda: peer.is_settled)
            for _ in range(calls):
                assert peer.request(
                    path, (("authorization", f"Bearer {token}"), (PROTOCOL_KEY, PROTOCOL)), message_bytes=message_bytes
                )
            while not until(peer):
                peer.send(for_s=0.02, at_most_bytes=2**40)

        await asyncio.to_thread(work)
        yield peer


async def test_a_large_request_arrives_in_pieces() -> None:
    async with listening(message_bytes=PIECE_BYTES) as address, dial(address, token=TOKEN) as link:
        push = unary_in_pieces(link.channel, PUSH, response_deserializer=pb.PushReply.FromString)
        for size_bytes in (1, PIECE_BYTES, 2 * PIECE_BYTES + 1):
            reply = await link.call(push, bytes(size_bytes), timeout_s=20)
            assert reply.outcomes == [str(size_bytes)]


async def test_the_pieces_of_a_request_are_limited_together() -> None:
    async with listening(message_bytes=40 * 2**10) as address, dial(address, token=TOKEN) as link:
        attach: Any = link.channel.stream_unary(ATTACH)
        with pytest.raises(InvalidInput) as caught:
            await link.call(attach, iter([bytes(40 * 2**10), bytes(30 * 2**10)]), timeout_s=10)
        assert caught.value.code == "request.too_large"


async def test_a_call_without_a_request_is_refused() -> None:
    async with listening() as address, dial(address, token=TOKEN) as link:
        with pytest.raises(InvalidInput) as caught:
            await link.call(link.channel.stream_unary(ATTACH), iter([]), timeout_s=10)
        assert caught.value.code == "message.missing"


async def test_an_unfinished_request_ends_in_time() -> None:
    async with (
        listening(request_s=0.2) as address,
        flooding(address, lambda peer: len(set(peer.ended)) == 3, calls=3) as peer,
    ):
        assert len(set(peer.ended)) == 3


async def test_only_some_requests_are_received_at_the_same_time() -> None:
    budget = 4 * MESSAGE_BYTES
    async with (
        listening(receiving=4, peer_receiving=4) as address,
        flooding(address, lambda peer: peer.sent_bytes >= budget // 2, calls=64) as peer,
    ):
        await asyncio.to_thread(peer.send, for_s=0.3, at_most_bytes=2**40)
        assert peer.sent_bytes <= budget + 64 * (DATA_LIMITS.window_bytes + 2**10)


async def test_a_peer_with_fewer_requests_comes_before_the_peer_with_most() -> None:
    async with (
        listening(receiving=3, peer_receiving=3) as address,
        flooding(address, lambda peer: peer.sent_bytes >= 3 * 2**16, calls=3) as peer,
        dial(address, token=TOKEN) as link,
    ):
        assert [await unary(link) for _ in range(5)] == ["run"] * 5
        await asyncio.to_thread(peer.listen, lambda: bool(peer.ended))
        assert len(set(peer.ended)) == 1


async def test_the_requests_of_one_peer_share_its_places() -> None:
    async with (
        listening(peer_receiving=1) as address,
        flooding(address, lambda peer: peer.sent_bytes >= MESSAGE_BYTES - 1, calls=5),
        dial(address, token=TOKEN) as link,
    ):
        assert await unary(link) == "run"


async def test_calls_without_their_requests_are_limited() -> None:
    async with (
        listening(peer_unread=2) as address,
        flooding(address, lambda peer: bool(peer.ended), token=credential(), calls=3) as peer,
    ):
        assert len(set(peer.ended)) == 1


async def test_a_wrong_role_is_refused_before_the_message_arrives() -> None:
    async with listening() as address:
        token = credential(Role.NODE)
        async with flooding(address, lambda peer: bool(peer.ended), token=token, calls=1, message_bytes=2**22) as peer:
            assert peer.sent_bytes <= 2**17


async def test_compressed_messages_are_refused() -> None:
    async with listening() as address, grpc.aio.insecure_channel(address) as channel:
        attach: Any = channel.unary_unary(ATTACH)
        metadata = (("authorization", f"Bearer {TOKEN}"), (PROTOCOL_KEY, PROTOCOL))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attach(bytes(2**20), metadata=metadata, compression=grpc.Compression.Gzip, timeout=10)
        assert caught.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize("limits", [DATA_LIMITS, WEIGHTS_LIMITS, FLEET_LIMITS])
def test_no_peer_has_all_places(limits: ListenerLimits) -> None:
    assert 0 < limits.peer_receiving < limits.receiving


async def _held(address: str, token: str, calls: int) -> list[asyncio.Task[str]]:
    links = [dial(address, token=token, has_own_connection=True) for _ in range(calls)]

    async def call(link: Any) -> str:
        async with link:
            return await unary(link)

    return [asyncio.create_task(call(link)) for link in links]


@pytest.mark.parametrize(
    ("limit", "code"),
    [({"peer_calls": 2}, "rate_limit.open_calls"), ({"peer_connections": 2}, "rate_limit.connections")],
)
async def test_open_calls_and_connections_of_a_credential_are_limited(limit: dict[str, int], code: str) -> None:
    release, entered = asyncio.Event(), asyncio.Semaphore(0)

    async def handle() -> None:
        entered.release()
        await release.wait()

    async with listening(Plane(handle), **limit) as address:
        held = await _held(address, credential(), 2)
        for _ in held:
            await entered.acquire()
        async with dial(address, token=credential()) as link:
            with pytest.raises(RateLimited) as caught:
                await unary(link)
            assert caught.value.code == code
        others = await _held(address, credential(name="other"), 1) + await _held(address, TOKEN, 3)
        refused = asyncio.gather(others[0], return_exceptions=True)
        for _ in others[1:]:
            await entered.acquire()
        release.set()
        assert await asyncio.gather(*held, *others[1:]) == ["run"] * 5
        (problem,) = await refused
        assert isinstance(problem, AstraFlowError), "a trainer attaches for its own policy only"
