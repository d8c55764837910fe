"""Kernels of flash-linear-attention compute a hybrid as torch's own operations do: values, and gradients through the
states that members of a group continue."""

import inspect

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3_5 import modeling_qwen3_5

from astraflow.trainer.engines.base import Batching, Pack, Segment
from astraflow.trainer.engines.scoring.scorer import Scorer
from benchmarks.model_families.configurations import VOCABULARY, tiny_model

pytestmark = pytest.mark.gpu

BOUND = 5e-3
"""Largest accepted difference of a logprob, and of the gradient as a share of its norm: kernels multiply in TF32."""
PROMPT, ROWS = 70, 3
FUNCTIONS = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "causal_conv1d_fn")


def logprobs_and_gradient(device: torch.device, batching: Batching) -> tuple[Tensor, Tensor]:
    """Returns those of a group of three answers to one prompt, in the training pass."""
    ids = torch.randint(3, VOCABULARY, (2 * PROMPT,), generator=torch.Generator().manual_seed(0))
    ends = [PROMPT, PROMPT + 20, PROMPT + 50, 2 * PROMPT]
    members = [Segment(begin=ends[row], end=ends[row + 1], prefix_begin=0, prefix_end=PROMPT) for row in range(ROWS)]
    positions = [torch.arange(PROMPT), *(PROMPT + torch.arange(each.end - each.begin) for each in members)]
    pack = Pack(
        input_ids=ids,
        positions=torch.cat(positions),
        segments=(Segment(begin=0, end=PROMPT), *members),
        predictors=torch.tensor([at for each in members for at in (PROMPT - 1, *range(each.begin, each.end - 1))]),
        targets=ids[PROMPT:],
    )
    model = tiny_model("qwen3_5_text")
    nn.Module.to(model, device=device)
    scorer = Scorer(model, device, batching).train()
    logprobs = scorer(scorer.inputs(pack)).logprobs
    logprobs.sum().backward()
    gradients = [weight.grad.flatten() for weight in scorer.parameters() if weight.grad is not None]
    return logprobs.detach(), torch.cat(gradients)


@pytest.mark.parametrize("batching", [Batching.TREE, Batching.ROWS])
def test_kernels_compute_a_hybrid_as_torch_does(
    device: torch.device, batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cuda":
        pytest.importorskip("fla", reason="the extra `hybrids` is not installed")
    logprobs, gradient = logprobs_and_gradient(device, batching)
    for name in FUNCTIONS:
        monkeypatch.setattr(modeling_qwen3_5, name, inspect.unwrap(getattr(modeling_qwen3_5, name)))

    expected_logprobs, expected_gradient = logprobs_and_gradient(device, Batching.ROWS)

    assert float((logprobs - expected_logprobs).abs().max()) <= BOUND
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) <= BOUND
