"""Rows of a batch as packs need them: columns, and the turns of all rows. No object exists for a single row."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.contract.batches import Batch, Rows
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import TaskId, Version
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import NO_VERSION, BoolArray, Float32Array, Int32Array, TrajectoryColumns

_HASH_FACTORS = np.random.default_rng(0).integers(
    2**63, size=TokenColumn.EXPERTS.max_width + 1, dtype=np.uint64
) * np.uint64(2) + np.uint64(1)
"""Odd factors of the entries of a column; the last one is that of the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """Rows of a batch. Turns are stretches of model-written tokens; those of row i are `turn_ends[i:i + 2]`."""

    version: Version
    """Trainer's version at the start of the batch."""
    rows: Rows
    columns: TrajectoryColumns
    slots: Sequence[int]
    """Rows of equal slots played the same part in their tasks."""
    turn_ends: Sequence[int]
    """Ends of the rows' turns in the arrays of turns, after a 0."""
    turn_begins: Sequence[int]
    """First tokens of the turns, in the tokens of the columns."""
    turn_lengths: Sequence[int]
    """Tokens of the turns."""
    turn_rewards: Float32Array
    """Rewards of the turns; 0 in a row without turn rewards."""
    turn_discounts: Float32Array
    """Weights of the rewards after the turns; 1 in a row without turn discounts."""
    is_own_version: BoolArray
    """True for rows that were sampled with the trainer's version only."""

    @classmethod
    def of(cls, batch: Batch) -> Self:
        rows = Rows.of(batch.rows)
        columns = rows.columns
        counts = np.diff(columns.span_ends)
        owners = np.repeat(np.arange(len(rows)), counts)
        lengths, versions = np.array(columns.span_lengths, np.int64), np.array(columns.span_versions, np.int64)
        is_written = versions != NO_VERSION
        is_continued = np.zeros_like(is_written)
        is_continued[1:] = is_written[:-1] & (owners[1:] == owners[:-1])
        begins_turn = is_written & ~is_continued
        turn_owners = owners[begins_turn]
        numbers = np.cumsum(begins_turn)[is_written] - 1
        ends = list(accumulate(np.bincount(turn_owners, minlength=len(rows)).tolist(), initial=0))
        rewards, discounts = np.zeros(len(turn_owners), np.float32), np.ones(len(turn_owners), np.float32)
        for row, trajectory in columns.built.items():
            for values, own in ((rewards, trajectory.turn_rewards), (discounts, trajectory.turn_discounts)):
                if own:
                    values[slice(*ends[row : row + 2])] = own
        is_foreign = is_written & (versions != batch.version)
        return cls(
            version=batch.version,
            rows=rows,
            columns=columns,
            slots=_slots(rows.tasks, columns),
            turn_ends=ends,
            turn_begins=(np.cumsum(lengths) - lengths)[begins_turn].tolist(),
            turn_lengths=np.bincount(numbers, lengths[is_written], len(turn_owners)).astype(np.int64).tolist(),
            turn_rewards=rewards,
            turn_discounts=discounts,
            is_own_version=np.bincount(owners, is_foreign, len(rows)) == 0,
        )

    def length(self, row: int) -> int:
        """Returns the tokens of a row. Count."""
        begin, end = self.columns.token_ends[row : row + 2]
        return end - begin

    def trained_tokens(self, row: int, *, after: int = 0) -> int:
        """Returns the tokens of a row that the model wrote, after its first ones. Count."""
        begin = self.columns.token_ends[row] + after
        turns = range(*self.turn_ends[row : row + 2])
        ends = ((self.turn_begins[turn], self.turn_begins[turn] + self.turn_lengths[turn]) for turn in turns)
        return sum(max(0, end - max(first, begin)) for first, end in ends)

    def tokens(self, row: int) -> Int32Array:
        """Returns the tokens of a row. Raises: InvalidInput when the model wrote the first, which nothing predicts."""
        begin, end = self.columns.token_ends[row : row + 2]
        if self.turn_begins[self.turn_ends[row] : self.turn_ends[row + 1]][:1] == [begin]:
            raise InvalidInput(
                f"cannot train a trajectory of {self.columns.policies[row]!r}: its first token is model-written and "
                "has no context that predicts it; give the workflow's prompt at least one token",
                code="trainer.no_context",
            )
        return self.columns.tokens[begin:end]

    def shared_keys(self, row: int) -> npt.NDArray[np.integer]:
        """Returns what each token of a row must have in common with one of another row to be computed with it: the
        token, and the experts that are replayed there; their numbers are hashed. Raises: InvalidInput, as `tokens`."""
        tokens = self.tokens(row)
        experts = self.columns.token_columns.get(TokenColumn.EXPERTS)
        if experts is None:
            return tokens
        keys: npt.NDArray[np.uint64] = tokens.astype(np.uint64) * _HASH_FACTORS[-1]
        own = experts[slice(*self.columns.logprob_ends[row : row + 2])]
        hashes = (own.astype(np.uint64) + 1) @ _HASH_FACTORS[: own.shape[1]]
        is_recorded = (own != TokenColumn.EXPERTS.absent).any(1)
        turns = range(*self.turn_ends[row : row + 2])
        begins = [self.turn_begins[turn] - self.columns.token_ends[row] for turn in turns]
        positions = np.concatenate(
            [
                np.zeros(0, np.int64),
                *(
                    np.arange(begin, begin + self.turn_lengths[turn]) - 1
                    for begin, turn in zip(begins, turns, strict=True)
                ),
            ]
        )
        keys[positions[is_recorded]] ^= hashes[is_recorded]
        return keys

    def turns(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Returns the fields of a `Share` about the turns of these rows, in their order."""
        counts = [self.turn_ends[row + 1] - self.turn_ends[row] for row in rows]
        turns = [turn for row in rows for turn in range(*self.turn_ends[row : row + 2])]
        ends = self.columns.logprob_ends
        logprobs = [self.columns.logprobs[ends[row] : ends[row + 1]] for row in rows]
        return {
            "turn_rows": torch.tensor(
                [row for row, count in zip(rows, counts, strict=True) for _ in range(count)], dtype=torch.int64
            ),
            "turn_indices": torch.tensor([turn for count in counts for turn in range(count)], dtype=torch.int64),
            "turn_lengths": torch.tensor([self.turn_lengths[turn] for turn in turns], dtype=torch.int64),
            "turn_rewards": torch.from_numpy(self.turn_rewards[turns]),
            "turn_discounts": torch.from_numpy(self.turn_discounts[turns]),
            "behaviour_logprobs": torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *logprobs])),
            **self._token_columns(rows),
        }

    def _token_columns(self, rows: Sequence[int]) -> dict[str, Tensor]:
        columns = self.columns.token_columns
        if not columns:
            return {}
        ends = self.columns.logprob_ends
        own = np.concatenate([np.zeros(0, np.int64), *(np.arange(*ends[row : row + 2]) for row in rows)])
        tensors = {column.value: torch.from_numpy(array[own]) for column, array in columns.items()}
        return {name: values.float() if values.is_floating_point() else values for name, values in tensors.items()}


def _slots(tasks: Sequence[TaskId], columns: TrajectoryColumns) -> list[int]:
    """Returns the slot of each row: that of its role, or that of its position among the rows of its task."""
    counts: dict[str, int] = {}
    numbers: dict[str | int, int] = {}
    slots = []
    for row, task in enumerate(tasks):
        position = counts.get(task, 0)
        counts[task] = position + 1
        role = columns.built[row].role if row in columns.built else ""
        slots.append(numbers.setdefault(role or position, len(numbers)))
    return slots
