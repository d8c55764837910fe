"""What is measured, as the sizer takes it: nodes as columns, so that a thousand of them are read at once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from astraflow.contract.ids import PolicyId, PoolId
from astraflow.scaling.lifecycle import LAST_PENDING, Phase

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes that cost and do the same: one hardware type in one pool."""

    pool: PoolId
    hardware: str = ""
    price_per_hour: float = 0.0
    """Dollars; 0 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """Nodes, a row each; all columns are [node]. What cannot be (negative, not a number) is taken as not measured."""

    ids: tuple[str, ...] = ()
    kind: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index into `Signals.kinds`."""
    phase: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Values of `Phase`."""
    age_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Since it was ordered for one that is on its way, since it was ready for all others."""
    silent_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Since its last beat; 0 for one that is on its way."""
    groups_long: Floats = field(default_factory=lambda: np.zeros(0))
    """Groups finished over the long window."""
    busy_long_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Seconds of full use over the long window: half of its slots used is half a second a second."""
    groups_short: Floats = field(default_factory=lambda: np.zeros(0))
    busy_short_s: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def is_ready(self) -> Bools:
        """Takes tasks. [node]"""
        return np.asarray(self.phase == Phase.READY)

    @property
    def is_pending(self) -> Bools:
        """On its way. [node]"""
        return np.asarray(self.phase <= LAST_PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSignals:
    """One policy's trainer."""

    policy: PolicyId
    compute_s: tuple[float, ...]
    """Of its latest steps, without waiting, newest last; at most ten."""
    groups_per_step: float
    """Fresh groups in a step."""
    produced_per_usable: float
    """Groups that nodes finish for each one that this trainer can use, over 30 minutes."""
    wait_300_s: float
    """Share of the last 300 s for which it waited for a batch."""
    wait_600_s: float
    step_age_s: float
    """Since its last step ended; since it was first seen before that."""
    steps: int = 0
    """Steps it has made in all."""
    wait_of_versions: float = 0.0
    """Share of the time of its latest ten steps for which it waited."""
    consumed_over_entered: float = 1.0
    """Groups trained over groups that entered the buffer, over the same steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSignals:
    """What a staleness gate kept from the nodes over the latest steps, while a trainer waited."""

    policy: PolicyId
    """Whose gate it is: of the policy whose trainer waited longest, or of another one that it shares a flow with."""
    waiting: PolicyId
    """Whose trainer waited longest."""
    closed: float
    """Share of that time for which it let nothing out."""
    wait: float
    """Share of that time for which that trainer waited."""
    idle_slots: float
    """Of all nodes, empty on average though their nodes asked for work."""
    slots: float
    """Of all nodes that took work or asked for it, on average."""
    group_s: float
    """Mean time from a group's issue to its last result; 0 when none came back."""
    max_staleness: int

    @property
    def is_own(self) -> bool:
        """It is the bound of the policy itself that keeps its trainer waiting."""
        return self.policy == self.waiting

    @property
    def idle_share(self) -> float:
        """Of the slots."""
        return self.idle_slots / self.slots if self.slots > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSignals:
    """How orders of one pool went lately."""

    delays_s: tuple[float, ...] = ()
    """From order to first task, the latest twenty."""
    failures: int = 0
    """In a row, without a node that came up in between."""
    failed_at: float | None = None
    """Unix seconds of the last failure, or of the last node that the spot market took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Everything that is measured, at one tick."""

    at: float
    """Unix seconds."""
    kinds: tuple[NodeKind, ...] = ()
    nodes: NodeTable = field(default_factory=NodeTable)
    streams: tuple[StreamSignals, ...] = ()
    gate: GateSignals | None = None
    """None before two steps are measured."""
    launches: Mapping[PoolId, LaunchSignals] = field(default_factory=dict)
    paused_s: float | None = None
    """For how long nothing has been issued on somebody's word; None while it is."""
    dollars_today: float = 0.0
    """Spent since midnight UTC."""

    def digest(self) -> str:
        """A short hash: equal for equal signals."""
        launches = sorted(self.launches.items())
        rest = (self.at, self.kinds, self.streams, self.gate, launches, self.paused_s, self.dollars_today)
        made = hashlib.blake2b(repr(rest).encode(), digest_size=8)
        for one in fields(self.nodes):
            column = getattr(self.nodes, one.name)
            made.update(column.tobytes() if isinstance(column, np.ndarray) else "\n".join(column).encode())
        return made.hexdigest()
