"""A recorded run under other bounds and options: what would have been advised, and what it would have cost.

Each report carries what the sizer measured: demand from compute times, node rates from busy times. Neither depends on
how many nodes there were, so both hold for pools of any size, and the rule is played through on them. Nodes come up
after the pool's launch delay; a wait is what capacity below the demand explains, without the buffer that would hide a
short one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from astraflow.contract.advice import PoolAdvice, WhatIfAnswer
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.reports import PoolReport, Report
from astraflow.scaling.lifecycle import Phase
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.signals import NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.sizer import decide
from astraflow.scaling.state import SizerState

GAP_S = 300.0
"""Between two reports that are farther apart nobody was running."""

_MEASURED = ("compute_s", "groups_per_step", "produced_per_usable")


@dataclass(slots=True)
class _Nodes:
    """Nodes of one pool that would have been there, by when they come up."""

    rate: float = 0.0
    price: float = 0.0
    delay_s: float = 300.0
    up_at: list[float] = field(default_factory=list)
    ordered_at: list[float] = field(default_factory=list)

    def follow(self, target: int, *, at: float) -> None:
        """Order what is missing, retire the youngest of what is too much."""
        missing = target - len(self.up_at)
        if missing > 0:
            self.up_at += [at + self.delay_s] * missing
            self.ordered_at += [at] * missing
        else:
            del self.up_at[target:], self.ordered_at[target:]


def changed_spec(spec: Spec, *, options: Mapping[str, object], pools: Mapping[str, object]) -> Spec:
    """The same with differences. Raises: InvalidInput for what cannot be."""
    changed = SizerOptions.parse({**spec.options.model_dump(), **options}, where="options")
    known = dict(spec.pools)
    for name, given in pools.items():
        if not isinstance(given, Mapping):
            raise InvalidInput(f"pools.{name}: found {given!r}; a pool's options are a table, as in {{'max_nodes': 8}}")
        base = known[PoolId(name)].model_dump() if name in known else {}
        known[PoolId(name)] = PoolOptions.parse({**base, **given}, where=f"pools.{name}")
    return Spec(options=changed, pools=known)


def replayed(reports: Iterable[Report], spec: Spec) -> WhatIfAnswer:
    """Play the rule over reports, oldest first. Raises: InvalidInput when none has measured demand."""
    play = _Replay(spec)
    for report in reports:
        if any(_is_measured(advice) for advice in report.advice):
            play.add(report)
    return play.answer()


class _Replay:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._state = SizerState()
        self._pools: dict[PoolId, _Nodes] = {}
        self._advice: list[PoolAdvice] = []
        self._latest: tuple[PoolAdvice, ...] = ()
        self._first: Report | None = None
        self._last: Report | None = None
        self._tick_at = float("-inf")
        self._reports = 0
        self._hours: dict[str, float] = {}
        self._recorded: dict[str, float] = {}
        self._dollars = self._recorded_dollars = 0.0
        self._waited_s = self._recorded_waited_s = self._passed_s = 0.0

    def add(self, report: Report) -> None:
        self._reports += 1
        self._first = self._first or report
        for advice in report.advice:
            self._take(advice, report)
        self._spend(report)
        if report.at - self._tick_at >= self._spec.tick_s - 1.0:
            self._tick_at = report.at
            self._decide(report)
        self._last = report

    def answer(self) -> WhatIfAnswer:
        if self._first is None or self._last is None:
            raise InvalidInput(
                "no report has measured demand: let the run make a few trainer steps, and ask again after a minute"
            )
        moved = {id(one) for one in self._advice}
        return WhatIfAnswer(
            advice=(*self._advice, *(one for one in self._latest if id(one) not in moved)),
            reports=self._reports,
            began_at=self._first.at,
            ended_at=self._last.at,
            node_hours=self._hours,
            recorded_node_hours=self._recorded,
            dollars=self._dollars,
            recorded_dollars=self._recorded_dollars,
            wait=self._waited_s / self._passed_s if self._passed_s else 0.0,
            recorded_wait=self._recorded_waited_s / self._passed_s if self._passed_s else 0.0,
        )

    def _take(self, advice: PoolAdvice, report: Report) -> None:
        """What another node of the pool does and costs now; at first the pool is as it was."""
        is_new = advice.pool not in self._pools
        options = self._spec.pool(advice.pool)
        nodes = self._pools.setdefault(advice.pool, _Nodes(delay_s=options.launch_delay_s))
        nodes.rate = advice.inputs.get("node_groups_per_s", nodes.rate)
        nodes.price = options.price_per_hour or advice.inputs.get("price_per_hour", 0.0)
        if is_new:
            nodes.follow(_ready(report, advice.pool), at=report.at - nodes.delay_s)

    def _spend(self, report: Report) -> None:
        """From the report before to this one."""
        before = self._last
        if before is None or not 0 < report.at - before.at <= GAP_S:
            return
        seconds = report.at - before.at
        self._passed_s += seconds
        need = _need(before)
        held = recorded = 0.0
        for name, nodes in self._pools.items():
            paid, was = len(nodes.up_at), _paid(before, name)
            held += nodes.rate * sum(1 for up_at in nodes.up_at if up_at <= before.at)
            recorded += nodes.rate * _ready(before, name)
            self._hours[name] = self._hours.get(name, 0.0) + paid * seconds / 3600
            self._recorded[name] = self._recorded.get(name, 0.0) + was * seconds / 3600
            self._dollars += paid * nodes.price * seconds / 3600
            self._recorded_dollars += was * nodes.price * seconds / 3600
        self._waited_s += seconds * max(0.0, 1 - held / need)
        self._recorded_waited_s += seconds * max(0.0, 1 - recorded / need)

    def _decide(self, report: Report) -> None:
        verdict = decide(self._signals(report), self._spec, self._state)
        before = self._state.targets
        self._state = verdict.state
        self._latest = tuple(replace(one, victims=()) for one in verdict.advice)  # nodes that never were have no names
        for advice in self._latest:
            nodes = self._pools.setdefault(advice.pool, _Nodes(delay_s=self._spec.pool(advice.pool).launch_delay_s))
            nodes.follow(advice.target, at=report.at)
            if before.get(advice.pool, advice.target) != advice.target:
                self._advice.append(advice)

    def _signals(self, report: Report) -> Signals:
        at, options = report.at, self._spec.options
        names = sorted(self._pools)
        rows = [(index, row) for index, name in enumerate(names) for row in range(len(self._pools[name].up_at))]
        up_at = np.array([self._pools[names[index]].up_at[row] for index, row in rows])
        ordered_at = np.array([self._pools[names[index]].ordered_at[row] for index, row in rows])
        rates = np.array([self._pools[names[index]].rate for index, _ in rows])
        is_up = up_at <= at
        busy_long_s = np.where(is_up, options.window_long_s, 0.0)
        busy_short_s = np.where(is_up, options.window_short_s, 0.0)
        return Signals(
            at=at,
            kinds=tuple(NodeKind(pool=name, price_per_hour=self._pools[name].price) for name in names),
            nodes=NodeTable(
                ids=tuple(f"{names[index]}-{row}" for index, row in rows),
                kind=np.array([index for index, _ in rows], np.int64),
                phase=np.where(is_up, Phase.READY, Phase.BOOTING).astype(np.int64),
                age_s=np.where(is_up, at - up_at, at - ordered_at),
                silent_s=np.zeros(len(rows)),
                groups_long=rates * busy_long_s,
                busy_long_s=busy_long_s,
                groups_short=rates * busy_short_s,
                busy_short_s=busy_short_s,
            ),
            streams=(self._stream(report, is_up, rates),),
        )

    def _stream(self, report: Report, is_up: np.ndarray, rates: np.ndarray) -> StreamSignals:
        inputs = _inputs(report)
        wait = max(0.0, 1 - float(rates[is_up].sum()) / _need(report)) if len(rates) else 1.0
        return StreamSignals(
            policy=report.streams[0].policy if report.streams else PolicyId("policy"),
            compute_s=(inputs["compute_s"],) * 6,
            groups_per_step=inputs["groups_per_step"],
            produced_per_usable=inputs["produced_per_usable"],
            wait_300_s=wait,
            wait_600_s=wait,
            step_age_s=0.0,
            steps=sum(stream.steps for stream in report.streams),
            wait_of_versions=wait,
        )


def _is_measured(advice: PoolAdvice) -> bool:
    return all(advice.inputs.get(name, 0.0) > 0 for name in _MEASURED)


def _inputs(report: Report) -> Mapping[str, float]:
    return next(advice.inputs for advice in report.advice if _is_measured(advice))


def _need(report: Report) -> float:
    """Groups a second, as measured."""
    inputs = _inputs(report)
    return inputs["groups_per_step"] / inputs["compute_s"] * max(1.0, inputs["produced_per_usable"])


def _pool(report: Report, name: PoolId) -> PoolReport | None:
    return next((pool for pool in report.pools if pool.id == name), None)


def _ready(report: Report, name: PoolId) -> int:
    pool = _pool(report, name)
    return pool.ready if pool else 0


def _paid(report: Report, name: PoolId) -> int:
    pool = _pool(report, name)
    return pool.ready + pool.joining + pool.draining if pool else 0
