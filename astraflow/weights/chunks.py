"""Encoded files in checksummed pieces; see `astraflow.weights.assembly` for the way back."""

from collections.abc import Iterator

from blake3 import blake3
from xxhash import xxh3_64_intdigest

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Chunk, Manifest, Transfer, TransferKind
from astraflow.weights.tensors import HASH_BYTES, Buffer

CHUNK_BYTES = 2**20


def split(data: bytes | memoryview, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The file `data` from `offset` on, as chunks that are views of it.

    >>> [(chunk.offset, bytes(chunk.data)) for chunk in split(b"abcde", offset=1, chunk_bytes=3)]
    [(1, b'bcd'), (4, b'e')]
    """
    view = memoryview(data)
    for start in range(offset, len(view), chunk_bytes):
        yield chunk_at(start, view[start : start + chunk_bytes])


def chunk_at(offset: int, data: bytes | memoryview) -> Chunk:
    """A chunk with its checksum."""
    return Chunk(offset=offset, data=data, checksum=xxh3_64_intdigest(data))


def check_chunk(chunk: Chunk, *, expected_offset: int, end: int) -> None:
    """Raises: CorruptData unless the chunk is whole, is the next one, is not empty, and stays inside the file."""
    if xxh3_64_intdigest(chunk.data) != chunk.checksum:
        raise CorruptData(f"the chunk at offset {chunk.offset} does not match its checksum")
    if chunk.offset != expected_offset or not 0 < len(chunk.data) <= end - chunk.offset:
        raise CorruptData(
            f"a chunk covers bytes {chunk.offset} to {chunk.offset + len(chunk.data)}, "
            f"expected to go on at {expected_offset} and end by {end}"
        )


def transfer_of(manifest: Manifest, data: bytes | memoryview, *, base: Version | None) -> Transfer:
    """What names the encoded file `data`: a full snapshot of the manifest's version, or the delta from `base` to it."""
    return Transfer(
        kind=TransferKind.FULL if base is None else TransferKind.DELTA,
        policy=manifest.policy,
        target=manifest.version,
        base=base,
        size_bytes=len(data),
        hash=blake3(data).digest(),
    )


def announced(manifest: Manifest) -> Transfer:
    """What stands for the file of a version whose bits are at hand: none is made or hashed, and nobody looks at its
    hash."""
    return Transfer(
        kind=TransferKind.FULL,
        policy=manifest.policy,
        target=manifest.version,
        base=None,
        size_bytes=manifest.size_bytes,
        hash=bytes(HASH_BYTES),
    )


def check_file(transfer: Transfer, data: Buffer) -> None:
    """Raises: CorruptData unless `data` is the file that `transfer` names."""
    if data.nbytes != transfer.size_bytes or blake3(data.data).digest() != transfer.hash:
        raise CorruptData(f"the {transfer.kind.value} file of version {transfer.target} does not match its hash")
