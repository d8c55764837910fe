from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import AstraFlowError, CorruptData
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Transfer, TransferPlan
from astraflow.weights.tensors import MAX_VERSION_BYTES, Buffer, SnapshotTensors, root_hash, tensor_bits, verify
from astraflow.weights.transfer.transfer_application import apply_transfers, check_plan, compare_mapped
from tests.errors import raises_code
from tests.weights.versions import delta_file, full_file, history, layout, snapshot, stepped


def _chain(snapshots: Sequence[SnapshotTensors]) -> tuple[list[tuple[Manifest, Buffer]], TransferPlan, list[Buffer]]:
    """Returns the layouts of all versions, the plan of deltas from the first to the last, and its files."""
    versions = [layout(tensors, version) for version, tensors in enumerate(snapshots)]
    files = [delta_file(base, target) for base, target in pairwise(versions)]
    plan = TransferPlan(manifest=versions[-1][0], transfers=tuple(transfer for transfer, _ in files))
    return versions, plan, [np.frombuffer(data, dtype=np.uint8) for _, data in files]


def _true_changes(manifest: Manifest, old: Buffer, new: Buffer) -> dict[str, list[int]]:
    changes = {
        spec.name: np.flatnonzero(tensor_bits(spec, old) != tensor_bits(spec, new)).tolist()
        for spec in manifest.tensors
    }
    return {name: positions for name, positions in changes.items() if positions}


@pytest.mark.parametrize("versions_behind", [1, 2, 5])
def test_deltas_are_applied_to_a_copy_and_changes_listed(versions_behind: int) -> None:
    versions, plan, files = _chain(history(versions_behind + 1))
    manifest, before = versions[0][0], versions[0][1].copy()

    staged = apply_transfers(plan, files, base=versions[0])

    verify(plan.manifest, staged.buffer)
    verify(manifest, before)
    assert np.array_equal(versions[0][1], before)
    assert staged.changes is not None
    changes = {name: positions.tolist() for name, positions in staged.changes.items()}
    assert changes == _true_changes(manifest, before, versions[-1][1])
    assert staged.changed_elements == sum(len(positions) for positions in changes.values())


def test_a_reverted_change_is_not_in_the_delta() -> None:
    first = snapshot()
    versions, plan, files = _chain([first, stepped(first, 1), first])

    staged = apply_transfers(plan, files, base=versions[0])

    assert staged.changes == {}
    verify(plan.manifest, staged.buffer)


def test_dense_changes_are_not_listed() -> None:
    versions, plan, files = _chain(history(2, density=0.4))

    staged = apply_transfers(plan, files, base=versions[0])

    assert staged.changes is None
    assert staged.changed_elements
    verify(plan.manifest, staged.buffer)


def test_a_full_snapshot_lists_no_changes() -> None:
    version = layout(snapshot(), 3)
    transfer, data = full_file(*version)
    plan = TransferPlan(manifest=version[0], transfers=(transfer,))

    staged = apply_transfers(plan, [np.frombuffer(data, dtype=np.uint8)], base=layout(snapshot(1), 2))

    assert (staged.changes, staged.changed_elements) == (None, None)
    verify(version[0], staged.buffer)


def test_an_anchor_and_deltas_give_the_newest_version() -> None:
    versions, plan, files = _chain(history(3))
    transfer, data = full_file(*versions[0])

    staged = apply_transfers(
        replace(plan, transfers=(transfer, *plan.transfers)), [np.frombuffer(data, dtype=np.uint8), *files], base=None
    )

    assert staged.changes is None
    verify(plan.manifest, staged.buffer)


def test_a_delta_on_other_weights_is_refused() -> None:
    _, plan, files = _chain(history(2))
    other = layout(snapshot(9), 0)

    with pytest.raises(CorruptData) as caught:
        apply_transfers(plan, files, base=other)
    assert caught.value.code == "weights.base_mismatch"


