"""What a trainer pulls and what it says about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.trajectories import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory in a batch, with where it came from."""

    group: GroupId
    task: TaskId
    node: NodeId
    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a trainer learns from in one step. Rows of a group stand together."""

    id: BatchId
    policy: PolicyId
    version: Version
    """The version the trainer had when the batch was put together: no row was begun more than the bound before it."""
    is_redelivered: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A trainer acknowledges a batch: from now on it is trained, durably, and never served again."""

    batch: BatchId
    policy: PolicyId
    version: Version
    """The version the step made."""
    wait_s: float
    """Blocked in `PullBatch`."""
    compute_s: float
    publish_s: float
    """Time this step was held up by weights (copying out, or waiting for the previous publish)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """loss, reward_mean, grad_norm, clip_fraction, entropy, logprob_gap, ... natural units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerWelcome:
    """Dataflow's answer to a trainer that attaches."""

    run: str
    weights_address: str
    acknowledged_steps: int
    """Steps dataflow has seen acknowledged for this policy."""
    weights_key: bytes = b""
    """As in `Welcome`."""
