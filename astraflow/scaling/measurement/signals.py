"""Measurements that the sizer reads: nodes as columns, for vectorized computation."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from astraflow.contract.ids import PolicyId, PoolId
from astraflow.scaling.measurement.lifecycle import LAST_PENDING, Phase

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Kind of node: one hardware type at one price in one pool."""

    pool: PoolId
    hardware: str = ""
    price_per_hour: float = 0.0
    """Dollars; 0 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """Table with one row per node; all columns are [node]. Impossible values (negative, NaN) count as not measured."""

    ids: tuple[str, ...] = ()
    kind: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index into `Signals.kinds`."""
    phase: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Values of `Phase`."""
    age_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Seconds since the order for pending nodes, since readiness for others."""
    silent_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Seconds since the last heartbeat; 0 for pending nodes."""
    groups_long: Floats = field(default_factory=lambda: np.zeros(0))
    """Groups finished over the long window."""
    busy_long_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Seconds of full use over the long window; half of the slots in use for a second count as 0.5 s."""
    groups_short: Floats = field(default_factory=lambda: np.zeros(0))
    busy_short_s: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def is_ready(self) -> Bools:
        """The node takes tasks. [node]"""
        return np.asarray(self.phase == Phase.READY)

    @property
    def is_pending(self) -> Bools:
        """The node is starting. [node]"""
        return np.asarray(self.phase <= LAST_PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSignals:
    """Measurements of one policy's trainer."""

    policy: PolicyId
    compute_s: tuple[float, ...]
    """Compute times of the latest steps without waits, newest last; at most ten."""
    groups_per_step: float
    """New groups that a step consumes."""
    produced_per_usable: float
    """Groups that nodes finish per group that this trainer can use, over 30 minutes."""
    wait_share_300_s: float
    """Share of the last 300 s that the trainer waited for a batch."""
    wait_share_600_s: float
    """The same over 600 s."""
    step_age_s: float
    """Seconds since the last step ended; before the first step, since the trainer was first seen."""
    steps: int = 0
    """Steps completed in total."""
    wait_share_of_steps: float = 0.0
    """Share of the duration of the latest ten steps that the trainer waited."""
    consumed_per_entered: float = 1.0
    """Ratio of groups trained to groups that entered the buffer, over the same steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSignals:
    """Effect of a staleness gate on the nodes over the latest steps, while a trainer waited."""

    policy: PolicyId
    """Policy of the gate: `waiting_policy`, or a policy that shares a flow with it."""
    waiting_policy: PolicyId
    """Policy whose trainer waited longest."""
    closed_share: float
    """Share of that time that the gate was closed."""
    wait_share: float
    """Share of that time that the trainer of `waiting_policy` waited."""
    idle_slots: float
    """Mean number of slots on all nodes that were empty although their nodes requested tasks."""
    slots: float
    """Mean number of slots on all nodes that worked or requested tasks."""
    group_s: float
    """Mean seconds from a group's issue to its last result; 0 when no group returned."""
    max_staleness: int

    @property
    def is_own_gate(self) -> bool:
        """The waiting policy's own staleness bound causes the wait."""
        return self.policy == self.waiting_policy

    @property
    def idle_share(self) -> float:
        """Idle slots as a share of all slots."""
        return self.idle_slots / self.slots if self.slots > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSignals:
    """Results of a pool's recent orders."""

    delays_s: tuple[float, ...] = ()
    """Seconds from order to first task, of the latest twenty nodes."""
    failures: int = 0
    """Consecutive failed launches."""
    failed_at: float | None = None
    """Unix seconds of the last failure or spot preemption; None before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """All measurements at one tick."""

    at: float
    """Unix seconds."""
    kinds: tuple[NodeKind, ...] = ()
    nodes: NodeTable = field(default_factory=NodeTable)
    streams: tuple[StreamSignals, ...] = ()
    gate: GateSignals | None = None
    """None until two steps are measured."""
    launches: Mapping[PoolId, LaunchSignals] = field(default_factory=dict)
    partial_pools: tuple[PoolId, ...] = ()
    """Pools with nodes that serve some policies of the run only, by name."""
    paused_s: float | None = None
    """Seconds since the run was paused; None while it is not."""
    dollars_today: float = 0.0
    """Dollars spent since midnight UTC."""

    def digest(self) -> str:
        """Returns a short hash that is equal for equal signals."""
        launches = sorted(self.launches.items())
        measured = (self.at, self.kinds, self.streams, self.gate, launches, self.partial_pools)
        rest = (*measured, self.paused_s, self.dollars_today)
        hasher = hashlib.blake2b(repr(rest).encode(), digest_size=8)
        for column_field in fields(self.nodes):
            column = getattr(self.nodes, column_field.name)
            hasher.update(column.tobytes() if isinstance(column, np.ndarray) else "\n".join(column).encode())
        return hasher.hexdigest()
