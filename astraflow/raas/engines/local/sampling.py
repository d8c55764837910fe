"""Draws tokens and returns logprobs of exactly the distribution they are drawn from."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MIN_TEMPERATURE = 1e-5
"""Stands for temperature 0: the most probable token has all the probability, hence logprob 0."""

_SPLITMIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def random_uniforms(keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Returns number `positions[i]` of the random stream `keys[i]`: float64 `[n]` in [0, 1).

    A number depends only on its request and its position, so that a generation does not depend on the requests it is
    batched with. Source: SplitMix64, Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        mixed = keys + (positions + np.uint64(1)) * _SPLITMIX_INCREMENT
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    drawn: npt.NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def log_distribution(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor | None,
    *,
    top_k: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Returns the logprobs `[rows, vocabulary]` of the sampled distribution: tempered, then cut by `min_p`, `top_k` and
    `top_p` in this order, as vLLM does.

    logits: float32 `[rows, vocabulary]`; the others: `[rows]`, None without a cut; top_k: int64, 0 in rows without one.
    """
    logprobs = (logits / temperature.clamp(min=_MIN_TEMPERATURE)[:, None]).log_softmax(-1)
    if min_p is not None:
        logprobs = _cut(logprobs, logprobs >= logprobs.amax(-1, keepdim=True) + min_p.log()[:, None])
    if top_k is not None:
        logprobs = _cut(logprobs, _most_probable(logprobs, top_k))
    return logprobs if top_p is None else _cut(logprobs, _nucleus(logprobs, top_p))


def draw(logprobs: Tensor, uniform_values: Tensor) -> Tensor:
    """Returns the tokens, int64 `[rows]`, whose cumulative probability exceeds `uniform_values`.

    uniform_values: float64 `[rows]` in [0, 1). The sum runs in float64: float32 would distort the probabilities of
    rare tokens in a large vocabulary.
    """
    cumulative = logprobs.exp().to(torch.float64).cumsum(-1)
    thresholds = uniform_values * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, thresholds[:, None], right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[-1] - 1)  # out of range only for NaNs, which the caller refuses


def _cut(logprobs: Tensor, is_kept: Tensor) -> Tensor:
    """Returns the logprobs of the kept tokens only."""
    return logprobs.masked_fill(~is_kept, -torch.inf).log_softmax(-1)


def _most_probable(logprobs: Tensor, top_k: Tensor) -> Tensor:
    """Returns a mask of the `top_k` most probable tokens; of all tokens in rows where it is 0."""
    _, order = logprobs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logprobs.shape[-1], device=logprobs.device)
    is_kept = (ranks < top_k[:, None]) | (top_k == 0)[:, None]
    return torch.zeros_like(is_kept).scatter_(-1, order, is_kept)


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Returns a mask of the fewest most probable tokens with total probability `top_p`; at least the best token."""
    sorted_logprobs, order = logprobs.sort(-1, descending=True)
    before = sorted_logprobs.exp().cumsum(-1) - sorted_logprobs.exp()
    is_kept = before < top_p[:, None]
    is_kept[:, 0] = True
    return torch.zeros_like(is_kept).scatter_(-1, order, is_kept)
