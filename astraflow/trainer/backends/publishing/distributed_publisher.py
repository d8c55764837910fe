"""Publishing of a model sharded over the ranks of several hosts: no rank and no host ever holds the whole model."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Probe, TransferKind
from astraflow.models.published import PublishedParts
from astraflow.runtime.clock import Clock, timed
from astraflow.trainer.backends.publishing.gloo_group import GlooGroup
from astraflow.trainer.backends.publishing.host_copy import HostCopy
from astraflow.trainer.backends.publishing.published_shards import PublishedShards
from astraflow.trainer.backends.publishing.shard_exchange import ShardExchange
from astraflow.weights.publish.part_publisher import PartPublisher
from astraflow.weights.publish.publisher import PublishConfig
from astraflow.weights.shared_memory import BufferPool
from astraflow.weights.signing import SigningKey
from astraflow.weights.tensors import (
    HASH_BYTES,
    Buffer,
    TensorShapes,
    TensorViews,
    lay_out,
    manifest_from_hashes,
    part_covering,
    tensor_bits,
    tensor_hashes,
)
from astraflow.wire.codecs.weights import decode_manifest, encode_manifest
from astraflow.wire.pb import weight_plane_pb2 as pb

RANK_TIMEOUT_S = 300.0
"""Seconds that ranks wait for another rank before they treat it as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedShards:
    """Shards of one rank at one version, copied off its device."""

    views: TensorViews
    copy_s: float
    """Duration of the copy, during which the trainer is paused. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedPublishStats:
    """Sizes and durations of one publish on this rank."""

    version: Version
    kind: TransferKind | None
    """Encoding of this rank's part; None when the rank has no part."""
    version_bytes: int
    part_bytes: int
    """Size of the part that this rank assembles and sends. Bytes."""
    sent_bytes: int
    copy_s: float
    """Copy of the shards off the device; the trainer is paused only for this. Seconds."""
    exchange_s: float
    """Assembly of whole tensors, over all ranks. Seconds."""
    hash_s: float
    encode_s: float
    send_s: float
    """Time until the store had persisted the whole version. Seconds."""
    is_new: bool
    """False when the store already had this version."""


