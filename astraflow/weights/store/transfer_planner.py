"""Planning of transfers for readers: available routes, direct deltas instead of long chains, and their bytes."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, TransferKind, TransferPlan
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.codec.chunks import transfer_of
from astraflow.weights.codec.delta import Level, encode_delta
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared_memory import VersionBuffer
from astraflow.weights.store.direct_delta_cache import DirectDelta, DirectDeltaCache
from astraflow.weights.store.file_readers import FileReader
from astraflow.weights.store.reconstruction import rebuild
from astraflow.weights.store.records import Record, RouteSegment, cheapest_route, file_name
from astraflow.weights.store.retired_versions import RetiredVersions
from astraflow.weights.store.storage.base import Folder
from astraflow.weights.tensors import has_same_layout

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersions:
    """Stored versions of a policy. Replaced as a whole, so that readers in other threads see a consistent state."""

    records: Mapping[Version, Record]
    bits: VersionBuffer | None
    """Bits of the newest record; None when there is none."""

    @property
    def newest(self) -> Record | None:
        """Record of the newest version; None when there is none."""
        return self.records[max(self.records)] if self.records else None

    @property
    def base(self) -> tuple[Manifest, VersionBuffer] | None:
        """Manifest and bits that the next delta applies to; None when there are none."""
        return (self.newest.manifest, self.bits) if self.newest and self.bits is not None else None


class TransferPlanner:
    """Routes to one policy's versions. Methods block; any thread may call them."""

    def __init__(
        self,
        policy: PolicyId,
        folder: Folder,
        config: WeightsConfig,
        clock: Clock,
        direct_delta_cache: DirectDeltaCache,
    ) -> None:
        self._policy = policy
        self._folder = folder
        self._config = config
        self._direct_delta_cache = direct_delta_cache
        self._retired = RetiredVersions(config.retired_version_s, clock)
        self._newest_full: Transfer | None = None
        self._hash_lock = threading.Lock()

    def plan(self, state: StoredVersions, *, have: Version | None, want: Version | None) -> TransferPlan:
        """Returns the route with the fewest bytes. Raises: UnknownVersion."""
        record = self._target_record(state, want)
        route = cheapest_route(self._segments(state), have=have, want=record.version)
        is_newest = state.bits is not None and record is state.newest
        return TransferPlan(
            manifest=record.manifest,
            transfers=tuple(self._transfer(state, segment) for segment in route),
            shared=state.bits.file if is_newest and state.bits is not None else None,
        )

    def prepare_direct_delta(
        self, state: StoredVersions, *, have: Version | None, want: Version | None
    ) -> Future[None] | None:
        """Schedules a direct delta for a reader that would need several deltas; returns None when that gains nothing.

        Raises: UnknownVersion.
        """
        record = self._target_record(state, want)
        base = None if have is None else state.records.get(have)
        if base is None or record is not state.newest or state.bits is None or base.version >= record.version:
            return None
        if not has_same_layout(base.manifest, record.manifest):
            return None
        if self._count_deltas(state, base, record) < self._config.direct_delta_min_chain:
            return None
        bits = state.bits
        return self._direct_delta_cache.make(
            self._policy, base.version, record.version, lambda: self._encode_direct_delta(state, base, record, bits)
        )

    def open(self, state: StoredVersions, transfer: Transfer) -> FileReader:
        """Returns a reader of a transfer's bytes. Raises: UnknownVersion when they are no longer stored."""
        record = state.records.get(transfer.target)
        if record is not None and transfer in record.files:
            return self._folder.open(file_name(transfer))
        reader = self._open_full_in_memory(state, transfer) or self._direct_delta_cache.open(transfer)
        if reader is None:
            raise UnknownVersion(
                f"cannot open the {transfer.kind.value} file of version {transfer.target}: it is no longer stored; "
                "plan the transfer again",
                code="weights.file_removed",
            )
        return reader

    def release_retired(self) -> None:
        """Frees the bits of retired versions that were not read recently."""
        self._retired.prune(newest=None)

    def full_transfer_of_newest(self, newest: Record, bits: VersionBuffer) -> Transfer:
        """Returns the newest version's bits as a transfer; hashes them once, on the first call."""
        if newest.full is not None:
            return newest.full
        with self._hash_lock:
            cached = self._newest_full
            if cached is None or cached.target != newest.version:
                cached = transfer_of(newest.manifest, bits.buffer.data, base=None)
                self._newest_full = cached
            return cached

    def _open_full_in_memory(self, state: StoredVersions, transfer: Transfer) -> FileReader | None:
        newest, bits = state.newest, state.bits
        if transfer.kind is not TransferKind.FULL:
            return None
        if newest is not None and bits is not None and transfer.target == newest.version:
            return (
                self._retired.open(transfer, bits) if transfer == self.full_transfer_of_newest(newest, bits) else None
            )
        return self._retired.open(transfer)

    def _encode_direct_delta(
        self, state: StoredVersions, base: Record, target: Record, bits: VersionBuffer
    ) -> DirectDelta | None:
        workers = self._config.codec_threads
        old = rebuild(
            self._folder, state.records, base.version, into=lambda n: np.empty(n, dtype=np.uint8), workers=workers
        )
        delta = encode_delta(base.manifest, old, target.manifest, bits.buffer, level=Level.DENSE, workers=workers)
        data = delta.data
        if len(data) >= target.manifest.size_bytes:
            return None
        log.debug(
            "direct_delta_encoded", policy=self._policy, base=base.version, target=target.version, bytes=len(data)
        )
        return DirectDelta(transfer=transfer_of(target.manifest, data, base=base.version), data=data)

    def _count_deltas(self, state: StoredVersions, base: Record, target: Record) -> int:
        """Returns the number of deltas that a reader would need; the number of versions where no deltas lead there."""
        deltas = [segment for segment in self._segments(state) if segment.base is not None]
        try:
            return len(cheapest_route(deltas, have=base.version, want=target.version))
        except UnknownVersion:
            return target.version - base.version

    def _target_record(self, state: StoredVersions, want: Version | None) -> Record:
        record = state.newest if want is None else state.records.get(want)
        if record is None:
            stored = f"{min(state.records)} to {max(state.records)}" if state.records else "none"
            raise UnknownVersion(
                f"cannot plan a transfer of version {want}: it is not stored; stored versions: {stored}",
                code="weights.version_not_stored",
            )
        return record

    def _segments(self, state: StoredVersions) -> list[RouteSegment]:
        segments = [segment for record in state.records.values() for segment in record.segments]
        if state.newest is not None and state.bits is not None:
            size_bytes = state.newest.manifest.size_bytes
            segments.append(RouteSegment(target=state.newest.version, base=None, size_bytes=size_bytes))
        return [*segments, *self._direct_delta_cache.segments(self._policy)]

    def _transfer(self, state: StoredVersions, segment: RouteSegment) -> Transfer:
        record = state.records[segment.target]
        transfer = next((file for file in record.files if file.base == segment.base), None)
        if transfer is None and segment.base is not None:
            transfer = self._direct_delta_cache.transfer(self._policy, segment.base, segment.target)
        if transfer is None and segment.base is None and record is state.newest and state.bits is not None:
            transfer = self.full_transfer_of_newest(record, state.bits)
        if transfer is None:
            raise UnknownVersion(
                f"cannot plan a transfer of version {segment.target}: a file was just removed; plan again",
                code="weights.file_removed",
            )
        return transfer
