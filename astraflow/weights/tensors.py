"""Flat layout of a version: named tensors in a fixed order, as bits, verified by hashes."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Part, Probe, TensorSpec

Buffer: TypeAlias = npt.NDArray[np.uint8]
"""Flat little-endian bits of all tensors of a version."""

BitArray: TypeAlias = npt.NDArray[np.unsignedinteger]
"""Elements of one tensor as unsigned integers of the dtype's width."""

TensorShapes: TypeAlias = Mapping[str, tuple[Dtype, tuple[int, ...]]]
"""Shapes of a policy's published tensors, the same in all versions: name -> (dtype, shape)."""

SnapshotTensors: TypeAlias = Mapping[str, tuple[Dtype, tuple[int, ...], BitArray]]
"""One version as arrays: name -> (dtype, shape, flat bits)."""

TensorViews: TypeAlias = Mapping[str, BitArray]
"""Target of each tensor: name -> flat elements, a view of a version's buffer."""

BITS: Mapping[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Element width in bytes -> little-endian unsigned integer."""

MAX_VERSION_BYTES = 4 * 2**40
"""Default limit of a version's size."""

MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 16
HASH_BYTES = 32
_ROOT_DOMAIN = b"astraflow weights root 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedWeights:
    """A version whose every byte was verified against its manifest: the only form in which an engine gets weights.

    buffer: uint8 `[manifest.size_bytes]`, read-only. changes: for each tensor that changed, the sorted int64 element
    positions that differ from version `base`, so that an engine that serves `base` patches in place; None after a full
    transfer, and when so much changed that copying whole tensors is cheaper than patching them. adapter_base: weights
    that these are added to, when they are low-rank adapters (`astraflow.weights.adapters`).
    """

    manifest: Manifest
    buffer: Buffer
    base: Version | None = None
    changes: Mapping[str, npt.NDArray[np.int64]] | None = None
    adapter_base: "VerifiedWeights | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthRegion:
    """Region of the flat buffer whose elements have the same width; delta blocks are cut from it."""

    offset: int
    """Offset from the start of the buffer. Bytes."""
    elements: int
    width: int
    """Size of an element. Bytes."""
    tensors: tuple[TensorSpec, ...]

    def bits(self, buffer: Buffer) -> BitArray:
        return buffer[self.offset : self.offset + self.elements * self.width].view(BITS[self.width])


def lay_out(shapes: TensorShapes) -> tuple[TensorSpec, ...]:
    """Assigns offsets to tensors: back to back in the given order, wider types first, so all are aligned; hashes stay
    empty."""
    specs: list[TensorSpec] = []
    offset = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: -item[1][0].size_bytes):
        specs.append(TensorSpec(name=name, dtype=dtype, shape=tuple(shape), offset=offset))
        offset += specs[-1].size_bytes
    return tuple(specs)


def fill(specs: tuple[TensorSpec, ...], buffer: Buffer, tensors: SnapshotTensors) -> None:
    """Copies arrays into the buffer. Raises: InvalidInput when an array does not match its shape or dtype."""
    for spec in specs:
        bits = tensors[spec.name][2]
        if bits.dtype != BITS[spec.dtype.size_bytes] or bits.size != spec.elements:
            raise InvalidInput(
                f"cannot write tensor {spec.name!r}: {bits.size} elements of {bits.dtype} do not match "
                f"{spec.dtype.value} {spec.shape}; give as many unsigned integers of the dtype's width",
                code="weights.shape_mismatch",
            )
        tensor_bits(spec, buffer)[:] = bits.reshape(-1)


def hash_into_manifest(
    specs: tuple[TensorSpec, ...],
    buffer: Buffer,
    *,
    policy: PolicyId,
    version: Version,
    probe: Probe | None = None,
    metadata: Mapping[str, str] | None = None,
    workers: int = 1,
) -> Manifest:
    """Hashes a filled buffer, which must not change afterwards. Raises: CorruptData when there are no tensors."""
    hashes = tensor_hashes(specs, buffer, workers=workers)
    return manifest_from_hashes(specs, hashes, policy=policy, version=version, probe=probe, metadata=metadata)


