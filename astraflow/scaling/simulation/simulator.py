"""Simulation of a run in virtual time: nodes, a trainer and a scaling rule. Equal seeds give equal runs.

Part of the model is fluid: groups return one by one at random, but the tasks in work are a continuous level.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from astraflow.contract.fleet.recommendations import PoolRecommendation, Reason
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.records import render
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.signals import NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.measurement.windows import CountedWork, Window, Work, WorkWindow
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerResult, SizerState
from astraflow.scaling.simulation.ideal import ideal_node_hours, needed_groups_per_s, node_groups_per_s, rate_factor
from astraflow.scaling.simulation.nodes import SimulatedNodes
from astraflow.scaling.simulation.result import SimulationResult, TickRecord, recovery_s
from astraflow.scaling.simulation.scenario import Scenario, ScenarioEvent
from astraflow.scaling.simulation.trainer import WINDOW_STEPS, SimulatedTrainer

STEP_S = 5.0
"""Resolution of virtual time. Seconds."""

YIELD_WINDOW_S = 1800.0
POLICY = PolicyId("policy")

Decide = Callable[[Signals, Spec, SizerState], SizerResult]


def simulate(scenario: Scenario, *, seed: int = 0, is_fixed: bool = False, rule: Decide = decide) -> SimulationResult:
    """Runs a scenario to its end. is_fixed: no rule runs, and lost nodes stay lost.

    rule: replaces the product's rule, for comparisons.
    """
    return Simulation(scenario, seed=seed, is_fixed=is_fixed, rule=rule).run()


class Simulation:
    """A simulated run. `run` applies a rule; other controllers call apply_events, signals, record_tick and advance."""

    def __init__(self, scenario: Scenario, *, seed: int, is_fixed: bool = False, rule: Decide = decide) -> None:
        self._scenario = scenario
        self._is_fixed = is_fixed
        self._rule = rule
        self._rng = np.random.default_rng(seed)
        self._pools = [(PoolId(name), pool) for name, pool in scenario.pools.items()]
        self.nodes = SimulatedNodes(self._pools, self._rng, is_cold_start=scenario.is_cold_start)
        trainer = scenario.trainer
        self.trainer = SimulatedTrainer(trainer, self._rng, usable_share=trainer.usable_share)
        self.trainer.buffered = 0.0 if scenario.is_cold_start else 1.5 * trainer.batch_groups
        self.spec = Spec(options=scenario.sizer, pools={name: pool.bounds for name, pool in self._pools})
        self._state = SizerState()
        self._decision = SizerResult(recommendations=(), state=self._state)
        self._noise = np.ones(len(self.nodes.ids))
        self._begun_events: set[int] = set()
        self._ended_events: set[int] = set()
        self._paused_at: float | None = None
        self._node_s = self._dollars = 0.0
        self.busy_share = 0.0
        """Share of the nodes' slots in use in the latest step."""
        self._pool_s = np.zeros(len(self._pools))
        self._kinds = tuple(
            NodeKind(pool=name, hardware=f"{speed:g}", price_per_hour=pool.bounds.price_per_hour)
            for name, pool in self._pools
            for speed in pool.speeds
        )
        self._prices = np.array([pool.bounds.price_per_hour for _, pool in self._pools])
        self._ticks: list[TickRecord] = []
        options = scenario.sizer
        self._long = WorkWindow(
            usual_s=options.window_long_s, widest_s=options.window_widest_s, groups=options.window_groups
        )
        self._short: Window[Work] = Window(options.window_short_s)
        self._counted = CountedWork(longest_s=options.window_long_s)
        self._yield: Window[tuple[float, float]] = Window(YIELD_WINDOW_S)
        self._wait_300: Window[float] = Window(300.0)
        self._wait_600: Window[float] = Window(600.0)
        self._has_stepped = False

    def run(self) -> SimulationResult:
        scenario, tick_s = self._scenario, self.spec.tick_s
        steps = max(1, int(scenario.hours * 3600 / STEP_S))
        ticks = max(1, round(tick_s / STEP_S))
        for step in range(steps):
            now = step * STEP_S
            if step % ticks == 0:
                self._tick(now)
            self.advance(now, now + STEP_S)
            if scenario.steps and self.trainer.steps >= scenario.steps:
                break
        self._record_decision(now + STEP_S)
        return self.result((now + STEP_S) / 3600)

    @property
    def _progress(self) -> float:
        """Share of the steps completed."""
        return self.trainer.steps / self._scenario.steps if self._scenario.steps else 0.0

    def advance(self, now: float, until: float) -> None:
        """Lets nodes and the trainer work from `now` to `until`: seconds since the start, one STEP_S apart."""
        world, consumer = self.nodes, self.trainer
        world.advance(until)
        ready = int(np.count_nonzero(world.is_ready))
        before = consumer.buffered
        if self._paused_at is None:
            in_work = self._slots()
            self.busy_share = consumer.use_slots(in_work, STEP_S)
            consumer.receive_groups(world.work(self.busy_share, self._node_noise(), STEP_S, now=now) if ready else 0)
            consumer.advance(now, until, consumer.buffered - before)
        else:
            self.busy_share = 0.0
            consumer.pause_until(until)
        paid = np.bincount(world["pool"][world.is_paid], minlength=len(self._pools))
        self._pool_s += paid * STEP_S
        self._node_s += float(paid.sum()) * STEP_S
        self._dollars += float((paid * self._prices).sum()) * STEP_S / 3600

    def _slots(self) -> float:
        ready_pools = self.nodes["pool"][self.nodes.is_ready]
        counts = np.bincount(ready_pools, minlength=len(self._pools))
        return float(sum(count * pool.slots for count, (_, pool) in zip(counts, self._pools, strict=True)))

    def _node_noise(self) -> np.ndarray:
        missing = len(self.nodes.ids) - len(self._noise)
        if missing > 0:
            self._noise = np.append(self._noise, np.ones(missing))
        return self._noise

    def apply_events(self, now: float) -> None:
        """Applies the scenario's events up to `now`, and lets nodes report."""
        self._run_events(now)
        self.nodes.drop_terminated()
        self._draw_noise()
        self.nodes.report(now)

    def _tick(self, now: float) -> None:
        self.apply_events(now)
        if not self._is_fixed:
            self._decision = self._rule(self.signals(now), self.spec, self._state)
            self._state = self._decision.state
            self._apply_targets(now)
        self._record_decision(now)

    def _draw_noise(self) -> None:
        spreads = np.array([pool.rate_noise for _, pool in self._pools])[self.nodes["pool"]]
        self._noise = np.ones(len(self.nodes.ids))
        if spreads.any():
            self._noise = np.exp(self._rng.normal(0.0, 1.0, len(spreads)) * spreads - spreads**2 / 2)

    def _run_events(self, now: float) -> None:
        for number, event in enumerate(self._scenario.events):
            if now >= event.at_h * 3600 and number not in self._begun_events:
                self._begun_events.add(number)
                self._begin(event, now)
            ends_at = (event.at_h + event.duration_h) * 3600
            if event.duration_h and event.kind != "rate" and now >= ends_at and number not in self._ended_events:
                self._ended_events.add(number)
                self._end(event, now)
        factors = [rate_factor(self._scenario, str(name), now, self._progress) for name, _ in self._pools]
        self.nodes.factors = np.array(factors)

    def _begin(self, event: ScenarioEvent, now: float) -> None:
        world = self.nodes
        if event.kind == "demand":
            self.trainer.demand_factor *= event.factor
        elif event.kind == "shrink_yield":
            self.trainer.usable_share *= event.factor
        elif event.kind == "rate" and event.share < 1.0:
            world["speed"][self._affected_rows(event)] *= event.factor
        elif event.kind == "throttle":
            world["work_share"][self._affected_rows(event)] = event.factor
        elif event.kind == "loss":
            world.inject_fault(self._affected_rows(event))
        elif event.kind == "silence":
            world["is_silent"][self._affected_rows(event)] = True
        elif event.kind == "pause":
            self._paused_at = now
        elif event.kind == "out_of_capacity":
            self._set_out_of_capacity(event, is_out_of_capacity=True)

    def _end(self, event: ScenarioEvent, now: float) -> None:
        if event.kind == "demand":
            self.trainer.demand_factor /= event.factor
        elif event.kind == "shrink_yield":
            self.trainer.usable_share /= event.factor
        elif event.kind == "silence":
            self.nodes["is_silent"][:] = False
        elif event.kind == "throttle":
            self.nodes["work_share"][:] = 1.0
        elif event.kind == "pause":
            self._paused_at = None
            self.trainer.pause_until(now)
        elif event.kind == "out_of_capacity":
            self._set_out_of_capacity(event, is_out_of_capacity=False)

    def _set_out_of_capacity(self, event: ScenarioEvent, *, is_out_of_capacity: bool) -> None:
        for pool, (name, _) in enumerate(self._pools):
            if event.pool in ("", name):
                self.nodes.is_out_of_capacity[pool] = is_out_of_capacity

    def _affected_rows(self, event: ScenarioEvent) -> np.ndarray:
        """Returns random rows of ready nodes that an event affects."""
        pools = [pool for pool, (name, _) in enumerate(self._pools) if event.pool in ("", name)]
        rows = np.flatnonzero(self.nodes.is_ready & np.isin(self.nodes["pool"], pools))
        return self._rng.choice(rows, round(event.share * len(rows)), replace=False)

    def _apply_targets(self, now: float) -> None:
        """Applies targets like a fleet service: first retires the victims, then launches missing nodes."""
        world = self.nodes
        rows = {node: row for row, node in enumerate(world.ids)}
        for recommendation in self._decision.recommendations:
            for victim in recommendation.victims:
                world.drain(rows[victim], now=now)
        targets = {recommendation.pool: recommendation.target for recommendation in self._decision.recommendations}
        for pool, (name, _) in enumerate(self._pools):
            present = world.present(pool)
            while present < targets[name] and world.launch(pool, now=now):
                present += 1
            for row in self._surplus(pool, present - targets[name]):
                world.drain(row, now=now)

    def _surplus(self, pool: int, count: int) -> list[int]:
        """Returns the youngest nodes beyond a target that are not victims already."""
        if count <= 0:
            return []
        rows = np.flatnonzero((self.nodes["pool"] == pool) & (self.nodes["phase"] <= Phase.READY))
        return [int(row) for row in rows[np.argsort(-self.nodes["ordered_at"][rows], kind="stable")][:count]]

    def signals(self, now: float) -> Signals:
        """Returns the measurements for the rule."""
        world = self.nodes
        done = Work(ids=tuple(world.ids), groups=world["reported_groups"], busy_s=world["reported_busy_s"])
        work = self._counted.of(done, np.array([pool.slots for _, pool in self._pools])[world["pool"]])
        self._short.add(now, work)
        groups_long, busy_long = self._long.add(now, work)
        groups_short, busy_short = work.since(self._short.oldest[1])
        since = np.where(world["phase"] < Phase.READY, world["ordered_at"], world["ready_at"])
        return Signals(
            at=now,
            kinds=self._kinds,
            nodes=NodeTable(
                ids=work.ids,
                kind=world["kind"],
                phase=world["phase"],
                age_s=now - since,
                silent_s=np.where(world["phase"] == Phase.READY, now - world["reported_at"], 0.0),
                groups_long=groups_long,
                busy_long_s=busy_long,
                groups_short=groups_short,
                busy_short_s=busy_short,
            ),
            streams=(self._stream(now),),
            gate=self.trainer.gate_signals(now, POLICY),
            launches={name: world.launches[pool].signals() for pool, (name, _) in enumerate(self._pools)},
            paused_s=None if self._paused_at is None else now - self._paused_at,
            dollars_today=self._dollars,
        )

    def _stream(self, now: float) -> StreamSignals:
        consumer = self.trainer
        waited = consumer.total_wait_s(now)
        if consumer.steps and not self._has_stepped:  # as in a live run: waits before the first step do not count
            self._has_stepped = True
            self._wait_300.clear()
            self._wait_600.clear()
        self._yield.add(now, (consumer.produced, consumer.entered))
        self._wait_300.add(now, waited)
        self._wait_600.add(now, waited)
        produced, entered = self._yield.oldest[1]
        produced_groups, usable_groups = consumer.produced - produced, consumer.entered - entered
        finished_steps = len(consumer.compute_s) - consumer.is_computing  # the current step is not measured yet
        compute = tuple(consumer.compute_s)[:finished_steps]
        waits = tuple(consumer.waits_s)[:finished_steps]
        spent = sum(compute) + sum(waits)
        entered_groups = consumer.entered - consumer.entered_at[0] if len(consumer.entered_at) > WINDOW_STEPS else 0.0
        return StreamSignals(
            policy=POLICY,
            compute_s=compute,
            groups_per_step=self._scenario.trainer.batch_groups,
            produced_per_usable=produced_groups / usable_groups if usable_groups else 1.0,
            wait_share_300_s=_share(self._wait_300, now, waited),
            wait_share_600_s=_share(self._wait_600, now, waited),
            step_age_s=max(0.0, now - consumer.free_at) if not consumer.is_computing else 0.0,
            steps=consumer.steps,
            wait_share_of_steps=sum(waits) / spent if spent else 0.0,
            consumed_per_entered=WINDOW_STEPS * self._scenario.trainer.batch_groups / entered_groups
            if entered_groups
            else 1.0,
        )

    def _record_decision(self, now: float) -> None:
        recommendations = {recommendation.pool: recommendation for recommendation in self._decision.recommendations}
        targets = tuple(
            recommendations[name].target if name in recommendations else pool.nodes for name, pool in self._pools
        )
        self.record_tick(now, targets, self._decision.recommendations)

    def record_tick(self, now: float, targets: tuple[int, ...], recommendations: Sequence[PoolRecommendation]) -> None:
        """Records a tick. targets: targets of the pools, in their order."""
        phase = self.nodes["phase"]
        self._ticks.append(
            TickRecord(
                at_s=now,
                ready=int(np.count_nonzero(phase == Phase.READY)),
                pending=int(np.count_nonzero((phase < Phase.READY) | (phase == Phase.DRAINING))),
                target=sum(targets),
                needed=needed_groups_per_s(self._scenario, now)
                / node_groups_per_s(self._scenario, now, self._progress),
                waited_s=self.trainer.total_wait_s(now),
                node_s=self._node_s,
                dollars=self._dollars,
                pools=targets,
                sentence=self._change_sentence(targets, recommendations),
                is_replacement=any(_is_replacement(recommendation) for recommendation in recommendations),
            )
        )

    def _change_sentence(self, targets: tuple[int, ...], recommendations: Sequence[PoolRecommendation]) -> str:
        if not self._ticks or self._ticks[-1].pools == targets:
            return ""
        before = dict(zip((name for name, _ in self._pools), self._ticks[-1].pools, strict=True))
        return " ".join(
            f"{recommendation.pool}: {render(recommendation.change)}."
            for recommendation in recommendations
            if recommendation.target != before[recommendation.pool]
        )

    def result(self, hours: float) -> SimulationResult:
        """Returns the result. hours: duration of the run."""
        scenario, ticks = self._scenario, tuple(self._ticks)
        times = np.array([tick.at_s for tick in ticks])
        waited = np.array([tick.waited_s for tick in ticks])
        event_s = min((event.at_h * 3600 for event in scenario.events), default=None)
        after = [tick for tick in ticks if tick.at_s >= (event_s or 0.0)]
        return SimulationResult(
            ticks=ticks,
            hours=hours,
            waited_s=float(waited[-1]),
            node_hours=self._node_s / 3600,
            ideal_node_hours=ideal_node_hours(scenario, hours),
            dollars=self._dollars,
            steps=self.trainer.steps,
            peak_ratio_after_event=max(
                ((tick.ready + tick.pending) / max(1.0, ceil(tick.needed - 1e-6)) for tick in after), default=0.0
            ),
            recovery_s=0.0 if event_s is None else recovery_s(times, waited, event_s),
            pool_names=tuple(str(name) for name, _ in self._pools),
            pool_node_hours=tuple(float(seconds) / 3600 for seconds in self._pool_s),
        )


def _share(window: Window[float], now: float, waited: float) -> float:
    at, before = window.oldest
    return (waited - before) / (now - at) if now > at else 0.0


def _is_replacement(recommendation: PoolRecommendation) -> bool:
    return bool({Reason.REPLACING, Reason.RETIRING, Reason.LAUNCHES_FAILING} & set(recommendation.reasons))
