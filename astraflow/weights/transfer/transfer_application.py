"""Application of fetched files: checks the plan, builds the new version while the old one serves, lists the changes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Manifest, TransferKind, TransferPlan
from astraflow.weights.codec.delta import Patch, apply_delta, read_head
from astraflow.weights.tensors import Buffer, WidthRegion, check_manifest, frozen, has_same_layout, width_regions

PATCH_UP_TO_DENSITY = 0.25
"""Share of changed elements above which copying whole tensors is cheaper than patching them."""

Changes: TypeAlias = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTransfers:
    """A version that is assembled but not verified yet. `changes` as in `VerifiedWeights`."""

    buffer: Buffer
    changes: Changes | None
    changed_elements: int | None
    """Number of elements that differ from the base; None after a full transfer."""
    copy_s: float
    """Time for copying the base. Seconds."""


def check_plan(plan: TransferPlan, *, base: Manifest | None, max_bytes: int) -> None:
    """Checks that a plan leads from `base` to its manifest, with plausible sizes, before memory is allocated.

    Raises: CorruptData.
    """
    manifest = plan.manifest
    check_manifest(manifest, max_bytes=max_bytes)
    at = None if base is None else base.version
    for position, transfer in enumerate(plan.transfers):
        is_full = transfer.kind is TransferKind.FULL
        if transfer.policy != manifest.policy or (position > 0 if is_full else transfer.base != at):
            raise CorruptData(
                f"cannot use the plan for version {manifest.version}: it does not lead there from version {at}; plan "
                "again",
                code="weights.invalid_plan",
            )
        if transfer.size_bytes > manifest.size_bytes or (is_full and transfer.size_bytes < manifest.size_bytes):
            raise CorruptData(
                f"cannot use the plan for version {manifest.version}: a {transfer.kind.value} transfer of "
                f"{transfer.size_bytes} bytes is impossible; plan again",
                code="weights.invalid_plan",
            )
        if transfer.base is not None and transfer.target <= transfer.base:
            raise CorruptData(
                f"cannot use the plan for version {manifest.version}: it has a delta from version {transfer.base} to "
                f"{transfer.target}; plan again",
                code="weights.invalid_plan",
            )
        at = transfer.target
    if at != manifest.version or not plan.transfers:
        raise CorruptData(
            f"cannot use the plan for version {manifest.version}: its {len(plan.transfers)} transfers end at version "
            f"{at}; plan again",
            code="weights.invalid_plan",
        )


def apply_transfers(
    plan: TransferPlan,
    files: Sequence[Buffer],
    *,
    base: tuple[Manifest, Buffer] | None,
    into: Buffer | None = None,
    workers: int = 1,
) -> AppliedTransfers:
    """Applies the plan's files, in order, to a copy of the base; the base is unchanged and can still be served.

    into: target of the copy, uint8 `[manifest.size_bytes]`; new memory when absent. The plan must be checked already.
    Raises: CorruptData when a file does not apply; `tensors.verify` checks the hashes.
    """
    old, deltas, root = _starting_point(plan, files, base=base)
    if not deltas:
        return AppliedTransfers(buffer=frozen(old), changes=None, changed_elements=None, copy_s=0.0)
    began = time.perf_counter()
    buffer = np.empty_like(old) if into is None else into
    np.copyto(buffer, old)
    copy_s = time.perf_counter() - began
    patches = _apply_all(plan.manifest, deltas, buffer, root=root, workers=workers)
    if base is None or plan.transfers[0].kind is TransferKind.FULL:
        return AppliedTransfers(buffer=frozen(buffer), changes=None, changed_elements=None, copy_s=copy_s)
    changes, changed_elements = _changes(plan.manifest, patches, old=old, new=buffer, is_chain=len(files) > 1)
    return AppliedTransfers(buffer=frozen(buffer), changes=changes, changed_elements=changed_elements, copy_s=copy_s)


def compare_mapped(manifest: Manifest, buffer: Buffer, *, base: tuple[Manifest, Buffer] | None) -> AppliedTransfers:
    """Compares a mapped version with the base to find the changes, because patching pauses an engine for less time."""
    if base is None or not has_same_layout(base[0], manifest):
        return AppliedTransfers(buffer=buffer, changes=None, changed_elements=None, copy_s=0.0)
    patches = [
        Patch(
            offset=region.offset,
            width=region.width,
            positions=np.flatnonzero(region.bits(base[1]) != region.bits(buffer)),
        )
        for region in width_regions(manifest)
    ]
    changes, changed_elements = _changes(manifest, patches, old=base[1], new=buffer, is_chain=False)
    return AppliedTransfers(buffer=buffer, changes=changes, changed_elements=changed_elements, copy_s=0.0)


def _starting_point(
    plan: TransferPlan, files: Sequence[Buffer], *, base: tuple[Manifest, Buffer] | None
) -> tuple[Buffer, Sequence[Buffer], bytes | None]:
    """Returns the buffer that the deltas apply to, the deltas, and the buffer's root hash if known."""
    manifest = plan.manifest
    if plan.transfers[0].kind is TransferKind.FULL:
        return files[0], files[1:], None
    if base is None or not has_same_layout(base[0], manifest):
        raise CorruptData(
            f"cannot apply a delta to version {manifest.version}: its tensors differ from its base; fetch it in full",
            code="weights.layout_changed",
        )
    return base[1], files, base[0].root_hash


