"""The trainer's side: publishes versions beside the training, as deltas where that is smaller."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from pydantic import Field

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, StorageFull, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Probe, SharedFile, Transfer, TransferKind
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config import Config
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.weights.chunks import announced, split, transfer_of
from astraflow.weights.delta import encode_delta
from astraflow.weights.drafts import Draft, DraftBuffer, DraftBuffers
from astraflow.weights.intake import changed_elements
from astraflow.weights.shared import sweep
from astraflow.weights.signing import SigningKey
from astraflow.weights.tensors import (
    SnapshotTensors,
    TensorShapes,
    fill,
    has_same_layout,
    lay_out,
    runs,
    seal,
    shapes_of,
)

log = get_logger()

Result = TypeVar("Result")


class PublishConfig(Config):
    """How a trainer publishes."""

    is_shared: bool = True
    """Versions are written to shared memory, from where a store and readers on this host take them without a copy."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that hash and encode one version beside the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStats:
    """What one publish took."""

    version: Version
    kind: TransferKind
    is_shared: bool
    """Whether the store took the version's bits from shared memory."""
    full_bytes: int
    sent_bytes: int
    """In chunks, of the file that was accepted; retries are not counted."""
    changed_elements: int
    elements: int
    """Elements whose bits differ from the version before, of how many; both 0 when there is none to compare with."""
    copy_s: float
    """Copying the weights off the device: only this holds the trainer up."""
    hash_s: float
    encode_s: float
    """Making the delta; 0 where the store maps the bits, and makes it itself."""
    send_s: float
    """Until the store had it durably, retries included."""
    is_new: bool
    """False when the store had this very version already."""


