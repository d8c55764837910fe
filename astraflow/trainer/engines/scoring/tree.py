"""Batching `tree`: a segment continues the states of its prefix, which is computed once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.models.state_cache import RunModel, StateCache
from astraflow.trainer.engines.base import Batching, Pack, Segment, rows_of_one_pass
from astraflow.trainer.engines.scoring.base import BatchedForward, PackInputs

_ANEW = ("mamba", "falcon_mamba", "jamba", "zamba")
"""Types of models whose scan over several tokens ignores the state before them in transformers."""
_MIN_TOKENS = 2
"""Tokens of a row that continues states or is continued: for one, layers would write them in place, which autograd
refuses."""

_Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Positions in the pack of the tokens of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePass:
    """Forward pass over parts of trajectories, each of them a row."""

    rows: tuple[_Ranges, ...]
    parent: int | None = None
    """Index of the pass whose states the rows continue; None: they begin with their first token."""
    parent_rows: tuple[int, ...] = ()
    """Row of the parent that each row continues."""
    is_parent: bool = False
    """True if other passes continue its states. Then its rows have one length."""

    @property
    def width(self) -> int:
        """Tokens of a row, padding included."""
        longest = max(map(_length, self.rows))
        return longest if self.parent is None else max(longest, _MIN_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeInputs(PackInputs):
    """A pack as several forward passes, whose rows are one after the other in `input_ids` `[1, width]`."""

    passes: tuple[TreePass, ...]
    parent_rows: tuple[Tensor, ...]
    """int64: those of each pass, on the device."""
    further_passes: int = 0
    """Passes that compute a token for nothing."""


class TreeForward(BatchedForward):
    """Computes what trajectories share once, and continues copies of the states after it: keys and values, convolutions
    and recurrences. Exact for models whose states a cache holds, gradients included."""

    batching: ClassVar = Batching.TREE
    cost: ClassVar = "members of a group are padded, and shared parts of each length are passes of their own"

    def obstacle(self) -> str | None:
        """Names states that a cache does not hold, or that the model does not continue."""
        if self.model.config.get_text_config().model_type in _ANEW:
            return "transformers continues its states by one token at a time only"
        try:
            StateCache.empty(self.model)
        except InvalidInput as problem:
            return str(problem)
        return None

    def inputs(self, pack: Pack, choices: Tensor | None = None) -> TreeInputs:
        """Returns the passes over the pack."""
        passes = tree_passes(pack.segments)
        places = torch.zeros(len(pack.input_ids), dtype=torch.int64)
        width = 0
        indices = torch.full((sum(len(step.rows) * step.width for step in passes),), -1)
        for step in passes:
            for row in step.rows:
                end = width
                for bounds in row:
                    begin, end = end, end + bounds[1] - bounds[0]
                    indices[begin:end] = torch.arange(*bounds)
                    places[slice(*bounds)] = torch.arange(begin, end)
                width += step.width
        own = None if choices is None else torch.where((indices >= 0)[:, None, None], choices[indices.clamp(min=0)], -1)
        return TreeInputs(
            input_ids=self.on_device(pack.input_ids[indices.clamp(min=0)][None]),
            **self.trained_tokens(pack, places),
            is_token=self.on_device(indices >= 0),
            arguments=self.replayed(own),
            passes=tuple(passes),
            parent_rows=tuple(self.on_device(torch.tensor(step.parent_rows, dtype=torch.int64)) for step in passes),
        )

    def states(self, run: RunModel, inputs: Any) -> Tensor:
        """Returns the model's results at the predictors, `[tokens, size]`. inputs: `TreeInputs`."""
        sizes = [len(step.rows) * step.width for step in inputs.passes]
        results: list[Tensor] = []
        caches: dict[int | None, StateCache] = {None: StateCache.empty(self.model)}
        arguments = _split_arguments(inputs.arguments, sizes)
        for index, (step, flat) in enumerate(zip(inputs.passes, inputs.input_ids[0].split(sizes), strict=True)):
            ids = flat.view(-1, step.width)
            own_run = partial(run, **arguments[index])
            if step.parent is None and not step.is_parent:
                result = own_run(input_ids=ids)
            else:
                parent = caches[step.parent]
                states = parent if step.parent is None else parent.selected(inputs.parent_rows[index])
                result, after = states.continued(self.model, ids, run=own_run)
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


