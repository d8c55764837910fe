"""Publishing a model that is spread over the ranks of several hosts: no rank, and no host, ever holds all of it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Probe, TransferKind
from astraflow.models.precision import torch_dtype_of
from astraflow.runtime.clock import Clock
from astraflow.trainer.backends.exchange import Exchange
from astraflow.trainer.backends.host_copy import HostCopy
from astraflow.trainer.backends.ranks import Ranks
from astraflow.trainer.backends.shards import held_shards
from astraflow.weights.buffers import Buffers
from astraflow.weights.part_publisher import PartPublisher
from astraflow.weights.parts import part_of
from astraflow.weights.publisher import PublishConfig
from astraflow.weights.signing import SigningKey
from astraflow.weights.tensors import (
    BITS,
    HASH_BYTES,
    BitArray,
    Buffer,
    Places,
    TensorShapes,
    lay_out,
    sealed_with,
    tensor_hashes,
)
from astraflow.wire.codec_weights import decode_manifest, encode_manifest
from astraflow.wire.pb import weight_plane_pb2 as pb

Result = TypeVar("Result")

LOST_S = 300.0
"""How long a rank may keep the others waiting before they take it for lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDraft:
    """What one rank holds of a version, copied off its device."""

    places: Places
    copy_s: float
    """The trainer stood still meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadStats:
    """What one publish took on this rank."""

    version: Version
    kind: TransferKind | None
    """How this rank's part travelled; None where it has none."""
    version_bytes: int
    part_bytes: int
    """Of the version, brought together and sent by this rank."""
    sent_bytes: int
    copy_s: float
    """Copying the shards off the device: only this holds the trainer up."""
    exchange_s: float
    """Bringing whole tensors together, over all ranks."""
    hash_s: float
    encode_s: float
    send_s: float
    """Until the store had the whole version durably."""
    is_new: bool
    """False when the store had this very version already."""


