"""Attention of SGLang's backend `torch_native` for a batch of short sequences at once.

SGLang calls it for one sequence after the other, in some fifteen operations each: with 64 sequences and 4 layers that
is 4,000 operations for each token, much more than a small model computes. On one core, 64 sequences of at most 24
tokens take 0.8 instead of 6.9 ms per layer. At 128 tokens and more the copies of padded keys cost what the calls did,
so longer contexts stay with SGLang, and so does any attention other than causal self-attention.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BACKEND = "sglang.srt.layers.attention.torch_native_backend"
MIN_SEQUENCES = 4
MAX_POSITIONS = 128
"""Longest context, in tokens."""
MAX_SCORES = 2**18
"""Padded pairs of a query and a key of a batch, per head."""


def install() -> None:
    """Replaces the attention of the backend `torch_native` when this process uses it. Call it once."""
    backend = getattr(sys.modules.get(BACKEND), "TorchNativeAttnBackend", None)
    if backend is not None:
        backend._run_sdpa_forward_decode = _at_once(backend._run_sdpa_forward_decode, is_decoding=True)
        backend._run_sdpa_forward_extend = _at_once(backend._run_sdpa_forward_extend, is_decoding=False)


def _at_once(each: Callable[..., Tensor], *, is_decoding: bool) -> Callable[..., Tensor]:
    """Returns a method with the arguments of `each`, SGLang's, which it calls for what is not done at once."""

    @functools.wraps(each)
    def attend(self: object, query: Tensor, output: Tensor, *cache_and_lengths: Any, **options: Any) -> Tensor:
        # lengths: of the sequences; for `extend` also of the cached and of the new part; of encoders, or None
        *cache, seq_lens = cache_and_lengths[:5]
        queries = torch.ones_like(seq_lens) if is_decoding else cache_and_lengths[6]
        window = options.get("sliding_window_size")
        is_usual = (
            cache_and_lengths[-1] is None
            and (is_decoding or options.get("causal"))
            and not options.get("is_cross_attn")
            and (window is None or window < 0)
        )
        if is_usual and attended(query, output, *cache, seq_lens, queries, scale=options.get("scaling")):
            return output
        return each(self, query, output, *cache_and_lengths, **options)

    return attend


def attended(
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    queries: Tensor,
    *,
    scale: float | None,
) -> bool:
    """Writes the causal self-attention of the newest tokens of all sequences into `output`; returns false, and writes
    nothing, when one sequence after the other is faster.

    query, output: [tokens, heads, size], the new tokens of one sequence after those of the other. k_cache, v_cache:
    [slots, key heads, size]. req_to_token: [requests, positions], slots. req_pool_indices, seq_lens, queries:
    [sequences]; lengths include the new tokens, `queries` counts these.
    """
    count, longest, most = len(seq_lens), int(seq_lens.max()), int(queries.max())
    if count < MIN_SEQUENCES or longest > MAX_POSITIONS or count * longest * most > MAX_SCORES:
        return False
    ends = queries.cumsum(0)
    offsets = torch.arange(most)
    is_query = offsets < queries[:, None]
    rows = torch.minimum((ends - queries)[:, None] + offsets, (ends - 1)[:, None])
    positions = torch.minimum((seq_lens - queries)[:, None] + offsets, (seq_lens - 1)[:, None])
    slots = req_to_token[req_pool_indices, :longest]
    places = torch.arange(longest)
    slots = torch.where(places < seq_lens[:, None], slots, slots[:, :1])  # others may hold anything, also NaN
    mask = places <= positions[:, :, None]
    heads, key_heads = query.shape[1], k_cache.shape[1]
    # query heads that share a key head are more queries of it: no copy of the keys for each
    shared = query[rows].unflatten(2, (key_heads, heads // key_heads)).transpose(1, 2).flatten(2, 3)
    result = scaled_dot_product_attention(
        shared,
        k_cache[slots].to(query.dtype).transpose(1, 2),
        v_cache[slots].to(query.dtype).transpose(1, 2),
        attn_mask=mask.repeat_interleave(heads // key_heads, dim=1)[:, None],
        scale=scale,
    )
    result = result.unflatten(2, (most, heads // key_heads)).transpose(1, 2).flatten(2, 3)
    output[: int(ends[-1])] = result[is_query]
    return True