def manifest_from_hashes(
    specs: Sequence[TensorSpec],
    hashes: Sequence[bytes],
    *,
    policy: PolicyId,
    version: Version,
    probe: Probe | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Manifest:
    """Builds a manifest from the layout and the hash of each tensor. Raises: CorruptData when there are no tensors."""
    hashed = tuple(replace(spec, hash=tensor_hash) for spec, tensor_hash in zip(specs, hashes, strict=True))
    manifest = Manifest(
        policy=policy,
        version=version,
        tensors=hashed,
        root_hash=root_hash(hashed),
        metadata=dict(metadata or {}),
        probe=probe,
    )
    check_manifest(manifest)
    return manifest


def build_layout(
    tensors: SnapshotTensors,
    *,
    policy: PolicyId,
    version: Version,
    probe: Probe | None = None,
    metadata: Mapping[str, str] | None = None,
    workers: int = 1,
) -> tuple[Manifest, Buffer]:
    """Builds a version from arrays in private memory: laid out, copied and hashed; the buffer is read-only.

    Raises: InvalidInput when an array does not match its shape or dtype.
    """
    specs = lay_out(shapes_of(tensors))
    buffer = np.empty(sum(spec.size_bytes for spec in specs), dtype=np.uint8)
    fill(specs, buffer, tensors)
    manifest = hash_into_manifest(
        specs, buffer, policy=policy, version=version, probe=probe, metadata=metadata, workers=workers
    )
    return manifest, frozen(buffer)


def shapes_of(tensors: SnapshotTensors) -> TensorShapes:
    """Returns dtype and shape of each array."""
    return {name: (dtype, tuple(shape)) for name, (dtype, shape, _) in tensors.items()}


def root_hash(tensors: tuple[TensorSpec, ...]) -> bytes:
    """Returns BLAKE3 over names, types, shapes and hashes, in order; each field has its length."""
    digest = blake3(_ROOT_DOMAIN)
    digest.update(struct.pack("<Q", len(tensors)))
    for tensor in tensors:
        name, dtype = tensor.name.encode(), tensor.dtype.value.encode()
        digest.update(struct.pack("<III", len(name), len(dtype), len(tensor.shape)) + name + dtype)
        digest.update(struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape) + tensor.hash)
    return digest.digest()


def check_manifest(manifest: Manifest, *, max_bytes: int = MAX_VERSION_BYTES) -> None:
    """Checks that a manifest has the flat layout and matches its root hash, before memory is allocated for it.

    Raises: CorruptData naming the tensor.
    """
    names: set[str] = set()
    offset, width = 0, max(BITS)
    for tensor in manifest.tensors:
        name = tensor.name
        _require(0 < len(name.encode()) <= MAX_NAME_BYTES, f"tensor name {name[:80]!r} is empty or too long")
        _require(name not in names, f"tensor {name!r} is listed twice")
        _require(len(tensor.hash) == HASH_BYTES, f"tensor {name!r} has a hash of {len(tensor.hash)} bytes")
        _require(len(tensor.shape) <= MAX_DIMENSIONS, f"tensor {name!r} has {len(tensor.shape)} dimensions")
        _require(all(0 <= size <= max_bytes for size in tensor.shape), f"tensor {name!r} has an impossible shape")
        _require(tensor.dtype.size_bytes <= width, f"tensor {name!r} follows a narrower one")
        _require(tensor.offset == offset, f"tensor {name!r} is at offset {tensor.offset}, expected {offset}")
        names.add(name)
        width = tensor.dtype.size_bytes
        offset += tensor.size_bytes
        _require(offset <= max_bytes, f"tensor {name!r} exceeds the limit of {max_bytes} bytes for a version")
    _require(offset > 0, "it has no tensors")
    _require(root_hash(manifest.tensors) == manifest.root_hash, "the root hash does not match the tensors listed")


def verify(manifest: Manifest, buffer: Buffer, *, workers: int = 1) -> None:
    """Verifies every byte of `buffer` against the manifest. Raises: CorruptData naming the first bad tensor."""
    if buffer.nbytes != manifest.size_bytes:
        raise CorruptData(
            f"cannot use version {manifest.version} of {manifest.policy!r}: it has {buffer.nbytes} bytes, expected "
            f"{manifest.size_bytes}; fetch it again",
            code="weights.size_mismatch",
        )
    hashes = tensor_hashes(manifest.tensors, buffer, workers=workers)
    for tensor, tensor_hash in zip(manifest.tensors, hashes, strict=True):
        if tensor_hash != tensor.hash:
            raise CorruptData(
                f"cannot use version {manifest.version} of {manifest.policy!r}: tensor {tensor.name!r} does not match "
                "its hash; fetch it again",
                code="weights.hash_mismatch",
            )
    if root_hash(manifest.tensors) != manifest.root_hash:
        raise CorruptData(
            f"cannot use version {manifest.version} of {manifest.policy!r}: the root hash does not match the tensors; "
            "fetch it again",
            code="weights.hash_mismatch",
        )


