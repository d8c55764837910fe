"""The flat layout of a version: named tensors in a fixed order, as bits, proven by hashes."""

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
from astraflow.contract.weights import Dtype, Manifest, Probe, TensorSpec

Buffer: TypeAlias = npt.NDArray[np.uint8]
"""Flat little-endian bits of all tensors of a version."""

BitArray: TypeAlias = npt.NDArray[np.unsignedinteger]
"""Elements of one tensor as unsigned integers of the dtype's width."""

TensorShapes: TypeAlias = Mapping[str, tuple[Dtype, tuple[int, ...]]]
"""What a trainer publishes, version after version: name -> (dtype, shape)."""

SnapshotTensors: TypeAlias = Mapping[str, tuple[Dtype, tuple[int, ...], BitArray]]
"""One version as arrays: name -> (dtype, shape, flat bits)."""

Places: TypeAlias = Mapping[str, BitArray]
"""Where tensors go: name -> flat elements, a view of a version's buffer."""

BITS: Mapping[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Element width in bytes -> little-endian unsigned integer."""

MAX_VERSION_BYTES = 4 * 2**40
"""Largest version that is believed by default."""

MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 16
HASH_BYTES = 32
_ROOT_DOMAIN = b"astraflow weights root 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedWeights:
    """A version whose every byte was proven against its manifest: the only form in which an engine gets weights.

    buffer: uint8 `[manifest.size_bytes]`, read-only. changes: for each tensor that changed, the sorted int64 element
    positions that differ from version `base`, so that an engine that serves `base` patches in place. None after a full
    transfer, and when so much changed that copying whole tensors is cheaper than patching them. adapts: what these are
    added to, when they are low-rank adapters (`astraflow.weights.adapters`).
    """

    manifest: Manifest
    buffer: Buffer
    base: Version | None = None
    changes: Mapping[str, npt.NDArray[np.int64]] | None = None
    adapts: "VerifiedWeights | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A stretch of the flat buffer whose elements have the same width: what delta blocks are cut from."""

    offset: int
    """Bytes from the start of the buffer."""
    elements: int
    width: int
    """Bytes of an element."""
    tensors: tuple[TensorSpec, ...]

    def bits(self, buffer: Buffer) -> BitArray:
        """The run's elements, a view of `buffer`."""
        return buffer[self.offset : self.offset + self.elements * self.width].view(BITS[self.width])


def lay_out(shapes: TensorShapes) -> tuple[TensorSpec, ...]:
    """Places for tensors: back to back in the given order, wider types first, so all are aligned. Not hashed yet."""
    specs: list[TensorSpec] = []
    offset = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: -item[1][0].size_bytes):
        specs.append(TensorSpec(name=name, dtype=dtype, shape=tuple(shape), offset=offset))
        offset += specs[-1].size_bytes
    return tuple(specs)


def fill(specs: tuple[TensorSpec, ...], buffer: Buffer, tensors: SnapshotTensors) -> None:
    """Copy arrays to their places. Raises: InvalidInput when one does not fit its shape or dtype."""
    for spec in specs:
        bits = tensors[spec.name][2]
        if bits.dtype != BITS[spec.dtype.size_bytes] or bits.size != spec.elements:
            raise InvalidInput(
                f"tensor {spec.name}: {bits.size} elements of {bits.dtype} do not fill {spec.dtype.value} {spec.shape}"
            )
        tensor_bits(spec, buffer)[:] = bits.reshape(-1)


def seal(
    specs: tuple[TensorSpec, ...],
    buffer: Buffer,
    *,
    policy: PolicyId,
    version: Version,
    probe: Probe | None = None,
    metadata: Mapping[str, str] | None = None,
    workers: int = 1,
) -> Manifest:
    """Hash what was laid out; nobody may change the buffer any more. Raises: CorruptData when there is nothing."""
    hashes = tensor_hashes(specs, buffer, workers=workers)
    return sealed_with(specs, hashes, policy=policy, version=version, probe=probe, metadata=metadata)


def sealed_with(
    specs: Sequence[TensorSpec],
    hashes: Sequence[bytes],
    *,
    policy: PolicyId,
    version: Version,
    probe: Probe | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Manifest:
    """What was laid out, with the hash of each tensor. Raises: CorruptData when there is nothing."""
    hashed = tuple(replace(spec, hash=found) for spec, found in zip(specs, hashes, strict=True))
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
    """Arrays as a version in ordinary memory: laid out, copied and hashed; the buffer is read-only.

    Raises: InvalidInput when an array does not fit its shape or dtype.
    """
    specs = lay_out(shapes_of(tensors))
    buffer = np.empty(sum(spec.size_bytes for spec in specs), dtype=np.uint8)
    fill(specs, buffer, tensors)
    manifest = seal(specs, buffer, policy=policy, version=version, probe=probe, metadata=metadata, workers=workers)
    return manifest, frozen(buffer)


def shapes_of(tensors: SnapshotTensors) -> TensorShapes:
    """What arrays are of."""
    return {name: (dtype, tuple(shape)) for name, (dtype, shape, _) in tensors.items()}


def root_hash(tensors: tuple[TensorSpec, ...]) -> bytes:
    """BLAKE3 over names, types, shapes and hashes, in order; fields carry lengths, so nothing can be read two ways."""
    digest = blake3(_ROOT_DOMAIN)
    digest.update(struct.pack("<Q", len(tensors)))
    for tensor in tensors:
        name, dtype = tensor.name.encode(), tensor.dtype.value.encode()
        digest.update(struct.pack("<III", len(name), len(dtype), len(tensor.shape)) + name + dtype)
        digest.update(struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape) + tensor.hash)
    return digest.digest()


