"""Attention of SGLang servers on a CPU: a batch at once equals one sequence after the other."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from astraflow.raas.engines.server.in_server import astraflow_cpu_attention as attention


class Backend:
    """SGLang's backend: attention of one sequence after the other."""

    def __init__(self) -> None:
        self.calls = 0

    def _run_sdpa_forward_decode(
        self, query: Tensor, output: Tensor, *cache_and_lengths: Any, scaling: float, **other: Any
    ) -> Tensor:
        *cache, lengths, _ = cache_and_lengths
        return self._each(query, output, cache, lengths, torch.ones_like(lengths), scaling)

    def _run_sdpa_forward_extend(
        self, query: Tensor, output: Tensor, *cache_and_lengths: Any, scaling: float, **other: Any
    ) -> Tensor:
        *cache, lengths, _, queries, _ = cache_and_lengths
        return self._each(query, output, cache, lengths, queries, scaling)

    def _each(
        self, query: Tensor, output: Tensor, cache: list[Tensor], lengths: Tensor, queries: Tensor, scaling: float
    ) -> Tensor:
        keys, values, tokens, requests = cache
        self.calls += 1
        end = 0
        for request, length, count in zip(requests, lengths.tolist(), queries.tolist(), strict=True):
            begin, end = end, end + count
            slots = tokens[request, :length]
            mask = torch.ones(length, length, dtype=torch.bool).tril()[length - count :]
            rows = scaled_dot_product_attention(
                query[begin:end].transpose(0, 1)[None],
                keys[slots].transpose(0, 1)[None],
                values[slots].transpose(0, 1)[None],
                attn_mask=mask,
                enable_gqa=True,
                scale=scaling,
            )
            output[begin:end] = rows[0].transpose(0, 1)
        return output


def result(
    backend: Any, *, sequences: int, longest: int, key_heads: int = 2, is_decoding: bool, **other: Any
) -> Tensor:
    draws = torch.Generator().manual_seed(sequences)
    lengths = torch.randint(1, longest + 1, (sequences,), generator=draws)
    lengths[0] = longest
    queries = torch.ones_like(lengths) if is_decoding else (lengths + 1) // 2
    cache = [torch.randn(2000, key_heads, 8, generator=draws) for _ in range(2)]
    for part in cache:
        part[0] = torch.nan  # a slot that no sequence uses
    tokens = torch.randint(1, 2000, (sequences + 3, longest + 5), generator=draws)
    requests = torch.randperm(sequences + 3, generator=draws)[:sequences]
    for request, length in zip(requests, lengths, strict=True):
        tokens[request, length:] = 0
    query = torch.randn(int(queries.sum()), 4, 8, generator=draws)
    arguments = (query, torch.zeros_like(query), *cache, tokens, requests, lengths)
    if is_decoding:
        done = backend._run_sdpa_forward_decode(*arguments, None, scaling=0.3, enable_gqa=True, **other)
    else:
        more = {"causal": True, **other}
        done = backend._run_sdpa_forward_extend(
            *arguments, lengths - queries, queries, None, scaling=0.3, enable_gqa=True, **more
        )
    assert isinstance(done, Tensor)
    return done


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> type[Backend]:
    """SGLang's backend whose attention was replaced."""

    class Replaced(Backend):
        pass

    monkeypatch.setitem(sys.modules, attention.BACKEND, SimpleNamespace(TorchNativeAttnBackend=Replaced))
    attention.install()
    return Replaced


@pytest.mark.parametrize("is_decoding", [True, False], ids=["decode", "extend"])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize(("sequences", "longest"), [(4, 1), (5, 7), (16, 40), (4, 128)])
def test_a_batch_at_once_equals_one_sequence_after_the_other(
    replaced: type[Backend], sequences: int, longest: int, key_heads: int, is_decoding: bool
) -> None:
    shape: dict[str, Any] = {"sequences": sequences, "longest": longest, "key_heads": key_heads}
    backend = replaced()
    at_once = result(backend, **shape, is_decoding=is_decoding)
    assert backend.calls == 0
    torch.testing.assert_close(at_once, result(Backend(), **shape, is_decoding=is_decoding))


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ({"sequences": 3, "longest": 7}, {}),
        ({"sequences": 5, "longest": 129}, {}),
        ({"sequences": 5, "longest": 7}, {"sliding_window_size": 4}),
        ({"sequences": 5, "longest": 7}, {"is_cross_attn": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_decoding", [True, False], ids=["decode", "extend"])
def test_few_or_long_sequences_and_other_attention_stay_with_the_server(
    replaced: type[Backend], shape: dict[str, int], other: dict[str, Any], is_decoding: bool
) -> None:
    backend = replaced()
    result(backend, **shape, is_decoding=is_decoding, **other)
    assert backend.calls == 1


def test_large_prefills_stay_with_the_server(replaced: type[Backend]) -> None:
    backend = replaced()
    result(backend, sequences=64, longest=100, is_decoding=False)
    assert backend.calls == 1


def test_a_process_without_the_backend_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, attention.BACKEND, raising=False)
    attention.install()
    assert attention.BACKEND not in sys.modules
