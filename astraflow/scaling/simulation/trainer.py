"""Simulated trainer with its buffer and staleness gate."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.ids import PolicyId
from astraflow.scaling.measurement.gates import GateTotals, GateWindow
from astraflow.scaling.measurement.signals import GateSignals
from astraflow.scaling.simulation.scenario import TrainerScenario

WINDOW_STEPS = 10


@dataclass(slots=True)
class SimulatedTrainer:
    """Takes a batch whenever a batch is complete and the previous step has ended.

    buffer ──batch complete and trainer free──► in training ──step ends──► version + 1, room for another batch
    """

    config: TrainerScenario
    rng: np.random.Generator
    buffered: float = 0.0
    free_at: float = 0.0
    """Time at which the current step ends, or at which waiting began."""
    is_computing: bool = False
    steps: int = 0
    waited_s: float = 0.0
    demand_factor: float = 1.0
    """Demand over the demand at the start of the scenario."""
    usable_share: float = 1.0
    produced: float = 0.0
    entered: float = 0.0
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    entered_at: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS + 1))
    _closed_s: float = 0.0
    _slot_s: float = 0.0
    _idle_slot_s: float = 0.0
    _open_group_s: float = 0.0
    _gate: GateWindow = field(default_factory=GateWindow)

    def free_groups(self) -> float:
        """Returns the groups that may be in work now. Source: the staleness gate of AReaL, arXiv:2505.24298.

        The gate issues (version + bound + 1) * B groups in total without dropped ones; earlier batches are trained.
        """
        batch = self.config.batch_groups
        in_training = batch if self.is_computing else 0
        return max(0.0, (self.config.max_staleness + 1) * batch - in_training - self.buffered)

    def use_slots(self, slots: float, seconds: float) -> float:
        """Returns the share of the slots in use for `seconds`, which the gate can limit, and counts it."""
        busy = min(1.0, self.free_groups() / slots) if slots > 0 else 0.0
        self._slot_s += slots * seconds
        self._idle_slot_s += (1 - busy) * slots * seconds
        self._open_group_s += busy * slots * seconds
        self._closed_s += seconds if busy < 1 else 0.0
        return busy

    def gate_signals(self, now: float, policy: PolicyId) -> GateSignals | None:
        """Returns the gate's signals for the rule. Call it once per tick."""
        totals = GateTotals(
            closed_s={policy: self._closed_s},
            waited_s={policy: self.total_wait_s(now)},
            idle_slot_s=self._idle_slot_s,
            slot_s=self._slot_s,
            open_group_s=self._open_group_s,
            groups=self.produced,
        )
        self._gate.add(now, totals)
        steps_s = sum(self.compute_s) + sum(self.waits_s)
        return self._gate.signals(
            {policy: self.config.max_staleness}, step_s=steps_s / len(self.compute_s) if self.compute_s else 0.0
        )

    def receive_groups(self, groups: int) -> None:
        """Adds finished groups to the buffer; filters drop some of them."""
        usable = int(self.rng.binomial(groups, self.usable_share)) if groups else 0
        self.produced += groups
        self.entered += usable
        self.buffered += usable

    def advance(self, now: float, until: float, came: float) -> None:
        """Computes and waits from `now` to `until`. came: groups that entered the buffer evenly over that time."""
        while True:
            if self.is_computing:
                if self.free_at > until:
                    return
                self._end_step()
            batch = self.config.batch_groups
            if self.buffered < batch:
                return
            begun_at = self.free_at
            before = self.buffered - came
            if before < batch and came > 0:
                begun_at = max(begun_at, now + (until - now) * (batch - before) / came)
            self._begin_step(begun_at)
            came = max(0.0, min(came, self.buffered))

    def total_wait_s(self, now: float) -> float:
        """Returns the seconds waited in total, including a current wait."""
        return self.waited_s + (max(0.0, now - self.free_at) if not self.is_computing else 0.0)

    def pause_until(self, until: float) -> None:
        """Pauses until `until`: no step begins before, and the time does not count as waiting."""
        self.free_at = max(self.free_at, until)

    def _begin_step(self, at: float) -> None:
        wait_s = max(0.0, at - self.free_at)
        self.waited_s += wait_s
        self.waits_s.append(wait_s)
        self.buffered -= self.config.batch_groups
        seconds = self.config.step_s / self.demand_factor
        if self.config.step_noise:
            seconds *= float(self.rng.lognormal(-(self.config.step_noise**2) / 2, self.config.step_noise))
        if self.config.stall_share and self.rng.random() < self.config.stall_share:
            seconds *= 2
        self.is_computing = True
        self.free_at = at + seconds
        self.compute_s.append(seconds)

    def _end_step(self) -> None:
        self.is_computing = False
        self.steps += 1
        self.entered_at.append(self.entered)