def _apply_all(
    manifest: Manifest, deltas: Sequence[Buffer], buffer: Buffer, *, root: bytes | None, workers: int
) -> list[Patch]:
    patches: list[Patch] = []
    for delta in deltas:
        head = read_head(delta.data)
        if root is not None and head.base_root != root:
            raise CorruptData(
                f"cannot apply a delta towards version {manifest.version}: its base has other weights; fetch the "
                "version in full",
                code="weights.base_mismatch",
            )
        patches += apply_delta(delta.data, manifest, buffer, workers=workers)
        root = head.target_root
    return patches


def _changes(
    manifest: Manifest, patches: Sequence[Patch], *, old: Buffer, new: Buffer, is_chain: bool
) -> tuple[Changes | None, int]:
    """Returns the differing positions of each tensor, None when there are too many to patch; and their number."""
    changes: dict[str, npt.NDArray[np.int64]] = {}
    changed_elements = 0
    for region in width_regions(manifest):
        positions = _positions_in(region, patches)
        if is_chain:  # elements may be listed twice, or have returned to their old value
            positions = np.unique(positions)
            positions = positions[region.bits(old)[positions] != region.bits(new)[positions]]
        changed_elements += len(positions)
        changes.update(_by_tensor(region, positions))
    elements = sum(tensor.elements for tensor in manifest.tensors)
    return (None if changed_elements > PATCH_UP_TO_DENSITY * elements else changes), changed_elements


def _positions_in(region: WidthRegion, patches: Sequence[Patch]) -> npt.NDArray[np.int64]:
    """Returns the positions of one region's changes, from its start; sorted within each delta."""
    positions = [
        patch.positions + (patch.offset - region.offset) // region.width
        for patch in patches
        if patch.width == region.width
    ]
    return np.concatenate(positions) if positions else np.empty(0, dtype=np.int64)


def _by_tensor(region: WidthRegion, positions: npt.NDArray[np.int64]) -> Changes:
    """Splits sorted positions of a region by tensor; unchanged tensors are omitted."""
    starts = [(tensor.offset - region.offset) // region.width for tensor in region.tensors]
    cuts = np.searchsorted(positions, [*starts, region.elements])
    return {
        tensor.name: positions[first:last] - start
        for tensor, start, first, last in zip(region.tensors, starts, cuts[:-1], cuts[1:], strict=True)
        if last > first
    }
