"""One policy's versions: taken in after proof, kept for a while, always rebuildable."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull, Unavailable, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, TransferKind, TransferPlan
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.bits import Bits
from astraflow.weights.chunks import transfer_of
from astraflow.weights.config import WeightsConfig
from astraflow.weights.delta import encode_delta
from astraflow.weights.direct import Direct, DirectDeltas
from astraflow.weights.intake import Arrived, prove
from astraflow.weights.keeping.base import Folder
from astraflow.weights.plan import Leg, cheapest_way
from astraflow.weights.rebuilding import rebuild
from astraflow.weights.records import RECORD_SUFFIX, Record, encode_record, file_name, record_name
from astraflow.weights.recovery import recover
from astraflow.weights.retention import first_kept, is_anchor_due
from astraflow.weights.sources import BitsSource, Source
from astraflow.weights.staging import check_plan
from astraflow.weights.tensors import has_same_layout

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Replaced as a whole, so that readers in other threads always see one that fits together."""

    records: Mapping[Version, Record]
    bits: Bits | None
    """Of the newest record."""

    @property
    def newest(self) -> Record | None:
        return self.records[max(self.records)] if self.records else None

    @property
    def base(self) -> tuple[Manifest, Bits] | None:
        """What the next version is a step from."""
        return (self.newest.manifest, self.bits) if self.newest and self.bits is not None else None


