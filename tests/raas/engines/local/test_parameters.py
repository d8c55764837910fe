"""Staged weights change nothing until the swap, which changes all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.contract.ids import Version
from astraflow.models.causal import cast, named_weights
from astraflow.models.published import published_parameters
from astraflow.raas.engines.local import parameters
from astraflow.raas.engines.local.parameters import stage, swap
from astraflow.weights.tensors import VerifiedWeights
from tests import make_torch

MOE = {**make_torch.TINY, "experts": 3}


def changed_by(share: float, spec: Mapping[str, Any] = make_torch.TINY) -> tuple[VerifiedWeights, VerifiedWeights]:
    """Returns a version and the delta to the next one, which changes about that share of every matrix."""
    model = make_torch.model(spec=spec)
    first = make_torch.published(model, 0)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in named_weights(model).values():
            mask = torch.rand(weight.shape, generator=draws) < share
            weight[mask] = weight[mask] * 2 + 1
    return first, make_torch.published(model, 1, base=first)


@pytest.mark.parametrize("spec", [make_torch.TINY, MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("share", [0.002, 0.5])
def test_a_delta_of_any_size_is_applied_exactly(
    share: float, threads: int, spec: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "_PATCH_ELEMENTS", 5)
    first, delta = changed_by(share, spec)
    model = make_torch.model(spec=spec)
    before = {name: weight.clone() for name, weight in named_weights(model).items()}

    staged = stage(delta, published_parameters(model), serving=Version(0))
    assert all(torch.equal(weight, before[name]) for name, weight in named_weights(model).items())
    swap(staged, threads=threads)

    after = make_torch.published(model, 1)
    np.testing.assert_array_equal(after.buffer, delta.buffer)
    assert not np.array_equal(after.buffer, first.buffer)


def test_few_changes_are_patched_in_place_and_many_replace_the_tensor() -> None:
    model = make_torch.model()
    for share, is_patch in ((0.002, True), (0.5, False)):
        staged = stage(changed_by(share)[1], published_parameters(model), serving=Version(0))
        matrices = [tensor for tensor in staged if tensor.parameter.ndim > 1]
        assert {tensor.positions is not None for tensor in matrices} == {is_patch}


def test_tied_weights_stay_tied_when_they_are_replaced() -> None:
    model = make_torch.model()

    swap(stage(make_torch.published(make_torch.model(1), 1), published_parameters(model), serving=None))

    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    expected = named_weights(make_torch.model(1))["model.embed_tokens.weight"]
    assert torch.equal(model.get_parameter("lm_head.weight"), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches_are_converted_to_the_compute_dtype(dtype: torch.dtype) -> None:
    _, delta = changed_by(0.002)
    patched, replaced = (cast(make_torch.model(), device=torch.device("cpu"), dtype=dtype) for _ in range(2))

    swap(stage(delta, published_parameters(patched), serving=Version(0)))
    swap(stage(delta, published_parameters(replaced), serving=None))

    for name, weight in named_weights(patched).items():
        assert torch.equal(weight, named_weights(replaced)[name]), name