class DistributedPublisher:
    """Publishes the versions of one policy from all ranks of its model; each rank sends a part during the next step.

        snapshot: own shards off the device ─► publish: each whole tensor is assembled at one rank ─► hashed there
            ─► hashes to all, manifest signed by the first rank ─► own part sent, as a delta where that is smaller
            ─► the store has every part, verified as one version, durable ─► every rank is notified

    Use as an `async with` on every rank; all publish the same versions in the same order. Only `snapshot` pauses the
    trainer, and it needs no communication. When a rank is lost the others raise Unavailable; restarted from one
    checkpoint, they publish the same bits again, which is harmless.
    """

    def __init__(
        self,
        client: WeightPlaneClient,
        policy: PolicyId,
        parameters: Mapping[str, Tensor],
        *,
        dtype: Dtype,
        device: torch.device,
        parts: PublishedParts | None = None,
        group: dist.ProcessGroup | None = None,
        config: PublishConfig | None = None,
        signing: SigningKey | None = None,
        clock: Clock | None = None,
        rank_timeout_s: float = RANK_TIMEOUT_S,
    ) -> None:
        """Collective. parameters: by `state_dict` name, tied parameters once; the same on every rank. parts: how they
        are published; None: whole. group: all ranks of the model; None is the default group. signing: the run's key,
        used by the first rank; None on the others.

        Raises: InvalidInput for a placement that is neither Shard nor Replicate, or shards that do not cover the
        tensors.
        """
        self._policy = policy
        self._published = PublishedShards(parameters, parts or {}, dtype)
        self._config = config or PublishConfig()
        self._signing = signing
        self._ranks = GlooGroup(group, timeout_s=rank_timeout_s)
        shards = self._published.local(is_first=self._ranks.is_first)
        self._specs = lay_out(self.published_shapes)
        self._exchange = ShardExchange(self._specs, {name: shard.box for name, shard in shards.items()}, self._ranks)
        self._host_copy = HostCopy(device)
        self._shard_buffers, self._part_buffers = BufferPool(), BufferPool()
        self._sender = PartPublisher(client, policy, codec_threads=self._config.codec_threads, clock=clock)
        self._in_flight: asyncio.Task[DistributedPublishStats] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.wait()
        elif self._in_flight is not None:
            self._in_flight.cancel()
            await asyncio.gather(self._in_flight, return_exceptions=True)

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes of the whole tensors, of which this rank may hold a part."""
        return self._published.tensor_shapes

    def snapshot(self) -> StagedShards:
        """Copies this rank's shards; later steps do not affect the copy. Blocks until it is complete."""
        began = time.perf_counter()
        shards, dtypes = self._published.local(is_first=self._ranks.is_first), self._published.dtypes
        specs = lay_out({name: (dtypes[name], shard.box.shape) for name, shard in shards.items()})
        buffer = self._shard_buffers.acquire(max(1, sum(spec.size_bytes for spec in specs)))
        views = {spec.name: tensor_bits(spec, buffer) for spec in specs}
        self._host_copy.write({name: shard.local for name, shard in shards.items()}, views, dtypes)
        return StagedShards(views=views, copy_s=time.perf_counter() - began)

    async def publish(
        self,
        version: Version,
        staged: StagedShards,
        *,
        probe: Probe | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> DistributedPublishStats | None:
        """Starts publishing a snapshot after the previous publish has ended, whose statistics it returns.

        probe, metadata: taken from the first rank. Raises: the errors of `wait` for the previous publish.
        """
        before = await self.wait()
        publishing = self._publish(version, staged, probe, metadata or {})
        self._in_flight = asyncio.create_task(publishing, name=f"publish {self._policy} {version}")
        return before

    async def wait(self) -> DistributedPublishStats | None:
        """Waits until the store has the latest version; returns its statistics, None when no publish is in progress.

        Raises: as `PartPublisher.publish`; Unavailable when a rank is lost.
        """
        if self._in_flight is None:
            return None
        task, self._in_flight = self._in_flight, None
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._in_flight = task
            raise

    async def _publish(
        self, version: Version, staged: StagedShards, probe: Probe | None, metadata: Mapping[str, str]
    ) -> DistributedPublishStats:
        own = self._exchange.own_specs
        bits = self._part_buffers.acquire(max(1, sum(spec.size_bytes for spec in own)))
        _, exchange_s = await timed(lambda: self._exchange.run(staged.views, bits))
        manifest, hash_s = await timed(lambda: self._manifest(version, bits, probe, metadata))
        part = part_covering(own)
        sent = await self._sender.publish(manifest, part, bits[: part.size_bytes]) if part is not None else None
        return DistributedPublishStats(
            version=version,
            kind=sent.kind if sent else None,
            version_bytes=manifest.size_bytes,
            part_bytes=part.size_bytes if part else 0,
            sent_bytes=sent.sent_bytes if sent else 0,
            copy_s=staged.copy_s,
            exchange_s=exchange_s,
            hash_s=hash_s,
            encode_s=sent.encode_s if sent else 0.0,
            send_s=sent.send_s if sent else 0.0,
            is_new=sent.is_new if sent else False,
        )

    def _manifest(self, version: Version, bits: Buffer, probe: Probe | None, metadata: Mapping[str, str]) -> Manifest:
        """Builds the manifest, equal on all ranks: each hashes its tensors, the first signs. Raises: InvalidInput."""
        own = self._exchange.own_specs
        first = own[0].offset if own else 0
        hashes = tensor_hashes(own, bits, start=first, workers=self._config.codec_threads)
        gathered = self._ranks.all_gather(b"".join(hashes))
        all_hashes = [tensor_hash for payload in gathered for tensor_hash in _split_hashes(payload)]
        payload = b""
        if self._ranks.is_first:
            manifest = manifest_from_hashes(
                self._specs, all_hashes, policy=self._policy, version=version, probe=probe, metadata=metadata
            )
            signed = manifest if self._signing is None else self._signing.sign(manifest)
            payload = encode_manifest(signed).SerializeToString()
        agreed = decode_manifest(pb.Manifest.FromString(self._ranks.broadcast(payload)))
        if agreed.version != version:
            raise InvalidInput(
                f"cannot publish version {version} from this rank: the first rank publishes version {agreed.version}; "
                "publish the same versions in the same order on every rank",
                code="weights.ranks_disagree",
            )
        return agreed


def _split_hashes(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
