"""Packing of rows into flat forward passes without padding; a prompt that a group shares is in a pack once."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.contract.batches import Row
from astraflow.contract.trajectories import Trajectory
from astraflow.trainer.engines.base import Pack, Segment
from astraflow.trainer.step.balance import balanced_parts
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.shared_prompts import PromptCluster, prompt_clusters

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackUnit:
    """Rows that are computed together: a common prefix, then the remaining tokens of each row (`input_length`)."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch."""
    prefix_length: int
    """0 when the unit is one row."""
    width: int
    """Input tokens."""
    pairs: int
    """Pairs of a token and a token that it attends to."""
    targets: int
    """Trained tokens."""

    def cost(self, forward: ForwardCost) -> float:
        """Returns the FLOPs of a forward pass."""
        return forward.flops(tokens=self.width, pairs=self.pairs, targets=self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """Trained tokens of a pack, in the order of its targets. All fields are `[tokens]`."""

    row_indices: Int64Array
    turn_indices: Int64Array
    behaviour_logprobs: npt.NDArray[np.float32]
    turn_rewards: npt.NDArray[np.float32]
    """Reward of the token's turn; 0 in a row without turn rewards."""
    turn_discounts: npt.NDArray[np.float32]
    """Weight of the rewards after the token's turn; 1 in a row without turn discounts."""


def input_length(length: int, prefix: int) -> int:
    """Returns the number of input tokens of a row of `length` tokens after a common prefix.

    The last token is predicted but predicts nothing, so it is not part of the input, except where it makes the length a
    multiple of 16, for which attention on a CPU is faster than for one token less.

    >>> input_length(100, 0), input_length(128, 0), input_length(128, 28)
    (99, 128, 99)
    """
    own = length - prefix
    return own if own % _ALIGNMENT == 0 else own - 1


_ALIGNMENT = 16


def pack_units(rows: Sequence[Row], included: Iterable[int], *, max_tokens: int) -> list[PackUnit]:
    """Divides the included rows into units of at most `max_tokens` tokens; a longer row is a unit of its own.

    Rows of a group share a unit, and the computation of their first context tokens, where that saves most
    (`shared_prompts`). Rows of different roles (several trajectories of one task) are not mixed.
    Raises: InvalidInput when a trajectory begins with a model-written token, which no context predicts.
    """
    trajectories = [row.trajectory for row in rows]
    clusters: dict[tuple[str, int], list[int]] = {}
    for index, slot in zip(included, _slots_of(rows, included), strict=True):
        clusters.setdefault((rows[index].group, slot), []).append(index)
    return [
        unit
        for slot in clusters.values()
        for cluster in prompt_clusters(trajectories, slot)
        for unit in _units_of_cluster(trajectories, cluster, max_tokens)
    ]


def slots(rows: Sequence[Row]) -> list[int]:
    """Returns the slot of each row: rows of equal slots played the same part in their tasks.

    Rows with a role have the slot of their role; the others the slot of their position among the rows of their task.
    """
    counts: dict[str, int] = {}
    numbers: dict[str | int, int] = {}
    result = []
    for row in rows:
        position = counts.get(row.task, 0)
        counts[row.task] = position + 1
        result.append(numbers.setdefault(row.trajectory.role or position, len(numbers)))
    return result


def split_unit(rows: Sequence[Row], unit: PackUnit) -> list[PackUnit]:
    """Returns two units with half of the rows each; the prefix is computed in both."""
    half = (len(unit.rows) + 1) // 2
    trajectories = [row.trajectory for row in rows]
    return [_unit(trajectories, part, unit.prefix_length) for part in (unit.rows[:half], unit.rows[half:])]


def bins_of_units(units: Sequence[PackUnit], *, max_tokens: int) -> list[list[PackUnit]]:
    """Distributes units over as few bins of at most `max_tokens` tokens as first-fit decreasing finds."""
    bins: list[list[PackUnit]] = []
    free: list[int] = []
    for unit in sorted(units, key=lambda unit: -unit.width):
        index = next((index for index, room in enumerate(free) if unit.width <= room), None)
        if index is None:
            bins.append([])
            free.append(max_tokens)
            index = len(bins) - 1
        bins[index].append(unit)
        free[index] -= unit.width
    return bins


def even_bins(units: Sequence[PackUnit], *, count: int, max_tokens: int) -> list[list[PackUnit]]:
    """Distributes units over `count` bins of similar width, or as `bins_of_units` where that exceeds `max_tokens`.

    count: at least the number of bins that `bins_of_units` needs. Surplus bins are empty.
    """
    parts = balanced_parts([float(unit.width) for unit in units], count)
    bins = [[units[index] for index in part] for part in parts]
    if any(len(part) > 1 and sum(unit.width for unit in part) > max_tokens for part in bins):
        bins = bins_of_units(units, max_tokens=max_tokens)
        bins += [[] for _ in range(count - len(bins))]
    return bins


def build_pack(rows: Sequence[Row], units: Sequence[PackUnit], *, first_token: int) -> tuple[Pack, PackedTokens]:
    """Lays the units out in one flat pack. Without units it is an empty pack: one input token and no target.

    first_token: index of the pack's first trained token among those of the rank.
    """
    if not units:
        return _EMPTY_PACK, concatenated([])
    builder = _PackBuilder(sum(unit.width for unit in units))
    for unit in units:
        builder.add(rows, unit)
    return builder.finished(first_token)


_EMPTY_PACK = Pack(
    input_ids=torch.zeros(1, dtype=torch.int64),
    positions=torch.zeros(1, dtype=torch.int64),
    segments=(Segment(begin=0, end=1),),
    predictors=torch.zeros(0, dtype=torch.int64),
    targets=torch.zeros(0, dtype=torch.int64),
    token_indices=torch.zeros(0, dtype=torch.int64),
)


def pack_sequences(sequences: Sequence[npt.NDArray[np.integer]], scored_from: Sequence[int]) -> Pack:
    """Returns a pack of independent sequences, whose tokens from `scored_from` on are its targets."""
    begins = np.cumsum([0, *(len(tokens) for tokens in sequences)])
    predictors = [
        begin + np.arange(start - 1, len(tokens) - 1)
        for begin, start, tokens in zip(begins, scored_from, sequences, strict=False)
    ]
    targets = [tokens[start:] for tokens, start in zip(sequences, scored_from, strict=True)]
    return Pack(
        input_ids=_int64(sequences),
        positions=_int64([np.arange(len(tokens)) for tokens in sequences]),
        segments=tuple(Segment(begin=int(begin), end=int(end)) for begin, end in itertools.pairwise(begins)),
        predictors=_int64(predictors),
        targets=_int64(targets),
        token_indices=torch.arange(sum(map(len, targets))),
    )


class _PackBuilder:
    def __init__(self, width: int) -> None:
        self._ids, self._positions = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)
        self._end = 0
        self._segments: list[Segment] = []
        self._predictors: list[Int64Array] = []
        self._targets: list[npt.NDArray[np.integer]] = []
        self._tokens: list[PackedTokens] = []

    def add(self, rows: Sequence[Row], unit: PackUnit) -> None:
        prefix_begin = self._end
        self._append(rows[unit.rows[0]].trajectory.tokens[: unit.prefix_length], first_position=0)
        prefix_end = self._end
        if unit.prefix_length:
            self._segments.append(Segment(begin=prefix_begin, end=prefix_end))
        else:
            prefix_begin = prefix_end = 0
        for row in unit.rows:
            trajectory = rows[row].trajectory
            begin = self._end
            end = unit.prefix_length + input_length(len(trajectory.tokens), unit.prefix_length)
            self._append(trajectory.tokens[unit.prefix_length : end], first_position=unit.prefix_length)
            if self._end > begin:
                segment = Segment(begin=begin, end=self._end, prefix_begin=prefix_begin, prefix_end=prefix_end)
                self._segments.append(segment)
            indices = np.flatnonzero(trajectory.loss_mask())
            predictors = indices - 1
            own = begin - unit.prefix_length + predictors
            self._predictors.append(np.where(predictors < unit.prefix_length, prefix_begin + predictors, own))
            self._targets.append(trajectory.tokens[indices])
            self._tokens.append(_tokens_of_row(row, trajectory))

    def finished(self, first_token: int) -> tuple[Pack, PackedTokens]:
        targets = _int64(self._targets)
        pack = Pack(
            input_ids=torch.from_numpy(self._ids),
            positions=torch.from_numpy(self._positions),
            segments=tuple(self._segments),
            predictors=_int64(self._predictors),
            targets=targets,
            token_indices=torch.arange(first_token, first_token + len(targets)),
        )
        return pack, concatenated(self._tokens)

    def _append(self, tokens: npt.NDArray[np.integer], *, first_position: int) -> None:
        end = self._end + len(tokens)
        self._ids[self._end : end] = tokens
        self._positions[self._end : end] = np.arange(first_position, first_position + len(tokens))
        self._end = end


