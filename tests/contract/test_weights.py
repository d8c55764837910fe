"""Sizes follow from shapes and types; a delta names its base."""

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, TensorSpec, Transfer, TransferKind, TransferPlan


def transfer(kind: TransferKind, *, base: int | None, size_bytes: int = 10) -> Transfer:
    return Transfer(
        kind=kind,
        policy=PolicyId("solver"),
        target=Version(5),
        base=None if base is None else Version(base),
        size_bytes=size_bytes,
        hash=bytes(32),
    )


def manifest(*tensors: TensorSpec) -> Manifest:
    return Manifest(policy=PolicyId("solver"), version=Version(5), tensors=tensors, root_hash=bytes(32))


@pytest.mark.parametrize(
    ("dtype", "size_bytes"),
    [
        (Dtype.FLOAT32, 4),
        (Dtype.FLOAT16, 2),
        (Dtype.BFLOAT16, 2),
        (Dtype.FLOAT8_E4M3, 1),
        (Dtype.FLOAT8_E5M2, 1),
        (Dtype.INT32, 4),
    ],
)
def test_dtypes_have_their_size(dtype: Dtype, size_bytes: int) -> None:
    assert dtype.size_bytes == size_bytes


def test_every_dtype_has_a_size() -> None:
    assert all(dtype.size_bytes in (1, 2, 4) for dtype in Dtype)


def test_tensor_sizes_follow_from_shapes() -> None:
    matrix = TensorSpec(name="w", dtype=Dtype.FLOAT32, shape=(3, 5), offset=0)
    scalar = TensorSpec(name="s", dtype=Dtype.BFLOAT16, shape=(), offset=60)
    empty = TensorSpec(name="e", dtype=Dtype.BFLOAT16, shape=(0, 7), offset=62)
    assert [tensor.elements for tensor in (matrix, scalar, empty)] == [15, 1, 0]
    assert manifest(matrix, scalar, empty).size_bytes == 62
    assert manifest().size_bytes == 0


def test_only_deltas_have_a_base() -> None:
    assert transfer(TransferKind.DELTA, base=4).base == 4
    assert transfer(TransferKind.FULL, base=None).base is None
    for kind, base in ((TransferKind.DELTA, None), (TransferKind.FULL, 0)):
        with pytest.raises(InvalidInput) as caught:
            transfer(kind, base=base)
        assert caught.value.code == "transfer.wrong_base"


def test_the_size_of_a_plan_is_the_sum_of_its_transfers() -> None:
    chain = tuple(transfer(TransferKind.DELTA, base=base, size_bytes=base) for base in (2, 3, 4))
    assert TransferPlan(manifest=manifest(), transfers=chain).size_bytes == 9
    assert TransferPlan(manifest=manifest(), transfers=()).size_bytes == 0
