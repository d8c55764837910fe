"""Batching `rows`: every trajectory is a row of its own, padded at the right."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from astraflow.trainer.engines.base import Batching, Pack, Segment, prefixes_of
from astraflow.trainer.engines.scoring.base import BatchedForward, PackInputs


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
