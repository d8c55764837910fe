"""What of a policy's versions survived, after any kind of end: read, prove, and put aside what is damaged."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Transfer, TransferKind
from astraflow.runtime.logs import get_logger
from astraflow.weights.bits import Bits
from astraflow.weights.keeping.base import Folder
from astraflow.weights.rebuilding import DamagedFileError, rebuild
from astraflow.weights.records import RECORD_SUFFIX, Record, decode_record, file_name, record_name
from astraflow.weights.tensors import check_manifest, frozen

log = get_logger()

DAMAGED_SUFFIX = ".damaged"
_NAME = re.compile(rf"(\d{{10}})\.({'|'.join(kind.value for kind in TransferKind)}|record)(\{DAMAGED_SUFFIX})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a policy's folder holds."""

    records: Mapping[Version, Record]
    """Oldest first."""
    bits: Bits | None
    """The proven bits of the newest version; None when there is none."""
    highest_seen: int
    """The highest version that was ever recorded, whether or not it can still be served; -1 for none."""


def recover(folder: Folder, *, max_bytes: int, workers: int = 1) -> Recovered:
    """Read a policy's folder and rebuild its newest version, proven by its hashes.

    Removes what a crash left unfinished. What is damaged is renamed aside, with an error in the log, and served no
    more. Files that the newest version does not need are judged by their size here, and by their hash where used.
    """
    sizes = dict(folder.sizes())
    seen = [int(parts[1]) for parts in map(_NAME.fullmatch, sizes) if parts and parts[2] == "record"]
    records = _read_records(folder, sizes, max_bytes=max_bytes)
    _remove_unfinished(folder, records)
    bits = None
    while records and bits is None:
        _drop_unreachable(folder, records)
        if records:
            bits = _rebuilt(folder, records, workers=workers)
    return Recovered(records=records, bits=bits, highest_seen=max(seen, default=-1))


def _read_records(folder: Folder, sizes: Mapping[str, int], *, max_bytes: int) -> dict[Version, Record]:
    """The records that can be read, each with those of its files that are there in full length."""
    records: dict[Version, Record] = {}
    for name in sorted(name for name in sizes if name.endswith(RECORD_SUFFIX) and _NAME.fullmatch(name)):
        try:
            record = decode_record(_read_small(folder, name, sizes[name]))
            check_manifest(record.manifest, max_bytes=max_bytes)
            if record_name(record.version) != name:
                raise CorruptData(f"it describes version {record.version}")
        except CorruptData as problem:
            _put_aside(folder, name, str(problem))
            continue
        whole = tuple(file for file in record.files if _is_whole(folder, sizes, file))
        records[record.version] = replace(record, files=whole)
    return records


def _read_small(folder: Folder, name: str, size_bytes: int) -> bytes:
    source = folder.open(name)
    try:
        return bytes(source.read(0, size_bytes))
    finally:
        source.close()


def _is_whole(folder: Folder, sizes: Mapping[str, int], file: Transfer) -> bool:
    name = file_name(file)
    if name not in sizes:
        log.error("weights_file_missing", policy=file.policy, file=name)
        return False
    if sizes[name] != file.size_bytes:
        _put_aside(folder, name, f"it has {sizes[name]} bytes, expected {file.size_bytes}")
    return sizes[name] == file.size_bytes


def _remove_unfinished(folder: Folder, records: Mapping[Version, Record]) -> None:
    """Files whose record was never written or just removed: nobody was promised them.

    Files of a damaged record are put aside with it.
    """
    known = {file_name(file) for record in records.values() for file in record.files}
    found = {name: parts for name in folder.sizes() if (parts := _NAME.fullmatch(name))}
    damaged = {parts[1] for parts in found.values() if parts[2] == "record" and parts[3]}
    files = {name: parts for name, parts in found.items() if parts[2] != "record" and not parts[3]}
    for name in sorted(files.keys() - known):
        if files[name][1] in damaged:
            _put_aside(folder, name, "its record is damaged")
        else:
            log.info("unfinished_file_removed", file=name)
            folder.remove([name])


def _drop_unreachable(folder: Folder, records: dict[Version, Record]) -> None:
    """Put aside the versions that no chain of files leads to any more."""
    reached: set[Version | None] = {None}
    for version, record in list(records.items()):
        if any(leg.base in reached for leg in record.legs):
            reached.add(version)
        else:
            _put_aside(folder, record_name(version), "no whole file leads to this version")
            del records[version]


def _rebuilt(folder: Folder, records: dict[Version, Record], *, workers: int) -> Bits | None:
    """The newest version's bits; None when a file turned out damaged: then it is put aside, and out of its record."""
    newest = max(records)
    bits = Bits.made(records[newest].manifest.size_bytes)
    try:
        rebuild(folder, records, newest, into=lambda size_bytes: bits.buffer[:size_bytes], workers=workers)
    except DamagedFileError as damage:
        file = damage.file
        _put_aside(folder, file_name(file), str(damage))
        record = records[file.target]
        records[file.target] = replace(record, files=tuple(other for other in record.files if other != file))
        return None
    frozen(bits.buffer)
    return bits


def _put_aside(folder: Folder, name: str, problem: str) -> None:
    log.error("damaged_weights_file", file=name, problem=problem)
    folder.rename(name, f"{name}{DAMAGED_SUFFIX}")
