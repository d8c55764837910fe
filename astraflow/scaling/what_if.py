"""What-if analysis of a recorded run: recommendations and costs under other bounds and options.

Each report carries the sizer's measurements: demand from compute times, node rates from busy times. Neither depends on
the number of nodes, so both apply to pools of any size, and the rule is replayed on them. Nodes start after the pool's
launch delay. Waits follow from capacity below the demand, without the buffer that would hide a short shortage.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.recommendations import PoolRecommendation, WhatIfAnswer
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.reports.report import PoolReport, Report
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.signals import NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState

MAX_REPORT_GAP_S = 300.0
"""Gap between reports above which the run counts as stopped. Seconds."""

_MEASURED = ("compute_s", "groups_per_step", "produced_per_usable")


@dataclass(slots=True)
class _HypotheticalNodes:
    """Simulated nodes of a pool, by the time at which they are ready."""

    rate: float = 0.0
    """Groups a second of one node."""
    price: float = 0.0
    """US dollars an hour of one node."""
    delay_s: float = 300.0
    """Launch delay. Seconds."""
    up_at: list[float] = field(default_factory=list)
    ordered_at: list[float] = field(default_factory=list)

    def resize(self, target: int, *, at: float) -> None:
        """Orders missing nodes, or retires the youngest surplus nodes."""
        missing = target - len(self.up_at)
        if missing > 0:
            self.up_at += [at + self.delay_s] * missing
            self.ordered_at += [at] * missing
        else:
            del self.up_at[target:], self.ordered_at[target:]


def changed_spec(spec: Spec, *, options: Mapping[str, object], pools: Mapping[str, object]) -> Spec:
    """Returns the spec with changed options. Raises: InvalidInput for invalid options."""
    changed = SizerOptions.parse({**spec.options.model_dump(), **options}, where="options")
    all_pools = dict(spec.pools)
    for name, changed_options in pools.items():
        if not isinstance(changed_options, Mapping):
            raise InvalidInput(
                f"cannot read pools.{name}: {changed_options!r} is not a table; write one, as in {{'max_nodes': 8}}",
                code="scaling.pool_options_not_table",
            )
        configured = all_pools[PoolId(name)].model_dump() if name in all_pools else {}
        all_pools[PoolId(name)] = PoolOptions.parse({**configured, **changed_options}, where=f"pools.{name}")
    return Spec(options=changed, pools=all_pools)


def replay(reports: Iterable[Report], spec: Spec) -> WhatIfAnswer:
    """Replays the rule over reports, oldest first. Raises: InvalidInput when no report has measured demand."""
    run = _WhatIfRun(spec)
    for report in reports:
        if any(_is_measured(recommendation) for recommendation in report.recommendations):
            run.add(report)
    return run.answer()


class _WhatIfRun:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._state = SizerState()
        self._pools: dict[PoolId, _HypotheticalNodes] = {}
        self._target_changes: list[PoolRecommendation] = []
        self._latest: tuple[PoolRecommendation, ...] = ()
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
        for recommendation in report.recommendations:
            self._update_pool(recommendation, report)
        self._add_costs(report)
        if report.at - self._tick_at >= self._spec.tick_s - 1.0:
            self._tick_at = report.at
            self._decide(report)
        self._last = report

    def answer(self) -> WhatIfAnswer:
        if self._first is None or self._last is None:
            raise InvalidInput(
                "cannot replay the run: no report has measured demand; retry a minute after the first trainer steps",
                code="scaling.demand_not_measured",
            )
        changed_ids = {id(recommendation) for recommendation in self._target_changes}
        return WhatIfAnswer(
            recommendations=(
                *self._target_changes,
                *(recommendation for recommendation in self._latest if id(recommendation) not in changed_ids),
            ),
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

    def _update_pool(self, recommendation: PoolRecommendation, report: Report) -> None:
        """Updates rate and price of the pool's nodes; a new pool starts with the recorded nodes."""
        is_new = recommendation.pool not in self._pools
        options = self._spec.pool(recommendation.pool)
        nodes = self._pools.setdefault(recommendation.pool, _HypotheticalNodes(delay_s=options.launch_delay_s))
        nodes.rate = recommendation.inputs.get("node_groups_per_s", nodes.rate)
        nodes.price = options.price_per_hour or recommendation.inputs.get("price_per_hour", 0.0)
        if is_new:
            nodes.resize(_ready(report, recommendation.pool), at=report.at - nodes.delay_s)

    def _add_costs(self, report: Report) -> None:
        """Adds costs and waits from the previous report to this one."""
        before = self._last
        if before is None or not 0 < report.at - before.at <= MAX_REPORT_GAP_S:
            return
        seconds = report.at - before.at
        self._passed_s += seconds
        demand = _demand(before)
        simulated_rate = recorded_rate = 0.0
        for name, nodes in self._pools.items():
            simulated_nodes, recorded_nodes = len(nodes.up_at), _paid(before, name)
            simulated_rate += nodes.rate * sum(1 for up_at in nodes.up_at if up_at <= before.at)
            recorded_rate += nodes.rate * _ready(before, name)
            self._hours[name] = self._hours.get(name, 0.0) + simulated_nodes * seconds / 3600
            self._recorded[name] = self._recorded.get(name, 0.0) + recorded_nodes * seconds / 3600
            self._dollars += simulated_nodes * nodes.price * seconds / 3600
            self._recorded_dollars += recorded_nodes * nodes.price * seconds / 3600
        self._waited_s += seconds * max(0.0, 1 - simulated_rate / demand)
        self._recorded_waited_s += seconds * max(0.0, 1 - recorded_rate / demand)

    def _decide(self, report: Report) -> None:
        result = decide(self._signals(report), self._spec, self._state)
        targets_before = self._state.targets
        self._state = result.state
        self._latest = tuple(
            replace(recommendation, victims=()) for recommendation in result.recommendations
        )  # simulated nodes have no names
        for change in self._latest:
            nodes = self._pools.setdefault(
                change.pool, _HypotheticalNodes(delay_s=self._spec.pool(change.pool).launch_delay_s)
            )
            nodes.resize(change.target, at=report.at)
            if targets_before.get(change.pool, change.target) != change.target:
                self._target_changes.append(change)

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
        wait = max(0.0, 1 - float(rates[is_up].sum()) / _demand(report)) if len(rates) else 1.0
        return StreamSignals(
            policy=report.streams[0].policy if report.streams else PolicyId("policy"),
            compute_s=(inputs["compute_s"],) * 6,
            groups_per_step=inputs["groups_per_step"],
            produced_per_usable=inputs["produced_per_usable"],
            wait_share_300_s=wait,
            wait_share_600_s=wait,
            step_age_s=0.0,
            steps=sum(stream.training.steps for stream in report.streams),
            wait_share_of_steps=wait,
        )


def _is_measured(recommendation: PoolRecommendation) -> bool:
    return all(recommendation.inputs.get(name, 0.0) > 0 for name in _MEASURED)


def _inputs(report: Report) -> Mapping[str, float]:
    return next(recommendation.inputs for recommendation in report.recommendations if _is_measured(recommendation))


def _demand(report: Report) -> float:
    """Returns the measured demand. Groups a second."""
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
