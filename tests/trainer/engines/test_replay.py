"""Replay of experts in every family and batching, and what it is for: engines whose rounding chooses other experts."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.weights import Dtype
from astraflow.raas.engines import engines
from astraflow.trainer.engines.base import Batching, Pack
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.scoring.replay import replay_experts
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.packing import pack_sequences
from tests import make_torch
from tests.errors import raises_code

CPU = torch.device("cpu")
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
_SHARED = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 8, "norm_topk_prob": True, "mlp_only_layers": [0]},
    "qwen2_moe": {"num_experts": 6, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    "qwen3_5_moe_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 6,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "gpt_oss": {"num_local_experts": 6},
    "mixtral": {"num_local_experts": 6},
    "olmoe": {"num_experts": 6},
    "granitemoe": {"num_local_experts": 6},
    "glm4_moe": {**_SHARED, "n_group": 2, "topk_group": 1},
    "deepseek_v3": {**_LATENT, **_SHARED, "n_group": 2, "topk_group": 1},
    "ernie4_5_moe": {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 8, "moe_layer_start_index": 1},
}
"""Configurations of small mixtures, some of whose layers are dense."""


def small_model(kind: str, **values: Any) -> PreTrainedModel:
    create: Any = CONFIG_MAPPING[kind]
    sizes = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "num_experts_per_tok": 2,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(create(**{**sizes, **values}))
    return model


@pytest.mark.parametrize("kind", FAMILIES)
def test_any_mixture_replays_its_own_choice_exactly_and_another_one_in_all_batchings(kind: str) -> None:
    model = small_model(kind, **FAMILIES[kind])
    for batching in Batching:
        scorer = Scorer(deepcopy(model), CPU)
        scorer.use(batching)
        if scorer.obstacle() is None:
            replay_experts(scorer)
            assert scorer.batching is batching


def test_models_that_cannot_replay_are_refused() -> None:
    with raises_code(InvalidInput, "trainer.no_experts"):
        replay_experts(Scorer(small_model("qwen3"), CPU))
    with raises_code(InvalidInput, "trainer.experts_not_replayed", "topk"):
        replay_experts(Scorer(small_model("phimoe", num_local_experts=4, lm_head_bias=False), CPU))


SPEC = EngineSpec(
    optimizer=OptimizerOptions(learning_rate=1e-30), device=CPU, published_dtype=Dtype.BFLOAT16, replays_experts=True
)
SIZES = {"kind": "tiny", "layers": 4, "hidden_size": 64, "intermediate_size": 64}


@torch.no_grad()
def served_model(spec: dict[str, Any]) -> PreTrainedModel:
    """Returns a model whose routers are as undecided as those of trained models."""
    model = make_torch.model(spec=spec)
    for weight in model.parameters():
        if weight.ndim > 1:
            draws = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
            weight.copy_((draws * weight.shape[-1] ** -0.5).bfloat16())
    return model


def rollouts(model: PreTrainedModel, spec: dict[str, Any]) -> tuple[Pack, torch.Tensor]:
    """Returns sequences that an engine wrote in bfloat16, with their experts if there are any, and its logprobs."""
    draws = np.random.default_rng(0)
    prompts = [draws.integers(4, model.config.vocab_size, length).astype(np.int32) for length in range(5, 21)]

    async def generated() -> list[Any]:
        engine = engines.build({"kind": "local_torch", "compute_dtype": "bfloat16", "seed": 1}, spec)
        await engine.load(make_torch.published(model))
        sampling = Sampling(max_new_tokens=40, experts=TokenColumn.EXPERTS in engine.records)
        requests = [engine.generate(str(len(prompt)), prompt, sampling) for prompt in prompts]
        results = await asyncio.gather(*requests)
        await engine.close()
        return results

    results = asyncio.run(generated())
    sequences = [np.concatenate([prompt, result.tokens]) for prompt, result in zip(prompts, results, strict=True)]
    pack = pack_sequences(sequences, [len(prompt) for prompt in prompts])
    columns = [result.columns.get(TokenColumn.EXPERTS, np.zeros((0, 1), np.uint8)) for result in results]
    logprobs = torch.from_numpy(np.concatenate([result.logprobs for result in results]))
    return replace(pack, experts=torch.from_numpy(np.concatenate(columns))), logprobs


def mismatch(trainer: torch.Tensor, engine: torch.Tensor) -> float:
    """Returns the mean k3. Nats."""
    gaps = (trainer - engine).double()
    return float((gaps.exp() - 1 - gaps).mean())


def test_with_replay_the_mismatch_of_a_mixture_is_about_that_of_a_dense_model() -> None:
    dense = served_model(SIZES)
    dense_pack, dense_engine = rollouts(dense, SIZES)
    spec = {**SIZES, "experts": 16, "experts_per_token": 4}
    mixture = served_model(spec)
    pack, engine = rollouts(mixture, spec)

    of_dense = mismatch(
        LocalEngine(dense, replace(SPEC, replays_experts=False)).score(replace(dense_pack, experts=None)).logprobs,
        dense_engine,
    )
    scores = LocalEngine(deepcopy(mixture), SPEC).score(pack)
    without = mismatch(LocalEngine(mixture, replace(SPEC, replays_experts=False)).score(pack).logprobs, engine)

    assert scores.replayed_choices is not None
    changed, replayed = scores.replayed_choices.tolist()
    assert replayed == 16 * 40 * 4 * 4
    assert 0.003 < changed / replayed < 0.03
    assert without > 5 * of_dense
    assert mismatch(scores.logprobs, engine) < 2.5 * of_dense
