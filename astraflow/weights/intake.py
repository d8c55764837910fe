"""From what a publisher sent to a proven version, and the delta that leads to it."""

from dataclasses import dataclass

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Manifest, Transfer
from astraflow.weights.bits import Bits
from astraflow.weights.chunks import check_file, transfer_of
from astraflow.weights.delta import apply_delta, encode_delta, read_head
from astraflow.weights.tensors import Buffer, frozen, has_same_layout, runs, verify

COMPARED_ELEMENTS = 2**22
"""Compared at a time: what is noted down about them fits a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What a publisher sent: the version in full, the delta that leads to it from the newest one, or both."""

    bits: Bits | None
    delta: Buffer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A version as it is served from now on, and the file that keeps it."""

    bits: Bits
    file: Transfer
    data: memoryview
    """The file's bytes."""
    changed_elements: int
    """0 when not known."""


def prove(
    manifest: Manifest,
    transfer: Transfer,
    arrived: Arrived,
    *,
    base: tuple[Manifest, Bits] | None,
    workers: int = 1,
) -> Proven:
    """The version, every bit of it proven against its manifest, and its file: the delta where that is smaller.

    A delta that arrived beside the bits is proven to lead to them; where none arrived, or one that begins elsewhere,
    it is made here, so that followers need not fetch the version in full.
    Raises: CorruptData.
    """
    delta, follows = arrived.delta, base is not None and transfer.base == base[0].version
    if delta is not None:
        check_file(transfer, delta)
    if arrived.bits is None:
        return _applied(manifest, transfer, delta, base=base, workers=workers)
    verify(manifest, arrived.bits.buffer, workers=workers)
    if delta is not None and base is not None and follows:
        scratch = np.empty(manifest.size_bytes, dtype=np.uint8)
        changed = _stepped(manifest, delta, base=base, into=scratch, workers=workers)
        if changed_elements(manifest, scratch, arrived.bits.buffer):
            raise CorruptData(f"the delta to version {manifest.version} does not lead to the bits it was sent with")
        return Proven(bits=arrived.bits, file=transfer, data=delta.data, changed_elements=changed)
    return _derived(manifest, arrived.bits, base=base, workers=workers)


def changed_elements(manifest: Manifest, old: Buffer, new: Buffer) -> int:
    """How many elements differ between two versions of one layout."""
    changed = 0
    for run in runs(manifest):
        before, after = run.bits(old), run.bits(new)
        for start in range(0, run.elements, COMPARED_ELEMENTS):
            chosen = slice(start, start + COMPARED_ELEMENTS)
            changed += int(np.count_nonzero(before[chosen] != after[chosen]))
    return changed


def _applied(
    manifest: Manifest, transfer: Transfer, delta: Buffer | None, *, base: tuple[Manifest, Bits] | None, workers: int
) -> Proven:
    if delta is None or base is None:
        raise CorruptData(f"nothing leads to version {manifest.version}")
    bits = Bits.made(manifest.size_bytes)
    changed = _stepped(manifest, delta, base=base, into=bits.buffer, workers=workers)
    verify(manifest, bits.buffer, workers=workers)
    frozen(bits.buffer)
    return Proven(bits=bits, file=transfer, data=delta.data, changed_elements=changed)


def _stepped(manifest: Manifest, delta: Buffer, *, base: tuple[Manifest, Bits], into: Buffer, workers: int) -> int:
    """Fill `into` with what a delta makes of its base; returns how many elements it changed."""
    if not has_same_layout(base[0], manifest):
        raise CorruptData(f"a delta leads to version {manifest.version}, whose tensors differ from those of its base")
    if read_head(delta.data).base_root != base[0].root_hash:
        raise CorruptData(f"the delta to version {manifest.version} was made on other weights")
    into[:] = base[1].buffer
    patches = apply_delta(delta.data, manifest, into, workers=workers)
    return sum(len(patch.positions) for patch in patches)


def _derived(manifest: Manifest, bits: Bits, *, base: tuple[Manifest, Bits] | None, workers: int) -> Proven:
    """The delta to bits that arrived in full; the full snapshot where there is none, or a larger one."""
    changed = 0
    if base is not None and has_same_layout(base[0], manifest):
        delta = encode_delta(base[0], base[1].buffer, manifest, bits.buffer, workers=workers)
        changed = delta.changed_elements
        if len(delta.data) < manifest.size_bytes:
            file = transfer_of(manifest, delta.data, base=base[0].version)
            return Proven(bits=bits, file=file, data=memoryview(delta.data), changed_elements=changed)
    full = transfer_of(manifest, bits.buffer.data, base=None)
    return Proven(bits=bits, file=full, data=bits.buffer.data, changed_elements=changed)
