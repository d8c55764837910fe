"""A version's bits out of the files that lead to it, each proven."""

from collections.abc import Callable, Mapping

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Transfer
from astraflow.weights.chunks import check_file
from astraflow.weights.delta import apply_delta, read_head
from astraflow.weights.keeping.base import Folder
from astraflow.weights.plan import cheapest_way
from astraflow.weights.records import Record, file_name
from astraflow.weights.tensors import Buffer, verify

READ_BYTES = 16 * 2**20


class DamagedFileError(Exception):
    """A file is not what its record says; whoever owns the folder puts it aside."""

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
    """The bits of a version: its nearest full snapshot, read into what `into` makes, and the deltas after it.

    Raises: DamagedFileError, UnknownVersion when files were removed meanwhile.
    """
    manifest = records[version].manifest
    legs = [leg for record in records.values() for leg in record.legs]
    way = cheapest_way(legs, have=None, want=version)
    full, *deltas = [records[leg.target].file(leg.base) for leg in way]
    buffer = read_file(folder, full, into(full.size_bytes))
    root: bytes | None = None
    last = full
    try:
        for last in deltas:
            delta = read_file(folder, last, np.empty(last.size_bytes, dtype=np.uint8))
            head = read_head(delta.data)
            if root is not None and head.base_root != root:
                raise CorruptData(f"the delta to version {last.target} was made on other weights")
            apply_delta(delta.data, manifest, buffer, workers=workers)
            root = head.target_root
        verify(manifest, buffer, workers=workers)
    except CorruptData as problem:
        raise DamagedFileError(last, problem) from problem
    return buffer


def read_file(folder: Folder, file: Transfer, buffer: Buffer) -> Buffer:
    """Fill `buffer` with a file, proven by its hash. Raises: DamagedFileError, UnknownVersion."""
    source = folder.open(file_name(file))
    try:
        for offset in range(0, file.size_bytes, READ_BYTES):
            piece = source.read(offset, min(READ_BYTES, file.size_bytes - offset))
            buffer[offset : offset + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
    finally:
        source.close()
    try:
        check_file(file, buffer)
    except CorruptData as problem:
        raise DamagedFileError(file, problem) from problem
    return buffer
