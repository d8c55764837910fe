"""The weight plane: what trainers, nodes and mirrors say to a weight store."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Manifest, Part, SharedFile, Transfer, TransferPlan, VersionNotice
from astraflow.wire.channel import Link
from astraflow.wire.codec_weights import (
    decode_chunk,
    decode_notice,
    decode_plan,
    encode_chunk,
    encode_manifest,
    encode_part,
    encode_shared,
    encode_transfer,
)
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub

TIMEOUT_S = 10.0
TRANSFER_TIMEOUT_S = 3600.0
"""Bound of one transfer; a broken one is resumed, so this only ends a peer that trickles for ever."""


class WeightPlaneClient:
    """Any side of the weight plane. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stub = WeightPlaneStub(link.channel)

    async def publish(
        self, manifest: Manifest, transfer: Transfer, chunks: Iterable[Chunk], *, shared: SharedFile | None = None
    ) -> bool:
        """Hand in a version, as a full snapshot or a delta; returns False if the store had it already.

        shared: its full bits in this host's memory, with which a full snapshot has no chunks.
        Raises: Conflict for other bits under a known version, UnknownVersion when the delta's base is not there, or
        the shared file cannot be mapped, CorruptData when what arrived does not match the manifest, StorageFull.
        """
        pieces = _publish_pieces(manifest, transfer, chunks, shared=shared)
        return (await self._link.call(self._stub.Publish, pieces, timeout_s=TRANSFER_TIMEOUT_S)).is_new

    async def publish_part(self, manifest: Manifest, part: Part, transfer: Transfer, chunks: Iterable[Chunk]) -> bool:
        """Hand in a part of a version, of which others send the rest; returns once all of it is durable, False if the
        store had the version already.

        transfer: of the part, in full or as a delta on the same part of the newest version.
        Raises: as `publish`; InvalidInput for a part that overlaps another; Unavailable when the rest does not come.
        """
        pieces = _publish_pieces(manifest, transfer, chunks, part=part)
        return (await self._link.call(self._stub.Publish, pieces, timeout_s=TRANSFER_TIMEOUT_S)).is_new

    async def watch(self, policy: PolicyId | None, *, after: Version | None) -> AsyncGenerator[VersionNotice, None]:
        """The latest version at once if it is newer than `after`, then every new one, for ever. None: of all."""
        request = pb.WatchRequest(policy=policy or "", after=after)
        async with aclosing(self._link.stream(self._stub.Watch, request, timeout_s=None)) as notices:
            async for notice in notices:
                yield decode_notice(notice)

    async def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None = None) -> TransferPlan:
        """The way with the fewest bytes from `have` to `want` (the latest by default). Raises: UnknownVersion."""
        request = pb.PlanRequest(policy=policy, have=have, want=want)
        return decode_plan(await self._link.call(self._stub.Plan, request, timeout_s=TIMEOUT_S))

    async def fetch(self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0) -> AsyncGenerator[Chunk, None]:
        """So many bytes of the encoded file from `offset` on, in order; 0 for all that follow.

        Raises: CorruptData for a bad chunk, UnknownVersion.
        """
        request = pb.FetchRequest(transfer=encode_transfer(transfer), offset=offset, size_bytes=size_bytes)
        async with aclosing(self._link.stream(self._stub.Fetch, request, timeout_s=TRANSFER_TIMEOUT_S)) as chunks:
            async for chunk in chunks:
                yield decode_chunk(chunk)

    async def versions(self, policy: PolicyId) -> tuple[VersionNotice, ...]:
        """Every version that is kept, oldest first; empty for a policy without any."""
        reply = await self._link.call(self._stub.Versions, pb.VersionsRequest(policy=policy), timeout_s=TIMEOUT_S)
        return tuple(decode_notice(notice) for notice in reply.versions)


def _publish_pieces(
    manifest: Manifest,
    transfer: Transfer,
    chunks: Iterable[Chunk],
    *,
    shared: SharedFile | None = None,
    part: Part | None = None,
) -> Iterator[pb.PublishPiece]:
    head = pb.PublishHead(
        manifest=encode_manifest(manifest),
        transfer=encode_transfer(transfer),
        shared=encode_shared(shared) if shared else None,
        part=encode_part(part) if part else None,
    )
    yield pb.PublishPiece(head=head)
    for chunk in chunks:
        yield pb.PublishPiece(chunk=encode_chunk(chunk))