class SpreadPublisher:
    """Publishes the versions of one policy from all ranks of its model, each sending a part, beside the next step.

        snapshot: own shards off the device ─► publish: whole tensors, each brought together at one rank ─► hashed there
            ─► hashes to all, manifest signed by the first rank ─► own part sent, as a delta where that is smaller
            ─► the store has every part, proven as one version, durable ─► every rank is told

    An `async with`, on every rank; all publish the same versions in the same order. Only `snapshot` holds the trainer
    up, and it asks nobody. When a rank is lost the others raise Unavailable; begun again from one checkpoint, they
    publish the same bits once more, which is harmless.
    """

    def __init__(
        self,
        client: WeightPlaneClient,
        policy: PolicyId,
        parameters: Mapping[str, Tensor],
        *,
        dtype: Dtype,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        config: PublishConfig | None = None,
        signing: SigningKey | None = None,
        clock: Clock | None = None,
        lost_s: float = LOST_S,
    ) -> None:
        """Collective. parameters: by `state_dict` name, tied ones once; the same on every rank. group: all ranks of the
        model; None is the default group. signing: the run's key, which the first rank signs with; the others need none.

        Raises: InvalidInput for a placement that is neither Shard nor Replicate, or shards that do not make up the
        tensors.
        """
        self._policy = policy
        self._parameters = dict(parameters)
        self._dtype = dtype
        self._config = config or PublishConfig()
        self._signing = signing
        self._ranks = Ranks(group, timeout_s=lost_s)
        held = held_shards(self._parameters, is_first=self._ranks.is_first)
        self._specs = lay_out(self.published)
        self._exchange = Exchange(self._specs, {name: shard.box for name, shard in held.items()}, self._ranks)
        self._host_copy = HostCopy(device)
        self._shard_buffers, self._part_buffers = Buffers(), Buffers()
        self._sender = PartPublisher(client, policy, codec_threads=self._config.codec_threads, clock=clock)
        self._in_flight: asyncio.Task[SpreadStats] | None = None

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
    def published(self) -> TensorShapes:
        """The whole tensors, whatever part of them is here."""
        return {name: (self._dtype, tuple(parameter.shape)) for name, parameter in self._parameters.items()}

    def snapshot(self) -> ShardDraft:
        """Copy this rank's shards now: what the next step does cannot change them. Blocks for the copy alone."""
        began = time.perf_counter()
        held = held_shards(self._parameters, is_first=self._ranks.is_first)
        width = self._dtype.size_bytes
        buffer = self._shard_buffers.lend(max(1, width * sum(shard.box.elements for shard in held.values())))
        places: dict[str, BitArray] = {}
        at = 0
        for name, shard in held.items():
            end = at + width * shard.box.elements
            places[name] = buffer[at:end].view(BITS[width])
            at = end
        local = {name: shard.local for name, shard in held.items()}
        self._host_copy.write(local, places, torch_dtype_of(self._dtype))
        return ShardDraft(places=places, copy_s=time.perf_counter() - began)

    async def publish(
        self,
        version: Version,
        draft: ShardDraft,
        *,
        probe: Probe | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> SpreadStats | None:
        """Hand a snapshot over. Returns what the publish before it took, for which it waits.

        probe, metadata: the first rank's count. Raises: what `wait` raises for the publish before.
        """
        before = await self.wait()
        publishing = self._publish(version, draft, probe, metadata or {})
        self._in_flight = asyncio.create_task(publishing, name=f"publish {self._policy} {version}")
        return before

    async def wait(self) -> SpreadStats | None:
        """Until the store has the version handed over last; None when nothing is in flight.

        Raises: as `PartPublisher.publish`; Unavailable when a rank is gone.
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
        self, version: Version, draft: ShardDraft, probe: Probe | None, metadata: Mapping[str, str]
    ) -> SpreadStats:
        own = self._exchange.own
        bits = self._part_buffers.lend(max(1, sum(spec.size_bytes for spec in own)))
        _, exchange_s = await _timed(lambda: self._exchange.run(draft.places, bits))
        manifest, hash_s = await _timed(lambda: self._manifest(version, bits, probe, metadata))
        part = part_of(own)
        sent = await self._sender.publish(manifest, part, bits[: part.size_bytes]) if part is not None else None
        return SpreadStats(
            version=version,
            kind=sent.kind if sent else None,
            version_bytes=manifest.size_bytes,
            part_bytes=part.size_bytes if part else 0,
            sent_bytes=sent.sent_bytes if sent else 0,
            copy_s=draft.copy_s,
            exchange_s=exchange_s,
            hash_s=hash_s,
            encode_s=sent.encode_s if sent else 0.0,
            send_s=sent.send_s if sent else 0.0,
            is_new=sent.is_new if sent else False,
        )

    def _manifest(self, version: Version, bits: Buffer, probe: Probe | None, metadata: Mapping[str, str]) -> Manifest:
        """The same on every rank: each hashes its own tensors, the first one signs. Raises: InvalidInput."""
        own = self._exchange.own
        first = own[0].offset if own else 0
        hashes = tensor_hashes(own, bits, start=first, workers=self._config.codec_threads)
        all_hashes = [found for said in self._ranks.gathered(b"".join(hashes)) for found in _cut(said)]
        said = b""
        if self._ranks.is_first:
            manifest = sealed_with(
                self._specs, all_hashes, policy=self._policy, version=version, probe=probe, metadata=metadata
            )
            signed = manifest if self._signing is None else self._signing.signed(manifest)
            said = encode_manifest(signed).SerializeToString()
        told = decode_manifest(pb.Manifest.FromString(self._ranks.told(said)))
        if told.version != version:
            raise InvalidInput(f"this rank publishes version {version}, the first one version {told.version}")
        return told


def _cut(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


async def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Work in a thread, with the seconds it took."""
    began = time.perf_counter()
    result = await asyncio.to_thread(work)
    return result, time.perf_counter() - began
