"""Plan of a training step: which rank computes which packs of which optimizer batch; the share that a rank receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.algorithms.tokens import RowData, TokenData
from astraflow.trainer.engines.base import Batching, Pack, Segment, prefixes_of
from astraflow.trainer.step.bins import BINS, bins_of_ranks
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.packing import (
    PackUnit,
    balanced_parts,
    build_pack,
    distinct_tokens,
    imbalance,
    pack_units,
    prefix_trees,
    split_unit,
)
from astraflow.trainer.step.rows import StepRows
from astraflow.trainer.step.teacher_passes import TeacherPass

_IMBALANCE_GOAL = 1.01
"""Groups are divided, and what they share computed once more, until the ranks' FLOPs are this balanced or it is of no
use."""
_MAX_SPLITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerBatch:
    """One rank's packs of one optimizer step, and the statistics of the whole optimizer batch."""

    packs: tuple[Pack, ...]
    """As many on every rank. Their trained tokens are adjacent among the rank's tokens."""
    lengths: Tensor
    """int64 `[rows]`: trained tokens of each row of the batch in this optimizer batch, on all ranks."""

    @property
    def targets(self) -> int:
        """Trained tokens of this rank."""
        return sum(len(pack.targets) for pack in self.packs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Input of one data rank for a step: facts of all rows, and the tokens and packs of this rank."""

    version: int
    """Trainer's version at the start of the batch."""
    rows: RowData
    row_advantages: Tensor
    """float32 `[rows]`."""
    is_own_version: Tensor
    """bool `[rows]`: the whole row was sampled with the trainer's version."""
    turn_rows: Tensor
    """int64 `[turns]`: rows of the turns of which this rank trains the tokens. The turns of a row are adjacent."""
    turn_indices: Tensor
    """int64 `[turns]`: number of the turn in its row."""
    turn_lengths: Tensor
    """int64 `[turns]`: tokens."""
    turn_rewards: Tensor
    """float32 `[turns]`; 0 in a row without turn rewards."""
    turn_discounts: Tensor
    """float32 `[turns]`: weight of the rewards after the turn; 1 in a row without turn discounts."""
    behaviour_logprobs: Tensor
    """float32 `[tokens]`, of this rank's trained tokens."""
    optimizer_batches: tuple[OptimizerBatch, ...]
    """At least one."""
    teacher_logprobs: Tensor | None = None
    """float32 `[tokens]`, from servers of teachers; NaN for tokens of others, None without a server."""
    teacher_top_tokens: Tensor | None = None
    """int32 `[tokens, k]`: most likely tokens of teachers with servers, -1: none; None unless the loss needs them."""
    teacher_top_logprobs: Tensor | None = None
    """float32 `[tokens, k]`; -inf where there is none."""
    teacher_passes: tuple[TeacherPass, ...] = ()
    """Passes of the teachers without a server."""
    top_tokens: Tensor | None = None
    """int32 `[tokens, k]`: `TokenColumn.TOP_TOKENS`; None if no engine recorded them."""
    top_logprobs: Tensor | None = None
    """float32 `[tokens, k]`."""
    support: Tensor | None = None
    """int32 `[tokens, n]`: `TokenColumn.SUPPORT`; None if every token was sampled from the whole vocabulary."""
    temperature: Tensor | None = None
    """float32 `[tokens, 1]`: `TokenColumn.TEMPERATURE`; None if every token was sampled at that of the algorithm."""
    expert_sets: Tensor | None = None
    """uint8 `[tokens, bytes]`: `TokenColumn.EXPERTS`; None if no engine recorded them."""

    def token_data(self, device: torch.device) -> TokenData:
        """Returns this rank's tokens of the whole batch on `device`, with the advantages of their rows."""
        lengths, count = self.turn_lengths.to(device), len(self.behaviour_logprobs)

        def spread(values: Tensor) -> Tensor:
            return values.to(device).repeat_interleave(lengths, output_size=count)

        return TokenData(
            row_indices=spread(self.turn_rows),
            turn_indices=spread(self.turn_indices),
            behaviour_logprobs=self.behaviour_logprobs.to(device),
            is_own_version=spread(self.is_own_version[self.turn_rows]),
            advantages=spread(self.row_advantages[self.turn_rows]),
            turn_rewards=spread(self.turn_rewards),
            turn_discounts=spread(self.turn_discounts),
            **{name: None if (values := getattr(self, name)) is None else values.to(device) for name in _TOKEN_TENSORS},
        )

    def encode(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Returns JSON-able facts and named arrays, for transport to another process: 16 bytes per trained token.

        Positions follow from the segments, and token indices from the order of the packs.
        """
        packs = [pack for batch in self.optimizer_batches for pack in batch.packs]
        packs += [pack for own in self.teacher_passes for pack in own.packs]
        segments = [(s.begin, s.end, s.prefix_begin, s.prefix_end) for pack in packs for s in pack.segments]
        facts = {
            "version": self.version,
            "packs": [len(batch.packs) for batch in self.optimizer_batches],
            "widths": [len(pack.input_ids) for pack in packs],
            "targets": [len(pack.targets) for pack in packs],
            "segments": [len(pack.segments) for pack in packs],
            "teachers": [(own.teacher, len(own.packs)) for own in self.teacher_passes],
        }
        arrays = {f"rows.{name}": getattr(self.rows, name) for name in RowData.__slots__}
        arrays |= {name: getattr(self, name) for name in _SHARE_TENSORS}
        arrays |= {name: values for name in _OPTIONAL_TENSORS if (values := getattr(self, name)) is not None}
        arrays |= {f"packs.{name}": _int32([getattr(pack, name) for pack in packs]) for name in _PACK_TENSORS}
        arrays["packs.segments"] = torch.tensor(segments, dtype=torch.int64).reshape(-1, 4)
        orders = [own.order for own in self.teacher_passes if own.order is not None]
        arrays["teacher_order"] = torch.cat([torch.zeros(0, dtype=torch.int64), *orders])
        arrays["lengths"] = torch.stack([batch.lengths for batch in self.optimizer_batches])
        return facts, {name: value.numpy() for name, value in arrays.items()}

    @classmethod
    def decode(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Share:
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        packs = _decode_packs(facts, tensors)
        own, taught = packs[: sum(facts["packs"])], packs[sum(facts["packs"]) :]
        packs = list(_with_columns(own, tensors))
        ends = np.cumsum([0, *facts["packs"]])
        return cls(
            version=facts["version"],
            rows=RowData(**{name: tensors[f"rows.{name}"] for name in RowData.__slots__}),
            **{name: tensors[name] for name in _SHARE_TENSORS},
            **{name: tensors[name] for name in _OPTIONAL_TENSORS if name in tensors},
            optimizer_batches=tuple(
                OptimizerBatch(packs=tuple(packs[begin:end]), lengths=lengths)
                for begin, end, lengths in zip(ends[:-1], ends[1:], tensors["lengths"], strict=True)
            ),
            teacher_passes=_decode_teachers(facts["teachers"], taught, tensors["teacher_order"]),
        )


_TURN_TENSORS = ("turn_rows", "turn_indices", "turn_lengths", "turn_rewards", "turn_discounts")
_SHARE_TENSORS = ("row_advantages", "is_own_version", *_TURN_TENSORS, "behaviour_logprobs")
_TOKEN_TENSORS = ("teacher_logprobs", "teacher_top_tokens", "teacher_top_logprobs", "top_tokens", "top_logprobs")
_OPTIONAL_TENSORS = (*_TOKEN_TENSORS, "support", "temperature", "expert_sets")
_PACK_COLUMNS = {"support": "support", "temperature": "temperatures", "expert_sets": "experts"}
"""Fields of packs by the tensors of a share that they are parts of."""
_PACK_TENSORS = ("input_ids", "predictors", "targets")


def _int32(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.int32), *(part.to(torch.int32) for part in parts)])


def _decode_packs(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[Pack]:
    inputs, predictors, targets, segments = (
        tensors[f"packs.{name}"].split(facts[sizes])
        for name, sizes in (
            ("input_ids", "widths"),
            ("predictors", "targets"),
            ("targets", "targets"),
            ("segments", "segments"),
        )
    )
    packs = []
    for index, rows in enumerate(segments):
        own = tuple(Segment(begin=a, end=b, prefix_begin=c, prefix_end=d) for a, b, c, d in rows.tolist())
        packs.append(
            Pack(
                input_ids=inputs[index].long(),
                positions=_positions(own),
                segments=own,
                predictors=predictors[index].long(),
                targets=targets[index].long(),
            )
        )
    return packs


def _with_columns(packs: Sequence[Pack], tensors: Mapping[str, Tensor]) -> Sequence[Pack]:
    """Returns the packs with their parts of the columns. tensors: of all packs, in order."""
    sizes = [len(pack.targets) for pack in packs]
    for name, field in _PACK_COLUMNS.items():
        if name in tensors:
            values = tensors[name]
            parts = (values.long() if values.dtype == torch.int32 else values).split(sizes)
            packs = [replace(pack, **{field: part}) for pack, part in zip(packs, parts, strict=True)]
    return packs


def _decode_teachers(
    teachers: Sequence[tuple[str, int]], packs: Sequence[Pack], order: Tensor
) -> tuple[TeacherPass, ...]:
    """Returns the passes of teachers. packs, order: of all of them."""
    passes = []
    for name, count in teachers:
        own, packs = tuple(packs[:count]), packs[count:]
        size = sum(len(pack.targets) for pack in own)
        passes.append(TeacherPass(teacher=name, packs=own, order=order[:size] if own else None))
        order = order[size:]
    return tuple(passes)


def _positions(segments: Sequence[Segment]) -> Tensor:
    """Returns the position of each token of a pack in its trajectory."""
    firsts = (sum(end - begin for begin, end in prefixes) for prefixes in prefixes_of(segments))
    return torch.cat(
        [
            torch.arange(first, first + segment.end - segment.begin)
            for first, segment in zip(firsts, segments, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """Figures of a plan, over all ranks."""

    tokens: int
    """Trained tokens."""
    width: int
    """Input tokens of all packs."""
    padding: int
    """Input tokens of empty packs and of padded rows."""
    distinct: int
    """Input tokens without padding, where a beginning that several rows of a group share counts once."""
    forward_flops: float
    """FLOPs that one forward pass over all packs needs: without padding, and with what packs share or could share
    once."""
    head_flops: float
    """FLOPs of the output head in one forward pass; part of `forward_flops`."""
    training_flops: float
    """The same of one forward and backward pass."""
    imbalance: float
    """FLOPs of the busiest data rank divided by the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A step's shares, by data rank."""

    shares: tuple[Share, ...]
    facts: PlanFacts
    teacher_s: float | None = None
    """Duration of the requests to a teacher's server. Seconds; None without one."""

    def rows_of_ranks(self) -> list[dict[int, int]]:
        """Returns the trained rows of each rank, in order, with their first tokens among the rank's trained tokens."""
        ranks = []
        for share in self.shares:
            lengths: dict[int, int] = {}
            for row, length in zip(share.turn_rows.tolist(), share.turn_lengths.tolist(), strict=True):
                lengths[row] = lengths.get(row, 0) + length
            ranks.append(dict(zip(lengths, accumulate(lengths.values(), initial=0), strict=False)))
        return ranks


def row_data(rows: StepRows, *, is_excluded: Sequence[bool]) -> RowData:
    """Returns the facts of the rows. Rows without a model-written token are not counted."""
    numbers: dict[str, int] = {}
    lengths = np.diff(rows.columns.logprob_ends)
    is_counted = (~np.array(is_excluded, np.bool_) & (lengths > 0)).tolist()
    parts = list(zip(rows.rows.tasks, rows.slots, strict=True))
    sizes = Counter(part for part, counted in zip(parts, is_counted, strict=True) if counted)
    weights = [counted / max(1, sizes[part]) for part, counted in zip(parts, is_counted, strict=True)]
    return RowData(
        groups=torch.tensor([numbers.setdefault(group, len(numbers)) for group in rows.rows.groups], dtype=torch.int64),
        slots=torch.tensor(rows.slots, dtype=torch.int64),
        weights=torch.tensor(weights, dtype=torch.float32),
        is_counted=torch.tensor(is_counted, dtype=torch.bool),
        lengths=torch.from_numpy(lengths),
        is_truncated=torch.tensor(rows.columns.is_truncated, dtype=torch.bool),
    )


def plan_step(
    rows: StepRows,
    facts: RowData,
    row_advantages: Tensor,
    *,
    minibatches: int,
    data_ranks: int,
    max_tokens: int,
    cost: ForwardCost,
    batching: Batching,
) -> Plan:
    """Divides a batch into optimizer batches by whole groups, and each of them into the same number of packs per rank.

    max_tokens: input tokens of a pack, exceeded only by a single longer row.
    Raises: InvalidInput as `pack_units`.
    """
    counted = torch.where(facts.is_counted, facts.lengths, 0)
    batches: list[tuple[list[list[list[PackUnit]]], Tensor]] = []
    shared_units: list[PackUnit] = []
    distinct = 0
    for members in _minibatch_rows(facts.groups, counted, minibatches):
        trees = prefix_trees(rows, members)
        distinct += distinct_tokens(trees)
        if batching is not Batching.PACKED:
            shared_units += pack_units(rows, trees, max_tokens=max_tokens)
        units = pack_units(rows, trees, max_tokens=max_tokens, batching=batching)
        divided = _divided(rows, units, data_ranks, cost)
        bins = bins_of_ranks(divided, max_tokens=max_tokens, cost=cost, batching=batching)
        batches.append((bins, _only(counted, members)))
    bins_by_rank = [[(bins[rank], lengths) for bins, lengths in batches] for rank in range(data_ranks)]
    packs = [units for own in bins_by_rank for bins, _ in own for units in bins]
    units_by_rank = [[unit for bins, _ in own for units in bins for unit in units] for own in bins_by_rank]
    flops = [sum(unit.cost(cost) for unit in units) for units in units_by_rank]
    needed = [unit for units in packs for unit in units] if batching is Batching.PACKED else shared_units
    return Plan(
        shares=tuple(_share(rows, facts, row_advantages, own) for own in bins_by_rank),
        facts=PlanFacts(
            tokens=int(counted.sum()),
            width=(width := sum(BINS[batching].width(units) if units else 1 for units in packs)),
            padding=width - sum(unit.width for units in packs for unit in units),
            distinct=distinct,
            forward_flops=sum(unit.cost(cost) for unit in needed),
            head_flops=sum(unit.targets for unit in needed) * cost.per_target,
            training_flops=sum(
                cost.training_flops(tokens=unit.width, pairs=unit.pairs, targets=unit.targets) for unit in needed
            ),
            imbalance=imbalance(flops),
        ),
    )


def _share(
    rows: StepRows,
    facts: RowData,
    row_advantages: Tensor,
    batches: Sequence[tuple[Sequence[Sequence[PackUnit]], Tensor]],
) -> Share:
    """Returns a rank's share. batches: units of its packs and trained tokens of all rows, by optimizer batch."""
    members = [row for bins, _ in batches for units in bins for unit in units for row in unit.rows]
    turns: dict[str, Any] = rows.turns(members)
    packs = iter(_with_columns([build_pack(rows, units) for bins, _ in batches for units in bins], turns))
    return Share(
        version=int(rows.version),
        rows=facts,
        row_advantages=row_advantages.float(),
        is_own_version=torch.from_numpy(rows.is_own_version),
        **turns,
        optimizer_batches=tuple(
            OptimizerBatch(packs=tuple(islice(packs, len(bins))), lengths=lengths) for bins, lengths in batches
        ),
    )


def _minibatch_rows(groups: Tensor, lengths: Tensor, count: int) -> list[list[int]]:
    """Returns the trained rows of each optimizer batch: whole groups, with similar numbers of trained tokens.

    At most one optimizer batch for each group; one, without rows, when nothing is trained.
    """
    group_count = int(groups.max()) + 1 if len(groups) else 0
    sizes = torch.zeros(group_count, dtype=torch.int64).index_add_(0, groups, lengths).tolist()
    trained = [group for group, size in enumerate(sizes) if size]
    parts = balanced_parts([float(sizes[group]) for group in trained], min(count, max(len(trained), 1)))
    part_of_group = {trained[index]: number for number, part in enumerate(parts) for index in part}
    members: list[list[int]] = [[] for _ in parts]
    for row, (group, length) in enumerate(zip(groups.tolist(), lengths.tolist(), strict=True)):
        if length:
            members[part_of_group[group]].append(row)
    return members


def _divided(rows: StepRows, units: list[PackUnit], ranks: int, cost: ForwardCost) -> list[list[PackUnit]]:
    """Divides units over ranks by FLOPs. Splits large groups while that makes the busiest rank less busy."""
    best, best_load = [units], float("inf")
    for _ in range(_MAX_SPLITS):
        costs = [unit.cost(cost) for unit in units]
        parts = balanced_parts(costs, ranks)
        loads = [sum(costs[index] for index in part) for part in parts]
        if max(loads) < best_load:
            best, best_load = [[units[index] for index in part] for part in parts], max(loads)
        divisible = [index for index, unit in enumerate(units) if len(unit.rows) > 1]
        busiest = parts[loads.index(max(loads))]
        is_stuck = len(busiest) == 1 and busiest[0] not in divisible
        if ranks == 1 or imbalance(loads) <= _IMBALANCE_GOAL or is_stuck or not divisible:
            break
        largest = max(divisible, key=lambda index: costs[index])
        units = [*units[:largest], *split_unit(rows, units[largest]), *units[largest + 1 :]]
    return best


def _only(values: Tensor, indices: Sequence[int]) -> Tensor:
    """Returns the values with 0 at all other indices."""
    chosen = torch.zeros_like(values)
    chosen[list(indices)] = values[list(indices)]
    return chosen
