"""Decisions of the sizer in small runs under every option and event, recorded in `golden_decisions.json`.

    python -m tests.scaling.golden_decisions      # writes the file again, after an intended change of the rule

Nodes and trainers are arithmetic: nodes start after a delay and work at constant rates, a trainer takes what they make.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from astraflow.contract.fleet.recommendations import FleetConstraints, Mode, PoolConstraints
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.reports.report import NodeReport, NodeState, Report, StreamReport
from astraflow.scaling.measurement.fleet_constraints import signals_with_constraints, spec_with_constraints
from astraflow.scaling.measurement.observation import Observer
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerResult, SizerState
from tests import make

FILE = Path(__file__).with_name("golden_decisions.json")
TICKS, TICK_S = 40, 30.0
CHEAP, DEAR = PoolId("cheap"), PoolId("dear")
SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
GROUP, RATE, BATCH = 4, 1 / 30, 16
"""Episodes of a group; groups a second of a node; groups of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    nodes: Mapping[PoolId, int] = field(default_factory=lambda: {DEAR: 8})
    """Nodes at the start."""
    pools: Mapping[PoolId, dict[str, Any]] = field(default_factory=lambda: {DEAR: {"price_per_hour": 2.0}})
    options: Mapping[str, Any] = field(default_factory=dict)
    policies: tuple[PolicyId, ...] = (SOLVER,)
    events: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of the run that change, by tick."""


TWO_POOLS: dict[str, Any] = {
    "nodes": {CHEAP: 3, DEAR: 6},
    "pools": {
        CHEAP: {"price_per_hour": 1.0, "is_spot": True, "launch_delay_s": 60.0},
        DEAR: {"price_per_hour": 2.5, "warm_nodes": 2, "quota": 30},
    },
}
TERMS = PoolConstraints(
    pool=DEAR,
    mode=Mode.ON,
    min_nodes=2,
    max_nodes=12,
    price_per_hour=2.0,
    launch_delay_s=90.0,
    nodes=8,
    dollars_per_hour=12.0,
    dollars_per_hour_max=20.0,
    dollars_per_day_max=100.0,
    dollars_today=82.0,
)


def _fleet(**changes: Any) -> FleetConstraints:
    return FleetConstraints(pools=(replace(TERMS, **changes),))


CASES: dict[str, Case] = {
    "demand": Case(events={12: {"step_s": 30.0}, 26: {"step_s": 120.0}}),
    "surplus": Case(nodes={DEAR: 24}, options={"sustain_down_ticks": 3}, events={24: {"lost": 9}}),
    "slow": Case(nodes={DEAR: 12}, options={"prior_groups": 3.0}, events={6: {"slow": 4}}),
    "limit": Case(pools={DEAR: {"price_per_hour": 2.0, "max_nodes": 9}}, events={5: {"slow": 2}, 12: {"step_s": 60.0}}),
    "failing": Case(**TWO_POOLS, events={8: {"step_s": 30.0, "failing": CHEAP}, 26: {"failing": None}}),
    "alone": Case(events={8: {"step_s": 30.0, "failing": DEAR}, 30: {"failing": None}}),
    "swap": Case(
        nodes={CHEAP: 2, DEAR: 8}, pools=TWO_POOLS["pools"], options={"swap_back_after_s": 240.0, "base_on_demand": 3}
    ),
    "money": Case(
        **TWO_POOLS,
        options={"max_dollars_per_hour": 24.0, "max_dollars_per_day": 40.0},
        events={5: {"step_s": 25.0}},
    ),
    "pause": Case(options={"idle_after_s": 300.0}, events={8: {"is_paused": True}, 24: {"is_paused": False}}),
    "silence": Case(nodes={DEAR: 12}, events={5: {"silent": 5}, 15: {"silent": 0}, 22: {"is_hung": True}}),
    "gate": Case(events={6: {"headroom": 0, "idle": 0.4, "step_s": 60.0}, 26: {"headroom": 9, "idle": 0.0}}),
    "baseline": Case(options={"rule": "baseline"}, events={14: {"step_s": 20.0}, 28: {"step_s": 100.0}}),
    "two policies": Case(
        policies=(SOLVER, VERIFIER), options={"cold_start_steps": 8}, events={20: {"dropped_share": 0.5}}
    ),
    "fleet": Case(
        events={
            4: {"constraints": FleetConstraints(pools=(TERMS,), dollars_per_hour_max=22.0), "step_s": 30.0},
            14: {"constraints": _fleet(dollars_per_day_max=None, is_held=True), "step_s": 150.0},
            24: {"constraints": _fleet(failures=3, mode=Mode.UP_ONLY, dollars_today=99.0), "step_s": 30.0},
            34: {"constraints": FleetConstraints(pools=(TERMS,), is_kill_switch_on=True)},
        }
    ),
}


@dataclass(slots=True)
class _Node:
    id: str
    pool: PoolId
    hardware: str
    joined_at: float
    ready_at: float
    rate: float
    done: float = 0.0
    busy_s: float = 0.0
    blocked_s: float = 0.0


@dataclass(slots=True)
class _Run:
    spec: Spec
    policies: tuple[PolicyId, ...]
    now: float = 86_400.0 * 365 - 600  # midnight after ten minutes
    nodes: list[_Node] = field(default_factory=list)
    started: int = 0
    steps: float = 0.0
    buffered: float = 20.0
    admitted: float = 0.0
    dropped: float = 0.0
    wait_s: float = 0.0
    compute_s: float = 0.0
    reported_s: tuple[float, float] = (0.0, 0.0)
    """Computed and waited until the end of the last step."""
    # Changed by events:
    step_s: float = 80.0
    slow: int = 0
    lost: int = 0
    silent: int = 0
    is_paused: bool = False
    is_hung: bool = False
    failing: PoolId | None = None
    headroom: int = 9
    idle: float = 0.0
    dropped_share: float = 0.2
    constraints: FleetConstraints | None = None

    def start(self, pool: PoolId, delay_s: float) -> None:
        """Adds a node that is ready after the delay."""
        number, self.started = self.started, self.started + 1
        rate = RATE * (1.0, 0.9, 1.1)[number % 3] * (0.7 if number % 5 == 4 else 1.0)
        hardware = "old" if number % 5 == 4 else "new"
        self.nodes.append(_Node(f"node-{number}.{number}", pool, hardware, self.now, self.now + delay_s, rate))

    def work(self) -> None:
        """Lets nodes and trainer work for a tick."""
        self.now += TICK_S
        self.nodes = self.nodes[self.lost :]
        self.lost, produced = 0, 0.0
        for row, node in enumerate(self.nodes):
            seconds = min(TICK_S, max(0.0, self.now - node.ready_at)) * (not self.is_paused)
            groups = node.rate * seconds * (1 - self.idle) * (0.2 if row < self.slow else 1.0) * (not self.is_hung)
            node.done += GROUP * groups
            node.busy_s += seconds * (1 - self.idle)
            node.blocked_s += seconds * self.idle
            produced += groups
        usable = produced * (1 - self.dropped_share)
        self.admitted, self.dropped, self.buffered = (
            self.admitted + usable,
            self.dropped + produced - usable,
            self.buffered + usable,
        )
        steps = min(TICK_S / self.step_s, self.buffered / BATCH) * (not self.is_paused)
        before, self.steps, self.buffered = self.steps, self.steps + steps, self.buffered - steps * BATCH
        self.compute_s += steps * self.step_s
        self.wait_s += (TICK_S - steps * self.step_s) * (not self.is_paused)
        if int(self.steps) > int(before):
            self.reported_s = (self.compute_s, self.wait_s)

    def report(self) -> Report:
        """Returns the state as dataflow reports it."""
        issued = int(self.admitted + self.dropped) + 12
        flow = replace(
            make.flow_report(issued=issued, dropped=int(self.dropped)),
            open=12,
            admitted=int(self.admitted),
            tasks_leased=8,
            tasks_queued=2,
            episodes={"accepted": GROUP * (issued - 3), "late": 5},
            is_paused=self.is_paused,
        )
        streams = tuple(self._stream(policy, 1.0 + number / 2) for number, policy in enumerate(self.policies))
        reports = tuple(self._node(row, node) for row, node in enumerate(self.nodes))
        return replace(make.report(*streams, flows=(flow,)), nodes=reports, at=self.now)

    def _stream(self, policy: PolicyId, slower: float) -> StreamReport:
        compute_s, wait_s = self.reported_s
        return make.stream_report(
            policy,
            steps=int(self.steps),
            batch_groups=BATCH,
            admitted=int(self.admitted),
            trained=int(self.steps) * BATCH,
            dropped={"stale": int(self.admitted / 50)},
            issue_headroom=self.headroom,
            wait_s=wait_s,
            compute_s=compute_s * slower,
            publish_s=float(int(self.steps)),
            is_waiting=self.buffered < 1,
        )

    def _node(self, row: int, node: _Node) -> NodeReport:
        state = NodeState.READY if self.now >= node.ready_at else NodeState.JOINING
        counters = {"episodes_done": node.done, "busy_s": node.busy_s, "blocked_s": node.blocked_s}
        plain = make.node_report(node.id, state=state, counters=counters)
        facts = replace(plain.facts, pool=node.pool, hardware=node.hardware, capacity=8, price_per_hour=1.5)
        return replace(
            plain, facts=facts, joined_at=node.joined_at, heartbeat_age_s=200.0 if row < self.silent else 1.0
        )

    def follow(self, result: SizerResult) -> None:
        """Starts and removes nodes as the rule recommends."""
        for advice in result.recommendations:
            victims = set(advice.victims) if advice.mode is Mode.ON else set()
            self.nodes = [node for node in self.nodes if node.id not in victims]
            missing = advice.target - sum(node.pool == advice.pool for node in self.nodes)
            if self.failing != advice.pool and advice.mode is not Mode.OFF:
                for _ in range(missing):
                    self.start(advice.pool, self.spec.pool(advice.pool).launch_delay_s)


def decisions(case: Case) -> Iterator[tuple[str, float]]:
    """Yields for each tick the decision in words, and all figures of measurement and decision in one number."""
    plain: dict[str, Any] = {"mode": Mode.ON, "max_nodes": 60, "launch_delay_s": 90.0}
    pools = {name: PoolOptions(**plain | options) for name, options in case.pools.items()}
    run = _Run(Spec(options=SizerOptions(**case.options), pools=pools), case.policies)
    for pool, count in case.nodes.items():
        for _ in range(count):
            run.start(pool, 0.0)
    observer, state = Observer(run.spec), SizerState()
    for tick in range(TICKS):
        for name, value in case.events.get(tick, {}).items():
            setattr(run, name, value)
        run.work()
        observer.observe(run.report(), ordered_at=state.missing_since)
        signals, spec = observer.signals(), run.spec
        if run.constraints is not None:
            signals, spec = (
                signals_with_constraints(signals, run.constraints),
                spec_with_constraints(spec, run.constraints),
            )
        result = decide(signals, spec, state)
        state = result.state
        yield _words(result), _figures(signals, result)
        run.follow(result)


def _words(result: SizerResult) -> str:
    return "; ".join(
        f"{advice.pool} {advice.present}>{advice.target} {advice.policy} "
        + " ".join([*(each.value for each in (*advice.reasons, *advice.limited_by)), *sorted(advice.victims)])
        for advice in result.recommendations
    )


def _figures(signals: Signals, result: SizerResult) -> float:
    """Returns a sum in which each figure has its own weight; large and small figures count alike."""
    nodes, gate, state = signals.nodes, signals.gate, result.state
    figures = [signals.paused_s or 0.0, signals.dollars_today, state.trim, state.low_ticks, state.high_ticks]
    figures += [
        state.node_groups_per_s,
        state.baseline_steps,
        len(state.suspects),
        len(state.being_replaced),
        *state.ratios,
    ]
    for column in (
        nodes.kind,
        nodes.phase,
        nodes.age_s,
        nodes.groups_long,
        nodes.busy_long_s,
        nodes.groups_short,
        nodes.busy_short_s,
    ):
        figures.append(sum((1 + 0.01 * row) * float(value) for row, value in enumerate(column)))
    for stream in signals.streams:
        figures += [*stream.compute_s, stream.groups_per_step, stream.produced_per_usable, stream.wait_share_300_s]
        figures += [stream.wait_share_600_s, stream.step_age_s, stream.wait_share_of_steps, stream.consumed_per_entered]
    if gate is not None:
        figures += [gate.closed_share, gate.wait_share, gate.idle_slots, gate.slots, gate.group_s]
    for launch in signals.launches.values():
        figures += [*launch.delays_s, launch.failures]
    for advice in result.recommendations:
        figures += [advice.band_low, advice.band_high, *(value for _, value in sorted(advice.inputs.items()))]
    return sum((1 + 0.1 * number) * math.asinh(100 * value) for number, value in enumerate(figures))


if __name__ == "__main__":
    lines = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(json.dumps([words, round(number, 4)]) for words, number in decisions(case))
        + "\n]"
        for name, case in CASES.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
