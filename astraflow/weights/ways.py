"""How readers get to a version: the ways there are, one made where several deltas would be taken, and their bytes."""

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
from astraflow.weights.bits import Bits
from astraflow.weights.chunks import transfer_of
from astraflow.weights.config import WeightsConfig
from astraflow.weights.delta import Level, encode_delta
from astraflow.weights.direct import Direct, DirectDeltas
from astraflow.weights.keeping.base import Folder
from astraflow.weights.lingering import Lingering
from astraflow.weights.plan import Leg, cheapest_way
from astraflow.weights.rebuilding import rebuild
from astraflow.weights.records import Record, file_name
from astraflow.weights.sources import Source
from astraflow.weights.tensors import has_same_layout

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What is kept of a policy. Replaced as a whole, so that readers in other threads see one that fits together."""

    records: Mapping[Version, Record]
    bits: Bits | None
    """Of the newest record."""

    @property
    def newest(self) -> Record | None:
        """The record of the newest version."""
        return self.records[max(self.records)] if self.records else None

    @property
    def base(self) -> tuple[Manifest, Bits] | None:
        """What the next version is a step from."""
        return (self.newest.manifest, self.bits) if self.newest and self.bits is not None else None


class Ways:
    """The ways to one policy's versions. Methods block; any thread may call them."""

    def __init__(
        self, policy: PolicyId, folder: Folder, config: WeightsConfig, clock: Clock, directs: DirectDeltas
    ) -> None:
        self._policy = policy
        self._folder = folder
        self._config = config
        self._directs = directs
        self._lingering = Lingering(config.linger_s, clock)
        self._newest_full: Transfer | None = None
        self._hashing = threading.Lock()

    def plan(self, state: Versions, *, have: Version | None, want: Version | None) -> TransferPlan:
        """The way with the fewest bytes. Raises: UnknownVersion."""
        record = self._wanted(state, want)
        way = cheapest_way(self._legs(state), have=have, want=record.version)
        is_newest = state.bits is not None and record is state.newest
        return TransferPlan(
            manifest=record.manifest,
            transfers=tuple(self._transfer(state, leg) for leg in way),
            shared=state.bits.file if is_newest and state.bits is not None else None,
        )

    def shorten(self, state: Versions, *, have: Version | None, want: Version | None) -> Future[None] | None:
        """Have one delta made for a reader whose way would take several; None when there is nothing to gain.

        Raises: UnknownVersion.
        """
        record = self._wanted(state, want)
        base = None if have is None else state.records.get(have)
        if base is None or record is not state.newest or state.bits is None or base.version >= record.version:
            return None
        if not has_same_layout(base.manifest, record.manifest):
            return None
        if self._deltas_between(state, base, record) < self._config.direct_after:
            return None
        bits = state.bits
        return self._directs.make(
            self._policy, base.version, record.version, lambda: self._direct(state, base, record, bits)
        )

    def open(self, state: Versions, transfer: Transfer) -> Source:
        """The bytes of a transfer. Raises: UnknownVersion when they are no longer kept."""
        record = state.records.get(transfer.target)
        if record is not None and transfer in record.files:
            return self._folder.open(file_name(transfer))
        source = self._opened_bits(state, transfer) or self._directs.open(transfer)
        if source is None:
            raise UnknownVersion(f"the {transfer.kind.value} file of version {transfer.target} is no longer kept")
        return source

    def let_go(self) -> None:
        """Free the bits of replaced versions that nobody has read for a while."""
        self._lingering.prune(newest=None)

    def full_of_newest(self, newest: Record, bits: Bits) -> Transfer:
        """The newest version's bits as a transfer; hashed when first asked for, once for all who ask."""
        if newest.full is not None:
            return newest.full
        with self._hashing:
            cached = self._newest_full
            if cached is None or cached.target != newest.version:
                cached = transfer_of(newest.manifest, bits.buffer.data, base=None)
                self._newest_full = cached
            return cached

    def _opened_bits(self, state: Versions, transfer: Transfer) -> Source | None:
        newest, bits = state.newest, state.bits
        if transfer.kind is not TransferKind.FULL:
            return None
        if newest is not None and bits is not None and transfer.target == newest.version:
            return self._lingering.open(transfer, bits) if transfer == self.full_of_newest(newest, bits) else None
        return self._lingering.open(transfer)

    def _direct(self, state: Versions, base: Record, target: Record, bits: Bits) -> Direct | None:
        workers = self._config.codec_threads
        old = rebuild(
            self._folder, state.records, base.version, into=lambda n: np.empty(n, dtype=np.uint8), workers=workers
        )
        delta = encode_delta(base.manifest, old, target.manifest, bits.buffer, level=Level.DENSE, workers=workers)
        data = delta.data
        if len(data) >= target.manifest.size_bytes:
            return None
        log.debug("direct_delta_made", policy=self._policy, base=base.version, target=target.version, bytes=len(data))
        return Direct(transfer=transfer_of(target.manifest, data, base=base.version), data=data)

    def _deltas_between(self, state: Versions, base: Record, target: Record) -> int:
        """How many a reader would take; where no deltas lead there, how many versions it is behind."""
        deltas = [leg for leg in self._legs(state) if leg.base is not None]
        try:
            return len(cheapest_way(deltas, have=base.version, want=target.version))
        except UnknownVersion:
            return target.version - base.version

    def _wanted(self, state: Versions, want: Version | None) -> Record:
        record = state.newest if want is None else state.records.get(want)
        if record is None:
            kept = f"{min(state.records)} to {max(state.records)}" if state.records else "none"
            raise UnknownVersion(f"version {want} is not kept; versions kept: {kept}")
        return record

    def _legs(self, state: Versions) -> list[Leg]:
        legs = [leg for record in state.records.values() for leg in record.legs]
        if state.newest is not None and state.bits is not None:
            size_bytes = state.newest.manifest.size_bytes
            legs.append(Leg(target=state.newest.version, base=None, size_bytes=size_bytes))
        return [*legs, *self._directs.legs(self._policy)]

    def _transfer(self, state: Versions, leg: Leg) -> Transfer:
        record = state.records[leg.target]
        kept = next((file for file in record.files if file.base == leg.base), None)
        if kept is None and leg.base is not None:
            kept = self._directs.transfer(self._policy, leg.base, leg.target)
        if kept is None and leg.base is None and record is state.newest and state.bits is not None:
            kept = self.full_of_newest(record, state.bits)
        if kept is None:
            raise UnknownVersion(f"what leads to version {leg.target} was just removed: plan again")
        return kept