class Publisher:
    """Publishes the versions of one policy, at most one at a time, while the trainer goes on.

    An `async with`: leaving it waits for the publish in flight, or cancels it when leaving on an error. The trainer
    asks for a draft, writes its weights there, which is the only copy there is on this host, and hands it over:

        draft ─► written ─► publish: hashed ─► offered to the store ─► base of the next version ─► reused
                            (beside the next step)                                       when nobody reads it

    A store on this host maps the bits, and makes the delta itself. Elsewhere versions travel as deltas, for which the
    bits that were published last stay in their buffer; the first one after a restart travels in full.
    """

    def __init__(
        self,
        client: WeightPlaneClient,
        policy: PolicyId,
        *,
        config: PublishConfig | None = None,
        signing: SigningKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        """signing: the run's key, with which every manifest is signed; None in a run that does not sign."""
        self._client = client
        self._policy = policy
        self._config = config or PublishConfig()
        self._signing = signing
        self._clock = clock or SystemClock()
        self._buffers = DraftBuffers(is_shared=self._config.is_shared)
        self._is_store_here = True
        """Until it turns out that the store cannot map this host's memory."""
        self._base: tuple[Manifest, DraftBuffer] | None = None
        self._in_flight: asyncio.Task[PublishStats] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(sweep)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.wait()
            elif self._in_flight is not None:
                self._in_flight.cancel()
                await asyncio.gather(self._in_flight, return_exceptions=True)
        finally:
            self._buffers.close()

    async def draft(self, shapes: TensorShapes) -> Draft:
        """Places to write the next version to; each draft is to be published."""
        specs = lay_out(shapes)
        size_bytes = sum(spec.size_bytes for spec in specs)
        buffer = self._buffers.take_ready(size_bytes)
        if buffer is None:
            buffer = await asyncio.to_thread(self._buffers.take, size_bytes)
        return Draft(specs, buffer)

    async def publish(
        self,
        version: Version,
        weights: Draft | SnapshotTensors,
        *,
        probe: Probe | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PublishStats | None:
        """Hand a written draft over; nobody may change it any more. Returns what the publish before it took.

        Arrays are copied to a draft first. Waits only while the publish before is still in flight. Publishing the same
        bits again is harmless. Raises: what `wait` raises for the publish before; InvalidInput for arrays that do not
        fit their shapes.
        """
        before = await self.wait()
        draft = weights if isinstance(weights, Draft) else await self._drafted(weights)
        publishing = self._publish_traced(version, draft, probe, metadata or {})
        self._in_flight = asyncio.create_task(publishing, name=f"publish {self._policy} {version}")
        return before

    async def wait(self) -> PublishStats | None:
        """Until the store has the version handed over last; None when nothing is in flight.

        A store that cannot be reached, or whose disk is full, is tried again for ever.
        Raises: Conflict when the store has other bits under that version; InvalidInput when it is not the next one.
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

    async def _drafted(self, tensors: SnapshotTensors) -> Draft:
        draft = await self.draft(shapes_of(tensors))

        def write() -> None:
            with draft.writing():
                fill(draft.specs, draft.buffer.writable, tensors)

        try:
            await asyncio.to_thread(write)
        except BaseException:
            self._buffers.give_back(draft.buffer)
            raise
        return draft

    async def _publish_traced(
        self, version: Version, draft: Draft, probe: Probe | None, metadata: Mapping[str, str]
    ) -> PublishStats:
        with span("rl.publish", version=f"{self._policy}:{version}") as hop:
            stats = await self._publish(version, draft, probe, metadata)
            hop.note(bytes=stats.sent_bytes, kind=stats.kind.value, is_shared=stats.is_shared)
            return stats

    async def _publish(
        self, version: Version, draft: Draft, probe: Probe | None, metadata: Mapping[str, str]
    ) -> PublishStats:
        buffer = draft.buffer
        try:
            manifest, hash_s = await _timed(lambda: self._sealed(version, draft, probe, metadata))
            buffer.show()
            began = time.perf_counter()
            offers = _Offers(manifest, buffer, self._base, workers=self._config.codec_threads)
            offer, is_new = await self._sent(offers)
            send_s = time.perf_counter() - began - offers.encode_s
            changed = await asyncio.to_thread(offers.changed_elements)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        if self._base is not None:
            self._buffers.give_back(self._base[1])
        self._base = (manifest, buffer)
        await asyncio.to_thread(self._buffers.make_ready, manifest.size_bytes)
        stats = PublishStats(
            version=version,
            kind=offer.transfer.kind,
            is_shared=offer.shared is not None,
            full_bytes=manifest.size_bytes,
            sent_bytes=len(offer.data),
            changed_elements=changed or 0,
            elements=sum(run.elements for run in runs(manifest)) if changed is not None else 0,
            copy_s=draft.copy_s,
            hash_s=hash_s,
            encode_s=offers.encode_s,
            send_s=send_s,
            is_new=is_new,
        )
        log.debug("published", policy=self._policy, version=version, kind=stats.kind.value, bytes=stats.sent_bytes)
        return stats

    def _sealed(self, version: Version, draft: Draft, probe: Probe | None, metadata: Mapping[str, str]) -> Manifest:
        manifest = seal(
            draft.specs,
            draft.buffer.bits,
            policy=self._policy,
            version=version,
            probe=probe,
            metadata=metadata,
            workers=self._config.codec_threads,
        )
        return manifest if self._signing is None else self._signing.signed(manifest)

    async def _sent(self, offers: "_Offers") -> tuple["_Offer", bool]:
        """The first offer that the store takes, and whether the version was new to it."""
        manifest = offers.manifest
        remaining = offers.in_order(is_shared=self._is_store_here)
        offer = await asyncio.to_thread(next, remaining)
        while True:
            try:
                return offer, await self._send(manifest, offer)
            except (UnknownVersion, CorruptData) as problem:
                following = await asyncio.to_thread(next, remaining, None)
                if following is None:
                    raise
                log.info("publishing_otherwise", policy=self._policy, version=manifest.version, problem=str(problem))
                if offer.shared is not None:
                    self._is_store_here = False
                    log.warning("store_maps_nothing", policy=self._policy, problem=str(problem))
                offer = following

    async def _send(self, manifest: Manifest, offer: "_Offer") -> bool:
        return await retry(
            lambda: self._client.publish(manifest, offer.transfer, split(offer.data), shared=offer.shared),
            what=f"publishing {self._policy} version {manifest.version}",
            retry_on=(*TRANSIENT, StorageFull),
            clock=self._clock,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """One way to hand a version in: what it is, the chunks' bytes, and the file in shared memory that goes with it."""

    transfer: Transfer
    data: memoryview
    shared: SharedFile | None = None


class _Offers:
    """The ways to hand one version in. What one takes is made when its turn comes: a store that maps the bits makes the
    delta itself."""

    def __init__(
        self, manifest: Manifest, buffer: DraftBuffer, base: tuple[Manifest, DraftBuffer] | None, *, workers: int
    ) -> None:
        self.manifest = manifest
        self.encode_s = 0.0
        """What making the delta took, if it was made."""
        self._buffer = buffer
        self._base = base
        self._workers = workers
        self._changed: int | None = None

    def changed_elements(self) -> int | None:
        """How many differ from the version before; None where there is none like it. Compares, if no delta was made."""
        if self._changed is None and self._base is not None and has_same_layout(self._base[0], self.manifest):
            self._changed = changed_elements(self.manifest, self._base[1].bits, self._buffer.bits)
        return self._changed

    def in_order(self, *, is_shared: bool) -> Iterator[_Offer]:
        """From the fewest bytes through gRPC to the most. A store that cannot map the file, or lacks the delta's base,
        refuses. Slow: versions are compared and hashed."""
        file = self._buffer.file if is_shared else None
        if file is not None:
            yield _Offer(transfer=announced(self.manifest), data=memoryview(b""), shared=file)
        delta = self._delta()
        if delta is not None:
            yield delta
        bits = self._buffer.bits.data
        yield _Offer(transfer=transfer_of(self.manifest, bits, base=None), data=bits)

    def _delta(self) -> _Offer | None:
        """The way from the version before, if that is smaller than the version."""
        if self._base is None or not has_same_layout(self._base[0], self.manifest):
            return None
        base, old = self._base
        began = time.perf_counter()
        delta = encode_delta(base, old.bits, self.manifest, self._buffer.bits, workers=self._workers)
        self.encode_s = time.perf_counter() - began
        self._changed = delta.changed_elements
        if len(delta.data) >= self.manifest.size_bytes:
            return None
        return _Offer(transfer=transfer_of(self.manifest, delta.data, base=base.version), data=memoryview(delta.data))


async def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Work in a thread, with the seconds it took."""
    began = time.perf_counter()
    result = await asyncio.to_thread(work)
    return result, time.perf_counter() - began
