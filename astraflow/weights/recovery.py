"""What of a policy's versions survived, after any kind of end: read, prove, and put aside what is damaged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Transfer, TransferKind, TransferPlan
from astraflow.runtime.logs import get_logger
from astraflow.weights.chunks import check_file
from astraflow.weights.files import PART_SUFFIX
from astraflow.weights.plan import cheapest_way
from astraflow.weights.records import Record, decode_record
from astraflow.weights.staging import assemble
from astraflow.weights.tensors import Buffer, check_manifest, verify

log = get_logger()

DAMAGED_SUFFIX = ".damaged"
_NUMBER = "[0-9]" * 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a policy's folder holds."""

    records: Mapping[Version, Record]
    """Oldest first."""
    buffer: Buffer | None
    """The proven bits of the newest version; None when there is none."""
    highest_seen: int
    """The highest version that was ever recorded, whether or not it can still be served; -1 for none."""


def record_path(folder: Path, version: Version) -> Path:
    """Where a version's record is."""
    return folder / f"{version:010d}.record"


def file_path(folder: Path, file: Transfer) -> Path:
    """Where a file of a version is."""
    return folder / f"{file.target:010d}.{file.kind.value}"


def recover(folder: Path, *, max_bytes: int, workers: int = 1) -> Recovered:
    """Read a policy's folder and rebuild its newest version, proven by its hashes.

    Removes what a crash left unfinished. What is damaged is renamed aside, with an error in the log, and served no
    more. Files that the newest version does not need are judged by their size here, and by their hash where used.
    """
    highest_seen = max((_number(path) for path in folder.glob(f"{_NUMBER}.record*")), default=-1)
    records = _read_records(folder, max_bytes=max_bytes)
    _remove_unfinished(folder, records)
    while True:
        _drop_unreachable(folder, records)
        if not records:
            return Recovered(records={}, buffer=None, highest_seen=highest_seen)
        try:
            buffer = _rebuild(folder, records, max(records), workers=workers)
            return Recovered(records=records, buffer=buffer, highest_seen=highest_seen)
        except _DamagedFileError as damage:
            _put_aside(file_path(folder, damage.file), str(damage))
            record = records[damage.file.target]
            records[record.version] = replace(record, files=tuple(f for f in record.files if f != damage.file))


class _DamagedFileError(Exception):
    def __init__(self, file: Transfer, problem: CorruptData) -> None:
        super().__init__(str(problem))
        self.file = file


def _read_records(folder: Path, *, max_bytes: int) -> dict[Version, Record]:
    """The records that can be read, each with those of its files that are there in full length."""
    records: dict[Version, Record] = {}
    for path in sorted(folder.glob(f"{_NUMBER}.record")):
        try:
            record = decode_record(path.read_bytes())
            check_manifest(record.manifest, max_bytes=max_bytes)
            if record.version != _number(path):
                raise CorruptData(f"it describes version {record.version}")
        except CorruptData as problem:
            _put_aside(path, str(problem))
            continue
        records[record.version] = replace(record, files=tuple(f for f in record.files if _is_whole(folder, f)))
    return records


def _is_whole(folder: Path, file: Transfer) -> bool:
    path = file_path(folder, file)
    if not path.exists():
        log.error("weights_file_missing", file=str(path))
        return False
    size_bytes = path.stat().st_size
    if size_bytes != file.size_bytes:
        _put_aside(path, f"it has {size_bytes} bytes, expected {file.size_bytes}")
    return size_bytes == file.size_bytes


def _remove_unfinished(folder: Path, records: Mapping[Version, Record]) -> None:
    """Parts of files, and files whose record was never written or just removed: nobody was promised them.

    Files of a damaged record are put aside with it.
    """
    known = {file_path(folder, file) for record in records.values() for file in record.files}
    damaged = {_number(path) for path in folder.glob(f"{_NUMBER}.record{DAMAGED_SUFFIX}")}
    files = {path for kind in TransferKind for path in folder.glob(f"{_NUMBER}.{kind.value}")}
    for path in (files - known) | set(folder.glob(f"*{PART_SUFFIX}")):
        if path in files and _number(path) in damaged:
            _put_aside(path, "its record is damaged")
        else:
            log.info("unfinished_file_removed", file=str(path))
            path.unlink()


def _drop_unreachable(folder: Path, records: dict[Version, Record]) -> None:
    """Put aside the versions that no chain of files leads to any more."""
    reached: set[Version | None] = {None}
    for version, record in list(records.items()):
        if any(leg.base in reached for leg in record.legs):
            reached.add(version)
        else:
            _put_aside(record_path(folder, version), "no whole file leads to this version")
            del records[version]


def _rebuild(folder: Path, records: Mapping[Version, Record], newest: Version, *, workers: int) -> Buffer:
    legs = [leg for record in records.values() for leg in record.legs]
    way = cheapest_way(legs, have=None, want=newest)
    transfers = [file for leg in way for file in records[leg.target].files if (file.base is None) == (leg.base is None)]
    files = []
    for transfer in transfers:
        data = np.fromfile(file_path(folder, transfer), dtype=np.uint8)
        try:
            check_file(transfer, data)
        except CorruptData as problem:
            raise _DamagedFileError(transfer, problem) from problem
        files.append(data)
    manifest = records[newest].manifest
    try:
        plan = TransferPlan(manifest=manifest, transfers=tuple(transfers))
        buffer, _ = assemble(plan, files, base=None, workers=workers)
        verify(manifest, buffer, workers=workers)
    except CorruptData as problem:
        raise _DamagedFileError(transfers[-1], problem) from problem
    return buffer


def _put_aside(path: Path, problem: str) -> None:
    log.error("damaged_weights_file", file=str(path), problem=problem)
    path.replace(path.with_name(path.name + DAMAGED_SUFFIX))


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])
