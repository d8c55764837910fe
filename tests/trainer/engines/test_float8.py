"""Linear layers in float8, on a CPU: torch computes their products there too, only not faster."""

import pytest
import torch
from torch import nn

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.backends import backends
from astraflow.trainer.engines.adapters import LoraOptions
from astraflow.trainer.engines.float8 import Float8Linear
from astraflow.trainer.engines.scoring.scorer import Scorer
from tests import make_torch
from tests.errors import raises_code
from tests.trainer.step_gradients import Case, local_step, reference_gradients, tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 37])
def test_output_and_gradients_are_those_of_a_linear_layer_up_to_rounding(dtype: torch.dtype, tokens: int) -> None:
    draws = torch.Generator().manual_seed(2)
    layer = nn.Linear(96, 48).to(dtype)
    values = torch.randn(1, tokens, 96, generator=draws).to(dtype).requires_grad_()
    grad = torch.randn(1, tokens, 48, generator=draws).to(dtype)
    tensors = (values, layer.weight, layer.bias)
    exact = layer(values)
    expected = (exact, *torch.autograd.grad(exact, tensors, grad))

    layer.__class__ = Float8Linear
    output = layer(values)
    actual = (output, *torch.autograd.grad(output, tensors, grad))

    for result, reference in zip(actual, expected, strict=True):
        assert (result.shape, result.dtype) == (reference.shape, dtype)
        assert float(((result - reference).norm() / reference.norm()).detach()) < 0.1
    assert not torch.equal(output, exact)


def test_layers_of_blocks_are_replaced_and_head_experts_routers_and_adapters_are_not() -> None:
    names = {}
    for experts in (0, 4):
        scorer = Scorer(tiny_model(is_tied=False, experts=experts), CPU)
        scorer.use_float8()
        replaced = [name for name, module in scorer.model.named_modules() if isinstance(module, Float8Linear)]
        names[experts] = {name.split(".", 3)[-1] for name in replaced}

    attention = {f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    assert names[4] == attention
    assert names[0] == attention | {f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}


@pytest.mark.parametrize(
    ("recompute", "lora"), [("none", LoraOptions(rank=16)), ("selective", None), ("full", None)], ids=str
)
def test_the_gradient_of_a_step_is_near_the_exact_one(recompute: str, lora: LoraOptions | None) -> None:
    case = Case(engine_options={"float8": True, "recompute": recompute}, micro_batch_tokens=64, lora=lora)

    step = local_step(case)

    expected, loss = reference_gradients(case, step.members[0])
    gradient, exact_gradient = (
        torch.cat([part[name].double().flatten() for name in expected]) for part in (step.gradients[0], expected)
    )
    assert (
        0.95 < float(gradient @ exact_gradient / (gradient.norm() * exact_gradient.norm())) < 0.9999
    )  # clipping decides anew about some tokens
    assert float(gradient.norm() / exact_gradient.norm()) == pytest.approx(1, abs=0.1)
    assert step.loss == pytest.approx(loss, abs=0.05)


def test_a_device_without_float8_is_refused() -> None:
    with raises_code(InvalidInput, "trainer.float8_without_gpu"):
        backends.build({"kind": "local", "float8": True, "device": "cpu"}, make_torch.TINY, {}, seed=0)
