"""Logprobs and entropy from hidden states, computed in chunks of tokens: the logits of all tokens never exist at once.

For 4,096 tokens and a vocabulary of 151,936 the float32 logits take 2.5 GB, and a plain log-softmax with its gradient
four times that. Here the forward pass keeps three numbers per token, and the backward pass computes each chunk's logits
again, unless those of all tokens are small.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from astraflow.algorithms.tokens import TokenScores
from astraflow.models.output_head import HeadForm
from astraflow.trainer.engines.phase_timer import timed

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Values = TypeVar("Values", float | Tensor, Tensor | None)

_CPU_CHUNK_BYTES = 16 << 20
"""Size of a chunk's logits in float32. Three such buffers are alive at most."""
_CHUNK_BYTES = 512 << 20
"""The same on a GPU."""
_COMPILED_CHUNK_BYTES = 2 << 30
"""The same on a GPU when compiled: two buffers of half the size, in the model's element type, are alive."""
_KEPT_SHARE = 1 / 30
"""Share of a GPU's memory up to which the logits of all tokens are kept for the backward pass; more are computed again.
On a CPU it is one chunk."""
_PLAIN = HeadForm()
_EXCLUDED = -1e30
"""Logit of a token that could not be sampled. Its probability is 0, and its products with 0 are numbers."""
_ALIGNMENT = 256
"""Chunks of more tokens than this have a multiple of it, for which matrix products on a GPU are fastest."""


def target_scores(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    support: Tensor | None = None,
    bias: Tensor | None = None,
    form: HeadForm = _PLAIN,
    temperature: float | Tensor = 1.0,
    chunk_bytes: int | None = None,
    is_compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the targets' logprobs, in their shape, and the entropies `[tokens]`: float32, in nats, with gradient.

    hidden: `[tokens, hidden size]`; weight: `[vocabulary, hidden size]`, bias: `[vocabulary]` of the linear head;
    targets: int64 `[tokens]`, or `[tokens, n]` for several of each token. support: as in `within`. form: what the head
    does to its products; the logits are then divided by `temperature`, one or `[tokens, 1]`. chunk_bytes: size of the
    logits that exist at once, and that are kept for the backward pass; by default by device. is_compiled: everything
    but the matrix products is compiled, so that no logits are stored in float32.
    """
    limit, kept_bytes = (chunk_bytes, chunk_bytes) if chunk_bytes else _limits(hidden.device, is_compiled=is_compiled)
    kept_bytes = kept_bytes if torch.is_grad_enabled() else 0
    chunk_tokens = max(1, limit // (4 * weight.shape[0]))
    if chunk_tokens > _ALIGNMENT:
        chunk_tokens -= chunk_tokens % _ALIGNMENT
    logprobs, entropies = _TargetScores.apply(  # type: ignore[no-untyped-call]
        hidden,
        weight,
        bias,
        targets.view(len(hidden), -1) if len(hidden) else targets.view(0, 1),
        support,
        form,
        temperature,
        chunk_tokens,
        kept_bytes,
        is_compiled,
    )
    return logprobs.view(targets.shape), entropies


def temperature_of(recorded: Tensor | None, default: float, device: torch.device | None = None) -> float | Tensor:
    """Returns the temperature of each token, `[tokens, 1]`, with the default where it is 0; or the default alone."""
    return default if recorded is None else recorded.where(recorded > 0, default).to(device)


def within(logits: Tensor, support: Tensor | None) -> Tensor:
    """Returns the logits `[tokens, vocabulary]` with `_EXCLUDED` for tokens that are not in the kept sets.

    support: int64 `[tokens, n]`, -1 where there is no token; a row of -1, or None: all tokens are kept.
    """
    if support is None:
        return logits
    ids = support.clamp(min=0)
    kept = logits.gather(-1, ids).masked_fill(support < 0, _EXCLUDED)
    only = torch.full_like(logits, _EXCLUDED).scatter_reduce(-1, ids, kept, "amax")
    return torch.where((support >= 0).any(-1, keepdim=True), only, logits)


def with_candidates(targets: Tensor, candidates: Tensor | None) -> Tensor:
    """Returns the trained tokens `[tokens]`, or with candidates `[tokens, k]` both, `[tokens, 1 + k]`."""
    return targets if candidates is None else torch.cat([targets[:, None], candidates.clamp(min=0)], 1)


def token_scores(logprobs: Tensor, entropy: Tensor) -> TokenScores:
    """Returns the scores of the tokens of `with_candidates`."""
    if logprobs.ndim == 1:
        return TokenScores(logprobs=logprobs, entropy=entropy)
    return TokenScores(logprobs=logprobs[:, 0], entropy=entropy, top_logprobs=logprobs[:, 1:])


@torch.no_grad()
def top_scores(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    count: int,
    *,
    bias: Tensor | None = None,
    form: HeadForm = _PLAIN,
    temperature: float | Tensor = 1.0,
    chunk_bytes: int | None = None,
) -> TokenScores:
    """Returns the scores of `target_scores` and the most likely tokens with their logprobs, `[tokens, count]`, without
    gradient. targets: int64 `[tokens]`; count: at most the vocabulary is returned."""
    limit = chunk_bytes or _limits(hidden.device, is_compiled=False)[0]
    parts = []
    for chunk in _chunks(max(len(hidden), 1), max(1, limit // (4 * weight.shape[0]))):
        logits = form.logits(torch.nn.functional.linear(hidden[chunk], weight, bias))
        tempered = _divided(logits, temperature[chunk] if isinstance(temperature, Tensor) else temperature)
        parts.append(top_of(tempered.log_softmax(-1), targets[chunk], count))
    names = ("logprobs", "entropy", "top_logprobs", "top_tokens")
    return TokenScores(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def top_of(logs: Tensor, targets: Tensor, count: int) -> TokenScores:
    """Returns the scores of targets and the most likely tokens. logs: logprobs `[tokens, vocabulary]`."""
    top = logs.topk(min(count, logs.shape[-1]), -1)
    return TokenScores(
        logprobs=logs.gather(-1, targets[:, None])[:, 0],
        entropy=-(logs.exp() * logs).sum(-1),
        top_logprobs=top.values,
        top_tokens=top.indices,
    )


def _limits(device: torch.device, *, is_compiled: bool) -> tuple[int, int]:
    """Returns the sizes of a chunk's logits in float32, and of the logits that are kept. Bytes."""
    if device.type != "cuda":
        return _CPU_CHUNK_BYTES, _CPU_CHUNK_BYTES
    memory = torch.cuda.get_device_properties(device).total_memory
    return (_COMPILED_CHUNK_BYTES if is_compiled else _CHUNK_BYTES), int(memory * _KEPT_SHARE)


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
        support: Tensor | None,
        form: HeadForm,
        temperature: float | Tensor,
        chunk_tokens: int,
        kept_bytes: int,
        is_compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        statistics = _compiled(_statistics) if is_compiled else _statistics
        normalizers, entropies = hidden.new_empty((2, len(hidden)), dtype=torch.float32)
        logprobs = hidden.new_empty(targets.shape, dtype=torch.float32)
        keeps_products = len(hidden) * weight.shape[0] * weight.element_size() <= kept_bytes
        kept: list[Tensor] = []
        for chunk in _chunks(len(hidden), chunk_tokens):
            products = torch.nn.functional.linear(hidden[chunk], weight, bias)
            normalizers[chunk], logprobs[chunk], entropies[chunk] = statistics(
                products, targets[chunk], _part(support, chunk), form, _part(temperature, chunk)
            )
            if keeps_products:
                kept.append(products)
            del products
        ctx.save_for_backward(hidden, weight, bias, targets, support, normalizers, entropies, *kept)
        ctx.form, ctx.temperature, ctx.chunk_tokens, ctx.is_compiled = form, temperature, chunk_tokens, is_compiled
        return logprobs, entropies

    @staticmethod
    @timed("head_s")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, support, normalizers, entropies, *kept = ctx.saved_tensors
        products_gradient = _compiled(_products_gradient) if ctx.is_compiled else _products_gradient
        grad_logprobs, grad_entropies = grads
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias else None
        for number, chunk in enumerate(_chunks(len(hidden), ctx.chunk_tokens)):
            products = kept[number] if kept else torch.nn.functional.linear(hidden[chunk], weight, bias)
            gradient = products_gradient(
                products,
                targets[chunk],
                _part(support, chunk),
                normalizers[chunk],
                entropies[chunk],
                grad_logprobs[chunk],
                grad_entropies[chunk],
                ctx.form,
                _part(ctx.temperature, chunk),
            )
            del products
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
            *(None,) * 7,
        )


