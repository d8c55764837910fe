"""Batchings: whole rows compute what packs compute, for models with attention alone and for others."""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.cohere.configuration_cohere import CohereConfig
from transformers.models.cohere.modeling_cohere import CohereForCausalLM

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.base import Batching, Pack, Segment
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.scoring import scorer as scorer_module
from astraflow.trainer.engines.scoring.choice import choose_batching
from astraflow.trainer.engines.scoring.head import LogitsHead, TargetHead
from astraflow.trainer.engines.scoring.scorer import Scorer, disable_dropout
from astraflow.trainer.engines.sequence import SequenceGroup, SequenceScorer
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.packing import pack_sequences
from benchmarks.model_families.configurations import tiny_model
from tests.errors import raises_code

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
BOUND = 1e-5

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, sliding_window=4, query_pre_attn_scalar=8)),
    "gpt-oss": lambda: GptOssForCausalLM(
        GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
    ),
    "qwen3-next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(
            **SIZES,
            layer_types=["linear_attention", "full_attention"],
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=8,
            shared_expert_intermediate_size=8,
            linear_num_key_heads=1,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        )
    ),
}


def model_of(kind: str) -> PreTrainedModel:
    """Returns a model with weights so large that bounds and scales show."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = MODELS[kind]()
        if kind != "qwen3":
            model.set_attn_implementation("eager")
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(6.0)
    return model


def reference(model: PreTrainedModel, sequences: list[np.ndarray[Any, Any]], scored_from: list[int]) -> Tensor:
    """Returns the logprobs of sequences, each computed alone by transformers."""
    parts = []
    for tokens, start in zip(sequences, scored_from, strict=True):
        ids = torch.from_numpy(tokens)
        logs = model(input_ids=ids[None, :-1], use_cache=False).logits[0].float().log_softmax(-1)
        parts.append(logs.gather(-1, ids[1:, None])[start - 1 :, 0])
    return torch.cat(parts)


def gradient(model: PreTrainedModel, values: Tensor) -> Tensor:
    model.zero_grad()
    (values * torch.linspace(0.5, 1.5, len(values))).sum().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


SEQUENCES = [np.array([1, 2, 3, 4, 5, 6, 7]), np.array([9, 8, 7]), np.array([3, 3, 5, 1, 0])]
SCORED_FROM = [2, 1, 3]


@settings(max_examples=30)
@given(st.data())
def test_rows_of_any_pack_are_those_of_the_flat_pack(data: st.DataObject) -> None:
    pack = data.draw(packs())
    scorers = both_scorers()
    with torch.no_grad():
        flat, rows = (scorer(scorer.inputs(pack)) for scorer in scorers)
    torch.testing.assert_close(rows.logprobs, flat.logprobs, rtol=0, atol=BOUND)
    torch.testing.assert_close(rows.entropy, flat.entropy, rtol=0, atol=BOUND)


@cache
def both_scorers() -> list[Scorer]:
    """Returns the scorers of flat packs and of rows."""
    return [Scorer(model_of("qwen3"), CPU, batching) for batching in (Batching.PACKED, Batching.ROWS)]


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    """Returns a pack of prompts with any number of answers, and any predictors."""
    segments: list[Segment] = []
    for _ in range(draw(st.integers(1, 3))):
        begin = segments[-1].end if segments else 0
        prefix = begin + draw(st.integers(1, 6))
        segments.append(Segment(begin=begin, end=prefix))
        for length in draw(st.lists(st.integers(1, 5), max_size=3)):
            end = segments[-1].end + length
            segments.append(Segment(begin=end - length, end=end, prefix_begin=begin, prefix_end=prefix))
    width = segments[-1].end
    predictors = draw(st.lists(st.integers(0, width - 1), max_size=8))
    token = st.integers(0, SIZES["vocab_size"] - 1)
    return Pack(
        input_ids=torch.tensor(draw(st.lists(token, min_size=width, max_size=width))),
        positions=torch.cat([positions_of(segment) for segment in segments]),
        segments=tuple(segments),
        predictors=torch.tensor(predictors, dtype=torch.int64),
        targets=torch.tensor([draw(token) for _ in predictors], dtype=torch.int64),
    )


def positions_of(segment: Segment) -> Tensor:
    first = segment.prefix_end - segment.prefix_begin
    return torch.arange(first, first + segment.end - segment.begin)


CASES = [*((kind, Batching.ROWS) for kind in MODELS), ("qwen3", Batching.PACKED), ("gpt-oss", Batching.PACKED)]


@pytest.mark.parametrize(("kind", "batching"), CASES)
def test_values_and_gradients_are_those_of_each_sequence_alone(kind: str, batching: Batching) -> None:
    model = model_of(kind)
    expected = reference(model, SEQUENCES, SCORED_FROM)
    expected_gradient = gradient(model, expected)
    scorer = Scorer(model, CPU)

    choice = choose_batching(scorer, (batching,), setting="")
    scores = scorer.train()(scorer.inputs(pack_sequences(SEQUENCES, SCORED_FROM)))

    assert choice.batching is batching
    assert isinstance(scorer.head, TargetHead)
    assert float((scores.logprobs - expected).detach().abs().max()) < BOUND
    difference = gradient(model, scores.logprobs) - expected_gradient
    assert float(difference.norm() / expected_gradient.norm()) < BOUND


def test_a_model_with_attention_alone_is_packed_and_others_are_not() -> None:
    packed = choose_batching(Scorer(model_of("qwen3"), CPU), setting="")
    hybrid = choose_batching(Scorer(model_of("qwen3-next"), CPU), setting="")

    assert (packed.batching, packed.costs, packed.rejected) == (Batching.PACKED, "", {})
    assert hybrid.batching is not Batching.PACKED
    assert "linear_attention" in hybrid.rejected[Batching.PACKED]
    assert hybrid.costs


def test_a_demanded_batching_that_is_not_exact_is_refused() -> None:
    spec = EngineSpec(optimizer=OptimizerOptions(), device=CPU, published_dtype=Dtype.FLOAT32, batching=Batching.PACKED)
    with raises_code(InvalidInput, "trainer.batching_not_exact", "linear_attention"):
        LocalEngine(model_of("qwen3-next"), spec)


def test_a_model_that_is_not_packed_is_refused_by_sequence_ranks_with_the_setting() -> None:
    group: Any = SequenceGroup(rank=0, ranks=2, group=None)  # type: ignore[arg-type]  # not reached
    with raises_code(InvalidInput, "trainer.batching_not_exact", "sequence_ranks = 1"):
        SequenceScorer(Scorer(model_of("qwen3-next"), CPU), CPU, group)


def test_a_head_of_another_form_takes_the_logits_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("cohere")
    model.config.logit_scale = 1.0  # which the model has read before
    scorer = Scorer(model, CPU)

    choice = choose_batching(scorer, setting="")
    scores = scorer(scorer.inputs(pack_sequences(SEQUENCES, SCORED_FROM)))

    assert choice.has_own_head
    assert choice.costs
    assert isinstance(scorer.head, LogitsHead)
    expected = reference(model, SEQUENCES, SCORED_FROM)
    assert float((scores.logprobs - expected).detach().abs().max()) < BOUND


def test_dropout_is_off_in_the_training_pass() -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, attention_dropout=0.5))
    scorer = Scorer(model, CPU)
    choose_batching(scorer, setting="")
    pack = pack_sequences(SEQUENCES, SCORED_FROM)

    trained, scored = (scorer.train(mode)(scorer.inputs(pack)).logprobs for mode in (True, False))

    torch.testing.assert_close(trained, scored, rtol=0, atol=1e-6)


def test_rates_of_dropout_are_0_except_those_of_adapters() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_dropout, self.scale = 0.1, 0.3
            self.config = SimpleNamespace(hidden_dropout=0.1)
            self.residual = nn.Dropout(0.4)
            self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.5)})

    layer = Layer()
    disable_dropout(layer)

    assert (layer.attention_dropout, layer.residual.p, layer.config.hidden_dropout) == (0, 0, 0)
    assert layer.scale == 0.3
    assert vars(layer.get_submodule("lora_dropout.default"))["p"] == 0.5


def test_noise_of_routers_is_off_while_its_rate_has_its_effect() -> None:
    model = tiny_model("phimoe")
    for module in model.modules():
        if hasattr(module, "router_jitter_noise"):
            vars(module).update(router_jitter_noise=0.4, input_jitter_noise=0.4)
    tokens = torch.arange(3, 15)
    with torch.no_grad():
        expected = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    scorer = Scorer(model, CPU, Batching.ROWS)
    pack = pack_sequences([tokens.numpy()], [1])

    for mode in (True, False):
        logprobs = scorer.train(mode)(scorer.inputs(pack)).logprobs
        torch.testing.assert_close(logprobs.detach(), expected, rtol=0, atol=1e-5)


def test_a_random_training_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_module, "disable_dropout", lambda _model: None)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, attention_dropout=0.5))

    with raises_code(InvalidInput, "model.random_training_pass"):
        choose_batching(Scorer(model, CPU), (Batching.ROWS,), setting="")


def test_the_check_changes_no_weight_and_leaves_no_hook() -> None:
    model = model_of("gemma2")
    before = {name: value.clone() for name, value in model.state_dict().items()}

    choose_batching(Scorer(model, CPU), setting="")

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert model.config.sliding_window == 4
