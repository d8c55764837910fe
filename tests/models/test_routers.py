"""Routers compute in float32 in a model that computes in bfloat16."""

from copy import deepcopy
from typing import Any

import torch

from astraflow.models import models
from astraflow.models.causal import Float32Router, cast

MOE = {"kind": "tiny", "experts": 4, "hidden_size": 16, "heads": 2, "key_value_heads": 1, "intermediate_size": 24}


def test_scores_are_those_of_float32_with_the_same_weights() -> None:
    model = cast(models.build(MOE).architecture(), device=torch.device("cpu"), dtype=torch.bfloat16)
    router: Any = model.get_submodule("model.layers.0.mlp.gate")
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)).bfloat16()

    logits, scores, _ = router(hidden)

    assert router.weight.dtype == torch.bfloat16
    assert torch.equal(logits, hidden.float() @ router.weight.float().T)
    assert scores.dtype == torch.float32
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert router.weight.grad is not None
    assert float(router.weight.grad.abs().max()) > 0


def test_a_copied_model_has_routers_of_its_own() -> None:
    model = cast(models.build(MOE).architecture(), device=torch.device("cpu"), dtype=torch.bfloat16)
    copied = deepcopy(model)
    original: Any = model.get_submodule("model.layers.0.mlp.gate")
    router: Any = copied.get_submodule("model.layers.0.mlp.gate")
    with torch.no_grad():
        router.weight.fill_(0.0)

    assert isinstance(router, Float32Router)
    assert not router(torch.ones(1, 16))[0].any()
    assert original(torch.ones(1, 16))[0].all()
