"""Adapters name the base that they are added to, and fit it."""

from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Dtype, Manifest
from astraflow.weights.adapters import AdapterBinding, adapted_weights, read_adapter_binding
from astraflow.weights.tensors import TensorShapes
from tests.errors import raises_code
from tests.weights.versions import layout, snapshot

BASE: TensorShapes = {"a.weight": (Dtype.BFLOAT16, (6, 4)), "b.weight": (Dtype.BFLOAT16, (4,))}
UNPAIRED, SHAPE = "weights.adapter_unpaired", "weights.adapter_shape"
PAIR: TensorShapes = {"a.lora_A.weight": (Dtype.FLOAT32, (2, 4)), "a.lora_B.weight": (Dtype.FLOAT32, (6, 2))}


def manifest_of(shapes: TensorShapes) -> Manifest:
    return layout(snapshot(0, shapes))[0]


def test_the_adapter_binding_in_the_metadata_is_parsed() -> None:
    facts = AdapterBinding.for_base(manifest_of(BASE), scale=1 / 3)
    assert read_adapter_binding(replace(manifest_of(PAIR), metadata={"step": "7", **facts.metadata()})) == facts
    assert read_adapter_binding(manifest_of(BASE)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("adapter.base_version", "-1"),
        ("adapter.base_root", "zz"),
        ("adapter.base_root", "00"),
        ("adapter.scale", "a third"),
        ("adapter.scale", "nan"),
        ("adapter.base", "no name"),
    ],
)
def test_invalid_adapter_metadata_is_refused(key: str, value: str) -> None:
    metadata = {**AdapterBinding.for_base(manifest_of(BASE), scale=1.0).metadata(), key: value}
    with pytest.raises(CorruptData) as caught:
        read_adapter_binding(replace(manifest_of(PAIR), metadata=metadata))
    assert caught.value.code == "weights.adapter_metadata"


def test_incomplete_adapter_metadata_is_refused() -> None:
    metadata = AdapterBinding.for_base(manifest_of(BASE), scale=1.0).metadata()
    del metadata["adapter.scale"]
    with pytest.raises(CorruptData):
        read_adapter_binding(replace(manifest_of(PAIR), metadata=metadata))


def test_adapter_pairs_are_matched_with_their_weight() -> None:
    (adapted,) = adapted_weights(manifest_of(PAIR), manifest_of(BASE))
    assert (adapted.weight.name, adapted.down.name, adapted.up.name) == (
        "a.weight",
        "a.lora_A.weight",
        "a.lora_B.weight",
    )


@pytest.mark.parametrize(
    ("tensors", "code"),
    [
        ({"a.lora_A.weight": (Dtype.FLOAT32, (2, 4))}, UNPAIRED),
        ({"a.lora_B.weight": (Dtype.FLOAT32, (6, 2))}, UNPAIRED),
        ({**PAIR, "c.lora_A.weight": (Dtype.FLOAT32, (2, 4)), "c.lora_B.weight": (Dtype.FLOAT32, (6, 2))}, UNPAIRED),
        ({**PAIR, "a.weight": (Dtype.FLOAT32, (6, 4))}, UNPAIRED),
        ({"b.lora_A.weight": (Dtype.FLOAT32, (2, 4)), "b.lora_B.weight": (Dtype.FLOAT32, (4, 2))}, SHAPE),
        ({**PAIR, "a.lora_A.weight": (Dtype.FLOAT32, (3, 4))}, SHAPE),
        ({**PAIR, "a.lora_A.weight": (Dtype.FLOAT32, ())}, SHAPE),
    ],
    ids=["no B", "no A", "no weight", "no adapter", "a vector", "other rank", "scalar"],
)
def test_adapters_that_match_no_weight_are_refused(tensors: TensorShapes, code: str) -> None:
    adapters = layout({name: (dtype, shape, _bits(shape)) for name, (dtype, shape) in tensors.items()})[0]
    with raises_code(InvalidInput, code, "version 0"):
        adapted_weights(adapters, manifest_of(BASE))


def _bits(shape: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.zeros(int(np.prod(shape)), dtype="<u4")
