"""The auxiliary loss for the balance of experts is that of transformers, over tokens without padding."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.packing import pack_sequences
from tests.errors import raises_code
from tests.trainer.step_gradients import VOCABULARY, Case, local_step, mixed_batch, tiny_model

SPEC = EngineSpec(
    optimizer=OptimizerOptions(learning_rate=1e-30),
    device=torch.device("cpu"),
    published_dtype=Dtype.FLOAT32,
    balances_experts=True,
)
SEQUENCES = [np.random.default_rng(length).integers(0, VOCABULARY, length) for length in (17, 9, 30)]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("batching", [Batching.PACKED, Batching.TREE, Batching.ROWS])
def test_loss_and_gradient_are_those_of_transformers(batching: Batching, recompute: str) -> None:
    model, plain = (tiny_model(is_tied=True, experts=4) for _ in range(2))
    engine = LocalEngine(model, replace(SPEC, batching=batching, recompute=recompute))  # type: ignore[arg-type]
    values: list[Tensor] = []

    def loss(scores: TokenScores) -> Tensor:
        assert scores.balance is not None
        values.append(scores.balance.detach())
        return scores.balance

    pack = pack_sequences(SEQUENCES, [1] * len(SEQUENCES))
    engine.learn(pack, loss, is_last=True)

    ids = torch.zeros(3, 30, dtype=torch.int64)
    is_token = torch.zeros(3, 30)
    for row, tokens in enumerate(SEQUENCES):
        ids[row, : len(tokens)], is_token[row, : len(tokens)] = torch.from_numpy(tokens), 1
    outputs = plain(input_ids=ids, output_router_logits=True)
    expected = load_balancing_loss_func(outputs.router_logits, 4, 2, is_token)
    assert isinstance(expected, Tensor)
    expected.backward()
    assert float(values[0]) == pytest.approx(float(expected.detach()), abs=1e-5)
    for (name, weight), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None and other.grad.abs().max() > 0:
            assert weight.grad is not None, name
            torch.testing.assert_close(weight.grad, other.grad, atol=1e-6, rtol=1e-4)


def test_a_pass_without_gradient_and_a_recipe_without_the_option_compute_none() -> None:
    pack = pack_sequences(SEQUENCES, [1] * len(SEQUENCES))
    assert LocalEngine(tiny_model(is_tied=True, experts=4), SPEC).score(pack).balance is None
    engine = LocalEngine(tiny_model(is_tied=True, experts=4), replace(SPEC, balances_experts=False))

    def loss(scores: TokenScores) -> Tensor:
        assert scores.balance is None
        return scores.logprobs.sum()

    engine.learn(pack, loss, is_last=True)


def test_a_model_without_experts_is_refused() -> None:
    with raises_code(InvalidInput, "trainer.no_router_scores"):
        LocalEngine(tiny_model(is_tied=True), SPEC)


def test_a_step_adds_the_weighted_loss() -> None:
    case = Case(experts=4, batch=mixed_batch())
    plain = local_step(case).gradients[0]
    balanced = local_step(replace(case, balance=0.5)).gradients[0]
    differences = {name: float((balanced[name] - plain[name]).abs().max()) for name in plain}
    routers = [name for name in plain if name.endswith("mlp.gate.weight")]
    assert routers
    assert all(differences[name] > 1e-6 for name in routers)
