"""Batches that a trainer pulls, and its reports about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.trajectories import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory in a batch, with its origin."""

    group: GroupId
    task: TaskId
    node: NodeId
    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows for one training step. Rows of a group are adjacent."""

    id: BatchId
    policy: PolicyId
    version: Version
    """Trainer's version when the batch was assembled. Every row began at most the staleness bound before it."""
    is_redelivered: bool
    rows: tuple[Row, ...]


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
