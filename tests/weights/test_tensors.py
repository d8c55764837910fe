from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Dtype, Manifest
from astraflow.weights.tensors import (
    build_layout,
    check_manifest,
    has_same_layout,
    root_hash,
    tensor_bits,
    verify,
    width_regions,
)
from tests.errors import raises_code
from tests.weights.versions import POLICY, layout, snapshot


def test_every_tensor_is_read_back_bit_for_bit() -> None:
    tensors = snapshot()

    manifest, buffer = layout(tensors)

    assert {spec.name for spec in manifest.tensors} == set(tensors)
    for spec in manifest.tensors:
        dtype, shape, bits = tensors[spec.name]
        assert (spec.dtype, spec.shape) == (dtype, shape)
        assert np.array_equal(tensor_bits(spec, buffer), bits)
    verify(manifest, buffer)


def test_tensors_are_adjacent_and_aligned() -> None:
    manifest, buffer = layout(snapshot())

    check_manifest(manifest)
    assert manifest.size_bytes == buffer.nbytes == sum(spec.size_bytes for spec in manifest.tensors)
    assert all(spec.offset % spec.dtype.size_bytes == 0 for spec in manifest.tensors)
    assert [run.width for run in width_regions(manifest)] == [4, 2, 1]


def test_a_buffer_is_read_only() -> None:
    _, buffer = layout(snapshot())

    with pytest.raises(ValueError, match="read-only"):
        buffer[0] = 1


def test_hashing_on_several_threads_gives_the_same_hashes() -> None:
    tensors = snapshot()

    tensor_layout, buffer = layout(tensors)
    threaded_layout, _ = build_layout(tensors, policy=POLICY, version=tensor_layout.version, workers=3)

    assert tensor_layout == threaded_layout
    verify(tensor_layout, buffer, workers=3)


def test_a_flipped_bit_is_refused_with_its_tensor() -> None:
    manifest, buffer = layout(snapshot())
    spec = next(spec for spec in manifest.tensors if spec.name == "half")
    damaged = buffer.copy()
    damaged[spec.offset] ^= 1

    with raises_code(CorruptData, "weights.hash_mismatch", "tensor 'half'"):
        verify(manifest, damaged)


def test_a_buffer_of_another_size_is_refused() -> None:
    manifest, buffer = layout(snapshot())

    with raises_code(CorruptData, "weights.size_mismatch", "expected"):
        verify(manifest, buffer[:-1])


def test_the_root_hash_covers_names_types_shapes_hashes_and_their_order() -> None:
    manifest, _ = layout(snapshot())
    first, second, *rest = manifest.tensors

    variants = [
        (replace(first, name="other"), second, *rest),
        (replace(first, shape=(*first.shape, 1)), second, *rest),
        (replace(first, hash=bytes(32)), second, *rest),
        (second, first, *rest),
        (first, second, *rest[:-1]),
        (first, second, *rest[:-1], replace(rest[-1], dtype=Dtype.FLOAT8_E4M3)),
    ]

    assert len({manifest.root_hash, *(root_hash(variant) for variant in variants)}) == len(variants) + 1


def test_versions_with_the_same_bits_have_the_same_root() -> None:
    assert layout(snapshot(), 3)[0].root_hash == layout(snapshot(), 4)[0].root_hash


def test_layouts_are_compared_by_name_type_and_shape() -> None:
    manifest, _ = layout(snapshot(0))

    assert has_same_layout(manifest, layout(snapshot(1))[0])
    assert not has_same_layout(manifest, layout({"other": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))})[0])


@pytest.mark.parametrize(
    ("dtype", "shape", "bits"),
    [
        (Dtype.FLOAT32, (3,), np.zeros(2, dtype="<u4")),
        (Dtype.BFLOAT16, (2,), np.zeros(2, dtype="<u4")),
        (Dtype.FLOAT8_E4M3, (2, 2), np.zeros(5, dtype="u1")),
    ],
)
def test_arrays_that_do_not_fill_their_shape_are_refused(
    dtype: Dtype, shape: tuple[int, ...], bits: np.ndarray
) -> None:
    with pytest.raises(InvalidInput) as caught:
        layout({"w": (dtype, shape, bits)})
    assert caught.value.code == "weights.shape_mismatch"


def _hostile() -> dict[str, Manifest]:
    manifest, _ = layout(snapshot())
    first, second, *rest = manifest.tensors

    def with_tensors(*tensors: object) -> Manifest:
        changed = replace(manifest, tensors=tensors)  # type: ignore[arg-type] # invalid on purpose
        try:
            return replace(changed, root_hash=root_hash(changed.tensors))
        except Exception:  # some have no root hash
            return changed

    return {
        "overlap": with_tensors(first, replace(second, offset=0), *rest),
        "gap": with_tensors(first, replace(second, offset=second.offset + 4), *rest),
        "negative offset": with_tensors(replace(first, offset=-4), second, *rest),
        "negative size": with_tensors(replace(first, shape=(-1,)), second, *rest),
        "huge size": with_tensors(replace(first, shape=(2**62, 2**62)), second, *rest),
        "zero times huge": with_tensors(replace(first, shape=(0, 2**62)), second, *rest),
        "many dimensions": with_tensors(replace(first, shape=(1,) * 17), second, *rest),
        "twice": with_tensors(first, replace(first, offset=second.offset), *rest),
        "no name": with_tensors(replace(first, name=""), second, *rest),
        "long name": with_tensors(replace(first, name="n" * 2000), second, *rest),
        "short hash": with_tensors(replace(first, hash=b"abc"), second, *rest),
        "narrow before wide": with_tensors(*(replace(spec, offset=0) for spec in (rest[-1], first))),
        "nothing": with_tensors(),
        "another root": replace(manifest, root_hash=bytes(32)),
    }


@pytest.mark.parametrize("kind", sorted(_hostile()))
def test_a_hostile_manifest_is_refused_before_anything_is_allocated(kind: str) -> None:
    with pytest.raises(CorruptData) as caught:
        check_manifest(_hostile()[kind])
    assert caught.value.code == "weights.invalid_manifest"


def test_a_manifest_beyond_the_limit_is_refused() -> None:
    manifest, buffer = layout(snapshot())

    check_manifest(manifest, max_bytes=buffer.nbytes)
    with raises_code(CorruptData, "weights.invalid_manifest", "limit"):
        check_manifest(manifest, max_bytes=buffer.nbytes - 1)
