"""The attention kernel of a GPU computes what a dense mask does, in bfloat16. On a CPU a slow kernel replaces it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from astraflow.trainer.engines.attention import cudnn as cudnn_attention
from astraflow.trainer.engines.attention import varlen as varlen_attention
from astraflow.trainer.engines.attention.attention import packed_attention
from astraflow.trainer.engines.attention.kernels import AttentionKernel, SdpaKernel
from astraflow.trainer.engines.attention.varlen import VarlenKernel
from astraflow.trainer.engines.base import Segment
from tests.trainer.engines.attention.test_attention import (
    dense,
    slow_cudnn_backward,
    slow_cudnn_forward,
    slow_flash_backward,
    slow_flash_forward,
)

pytestmark = pytest.mark.gpu

BOUND = 2e-2
"""Largest accepted difference, as a share of the largest element: bfloat16 has 8 bits."""
HEADS, HEAD_SIZE = 8, 64


def segments_of(lengths: Sequence[int], prefix: int, members: Sequence[int]) -> list[Segment]:
    """Returns single rows, then a group with a common prefix."""
    ends = [0]
    for length in [*lengths, prefix, *members]:
        ends.append(ends[-1] + length)
    ranges = list(pairwise(ends))
    begin, end = ranges[len(lengths)]
    return [Segment(begin=first, end=last) for first, last in ranges[: len(lengths) + 1]] + [
        Segment(begin=first, end=last, prefix_begin=begin, prefix_end=end) for first, last in ranges[len(lengths) + 1 :]
    ]


CASES = {
    "rows": segments_of([1, 7, 300, 64], 1, []),
    "a group": segments_of([], 200, [3, 90, 1, 130]),
    "rows and a group": segments_of([127, 5], 65, [64, 2]),
    "branches of branches": [
        Segment(begin=0, end=300),
        Segment(begin=300, end=420, prefix_begin=0, prefix_end=257),
        Segment(begin=420, end=500, prefix_begin=300, prefix_end=365),
        Segment(begin=500, end=503, prefix_begin=300, prefix_end=301),
        Segment(begin=503, end=700, prefix_begin=0, prefix_end=130),
    ],
    "equal rows and a long prefix": segments_of([130, 130, 256], 300, [64, 64, 700]),
}


def rounded(compute: Callable[..., Sequence[Tensor | None]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Returns a slow kernel that computes in float32 and rounds what the GPU's returns in bfloat16."""

    def computed(*arguments: Any, **options: Any) -> tuple[Tensor | None, ...]:
        whole = [part.float() if isinstance(part, Tensor) and part.is_floating_point() else part for part in arguments]
        results = compute(*whole, **options)
        has_logarithm = "forward" in compute.__name__
        return tuple(
            part if part is None or (has_logarithm and number == 1) else part.bfloat16()
            for number, part in enumerate(results)
        )

    return computed


@pytest.fixture(params=[None, 3600], ids=["FlashAttention alone", "cuDNN from 3,600 pairs"])
def varlen(request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> VarlenKernel:
    """The kernel of a GPU; on a CPU its operations are computed slowly."""
    if device.type == "cpu":
        monkeypatch.setattr(varlen_attention, "flash_forward", rounded(slow_flash_forward))
        monkeypatch.setattr(varlen_attention, "flash_backward", rounded(slow_flash_backward))
        monkeypatch.setattr(cudnn_attention, "cudnn_forward", rounded(slow_cudnn_forward))
        monkeypatch.setattr(cudnn_attention, "cudnn_backward", rounded(slow_cudnn_backward))
    return VarlenKernel(cudnn_pairs=request.param)


@pytest.mark.parametrize("key_heads", [1, 4, 8])
@pytest.mark.parametrize("segments", CASES.values(), ids=CASES.keys())
def test_varlen_attention_is_that_of_a_dense_mask(
    device: torch.device, varlen: VarlenKernel, segments: list[Segment], key_heads: int
) -> None:
    _assert_same_as_dense(varlen, segments, key_heads, device)


@pytest.mark.parametrize("segments", CASES.values(), ids=CASES.keys())
def test_the_kernel_of_a_cpu_in_bfloat16_is_within_the_same_bound(segments: list[Segment]) -> None:
    _assert_same_as_dense(SdpaKernel(), segments, HEADS, torch.device("cpu"))


def _assert_same_as_dense(
    kernel: AttentionKernel, segments: list[Segment], key_heads: int, device: torch.device
) -> None:
    draws = torch.Generator().manual_seed(3)
    shapes = [(segments[-1].end, heads, HEAD_SIZE) for heads in (HEADS, key_heads, key_heads, HEADS)]
    values = [torch.randn(shape, generator=draws).bfloat16() for shape in shapes]
    rounded: list[Any] = [part.to(device).requires_grad_() for part in values[:3]]
    exact: list[Any] = [part.float().requires_grad_() for part in values[:3]]

    output = packed_attention(kernel.plan(segments, device), *rounded, scale=HEAD_SIZE**-0.5)
    expected = dense(exact[0], exact[1], exact[2], segments, HEAD_SIZE**-0.5)

    _assert_close(output, expected)
    gradients = torch.autograd.grad(output, rounded, values[3].to(device))
    for gradient, expected_gradient in zip(
        gradients, torch.autograd.grad(expected, exact, values[3].float()), strict=True
    ):
        _assert_close(gradient, expected_gradient)


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    difference = (actual.detach().float().cpu() - expected.detach()).abs().max()
    assert float(difference) <= BOUND * float(expected.detach().abs().max())
