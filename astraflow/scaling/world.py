"""Simulated nodes: ordered, started, at work, drained, lost; a column for each of their figures."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.contract.ids import PoolId
from astraflow.scaling.lifecycle import LAST_PENDING, Happening, Phase, following
from astraflow.scaling.scenario import PoolScenario
from astraflow.scaling.signals import LaunchSignals

NOTICE_S = 120.0
"""The spot market says so long before that it takes a node."""

_NEVER = float("inf")
_READY, _DRAINING, _GONE = int(Phase.READY), int(Phase.DRAINING), int(Phase.GONE)
"""As the columns hold them: asking an enumeration costs more than what is done with the answer."""

_COLUMNS = {
    "pool": np.int64,
    "kind": np.int64,
    "phase": np.int64,
    "ordered_at": float,
    "changes_at": float,
    "ready_at": float,
    "taken_at": float,
    "speed": float,
    "at_work": float,
    "groups": float,
    "busy_s": float,
    "told_groups": float,
    "told_busy_s": float,
    "heard_at": float,
    "fails": bool,
    "is_silent": bool,
}


@dataclass(slots=True)
class Launches:
    """How a pool's orders went."""

    delays_s: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    failures: int = 0
    failed_at: float | None = None

    def signals(self) -> LaunchSignals:
        """As the sizer takes them."""
        return LaunchSignals(delays_s=tuple(self.delays_s), failures=self.failures, failed_at=self.failed_at)


