import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.weights.codec.delta import Level, apply_delta, encode_delta, read_head
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.tensors import verify, width_regions
from tests.errors import raises_code
from tests.weights.codec.kernels.each import WITH_EACH
from tests.weights.versions import layout, snapshot, stepped

HEAD_BYTES = 96
BLOCK_HEAD_BYTES = 32


@WITH_EACH
@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dtypes=st.lists(st.sampled_from(Dtype), min_size=1, max_size=6),
    density=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 1.0])),
    block_elements=st.sampled_from([1, 7, 64, 2**20]),
    workers=st.sampled_from([1, 2]),
)
def test_a_delta_reproduces_the_target_bit_for_bit(
    kernels: Kernels, seed: int, dtypes: list[Dtype], density: float, block_elements: int, workers: int
) -> None:
    shapes = {f"tensor{index}": (dtype, (index, 29)) for index, dtype in enumerate(dtypes, start=1)}
    old = snapshot(seed, shapes)
    base, buffer = layout(old, 4)
    target, new = layout(stepped(old, seed + 1, density=density), 5)

    delta = encode_delta(base, buffer, target, new, workers=workers, block_elements=block_elements, kernels=kernels)
    applied = buffer.copy()
    patches = apply_delta(delta.data, target, applied, workers=workers, kernels=kernels)

    verify(target, applied)
    assert np.array_equal(applied, new)
    assert delta.changed_elements == sum(len(patch.positions) for patch in patches)
    listed = sorted(patch.offset + int(at) * patch.width for patch in patches for at in patch.positions)
    assert listed == sorted(
        run.offset + int(at) * run.width
        for run in width_regions(target)
        for at in np.flatnonzero(run.bits(buffer) != run.bits(new))
    )


def test_a_delta_has_the_hashes_of_base_and_target_and_applies_with_default_kernels() -> None:
    old = snapshot()
    base, buffer = layout(old, 4)
    target, new = layout(stepped(old, 1), 5)

    delta = encode_delta(base, buffer, target, new)
    head = read_head(delta.data)

    assert (head.base_root, head.target_root) == (base.root_hash, target.root_hash)
    assert head.size_bytes == buffer.nbytes
    applied = buffer.copy()
    apply_delta(delta.data, target, applied)
    assert np.array_equal(applied, new)


def test_an_unchanged_version_has_an_empty_delta() -> None:
    base, buffer = layout(snapshot(), 4)

    data = encode_delta(base, buffer, replace(base, version=base.version), buffer).data

    assert read_head(data).blocks == 0
    assert len(data) == HEAD_BYTES


def test_incompressible_blocks_are_stored_raw() -> None:
    shapes = {"w": (Dtype.FLOAT8_E4M3, (4000,))}
    base, buffer = layout(snapshot(0, shapes), 0)
    target, new = layout(snapshot(1, shapes), 1)

    data = encode_delta(base, buffer, target, new).data
    applied = buffer.copy()
    patches = apply_delta(data, target, applied)

    assert data[HEAD_BYTES] == Level.RAW
    assert len(data) == HEAD_BYTES + BLOCK_HEAD_BYTES + new.nbytes
    assert np.array_equal(applied, new)
    assert np.array_equal(patches[0].positions, np.flatnonzero(buffer != new))


def test_versions_with_other_tensors_have_no_delta() -> None:
    base, buffer = layout(snapshot(0), 0)
    target, new = layout({"w": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))}, 1)

    with raises_code(InvalidInput, "weights.layout_differs"):
        encode_delta(base, buffer, target, new)


def test_a_delta_for_another_size_is_refused() -> None:
    old = snapshot()
    base, buffer = layout(old, 0)
    target, new = layout(stepped(old, 1), 1)
    data = encode_delta(base, buffer, target, new).data
    smaller, _ = layout({"w": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))}, 1)

    for manifest, applied in ((target, buffer[:-4]), (smaller, buffer), (smaller, buffer[: smaller.size_bytes])):
        with raises_code(CorruptData, "weights.size_mismatch"):
            apply_delta(data, manifest, applied.copy())


