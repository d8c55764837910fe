"""Attention over packs equals dense attention with a mask."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Gemma2Config, Gemma2ForCausalLM

from astraflow.trainer.engines.attention import cudnn as cudnn_attention
from astraflow.trainer.engines.attention import varlen as varlen_attention
from astraflow.trainer.engines.attention.attention import PackAttention, packed_attention
from astraflow.trainer.engines.attention.kernels import SdpaKernel
from astraflow.trainer.engines.attention.varlen import VarlenKernel
from astraflow.trainer.engines.base import Batching, Segment
from astraflow.trainer.engines.scoring.choice import choose_batching
from astraflow.trainer.engines.scoring.scorer import Scorer
from tests import make_torch

KERNEL = SdpaKernel()
CPU = torch.device("cpu")


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Returns trees of segments, short and long: rows, groups with a prompt, and branches of branches."""
    lengths = st.integers(1, 200) | st.integers(1, 6)
    drawn_segments: list[Segment] = []
    for _ in range(draw(st.integers(1, 3))):
        path: list[Segment] = []
        for _ in range(draw(st.integers(1, 6))):
            begin = drawn_segments[-1].end if drawn_segments else 0
            prefix = (0, 0)
            if path:  # continues one of these after some tokens, at most as many as the one before it
                path = path[: draw(st.integers(1, len(path)))]
                owner = path[-1]
                others = [
                    part.prefix_end for part in drawn_segments if part.prefix_begin == owner.begin < part.prefix_end
                ]
                prefix = (owner.begin, draw(st.integers(owner.begin + 1, min([owner.end, *others]))))
            segment = Segment(begin=begin, end=begin + draw(lengths), prefix_begin=prefix[0], prefix_end=prefix[1])
            drawn_segments.append(segment)
            path.append(segment)
    return drawn_segments


WINDOWS = st.sampled_from([None, 1, 2, 7, 140, 1000])


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Sequence[Segment],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Returns attention with the mask that the segments describe, in a window of positions of the trajectory. sinks:
    scores of a key without a value that every query sees."""
    width = len(query)
    mask = torch.zeros(width, width, dtype=torch.bool)
    positions = torch.zeros(width, dtype=torch.int64)
    for segment in segments:
        own, length = slice(segment.begin, segment.end), segment.end - segment.begin
        positions[own] = torch.arange(length)
        if segment.prefix_end > segment.prefix_begin:  # sees what the last token of its prefix sees
            mask[own] = mask[segment.prefix_end - 1]
            positions[own] += positions[segment.prefix_end - 1] + 1
        mask[own, own] = torch.ones(length, length, dtype=torch.bool).tril()
    if window is not None:
        mask &= positions[:, None] - positions < window
    if sinks is not None:
        repeats = query.shape[1] // key.shape[1]
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(repeats, dim=1)) * scale
        scores = torch.cat([scores.masked_fill(~mask, -torch.inf), sinks[:, None, None].expand(-1, width, 1)], -1)
        shares = scores.softmax(-1)[..., :-1]
        return torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(repeats, dim=1))
    query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)[0].transpose(
        0, 1
    )


def assert_same_with_gradients(actual: Tensor, expected: Tensor, weight: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in (actual, expected)]
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    segments=segments(),
    key_heads=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
    window=WINDOWS,
    has_sinks=st.booleans(),
)
def test_attention_and_its_gradients_equal_those_of_a_dense_mask(
    segments: list[Segment], key_heads: int, seed: int, window: int | None, has_sinks: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    width = segments[-1].end
    shapes = [(width, 4, 16), (width, key_heads, 16), (width, key_heads, 16)]
    query, key, value = ((torch.randn(shape, generator=random) * 2).requires_grad_() for shape in shapes)
    weight = torch.randn(shapes[0], generator=random)
    sinks = (torch.randn(4, generator=random) * 3).requires_grad_() if has_sinks else None

    packed = packed_attention(KERNEL.plan(segments, CPU, window), query, key, value, scale=0.25, sinks=sinks)

    inputs = (query, key, value) if sinks is None else (query, key, value, sinks)
    assert_same_with_gradients(packed, dense(query, key, value, segments, 0.25, window, sinks), weight, inputs)


def sequences(query_ends: Tensor, key_ends: Tensor) -> list[tuple[slice, slice]]:
    query, key = query_ends.tolist(), key_ends.tolist()
    return [(slice(*ends[:2]), slice(*ends[2:])) for ends in zip(query[:-1], query[1:], key[:-1], key[1:], strict=True)]


def scores_of(query: Tensor, key: Tensor, *, scale: float, is_causal: bool, left: int | None, right: int) -> Tensor:
    """Returns `[heads, queries, keys]` for key heads repeated over query heads. left, right: keys around the one at the
    query's place, counted from the ends of both, that it attends to; None or -1: all."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    hidden = (
        torch.ones(scores.shape[1:], dtype=torch.bool).triu(1) if is_causal else torch.zeros(scores.shape[1:]).bool()
    )
    if left is not None:
        distances = torch.arange(len(query))[:, None] + len(key) - len(query) - torch.arange(len(key))
        hidden |= distances > left
        hidden |= (-distances > right) & (right >= 0)
    return scores.masked_fill(hidden, -torch.inf)


