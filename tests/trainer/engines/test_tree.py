"""Batching `tree`: prompts are computed once and continued, with the values and gradients of whole rows."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from astraflow.trainer.engines.base import Batching, Pack, Segment, prefixes_of
from astraflow.trainer.engines.scoring.choice import choose_batching
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.engines.scoring.tree import TreePass, tree_passes

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
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4},
    "falcon_h1": {
        "mamba_n_heads": 2,
        "mamba_d_head": 16,
        "mamba_d_state": 4,
        "mamba_n_groups": 1,
        "mamba_d_ssm": 32,
    },
}


def segments_of(groups: list[tuple[int, list[int]]]) -> tuple[Segment, ...]:
    """Returns the segments of groups of a prompt and the members' own tokens; of single rows when it has 0 tokens."""
    segments: list[Segment] = []
    end = 0
    for prompt, members in groups:
        if prompt:
            segments.append(Segment(begin=end, end=end + prompt))
        prefix = (end, end + prompt) if prompt else (0, 0)
        end += prompt
        for own in members:
            segments.append(Segment(begin=end, end=end + own, prefix_begin=prefix[0], prefix_end=prefix[1]))
            end += own
    return tuple(segments)


def pack_of(segments: tuple[Segment, ...]) -> Pack:
    """Returns a pack in which every position predicts a token, and those that are shared predict several."""
    width = segments[-1].end
    shared = [position for segment in segments for position in range(segment.prefix_begin, segment.prefix_end)]
    draws = torch.Generator().manual_seed(0)
    firsts = [sum(end - begin for begin, end in prefixes) for prefixes in prefixes_of(segments)]
    targets = torch.randint(3, 40, (width,), generator=draws)
    predictors = torch.tensor([*range(width), *shared, *shared])
    return Pack(
        input_ids=torch.randint(3, 40, (width,), generator=draws),
        positions=torch.cat(
            [torch.arange(part.end - part.begin) + first for part, first in zip(segments, firsts, strict=True)]
        ),
        segments=segments,
        predictors=predictors,
        targets=torch.cat([targets[predictors[: width + len(shared)]], targets[shared] - 1]),
    )


NESTED = (
    Segment(begin=0, end=12),
    Segment(begin=12, end=16, prefix_begin=0, prefix_end=9),
    Segment(begin=16, end=25, prefix_begin=12, prefix_end=15),
    Segment(begin=25, end=27, prefix_begin=12, prefix_end=13),  # after one token, which is computed again
    Segment(begin=27, end=28, prefix_begin=0, prefix_end=9),
    Segment(begin=28, end=36, prefix_begin=0, prefix_end=8),
    Segment(begin=36, end=38, prefix_begin=0, prefix_end=1),
    Segment(begin=38, end=41),
)
"""Branches of branches."""
GROUPS = [(7, [5, 2, 9]), (7, [1, 1]), (3, [1]), (0, [6]), (0, [1, 11])]


def model_of(family: str, **options: Any) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**SIZES, **options))
    return model


def scorer_of(family: str) -> Scorer:
    model = model_of(family, **FAMILIES[family])
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4.0)
    return Scorer(model, CPU, Batching.TREE).train()


def scored(scorer: Scorer, pack: Pack) -> tuple[Tensor, Tensor]:
    """Returns the logprobs of a pack, and the gradient of a sum of them."""
    scorer.zero_grad()
    logprobs = scorer(scorer.inputs(pack)).logprobs
    (logprobs * torch.linspace(0.5, 1.5, len(logprobs))).sum().backward()
    gradients = [weight.grad.flatten() for weight in scorer.parameters() if weight.grad is not None]
    return logprobs.detach(), torch.cat(gradients)


def gap(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


@pytest.mark.parametrize("segments", [segments_of(GROUPS), NESTED], ids=["groups", "nested"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_has_the_values_and_gradients_of_rows(family: str, segments: tuple[Segment, ...]) -> None:
    scorer, pack = scorer_of(family), pack_of(segments)
    tree = scored(scorer, pack)
    scorer.use(Batching.ROWS)
    rows = scored(scorer, pack)

    assert float((tree[0] - rows[0]).abs().max()) < 1e-5
    assert gap(tree[1], rows[1]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_a_tree_is_the_same_with_recomputed_activations(family: str, mode: Any) -> None:
    scorer, pack = scorer_of(family), pack_of(NESTED)
    kept = scored(scorer, pack)
    scorer.recompute_activations(mode)
    again = scored(scorer, pack)

    assert torch.equal(again[0], kept[0])
    assert gap(again[1], kept[1]) < 1e-6


def test_a_hybrid_is_computed_as_a_tree_unless_it_does_not_continue_its_states() -> None:
    hybrid = choose_batching(scorer_of("qwen3_5_text"), setting="")
    jamba = model_of("jamba", attn_layer_period=2, attn_layer_offset=1, num_experts=2)
    other = choose_batching(Scorer(jamba, CPU), setting="")

    assert hybrid.batching is Batching.TREE
    assert other.batching is Batching.ROWS
    assert "one token" in other.rejected[Batching.TREE]


def test_prompts_of_one_length_and_their_members_share_a_pass() -> None:
    segments = segments_of([(7, [5, 2]), (3, [4]), (7, [9]), (0, [6])])
    prompt, first, second, short, member, other, third, single = (((part.begin, part.end),) for part in segments)

    assert tree_passes(segments) == [
        TreePass(rows=(prompt, other), is_parent=True),
        TreePass(rows=(short,), is_parent=True),
        TreePass(rows=(single,)),
        TreePass(rows=(member,), parent=1, parent_rows=(0,)),
        TreePass(rows=(third, first, second), parent=0, parent_rows=(1, 0, 0)),
    ]


def test_a_segment_is_divided_where_others_continue_it_and_short_parts_are_computed_again() -> None:
    passes = tree_passes(NESTED)

    assert [(step.rows, step.parent) for step in passes] == [
        ((((0, 1), (1, 8)),), None),
        ((((0, 1), (36, 38)), ((38, 41),)), None),
        ((((8, 9), (12, 13)),), 0),
        ((((28, 36),), ((8, 9), (9, 12)), ((8, 9), (27, 28))), 0),
        ((((13, 15),),), 2),
        ((((25, 27),),), 2),
        ((((16, 25),), ((15, 16),)), 4),
    ]


def test_long_members_have_a_pass_of_their_own_when_that_saves_padding() -> None:
    passes = tree_passes(segments_of([(7, [900, 10, 20, 30])]))

    assert [[end - begin for ((begin, end),) in step.rows] for step in passes] == [[7], [900], [30, 20, 10]]


def test_an_empty_pack_has_no_scores() -> None:
    scorer = scorer_of("qwen3_5_text")
    none = torch.zeros(0, dtype=torch.int64)
    token = torch.zeros(1, dtype=torch.int64)
    pack = Pack(input_ids=token, positions=token, segments=(Segment(begin=0, end=1),), predictors=none, targets=none)

    assert scorer(scorer.inputs(pack)).logprobs.shape == (0,)
