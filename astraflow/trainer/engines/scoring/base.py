"""Interface of the batchings: how the forward pass of a pack is computed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from astraflow.contract.rollouts.expert_columns import decoded_experts
from astraflow.contract.rollouts.recording import Mixture
from astraflow.models.routers import CHOICES
from astraflow.models.state_cache import RunModel
from astraflow.trainer.engines.base import Batching, Pack, Segment, prefixes_of

_TOKEN_BITS = 31
"""Bits of a token id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInputs:
    """A pack on the device, as the model gets it."""

    input_ids: Tensor
    """int64 `[rows, width]`."""
    predictors: Tensor
    """int64 `[tokens]`: positions in the flattened `input_ids` that predict the trained tokens."""
    targets: Tensor
    """int64 `[tokens]`."""
    candidates: Tensor | None = None
    """int64 `[tokens, k]`: `Pack.candidates`."""
    support: Tensor | None = None
    """int64 `[tokens, n]`: `Pack.support`."""
    temperatures: Tensor | None = None
    """float32 `[tokens, 1]`: `Pack.temperatures`."""
    top: int = 0
    """`Pack.top`."""
    copies: Tensor | None = None
    """int64 `[trained tokens of the pack]`: which of these tokens each is, when some are the same; None: all differ."""
    is_token: Tensor | None = None
    """bool: False for padding in the flattened `input_ids`; None: there is none."""
    arguments: dict[str, Any]
    """Further keyword arguments of the model."""


class BatchedForward(ABC):
    """Forward pass of packs in one batching. Results do not depend on it, only cost."""

    batching: ClassVar[Batching]
    cost: ClassVar[str]
    """What it costs compared with the batchings before it, as a part of a sentence; empty for the fastest."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        """Changes nothing in the model. Its weights may be on the meta device, and be replaced later."""
        self.model = model
        self.device = device

    @property
    def attention(self) -> str | None:
        """Name of the attention that the model computes with, among transformers' implementations; None: its own."""
        return None

    def obstacle(self) -> str | None:
        """Returns why the model cannot be computed this way, by its configuration, as a sentence; None: nothing known.

        The check compares values in addition, but its sequences are too short to show everything.
        """
        return None

    @abstractmethod
    def inputs(self, pack: Pack, choices: Tensor | None = None) -> PackInputs:
        """Returns the pack on the device; copied to a GPU without waiting for it. choices: `pack_choices`."""

    def states(self, run: RunModel, inputs: PackInputs) -> Tensor:
        """Returns the model's results at the predictors, `[tokens, size]`."""
        return run(input_ids=inputs.input_ids, **inputs.arguments).flatten(0, 1).index_select(0, inputs.predictors)

    def passes(self, inputs: PackInputs) -> int:
        """Returns the forward passes of the model over a pack."""
        return 1

    def with_passes(self, inputs: PackInputs, count: int) -> PackInputs:
        """Returns inputs with at least so many passes as they have: the further ones compute a token for nothing.

        Ranks that share the weights of a model gather them in each pass, so they need the same number.
        """
        return inputs

    def trained_tokens(self, pack: Pack, places: Tensor | None = None) -> dict[str, Any]:
        """Returns the fields of `PackInputs` about the trained tokens, each of them once.

        places: int64 `[width]`, of the pack's positions in the flattened `input_ids`; None: their own.
        """
        predictors = pack.predictors if places is None else places[pack.predictors]
        fields = {"predictors": predictors, **pack.target_tensors()}
        if distinct := distinct_tokens(pack):
            kept, copies = distinct
            fields = {"copies": copies, **{name: values[kept] for name, values in fields.items()}}
        return {name: self.on_device(values) for name, values in fields.items()}

    def replayed(self, choices: Tensor | None) -> dict[str, Any]:
        """Returns the arguments of the model with the experts to replay, of the tokens of its flattened ids."""
        return {} if choices is None else {CHOICES: self.on_device(choices)}

    def on_device(self, values: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)


def distinct_tokens(pack: Pack) -> tuple[Tensor, Tensor] | None:
    """Returns the indices of trained tokens that differ in context or in what the head needs of them, and which of them
    each trained token is; None if all differ.

    Trajectories that begin alike have a token that all of them train several times, and its logprob is one number.
    """
    if not any(segment.prefix_end for segment in pack.segments):
        return None
    keys = ((pack.predictors << _TOKEN_BITS) + pack.targets).numpy()
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(keys):
        return None
    sources = first[numbers]
    for values in pack.target_tensors().values():
        differs = (values != values[sources]).view(len(keys), -1).any(-1).numpy()
        sources = np.where(differs, np.arange(len(keys)), sources)
    kept, copies = np.unique(sources, return_inverse=True)
    return torch.from_numpy(kept), torch.from_numpy(copies)


def pack_choices(pack: Pack, mixture: Mixture) -> Tensor | None:
    """Returns the experts to replay at the positions of a pack, int16 `[width, layers, chosen]`; None for none.

    A token's experts are those of the position that predicts it; -1 at all others, whose output no engine sampled.
    Trajectories that share a position have equal ones, but for rounding; the last of them counts.
    """
    if pack.experts is None:
        return None
    choices = np.full((len(pack.input_ids), mixture.layers, mixture.chosen), -1, np.int16)
    choices[pack.predictors.numpy()] = decoded_experts(pack.experts.numpy(), mixture)
    return torch.from_numpy(choices)


class RowsForward(BatchedForward):
    """Computes whole rows with the model's own layers. Exact for every causal model without a mask, because no token
    depends on tokens to its right."""

    batching: ClassVar = Batching.ROWS
    cost: ClassVar = "each row computes again what it shares, and rows are padded to the longest of their pack"

    def inputs(self, pack: Pack, choices: Tensor | None = None) -> PackInputs:
        """Returns the trajectories of the pack as rows, the longest first."""
        rows = sorted(unfolded_rows(pack.segments), key=len, reverse=True)
        width = len(rows[0])
        # by a token of its own, since some models treat certain tokens as absent
        indices = torch.stack([pad(row, (0, width - len(row)), value=int(row[-1])) for row in rows])
        places = torch.zeros(len(pack.input_ids), dtype=torch.int64)
        for number, row in enumerate(rows):  # prefixes are in several rows with equal states; any is good
            places[row] = number * width + torch.arange(len(row))
        return PackInputs(
            input_ids=self.on_device(pack.input_ids[indices]),
            **self.trained_tokens(pack, places),
            is_token=self.on_device(torch.arange(width) < torch.tensor([[len(row)] for row in rows])).flatten(),
            arguments=self.replayed(None if choices is None else choices[indices].flatten(0, 1)),
        )


def unfolded_rows(segments: Sequence[Segment]) -> list[Tensor]:
    """Returns the indices in the pack of the tokens of each trajectory: its prefixes, if any, and its last segment."""
    continued = {segment.prefix_end for segment in segments}
    return [
        torch.cat([torch.arange(*bounds) for bounds in (*reversed(prefixes), (segment.begin, segment.end))])
        for segment, prefixes in zip(segments, prefixes_of(segments), strict=True)
        if segment.end not in continued
    ]