def slow_flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    max_queries: int,
    max_keys: int,
    dropout: float,
    is_causal: bool,
    *,
    return_debug_mask: bool,
    scale: float,
    window_size_left: int | None,
    window_size_right: int | None,
) -> tuple[Tensor, ...]:
    """Computes what torch's kernel computes, one sequence at a time."""
    output, logarithm = torch.empty_like(query), torch.empty(query.shape[1], len(query))
    repeats = query.shape[1] // key.shape[1]
    for queries, keys in sequences(query_ends, key_ends):
        assert queries.stop - queries.start <= max_queries
        assert keys.stop - keys.start <= max_keys
        window: dict[str, Any] = {
            "left": window_size_left,
            "right": -1 if window_size_right is None else window_size_right,
        }
        scores = scores_of(query[queries], key[keys], scale=scale, is_causal=is_causal, **window)
        values = value[keys].repeat_interleave(repeats, dim=1)
        output[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        logarithm[:, queries] = scores.logsumexp(-1)
    return output, logarithm, torch.zeros(2), torch.zeros(0), torch.zeros(0)


def slow_flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithm: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    max_queries: int,
    max_keys: int,
    dropout: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float,
    window_size_left: int | None,
    window_size_right: int | None,
) -> tuple[Tensor, ...]:
    """Computes the gradients from output and logarithm, as the kernel does."""
    into = [torch.zeros_like(part) for part in (query, key, value)]
    heads, repeats = key.shape[1], query.shape[1] // key.shape[1]
    for queries, keys in sequences(query_ends, key_ends):
        window: dict[str, Any] = {
            "left": window_size_left,
            "right": -1 if window_size_right is None else window_size_right,
        }
        scores = scores_of(query[queries], key[keys], scale=scale, is_causal=is_causal, **window)
        probabilities = (scores - logarithm[:, queries, None]).exp()
        repeated_keys, values = (part[keys].repeat_interleave(repeats, dim=1) for part in (key, value))
        delta = (grad[queries] * output[queries]).sum(-1).T[..., None]
        by_score = probabilities * (torch.einsum("qhd,khd->hqk", grad[queries], values) - delta) * scale
        into[0][queries] = torch.einsum("hqk,khd->qhd", by_score, repeated_keys)
        for target, part in (
            (into[1], torch.einsum("hqk,qhd->khd", by_score, query[queries])),
            (into[2], torch.einsum("hqk,qhd->khd", probabilities, grad[queries])),
        ):
            target[keys] = part.unflatten(1, (heads, repeats)).sum(2)
    return tuple(into)


def _flat(values: Tensor) -> Tensor:
    """Returns `[sequences * length, heads, size]` of `[sequences, heads, length, size]`."""
    return values.transpose(1, 2).flatten(0, 1)


def _ends(calls: Tensor) -> tuple[Tensor, int]:
    """Returns the ends of the sequences `[sequences, heads, length, size]` laid out flat, and their length."""
    return torch.arange(len(calls) + 1) * calls.shape[2], calls.shape[2]


def _calls(flat: Tensor, count: int) -> Tensor:
    calls: Tensor = flat.unflatten(0, (count, -1))
    return calls.transpose(1, 2)


NO_WINDOW: dict[str, Any] = {"window_size_left": None, "window_size_right": None}


