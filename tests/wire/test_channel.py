"""Calls cancelled by gRPC, calls cancelled by the caller, and requests that cannot be serialized."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import CorruptData, Unavailable
from astraflow.wire.channel import ServiceChannel, dial
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub
from tests.errors import raises_code
from tests.weights.running import TOKEN, weight_store

pytestmark = pytest.mark.anyio


async def cancelled_by_grpc(*_request: Any, **_options: Any) -> Any:
    """Raises as gRPC does when it cannot send a call's requests: cancelled, without a cancellation by the caller."""
    raise asyncio.CancelledError


async def test_an_interrupted_call_raises_an_error() -> None:
    async with dial("127.0.0.1:1", token="t") as link:
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(link.call(cancelled_by_grpc, iter([]), timeout_s=1))
                await asyncio.sleep(5)
    (problem,) = caught.value.exceptions
    assert isinstance(problem, Unavailable)
    assert problem.code == "channel.interrupted"


async def test_a_cancelled_call_stays_cancelled() -> None:
    async def endless(*_request: Any, **_options: Any) -> Any:
        await asyncio.Event().wait()

    async with dial("127.0.0.1:1", token="t") as link:
        call = asyncio.ensure_future(link.call(endless, iter([]), timeout_s=1))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await link.call(endless, iter([]), timeout_s=1)


async def torn_later() -> AsyncIterator[pb.PublishPiece]:
    yield pb.PublishPiece(head=pb.PublishHead())
    raise CorruptData("torn", code="file.torn")


def torn_now() -> Iterator[pb.PublishPiece]:
    yield pb.PublishPiece(head=pb.PublishHead())
    raise CorruptData("torn", code="file.torn")


@pytest.mark.parametrize("torn", [torn_now, torn_later])
async def test_an_error_of_the_request_iterator_is_raised(tmp_path: Path, torn: Callable[[], Any]) -> None:
    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        with raises_code(CorruptData, "file.torn"):
            await publish(link, torn())


async def publish(link: ServiceChannel, pieces: Any) -> None:
    await link.call(WeightPlaneStub(link.channel).Publish, pieces, timeout_s=5)
