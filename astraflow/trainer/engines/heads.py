"""Logprobs and entropy from hidden states, computed in chunks of tokens: the logits of all tokens never exist at once.

For 4,096 tokens and a vocabulary of 151,936 the float32 logits take 2.5 GB, and a plain log-softmax with its gradient
four times that. Here the forward pass keeps three numbers per token, and the backward pass computes each chunk's logits
again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from astraflow.trainer.engines.phase_timer import timed

_CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""Size of a chunk's float32 logits. Two such buffers are alive at most."""


def target_scores(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the targets' logprobs and the distributions' entropies in nats, float32 `[tokens]`, with gradient.

    hidden: `[tokens, hidden size]`; weight: `[vocabulary, hidden size]`, bias: `[vocabulary]` of the linear head;
    targets: int64 `[tokens]`. The logits are divided by `temperature`. chunk_bytes: size of the logits that exist at
    once; by default by device.
    """
    limit = chunk_bytes or _CHUNK_BYTES.get(hidden.device.type, _CHUNK_BYTES["cuda"])
    chunk_tokens = max(1, limit // (4 * weight.shape[0]))
    scores: tuple[Tensor, Tensor] = _TargetScores.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, chunk_tokens
    )
    return scores


class _TargetScores(torch.autograd.Function):
    """With logits z, probabilities p, entropy H: d logprob / dz = onehot - p; dH / dz = -p (log p + H)."""

    @staticmethod
    @timed("head_s")
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        normalizers, logprobs, entropies = hidden.new_empty((3, len(hidden)), dtype=torch.float32)
        stored_logits = None
        for chunk in _chunks(len(hidden), chunk_tokens):
            logits = _logits(hidden[chunk], weight, bias, temperature)
            normalizers[chunk] = logits.logsumexp(-1)
            logits -= normalizers[chunk, None]
            logprobs[chunk] = logits.gather(-1, targets[chunk, None])[:, 0]
            # One chunk is kept for the backward pass, for which it would be computed again.
            stored_logits = logits if len(hidden) <= chunk_tokens else None
            probabilities = logits.exp()
            entropies[chunk] = -probabilities.mul_(logits).sum(-1)
            del logits, probabilities
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers, entropies, stored_logits)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return logprobs, entropies

    @staticmethod
    @timed("head_s")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizers, entropies, stored_logits = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias else None
        for chunk in _chunks(len(hidden), ctx.chunk_tokens):
            logs = stored_logits
            if logs is None:
                logs = _logits(hidden[chunk], weight, bias, ctx.temperature).sub_(normalizers[chunk, None])
            by_entropy = grad_entropies[chunk, None]
            # -p * (g_logprob + g_entropy * (log p + H)), then + g_logprob at the target
            factor = (grad_logprobs[chunk, None] + by_entropy * entropies[chunk, None]) / -ctx.temperature
            gradient = logs.exp()
            gradient *= torch.addcmul(factor, logs, by_entropy, value=-1 / ctx.temperature)
            gradient.scatter_add_(-1, targets[chunk, None], grad_logprobs[chunk, None] / ctx.temperature)
            del logs
            gradient = gradient.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(gradient, weight, out=grad_hidden[chunk])
            if grad_weight is not None:
                _add_product(grad_weight, gradient, hidden[chunk])
            if grad_bias is not None:
                grad_bias += gradient.sum(0)
            del gradient
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    return logits if temperature == 1 else logits.div_(temperature)


def _add_product(total: Tensor, gradient: Tensor, hidden: Tensor) -> None:
    if gradient.dtype == total.dtype:
        total.addmm_(gradient.T, hidden)
    else:
        total += gradient.T @ hidden


def _chunks(tokens: int, size: int) -> Iterator[slice]:
    for begin in range(0, tokens, size):
        yield slice(begin, begin + size)
