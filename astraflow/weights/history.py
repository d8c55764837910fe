"""One policy's versions: taken in after proof, kept for a while, always rebuildable."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull, Unavailable, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, TransferKind, TransferPlan
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import WeightsConfig
from astraflow.weights.direct import DirectDeltas
from astraflow.weights.intake import Arrived, prove
from astraflow.weights.keeping.base import Folder
from astraflow.weights.records import RECORD_SUFFIX, Record, encode_record, file_name, record_name
from astraflow.weights.recovery import recover
from astraflow.weights.retention import first_kept, is_anchor_due
from astraflow.weights.sources import Source
from astraflow.weights.staging import check_plan
from astraflow.weights.tensors import Buffer
from astraflow.weights.ways import Versions, Ways

log = get_logger()


class History:
    """The versions of one policy in one folder. Methods block; any thread may call them.

    A version is there once its record is: `take` proves it and writes its file first, then the record, each whole or
    not at all. The newest version's bits stay in memory; every `anchor_every` versions they are also kept in full.
    """

    def __init__(
        self,
        policy: PolicyId,
        folder: Folder,
        config: WeightsConfig,
        clock: Clock,
        directs: DirectDeltas,
        *,
        may_skip: bool = False,
    ) -> None:
        """may_skip: whether the next version may be any later one, as in a mirror that was away."""
        found = recover(folder, max_bytes=config.max_version_bytes, workers=config.codec_threads)
        self._policy = policy
        self._folder = folder
        self._config = config
        self._clock = clock
        self._may_skip = may_skip
        self._ways = Ways(policy, folder, config, clock, directs)
        self._highest_seen = found.highest_seen
        self._state = Versions(records=found.records, bits=found.bits)
        self._forgotten: list[str] = []
        self._writing = threading.Lock()
        self._tidying = threading.Lock()

    @property
    def records(self) -> tuple[Record, ...]:
        """Every version that is kept, oldest first."""
        return tuple(self._state.records.values())

    @property
    def newest(self) -> tuple[Manifest, Buffer] | None:
        """The newest version and its bits, read-only."""
        base = self._state.base
        return None if base is None else (base[0], base[1].buffer)

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
            self._state = Versions(records={**self._state.records, record.version: record}, bits=proven.bits)
            self._highest_seen = max(self._highest_seen, record.version)
            self._ways.let_go()
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

    def let_go(self) -> None:
        """Free the bits of replaced versions that nobody has read for a while."""
        self._ways.let_go()

    def plan(self, *, have: Version | None, want: Version | None) -> TransferPlan:
        """The way with the fewest bytes. Raises: UnknownVersion."""
        return self._ways.plan(self._state, have=have, want=want)

    def shorten(self, *, have: Version | None, want: Version | None) -> Future[None] | None:
        """Have one delta made for a reader whose way would take several; None when there is nothing to gain.

        Raises: UnknownVersion.
        """
        return self._ways.shorten(self._state, have=have, want=want)

    def open(self, transfer: Transfer) -> Source:
        """The bytes of a transfer. Raises: UnknownVersion when they are no longer kept."""
        return self._ways.open(self._state, transfer)

    def _check_order(self, manifest: Manifest, newest: Record | None) -> None:
        """Versions that were damaged beyond use leave a gap, which a trainer that is further on cannot fill."""
        if newest is None:
            return
        last = max(newest.version, self._highest_seen) + 1
        if not newest.version < manifest.version <= last and not (self._may_skip and newest.version < manifest.version):
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
        full = self._ways.full_of_newest(newest, state.bits)
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


def _check_adopted(manifest: Manifest, transfer: Transfer, *, max_bytes: int) -> None:
    """Raises: CorruptData unless the transfer announces this version, in a size that can be true."""
    full = replace(transfer, kind=TransferKind.FULL, base=None, size_bytes=manifest.size_bytes)
    check_plan(TransferPlan(manifest=manifest, transfers=(full,)), base=None, max_bytes=max_bytes)
    if transfer.size_bytes > manifest.size_bytes:
        raise CorruptData(f"the {transfer.kind.value} file of {transfer.size_bytes} bytes is larger than the version")
