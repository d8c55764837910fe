"""From fetched files to a version beside the one that serves: check the plan, apply the files, say what changed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Manifest, TransferKind, TransferPlan
from astraflow.weights.delta import Patch, apply_delta, read_head
from astraflow.weights.tensors import Buffer, Run, check_manifest, frozen, has_same_layout, runs

PATCH_UP_TO_DENSITY = 0.25
"""Where a larger share of all elements changed, copying whole tensors is cheaper than patching them."""

Changes: TypeAlias = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A version that is laid out and not proven yet. `changes` as in `VerifiedWeights`."""

    buffer: Buffer
    changes: Changes | None
    changed_elements: int | None
    """None after a full transfer."""
    copy_s: float
    """Of it all, bringing the base over."""


def check_plan(plan: TransferPlan, *, base: Manifest | None, max_bytes: int) -> None:
    """Prove that a plan leads from `base` to its manifest, in sizes that can be true, before anything is allocated.

    Raises: CorruptData.
    """
    manifest = plan.manifest
    check_manifest(manifest, max_bytes=max_bytes)
    at = None if base is None else base.version
    for place, transfer in enumerate(plan.transfers):
        is_full = transfer.kind is TransferKind.FULL
        if transfer.policy != manifest.policy or (place > 0 if is_full else transfer.base != at):
            raise CorruptData(f"the plan for version {manifest.version} does not lead there from version {at}")
        if transfer.size_bytes > manifest.size_bytes or (is_full and transfer.size_bytes < manifest.size_bytes):
            raise CorruptData(f"the plan has a {transfer.kind.value} transfer of {transfer.size_bytes} bytes")
        if transfer.base is not None and transfer.target <= transfer.base:
            raise CorruptData(f"the plan has a delta from version {transfer.base} to {transfer.target}")
        at = transfer.target
    if at != manifest.version or not plan.transfers:
        raise CorruptData(f"the plan's {len(plan.transfers)} transfers end at version {at}, not at {manifest.version}")


def stage(
    plan: TransferPlan,
    files: Sequence[Buffer],
    *,
    base: tuple[Manifest, Buffer] | None,
    into: Buffer | None = None,
    workers: int = 1,
) -> Staged:
    """Apply the plan's files, in order, onto a copy of the base; the base stays as it is and goes on serving.

    into: where the copy goes, uint8 `[manifest.size_bytes]`; new memory when absent. The plan is checked already.
    Raises: CorruptData when a file does not apply; hashes are for `tensors.verify`.
    """
    old, deltas, root = _begin(plan, files, base=base)
    if not deltas:
        return Staged(buffer=frozen(old), changes=None, changed_elements=None, copy_s=0.0)
    began = time.perf_counter()
    buffer = np.empty_like(old) if into is None else into
    np.copyto(buffer, old)
    copy_s = time.perf_counter() - began
    patches = _apply_all(plan.manifest, deltas, buffer, root=root, workers=workers)
    if base is None or plan.transfers[0].kind is TransferKind.FULL:
        return Staged(buffer=frozen(buffer), changes=None, changed_elements=None, copy_s=copy_s)
    changes, changed_elements = _changes(plan.manifest, patches, old=old, new=buffer, is_chain=len(files) > 1)
    return Staged(buffer=frozen(buffer), changes=changes, changed_elements=changed_elements, copy_s=copy_s)


def mapped(manifest: Manifest, buffer: Buffer, *, base: tuple[Manifest, Buffer] | None) -> Staged:
    """A version that is there in full: what it changes is found by comparing, since patching pauses an engine less."""
    if base is None or not has_same_layout(base[0], manifest):
        return Staged(buffer=buffer, changes=None, changed_elements=None, copy_s=0.0)
    patches = [
        Patch(offset=run.offset, width=run.width, positions=np.flatnonzero(run.bits(base[1]) != run.bits(buffer)))
        for run in runs(manifest)
    ]
    changes, changed_elements = _changes(manifest, patches, old=base[1], new=buffer, is_chain=False)
    return Staged(buffer=buffer, changes=changes, changed_elements=changed_elements, copy_s=0.0)


def _begin(
    plan: TransferPlan, files: Sequence[Buffer], *, base: tuple[Manifest, Buffer] | None
) -> tuple[Buffer, Sequence[Buffer], bytes | None]:
    """What the deltas are applied to, the deltas, and the root hash of the former where it is known."""
    manifest = plan.manifest
    if plan.transfers[0].kind is TransferKind.FULL:
        return files[0], files[1:], None
    if base is None or not has_same_layout(base[0], manifest):
        raise CorruptData(f"a delta leads to version {manifest.version}, whose tensors differ from those of its base")
    return base[1], files, base[0].root_hash


def _apply_all(
    manifest: Manifest, deltas: Sequence[Buffer], buffer: Buffer, *, root: bytes | None, workers: int
) -> list[Patch]:
    patches: list[Patch] = []
    for delta in deltas:
        head = read_head(delta.data)
        if root is not None and head.base_root != root:
            raise CorruptData(f"a delta on the way to version {manifest.version} was made on other weights")
        patches += apply_delta(delta.data, manifest, buffer, workers=workers)
        root = head.target_root
    return patches


def _changes(
    manifest: Manifest, patches: Sequence[Patch], *, old: Buffer, new: Buffer, is_chain: bool
) -> tuple[Changes | None, int]:
    """For each tensor the positions that differ, unless they are so many that nobody wants them; and how many."""
    changes: dict[str, npt.NDArray[np.int64]] = {}
    changed_elements = 0
    for run in runs(manifest):
        positions = _positions_in(run, patches)
        if is_chain:  # elements may be listed twice, or have come back to what they were
            positions = np.unique(positions)
            positions = positions[run.bits(old)[positions] != run.bits(new)[positions]]
        changed_elements += len(positions)
        changes.update(_by_tensor(run, positions))
    elements = sum(tensor.elements for tensor in manifest.tensors)
    return (None if changed_elements > PATCH_UP_TO_DENSITY * elements else changes), changed_elements


def _positions_in(run: Run, patches: Sequence[Patch]) -> npt.NDArray[np.int64]:
    """Positions of one run's changes, counted from its start; sorted within each delta."""
    found = [
        patch.positions + (patch.offset - run.offset) // run.width for patch in patches if patch.width == run.width
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _by_tensor(run: Run, positions: npt.NDArray[np.int64]) -> Changes:
    """Sorted positions of a run, cut at the borders of its tensors; tensors without any are left out."""
    starts = [(tensor.offset - run.offset) // run.width for tensor in run.tensors]
    cuts = np.searchsorted(positions, [*starts, run.elements])
    return {
        tensor.name: positions[first:last] - start
        for tensor, start, first, last in zip(run.tensors, starts, cuts[:-1], cuts[1:], strict=True)
        if last > first
    }
