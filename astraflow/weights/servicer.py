"""The weight plane's RPCs over a store."""

# ruff: noqa: N802 (methods are named by the service definition)

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from astraflow.contract.errors import InvalidInput, NotPermitted, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, VersionNotice
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.chunks import CHUNK_BYTES, announced, chunk_at
from astraflow.weights.gathering import Gathering
from astraflow.weights.incoming import Incoming
from astraflow.weights.joints import Joints
from astraflow.weights.sources import Source
from astraflow.weights.store import WeightStore
from astraflow.weights.tensors import VerifiedWeights
from astraflow.wire.codec_weights import (
    decode_chunk,
    decode_manifest,
    decode_part,
    decode_shared,
    decode_transfer,
    encode_notice,
    encode_plan,
    frame_chunk,
)
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneServicer

log = get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


class WeightsServicer(WeightPlaneServicer):
    """Thin RPCs: decode, let a thread do the work, encode. Each reader has its own pace and delays nobody."""

    def __init__(
        self,
        store: WeightStore,
        *,
        direct_wait_s: float = 2.0,
        parts_wait_s: float = 60.0,
        follows: str = "",
        clock: Clock | None = None,
    ) -> None:
        """follows: the store that this one mirrors; versions are published there only."""
        self._store = store
        self._joints = Joints(store.begin_parts, keep=self._keep_parts, wait_s=parts_wait_s, clock=clock)
        self._follows = follows
        self._direct_wait_s = direct_wait_s
        self._changed = asyncio.Condition()
        self._is_stopping = False
        self._taking: set[asyncio.Task[bool]] = set()
        self._untidy: dict[PolicyId, bool] = {}
        """Policies that are being tidied: whether there is more to do."""

    async def stop(self) -> None:
        """End the streams that have no end of their own, and let versions that have arrived be taken in."""
        async with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        await self._joints.stop()
        await asyncio.gather(*self._taking, return_exceptions=True)

    async def Publish(self, request_iterator: AsyncIterator[pb.PublishPiece], context: Context) -> pb.PublishReply:
        """Take a version in, or a part of one: head, then chunks."""
        if self._follows:
            raise NotPermitted(f"this store mirrors {self._follows}: publish there")
        head = await _head(request_iterator)
        manifest, transfer = decode_manifest(head.manifest), decode_transfer(head.transfer)
        if head.HasField("part"):
            chunks = (decode_chunk(piece.chunk) async for piece in request_iterator)
            is_new = await self._joints.publish(manifest, decode_part(head.part), transfer, chunks)
            return pb.PublishReply(is_new=is_new)
        shared = decode_shared(head.shared) if head.HasField("shared") else None
        incoming = await asyncio.to_thread(self._store.begin, manifest, transfer, shared=shared)
        if incoming is None:
            return pb.PublishReply(is_new=False)
        async for piece in request_iterator:
            await asyncio.to_thread(incoming.add, decode_chunk(piece.chunk))
        taking = asyncio.create_task(self._take(incoming, manifest, transfer))
        self._own(taking)
        return pb.PublishReply(is_new=await asyncio.shield(taking))  # who hangs up leaves no half-taken version

    async def copy(self, weights: VerifiedWeights) -> None:
        """Keep what a mirror has fetched, and tell everyone who waits for it.

        Raises: Conflict, CorruptData, NotTrusted, StorageFull, Unavailable; nothing has changed then.
        """
        begun = await asyncio.to_thread(self._store.begin_copy, weights)
        if begun is not None:
            incoming, transfer = begun
            await self._take(incoming, weights.manifest, transfer)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.VersionNotice]:
        """The newest version at once, then every one that follows; waits for a policy that is not there yet.

        Without a policy: of each policy.
        """
        after = Version(request.after) if request.HasField("after") else None
        told: dict[PolicyId, Version] = {}
        while True:
            for policy, notices in (await self._newer(request.policy, told, after)).items():
                for notice in notices if policy in told else notices[-1:]:
                    yield encode_notice(notice)
                told[policy] = notices[-1].version

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanReply:
        """The way with the fewest bytes; a direct delta is made first where there is none yet."""
        have = Version(request.have) if request.HasField("have") else None
        want = Version(request.want) if request.HasField("want") else None
        policy = PolicyId(request.policy)
        making = await asyncio.to_thread(self._store.shorten, policy, have=have, want=want)
        if making is not None:
            await asyncio.wait([asyncio.wrap_future(making)], timeout=self._direct_wait_s)
        return encode_plan(await asyncio.to_thread(self._store.plan, policy, have=have, want=want))

    async def Fetch(  # type: ignore[override]  # (raw)
        self, request: pb.FetchRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Any range of a file; replies are put together by hand (`wire.frames`)."""
        transfer = decode_transfer(request.transfer)
        end = request.offset + request.size_bytes if request.size_bytes else transfer.size_bytes
        if not request.offset <= end <= transfer.size_bytes:
            raise InvalidInput(f"bytes {request.offset} to {end} lie beyond the {transfer.size_bytes} of the file")
        source = await self._opened(transfer)
        try:
            for offset in range(request.offset, end, CHUNK_BYTES):
                yield await asyncio.to_thread(_chunk, source, offset, min(CHUNK_BYTES, end - offset))
        finally:
            source.close()

    async def _opened(self, transfer: Transfer) -> Source:
        """Open a file; one that is opened for a call that was cancelled meanwhile is closed again."""
        opening = asyncio.create_task(asyncio.to_thread(self._store.open, transfer))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise

    async def Versions(self, request: pb.VersionsRequest, context: Context) -> pb.VersionsReply:
        """Every version that is kept."""
        notices = self._store.notices(PolicyId(request.policy))
        return pb.VersionsReply(versions=[encode_notice(notice) for notice in notices])

    async def _keep_parts(self, gathering: Gathering) -> bool:
        """A version of which all parts are there."""
        keeping = asyncio.create_task(self._take(gathering, gathering.manifest, announced(gathering.manifest)))
        self._own(keeping)
        return await asyncio.shield(keeping)

    async def _take(self, incoming: Incoming | Gathering, manifest: Manifest, transfer: Transfer) -> bool:
        """Keep what has arrived, then tell everyone who waits for it; what is due afterwards delays nobody."""
        is_new = await asyncio.to_thread(incoming.take)
        if is_new:
            log.info(
                "version_published",
                policy=manifest.policy,
                version=manifest.version,
                kind=transfer.kind.value,
                bytes=transfer.size_bytes,
                full_bytes=manifest.size_bytes,
                is_durable=self._store.is_durable,
            )
            async with self._changed:
                self._changed.notify_all()
            self._own(asyncio.create_task(self._tidy(manifest.policy)))
        return is_new

    async def _tidy(self, policy: PolicyId) -> bool:
        """One at a time for each policy, and one more for all that came meanwhile: a place may be slow to write to."""
        is_running = policy in self._untidy
        self._untidy[policy] = True
        if is_running:
            return False
        try:
            while self._untidy[policy]:
                self._untidy[policy] = False
                await asyncio.to_thread(self._store.tidy, policy)
        finally:
            del self._untidy[policy]
        return True

    def _own(self, task: asyncio.Task[bool]) -> None:
        self._taking.add(task)
        task.add_done_callback(self._taken)

    def _taken(self, taking: asyncio.Task[bool]) -> None:
        """Whoever published it may have hung up and hears of nothing."""
        self._taking.discard(taking)
        if not taking.cancelled() and (problem := taking.exception()) is not None:
            log.warning("version_refused", problem=str(problem))

    async def _newer(
        self, policy: str, told: Mapping[PolicyId, Version], after: Version | None
    ) -> dict[PolicyId, tuple[VersionNotice, ...]]:
        """Wait for versions that are newer than what was told of their policy, or than `after`.

        Raises: Unavailable when the store stops.
        """

        def found() -> dict[PolicyId, tuple[VersionNotice, ...]]:
            policies = (PolicyId(policy),) if policy else self._store.policies
            newer = {name: self._store.notices(name, after=told.get(name, after)) for name in policies}
            return {name: notices for name, notices in newer.items() if notices}

        async with self._changed:
            while not (notices := found()):
                if self._is_stopping:
                    raise Unavailable("the weight store is stopping")
                await self._changed.wait()
        return notices


async def _head(pieces: AsyncIterator[pb.PublishPiece]) -> pb.PublishHead:
    async for piece in pieces:
        if piece.WhichOneof("piece") == "head":
            return piece.head
        break
    raise InvalidInput("a publish begins with its head: manifest and transfer")


def _chunk(source: Source, offset: int, size_bytes: int) -> bytes:
    return frame_chunk(chunk_at(offset, source.read(offset, size_bytes)))


def _close_unused(opening: asyncio.Task[Source]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
