"""Encoded files as checksummed chunks; `astraflow.weights.transfer.assembly` is the reverse."""

from collections.abc import Iterator

from blake3 import blake3
from xxhash import xxh3_64_intdigest

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Chunk, Manifest, Transfer, TransferKind
from astraflow.weights.tensors import HASH_BYTES, Buffer

CHUNK_BYTES = 2**20


def split(data: bytes | memoryview, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yields the file `data` from `offset` on, as chunks that are views of it.

    >>> [(chunk.offset, bytes(chunk.data)) for chunk in split(b"abcde", offset=1, chunk_bytes=3)]
    [(1, b'bcd'), (4, b'e')]
    """
    view = memoryview(data)
    for start in range(offset, len(view), chunk_bytes):
        yield chunk_at(start, view[start : start + chunk_bytes])


def chunk_at(offset: int, data: bytes | memoryview) -> Chunk:
    """Returns a chunk with its checksum."""
    return Chunk(offset=offset, data=data, checksum=xxh3_64_intdigest(data))


def check_chunk(chunk: Chunk, *, expected_offset: int, end: int) -> None:
    """Checks that the chunk is intact, the next one, not empty, and inside the file. Raises: CorruptData."""
    if xxh3_64_intdigest(chunk.data) != chunk.checksum:
        raise CorruptData(
            f"cannot use the chunk at offset {chunk.offset}: it does not match its checksum; fetch it again",
            code="weights.checksum_mismatch",
        )
    if chunk.offset != expected_offset or not 0 < len(chunk.data) <= end - chunk.offset:
        raise CorruptData(
            f"cannot use a chunk of bytes {chunk.offset} to {chunk.offset + len(chunk.data)}: the next byte is "
            f"{expected_offset} and the file ends at {end}; fetch from there",
            code="weights.unexpected_chunk",
        )


def transfer_of(manifest: Manifest, data: bytes | memoryview, *, base: Version | None) -> Transfer:
    """Describes the file `data`: a full snapshot of the manifest's version, or the delta to it from `base`."""
    return Transfer(
        kind=TransferKind.FULL if base is None else TransferKind.DELTA,
        policy=manifest.policy,
        target=manifest.version,
        base=base,
        size_bytes=len(data),
        hash=blake3(data).digest(),
    )


def unhashed_transfer(manifest: Manifest) -> Transfer:
    """Returns a placeholder transfer for a version whose bits are already available: no file exists, and the hash is
    not used."""
    return Transfer(
        kind=TransferKind.FULL,
        policy=manifest.policy,
        target=manifest.version,
        base=None,
        size_bytes=manifest.size_bytes,
        hash=bytes(HASH_BYTES),
    )


def check_file(transfer: Transfer, data: Buffer) -> None:
    """Checks that `data` is the file that `transfer` describes. Raises: CorruptData."""
    if data.nbytes != transfer.size_bytes or blake3(data.data).digest() != transfer.hash:
        raise CorruptData(
            f"cannot use the {transfer.kind.value} file of version {transfer.target}: it does not match its hash; "
            "fetch it again",
            code="weights.hash_mismatch",
        )
