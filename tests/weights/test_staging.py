from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Transfer, TransferPlan
from astraflow.weights.staging import check_plan, stage
from astraflow.weights.tensors import MAX_VERSION_BYTES, Buffer, SnapshotTensors, tensor_bits, verify
from tests.weights.versions import delta_file, full_file, history, layout, snapshot, stepped


def _chain(snapshots: Sequence[SnapshotTensors]) -> tuple[list[tuple[Manifest, Buffer]], TransferPlan, list[Buffer]]:
    """Layouts of all versions, the plan of deltas from the first to the last, and its files."""
    versions = [layout(tensors, version) for version, tensors in enumerate(snapshots)]
    files = [delta_file(base, target) for base, target in pairwise(versions)]
    plan = TransferPlan(manifest=versions[-1][0], transfers=tuple(transfer for transfer, _ in files))
    return versions, plan, [np.frombuffer(data, dtype=np.uint8) for _, data in files]


def _true_changes(manifest: Manifest, old: Buffer, new: Buffer) -> dict[str, list[int]]:
    found = {
        spec.name: np.flatnonzero(tensor_bits(spec, old) != tensor_bits(spec, new)).tolist()
        for spec in manifest.tensors
    }
    return {name: positions for name, positions in found.items() if positions}


@pytest.mark.parametrize("versions_behind", [1, 2, 5])
def test_deltas_are_applied_beside_the_base_and_changes_named(versions_behind: int) -> None:
    versions, plan, files = _chain(history(versions_behind + 1))
    manifest, before = versions[0][0], versions[0][1].copy()

    staged = stage(plan, files, base=versions[0])

    verify(plan.manifest, staged.buffer)
    verify(manifest, before)
    assert np.array_equal(versions[0][1], before)
    assert staged.changes is not None
    changes = {name: positions.tolist() for name, positions in staged.changes.items()}
    assert changes == _true_changes(manifest, before, versions[-1][1])
    assert staged.changed_elements == sum(len(positions) for positions in changes.values())


def test_what_changed_and_changed_back_is_no_change() -> None:
    first = snapshot()
    versions, plan, files = _chain([first, stepped(first, 1), first])

    staged = stage(plan, files, base=versions[0])

    assert staged.changes == {}
    verify(plan.manifest, staged.buffer)


def test_where_most_changed_no_positions_are_listed() -> None:
    versions, plan, files = _chain(history(2, density=0.4))

    staged = stage(plan, files, base=versions[0])

    assert staged.changes is None
    assert staged.changed_elements
    verify(plan.manifest, staged.buffer)


def test_a_full_snapshot_lists_no_changes() -> None:
    version = layout(snapshot(), 3)
    transfer, data = full_file(*version)
    plan = TransferPlan(manifest=version[0], transfers=(transfer,))

    staged = stage(plan, [np.frombuffer(data, dtype=np.uint8)], base=layout(snapshot(1), 2))

    assert (staged.changes, staged.changed_elements) == (None, None)
    verify(version[0], staged.buffer)


def test_an_anchor_and_deltas_lead_to_the_newest_version() -> None:
    versions, plan, files = _chain(history(3))
    transfer, data = full_file(*versions[0])

    staged = stage(
        replace(plan, transfers=(transfer, *plan.transfers)), [np.frombuffer(data, dtype=np.uint8), *files], base=None
    )

    assert staged.changes is None
    verify(plan.manifest, staged.buffer)


def test_a_delta_on_other_weights_is_refused() -> None:
    _, plan, files = _chain(history(2))
    other = layout(snapshot(9), 0)

    with pytest.raises(CorruptData, match="made on other weights"):
        stage(plan, files, base=other)


def test_a_delta_between_other_tensors_is_refused() -> None:
    _, plan, files = _chain(history(2))
    other = layout({"w": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))}, 0)

    with pytest.raises(CorruptData, match="tensors differ"):
        stage(plan, files, base=other)


def _lies(plan: TransferPlan) -> dict[str, tuple[Transfer, ...]]:
    first, second = plan.transfers
    full, _ = full_file(*layout(snapshot(), 2))
    return {
        "nothing": (),
        "not from our version": (second,),
        "not to the newest": (first,),
        "out of order": (second, first),
        "a full one in the middle": (first, full),
        "another policy": (replace(first, policy=PolicyId("verifier")), second),
        "a delta larger than the version": (first, replace(second, size_bytes=2**60)),
        "a full one larger than the version": (replace(full, size_bytes=2**60),),
        "a full one smaller than the version": (replace(full, size_bytes=1),),
    }


LYING = sorted(_lies(_chain(history(3))[1]))


@pytest.mark.parametrize("kind", LYING)
def test_a_plan_that_cannot_be_true_is_refused(kind: str) -> None:
    versions, plan, _ = _chain(history(3))
    check_plan(plan, base=versions[0][0], max_bytes=MAX_VERSION_BYTES)

    with pytest.raises(CorruptData):
        check_plan(replace(plan, transfers=_lies(plan)[kind]), base=versions[0][0], max_bytes=MAX_VERSION_BYTES)


def test_deltas_without_a_base_are_refused() -> None:
    _, plan, _ = _chain(history(2))

    with pytest.raises(CorruptData, match="from version None"):
        check_plan(plan, base=None, max_bytes=MAX_VERSION_BYTES)


def test_the_base_is_named_by_its_version() -> None:
    versions, plan, _ = _chain(history(2))

    with pytest.raises(CorruptData, match="from version 9"):
        check_plan(plan, base=replace(versions[0][0], version=Version(9)), max_bytes=MAX_VERSION_BYTES)
