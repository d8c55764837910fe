"""Check of a batching at the start: a model must compute the same values in a pack as for each sequence alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.trainer.engines.base import Pack, Segment
from astraflow.trainer.engines.scoring.scorer import Scorer

_TOLERANCE = 1e-3
"""Largest accepted difference of a logprob in float32, in nats."""
_ROUNDED_TOLERANCE = 0.1
"""Largest accepted mean of the differences with element types of fewer bits, in nats. A single logprob may differ by
more: logits between 16 and 32 are 0.125 apart in bfloat16."""

CHECKED_TOKENS = (np.array([0, 1, 2, 3, 4, 1, 0, 5]), np.array([0, 1, 2, 5, 3, 1]))
"""Checked sequences."""
_CHECKED_PREFIX = 3
"""Tokens that the checked sequences have in common."""


def tolerance(model: PreTrainedModel) -> float:
    """Returns the largest difference that counts as equal, in nats."""
    return _TOLERANCE if _is_exact(model) else _ROUNDED_TOLERANCE


@torch.no_grad()
def logprobs_alone(
    scorer: Scorer, sequences: Sequence[npt.NDArray[np.int64]] = CHECKED_TOKENS, arguments: Sequence[Any] = ({}, {})
) -> list[Tensor]:
    """Returns the logprobs of all tokens but the first of sequences, each by a forward pass of its own as transformers
    computes it, with further arguments. The scorer's batching must be off."""
    scorer.eval()
    logprobs = []
    for tokens, own in zip(sequences, arguments, strict=False):
        ids = torch.from_numpy(tokens).to(scorer.device)
        logits = scorer.model(input_ids=ids[None], use_cache=False, **own).logits[0, :-1].float()
        logprobs.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0])
    return logprobs


@torch.no_grad()
def difference(
    scorer: Scorer, alone: Sequence[Tensor], *, is_training: bool, experts: npt.NDArray[np.uint8] | None = None
) -> float:
    """Returns how much the logprobs of a pack in the scorer's batching differ from those of the sequences alone, nats.

    is_training: computes as the training pass does. experts: to replay at each position of the sequences, `[positions,
    bytes]`. Largest difference in float32, else mean.
    """
    scorer.train(is_training)
    packed = scorer(scorer.inputs(_checked_pack(experts))).logprobs
    return gap(scorer.model, packed, torch.cat([alone[0], alone[1][_CHECKED_PREFIX - 1 :]]))


def gap(model: PreTrainedModel, logprobs: Tensor, others: Tensor) -> float:
    """Returns the largest difference in float32, else the mean. Nats."""
    gaps = (logprobs - others).abs()
    return float(gaps.max() if _is_exact(model) else gaps.mean())


def _is_exact(model: PreTrainedModel) -> bool:
    return next(model.parameters()).dtype == torch.float32


def _checked_pack(experts: npt.NDArray[np.uint8] | None) -> Pack:
    first, second = CHECKED_TOKENS
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
        experts=None
        if experts is None
        else torch.from_numpy(np.concatenate([experts[: middle - 1], experts[prefix - 1 : len(second) - 1]])),
    )