def _split_arguments(arguments: Mapping[str, Tensor], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Returns the arguments of each pass. arguments: `[tokens of all passes, ...]`. sizes: tokens of the passes."""
    parts = {name: values.split(list(sizes)) for name, values in arguments.items()}
    return [{name: values[index] for name, values in parts.items()} for index in range(len(sizes))]


@dataclass(slots=True, kw_only=True, eq=False)
class _Node:
    """Tokens that are computed together, and what continues the states after them."""

    tokens: _Ranges
    children: list["_Node"] = field(default_factory=list)


_Child: TypeAlias = tuple[int, _Node]
"""Row of a pass, and a node that continues it."""


def tree_passes(segments: Sequence[Segment]) -> list[TreePass]:
    """Returns the passes over the segments of a pack; a parent comes before its children.

    Nodes of one length that continue one pass share a pass, and so do those that nothing continues, where padding costs
    less than a pass.
    """
    passes: list[TreePass] = []
    waiting: list[tuple[int | None, list[_Child]]] = [(None, [(0, root) for root in _roots(segments)])]
    while waiting:
        parent, rows = waiting.pop()
        parents: dict[int, list[_Child]] = defaultdict(list)
        leaves: list[_Child] = []
        for child in rows:
            (parents[_length(child[1].tokens)] if child[1].children else leaves).append(child)
        for members in parents.values():
            children = [(row, child) for row, (_, node) in enumerate(members) for child in node.children]
            waiting.append((len(passes), children))
            passes.append(_pass(parent, members, is_parent=True))
        passes += [_pass(parent, members) for members in _similar(leaves)]
    return passes


def _roots(segments: Sequence[Segment]) -> list[_Node]:
    """Returns the nodes without parent: segments are divided where others continue them.

    Where that would leave less than two tokens, these are computed again by what continues them.
    """
    cuts: dict[int, set[int]] = {segment.begin: set() for segment in segments}
    for segment in segments:
        if segment.prefix_end > segment.prefix_begin:
            cuts[segment.prefix_begin].add(segment.prefix_end)
    root = _Node(tokens=())
    owners: dict[int, tuple[_Node, _Ranges]] = {}
    """By end of a prefix: the node that is continued after it, and the tokens of the prefix that are not part of it."""
    for segment in segments:
        node, before = owners[segment.prefix_end] if segment.prefix_end > segment.prefix_begin else (root, ())
        for begin, end in pairwise(sorted({segment.begin, *cuts[segment.begin], segment.end})):
            tokens = (*before, (begin, end))
            if end in cuts[segment.begin] and _length(tokens) < _MIN_TOKENS:
                before = tokens
            else:
                node.children.append(child := _Node(tokens=tokens))
                node, before = child, ()
            owners[end] = (node, before)
    return root.children


def _pass(parent: int | None, members: Sequence[_Child], *, is_parent: bool = False) -> TreePass:
    return TreePass(
        rows=tuple(node.tokens for _, node in members),
        parent=parent,
        parent_rows=() if parent is None else tuple(row for row, _ in members),
        is_parent=is_parent,
    )


def _similar(rows: Sequence[_Child]) -> Iterator[Sequence[_Child]]:
    """Divides rows by length."""
    rest = sorted(rows, key=lambda child: -_length(child[1].tokens))
    while rest:
        count = rows_of_one_pass([_length(node.tokens) for _, node in rest])
        yield rest[:count]
        rest = rest[count:]


def _length(ranges: _Ranges) -> int:
    return sum(end - begin for begin, end in ranges)
