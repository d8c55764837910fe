"""Simulated nodes, from order to end, as a table with one column per value."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.contract.ids import PoolId
from astraflow.scaling.measurement.lifecycle import LAST_PENDING, Phase, PhaseEvent, next_phase
from astraflow.scaling.measurement.signals import LaunchSignals
from astraflow.scaling.simulation.scenario import PoolScenario

NOTICE_S = 120.0
"""Time from a preemption notice to the end of the node. Seconds."""

_NEVER = float("inf")
_SHORTEST_S = 1e-9
_READY, _DRAINING, _GONE = int(Phase.READY), int(Phase.DRAINING), int(Phase.GONE)
"""Phases as integers, because comparing columns with enumeration members is slow."""

_COLUMNS = {
    "pool": np.int64,
    "kind": np.int64,
    "phase": np.int64,
    "ordered_at": float,
    "changes_at": float,
    "ready_at": float,
    "preempted_at": float,
    "speed": float,
    "work_share": float,
    "fill_s": float,
    "groups": float,
    "busy_s": float,
    "reported_groups": float,
    "reported_busy_s": float,
    "reported_at": float,
    "fails": bool,
    "is_silent": bool,
}


@dataclass(slots=True)
class Launches:
    """Launch results of a pool."""

    delays_s: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    failures: int = 0
    failed_at: float | None = None

    def signals(self) -> LaunchSignals:
        """Returns the launch results as signals of the sizer."""
        return LaunchSignals(delays_s=tuple(self.delays_s), failures=self.failures, failed_at=self.failed_at)


class SimulatedNodes:
    """Table of simulated nodes in the order of their launches; `drop_terminated` removes rows of terminated nodes.

    `changes_at` is the time at which a node's phase changes next: it starts (or fails), or has drained. `work_share` is
    the share of time in which it does not wait, as for weights over a slow link. Per busy second, such a node works at
    full rate. `fill_s` is the time in which the groups that a node finishes rise from none to its full rate: a node
    that starts has no group in work.
    """

    def __init__(
        self, pools: Sequence[tuple[PoolId, PoolScenario]], rng: np.random.Generator, *, is_cold_start: bool = False
    ) -> None:
        self.pools = list(pools)
        self._is_cold_start = is_cold_start
        self.launches = [Launches() for _ in self.pools]
        self.is_out_of_capacity = [False for _ in self.pools]
        """The provider refuses launches to the pool. [pool]"""
        self.ids: list[str] = []
        self.column: dict[str, NDArray[Any]] = {name: np.zeros(0, kind) for name, kind in _COLUMNS.items()}
        self.factors = np.ones(len(self.pools))
        """Factor on the rate of the pool's nodes. [pool]"""
        self.lost = 0
        self._rng = rng
        self._ordered = [0 for _ in self.pools]
        kinds = [len(config.speeds) for _, config in self.pools]
        self._first_kind = [sum(kinds[:pool]) for pool in range(len(kinds))]
        for pool, (_, config) in enumerate(self.pools):
            for _ in range(config.nodes):
                self._add(pool, now=0.0, delay_s=0.0, is_ready=True)
        self._schedule()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.column[name]

    @property
    def is_ready(self) -> NDArray[np.bool_]:
        """The node takes tasks. [node]"""
        return np.asarray(self.column["phase"] == _READY)

    @property
    def is_paid(self) -> NDArray[np.bool_]:
        """The node costs money, from order to end. [node]"""
        return np.asarray(self.column["phase"] != _GONE)

    def present(self, pool: int) -> int:
        """Returns the number of ready and pending nodes."""
        phase, pool_column = self.column["phase"], self.column["pool"]
        return int(np.count_nonzero((pool_column == pool) & (phase <= _READY)))

    def launch(self, pool: int, *, now: float) -> bool:
        """Launches a node; returns False when the provider refuses."""
        if self.is_out_of_capacity[pool]:
            self.launches[pool].failures += 1
            self.launches[pool].failed_at = now
            return False
        config = self.pools[pool][1]
        delay_s = config.launch_delay_s * float(np.exp(self._rng.normal(0.0, config.launch_spread)))
        self._add(pool, now=now, delay_s=delay_s, is_ready=False)
        self._schedule()
        return True

    def drain(self, row: int, *, now: float) -> None:
        """Retires a node: a ready node finishes its work, a pending node is cancelled."""
        phase = next_phase(Phase(int(self.column["phase"][row])), PhaseEvent.DRAIN_REQUESTED)
        if phase is Phase.DRAINING and self.column["phase"][row] != _DRAINING:
            self.column["changes_at"][row] = now + self.pools[int(self.column["pool"][row])][1].drain_s
        self.column["phase"][row] = phase
        self._schedule()

    def inject_fault(self, rows: NDArray[np.int64]) -> None:
        """Ends nodes at once and counts them as lost."""
        self.end(rows)
        self.lost += len(rows)

    def end(self, rows: NDArray[np.int64]) -> None:
        """Ends nodes at once."""
        self.column["phase"][rows] = Phase.GONE
        self._schedule()

    def fail_launch_at(self, node: str, *, at: float) -> None:
        """Makes the launch of a pending node fail at a time."""
        row = self.ids.index(node)
        self.column["fails"][row] = True
        self.column["changes_at"][row] = at
        self._schedule()

    def advance(self, now: float) -> None:
        """Applies all phase changes up to `now`."""
        if now < self._next_change:
            return
        column = self.column
        for row in np.flatnonzero((column["preempted_at"] - NOTICE_S <= now) & (column["phase"] < _DRAINING)):
            self._preempt(int(row), now=now)
        for row in np.flatnonzero((column["changes_at"] <= now) & (column["phase"] != _GONE)):
            self._change(int(row))
        self._schedule()

    def work(self, busy: float, noise: NDArray[np.float64], seconds: float, *, now: float) -> int:
        """Lets ready nodes work for `seconds` from `now`; returns the finished groups. busy: share of their slots in
        use."""
        column = self.column
        rows = np.flatnonzero(column["phase"] == _READY)
        if not rows.size:
            return 0
        rates = column["speed"][rows] * noise[rows]
        if len(self.factors):
            rates = rates * self.factors[column["pool"][rows]]
        busy_s = busy * seconds * column["work_share"][rows]
        age_s = now + seconds / 2 - column["ready_at"][rows]
        filled = np.clip(age_s / np.maximum(column["fill_s"][rows], _SHORTEST_S), 0.0, 1.0)
        done = self._rng.poisson(rates * busy_s * filled)
        column["groups"][rows] += done
        column["busy_s"][rows] += busy_s
        return int(done.sum())

    def report(self, now: float) -> None:
        """Updates the reported values of nodes that are not silent."""
        column = self.column
        is_reporting = ~column["is_silent"]
        for reported, actual in (("reported_groups", "groups"), ("reported_busy_s", "busy_s")):
            column[reported][is_reporting] = column[actual][is_reporting]
        column["reported_at"][is_reporting] = now

    def drop_terminated(self) -> None:
        """Removes the rows of terminated nodes."""
        alive = np.flatnonzero(self.column["phase"] != _GONE)
        if len(alive) < len(self.ids):
            self.ids = [self.ids[row] for row in alive]
            self.column = {name: values[alive] for name, values in self.column.items()}

    def _add(self, pool: int, *, now: float, delay_s: float, is_ready: bool) -> None:
        name, config = self.pools[pool]
        number = self._ordered[pool]
        self._ordered[pool] += 1
        speed = config.groups_per_s * config.speeds[number % len(config.speeds)]
        speed *= max(0.2, 1 + config.speed_spread * float(self._rng.normal()))
        fails = not is_ready and float(self._rng.random()) < config.launch_failures
        life_s = float(self._rng.exponential(config.mean_life_h * 3600)) if config.mean_life_h else _NEVER
        row = {
            "pool": pool,
            "kind": self._first_kind[pool] + number % len(config.speeds),
            "phase": Phase.READY if is_ready else Phase.REQUESTED,
            "ordered_at": now,
            "changes_at": _NEVER if is_ready else now + delay_s,
            "ready_at": now,
            "preempted_at": now + delay_s + max(life_s, NOTICE_S),
            "speed": speed,
            "work_share": 1.0,
            "fill_s": 2 * config.slots / speed if self._is_cold_start else 0.0,
            "reported_at": now,
            "fails": fails,
        }
        self.ids.append(f"{name}-{number}")
        self.column = {
            name: np.append(values, np.array([row.get(name, 0)], values.dtype)) for name, values in self.column.items()
        }

    def _preempt(self, row: int, *, now: float) -> None:
        """Gives a node a preemption notice: it takes no more tasks and ends after the notice period."""
        phase = next_phase(Phase(int(self.column["phase"][row])), PhaseEvent.DRAIN_REQUESTED)
        self.column["phase"][row] = phase
        self.column["changes_at"][row] = min(self.column["preempted_at"][row], now + NOTICE_S)
        pool = int(self.column["pool"][row])
        self.lost += 1
        if phase is Phase.GONE:
            self.launches[pool].failed_at = now

    def _change(self, row: int) -> None:
        column, pool = self.column, int(self.column["pool"][row])
        phase, at = Phase(int(column["phase"][row])), float(column["changes_at"][row])
        launches = self.launches[pool]
        if phase <= LAST_PENDING and not column["fails"][row]:
            column["phase"][row] = next_phase(phase, PhaseEvent.BECAME_READY)
            column["ready_at"][row] = column["reported_at"][row] = at
            column["changes_at"][row] = _NEVER
            launches.delays_s.append(at - float(column["ordered_at"][row]))
            launches.failures = 0
            return
        if phase <= LAST_PENDING:
            launches.failures += 1
            launches.failed_at = at
        column["phase"][row] = next_phase(phase, PhaseEvent.ENDED)

    def _schedule(self) -> None:
        """Sets the time of the next phase change."""
        column = self.column
        alive = column["phase"] < _GONE
        notices = column["preempted_at"][column["phase"] < _DRAINING] - NOTICE_S
        self._next_change = min([*column["changes_at"][alive].tolist(), *notices.tolist()], default=_NEVER)
