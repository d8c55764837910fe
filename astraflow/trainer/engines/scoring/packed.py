"""Batching `packed`: a pack is one flat row, and attention kernels keep its segments apart."""

from functools import cached_property
from typing import ClassVar

from torch import Tensor

from astraflow.models.causal import partial_layers
from astraflow.trainer.engines.attention.attention import PackAttention
from astraflow.trainer.engines.base import Batching, Pack
from astraflow.trainer.engines.scoring.base import BatchedForward, PackInputs


class PackedForward(BatchedForward):
    """Computes a pack flat, without padding; what trajectories share is computed once. For models with attention
    alone."""

    batching: ClassVar = Batching.PACKED
    cost: ClassVar = ""

    @property
    def attention(self) -> str | None:
        """Attention by the plan of a pack."""
        return PackAttention.name

    def obstacle(self) -> str | None:
        """Names layers other than full attention and windows."""
        if partial := partial_layers(self.model):
            return f"it has layers of type {', '.join(partial)}"
        if not self.model._can_set_attn_implementation():
            return "its attention cannot be replaced"
        return None

    def inputs(self, pack: Pack, choices: Tensor | None = None) -> PackInputs:
        """Returns the pack as one row, with the plan of its attention."""
        return PackInputs(
            input_ids=self.on_device(pack.input_ids)[None],
            **self.trained_tokens(pack),
            arguments={
                "position_ids": self.on_device(pack.positions)[None],
                **self._attention.arguments(pack.segments),
                **self.replayed(choices),
            },
        )

    @cached_property
    def _attention(self) -> PackAttention:
        return PackAttention(self.model, self.device)