def check_manifest(manifest: Manifest, *, max_bytes: int = MAX_VERSION_BYTES) -> None:
    """Prove that a manifest describes the flat layout and matches its root hash, before anything is allocated for it.

    Raises: CorruptData naming the tensor.
    """
    seen: set[str] = set()
    offset, width = 0, max(BITS)
    for tensor in manifest.tensors:
        name = tensor.name
        _require(0 < len(name.encode()) <= MAX_NAME_BYTES, f"tensor name {name[:80]!r} is no name")
        _require(name not in seen, f"tensor {name} is listed twice")
        _require(len(tensor.hash) == HASH_BYTES, f"tensor {name} has a hash of {len(tensor.hash)} bytes")
        _require(len(tensor.shape) <= MAX_DIMENSIONS, f"tensor {name} has {len(tensor.shape)} dimensions")
        _require(all(0 <= size <= max_bytes for size in tensor.shape), f"tensor {name} has an impossible shape")
        _require(tensor.dtype.size_bytes <= width, f"tensor {name} stands after a narrower one")
        _require(tensor.offset == offset, f"tensor {name} is at offset {tensor.offset}, expected {offset}")
        seen.add(name)
        width = tensor.dtype.size_bytes
        offset += tensor.size_bytes
        _require(offset <= max_bytes, f"tensor {name} goes beyond the limit of {max_bytes} bytes for a version")
    _require(offset > 0, "it has no tensors")
    _require(root_hash(manifest.tensors) == manifest.root_hash, "the root hash does not match the tensors listed")


def verify(manifest: Manifest, buffer: Buffer, *, workers: int = 1) -> None:
    """Prove every byte of `buffer` against the manifest. Raises: CorruptData naming the first tensor that differs."""
    if buffer.nbytes != manifest.size_bytes:
        raise CorruptData(f"version {manifest.version}: {buffer.nbytes} bytes, expected {manifest.size_bytes}")
    for tensor, found in zip(manifest.tensors, tensor_hashes(manifest.tensors, buffer, workers=workers), strict=True):
        if found != tensor.hash:
            raise CorruptData(
                f"tensor {tensor.name} of {manifest.policy} version {manifest.version} does not match its hash"
            )
    if root_hash(manifest.tensors) != manifest.root_hash:
        raise CorruptData(f"{manifest.policy} version {manifest.version}: the root hash does not match the tensors")


def tensor_hashes(tensors: tuple[TensorSpec, ...], buffer: Buffer, *, start: int = 0, workers: int = 1) -> list[bytes]:
    """BLAKE3 of each tensor's bytes; tensors are shared out among `workers` threads. start: where `buffer` begins in
    the version."""

    def hashed(tensor: TensorSpec) -> bytes:
        first = tensor.offset - start
        return blake3(buffer[first : first + tensor.size_bytes].data).digest()

    if workers == 1:
        return [hashed(tensor) for tensor in tensors]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(hashed, tensors))


def tensor_bits(tensor: TensorSpec, buffer: Buffer) -> BitArray:
    """One tensor's elements as unsigned integers: a flat view of `buffer`."""
    return buffer[tensor.offset : tensor.offset + tensor.size_bytes].view(BITS[tensor.dtype.size_bytes])


def runs(manifest: Manifest) -> Iterator[Run]:
    """The stretches of equal element width, in order; at most one for each width."""
    for width, group in groupby(manifest.tensors, key=lambda tensor: tensor.dtype.size_bytes):
        tensors = tuple(group)
        yield Run(
            offset=tensors[0].offset, elements=sum(tensor.elements for tensor in tensors), width=width, tensors=tensors
        )


def has_same_layout(one: Manifest, other: Manifest) -> bool:
    """Whether two versions have the same tensors in the same places, so that a delta between them has a meaning."""
    return [(t.name, t.dtype, t.shape) for t in one.tensors] == [(t.name, t.dtype, t.shape) for t in other.tensors]


def frozen(buffer: Buffer) -> Buffer:
    """The same buffer, read-only from now on."""
    buffer.flags.writeable = False
    return buffer


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CorruptData(f"bad manifest: {otherwise}")
