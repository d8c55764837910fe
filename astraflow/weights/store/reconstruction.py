"""Reconstruction of a version's bits from its files, each verified."""

from collections.abc import Callable, Mapping

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Transfer
from astraflow.weights.codec.chunks import check_file
from astraflow.weights.codec.delta import apply_delta, read_head
from astraflow.weights.store.records import Record, cheapest_route, file_name
from astraflow.weights.store.storage.base import Folder
from astraflow.weights.tensors import Buffer, verify

READ_BYTES = 16 * 2**20


class DamagedFileError(Exception):
    """A file does not match its record; the owner of the folder quarantines it."""

    def __init__(self, file: Transfer, problem: CorruptData) -> None:
        super().__init__(str(problem))
        self.file = file


def rebuild(
    folder: Folder,
    records: Mapping[Version, Record],
    version: Version,
    *,
    into: Callable[[int], Buffer],
    workers: int = 1,
) -> Buffer:
    """Returns the bits of a version: its nearest full snapshot, read into the buffer from `into`, plus later deltas.

    Raises: DamagedFileError, UnknownVersion when files were removed meanwhile.
    """
    manifest = records[version].manifest
    segments = [segment for record in records.values() for segment in record.segments]
    route = cheapest_route(segments, have=None, want=version)
    full, *deltas = [records[segment.target].file(segment.base) for segment in route]
    buffer = read_file(folder, full, into(full.size_bytes))
    root: bytes | None = None
    last = full
    try:
        for last in deltas:
            delta = read_file(folder, last, np.empty(last.size_bytes, dtype=np.uint8))
            head = read_head(delta.data)
            if root is not None and head.base_root != root:
                raise CorruptData(
                    f"cannot apply the delta to version {last.target}: its base has other weights; the file is set "
                    "aside",
                    code="weights.base_mismatch",
                )
            apply_delta(delta.data, manifest, buffer, workers=workers)
            root = head.target_root
        verify(manifest, buffer, workers=workers)
    except CorruptData as problem:
        raise DamagedFileError(last, problem) from problem
    return buffer


def read_file(folder: Folder, file: Transfer, buffer: Buffer) -> Buffer:
    """Fills `buffer` with a file, verified by its hash. Raises: DamagedFileError, UnknownVersion."""
    reader = folder.open(file_name(file))
    try:
        for offset in range(0, file.size_bytes, READ_BYTES):
            piece = reader.read(offset, min(READ_BYTES, file.size_bytes - offset))
            buffer[offset : offset + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
    finally:
        reader.close()
    try:
        check_file(file, buffer)
    except CorruptData as problem:
        raise DamagedFileError(file, problem) from problem
    return buffer
