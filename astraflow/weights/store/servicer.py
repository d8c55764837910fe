"""RPCs of the weight plane over a store."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc

from astraflow.contract.errors import InvalidInput, NotPermitted, RateLimited, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Part, SharedFile, Transfer, VersionNotice
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.codec.chunks import CHUNK_BYTES, chunk_at, unhashed_transfer
from astraflow.weights.store.file_readers import FileReader
from astraflow.weights.store.multipart_publishes import MultipartPublishes
from astraflow.weights.store.multipart_upload import MultipartUpload
from astraflow.weights.store.store import Upload, WeightStore
from astraflow.weights.tensors import VerifiedWeights
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.weights import decode_chunk, decode_manifest, decode_transfer, encode_plan, frame_chunk
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneServicer

log = get_logger()

MAX_UPLOADS = 4
"""Uploads of one policy that are received at the same time: one, and others whose publisher was cut off. Each holds the
memory of a version. Count."""

Context = grpc.aio.ServicerContext[Any, Any]


class WeightsServicer(WeightPlaneServicer):
    """Thin RPCs: decode, work in a thread, encode. A slow reader does not delay others."""

    def __init__(
        self,
        store: WeightStore,
        *,
        direct_delta_wait_s: float = 2.0,
        multipart_wait_s: float = 60.0,
        mirrored_store: str = "",
        clock: Clock | None = None,
    ) -> None:
        """mirrored_store: name of the store that this store mirrors, where versions are published instead; empty for
        none."""
        self._store = store
        self._multipart_publishes = MultipartPublishes(
            store.begin_multipart_upload, commit=self._commit_multipart, wait_s=multipart_wait_s, clock=clock
        )
        self._mirrored_store = mirrored_store
        self._direct_wait_s = direct_delta_wait_s
        self._changed = asyncio.Condition()
        self._is_stopping = False
        self._uploads: Counter[PolicyId] = Counter()
        """Uploads that are being received."""
        self._pending_commits: set[asyncio.Task[bool]] = set()
        self._retention_pending: dict[PolicyId, bool] = {}
        """Policies whose retention is running; True when it must run once more."""

    async def stop(self) -> None:
        """Ends open-ended streams, and waits until uploaded versions are stored."""
        async with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        await self._multipart_publishes.stop()
        await asyncio.gather(*self._pending_commits, return_exceptions=True)

    async def Publish(self, request_iterator: AsyncIterator[pb.PublishPiece], context: Context) -> pb.PublishReply:
        """Receives a version, or a part of one: head, then chunks."""
        if self._mirrored_store:
            raise NotPermitted(
                f"cannot publish here: this store mirrors {self._mirrored_store}; publish there",
                code="weights.mirror_is_read_only",
            )
        head = await _read_head(request_iterator)
        manifest, transfer = decode_manifest(head.manifest), decode_transfer(head.transfer)
        if head.HasField("part"):
            chunks = (decode_chunk(piece.chunk) async for piece in request_iterator)
            is_new = await self._multipart_publishes.publish(manifest, from_message(head.part, Part), transfer, chunks)
            return pb.PublishReply(is_new=is_new)
        shared = from_message(head.shared, SharedFile) if head.HasField("shared") else None
        with self._counting_upload(manifest.policy):
            upload = await asyncio.to_thread(self._store.begin_upload, manifest, transfer, shared=shared)
            if upload is None:
                return pb.PublishReply(is_new=False)
            async for piece in request_iterator:
                await asyncio.to_thread(upload.add, decode_chunk(piece.chunk))
            commit = asyncio.create_task(self._commit(upload, manifest, transfer))
            self._track(commit)
            return pb.PublishReply(is_new=await asyncio.shield(commit))  # completes even if the publisher disconnects

    @contextmanager
    def _counting_upload(self, policy: PolicyId) -> Iterator[None]:
        """Counts an upload that is being received. Raises: RateLimited."""
        if self._uploads[policy] >= MAX_UPLOADS:
            raise RateLimited(
                f"cannot publish a version of {policy!r} now: {MAX_UPLOADS} others are being received; retry when one "
                "has arrived",
                code="weights.too_many_uploads",
            )
        self._uploads[policy] += 1
        try:
            yield
        finally:
            self._uploads[policy] -= 1

    async def store_mirrored(self, weights: VerifiedWeights) -> None:
        """Stores a version that the mirror has fetched, and notifies its watchers.

        Raises: Conflict, CorruptData, NotTrusted, StorageFull, Unavailable; the store is then unchanged.
        """
        begun_copy = await asyncio.to_thread(self._store.begin_copy, weights)
        if begun_copy is not None:
            upload, transfer = begun_copy
            await self._commit(upload, weights.manifest, transfer)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.VersionNotice]:
        """Yields the newest version, then each later one; waits if the policy does not exist yet.

        Without a policy: versions of all policies.
        """
        after = Version(request.after) if request.HasField("after") else None
        sent_versions: dict[PolicyId, Version] = {}
        while True:
            for policy, notices in (await self._wait_for_newer(request.policy, sent_versions, after)).items():
                for notice in notices if policy in sent_versions else notices[-1:]:
                    yield to_message(notice, pb.VersionNotice)
                sent_versions[policy] = notices[-1].version

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanReply:
        """Returns the route with the fewest bytes; makes a direct delta first if that saves bytes."""
        have = Version(request.have) if request.HasField("have") else None
        want = Version(request.want) if request.HasField("want") else None
        policy = PolicyId(request.policy)
        encoding = await asyncio.to_thread(self._store.prepare_direct_delta, policy, have=have, want=want)
        if encoding is not None:
            await asyncio.wait([asyncio.wrap_future(encoding)], timeout=self._direct_wait_s)
        return encode_plan(await asyncio.to_thread(self._store.plan, policy, have=have, want=want))

    async def Fetch(  # type: ignore[override]  # (raw)
        self, request: pb.FetchRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Streams any range of a file; replies are encoded by hand (`wire.codecs.frames`)."""
        transfer = decode_transfer(request.transfer)
        end = request.offset + request.size_bytes if request.size_bytes else transfer.size_bytes
        if not request.offset <= end <= transfer.size_bytes:
            raise InvalidInput(
                f"cannot fetch bytes {request.offset} to {end}: the file has {transfer.size_bytes} bytes; request a "
                "range inside it",
                code="weights.range_beyond_file",
            )
        reader = await self._open(transfer)
        try:
            for offset in range(request.offset, end, CHUNK_BYTES):
                yield await asyncio.to_thread(_chunk, reader, offset, min(CHUNK_BYTES, end - offset))
        finally:
            reader.close()

    async def _open(self, transfer: Transfer) -> FileReader:
        """Opens a file; closes it again if the call is cancelled meanwhile."""
        opening = asyncio.create_task(asyncio.to_thread(self._store.open, transfer))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise

    async def Versions(self, request: pb.VersionsRequest, context: Context) -> pb.VersionsReply:
        notices = self._store.notices(PolicyId(request.policy))
        return pb.VersionsReply(versions=[to_message(notice, pb.VersionNotice) for notice in notices])

    async def _commit_multipart(self, upload: MultipartUpload) -> bool:
        """Stores a version of which all parts have arrived."""
        commit = asyncio.create_task(self._commit(upload, upload.manifest, unhashed_transfer(upload.manifest)))
        self._track(commit)
        return await asyncio.shield(commit)

    async def _commit(self, upload: Upload | MultipartUpload, manifest: Manifest, transfer: Transfer) -> bool:
        """Stores an upload and notifies the watchers; retention runs afterwards and does not delay the reply."""
        is_new = await asyncio.to_thread(upload.commit)
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
            self._track(asyncio.create_task(self._apply_retention(manifest.policy)))
        return is_new

    async def _apply_retention(self, policy: PolicyId) -> bool:
        """Runs once at a time per policy, and once more for requests that arrived during a run: storage may be slow."""
        is_running = policy in self._retention_pending
        self._retention_pending[policy] = True
        if is_running:
            return False
        try:
            while self._retention_pending[policy]:
                self._retention_pending[policy] = False
                await asyncio.to_thread(self._store.apply_retention, policy)
        finally:
            del self._retention_pending[policy]
        return True

    def _track(self, task: asyncio.Task[bool]) -> None:
        self._pending_commits.add(task)
        task.add_done_callback(self._on_commit_done)

    def _on_commit_done(self, commit: asyncio.Task[bool]) -> None:
        """Logs the error, because the publisher may have disconnected."""
        self._pending_commits.discard(commit)
        if not commit.cancelled() and (problem := commit.exception()) is not None:
            log.warning("version_refused", problem=str(problem))

    async def _wait_for_newer(
        self, policy: str, sent_versions: Mapping[PolicyId, Version], after: Version | None
    ) -> dict[PolicyId, tuple[VersionNotice, ...]]:
        """Waits for versions newer than those sent for their policy, or than `after`.

        Raises: Unavailable when the store stops.
        """

        def newer_notices() -> dict[PolicyId, tuple[VersionNotice, ...]]:
            policies = (PolicyId(policy),) if policy else self._store.policies
            newer = {name: self._store.notices(name, after=sent_versions.get(name, after)) for name in policies}
            return {name: notices for name, notices in newer.items() if notices}

        async with self._changed:
            while not (notices := newer_notices()):
                if self._is_stopping:
                    raise Unavailable(
                        "cannot watch versions: the weight store is stopping; try again later",
                        code="weights.store_stopping",
                    )
                await self._changed.wait()
        return notices


async def _read_head(pieces: AsyncIterator[pb.PublishPiece]) -> pb.PublishHead:
    async for piece in pieces:
        if piece.WhichOneof("piece") == "head":
            return piece.head
        break
    raise InvalidInput(
        "cannot publish: the first message has no head; send manifest and transfer first", code="weights.no_head"
    )


def _chunk(source: FileReader, offset: int, size_bytes: int) -> bytes:
    return frame_chunk(chunk_at(offset, source.read(offset, size_bytes)))


def _close_unused(opening: asyncio.Task[FileReader]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
