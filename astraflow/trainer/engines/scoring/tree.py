"""Batching `tree`: a segment continues the states of its prefix, which is computed once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.models.state_cache import RunModel, StateCache
from astraflow.trainer.engines.base import Batching, Pack, Segment, rows_of_one_pass
from astraflow.trainer.engines.scoring.base import BatchedForward, PackInputs

_ANEW = ("mamba", "falcon_mamba", "jamba", "zamba")
"""Types of models whose scan over several tokens ignores the state before them in transformers."""
_MIN_TAIL = 2
"""Tokens of a row that continues states: for one, layers would write them in place, which autograd refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePass:
    """Forward pass over segments, each of them a row."""

    segments: tuple[Segment, ...]
    parent: int | None = None
    """Index of the pass whose states the rows continue; None: they begin with their first token."""
    parent_rows: tuple[int, ...] = ()
    """Row of the parent that each row continues."""
    is_parent: bool = False
    """True if other passes continue its states. Then its segments have one length."""

    @property
    def width(self) -> int:
        """Tokens of a row, padding included."""
        longest = max(map(_length, self.segments))
        return longest if self.parent is None else max(longest, _MIN_TAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeInputs(PackInputs):
    """A pack as several forward passes, whose rows are one after the other in `input_ids` `[1, width]`."""

    passes: tuple[TreePass, ...]
    parent_rows: tuple[Tensor, ...]
    """int64: those of each pass, on the device."""
    further_passes: int = 0
    """Passes that compute a token for nothing."""


class TreeForward(BatchedForward):
    """Computes a shared prompt once, and lets the members of its group continue a copy of its states: keys and values,
    convolutions and recurrences. Exact for models whose states a cache holds, gradients included."""

    batching: ClassVar = Batching.TREE
    cost: ClassVar = "members of a group are padded, and prompts of each length are passes of their own"

    def obstacle(self) -> str | None:
        """Names states that a cache does not hold, or that the model does not continue."""
        if self.model.config.get_text_config().model_type in _ANEW:
            return "transformers continues its states by one token at a time only"
        try:
            StateCache.empty(self.model)
        except InvalidInput as problem:
            return str(problem)
        return None

    def inputs(self, pack: Pack) -> TreeInputs:
        """Returns the passes over the pack."""
        passes = tree_passes(pack.segments)
        places = torch.zeros(len(pack.input_ids), dtype=torch.int64)
        width = 0
        for step in passes:
            for segment in step.segments:
                places[segment.begin : segment.end] = width + torch.arange(_length(segment))
                width += step.width
        ids = torch.zeros(width, dtype=torch.int64).index_put_((places,), pack.input_ids)
        return TreeInputs(
            input_ids=self.on_device(ids[None]),
            predictors=self.on_device(places[pack.predictors]),
            **self.targets(pack),
            is_token=self.on_device(torch.zeros(width, dtype=torch.bool).index_fill_(0, places, True)),
            arguments={},
            passes=tuple(passes),
            parent_rows=tuple(self.on_device(torch.tensor(step.parent_rows, dtype=torch.int64)) for step in passes),
        )

    def states(self, run: RunModel, inputs: Any) -> Tensor:
        """Returns the model's results at the predictors, `[tokens, size]`. inputs: `TreeInputs`."""
        sizes = [len(step.segments) * step.width for step in inputs.passes]
        results: list[Tensor] = []
        caches: dict[int | None, StateCache] = {None: StateCache.empty(self.model)}
        for index, (step, flat) in enumerate(zip(inputs.passes, inputs.input_ids[0].split(sizes), strict=True)):
            ids = flat.view(-1, step.width)
            if step.parent is None and not step.is_parent:
                result = run(input_ids=ids)
            else:
                parent = caches[step.parent]
                states = parent if step.parent is None else parent.selected(inputs.parent_rows[index])
                result, after = states.continued(self.model, ids, run=run)
                if step.is_parent:
                    caches[index] = after
            results.append(result.flatten(0, 1))
        token = inputs.input_ids[:, :1]
        results += [run(input_ids=token).flatten(0, 1) for _ in range(inputs.further_passes)]
        return torch.cat(results).index_select(0, inputs.predictors)

    def passes(self, inputs: Any) -> int:
        """Returns the forward passes of the model over a pack."""
        count: int = len(inputs.passes)
        return count

    def with_passes(self, inputs: Any, count: int) -> PackInputs:
        """Returns inputs with as many passes as demanded. Each is part of the graph, with a gradient of 0."""
        aligned: TreeInputs = replace(inputs, further_passes=count - len(inputs.passes))
        return aligned


_Child: TypeAlias = tuple[int, Segment]
"""Row of a pass, and a segment that continues it."""


def tree_passes(segments: Sequence[Segment]) -> list[TreePass]:
    """Returns the passes over the segments of a pack; a parent comes before its children.

    Prompts of one length share a pass, and so do the segments that continue them, where padding costs less than a pass.
    """
    children: dict[tuple[int, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        children[segment.prefix_begin, segment.prefix_end].append(segment)
    roots = [segment for segment in segments if segment.prefix_begin == segment.prefix_end]
    return _extended([], None, [(0, segment) for segment in roots], children)


def _extended(
    passes: list[TreePass],
    parent: int | None,
    rows: Sequence[_Child],
    children: Mapping[tuple[int, int], Sequence[Segment]],
) -> list[TreePass]:
    """Adds the passes over rows that continue those of one pass, and over all that continue them."""
    parents: dict[int, list[_Child]] = defaultdict(list)
    leaves: list[_Child] = []
    for child in rows:
        is_parent = (child[1].begin, child[1].end) in children
        (parents[_length(child[1])] if is_parent else leaves).append(child)
    for members in parents.values():
        passes.append(_pass(parent, members, is_parent=True))
        further = [
            (row, segment) for row, (_, member) in enumerate(members) for segment in children[member.begin, member.end]
        ]
        _extended(passes, len(passes) - 1, further, children)
    passes += [_pass(parent, members) for members in _similar(leaves)]
    return passes


def _pass(parent: int | None, members: Sequence[_Child], *, is_parent: bool = False) -> TreePass:
    return TreePass(
        segments=tuple(segment for _, segment in members),
        parent=parent,
        parent_rows=() if parent is None else tuple(row for row, _ in members),
        is_parent=is_parent,
    )


def _similar(rows: Sequence[_Child]) -> Iterator[Sequence[_Child]]:
    """Divides rows by length."""
    rest = sorted(rows, key=lambda child: -_length(child[1]))
    while rest:
        count = rows_of_one_pass([_length(segment) for _, segment in rest])
        yield rest[:count]
        rest = rest[count:]


def _length(segment: Segment) -> int:
    return segment.end - segment.begin
