"""A client raises the error that the server raised: over real gRPC, for calls and for streams."""

import asyncio
import errno
import inspect
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
import structlog

from astraflow.contract import errors
from astraflow.contract.errors import AstraFlowError
from astraflow.wire.channel import MAX_MESSAGE_BYTES, ServiceChannel, dial
from astraflow.wire.errors import from_status, is_disk_full, to_status
from astraflow.wire.server import ListenOptions, serving
from tests.errors import raises_code
from tests.wire.plane import TOKEN, Plane, stream, unary

Call = Callable[[ServiceChannel], Awaitable[object]]

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, AstraFlowError) and kind is not AstraFlowError
]
TOLD = [kind for kind in KINDS if kind is not errors.PlanRefused]
"""Errors sent by status; a refused plan has evidence and its own message (`AppliedPlan`)."""

both_ways = pytest.mark.parametrize("call", [unary, stream])


def raising(problem: Exception) -> Callable[[], Awaitable[None]]:
    async def handle() -> None:
        raise problem

    return handle


async def answer(problem: Exception, call: Call, *, pieces: int = 0) -> AstraFlowError:
    """Returns the error that a client raises when a handler raised `problem`."""
    plane = Plane(raising(problem), pieces=pieces)
    async with serving(ListenOptions(token=TOKEN), plane.register) as address, dial(address, token=TOKEN) as link:
        with pytest.raises(AstraFlowError) as caught:
            await call(link)
    return caught.value


@pytest.mark.anyio
@both_ways
@pytest.mark.parametrize("kind", TOLD, ids=lambda kind: kind.__name__)
async def test_every_error_type_keeps_its_type_code_and_message(kind: type[AstraFlowError], call: Call) -> None:
    error = await answer(kind("found: ä", code="plane.some_place"), call)
    assert type(error) is kind
    assert error.code == "plane.some_place"
    assert str(error) == "found: ä"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_type_is_in_the_documented_tree(kind: type[AstraFlowError]) -> None:
    assert f"── {kind.__name__} " in (errors.__doc__ or "")


@pytest.mark.anyio
async def test_an_error_after_some_replies_keeps_its_type() -> None:
    assert type(await answer(errors.CorruptData("third"), stream, pieces=2)) is errors.CorruptData


@pytest.mark.anyio
@both_ways
async def test_a_subclass_is_sent_as_its_known_base(call: Call) -> None:
    class NoSuchFlow(errors.InvalidInput):
        pass

    assert type(await answer(NoSuchFlow("no flow"), call)) is errors.InvalidInput


@pytest.mark.anyio
@both_ways
async def test_an_unexpected_exception_is_sent_without_details_and_logged(call: Call) -> None:
    with structlog.testing.capture_logs() as logs:
        error = await answer(KeyError("secret detail"), call)
    assert type(error) is errors.InternalError
    assert "secret" not in str(error)
    (entry,) = (line for line in logs if line["event"] == "handler_failed")
    assert entry["log_level"] == "error"
    assert "secret detail" in repr(entry["exc_info"])


def _sqlite_full() -> sqlite3.OperationalError:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("pragma max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("create table t (x)")
    finally:
        connection.close()
    return caught.value


@pytest.mark.anyio
@both_ways
@pytest.mark.parametrize(
    "make_problem",
    [lambda: OSError(errno.ENOSPC, "no space"), lambda: OSError(errno.EDQUOT, "quota"), _sqlite_full],
    ids=["disk", "quota", "sqlite"],
)
async def test_every_kind_of_full_disk_error_is_recognised(make_problem: Callable[[], Exception], call: Call) -> None:
    error = await answer(make_problem(), call)
    assert type(error) is errors.StorageFull
    assert error.code == "storage.disk_full"


def test_other_os_errors_are_not_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "missing").read_bytes()
    assert not is_disk_full(caught.value)
    assert to_status(caught.value)[0] is grpc.StatusCode.INTERNAL


@pytest.mark.anyio
@both_ways
async def test_an_unreachable_service_is_unavailable_with_its_address(call: Call) -> None:
    async with serving(ListenOptions(token=TOKEN)) as address:
        pass
    async with dial(address, token=TOKEN) as link:
        with raises_code(errors.Unavailable, "channel.unreachable", address) as caught:
            await call(link)
    assert caught.value.code == "channel.unreachable"


def test_a_stream_interrupted_during_a_write_is_unavailable() -> None:
    nothing = grpc.aio.Metadata()
    broken = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details="Internal error from Core")
    error = from_status(broken, peer="127.0.0.1:7000")
    assert type(error) is errors.Unavailable
    assert "127.0.0.1:7000" in str(error)


@pytest.mark.anyio
async def test_a_plane_that_is_not_served_is_a_protocol_mismatch() -> None:
    async with serving(ListenOptions(token=TOKEN)) as address, dial(address, token=TOKEN) as link:
        with pytest.raises(errors.ProtocolMismatch):
            await unary(link)


@pytest.mark.anyio
@both_ways
async def test_a_missing_answer_is_deadline_exceeded(call: Callable[..., Awaitable[object]]) -> None:
    plane = Plane(asyncio.Event().wait)
    async with (
        serving(ListenOptions(token=TOKEN, drain_s=0.0), plane.register) as address,
        dial(address, token=TOKEN) as link,
    ):
        with pytest.raises(errors.DeadlineExceeded):
            await call(link, timeout_s=0.1)


@pytest.mark.long
@pytest.mark.anyio
async def test_a_message_beyond_the_limit_is_invalid_input() -> None:
    async with serving(ListenOptions(token=TOKEN), Plane().register) as address, dial(address, token=TOKEN) as link:
        assert await unary(link, payload="x" * 1000) == "x" * 1000
        with raises_code(errors.InvalidInput, "invalid_input", str(MAX_MESSAGE_BYTES)):
            await unary(link, payload="x" * (MAX_MESSAGE_BYTES + 1))
