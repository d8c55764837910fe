"""A deep model with the sharp attention and uneven weights of a trained one passes the checks at the start of trainer
and engine. Enlarged like a new model, it would not: rounding grows through its layers."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from astraflow.contract.errors import InvalidInput
from astraflow.models import check_conditions
from astraflow.raas.engines.local.choice import exact_batcher
from astraflow.raas.engines.local_torch import LocalTorchOptions
from astraflow.trainer.engines.scoring.choice import choose_demanded
from astraflow.trainer.engines.scoring.scorer import Scorer

LAYERS = 30
"""As many as SmolLM2-135M."""


def trained_like() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(std=config.hidden_size**-0.5)
                weight.mul_(torch.exp(0.5 * torch.randn(len(weight), 1)))
                is_sharp, is_small = ("q_proj" in name or "k_proj" in name), ("mlp" in name or "o_proj" in name)
                weight.mul_(3.0 if is_sharp else 0.3 if is_small else 1.0)
    return model


def test_a_deep_trained_model_is_trained_in_packs_and_served_in_slots() -> None:
    facts = choose_demanded(Scorer(trained_like(), torch.device("cpu")), None).facts
    batcher = exact_batcher(trained_like().eval().requires_grad_(False), LocalTorchOptions().limits)

    assert (facts.batching, facts.reasons) == ("packed", "")
    assert facts.largest_difference < 1e-5
    assert batcher.way == "slots"


def test_the_fastest_way_is_not_exact_for_the_same_model_enlarged_like_a_new_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether another way remains depends on the rounding of the processor's products."""
    monkeypatch.setattr(check_conditions, "_is_nearly_even", lambda *_: True)

    try:
        exact_batcher(trained_like().eval().requires_grad_(False), LocalTorchOptions().limits)
    except InvalidInput as refused:
        assert refused.code == "engine.inexact_model"
    else:
        assert "SlotBatcher: they differ by" in capsys.readouterr().err
