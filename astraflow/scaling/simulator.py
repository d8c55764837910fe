"""A run in virtual time: nodes, a trainer and whoever decides how many nodes there are. The same seed, the same run.

It is a fluid model where that does no harm: groups come back one by one, by chance, but tasks in work are a level.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from astraflow.contract.advice import PoolAdvice, Reason
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.scaling.consumer import VERSIONS, Consumer
from astraflow.scaling.course import Course, Moment, recovery_s
from astraflow.scaling.ideal import ideal_node_hours, needed_groups_per_s, node_groups_per_s, rate_factor
from astraflow.scaling.lifecycle import Phase
from astraflow.scaling.options import Spec
from astraflow.scaling.scenario import Scenario, ScenarioEvent
from astraflow.scaling.signals import NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.sizer import decide
from astraflow.scaling.state import SizerState, Verdict
from astraflow.scaling.windows import Window, Work, WorkWindow
from astraflow.scaling.world import World

STEP_S = 5.0
"""Grain of virtual time."""

YIELD_S = 1800.0
POLICY = PolicyId("policy")

Decide = Callable[[Signals, Spec, SizerState], Verdict]


def simulate(scenario: Scenario, *, seed: int = 0, is_fixed: bool = False, rule: Decide = decide) -> Course:
    """Play a scenario to its end. is_fixed: nobody decides anything, and lost nodes stay lost.

    rule: another rule than the product's, for comparisons.
    """
    return Simulation(scenario, seed=seed, is_fixed=is_fixed, rule=rule).run()


class Simulation:
    """One run. `run` plays it with a rule; whoever else decides takes its steps: happen, signals, note, advance."""

    def __init__(self, scenario: Scenario, *, seed: int, is_fixed: bool = False, rule: Decide = decide) -> None:
        self._scenario = scenario
        self._is_fixed = is_fixed
        self._rule = rule
        self._rng = np.random.default_rng(seed)
        self._pools = [(PoolId(name), pool) for name, pool in scenario.pools.items()]
        self.world = World(self._pools, self._rng)
        trainer = scenario.trainer
        self.consumer = Consumer(trainer, self._rng, usable_share=trainer.usable_share)
        self.consumer.buffered = 1.5 * trainer.batch_groups
        self.spec = Spec(options=scenario.sizer, pools={name: pool.bounds for name, pool in self._pools})
        self._state = SizerState()
        self._verdict = Verdict(advice=(), state=self._state)
        self._noise = np.ones(len(self.world.ids))
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._paused_at: float | None = None
        self._node_s = self._dollars = 0.0
        self.busy = 0.0
        """Share of the nodes' slots that were used in the latest step."""
        self._pool_s = np.zeros(len(self._pools))
        self._kinds = tuple(
            NodeKind(pool=name, hardware=f"{speed:g}", price_per_hour=pool.bounds.price_per_hour)
            for name, pool in self._pools
            for speed in pool.speeds
        )
        self._prices = np.array([pool.bounds.price_per_hour for _, pool in self._pools])
        self._moments: list[Moment] = []
        options = scenario.sizer
        self._long = WorkWindow(
            usual_s=options.window_long_s, widest_s=options.window_widest_s, groups=options.window_groups
        )
        self._short: Window[Work] = Window(options.window_short_s)
        self._made: Window[tuple[float, float]] = Window(YIELD_S)
        self._wait_300: Window[float] = Window(300.0)
        self._wait_600: Window[float] = Window(600.0)

    def run(self) -> Course:
        """From start to end."""
        scenario, tick_s = self._scenario, self.spec.tick_s
        steps = max(1, int(scenario.hours * 3600 / STEP_S))
        ticks = max(1, round(tick_s / STEP_S))
        for step in range(steps):
            now = step * STEP_S
            if step % ticks == 0:
                self._tick(now)
            self.advance(now, now + STEP_S)
            if scenario.steps and self.consumer.steps >= scenario.steps:
                break
        self._note(now + STEP_S)
        return self.course((now + STEP_S) / 3600)

    @property
    def _progress(self) -> float:
        """Share of the steps that are made."""
        return self.consumer.steps / self._scenario.steps if self._scenario.steps else 0.0

    def advance(self, now: float, until: float) -> None:
        """Nodes work and the trainer consumes. The two are seconds since the start, a step apart."""
        world, consumer = self.world, self.consumer
        world.advance(until)
        ready = int(np.count_nonzero(world.is_ready))
        before = consumer.buffered
        if self._paused_at is None:
            in_work = self._slots()
            self.busy = consumer.let_out(in_work, STEP_S)
            consumer.take_in(world.work(self.busy, self._noise_of_all(), STEP_S) if ready else 0)
            consumer.advance(now, until, consumer.buffered - before)
        else:
            self.busy = 0.0
            consumer.rest(until)
        paid = np.bincount(world["pool"][world.is_paid], minlength=len(self._pools))
        self._pool_s += paid * STEP_S
        self._node_s += float(paid.sum()) * STEP_S
        self._dollars += float((paid * self._prices).sum()) * STEP_S / 3600

    def _slots(self) -> float:
        of = self.world["pool"][self.world.is_ready]
        counts = np.bincount(of, minlength=len(self._pools))
        return float(sum(count * pool.slots for count, (_, pool) in zip(counts, self._pools, strict=True)))

    def _noise_of_all(self) -> np.ndarray:
        missing = len(self.world.ids) - len(self._noise)
        if missing > 0:
            self._noise = np.append(self._noise, np.ones(missing))
        return self._noise

    def happen(self, now: float) -> None:
        """What the scenario has happen by now; nodes report."""
        self._happen(now)
        self.world.forget_gone()
        self._draw_noise()
        self.world.tell(now)

    def _tick(self, now: float) -> None:
        self.happen(now)
        if not self._is_fixed:
            self._verdict = self._rule(self.signals(now), self.spec, self._state)
            self._state = self._verdict.state
            self._carry_out(now)
        self._note(now)

    def _draw_noise(self) -> None:
        spreads = np.array([pool.rate_noise for _, pool in self._pools])[self.world["pool"]]
        self._noise = np.ones(len(self.world.ids))
        if spreads.any():
            self._noise = np.exp(self._rng.normal(0.0, 1.0, len(spreads)) * spreads - spreads**2 / 2)

    def _happen(self, now: float) -> None:
        for number, event in enumerate(self._scenario.events):
            if now >= event.at_h * 3600 and number not in self._begun:
                self._begun.add(number)
                self._begin(event, now)
            ends_at = (event.at_h + event.over_h) * 3600
            if event.over_h and event.kind != "rate" and now >= ends_at and number not in self._ended:
                self._ended.add(number)
                self._end(event, now)
        factors = [rate_factor(self._scenario, str(name), now, self._progress) for name, _ in self._pools]
        self.world.factors = np.array(factors)

    def _begin(self, event: ScenarioEvent, now: float) -> None:
        world = self.world
        if event.kind == "demand":
            self.consumer.pace *= event.factor
        elif event.kind == "shrink_yield":
            self.consumer.usable_share *= event.factor
        elif event.kind == "rate" and event.share < 1.0:
            world["speed"][self._chosen(event)] *= event.factor
        elif event.kind == "starve":
            world["at_work"][self._chosen(event)] = event.factor
        elif event.kind == "lose":
            world.lose(self._chosen(event))
        elif event.kind == "silence":
            world["is_silent"][self._chosen(event)] = True
        elif event.kind == "pause":
            self._paused_at = now
        elif event.kind == "drought":
            self._dry(event, is_dry=True)

    def _end(self, event: ScenarioEvent, now: float) -> None:
        if event.kind == "demand":
            self.consumer.pace /= event.factor
        elif event.kind == "shrink_yield":
            self.consumer.usable_share /= event.factor
        elif event.kind == "silence":
            self.world["is_silent"][:] = False
        elif event.kind == "starve":
            self.world["at_work"][:] = 1.0
        elif event.kind == "pause":
            self._paused_at = None
            self.consumer.rest(now)
        elif event.kind == "drought":
            self._dry(event, is_dry=False)

    def _dry(self, event: ScenarioEvent, *, is_dry: bool) -> None:
        for pool, (name, _) in enumerate(self._pools):
            if event.pool in ("", name):
                self.world.is_dry[pool] = is_dry

    def _chosen(self, event: ScenarioEvent) -> np.ndarray:
        """Rows of ready nodes that an event is about, by chance."""
        of = [pool for pool, (name, _) in enumerate(self._pools) if event.pool in ("", name)]
        rows = np.flatnonzero(self.world.is_ready & np.isin(self.world["pool"], of))
        return self._rng.choice(rows, round(event.share * len(rows)), replace=False)

    def _carry_out(self, now: float) -> None:
        """As a fleet does that is told a level: retire the victims, order what is missing, in that order."""
        world = self.world
        rows = {node: row for row, node in enumerate(world.ids)}
        for advice in self._verdict.advice:
            for victim in advice.victims:
                world.drain(rows[victim], now=now)
        targets = {advice.pool: advice.target for advice in self._verdict.advice}
        for pool, (name, _) in enumerate(self._pools):
            present = world.present(pool)
            while present < targets[name] and world.launch(pool, now=now):
                present += 1
            for row in self._surplus(pool, present - targets[name]):
                world.drain(row, now=now)

    def _surplus(self, pool: int, count: int) -> list[int]:
        """Nodes beyond a target that nobody chose: the youngest."""
        if count <= 0:
            return []
        rows = np.flatnonzero((self.world["pool"] == pool) & (self.world["phase"] <= Phase.READY))
        return [int(row) for row in rows[np.argsort(-self.world["ordered_at"][rows], kind="stable")][:count]]

    def signals(self, now: float) -> Signals:
        """What is measured, as the rule takes it."""
        world = self.world
        told = Work(ids=tuple(world.ids), groups=world["told_groups"].copy(), busy_s=world["told_busy_s"].copy())
        self._short.add(now, told)
        groups_long, busy_long = self._long.add(now, told)
        groups_short, busy_short = told.since(self._short.oldest[1])
        since = np.where(world["phase"] < Phase.READY, world["ordered_at"], world["ready_at"])
        return Signals(
            at=now,
            kinds=self._kinds,
            nodes=NodeTable(
                ids=told.ids,
                kind=world["kind"],
                phase=world["phase"],
                age_s=now - since,
                silent_s=np.where(world["phase"] == Phase.READY, now - world["heard_at"], 0.0),
                groups_long=groups_long,
                busy_long_s=busy_long,
                groups_short=groups_short,
                busy_short_s=busy_short,
            ),
            streams=(self._stream(now),),
            gate=self.consumer.gate_signals(now, POLICY),
            launches={name: world.launches[pool].signals() for pool, (name, _) in enumerate(self._pools)},
            paused_s=None if self._paused_at is None else now - self._paused_at,
            dollars_today=self._dollars,
        )

    def _stream(self, now: float) -> StreamSignals:
        consumer = self.consumer
        waited = consumer.waited_until(now)
        self._made.add(now, (consumer.produced, consumer.entered))
        self._wait_300.add(now, waited)
        self._wait_600.add(now, waited)
        produced, entered = self._made.oldest[1]
        made, used = consumer.produced - produced, consumer.entered - entered
        done = len(consumer.compute_s) - consumer.is_computing  # the step that is computed is not measured yet
        compute = tuple(consumer.compute_s)[:done]
        waits = tuple(consumer.waits_s)[:done]
        spent = sum(compute) + sum(waits)
        came = consumer.entered - consumer.entered_at[0] if len(consumer.entered_at) > VERSIONS else 0.0
        return StreamSignals(
            policy=POLICY,
            compute_s=compute,
            groups_per_step=self._scenario.trainer.batch_groups,
            produced_per_usable=made / used if used else 1.0,
            wait_300_s=_share(self._wait_300, now, waited),
            wait_600_s=_share(self._wait_600, now, waited),
            step_age_s=max(0.0, now - consumer.free_at) if not consumer.is_computing else 0.0,
            steps=consumer.steps,
            wait_of_versions=sum(waits) / spent if spent else 0.0,
            consumed_over_entered=VERSIONS * self._scenario.trainer.batch_groups / came if came else 1.0,
        )

    def _note(self, now: float) -> None:
        advice = {one.pool: one for one in self._verdict.advice}
        targets = tuple(advice[name].target if name in advice else pool.nodes for name, pool in self._pools)
        self.note(now, targets, self._verdict.advice)

    def note(self, now: float, targets: tuple[int, ...], advice: Sequence[PoolAdvice]) -> None:
        """A point of the course. targets: of the pools, in their order."""
        phase = self.world["phase"]
        self._moments.append(
            Moment(
                at_s=now,
                ready=int(np.count_nonzero(phase == Phase.READY)),
                pending=int(np.count_nonzero((phase < Phase.READY) | (phase == Phase.DRAINING))),
                target=sum(targets),
                needed=needed_groups_per_s(self._scenario, now)
                / node_groups_per_s(self._scenario, now, self._progress),
                waited_s=self.consumer.waited_until(now),
                node_s=self._node_s,
                dollars=self._dollars,
                pools=targets,
                sentence=self._said(targets, advice),
                is_replacement=any(_is_replacement(one) for one in advice),
            )
        )

    def _said(self, targets: tuple[int, ...], advice: Sequence[PoolAdvice]) -> str:
        if not self._moments or self._moments[-1].pools == targets:
            return ""
        before = dict(zip((name for name, _ in self._pools), self._moments[-1].pools, strict=True))
        return " ".join(one.sentence for one in advice if one.target != before[one.pool])

    def course(self, hours: float) -> Course:
        """All that was noted. hours: that it lasted."""
        scenario, moments = self._scenario, tuple(self._moments)
        times = np.array([one.at_s for one in moments])
        waited = np.array([one.waited_s for one in moments])
        event_s = min((event.at_h * 3600 for event in scenario.events), default=None)
        after = [one for one in moments if one.at_s >= (event_s or 0.0)]
        return Course(
            moments=moments,
            hours=hours,
            waited_s=float(waited[-1]),
            node_hours=self._node_s / 3600,
            ideal_node_hours=ideal_node_hours(scenario, hours),
            dollars=self._dollars,
            steps=self.consumer.steps,
            peak_after=max(
                ((one.ready + one.pending) / max(1.0, ceil(one.needed - 1e-6)) for one in after), default=0.0
            ),
            recovery_s=0.0 if event_s is None else recovery_s(times, waited, event_s),
            pool_names=tuple(str(name) for name, _ in self._pools),
            pool_node_hours=tuple(float(seconds) / 3600 for seconds in self._pool_s),
        )


def _share(window: Window[float], now: float, waited: float) -> float:
    at, before = window.oldest
    return (waited - before) / (now - at) if now > at else 0.0


def _is_replacement(advice: PoolAdvice) -> bool:
    return bool({Reason.REPLACING, Reason.RETIRING, Reason.LAUNCHES_FAIL} & set(advice.reasons))
