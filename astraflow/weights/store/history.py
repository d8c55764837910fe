"""Versions of one policy: verified on arrival, retained within limits, always rebuildable."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull, Unavailable, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, TransferKind, TransferPlan
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.direct_delta_cache import DirectDeltaCache
from astraflow.weights.store.file_readers import FileReader
from astraflow.weights.store.records import RECORD_SUFFIX, Record, encode_record, file_name, record_name
from astraflow.weights.store.recovery import recover
from astraflow.weights.store.storage.base import Folder
from astraflow.weights.store.transfer_planner import StoredVersions, TransferPlanner
from astraflow.weights.store.upload_verification import ReceivedUpload, verify_upload
from astraflow.weights.tensors import MAX_VERSION_BYTES, Buffer
from astraflow.weights.transfer.transfer_application import check_plan

log = get_logger()


class History:
    """Versions of one policy in one folder. Methods block; any thread may call them.

    A version exists once its record does: `commit` verifies it, writes its file and then the record, each atomically.
    The newest version's bits stay in memory; every `full_snapshot_every` versions a full snapshot is also stored.
    """

    def __init__(
        self,
        policy: PolicyId,
        folder: Folder,
        config: WeightsConfig,
        clock: Clock,
        direct_delta_cache: DirectDeltaCache,
        *,
        may_skip_versions: bool = False,
    ) -> None:
        """may_skip_versions: whether the next version may be any later version, as in a mirror that was offline."""
        # The configured limit is only for uploads: lowering it must not quarantine versions stored before.
        max_bytes = max(config.max_version_bytes, MAX_VERSION_BYTES)
        recovered = recover(folder, max_bytes=max_bytes, workers=config.codec_threads)
        self._policy = policy
        self._folder = folder
        self._config = config
        self._clock = clock
        self._may_skip_versions = may_skip_versions
        self._planner = TransferPlanner(policy, folder, config, clock, direct_delta_cache)
        self._highest_seen = recovered.highest_seen
        self._state = StoredVersions(records=recovered.records, bits=recovered.bits)
        self._pending_removals: list[str] = []
        self._write_lock = threading.Lock()
        self._retention_lock = threading.Lock()

    @property
    def records(self) -> tuple[Record, ...]:
        """Records of the stored versions, oldest first."""
        return tuple(self._state.records.values())

    @property
    def newest(self) -> tuple[Manifest, Buffer] | None:
        """The newest version and its bits, read-only; None when the store is empty."""
        base = self._state.base
        return None if base is None else (base[0], base[1].buffer)

    def is_new(self, manifest: Manifest, transfer: Transfer, *, has_full_bits: bool = False) -> bool:
        """Returns whether a publish may proceed; False when this version is stored already.

        has_full_bits: the full bits are available, so the transfer need not start from the newest version.
        Raises: Conflict for other bits under a known version; InvalidInput when it is not the next version;
        UnknownVersion for a delta whose base is not the newest version; CorruptData when the announcement is
        inconsistent.
        """
        stored = self._state.records.get(manifest.version)
        if stored is not None and stored.manifest.root_hash == manifest.root_hash:
            return False
        if stored is not None:
            raise Conflict(
                f"cannot publish version {manifest.version} of {manifest.policy!r}: it is already published with other "
                "weights; restart the trainer from its newest checkpoint",
                code="weights.version_conflict",
            )
        newest = self._state.newest
        self._check_order(manifest, newest)
        if has_full_bits:
            _check_announced(manifest, transfer, max_bytes=self._config.max_version_bytes)
            return True
        if transfer.kind is TransferKind.DELTA and (newest is None or transfer.base != newest.version):
            store_state = "is empty" if newest is None else f"has version {newest.version}"
            raise UnknownVersion(
                f"cannot apply a delta on version {transfer.base}: the store {store_state}; publish in full",
                code="weights.base_not_stored",
            )
        plan = TransferPlan(manifest=manifest, transfers=(transfer,))
        check_plan(plan, base=newest.manifest if newest else None, max_bytes=self._config.max_version_bytes)
        return True

    def commit(self, manifest: Manifest, transfer: Transfer, received: ReceivedUpload) -> bool:
        """Verifies an upload and stores it as the newest version, durably; returns False when it was stored already.

        Raises: the errors of `is_new`; CorruptData when the bits do not match the manifest; StorageFull, Unavailable.
        The history is then unchanged.
        """
        with self._write_lock:
            if not self.is_new(manifest, transfer, has_full_bits=received.bits is not None):
                return False
            workers = self._config.codec_threads
            verified = verify_upload(manifest, transfer, received, base=self._state.base, workers=workers)
            record = Record(
                manifest=manifest,
                files=(verified.file,),
                published_at=self._clock.wall(),
                changed_elements=verified.changed_elements,
            )
            try:
                self._folder.write(file_name(verified.file), verified.data)
                self._folder.write(record_name(record.version), encode_record(record))
            except BaseException:
                self._remove_refused([record_name(record.version), file_name(verified.file)])
                raise
            self._state = StoredVersions(records={**self._state.records, record.version: record}, bits=verified.bits)
            self._highest_seen = max(self._highest_seen, record.version)
            self._planner.release_retired()
            return True

    def apply_retention(self) -> None:
        """Writes a full snapshot if one is due, then removes versions beyond the limits.

        A full or unreachable storage only postpones both. Publishers and readers continue meanwhile.
        """
        with self._retention_lock:
            for work in (self._write_full_snapshot, self._remove_expired):
                try:
                    work()
                except (StorageFull, Unavailable) as problem:
                    log.warning("retention_postponed", policy=self._policy, problem=str(problem))

    def release_retired(self) -> None:
        """Frees the bits of retired versions that were not read recently."""
        self._planner.release_retired()

    def plan(self, *, have: Version | None, want: Version | None) -> TransferPlan:
        """Returns the route with the fewest bytes. Raises: UnknownVersion."""
        return self._planner.plan(self._state, have=have, want=want)

    def prepare_direct_delta(self, *, have: Version | None, want: Version | None) -> Future[None] | None:
        """Schedules a direct delta for a reader that would need several deltas; returns None when that gains nothing.

        Raises: UnknownVersion.
        """
        return self._planner.prepare_direct_delta(self._state, have=have, want=want)

    def open(self, transfer: Transfer) -> FileReader:
        """Returns a reader of a transfer's bytes. Raises: UnknownVersion when they are no longer stored."""
        return self._planner.open(self._state, transfer)

    def _check_order(self, manifest: Manifest, newest: Record | None) -> None:
        """Checks that this is the next version; damaged versions leave a gap to skip. Raises: InvalidInput."""
        if newest is None:
            return
        last = max(newest.version, self._highest_seen) + 1
        if not newest.version < manifest.version <= last and not (
            self._may_skip_versions and newest.version < manifest.version
        ):
            raise InvalidInput(
                f"cannot publish version {manifest.version} of {manifest.policy!r}: the next version is "
                f"{newest.version + 1}; publish versions in order",
                code="weights.version_out_of_order",
            )

    def _remove_refused(self, names: Iterable[str]) -> None:
        """Removes the files of a rejected version; remaining files have no record, or are overwritten later."""
        try:
            self._folder.remove(names)
        except (StorageFull, Unavailable) as problem:
            log.warning("refused_files_not_removed", policy=self._policy, problem=str(problem))

    def _write_full_snapshot(self) -> None:
        """Writes a full snapshot from the bits in memory while publishes continue; its record comes last."""
        state = self._state
        newest = state.newest
        if newest is None or state.bits is None or newest.full or not is_full_snapshot_due(self.records, self._config):
            return
        full = self._planner.full_transfer_of_newest(newest, state.bits)
        record = replace(newest, files=(*newest.files, full))
        try:
            self._folder.write(file_name(full), state.bits.buffer.data)
            with self._write_lock:
                self._folder.write(record_name(record.version), encode_record(record))
                self._state = replace(self._state, records={**self._state.records, record.version: record})
        except BaseException:
            self._remove_refused([file_name(full)])
            raise

    def _remove_expired(self) -> None:
        """Removes versions before the first retained version: records first, so that no record is ever without its
        files.

        The newest of these versions is removed first: after a crash in between, each remaining version still has a
        route.
        """
        with self._write_lock:
            state = self._state
            if not state.records:
                return
            first = first_retained(self.records, self._config)
            expired = [record for record in state.records.values() if record.version < first]
            self._state = replace(state, records={v: state.records[v] for v in state.records if v >= first})
        self._pending_removals += [record_name(record.version) for record in reversed(expired)]
        self._pending_removals += [file_name(file) for record in expired for file in record.files]
        if self._pending_removals:
            self._folder.remove(name for name in self._pending_removals if name.endswith(RECORD_SUFFIX))
            self._folder.remove(name for name in self._pending_removals if not name.endswith(RECORD_SUFFIX))
            self._pending_removals = []


