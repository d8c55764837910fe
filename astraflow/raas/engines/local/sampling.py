"""Drawing tokens, with the logprobs of exactly the distribution that was drawn from."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_COLDEST = 1e-5
"""Temperature 0 is this: all probability on the best token, whose logprob is then 0."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(keys: npt.NDArray[np.uint64], places: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Number `places[i]` of the random stream `keys[i]`: float64 `[n]` in [0, 1).

    A number depends on its request and its place alone, so that what a request writes does not depend on what it was
    batched with. Source: SplitMix64, Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        mixed = keys + (places + np.uint64(1)) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    drawn: npt.NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def log_distribution(logits: Tensor, temperature: Tensor, top_p: Tensor | None) -> Tensor:
    """Logprobs `[rows, vocabulary]` of what is sampled from: tempered, then cut to the nucleus.

    logits: float32 `[rows, vocabulary]`; temperature: `[rows]`; top_p: `[rows]`, None when nothing is cut.
    """
    logprobs = (logits / temperature.clamp(min=_COLDEST)[:, None]).log_softmax(-1)
    if top_p is None:
        return logprobs
    return logprobs.masked_fill(~_nucleus(logprobs, top_p), -torch.inf).log_softmax(-1)


def draw(logprobs: Tensor, chances: Tensor) -> Tensor:
    """The token at which the cumulative probability passes `chances` (float64 `[rows]` in [0, 1)): int64 `[rows]`.

    The sum runs in float64: in float32 it would bend the probabilities of rare tokens in a large vocabulary.
    """
    cumulative = logprobs.exp().to(torch.float64).cumsum(-1)
    thresholds = chances * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, thresholds[:, None], right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[-1] - 1)  # out of range only among NaNs, which the caller refuses


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """True for the fewest most probable tokens that together have probability `top_p`; the best one always."""
    sorted_logprobs, order = logprobs.sort(-1, descending=True)
    before = sorted_logprobs.exp().cumsum(-1) - sorted_logprobs.exp()
    is_kept = before < top_p[:, None]
    is_kept[:, 0] = True
    return torch.zeros_like(is_kept).scatter_(-1, order, is_kept)
