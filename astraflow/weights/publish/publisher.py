"""Publisher of the trainer: publishes versions during the next step, as deltas where that is smaller."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, StorageFull, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Probe, SharedFile, Transfer, TransferKind
from astraflow.runtime.clock import Clock, SystemClock, timed
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT, retry
from astraflow.runtime.tracing import span
from astraflow.weights.codec.chunks import split, transfer_of, unhashed_transfer
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.publish.staging_buffers import StagedVersion, StagingBuffer, StagingBufferPool
from astraflow.weights.shared_memory import remove_unused_buffers
from astraflow.weights.signing import SigningKey
from astraflow.weights.store.upload_verification import changed_elements
from astraflow.weights.tensors import (
    SnapshotTensors,
    TensorShapes,
    fill,
    has_same_layout,
    hash_into_manifest,
    lay_out,
    shapes_of,
    width_regions,
)

log = get_logger()


class PublishConfig(Config):
    """Options of a publisher."""

    is_shared: Annotated[bool, SettableBy.RECIPE] = True
    """Write versions to shared memory, which a store and readers on the same host map without a copy."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that hash and encode a version during the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStats:
    """Sizes and durations of one publish."""

    version: Version
    kind: TransferKind
    is_shared: bool
    """True when the store took the version's bits from shared memory."""
    full_bytes: int
    sent_bytes: int
    """Bytes of the accepted file that were sent in chunks; retries are not counted."""
    changed_elements: int
    elements: int
    """Elements of the version, of which `changed_elements` differ from the previous version; both 0 without one."""
    copy_s: float
    """Copy of the weights off the device; the trainer is paused only for this. Seconds."""
    hash_s: float
    encode_s: float
    """Encoding of the delta. Seconds; 0 where the store maps the bits, and encodes it itself."""
    send_s: float
    """Time until the store had persisted the version, retries included. Seconds."""
    is_new: bool
    """False when the store already had this version."""


class Publisher:
    """Publishes the versions of one policy, at most one at a time, while the trainer continues.

    Use as an `async with`: the exit waits for the publish in progress, or cancels it on an error. The trainer requests
    a staging buffer, writes its weights to it, which is the only copy on this host, and publishes it:

        staged ─► written ─► publish: hashed ─► offered to the store ─► base of the next version ─► reused
                             (during the next step)                                      when it has no readers

    A store on this host maps the bits, and encodes the delta itself. Other stores receive deltas, for which the last
    published bits stay in their buffer; the first version after a restart is sent in full.
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
        """signing: the run's key, which signs every manifest; None in a run without signatures."""
        self._client = client
        self._policy = policy
        self._config = config or PublishConfig()
        self._signing = signing
        self._clock = clock or SystemClock()
        self._buffers = StagingBufferPool(is_shared=self._config.is_shared)
        self._is_store_local = True
        """False once the store could not map this host's memory."""
        self._base: tuple[Manifest, StagingBuffer] | None = None
        self._in_flight: asyncio.Task[PublishStats] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(remove_unused_buffers)
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

    async def begin_version(self, shapes: TensorShapes) -> StagedVersion:
        """Returns a staging buffer for the next version; each must be published."""
        specs = lay_out(shapes)
        size_bytes = sum(spec.size_bytes for spec in specs)
        buffer = self._buffers.take_prepared(size_bytes)
        if buffer is None:
            buffer = await asyncio.to_thread(self._buffers.take, size_bytes)
        return StagedVersion(specs, buffer)

    async def publish(
        self,
        version: Version,
        weights: StagedVersion | SnapshotTensors,
        *,
        probe: Probe | None = None,
        metadata: Mapping[str, str] | None = None,
        after: Awaitable[object] | None = None,
    ) -> PublishStats | None:
        """Publishes a staged version, which must not change afterwards. Returns the statistics of the previous publish.

        Arrays are copied to a staging buffer first. Waits only while the previous publish is in progress. Publishing
        the same bits again is harmless. after: the version is hashed, but not sent before this has a result; its
        exception ends the publish. Raises: the errors of `wait` for the previous publish; InvalidInput for arrays that
        do not match their shapes.
        """
        before = await self.wait()
        staged = weights if isinstance(weights, StagedVersion) else await self._stage_tensors(weights)
        publishing = self._publish_traced(version, staged, probe, metadata or {}, after)
        self._in_flight = asyncio.create_task(publishing, name=f"publish {self._policy} {version}")
        return before

    async def wait(self) -> PublishStats | None:
        """Waits until the store has the latest version; returns its statistics, None when no publish is in progress.

        Retries without limit while the store is unreachable or its disk is full.
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

    async def _stage_tensors(self, tensors: SnapshotTensors) -> StagedVersion:
        staged = await self.begin_version(shapes_of(tensors))

        def write() -> None:
            with staged.open_for_writing():
                fill(staged.specs, staged.buffer.writable, tensors)

        try:
            await asyncio.to_thread(write)
        except BaseException:
            self._buffers.release(staged.buffer)
            raise
        return staged

    async def _publish_traced(
        self,
        version: Version,
        staged: StagedVersion,
        probe: Probe | None,
        metadata: Mapping[str, str],
        after: Awaitable[object] | None,
    ) -> PublishStats:
        with span("rl.publish", version=f"{self._policy}:{version}") as hop:
            stats = await self._publish(version, staged, probe, metadata, after)
            hop.annotate(bytes=stats.sent_bytes, kind=stats.kind.value, is_shared=stats.is_shared)
            return stats

    async def _publish(
        self,
        version: Version,
        staged: StagedVersion,
        probe: Probe | None,
        metadata: Mapping[str, str],
        after: Awaitable[object] | None,
    ) -> PublishStats:
        buffer = staged.buffer
        try:
            manifest, hash_s = await timed(lambda: self._build_manifest(version, staged, probe, metadata))
            if after is not None:
                await asyncio.shield(after)
            buffer.share()
            began = time.perf_counter()
            options = _UploadOptions(manifest, buffer, self._base, workers=self._config.codec_threads)
            option, is_new = await self._send_first_accepted(options)
            send_s = time.perf_counter() - began - options.encode_s
            changed = await asyncio.to_thread(options.changed_elements)
        except BaseException:
            self._buffers.release(buffer)
            raise
        if self._base is not None:
            self._buffers.release(self._base[1])
        self._base = (manifest, buffer)
        await asyncio.to_thread(self._buffers.prepare_next, manifest.size_bytes)
        stats = PublishStats(
            version=version,
            kind=option.transfer.kind,
            is_shared=option.shared is not None,
            full_bytes=manifest.size_bytes,
            sent_bytes=len(option.data),
            changed_elements=changed or 0,
            elements=sum(region.elements for region in width_regions(manifest)) if changed is not None else 0,
            copy_s=staged.copy_s,
            hash_s=hash_s,
            encode_s=options.encode_s,
            send_s=send_s,
            is_new=is_new,
        )
        log.debug(
            "publish_finished", policy=self._policy, version=version, kind=stats.kind.value, bytes=stats.sent_bytes
        )
        return stats

    def _build_manifest(
        self, version: Version, staged: StagedVersion, probe: Probe | None, metadata: Mapping[str, str]
    ) -> Manifest:
        manifest = hash_into_manifest(
            staged.specs,
            staged.buffer.bits,
            policy=self._policy,
            version=version,
            probe=probe,
            metadata=metadata,
            workers=self._config.codec_threads,
        )
        return manifest if self._signing is None else self._signing.sign(manifest)

    async def _send_first_accepted(self, options: "_UploadOptions") -> tuple["_UploadOption", bool]:
        """Returns the first option that the store accepts, and whether the version was new to it."""
        manifest = options.manifest
        remaining = options.by_bytes_sent(is_shared=self._is_store_local)
        option = await asyncio.to_thread(next, remaining)
        while True:
            try:
                return option, await self._send(manifest, option)
            except (UnknownVersion, CorruptData) as problem:
                following = await asyncio.to_thread(next, remaining, None)
                if following is None:
                    raise
                log.info("publish_fallback", policy=self._policy, version=manifest.version, problem=str(problem))
                if option.shared is not None:
                    self._is_store_local = False
                    log.warning("store_cannot_map_shared_memory", policy=self._policy, problem=str(problem))
                option = following

    async def _send(self, manifest: Manifest, option: "_UploadOption") -> bool:
        return await retry(
            lambda: self._client.publish(manifest, option.transfer, split(option.data), shared=option.shared),
            what=f"publishing {self._policy} version {manifest.version}",
            retry_on=(*TRANSIENT, StorageFull),
            clock=self._clock,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _UploadOption:
    """One way to send a version: its transfer, the chunks' bytes, and the shared-memory file, if any."""

    transfer: Transfer
    data: memoryview
    shared: SharedFile | None = None


