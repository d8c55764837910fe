"""Verification of uploads, and encoding of the delta to the new version where none was sent."""

from dataclasses import dataclass

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Manifest, Transfer
from astraflow.weights.codec.chunks import check_file, transfer_of
from astraflow.weights.codec.delta import apply_delta, encode_delta, read_head
from astraflow.weights.shared_memory import VersionBuffer
from astraflow.weights.tensors import Buffer, frozen, has_same_layout, verify, width_regions

COMPARED_ELEMENTS = 2**22
"""Elements compared at a time, so that intermediate arrays fit a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedUpload:
    """Data of a publisher: the full version, the delta to it from the newest version, or both."""

    bits: VersionBuffer | None
    delta: Buffer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedUpload:
    """A version as it is served from now on, and its file in storage."""

    bits: VersionBuffer
    file: Transfer
    data: memoryview
    """Content of the file."""
    changed_elements: int
    """Elements that differ from the base; 0 when unknown."""


def verify_upload(
    manifest: Manifest,
    transfer: Transfer,
    received: ReceivedUpload,
    *,
    base: tuple[Manifest, VersionBuffer] | None,
    workers: int = 1,
) -> VerifiedUpload:
    """Returns the version, every bit verified against its manifest, and its file: the delta if it is smaller than the
    version.

    A delta that arrived with the bits must lead to these bits. Without a delta, or for a delta on another base, a delta
    is encoded here, so that watchers need not fetch the version in full. Raises: CorruptData.
    """
    delta, is_on_newest = received.delta, base is not None and transfer.base == base[0].version
    if delta is not None:
        check_file(transfer, delta)
    if received.bits is None:
        return _verify_delta(manifest, transfer, delta, base=base, workers=workers)
    verify(manifest, received.bits.buffer, workers=workers)
    if delta is not None and base is not None and is_on_newest:
        scratch = np.empty(manifest.size_bytes, dtype=np.uint8)
        changed = _apply_to_base(manifest, delta, base=base, into=scratch, workers=workers)
        if changed_elements(manifest, scratch, received.bits.buffer):
            raise CorruptData(
                f"cannot accept version {manifest.version}: its delta does not lead to the bits it was sent with; "
                "publish in full",
                code="weights.delta_mismatch",
            )
        return VerifiedUpload(bits=received.bits, file=transfer, data=delta.data, changed_elements=changed)
    return _encode_file(manifest, received.bits, base=base, workers=workers)


def changed_elements(manifest: Manifest, old: Buffer, new: Buffer) -> int:
    """Returns the number of elements that differ between two versions of one layout."""
    changed = 0
    for region in width_regions(manifest):
        before, after = region.bits(old), region.bits(new)
        for start in range(0, region.elements, COMPARED_ELEMENTS):
            block = slice(start, start + COMPARED_ELEMENTS)
            changed += int(np.count_nonzero(before[block] != after[block]))
    return changed


def _verify_delta(
    manifest: Manifest,
    transfer: Transfer,
    delta: Buffer | None,
    *,
    base: tuple[Manifest, VersionBuffer] | None,
    workers: int,
) -> VerifiedUpload:
    if delta is None or base is None:
        raise CorruptData(
            f"cannot accept version {manifest.version}: the store has no base for it; publish in full",
            code="weights.no_base",
        )
    bits = VersionBuffer.allocate(manifest.size_bytes)
    changed = _apply_to_base(manifest, delta, base=base, into=bits.buffer, workers=workers)
    verify(manifest, bits.buffer, workers=workers)
    frozen(bits.buffer)
    return VerifiedUpload(bits=bits, file=transfer, data=delta.data, changed_elements=changed)


def _apply_to_base(
    manifest: Manifest, delta: Buffer, *, base: tuple[Manifest, VersionBuffer], into: Buffer, workers: int
) -> int:
    """Fills `into` with the result of a delta on its base; returns the number of changed elements."""
    if not has_same_layout(base[0], manifest):
        raise CorruptData(
            f"cannot apply a delta to version {manifest.version}: its tensors differ from its base; publish in full",
            code="weights.layout_changed",
        )
    if read_head(delta.data).base_root != base[0].root_hash:
        raise CorruptData(
            f"cannot apply the delta to version {manifest.version}: its base has other weights than the store; publish "
            "in full",
            code="weights.base_mismatch",
        )
    into[:] = base[1].buffer
    patches = apply_delta(delta.data, manifest, into, workers=workers)
    return sum(len(patch.positions) for patch in patches)


def _encode_file(
    manifest: Manifest, bits: VersionBuffer, *, base: tuple[Manifest, VersionBuffer] | None, workers: int
) -> VerifiedUpload:
    """Encodes a delta to bits that arrived in full; returns the full snapshot where no delta exists or it is larger."""
    changed = 0
    if base is not None and has_same_layout(base[0], manifest):
        delta = encode_delta(base[0], base[1].buffer, manifest, bits.buffer, workers=workers)
        changed = delta.changed_elements
        if len(delta.data) < manifest.size_bytes:
            file = transfer_of(manifest, delta.data, base=base[0].version)
            return VerifiedUpload(bits=bits, file=file, data=memoryview(delta.data), changed_elements=changed)
    full = transfer_of(manifest, bits.buffer.data, base=None)
    return VerifiedUpload(bits=bits, file=full, data=bits.buffer.data, changed_elements=changed)