@given(data=st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    old = snapshot()
    base, buffer = layout(old, 0)
    target, new = layout(stepped(old, 1), 1)
    encoded = bytearray(encode_delta(base, buffer, target, new, block_elements=256).data)
    where = data.draw(st.integers(0, len(encoded) - 1))
    encoded[where] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CorruptData):
        apply_delta(bytes(encoded), target, buffer.copy())


@given(cut=st.floats(0, 1, exclude_max=True), extra=st.binary(min_size=1, max_size=50))
def test_truncated_and_extended_deltas_are_refused(cut: float, extra: bytes) -> None:
    old = snapshot()
    base, buffer = layout(old, 0)
    target, new = layout(stepped(old, 1), 1)
    encoded = encode_delta(base, buffer, target, new, block_elements=256).data

    for damaged in (encoded[: int(cut * len(encoded))], encoded + extra):
        with pytest.raises(CorruptData):
            apply_delta(damaged, target, buffer.copy())


def test_each_part_that_is_cut_or_changed_is_named() -> None:
    old = snapshot(0, {"w": (Dtype.BFLOAT16, (100,))})
    base, buffer = layout(old, 0)
    target, new = layout(stepped(old, 1, density=0.3), 1)
    encoded = encode_delta(base, buffer, target, new).data
    changed = encoded[:-1] + bytes([encoded[-1] ^ 1])
    for damaged, code in (
        (encoded[: HEAD_BYTES - 1], "weights.malformed_delta"),
        (b"X" + encoded[1:], "weights.malformed_delta"),
        (encoded[: HEAD_BYTES + BLOCK_HEAD_BYTES - 1], "weights.malformed_delta"),
        (encoded[:-1], "weights.checksum_mismatch"),
        (changed, "weights.checksum_mismatch"),
        (encoded + b"X", "weights.malformed_delta"),
    ):
        with raises_code(CorruptData, code):
            apply_delta(damaged, target, buffer.copy())


def _resealed(encoded: bytes, **fields: int) -> bytes:
    """Returns a delta of one block with a changed head and a matching checksum, as an attacker would send it."""
    names = ("level", "width", "zero", "elements", "offset", "payload_bytes", "zero2")
    layout_ = struct.Struct("<BBHIQII")
    values = dict(zip(names, layout_.unpack_from(encoded, HEAD_BYTES), strict=True)) | fields
    head = layout_.pack(*values.values())
    payload = encoded[HEAD_BYTES + BLOCK_HEAD_BYTES :]
    checksum = xxh3_64_intdigest(payload, seed=xxh3_64_intdigest(head))
    return encoded[:HEAD_BYTES] + head + struct.pack("<Q", checksum) + payload


@pytest.mark.parametrize(
    "fields",
    [
        {"level": 7},
        {"width": 4},
        {"width": 3},
        {"elements": 0},
        {"elements": 101},
        {"elements": 2**31},
        {"offset": 1},
        {"offset": 2},
        {"offset": 2**63},
    ],
    ids=str,
)
def test_a_block_with_invalid_fields_is_refused(fields: dict[str, int]) -> None:
    shapes = {"w": (Dtype.BFLOAT16, (100,))}
    old = snapshot(0, shapes)
    base, buffer = layout(old, 0)
    target, new = layout(stepped(old, 1, density=0.3), 1)
    encoded = encode_delta(base, buffer, target, new).data
    assert _resealed(encoded) == encoded

    with raises_code(CorruptData, "weights.unknown_level" if "level" in fields else "weights.malformed_delta"):
        apply_delta(_resealed(encoded, **fields), target, buffer.copy())


def test_overlapping_blocks_are_refused() -> None:
    shapes = {"w": (Dtype.BFLOAT16, (100,))}
    old = snapshot(0, shapes)
    base, buffer = layout(old, 0)
    target, new = layout(stepped(old, 1, density=0.3), 1)
    encoded = encode_delta(base, buffer, target, new).data
    head = encoded[: HEAD_BYTES - 16] + struct.pack("<II", 2, 0)
    twice = head + struct.pack("<Q", xxh3_64_intdigest(head)) + encoded[HEAD_BYTES:] * 2

    with raises_code(CorruptData, "weights.malformed_delta", "overlaps"):
        apply_delta(twice, target, buffer.copy())