def _statistics(
    products: Tensor, targets: Tensor, support: Tensor | None, form: HeadForm, temperature: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logarithms of the sums of exponentials, logprobs of the targets `[tokens, n]`, and entropies."""
    scaled = within(_divided(form.logits(products), temperature), support)
    normalizers = scaled.logsumexp(-1)
    logs = scaled - normalizers[:, None]
    return normalizers, logs.gather(-1, targets), -logs.exp().mul_(logs).sum(-1)


def _products_gradient(
    products: Tensor,
    targets: Tensor,
    support: Tensor | None,
    normalizers: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor,
    grad_entropies: Tensor,
    form: HeadForm,
    temperature: float | Tensor,
) -> Tensor:
    """Returns the gradient of the linear layer's products, in their element type."""
    logs = within(_divided(form.logits(products), temperature), support) - normalizers[:, None]
    # -p * (sum of g_logprob + g_entropy * (log p + H)), then + g_logprob at each target
    factor = (grad_logprobs.sum(-1) + grad_entropies * entropies)[:, None] / -temperature
    gradient = logs.exp()
    gradient *= torch.addcmul(factor, logs, grad_entropies[:, None] / -temperature)
    at_targets = grad_logprobs / temperature
    if torch.compiler.is_compiling():  # becomes part of the one pass over the logits, which a scatter does not
        for target, value in zip(targets.split(1, -1), at_targets.split(1, -1), strict=True):
            is_target = target == torch.arange(products.shape[1], device=products.device)
            gradient = torch.where(is_target, gradient + value, gradient)
    else:
        gradient.scatter_add_(-1, targets, at_targets)
    if form != _PLAIN:
        gradient *= form.slopes(form.logits(products))
    return gradient.to(products.dtype)


def _part(values: Values, chunk: slice) -> Values:
    """Returns the part of a tensor of tokens that is of a chunk; anything else as it is."""
    return values[chunk] if isinstance(values, Tensor) else values


def _divided(logits: Tensor, temperature: float | Tensor) -> Tensor:
    return logits if isinstance(temperature, float) and temperature == 1 else logits / temperature


@functools.cache
def _compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    return torch.compile(function, fullgraph=True)


def _add_product(total: Tensor, gradient: Tensor, hidden: Tensor) -> None:
    if gradient.dtype == total.dtype:
        total.addmm_(gradient.T, hidden)
    elif total.device.type == "cuda":
        torch.addmm(total, gradient.T, hidden, out_dtype=total.dtype, out=total)
    else:
        total += gradient.T @ hidden


def _chunks(tokens: int, size: int) -> Iterator[slice]:
    for begin in range(0, tokens, size):
        yield slice(begin, begin + size)