class World:
    """Nodes by row, in the order in which they were ordered; rows of nodes that are gone are dropped now and then.

    `changes_at` is when a node's phase changes by itself: it comes up (or fails), or has drained. `at_work` is the
    share of its time that it is not kept waiting, by a slow link for one: measured per busy second, such a node is as
    good as any.
    """

    def __init__(self, pools: Sequence[tuple[PoolId, PoolScenario]], rng: np.random.Generator) -> None:
        self.pools = list(pools)
        self.launches = [Launches() for _ in self.pools]
        self.is_dry = [False for _ in self.pools]
        """The provider refuses launches."""
        self.ids: list[str] = []
        self.column: dict[str, NDArray[Any]] = {name: np.zeros(0, kind) for name, kind in _COLUMNS.items()}
        self.factors = np.ones(len(self.pools))
        """On what nodes of a pool do."""
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
        """[node]"""
        return np.asarray(self.column["phase"] == _READY)

    @property
    def is_paid(self) -> NDArray[np.bool_]:
        """From order to end. [node]"""
        return np.asarray(self.column["phase"] != _GONE)

    def present(self, pool: int) -> int:
        """Ready or on their way."""
        phase, of = self.column["phase"], self.column["pool"]
        return int(np.count_nonzero((of == pool) & (phase <= _READY)))

    def launch(self, pool: int, *, now: float) -> bool:
        """Order a node; False when the provider refuses."""
        if self.is_dry[pool]:
            self.launches[pool].failures += 1
            self.launches[pool].failed_at = now
            return False
        config = self.pools[pool][1]
        delay_s = config.launch_delay_s * float(np.exp(self._rng.normal(0.0, config.launch_spread)))
        self._add(pool, now=now, delay_s=delay_s, is_ready=False)
        self._schedule()
        return True

    def drain(self, row: int, *, now: float) -> None:
        """Retire a node: it finishes its work; one on its way is cancelled."""
        phase = following(Phase(int(self.column["phase"][row])), Happening.TO_DRAIN)
        if phase is Phase.DRAINING and self.column["phase"][row] != _DRAINING:
            self.column["changes_at"][row] = now + self.pools[int(self.column["pool"][row])][1].drain_s
        self.column["phase"][row] = phase
        self._schedule()

    def lose(self, rows: NDArray[np.int64]) -> None:
        """Gone at once."""
        self.end(rows)
        self.lost += len(rows)

    def end(self, rows: NDArray[np.int64]) -> None:
        """Gone at once, because somebody wanted it."""
        self.column["phase"][rows] = Phase.GONE
        self._schedule()

    def doom(self, node: str, *, at: float) -> None:
        """Have a node that is on its way fail."""
        row = self.ids.index(node)
        self.column["fails"][row] = True
        self.column["changes_at"][row] = at
        self._schedule()

    def advance(self, now: float) -> None:
        """What time brings until `now`."""
        if now < self._next_change:
            return
        column = self.column
        for row in np.flatnonzero((column["taken_at"] - NOTICE_S <= now) & (column["phase"] < _DRAINING)):
            self._take_away(int(row), now=now)
        for row in np.flatnonzero((column["changes_at"] <= now) & (column["phase"] != _GONE)):
            self._change(int(row))
        self._schedule()

    def work(self, busy: float, noise: NDArray[np.float64], seconds: float) -> int:
        """Nodes that are ready work, `busy` of their slots used; returns the groups that they finished."""
        column = self.column
        rows = np.flatnonzero(column["phase"] == _READY)
        if not rows.size:
            return 0
        rates = column["speed"][rows] * noise[rows]
        if len(self.factors):
            rates = rates * self.factors[column["pool"][rows]]
        busy_s = busy * seconds * column["at_work"][rows]
        done = self._rng.poisson(rates * busy_s)
        column["groups"][rows] += done
        column["busy_s"][rows] += busy_s
        return int(done.sum())

    def tell(self, now: float) -> None:
        """Nodes that are not silent report."""
        column = self.column
        heard = ~column["is_silent"]
        for told, known in (("told_groups", "groups"), ("told_busy_s", "busy_s")):
            column[told][heard] = column[known][heard]
        column["heard_at"][heard] = now

    def forget_gone(self) -> None:
        """Drop the rows of nodes that are gone."""
        kept = np.flatnonzero(self.column["phase"] != _GONE)
        if len(kept) < len(self.ids):
            self.ids = [self.ids[row] for row in kept]
            self.column = {name: values[kept] for name, values in self.column.items()}

    def _add(self, pool: int, *, now: float, delay_s: float, is_ready: bool) -> None:
        name, config = self.pools[pool]
        number = self._ordered[pool]
        self._ordered[pool] += 1
        speed = config.groups_per_s * config.speeds[number % len(config.speeds)]
        speed *= max(0.2, 1 + config.speed_spread * float(self._rng.normal()))
        fails = not is_ready and float(self._rng.random()) < config.launch_failures
        life_s = float(self._rng.exponential(config.life_h * 3600)) if config.life_h else _NEVER
        row = {
            "pool": pool,
            "kind": self._first_kind[pool] + number % len(config.speeds),
            "phase": Phase.READY if is_ready else Phase.REQUESTED,
            "ordered_at": now,
            "changes_at": _NEVER if is_ready else now + delay_s,
            "ready_at": now,
            "taken_at": now + delay_s + max(life_s, NOTICE_S),
            "speed": speed,
            "at_work": 1.0,
            "heard_at": now,
            "fails": fails,
        }
        self.ids.append(f"{name}-{number}")
        self.column = {
            name: np.append(values, np.array([row.get(name, 0)], values.dtype)) for name, values in self.column.items()
        }

    def _take_away(self, row: int, *, now: float) -> None:
        """A notice: it takes nothing more, and is gone when its time has come."""
        phase = following(Phase(int(self.column["phase"][row])), Happening.TO_DRAIN)
        self.column["phase"][row] = phase
        self.column["changes_at"][row] = min(self.column["taken_at"][row], now + NOTICE_S)
        pool = int(self.column["pool"][row])
        self.lost += 1
        if phase is Phase.GONE:
            self.launches[pool].failed_at = now

    def _change(self, row: int) -> None:
        column, pool = self.column, int(self.column["pool"][row])
        phase, at = Phase(int(column["phase"][row])), float(column["changes_at"][row])
        launches = self.launches[pool]
        if phase <= LAST_PENDING and not column["fails"][row]:
            column["phase"][row] = following(phase, Happening.CAME_UP)
            column["ready_at"][row] = column["heard_at"][row] = at
            column["changes_at"][row] = _NEVER
            launches.delays_s.append(at - float(column["ordered_at"][row]))
            launches.failures = 0
            return
        if phase <= LAST_PENDING:
            launches.failures += 1
            launches.failed_at = at
        column["phase"][row] = following(phase, Happening.ENDED)

    def _schedule(self) -> None:
        """When anything changes by itself next."""
        column = self.column
        alive = column["phase"] < _GONE
        notices = column["taken_at"][column["phase"] < _DRAINING] - NOTICE_S
        self._next_change = min([*column["changes_at"][alive].tolist(), *notices.tolist()], default=_NEVER)