class _UploadOptions:
    """Ways to send one version, prepared on demand: a store that maps the bits encodes the delta itself."""

    def __init__(
        self, manifest: Manifest, buffer: StagingBuffer, base: tuple[Manifest, StagingBuffer] | None, *, workers: int
    ) -> None:
        self.manifest = manifest
        self.encode_s = 0.0
        """Duration of encoding the delta, if it was encoded. Seconds."""
        self._buffer = buffer
        self._base = base
        self._workers = workers
        self._changed: int | None = None

    def changed_elements(self) -> int | None:
        """Returns the number of elements that differ from the previous version; None without one of the same layout."""
        if self._changed is None and self._base is not None and has_same_layout(self._base[0], self.manifest):
            self._changed = changed_elements(self.manifest, self._base[1].bits, self._buffer.bits)
        return self._changed

    def by_bytes_sent(self, *, is_shared: bool) -> Iterator[_UploadOption]:
        """Yields options in order of their bytes through gRPC. A store that cannot map the file, or lacks the delta's
        base, rejects an option. Slow: compares and hashes versions."""
        file = self._buffer.file if is_shared else None
        if file is not None:
            yield _UploadOption(transfer=unhashed_transfer(self.manifest), data=memoryview(b""), shared=file)
        delta = self._delta()
        if delta is not None:
            yield delta
        bits = self._buffer.bits.data
        yield _UploadOption(transfer=transfer_of(self.manifest, bits, base=None), data=bits)

    def _delta(self) -> _UploadOption | None:
        """Returns the delta from the previous version, if it is smaller than the version."""
        if self._base is None or not has_same_layout(self._base[0], self.manifest):
            return None
        base, old = self._base
        began = time.perf_counter()
        delta = encode_delta(base, old.bits, self.manifest, self._buffer.bits, workers=self._workers)
        self.encode_s = time.perf_counter() - began
        self._changed = delta.changed_elements
        if len(delta.data) >= self.manifest.size_bytes:
            return None
        return _UploadOption(
            transfer=transfer_of(self.manifest, delta.data, base=base.version), data=memoryview(delta.data)
        )
