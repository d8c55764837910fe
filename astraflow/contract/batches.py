"""Batches that a trainer pulls, and its reports about them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, chain, compress
from typing import overload

import numpy as np

from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts import token_columns
from astraflow.contract.rollouts.trajectories import Trajectories, Trajectory, TrajectoryColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory in a batch, with its origin."""

    group: GroupId
    task: TaskId
    node: NodeId
    trajectory: Trajectory


class Rows(Sequence[Row]):
    """Rows in columns: entry i of `groups`, `tasks` and `nodes` is about row i, and the parts hold the trajectories in
    the same order. A sequence of `Row`, which are built when one is asked for."""

    __slots__ = ("_built", "_columns", "groups", "nodes", "parts", "tasks")

    def __init__(
        self,
        *,
        groups: Sequence[GroupId],
        tasks: Sequence[TaskId],
        nodes: Sequence[NodeId],
        parts: Sequence[Trajectories],
    ) -> None:
        self.groups = groups
        self.tasks = tasks
        self.nodes = nodes
        self.parts = parts
        self._built: tuple[Row, ...] | None = None
        self._columns: TrajectoryColumns | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Rows":
        """Returns the rows in columns: the same object if they are, else copies of their arrays."""
        if isinstance(rows, Rows):
            return rows
        trajectories = Trajectories.of([row.trajectory for row in rows])
        return cls(
            groups=[row.group for row in rows],
            tasks=[row.task for row in rows],
            nodes=[row.node for row in rows],
            parts=[trajectories[index : index + 1] for index in range(len(rows))],
        )

    @classmethod
    def joined(cls, many: Iterable["Rows"]) -> "Rows":
        """Returns the rows of all, in order. Copies no arrays."""
        many = list(many)
        return cls(
            groups=[group for rows in many for group in rows.groups],
            tasks=[task for rows in many for task in rows.tasks],
            nodes=[node for rows in many for node in rows.nodes],
            parts=[part for rows in many for part in rows.parts],
        )

    def where(self, mask: Sequence[bool]) -> "Rows":
        """Returns the rows with True in the mask, which has one entry per row. Copies no arrays."""
        apart = (part[index : index + 1] for part in self.parts for index in range(len(part)))
        return Rows(
            groups=list(compress(self.groups, mask)),
            tasks=list(compress(self.tasks, mask)),
            nodes=list(compress(self.nodes, mask)),
            parts=stretches(compress(apart, mask)),
        )

    @property
    def columns(self) -> TrajectoryColumns:
        """Columns in which row i is trajectory i. Copies the arrays once, unless they lie in one message like that."""
        if self._columns is None:
            self._columns = joined_columns(stretches(self.parts))
        return self._columns

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if self._built is None:
            trajectories = chain.from_iterable(self.parts)
            self._built = tuple(
                Row(group=group, task=task, node=node, trajectory=trajectory)
                for group, task, node, trajectory in zip(self.groups, self.tasks, self.nodes, trajectories, strict=True)
            )
        return self._built[index]


def stretches(parts: Iterable[Trajectories]) -> list[Trajectories]:
    """Returns the trajectories of the parts in as few parts as possible: those of a push are mostly adjacent."""
    joined: list[Trajectories] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.columns is part.columns and last.end == part.begin:
            last.end = part.end
        else:
            joined.append(Trajectories(part.columns, part.begin, part.end))
    return joined


def joined_columns(parts: Sequence[Trajectories]) -> TrajectoryColumns:
    """Returns columns that hold the trajectories of the parts and no others."""
    if len(parts) == 1 and len(parts[0]) == len(parts[0].columns):
        return parts[0].columns
    every = [(part.columns, part.begin, part.end) for part in parts]
    spans = [(columns, columns.span_ends[begin], columns.span_ends[end]) for columns, begin, end in every]
    counts = chain.from_iterable(np.diff(columns.span_ends[begin : end + 1]).tolist() for columns, begin, end in every)
    begins = accumulate((len(part) for part in parts), initial=0)
    return TrajectoryColumns(
        policies=[policy for columns, begin, end in every for policy in columns.policies[begin:end]],
        rewards=[reward for columns, begin, end in every for reward in columns.rewards[begin:end]],
        is_truncated=[flag for columns, begin, end in every for flag in columns.is_truncated[begin:end]],
        span_ends=list(accumulate(counts, initial=0)),
        span_lengths=[length for columns, begin, end in spans for length in columns.span_lengths[begin:end]],
        span_versions=[version for columns, begin, end in spans for version in columns.span_versions[begin:end]],
        tokens=np.concatenate([np.zeros(0, np.int32), *(part.tokens for part in parts)]),
        logprobs=np.concatenate([np.zeros(0, np.float32), *(part.logprobs for part in parts)]),
        token_columns=token_columns.joined_columns([(part.token_columns, len(part.logprobs)) for part in parts]),
        built={
            first + index: item
            for first, part in zip(begins, parts, strict=False)
            for index, item in part.with_details()
        },
    )


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
    """loss, reward_mean, grad_norm, clip_fraction, entropy, mismatch_max, ... natural units."""


class StepEnd(Enum):
    """How a step ended that produced no version."""

    ERROR = "error"
    """An exception, or a fatal error of the interpreter such as a segmentation fault."""
    STOPPED = "stopped"
    """The trainer was asked to stop and gave the step up."""
    UNEXPLAINED = "unexplained"
    """The process or one of its ranks ended without a message: it was killed, or the machine failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """Trainer's report that the step on a batch ended its process."""

    policy: PolicyId
    batch: BatchId
    attempt: str
    """Random name of the attempt, so that a repeated report counts once."""
    end: StepEnd
    error: str
    """Type, message and place of the error; empty when unknown."""
    step_s: float
    """Time for which the step is known to have run. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerAttachment:
    """Dataflow's answer to a trainer that attaches."""

    run: str
    weights_address: str
    acknowledged_steps: int
    """Acknowledged steps of this policy."""
    weights_key: bytes = b""
    """Public key as in `JoinResult.weights_key`."""
