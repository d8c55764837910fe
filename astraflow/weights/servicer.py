"""The weight plane's RPCs over a store."""

# ruff: noqa: N802 (methods are named by the service definition)

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, VersionNotice
from astraflow.runtime.logs import get_logger
from astraflow.weights.chunks import CHUNK_BYTES, chunk_at
from astraflow.weights.sources import Source
from astraflow.weights.store import Incoming, WeightStore
from astraflow.wire.codec_weights import (
    decode_chunk,
    decode_manifest,
    decode_transfer,
    encode_chunk,
    encode_notice,
    encode_plan,
)
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneServicer

log = get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


class WeightsServicer(WeightPlaneServicer):
    """Thin RPCs: decode, let a thread do the work, encode. Each reader has its own pace and delays nobody."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._changed = asyncio.Condition()
        self._is_stopping = False
        self._taking: set[asyncio.Task[bool]] = set()

    async def stop(self) -> None:
        """End the streams that have no end of their own, and let versions that have arrived be taken in."""
        async with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        await asyncio.gather(*self._taking, return_exceptions=True)

    async def Publish(self, request_iterator: AsyncIterator[pb.PublishPiece], context: Context) -> pb.PublishReply:
        """Take a version in: head, then chunks."""
        manifest, transfer = await _head(request_iterator)
        incoming = await asyncio.to_thread(self._store.begin, manifest, transfer)
        if incoming is None:
            return pb.PublishReply(is_new=False)
        try:
            async for piece in request_iterator:
                await asyncio.to_thread(incoming.add, decode_chunk(piece.chunk))
        except BaseException:
            await asyncio.to_thread(incoming.discard)
            raise
        taking = asyncio.create_task(self._take(incoming, manifest, transfer))
        self._taking.add(taking)
        taking.add_done_callback(self._taken)
        return pb.PublishReply(
            is_new=await asyncio.shield(taking)
        )  # a caller who hangs up leaves no half-taken version

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.VersionNotice]:
        """The newest version at once, then every one that follows; waits for a policy that is not there yet."""
        policy = PolicyId(request.policy)
        after = Version(request.after) if request.HasField("after") else None
        notices = (await self._newer(policy, after))[-1:]
        while True:
            for notice in notices:
                yield encode_notice(notice)
            notices = await self._newer(policy, notices[-1].version)

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanReply:
        """The way with the fewest bytes."""
        have = Version(request.have) if request.HasField("have") else None
        want = Version(request.want) if request.HasField("want") else None
        plan = await asyncio.to_thread(self._store.plan, PolicyId(request.policy), have=have, want=want)
        return encode_plan(plan)

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.Chunk]:
        """A file from any offset on, to its end or so many bytes."""
        transfer = decode_transfer(request.transfer)
        end = request.offset + request.size_bytes if request.size_bytes else transfer.size_bytes
        if max(request.offset, end) > transfer.size_bytes:
            raise InvalidInput(
                f"bytes {request.offset} to {end} lie beyond the {transfer.size_bytes} bytes of the file"
            )
        source = await asyncio.to_thread(self._store.open, transfer)
        try:
            for offset in range(request.offset, end, CHUNK_BYTES):
                yield await asyncio.to_thread(_chunk, source, offset, min(CHUNK_BYTES, end - offset))
        finally:
            source.close()

    async def Versions(self, request: pb.VersionsRequest, context: Context) -> pb.VersionsReply:
        """Every version that is kept."""
        notices = self._store.notices(PolicyId(request.policy))
        return pb.VersionsReply(versions=[encode_notice(notice) for notice in notices])

    async def _take(self, incoming: Incoming, manifest: Manifest, transfer: Transfer) -> bool:
        """Keep what has arrived, then tell everyone who waits for it."""
        try:
            is_new = await asyncio.to_thread(incoming.take)
        finally:
            await asyncio.to_thread(incoming.discard)
        if is_new:
            log.info(
                "version_published",
                policy=manifest.policy,
                version=manifest.version,
                kind=transfer.kind.value,
                bytes=transfer.size_bytes,
                full_bytes=manifest.size_bytes,
            )
            async with self._changed:
                self._changed.notify_all()
            await asyncio.to_thread(self._store.tidy, manifest.policy)
        return is_new

    def _taken(self, taking: asyncio.Task[bool]) -> None:
        """Whoever published it may have hung up and hears of nothing."""
        self._taking.discard(taking)
        if not taking.cancelled() and (problem := taking.exception()) is not None:
            log.warning("version_refused", problem=str(problem))

    async def _newer(self, policy: PolicyId, after: Version | None) -> tuple[VersionNotice, ...]:
        """Wait for versions newer than `after`. Raises: Unavailable when the store stops."""
        async with self._changed:
            while not (notices := self._store.notices(policy, after=after)):
                if self._is_stopping:
                    raise Unavailable("the weight store is stopping")
                await self._changed.wait()
        return notices


async def _head(pieces: AsyncIterator[pb.PublishPiece]) -> tuple[Manifest, Transfer]:
    async for piece in pieces:
        if piece.WhichOneof("piece") == "head":
            return decode_manifest(piece.head.manifest), decode_transfer(piece.head.transfer)
        break
    raise InvalidInput("a publish begins with its head: manifest and transfer")


def _chunk(source: Source, offset: int, size_bytes: int) -> pb.Chunk:
    return encode_chunk(chunk_at(offset, source.read(offset, size_bytes)))
