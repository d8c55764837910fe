"""Weights of linear layers rounded to few bits, as servers with quantized weights have them.

The rounded values are computed with in the model's own element type, so nothing becomes faster or smaller: an engine
with them shows on any machine whether an algorithm bears rollouts of a quantized server.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.raas.engines.local.parameters import StagedTensor

WeightForm: TypeAlias = Literal["exact", "int8", "int4", "int3"]

_LEVELS = {"int8": 127, "int4": 7, "int3": 3}
_GROUP = 32
"""Adjacent inputs of an output that share a scale."""


class Coarsening:
    """Rounds the weights of a model's linear layers, but not those of its head and embeddings."""

    def __init__(self, model: PreTrainedModel, form: WeightForm) -> None:
        kept = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
        layers = (module for module in model.modules() if isinstance(module, nn.Linear))
        weights = [layer.weight for layer in layers if id(layer.weight) not in kept]
        self._rounded = {id(weight): weight.shape for weight in weights} if form != "exact" else {}
        self._levels = _LEVELS.get(form, 0)

    @property
    def is_exact(self) -> bool:
        """True if nothing is rounded."""
        return not self._rounded

    def of(self, staged: Sequence[StagedTensor]) -> list[StagedTensor]:
        """Returns whole staged tensors, rounded where they are weights of linear layers."""
        return [
            replace(tensor, values=coarse(tensor.values.view(shape), self._levels).flatten())
            if (shape := self._rounded.get(id(tensor.parameter))) is not None
            else tensor
            for tensor in staged
        ]


def coarse(weights: Tensor, levels: int) -> Tensor:
    """Returns weights `[outputs, inputs]` rounded to `-levels .. levels` times a scale for each 32 adjacent inputs.

    >>> coarse(torch.tensor([[7.0, 3.4, -0.6]]), 7)
    tensor([[ 7.,  3., -1.]])
    """
    padding = -weights.shape[1] % _GROUP
    groups = nn.functional.pad(weights.float(), (0, padding)).unflatten(1, (-1, _GROUP))
    scales = (groups.abs().amax(-1, keepdim=True) / levels).clamp(min=torch.finfo(torch.float32).tiny)
    rounded: Tensor = ((groups / scales).round() * scales).flatten(1)[:, : weights.shape[1]]
    return rounded.to(weights.dtype)