class History:
    """The versions of one policy in one folder. Methods block; any thread may call them.

    A version is there once its record is: `take` proves it and writes its file first, then the record, each whole or
    not at all. The newest version's bits stay in memory; every `anchor_every` versions they are also kept in full.
    """

    def __init__(
        self, policy: PolicyId, folder: Folder, config: WeightsConfig, clock: Clock, directs: DirectDeltas
    ) -> None:
        found = recover(folder, max_bytes=config.max_version_bytes, workers=config.codec_threads)
        self._policy = policy
        self._folder = folder
        self._config = config
        self._clock = clock
        self._directs = directs
        self._highest_seen = found.highest_seen
        self._state = _State(records=found.records, bits=found.bits)
        self._newest_full: Transfer | None = None
        self._forgotten: list[str] = []
        self._writing = threading.Lock()
        self._tidying = threading.Lock()
        self._hashing = threading.Lock()

    @property
    def records(self) -> tuple[Record, ...]:
        """Every version that is kept, oldest first."""
        return tuple(self._state.records.values())

    def is_wanted(self, manifest: Manifest, transfer: Transfer, *, is_adopted: bool = False) -> bool:
        """Whether a publish may go on; False when this very version is there already.

        is_adopted: the full bits are at hand, so that the transfer need not lead there from the newest version.
        Raises: Conflict for other bits under a known version; InvalidInput when it is not the next one; UnknownVersion
        when it is a delta on another version than the newest; CorruptData when it cannot be what it says.
        """
        known = self._state.records.get(manifest.version)
        if known is not None and known.manifest.root_hash == manifest.root_hash:
            return False
        if known is not None:
            raise Conflict(f"{manifest.policy} version {manifest.version} is already published with other weights")
        newest = self._state.newest
        self._check_order(manifest, newest)
        if is_adopted:
            _check_adopted(manifest, transfer, max_bytes=self._config.max_version_bytes)
            return True
        if transfer.kind is TransferKind.DELTA and (newest is None or transfer.base != newest.version):
            has = "nothing" if newest is None else f"version {newest.version}"
            raise UnknownVersion(f"a delta on version {transfer.base} does not apply: the store has {has}")
        plan = TransferPlan(manifest=manifest, transfers=(transfer,))
        check_plan(plan, base=newest.manifest if newest else None, max_bytes=self._config.max_version_bytes)
        return True

    def take(self, manifest: Manifest, transfer: Transfer, arrived: Arrived) -> bool:
        """Prove what arrived and keep it as the newest version, durably; False when it was there already.

        Raises: what `is_wanted` raises; CorruptData when the bits are not what the manifest says; StorageFull,
        Unavailable. Nothing has changed then.
        """
        with self._writing:
            if not self.is_wanted(manifest, transfer, is_adopted=arrived.bits is not None):
                return False
            workers = self._config.codec_threads
            proven = prove(manifest, transfer, arrived, base=self._state.base, workers=workers)
            record = Record(
                manifest=manifest,
                files=(proven.file,),
                published_at=self._clock.wall(),
                changed_elements=proven.changed_elements,
            )
            try:
                self._folder.write(file_name(proven.file), proven.data)
                self._folder.write(record_name(record.version), encode_record(record))
            except BaseException:
                self._undo([record_name(record.version), file_name(proven.file)])
                raise
            self._state = _State(records={**self._state.records, record.version: record}, bits=proven.bits)
            self._highest_seen = max(self._highest_seen, record.version)
            return True

    def tidy(self) -> None:
        """Keep the newest version in full if that is due, then forget versions beyond the bounds.

        A place that is full or away only postpones both. Publishers and readers go on meanwhile.
        """
        with self._tidying:
            for work in (self._anchor, self._forget):
                try:
                    work()
                except (StorageFull, Unavailable) as problem:
                    log.warning("tidying_postponed", policy=self._policy, problem=str(problem))

    def plan(self, *, have: Version | None, want: Version | None) -> TransferPlan:
        """The way with the fewest bytes. Raises: UnknownVersion."""
        state = self._state
        record = self._wanted(state, want)
        way = cheapest_way(self._legs(state), have=have, want=record.version)
        is_newest = state.bits is not None and record is state.newest
        return TransferPlan(
            manifest=record.manifest,
            transfers=tuple(self._transfer(state, leg) for leg in way),
            shared=state.bits.file if is_newest and state.bits is not None else None,
        )

    def shorten(self, *, have: Version | None, want: Version | None) -> Future[None] | None:
        """Have one delta made for a reader whose way would take several; None when there is nothing to gain.

        Raises: UnknownVersion.
        """
        state = self._state
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

    def open(self, transfer: Transfer) -> Source:
        """The bytes of a transfer. Raises: UnknownVersion when they are no longer kept."""
        state = self._state
        record = state.records.get(transfer.target)
        if record is not None and transfer in record.files:
            return self._folder.open(file_name(transfer))
        is_newest = record is not None and record is state.newest
        if record is not None and is_newest and state.bits is not None and transfer.kind is TransferKind.FULL:
            if transfer == self._full_of_newest(record, state.bits):
                return BitsSource(state.bits)
        elif (source := self._directs.open(transfer)) is not None:
            return source
        raise UnknownVersion(f"the {transfer.kind.value} file of version {transfer.target} is no longer kept")

    def _check_order(self, manifest: Manifest, newest: Record | None) -> None:
        """Versions that were damaged beyond use leave a gap, which a trainer that is further on cannot fill."""
        if newest is None:
            return
        last = max(newest.version, self._highest_seen) + 1
        if not newest.version < manifest.version <= last:
            raise InvalidInput(
                f"{manifest.policy} version {manifest.version} is not the next one: expected {newest.version + 1}"
            )

    def _undo(self, names: Iterable[str]) -> None:
        """Take away what was written of a version that is refused; what cannot be has no record, or is taken over."""
        try:
            self._folder.remove(names)
        except (StorageFull, Unavailable) as problem:
            log.warning("refused_files_left", policy=self._policy, problem=str(problem))

    def _anchor(self) -> None:
        """Written from the bits in memory while versions come in; the record that names the file comes last."""
        state = self._state
        newest = state.newest
        if newest is None or state.bits is None or newest.full or not is_anchor_due(self.records, self._config):
            return
        full = self._full_of_newest(newest, state.bits)
        record = replace(newest, files=(*newest.files, full))
        try:
            self._folder.write(file_name(full), state.bits.buffer.data)
            with self._writing:
                self._folder.write(record_name(record.version), encode_record(record))
                self._state = replace(self._state, records={**self._state.records, record.version: record})
        except BaseException:
            self._undo([file_name(full)])
            raise

    def _forget(self) -> None:
        """Remove versions before the first that is to stay: the records first, so that none is ever without its files.

        The newest of them first: after a crash in the middle, a way still leads to each that is left.
        """
        with self._writing:
            state = self._state
            if not state.records:
                return
            first = first_kept(self.records, self._config)
            gone = [record for record in state.records.values() if record.version < first]
            self._state = replace(state, records={v: state.records[v] for v in state.records if v >= first})
        self._forgotten += [record_name(record.version) for record in reversed(gone)]
        self._forgotten += [file_name(file) for record in gone for file in record.files]
        if self._forgotten:
            self._folder.remove(name for name in self._forgotten if name.endswith(RECORD_SUFFIX))
            self._folder.remove(name for name in self._forgotten if not name.endswith(RECORD_SUFFIX))
            self._forgotten = []

    def _direct(self, state: _State, base: Record, target: Record, bits: Bits) -> Direct | None:
        workers = self._config.codec_threads
        old = rebuild(
            self._folder, state.records, base.version, into=lambda n: np.empty(n, dtype=np.uint8), workers=workers
        )
        data = encode_delta(base.manifest, old, target.manifest, bits.buffer, workers=workers)
        if len(data) >= target.manifest.size_bytes:
            return None
        log.debug("direct_delta_made", policy=self._policy, base=base.version, target=target.version, bytes=len(data))
        return Direct(transfer=transfer_of(target.manifest, data, base=base.version), data=data)

    def _deltas_between(self, state: _State, base: Record, target: Record) -> int:
        """How many a reader would take; where no deltas lead there, how many versions it is behind."""
        deltas = [leg for leg in self._legs(state) if leg.base is not None]
        try:
            return len(cheapest_way(deltas, have=base.version, want=target.version))
        except UnknownVersion:
            return target.version - base.version

    def _wanted(self, state: _State, want: Version | None) -> Record:
        record = state.newest if want is None else state.records.get(want)
        if record is None:
            kept = f"{min(state.records)} to {max(state.records)}" if state.records else "none"
            raise UnknownVersion(f"version {want} is not kept; versions kept: {kept}")
        return record

    def _legs(self, state: _State) -> list[Leg]:
        legs = [leg for record in state.records.values() for leg in record.legs]
        if state.newest is not None and state.bits is not None:
            size_bytes = state.newest.manifest.size_bytes
            legs.append(Leg(target=state.newest.version, base=None, size_bytes=size_bytes))
        return [*legs, *self._directs.legs(self._policy)]

    def _transfer(self, state: _State, leg: Leg) -> Transfer:
        record = state.records[leg.target]
        kept = next((file for file in record.files if file.base == leg.base), None)
        if kept is None and leg.base is not None:
            kept = self._directs.transfer(self._policy, leg.base, leg.target)
        if kept is None and leg.base is None and record is state.newest and state.bits is not None:
            kept = self._full_of_newest(record, state.bits)
        if kept is None:
            raise UnknownVersion(f"what leads to version {leg.target} was just removed: plan again")
        return kept

    def _full_of_newest(self, newest: Record, bits: Bits) -> Transfer:
        """The newest version's bits as a transfer; hashed when first asked for, once for all who ask."""
        if newest.full is not None:
            return newest.full
        with self._hashing:
            cached = self._newest_full
            if cached is None or cached.target != newest.version:
                cached = transfer_of(newest.manifest, bits.buffer.data, base=None)
                self._newest_full = cached
            return cached


def _check_adopted(manifest: Manifest, transfer: Transfer, *, max_bytes: int) -> None:
    """Raises: CorruptData unless the transfer announces this version, in a size that can be true."""
    full = replace(transfer, kind=TransferKind.FULL, base=None, size_bytes=manifest.size_bytes)
    check_plan(TransferPlan(manifest=manifest, transfers=(full,)), base=None, max_bytes=max_bytes)
    if transfer.size_bytes > manifest.size_bytes:
        raise CorruptData(f"the {transfer.kind.value} file of {transfer.size_bytes} bytes is larger than the version")
