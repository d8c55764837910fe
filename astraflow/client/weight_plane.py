"""Client of the weight plane, for trainers, nodes and mirrors."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Manifest, Part, SharedFile, Transfer, TransferPlan, VersionNotice
from astraflow.wire.channel import ServiceChannel
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.weights import decode_chunk, decode_plan, encode_chunk, encode_manifest, encode_transfer
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub

TIMEOUT_S = 10.0
TRANSFER_TIMEOUT_S = 3600.0
"""Time limit of one transfer. Interrupted transfers are resumed, so this only ends one with a peer that is nearly
stalled."""


class WeightPlaneClient:
    """Weight plane client for all roles. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated."""

    def __init__(self, link: ServiceChannel) -> None:
        self._link = link
        self._stub = WeightPlaneStub(link.channel)

    async def publish(
        self, manifest: Manifest, transfer: Transfer, chunks: Iterable[Chunk], *, shared: SharedFile | None = None
    ) -> bool:
        """Publishes a version as a full snapshot or a delta; returns False if the store had it already.

        shared: the full bits of the version in this host's shared memory; a full snapshot then has no chunks. Raises:
        Conflict for other bits under a known version, UnknownVersion when the delta's base is missing or the shared
        file cannot be mapped, CorruptData when the data does not match the manifest, StorageFull.
        """
        pieces = _publish_pieces(manifest, transfer, chunks, shared=shared)
        return (await self._link.call(self._stub.Publish, pieces, timeout_s=TRANSFER_TIMEOUT_S)).is_new

    async def publish_part(self, manifest: Manifest, part: Part, transfer: Transfer, chunks: Iterable[Chunk]) -> bool:
        """Publishes a part of a version; other publishers send the other parts. Returns once the version is durable;
        False if the store had it already.

        transfer: the part in full, or a delta on the same part of the newest version. Raises: as `publish`;
        InvalidInput for overlapping parts; Unavailable when the rest does not arrive.
        """
        pieces = _publish_pieces(manifest, transfer, chunks, part=part)
        return (await self._link.call(self._stub.Publish, pieces, timeout_s=TRANSFER_TIMEOUT_S)).is_new

    async def watch(self, policy: PolicyId | None, *, after: Version | None) -> AsyncGenerator[VersionNotice, None]:
        """Yields the latest version at once if it is newer than `after`, then every new version, until it is cancelled.

        policy: None for all policies.
        """
        request = pb.WatchRequest(policy=policy or "", after=after)
        async with aclosing(self._link.stream(self._stub.Watch, request, timeout_s=None)) as notices:
            async for notice in notices:
                yield from_message(notice, VersionNotice)

    async def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None = None) -> TransferPlan:
        """Returns the transfer plan with the fewest bytes from `have` to `want` (default: the latest). Raises:
        UnknownVersion."""
        request = pb.PlanRequest(policy=policy, have=have, want=want)
        return decode_plan(await self._link.call(self._stub.Plan, request, timeout_s=TIMEOUT_S))

    async def fetch(self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0) -> AsyncGenerator[Chunk, None]:
        """Yields chunks of the encoded file from `offset` on, in order. size_bytes: 0 for the rest of the file.

        Raises: CorruptData for a corrupt chunk, UnknownVersion.
        """
        request = pb.FetchRequest(transfer=encode_transfer(transfer), offset=offset, size_bytes=size_bytes)
        async with aclosing(self._link.stream(self._stub.Fetch, request, timeout_s=TRANSFER_TIMEOUT_S)) as chunks:
            async for chunk in chunks:
                yield decode_chunk(chunk)

    async def versions(self, policy: PolicyId) -> tuple[VersionNotice, ...]:
        """Returns the stored versions, oldest first; empty for a policy without any."""
        reply = await self._link.call(self._stub.Versions, pb.VersionsRequest(policy=policy), timeout_s=TIMEOUT_S)
        return tuple(from_message(notice, VersionNotice) for notice in reply.versions)


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
        shared=to_message(shared, pb.SharedFile) if shared else None,
        part=to_message(part, pb.Part) if part else None,
    )
    yield pb.PublishPiece(head=head)
    for chunk in chunks:
        yield pb.PublishPiece(chunk=encode_chunk(chunk))
