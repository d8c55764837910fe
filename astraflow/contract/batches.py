"""Batches that a trainer pulls, and its reports about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.trajectories import Trajectories, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory in a batch, with its origin."""

    group: GroupId
    task: TaskId
    node: NodeId
    trajectory: Trajectory


class RowPart(NamedTuple):
    """Adjacent rows of one episode, in columns."""

    group: GroupId
    task: TaskId
    node: NodeId
    trajectories: Trajectories


class Rows(Sequence[Row]):
    """Rows in columns. A sequence of `Row`, which are built when one is asked for."""

    __slots__ = ("_built", "_length", "parts")

    def __init__(self, parts: Sequence[RowPart]) -> None:
        self.parts = parts
        self._length = sum(len(part.trajectories) for part in parts)
        self._built: tuple[Row, ...] | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Rows":
        """Returns the rows in columns: the same object if they are, else copies of their arrays."""
        if isinstance(rows, Rows):
            return rows
        columns = Trajectories.of([row.trajectory for row in rows])
        return cls([RowPart(row.group, row.task, row.node, columns[n : n + 1]) for n, row in enumerate(rows)])

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if self._built is None:
            self._built = tuple(
                Row(group=group, task=task, node=node, trajectory=trajectory)
                for group, task, node, trajectories in self.parts
                for trajectory in trajectories
            )
        return self._built[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows for one training step. Rows of a group are adjacent."""

    id: BatchId
    policy: PolicyId
    version: Version
    """Trainer's version when the batch was assembled. Every row began at most the staleness bound before it."""
    is_redelivered: bool
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Trainer's acknowledgement of a batch, which is then durably trained and never served again."""

    batch: BatchId
    policy: PolicyId
    version: Version
    """Version that the step produced."""
    wait_s: float
    """Time blocked in `PullBatch`."""
    compute_s: float
    publish_s: float
    """Time the step was blocked by publishing (copying out, or waiting for the previous publish)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """loss, reward_mean, grad_norm, clip_fraction, entropy, logprob_gap, ... natural units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerAttachment:
    """Dataflow's answer to a trainer that attaches."""

    run: str
    weights_address: str
    acknowledged_steps: int
    """Acknowledged steps of this policy."""
    weights_key: bytes = b""
    """Public key as in `JoinResult.weights_key`."""
