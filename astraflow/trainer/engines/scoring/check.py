"""Check of a batching at the start: a model must compute the same values in a pack as for each sequence alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.models.causal import attention_window
from astraflow.models.output_head import decoder_of
from astraflow.trainer.engines.base import Pack, Segment
from astraflow.trainer.engines.scoring.scorer import Scorer

_TOLERANCE = 1e-3
"""Largest accepted difference of a logprob in float32, in nats."""
_ROUNDED_TOLERANCE = 0.1
"""Largest accepted mean of the differences with element types of fewer bits, in nats. A single logprob may differ by
more: logits between 16 and 32 are 0.125 apart in bfloat16."""

_CHECKED = (np.array([0, 1, 2, 3, 4, 1, 0, 5]), np.array([0, 1, 2, 5, 3, 1]))
_CHECKED_PREFIX = 3
"""Tokens that the checked sequences have in common."""
_CHECKED_WINDOW = 3
"""Window with which a model with windows is checked: its own would see the whole of the checked sequences."""
_ENLARGEMENT = 3.0
"""Factor of the results of linear layers in the check in float32: with the small weights of a new model, attention
would be nearly even, and no bound would show. Element types of fewer bits would lose too many of them."""


def tolerance(model: PreTrainedModel) -> float:
    """Returns the largest difference that counts as equal, in nats."""
    return _TOLERANCE if _is_exact(model) else _ROUNDED_TOLERANCE


@contextmanager
def checked(scorer: Scorer) -> Iterator[None]:
    """Gives the model the state in which it is checked: short windows, large results of linear layers."""
    factor = _ENLARGEMENT if _is_exact(scorer.model) else 1.0
    with _short_window(scorer.model), _enlarged(scorer.model, factor):
        yield


@torch.no_grad()
def logprobs_alone(scorer: Scorer) -> list[Tensor]:
    """Returns the logprobs of all tokens but the first of the checked sequences, each by a forward pass of its own as
    transformers computes it. The scorer's batching must be off."""
    scorer.eval()
    logprobs = []
    for tokens in _CHECKED:
        ids = torch.from_numpy(tokens).to(scorer.device)
        logits = scorer.model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        logprobs.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0])
    return logprobs


@torch.no_grad()
def difference(scorer: Scorer, alone: Sequence[Tensor], *, is_training: bool) -> float:
    """Returns how much the logprobs of a pack in the scorer's batching differ from those of the sequences alone, nats.

    is_training: computes as the training pass does. Largest difference in float32, else mean.
    """
    scorer.train(is_training)
    packed = scorer(scorer.inputs(_checked_pack())).logprobs
    gaps = (packed - torch.cat([alone[0], alone[1][_CHECKED_PREFIX - 1 :]])).abs()
    return float(gaps.max() if _is_exact(scorer.model) else gaps.mean())


def _is_exact(model: PreTrainedModel) -> bool:
    return next(model.parameters()).dtype == torch.float32


def _checked_pack() -> Pack:
    first, second = _CHECKED
    tokens = np.concatenate([first, second[_CHECKED_PREFIX:]])
    prefix, middle, end = _CHECKED_PREFIX, len(first), len(tokens)
    return Pack(
        input_ids=torch.from_numpy(tokens),
        positions=torch.tensor([*range(middle), *range(prefix, len(second))]),
        segments=(
            Segment(begin=0, end=prefix),
            Segment(begin=prefix, end=middle, prefix_begin=0, prefix_end=prefix),
            Segment(begin=middle, end=end, prefix_begin=0, prefix_end=prefix),
        ),
        predictors=torch.tensor([*range(middle - 1), prefix - 1, *range(middle, end - 1)]),
        targets=torch.from_numpy(np.concatenate([first[1:], second[prefix:]])),
    )


@contextmanager
def _short_window(model: PreTrainedModel) -> Iterator[None]:
    """Gives the layers with a window, if any, a short one."""
    window = attention_window(model)
    holders: list[Any] = [model.config.get_text_config(), *model.modules()] if window is not None else []
    holders = [holder for holder in holders if getattr(holder, "sliding_window", None) == window]
    for holder in holders:
        holder.sliding_window = _CHECKED_WINDOW
    try:
        yield
    finally:
        for holder in holders:
            holder.sliding_window = window


@contextmanager
def _enlarged(model: PreTrainedModel, factor: float) -> Iterator[None]:
    """Multiplies the results of the decoder's linear layers, without a change of weights."""

    def enlarge(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        return output * factor if isinstance(output, Tensor) else output  # a router's scores stay

    layers = [module for module in decoder_of(model).modules() if isinstance(module, nn.Linear)] if factor != 1 else []
    hooks = [layer.register_forward_hook(enlarge) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
