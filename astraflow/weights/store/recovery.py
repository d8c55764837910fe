"""Recovery of a policy's versions at startup: reads, verifies, and quarantines damaged files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Transfer, TransferKind
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared_memory import VersionBuffer
from astraflow.weights.store.reconstruction import DamagedFileError, rebuild
from astraflow.weights.store.records import RECORD_SUFFIX, Record, decode_record, file_name, record_name
from astraflow.weights.store.storage.base import Folder
from astraflow.weights.tensors import check_manifest, frozen

log = get_logger()

DAMAGED_SUFFIX = ".damaged"
_NAME = re.compile(rf"(\d{{10,}})\.({'|'.join(kind.value for kind in TransferKind)}|record)(\{DAMAGED_SUFFIX})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredHistory:
    """Versions recovered from a policy's folder."""

    records: Mapping[Version, Record]
    """Records by version, oldest first."""
    bits: VersionBuffer | None
    """Verified bits of the newest version; None when there is none."""
    highest_seen: int
    """Highest version that was ever recorded, even if it can no longer be served; -1 for none."""


def recover(folder: Folder, *, max_bytes: int, workers: int = 1) -> RecoveredHistory:
    """Reads a policy's folder and rebuilds its newest version, verified by its hashes.

    Removes unfinished files of a crash. Damaged files are renamed, with an error in the log, and no longer served.
    Files that the newest version does not need are checked by size here, and by hash when they are used.
    """
    sizes = dict(folder.sizes())
    seen_versions = [int(parts[1]) for parts in map(_NAME.fullmatch, sizes) if parts and parts[2] == "record"]
    records = _read_records(folder, sizes, max_bytes=max_bytes)
    _remove_unfinished(folder, records)
    bits = None
    while records and bits is None:
        _drop_unreachable(folder, records)
        if records:
            bits = _rebuild_newest(folder, records, workers=workers)
    return RecoveredHistory(records=records, bits=bits, highest_seen=max(seen_versions, default=-1))


def _read_records(folder: Folder, sizes: Mapping[str, int], *, max_bytes: int) -> dict[Version, Record]:
    """Returns the readable records, each with its files that exist in full length."""
    records: dict[Version, Record] = {}
    names = {name: int(parts[1]) for name in sizes if name.endswith(RECORD_SUFFIX) and (parts := _NAME.fullmatch(name))}
    for name in sorted(names, key=names.__getitem__):  # by number: versions from 10^10 on have longer names
        try:
            record = decode_record(_read_whole(folder, name, sizes[name]))
            check_manifest(record.manifest, max_bytes=max_bytes)
            if record_name(record.version) != name:
                raise CorruptData(f"it describes version {record.version}", code="weights.damaged_record")
        except CorruptData as problem:
            _quarantine(folder, name, str(problem))
            continue
        intact = tuple(file for file in record.files if _is_intact(folder, sizes, file))
        records[record.version] = replace(record, files=intact)
    return records


def _read_whole(folder: Folder, name: str, size_bytes: int) -> bytes:
    reader = folder.open(name)
    try:
        return bytes(reader.read(0, size_bytes))
    finally:
        reader.close()


def _is_intact(folder: Folder, sizes: Mapping[str, int], file: Transfer) -> bool:
    name = file_name(file)
    if name not in sizes:
        log.error("weights_file_missing", policy=file.policy, file=name)
        return False
    if sizes[name] != file.size_bytes:
        _quarantine(folder, name, f"it has {sizes[name]} bytes, expected {file.size_bytes}")
    return sizes[name] == file.size_bytes


def _remove_unfinished(folder: Folder, records: Mapping[Version, Record]) -> None:
    """Removes files whose record was never written, or was just removed: they were never announced.

    Files of a damaged record are quarantined with it.
    """
    recorded_files = {file_name(file) for record in records.values() for file in record.files}
    names = {name: parts for name in folder.sizes() if (parts := _NAME.fullmatch(name))}
    damaged = {parts[1] for parts in names.values() if parts[2] == "record" and parts[3]}
    files = {name: parts for name, parts in names.items() if parts[2] != "record" and not parts[3]}
    for name in sorted(files.keys() - recorded_files):
        if files[name][1] in damaged:
            _quarantine(folder, name, "its record is damaged")
        else:
            log.info("unfinished_file_removed", file=name)
            folder.remove([name])


def _drop_unreachable(folder: Folder, records: dict[Version, Record]) -> None:
    """Quarantines the versions that no chain of files leads to."""
    reached: set[Version | None] = {None}
    for version, record in list(records.items()):
        if any(segment.base in reached for segment in record.segments):
            reached.add(version)
        else:
            _quarantine(folder, record_name(version), "no intact file leads to this version")
            del records[version]


def _rebuild_newest(folder: Folder, records: dict[Version, Record], *, workers: int) -> VersionBuffer | None:
    """Returns the newest version's bits; None after it found, quarantined and unlisted a damaged file."""
    newest = max(records)
    bits = VersionBuffer.allocate(records[newest].manifest.size_bytes)
    try:
        rebuild(folder, records, newest, into=lambda size_bytes: bits.buffer[:size_bytes], workers=workers)
    except DamagedFileError as damage:
        file = damage.file
        _quarantine(folder, file_name(file), str(damage))
        record = records[file.target]
        records[file.target] = replace(record, files=tuple(other for other in record.files if other != file))
        return None
    frozen(bits.buffer)
    return bits


def _quarantine(folder: Folder, name: str, problem: str) -> None:
    log.error("weights_file_damaged", file=name, problem=problem)
    folder.rename(name, f"{name}{DAMAGED_SUFFIX}")