def _tokens_of_row(row: int, trajectory: Trajectory) -> PackedTokens:
    written = np.flatnonzero(trajectory.loss_mask())
    turns = np.cumsum(np.diff(written, prepend=written[:1]) > 1).astype(np.int64)
    rewards = np.array(trajectory.turn_rewards or (0.0,) * trajectory.turns, dtype=np.float32)
    discounts = np.array(trajectory.turn_discounts or (1.0,) * trajectory.turns, dtype=np.float32)
    return PackedTokens(
        row_indices=np.full(len(written), row, dtype=np.int64),
        turn_indices=turns,
        behaviour_logprobs=trajectory.logprobs,
        turn_rewards=rewards[turns],
        turn_discounts=discounts[turns],
    )


def concatenated(parts: Sequence[PackedTokens]) -> PackedTokens:
    """Returns the tokens of all parts, in order."""

    def joined(name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])

    return PackedTokens(
        row_indices=joined("row_indices", np.int64),
        turn_indices=joined("turn_indices", np.int64),
        behaviour_logprobs=joined("behaviour_logprobs", np.float32),
        turn_rewards=joined("turn_rewards", np.float32),
        turn_discounts=joined("turn_discounts", np.float32),
    )


def _slots_of(rows: Sequence[Row], included: Iterable[int]) -> list[int]:
    numbers = slots(rows)
    return [numbers[index] for index in included]


def _units_of_cluster(
    trajectories: Sequence[Trajectory], cluster: PromptCluster, max_tokens: int
) -> Iterator[PackUnit]:
    prefix_length = cluster.prefix_length
    members: list[int] = []
    width = prefix_length
    for row in cluster.rows:
        own_tokens = input_length(len(trajectories[row].tokens), prefix_length)
        if members and (width + own_tokens > max_tokens or prefix_length == 0):
            yield _unit(trajectories, members, prefix_length)
            members, width = [], prefix_length
        members.append(row)
        width += own_tokens
    yield _unit(trajectories, members, prefix_length)


def _unit(trajectories: Sequence[Trajectory], members: Sequence[int], prefix_length: int) -> PackUnit:
    prefix = prefix_length if len(members) > 1 else 0
    own = np.array([input_length(len(trajectories[row].tokens), prefix) for row in members])
    return PackUnit(
        rows=tuple(members),
        prefix_length=prefix,
        width=prefix + int(own.sum()),
        pairs=(prefix * (prefix + 1) + int((own * (own + 1)).sum())) // 2 + prefix * int(own.sum()),
        targets=sum(trajectories[row].model_tokens for row in members),
    )


def _int64(parts: Iterable[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64))
