"""Weight format: golden files, and a second decoder written from the document."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.weights import Dtype
from astraflow.weights.codec.delta import Level, apply_delta, encode_delta, read_head
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.tensors import verify
from tests.weights.bit_pairs import BitPair, bit_pairs
from tests.weights.codec.kernels.each import WITH_EACH
from tests.weights.golden.make import CASES, FOLDER, Case, encode, versions
from tests.weights.slow_decoder import decode
from tests.weights.versions import layout

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@WITH_EACH
@BY_NAME
def test_golden_deltas_decode_to_golden_targets(kernels: Kernels, case: Case) -> None:
    manifest, _ = versions(case)[1]
    base, target, delta = ((FOLDER / f"{case.name}.{kind}").read_bytes() for kind in ("base", "target", "delta"))
    buffer = np.frombuffer(base, dtype=np.uint8).copy()

    apply_delta(delta, manifest, buffer, kernels=kernels)

    assert buffer.tobytes() == target == decode(delta, base)
    verify(manifest, buffer)
    about = json.loads((FOLDER / "cases.json").read_text())[case.name]
    assert read_head(delta).target_root.hex() == manifest.root_hash.hex() == about["target_root"]
    assert [spec.hash.hex() for spec in manifest.tensors] == [tensor["hash"] for tensor in about["tensors"]]


@WITH_EACH
@BY_NAME
def test_the_encoder_reproduces_the_golden_files(kernels: Kernels, case: Case) -> None:
    assert encode(case, kernels=kernels) == (FOLDER / f"{case.name}.delta").read_bytes()


@pytest.mark.long
@WITH_EACH
@settings(deadline=None)
@given(pair=bit_pairs(most=600), level=st.sampled_from([Level.FAST, Level.DENSE]), blocks=st.sampled_from([33, 1000]))
def test_a_decoder_written_from_the_specification_agrees(
    kernels: Kernels, pair: BitPair, level: Level, blocks: int
) -> None:
    dtype = {1: Dtype.FLOAT8_E5M2, 2: Dtype.BFLOAT16, 4: Dtype.FLOAT32}[pair.old.itemsize]
    base, old = layout({"w": (dtype, pair.old.shape, pair.old)}, 0)
    target, new = layout({"w": (dtype, pair.new.shape, pair.new)}, 1)

    delta = encode_delta(base, old, target, new, level=level, block_elements=blocks, kernels=kernels).data

    assert decode(delta, old.tobytes()) == new.tobytes()
