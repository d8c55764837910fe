"""Adapters say what they are added to, and fit it."""

from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Dtype, Manifest
from astraflow.weights.adapters import AdapterFacts, adapted_weights, adapter_facts
from astraflow.weights.tensors import TensorShapes
from tests.weights.versions import layout, snapshot

BASE: TensorShapes = {"a.weight": (Dtype.BFLOAT16, (6, 4)), "b.weight": (Dtype.BFLOAT16, (4,))}
PAIR: TensorShapes = {"a.lora_A.weight": (Dtype.FLOAT32, (2, 4)), "a.lora_B.weight": (Dtype.FLOAT32, (6, 2))}


def manifest_of(shapes: TensorShapes) -> Manifest:
    return layout(snapshot(0, shapes))[0]


def test_what_is_said_about_a_base_is_understood() -> None:
    facts = AdapterFacts.on(manifest_of(BASE), scale=1 / 3)
    assert adapter_facts(replace(manifest_of(PAIR), metadata={"step": "7", **facts.metadata()})) == facts
    assert adapter_facts(manifest_of(BASE)) is None


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
def test_nonsense_about_a_base_is_refused(key: str, value: str) -> None:
    metadata = {**AdapterFacts.on(manifest_of(BASE), scale=1.0).metadata(), key: value}
    with pytest.raises(CorruptData, match="does not say what its adapters are added to"):
        adapter_facts(replace(manifest_of(PAIR), metadata=metadata))


def test_half_of_what_is_to_be_said_is_refused() -> None:
    metadata = AdapterFacts.on(manifest_of(BASE), scale=1.0).metadata()
    del metadata["adapter.scale"]
    with pytest.raises(CorruptData):
        adapter_facts(replace(manifest_of(PAIR), metadata=metadata))


def test_each_pair_is_found_with_its_weight() -> None:
    (found,) = adapted_weights(manifest_of(PAIR), manifest_of(BASE))
    assert (found.weight.name, found.down.name, found.up.name) == ("a.weight", "a.lora_A.weight", "a.lora_B.weight")


@pytest.mark.parametrize(
    "tensors",
    [
        {"a.lora_A.weight": (Dtype.FLOAT32, (2, 4))},
        {"a.lora_B.weight": (Dtype.FLOAT32, (6, 2))},
        {**PAIR, "c.lora_A.weight": (Dtype.FLOAT32, (2, 4)), "c.lora_B.weight": (Dtype.FLOAT32, (6, 2))},
        {**PAIR, "a.weight": (Dtype.FLOAT32, (6, 4))},
        {"b.lora_A.weight": (Dtype.FLOAT32, (2, 4)), "b.lora_B.weight": (Dtype.FLOAT32, (4, 2))},
        {**PAIR, "a.lora_A.weight": (Dtype.FLOAT32, (3, 4))},
        {**PAIR, "a.lora_A.weight": (Dtype.FLOAT32, ())},
    ],
    ids=["no B", "no A", "no weight", "no adapter", "a vector", "other rank", "scalar"],
)
def test_what_fits_nothing_is_refused(tensors: TensorShapes) -> None:
    adapters = layout({name: (dtype, shape, _bits(shape)) for name, (dtype, shape) in tensors.items()})[0]
    with pytest.raises(InvalidInput, match="version 0 of solver"):
        adapted_weights(adapters, manifest_of(BASE))


def _bits(shape: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.zeros(int(np.prod(shape)), dtype="<u4")
