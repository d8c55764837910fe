"""The sum that a server loads from a file has the bits that `local_torch` serves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype
from astraflow.models.causal import named_weights
from astraflow.models.precision import bits_of
from astraflow.models.published import published_parameters
from astraflow.raas.engines.local.parameters import stage_adapted, swap
from astraflow.raas.engines.merged_adapters import AdapterMerger, RoundingWatch
from astraflow.weights.tensors import VerifiedWeights, hash_into_manifest, tensor_bits, verify
from astraflow.weights.transfer.safetensors_file import SafetensorsFile
from tests import make_torch
from tests.raas.engines.local.test_adapters import BASE, POLICY, Adopting, plane

__all__ = ["plane"]

pytestmark = pytest.mark.anyio


def adapters(store: Adopting, version: int) -> VerifiedWeights:
    return replace(store.kept[POLICY, version], adapter_base=store.kept[BASE, 0])


def served_locally(weights: VerifiedWeights, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    model = make_torch.model(9)
    torch.nn.Module.to(model, dtype=dtype)
    assert weights.adapter_base is not None
    swap(stage_adapted(weights, weights.adapter_base, published_parameters(model), is_base_served=False))
    return {name: parameter.detach() for name, parameter in named_weights(model).items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("merged_dtype", "served"), [(None, torch.bfloat16), (Dtype.FLOAT32, torch.float32)], ids=["bfloat16", "float32"]
)
async def test_merged_weights_equal_those_of_local_torch(
    plane: Adopting, merged_dtype: Dtype | None, served: torch.dtype
) -> None:
    merger = AdapterMerger(merged_dtype)
    for version in (0, 2, 1):
        weights = adapters(plane, version)
        merged = merger.merge(weights)

        verify(merged.manifest, merged.buffer)
        assert not merged.buffer.flags.writeable
        assert (merged.manifest.version, merged.manifest.policy, merged.base) == (version, POLICY, None)
        expected = served_locally(weights, served)
        assert {spec.name for spec in merged.manifest.tensors} == set(expected)
        for spec in merged.manifest.tensors:
            wanted = bits_of(expected[spec.name], spec.dtype)
            np.testing.assert_array_equal(tensor_bits(spec, merged.buffer), wanted, err_msg=spec.name)


async def test_a_small_step_of_the_adapters_is_a_patch_of_the_merged_file(plane: Adopting) -> None:
    merger = AdapterMerger()
    first = adapters(plane, 0)
    before = merger.merge(first).buffer.copy()
    buffer = first.buffer.copy()
    up = next(spec for spec in first.manifest.tensors if ".lora_B." in spec.name)
    tensor_bits(up, buffer)[:2] ^= 1 << 23  # doubles or halves the row of one output
    manifest = hash_into_manifest(
        first.manifest.tensors, buffer, policy=POLICY, version=Version(1), metadata=first.manifest.metadata
    )
    second = replace(first, manifest=manifest, buffer=buffer, base=Version(0), changes={})
    merged = merger.merge(second)

    assert merged.base == 0
    assert merged.changes is not None
    patched = before.copy()
    for spec in merged.manifest.tensors:
        positions = merged.changes.get(spec.name)
        if positions is not None:
            tensor_bits(spec, patched)[positions] = tensor_bits(spec, merged.buffer)[positions]
    np.testing.assert_array_equal(patched, merged.buffer)
    assert sum(len(positions) for positions in merged.changes.values()) > 0
    whole = AdapterMerger().merge(replace(second, base=None, changes=None))
    np.testing.assert_array_equal(whole.buffer, merged.buffer)
    assert whole.changes is None


async def test_the_staged_file_holds_the_merged_weights(plane: Adopting, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    merger = AdapterMerger(Dtype.FLOAT32)
    with SafetensorsFile(path) as file:
        for version in (0, 1):
            weights = adapters(plane, version)
            file.stage(merger.merge(weights))
            assert file.version == version
        expected = served_locally(weights, torch.float32)
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    adapted = {name.removesuffix(".lora_A.weight") for name in (spec.name for spec in weights.manifest.tensors)}
    for stem in adapted - {name for name in adapted if ".lora_B." in name}:
        assert torch.equal(tensors[f"{stem}.weight"], expected[f"{stem}.weight"])


async def test_full_weights_are_unchanged_and_adapters_need_their_base(plane: Adopting) -> None:
    whole = make_torch.published(make_torch.model(), 3)
    merger = AdapterMerger()
    assert merger.merge(whole) is whole
    with pytest.raises(InvalidInput) as missing:
        merger.merge(plane.kept[POLICY, 0])
    assert missing.value.code == "weights.adapter_base_missing"
    with pytest.raises(InvalidInput) as other:
        merger.merge(replace(plane.kept[POLICY, 0], adapter_base=make_torch.published(make_torch.model(3), 0)))
    assert other.value.code == "weights.adapter_mismatch"


@pytest.mark.parametrize(
    ("dtype", "is_lost"),
    [(Dtype.BFLOAT16, True), (None, True), (Dtype.FLOAT32, False)],
    ids=["bfloat16", "base", "float32"],
)
async def test_what_rounding_removes_of_young_adapters_is_measured_until_little_is_lost(
    plane: Adopting, dtype: Dtype | None, is_lost: bool
) -> None:
    def scaled(factor: float) -> VerifiedWeights:
        weights = adapters(plane, 0)
        buffer = weights.buffer.copy()
        for spec in weights.manifest.tensors:
            if ".lora_B." in spec.name:
                tensor_bits(spec, buffer)[:] = bits_of(torch.full((spec.elements,), factor), spec.dtype)
        manifest = hash_into_manifest(
            weights.manifest.tensors, buffer, policy=POLICY, version=Version(0), metadata=weights.manifest.metadata
        )
        return replace(weights, manifest=manifest, buffer=buffer)

    watch = RoundingWatch(dtype)
    shares = [watch.lost_share(scaled(factor)) for factor in (0.0, 1e-5, 10.0, 1e-5)]

    assert shares[0] == 0.0, "adapters that change nothing lose nothing"
    assert (shares[1] > 0.8) is is_lost
    assert shares[2] < 0.1
    assert shares[3] == 0.0, "it is not measured again"