def test_a_delta_between_other_tensors_is_refused() -> None:
    _, plan, files = _chain(history(2))
    other = layout({"w": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))}, 0)

    with raises_code(CorruptData, "weights.layout_changed", "tensors differ"):
        apply_transfers(plan, files, base=other)


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
def test_an_impossible_plan_is_refused(kind: str) -> None:
    versions, plan, _ = _chain(history(3))
    check_plan(plan, base=versions[0][0], max_bytes=MAX_VERSION_BYTES)

    with pytest.raises(CorruptData):
        check_plan(replace(plan, transfers=_lies(plan)[kind]), base=versions[0][0], max_bytes=MAX_VERSION_BYTES)


def test_deltas_without_a_base_are_refused() -> None:
    _, plan, _ = _chain(history(2))

    with raises_code(CorruptData, "weights.invalid_plan", "version None"):
        check_plan(plan, base=None, max_bytes=MAX_VERSION_BYTES)


def test_a_wrong_base_is_refused_with_its_version() -> None:
    versions, plan, _ = _chain(history(2))

    with raises_code(CorruptData, "weights.invalid_plan", "from version 9"):
        check_plan(plan, base=replace(versions[0][0], version=Version(9)), max_bytes=MAX_VERSION_BYTES)


_TRUE = _chain(history(3))
_NUMBERS = st.one_of(st.integers(0, 20_000), st.sampled_from([2**31, 2**40, 2**63, 2**64 - 1]))
_TENSOR_FORGED: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from(["", "scale", "x" * 5000, "another"]),
    "dtype": st.sampled_from(Dtype),
    "shape": st.lists(_NUMBERS, max_size=20).map(tuple),
    "offset": _NUMBERS,
    "hash": st.binary(min_size=32, max_size=32),
}
_TRANSFER_FORGED: dict[str, st.SearchStrategy[Any]] = {
    "target": st.integers(0, 9).map(Version),
    "base": st.integers(0, 9).map(Version),
    "size_bytes": _NUMBERS,
}


@pytest.mark.long
@given(data=st.data())
def test_an_altered_plan_gives_the_true_weights_or_an_error(data: st.DataObject) -> None:
    versions, plan, files = _TRUE
    manifest, transfers = plan.manifest, list(plan.transfers)
    if data.draw(st.booleans(), label="about a tensor"):
        tensor_index = data.draw(st.integers(0, len(manifest.tensors) - 1))
        forged = {
            name: data.draw(_TENSOR_FORGED[name]) for name in [data.draw(st.sampled_from(sorted(_TENSOR_FORGED)))]
        }
        tensors = [
            replace(entry, **forged) if at == tensor_index else entry for at, entry in enumerate(manifest.tensors)
        ]
        manifest = replace(manifest, tensors=tuple(data.draw(st.permutations(tensors))))
        if data.draw(st.booleans(), label="consistently"):
            manifest = replace(manifest, root_hash=root_hash(manifest.tensors))
    else:
        forged = {
            name: data.draw(_TRANSFER_FORGED[name]) for name in [data.draw(st.sampled_from(sorted(_TRANSFER_FORGED)))]
        }
        transfers[data.draw(st.integers(0, 1))] = replace(transfers[0], **forged)
    lying = TransferPlan(manifest=manifest, transfers=tuple(transfers))

    try:
        check_plan(lying, base=versions[0][0], max_bytes=MAX_VERSION_BYTES)
        staged = apply_transfers(lying, files, base=versions[0])
        verify(manifest, staged.buffer)
    except AstraFlowError:
        return
    assert np.array_equal(staged.buffer, versions[-1][1])


def test_a_circular_plan_is_refused() -> None:
    versions, plan, _ = _TRUE
    there, back = plan.transfers[0], replace(plan.transfers[0], base=Version(1), target=Version(0))

    with raises_code(CorruptData, "weights.invalid_plan", "version 1 to 0"):
        circling = replace(plan, transfers=(*[there, back] * 1000, *plan.transfers))
        check_plan(circling, base=versions[0][0], max_bytes=MAX_VERSION_BYTES)


def test_a_mapped_version_lists_its_changes() -> None:
    versions, _, _ = _TRUE
    staged = compare_mapped(versions[2][0], versions[2][1], base=versions[0])

    assert staged.changes is not None
    changes = {name: positions.tolist() for name, positions in staged.changes.items()}
    assert changes == _true_changes(versions[0][0], versions[0][1], versions[2][1])
    assert compare_mapped(versions[2][0], versions[2][1], base=None).changes is None
