"""The FLOP formula agrees with torch's counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.adapters import Adapters, LoraOptions
from astraflow.trainer.step.flops import FORWARD_AND_BACKWARD, ForwardCost, peak_flops
from tests.trainer.step_gradients import VOCABULARY, tiny_model


@pytest.mark.parametrize("experts", [0, 6])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("length", [16, 200])
def test_the_formula_matches_the_flop_counter_of_torch(is_tied: bool, length: int, experts: int) -> None:
    model = tiny_model(is_tied=is_tied, experts=experts)
    model.set_attn_implementation("eager")  # computes all pairs, which the counter counts
    model.set_experts_implementation("eager")  # products of single experts, which the counter counts
    ids = torch.randint(0, VOCABULARY, (1, length))

    with FlopCounterMode(display=False) as forward:
        loss = model(input_ids=ids).logits.sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()

    expected = ForwardCost.of_model(model).flops(tokens=length, pairs=length**2, targets=length)
    assert expected == pytest.approx(forward.get_total_flops(), rel=0.01)
    total = forward.get_total_flops() + backward.get_total_flops()
    assert FORWARD_AND_BACKWARD * expected == pytest.approx(total, rel=0.01)


@pytest.mark.long
def test_gradients_of_frozen_weights_are_not_counted() -> None:
    model = tiny_model(is_tied=False)
    model.set_attn_implementation("eager")
    Adapters.add(model, LoraOptions(rank=2), published_dtype=Dtype.FLOAT32, seed=0)
    ids = torch.randint(0, VOCABULARY, (1, 200))

    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids).logits.sum().backward()

    cost = ForwardCost.of_model(model)
    needed = cost.training_flops(tokens=200, pairs=200**2, targets=200)
    # The formula has gradients of the first block's inputs too, which one block of two does not need.
    assert needed == pytest.approx(counter.get_total_flops(), rel=0.03)
    assert needed < 0.9 * FORWARD_AND_BACKWARD * cost.flops(tokens=200, pairs=200**2, targets=200)


def test_only_active_experts_are_counted() -> None:
    def cost(active: int) -> float:
        config = Qwen3MoeConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            moe_intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_experts=8,
            num_experts_per_tok=active,
        )
        return ForwardCost.of_model(Qwen3MoeForCausalLM(config)).per_token

    expert = 2 * 3 * 32 * 16  # gate, up and down
    assert cost(4) - cost(2) == 2 * 2 * expert


def test_layers_with_a_window_count_no_pairs() -> None:
    full, window = (ForwardCost.of_model(tiny_model(is_tied=True, window=size)) for size in (0, 8))

    assert window.per_pair == full.per_pair / 2
    assert window.per_token == full.per_token


def test_a_cpu_has_no_known_peak() -> None:
    assert peak_flops(torch.device("cpu")) is None