def _check_announced(manifest: Manifest, transfer: Transfer, *, max_bytes: int) -> None:
    """Checks that the transfer announces this version, with a plausible size. Raises: CorruptData."""
    full = replace(transfer, kind=TransferKind.FULL, base=None, size_bytes=manifest.size_bytes)
    check_plan(TransferPlan(manifest=manifest, transfers=(full,)), base=None, max_bytes=max_bytes)
    if transfer.size_bytes > manifest.size_bytes:
        raise CorruptData(
            f"cannot accept the {transfer.kind.value} file of version {manifest.version}: its {transfer.size_bytes} "
            f"bytes are more than the version's {manifest.size_bytes}; send a full snapshot",
            code="weights.size_mismatch",
        )


def first_retained(records: Sequence[Record], config: WeightsConfig) -> Version:
    """Returns the first version to retain, of records from the oldest to the newest; always an anchor.

    `retained_versions` are retained, with all versions back to the preceding anchor; fewer if they exceed
    `max_retained_bytes`. The files that the newest version is rebuilt from are always retained.
    """
    oldest = records[-1].version - config.retained_versions + 1
    anchors = [record.version for record in records if record.full]
    first = max((anchor for anchor in anchors if anchor <= oldest), default=records[0].version)
    fitting = [anchor for anchor in anchors if anchor >= first and is_within_byte_limit(records, config, first=anchor)]
    return (
        min(fitting, default=max(anchors, default=first))
        if not is_within_byte_limit(records, config, first=first)
        else first
    )


def is_full_snapshot_due(records: Sequence[Record], config: WeightsConfig) -> bool:
    """Returns whether the newest version needs a full snapshot: `full_snapshot_every` versions after the last one.

    Sooner if the files since that one exceed `max_retained_bytes`, and the newest version alone does not.
    """
    newest = records[-1]
    last = max((record.version for record in records if record.full), default=None)
    if last is None or newest.version - last >= config.full_snapshot_every:
        return True
    is_alone_within = config.max_retained_bytes is not None and newest.manifest.size_bytes <= config.max_retained_bytes
    return newest.version != last and is_alone_within and not is_within_byte_limit(records, config, first=last)


def is_within_byte_limit(records: Sequence[Record], config: WeightsConfig, *, first: Version) -> bool:
    """Returns whether the versions from `first` on have at most `max_retained_bytes`."""
    if config.max_retained_bytes is None:
        return True
    return sum(record.size_bytes for record in records if record.version >= first) <= config.max_retained_bytes
