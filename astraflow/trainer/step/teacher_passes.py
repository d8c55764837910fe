"""Packs that the teachers of a step compute on the ranks, and where their tokens are among those of the policy's packs.

A teacher computes the rows that it scores and no others. One that reads another prompt than the policy
(`Trajectory.teacher_prompt`) computes other rows, with the same tokens after the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.algorithms.checks import teacher_tokens
from astraflow.algorithms.config import AlgorithmConfig, TeacherConfig
from astraflow.algorithms.tokens import TokenData
from astraflow.contract.batches import Batch, Rows
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory, TrajectoryColumns
from astraflow.trainer.engines.base import Batching, Engine, Model, ModelRole, Pack
from astraflow.trainer.step.bins import bins_of_ranks
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.packing import PackUnit, build_pack, pack_units, prefix_trees
from astraflow.trainer.step.rows import StepRows


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherPass:
    """Passes of one teacher on a rank."""

    teacher: str
    """Its name."""
    packs: tuple[Pack, ...] = ()
    """As many on every rank; empty: the packs of the policy."""
    order: Tensor | None = None
    """int64 `[tokens]`: index of each trained token of the packs among those of the rank; None for the policy's
    packs."""

    def tempered(self, temperatures: Tensor | None) -> Sequence[Pack]:
        """Returns the packs with the temperatures of their tokens. temperatures: of the rank's tokens, if recorded."""
        if temperatures is None or self.order is None:
            return self.packs
        parts = temperatures[self.order].split([len(pack.targets) for pack in self.packs])
        return [replace(pack, temperatures=part) for pack, part in zip(self.packs, parts, strict=True)]


_OWN_WEIGHTS = {"current": ModelRole.POLICY, "initial": ModelRole.REFERENCE}
"""Models of teachers that are the policy itself."""


class OwnTeachers:
    """Teachers that the ranks compute."""

    def __init__(self, engine: Engine, algorithm: AlgorithmConfig) -> None:
        self._engine = engine
        self._temperature = algorithm.temperature
        self._top = teacher_tokens(algorithm)
        self._models: dict[str, Model] = {
            name: name if teacher.policy is None else _OWN_WEIGHTS[teacher.policy]
            for name, teacher in algorithm.teachers.items()
        }

    def scores(
        self,
        tokens: TokenData,
        packs: Sequence[Pack],
        passes: Sequence[TeacherPass],
        temperatures: Tensor | None,
    ) -> dict[str, Tensor]:
        """Returns the fields of `TokenData` about teachers: what servers said of the tokens, and the results of these
        passes. packs: of the policy. temperatures: `Share.temperature`. Collective: called on every rank."""
        results = {"teacher_logprobs": self._filled(tokens.teacher_logprobs, tokens, torch.nan)}
        if self._top:
            heads, values = tokens.teacher_top_tokens, tokens.teacher_top_logprobs
            results["teacher_top_tokens"] = self._filled(heads, tokens, -1, self._top).long()
            results["teacher_top_logprobs"] = self._filled(values, tokens, -torch.inf, self._top)
        for own in passes:
            model, device = self._models[own.teacher], self._engine.device
            parts = [
                self._engine.score(replace(pack, top=self._top), role=model, temperature=self._temperature)
                for pack in (own.tempered(temperatures) if own.packs else packs)
            ]
            order = slice(None) if own.order is None else own.order.to(device)
            for name, values in results.items():
                scores = [getattr(part, name.removeprefix("teacher_")) for part in parts]
                if scores:
                    width = slice(scores[0].shape[-1]) if values.ndim > 1 else ...
                    values[order, width] = torch.cat(scores)
        return results

    def _filled(self, values: Tensor | None, tokens: TokenData, absent: float, *width: int) -> Tensor:
        shape = (len(tokens.row_indices), *width)
        return torch.full(shape, absent, device=self._engine.device) if values is None else values.clone()


def teachers_of_rows(columns: TrajectoryColumns, teachers: Mapping[str, TeacherConfig]) -> list[str]:
    """Returns the name of the teacher of each row, which is checked before: the only one, or that of its trajectory."""
    if len(teachers) == 1:
        return list(teachers) * len(columns)
    return [columns.built[row].teacher if row in columns.built else "" for row in range(len(columns))]


def teacher_passes(
    batch: Batch,
    rows_of_ranks: Sequence[Mapping[int, int]],
    teachers: Mapping[str, TeacherConfig],
    *,
    max_tokens: int,
    cost: ForwardCost,
    batching: Batching,
) -> list[tuple[TeacherPass, ...]]:
    """Returns the passes of each rank, of teachers without a server.

    rows_of_ranks: trained rows of each rank with their first tokens among the trained tokens of the rank.
    """
    rows = Rows.of(batch.rows)
    names = teachers_of_rows(rows.columns, teachers)
    passes: list[list[TeacherPass]] = [[] for _ in rows_of_ranks]
    for name, teacher in teachers.items():
        if teacher.endpoint is not None:
            continue
        if len(teachers) == 1 and teacher.policy is None:
            return [(TeacherPass(teacher=name),) for _ in rows_of_ranks]
        own = StepRows.of(_taught(batch, rows) if teacher.policy is not None else batch)
        divided = []
        for members in rows_of_ranks:
            trees = prefix_trees(own, [row for row in members if names[row] == name])
            divided.append(pack_units(own, trees, max_tokens=max_tokens, batching=batching))
        if not any(divided):  # none of its prompts is in the batch
            continue
        for rank, bins in enumerate(bins_of_ranks(divided, max_tokens=max_tokens, cost=cost, batching=batching)):
            passes[rank].append(
                TeacherPass(
                    teacher=name,
                    packs=tuple(build_pack(own, units) for units in bins),
                    order=_order(own, bins, rows_of_ranks[rank]),
                )
            )
    return [tuple(own) for own in passes]


def _taught(batch: Batch, rows: Rows) -> Batch:
    """Returns the batch with the prompts that teachers read."""
    read = [replace(row, trajectory=_with_teacher_prompt(row.trajectory)) for row in rows]
    return replace(batch, rows=Rows.of(read))


def _with_teacher_prompt(trajectory: Trajectory) -> Trajectory:
    prompt = trajectory.teacher_prompt
    if not prompt:
        return trajectory
    first = next((at for at, span in enumerate(trajectory.spans) if span.author is Author.MODEL), 0)
    length = sum(span.length for span in trajectory.spans[:first])
    return replace(
        trajectory,
        tokens=np.concatenate([np.array(prompt, np.int32), trajectory.tokens[length:]]),
        spans=(Span(author=Author.CONTEXT, length=len(prompt)), *trajectory.spans[first:]),
        **_WITHOUT_TEXTS,
    )


_WITHOUT_TEXTS: dict[str, Any] = {
    "prompt_text": "",
    "completion_text": "",
    "text_ends": (),
    "span_s": (),
    "token_ends": (),
}


def _order(rows: StepRows, bins: Sequence[Sequence[PackUnit]], begins: Mapping[int, int]) -> Tensor:
    """Returns the places of the bins' trained tokens among those of the rank."""
    members = [row for units in bins for unit in units for row in unit.rows]
    parts = [torch.arange(begins[row], begins[row] + rows.trained_tokens(row)) for row in members]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])