def tensor_hashes(tensors: tuple[TensorSpec, ...], buffer: Buffer, *, start: int = 0, workers: int = 1) -> list[bytes]:
    """Returns BLAKE3 of each tensor's bits, computed on `workers` threads. start: offset of `buffer` in the version."""

    def hashed(tensor: TensorSpec) -> bytes:
        first = tensor.offset - start
        return blake3(buffer[first : first + tensor.size_bytes].data).digest()

    if workers == 1:
        return [hashed(tensor) for tensor in tensors]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(hashed, tensors))


def tensor_bits(tensor: TensorSpec, buffer: Buffer) -> BitArray:
    """Returns one tensor's elements as unsigned integers: a flat view of `buffer`."""
    return buffer[tensor.offset : tensor.offset + tensor.size_bytes].view(BITS[tensor.dtype.size_bytes])


def width_regions(manifest: Manifest) -> Iterator[WidthRegion]:
    """Yields the regions of equal element width, in order; at most one for each width."""
    for width, group in groupby(manifest.tensors, key=lambda tensor: tensor.dtype.size_bytes):
        tensors = tuple(group)
        yield WidthRegion(
            offset=tensors[0].offset, elements=sum(tensor.elements for tensor in tensors), width=width, tensors=tensors
        )


def has_same_layout(first: Manifest, other: Manifest) -> bool:
    """Returns whether two versions have the same tensors at the same offsets, as a delta between them requires."""
    return [(t.name, t.dtype, t.shape) for t in first.tensors] == [(t.name, t.dtype, t.shape) for t in other.tensors]


def frozen(buffer: Buffer) -> Buffer:
    """Makes the buffer read-only and returns it."""
    buffer.flags.writeable = False
    return buffer


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise CorruptData(
            f"cannot use a manifest: {problem}; publish the version again", code="weights.invalid_manifest"
        )


def split_by_bytes(specs: Sequence[TensorSpec], count: int) -> tuple[tuple[TensorSpec, ...], ...]:
    """Splits tensors in layout order into `count` runs of nearly equal bytes; a run may be empty.

    >>> from astraflow.contract.weights import Dtype
    >>> specs = [TensorSpec(name=f"t{at}", dtype=Dtype.BFLOAT16, shape=(4,), offset=8 * at) for at in range(3)]
    >>> [[spec.name for spec in run] for run in split_by_bytes(specs, 2)]
    [['t0'], ['t1', 't2']]
    """
    total = sum(spec.size_bytes for spec in specs)
    runs: list[list[TensorSpec]] = [[] for _ in range(count)]
    for spec in specs:
        middle = spec.offset + spec.size_bytes / 2
        runs[min(count - 1, int(middle * count / total)) if total else 0].append(spec)
    return tuple(tuple(run) for run in runs)


def part_covering(specs: Sequence[TensorSpec]) -> Part | None:
    """Returns the part that a run of tensors covers; None when it has no bytes."""
    size_bytes = sum(spec.size_bytes for spec in specs)
    return Part(offset=specs[0].offset, size_bytes=size_bytes) if size_bytes else None


def part_manifest(manifest: Manifest, part: Part) -> Manifest:
    """Returns a part as a small version of its own, without empty tensors: its tensors in order, from offset 0, with
    their root hash, so that it is transferred like any version. Raises: InvalidInput when it splits a tensor."""
    inside = [spec for spec in manifest.tensors if spec.size_bytes and part.offset <= spec.offset < part.end]
    if not inside or inside[0].offset != part.offset or inside[-1].offset + inside[-1].size_bytes != part.end:
        raise InvalidInput(
            f"cannot use bytes {part.offset} to {part.end} as a part of version {manifest.version} of "
            f"{manifest.policy!r}: they do not begin and end at tensor boundaries; use whole tensors",
            code="weights.part_splits_tensor",
        )
    tensors = tuple(replace(spec, offset=spec.offset - part.offset) for spec in inside)
    return Manifest(policy=manifest.policy, version=manifest.version, tensors=tensors, root_hash=root_hash(tensors))
