"""Batching `rows`: every trajectory is a row of its own, padded at the right."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from astraflow.trainer.engines.base import Batching, Pack, Segment
from astraflow.trainer.engines.scoring.base import BatchedForward, PackInputs


class RowsForward(BatchedForward):
    """Computes whole rows with the model's own layers. Exact for every causal model without a mask, because no token
    depends on tokens to its right."""

    batching: ClassVar = Batching.ROWS
    cost: ClassVar = "each row of a group computes the prompt again, and rows are padded to the longest of their pack"

    def inputs(self, pack: Pack) -> PackInputs:
        """Returns the trajectories of the pack as rows, the longest first."""
        rows = sorted(unfolded_rows(pack.segments), key=len, reverse=True)
        width = len(rows[0])
        # by a token of its own, since some models treat certain tokens as absent
        indices = torch.stack([pad(row, (0, width - len(row)), value=int(row[-1])) for row in rows])
        places = torch.zeros(len(pack.input_ids), dtype=torch.int64)
        for number, row in enumerate(rows):  # a prefix is in several rows with equal states; any is good
            places[row] = number * width + torch.arange(len(row))
        return PackInputs(
            input_ids=self.on_device(pack.input_ids[indices]),
            predictors=self.on_device(places[pack.predictors]),
            **self.targets(pack),
            is_token=self.on_device(torch.arange(width) < torch.tensor([[len(row)] for row in rows])).flatten(),
            arguments={},
        )


def unfolded_rows(segments: Sequence[Segment]) -> list[Tensor]:
    """Returns the indices in the pack of the tokens of each trajectory: its prefix, if any, and its own segment."""
    is_prefix = torch.zeros(segments[-1].end, dtype=torch.bool)
    for segment in segments:
        is_prefix[segment.prefix_begin : segment.prefix_end] = True
    return [
        torch.cat([torch.arange(segment.prefix_begin, segment.prefix_end), torch.arange(segment.begin, segment.end)])
        for segment in segments
        if not is_prefix[segment.begin]
    ]