def slow_cudnn_forward(
    query: Tensor, key: Tensor, value: Tensor, *options: Any, scale: float
) -> tuple[Tensor, Tensor, None]:
    """Computes what cuDNN computes."""
    (query_ends, max_queries), (key_ends, max_keys) = _ends(query), _ends(key)
    *_, queries, keys, _, dropout, is_causal, _ = options
    assert (queries, keys) == (max_queries, max_keys)
    output, logarithm, *_ = slow_flash_forward(
        _flat(query),
        _flat(key),
        _flat(value),
        query_ends,
        key_ends,
        queries,
        keys,
        dropout,
        is_causal,
        return_debug_mask=False,
        scale=scale,
        **NO_WINDOW,
    )
    return _calls(output, len(query)), _calls(logarithm.T[..., None], len(query)), None


def slow_cudnn_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithm: Tensor,
    *options: Any,
    scale: float,
) -> tuple[Tensor, ...]:
    """Computes the gradients, as cuDNN does."""
    (query_ends, _), (key_ends, _) = _ends(query), _ends(key)
    *_, queries, keys, dropout, is_causal = options
    parts = slow_flash_backward(
        _flat(grad),
        _flat(query),
        _flat(key),
        _flat(value),
        _flat(output),
        _flat(logarithm)[..., 0].T,
        query_ends,
        key_ends,
        queries,
        keys,
        dropout,
        is_causal,
        torch.zeros(2),
        torch.zeros(0),
        scale=scale,
        **NO_WINDOW,
    )
    return tuple(_calls(part, len(query)) for part in parts)


@settings(max_examples=20, deadline=None)
@given(
    segments=segments(),
    key_heads=st.sampled_from([1, 2, 4]),
    window=WINDOWS,
    cudnn_pairs=st.sampled_from([None, 1, 9, 17_000]),
    has_sinks=st.booleans(),
)
def test_gpu_kernels_get_sequences_and_their_results_are_merged(
    segments: list[Segment], key_heads: int, window: int | None, cudnn_pairs: int | None, has_sinks: bool
) -> None:
    width = segments[-1].end
    query, key, value = (torch.randn(width, heads, 8).requires_grad_() for heads in (4, key_heads, key_heads))
    weight = torch.randn(width, 4, 8)
    sinks = torch.randn(4).requires_grad_() if has_sinks else None
    kernel = VarlenKernel(cudnn_pairs=cudnn_pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen_attention, "flash_forward", slow_flash_forward)
        patch.setattr(varlen_attention, "flash_backward", slow_flash_backward)
        patch.setattr(cudnn_attention, "cudnn_forward", slow_cudnn_forward)
        patch.setattr(cudnn_attention, "cudnn_backward", slow_cudnn_backward)

        packed = packed_attention(kernel.plan(segments, CPU, window), query, key, value, scale=0.3, sinks=sinks)

        inputs = (query, key, value) if sinks is None else (query, key, value, sinks)
        assert_same_with_gradients(packed, dense(query, key, value, segments, 0.3, window, sinks), weight, inputs)


def test_padding_does_not_affect_gradients() -> None:
    segments = [Segment(begin=0, end=3), Segment(begin=3, end=20)]
    query = torch.full((20, 1, 8), 60.0).requires_grad_()
    key, value = torch.full((20, 1, 8), 60.0), torch.ones(20, 1, 8)
    key[:3] = -60.0

    packed_attention(KERNEL.plan(segments, CPU), query, key, value, scale=1.0).sum().backward()

    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_a_model_with_bounded_scores_is_not_packed() -> None:
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        layer_types=["full_attention"],
        final_logit_softcapping=None,
    )
    model = Gemma2ForCausalLM(config)
    model.set_attn_implementation("eager")

    choice = choose_batching(Scorer(model, CPU), setting="")

    assert "softcap" in choice.rejected[Batching.PACKED]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_attention_implementation_is_replaced_by_packed_attention(implementation: str) -> None:
    model = make_torch.model()
    model.set_attn_implementation(implementation)

    assert Scorer(model, CPU).model.config._attn_implementation not in ("sdpa", "eager")


def test_a_model_that_ignores_the_attention_plan_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_plan(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{**options, "attention_plans": None})

    original = AttentionInterface()[PackAttention.name]
    monkeypatch.setitem(AttentionInterface._global_mapping, PackAttention.name, without_plan)

    choice = choose_batching(Scorer(make_torch.model(), CPU), setting="")

    assert choice.batching is Batching.TREE
    assert "differ by" in choice.rejected[Batching.PACKED]
