"""Recommends pool sizes from the run's reports: feeds the sizer, and records changes of targets and limits in
effect."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from astraflow.contract.fleet.recommendations import FleetConstraints, PoolRecommendation, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.capacity import measured_input
from astraflow.contract.reports.report import Report
from astraflow.contract.values import Json
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.reporting.limits_in_effect import LimitsInEffect
from astraflow.dataflow.storage.journal import Journal
from astraflow.scaling.measurement.fleet_constraints import limits_of, signals_with_constraints, spec_with_constraints
from astraflow.scaling.measurement.observation import Observer
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState

FLEET_CONSTRAINTS_VALID_S = 60.0
"""Time for which constraints of the fleet service are valid; the service renews them every few seconds."""

FIRST_STEPS = 3
"""Steps after which the demand is measured at the next report, without waiting for the next tick. Count."""

_PERSISTED_FIELDS = ("targets", "present_nodes", "trim", "node_groups_per_s", "breaker_until")
"""Fields of the sizer's state that a restart cannot measure again within minutes."""


class Recommender:
    """Observes every report, decides once per tick, and restores its decisions after a restart."""

    def __init__(self, spec: Spec, *, journal: Journal, events: Events) -> None:
        self._spec = spec
        self._journal = journal
        self._events = events
        self._observer = Observer(spec)
        self._limits = LimitsInEffect()
        self._state = SizerState()
        self._tick_at = float("-inf")
        self._report_at = float("-inf")
        self._constraints: FleetConstraints | None = None
        self._constraints_received_at = float("-inf")
        self._is_due = False
        self._latest: tuple[PoolRecommendation, ...] = ()
        journal.load_state("advice", self.load_state_dict)
        journal.register_state("advice", self.state_dict)

    @property
    def latest(self) -> tuple[PoolRecommendation, ...]:
        """Recommendations of the last tick; empty before the first."""
        return self._latest

    @property
    def spec(self) -> Spec:
        """Options and bounds of the configuration, with the constraints of the fleet service while they are valid."""
        return self._spec if self._constraints is None else spec_with_constraints(self._spec, self._constraints)

    def set_fleet_constraints(self, constraints: FleetConstraints) -> None:
        """Sets the constraints of the fleet service. A change of limits leads to a decision with the next report.

        Raises: InvalidInput for invalid constraints; the previous constraints then stay.
        """
        spec_with_constraints(self._spec, constraints)
        self._is_due |= self._constraints is None or limits_of(constraints) != limits_of(self._constraints)
        self._constraints, self._constraints_received_at = constraints, self._report_at

    def observe(self, report: Report) -> None:
        """Adds the next report. Records changes and limits of targets as actions."""
        self._report_at = report.at
        if self._constraints is not None and report.at - self._constraints_received_at > FLEET_CONSTRAINTS_VALID_S:
            self._constraints, self._is_due = None, True
        spec = self.spec
        self._observer.observe(report, ordered_at=self._state.missing_since)
        is_new = {pool.id for pool in report.pools} - {recommendation.pool for recommendation in self._latest}
        is_early = report.at - self._tick_at < spec.tick_s and not is_new and not self._is_due
        if is_early and measured_input(self._latest, "demand_groups_per_s") is not None:
            return
        if is_early and self._observer.measured_steps < FIRST_STEPS:
            self._signals()  # begins the windows with the first finished tasks, so that the first measurement is sound
            return
        self._tick_at, self._is_due = report.at, False
        result = decide(self._signals(), spec, self._state)
        self._state, self._latest = result.state, result.recommendations
        if report.completion is not None and report.completion.ends_run:
            self._latest = tuple(_no_nodes_needed(recommendation) for recommendation in result.recommendations)
            self._journal.touch()
            return
        for recommendation in result.recommendations:
            self._record_events(recommendation, has_moved=recommendation.pool in result.changed_pools)
        self._journal.touch()

    def _record_events(self, recommendation: PoolRecommendation, *, has_moved: bool) -> None:
        if has_moved:
            self._events.add_action(replace(recommendation.change, kind=RecordKind.TARGET_MOVED))
        for record in self._limits.observe(recommendation, has_moved=has_moved):
            self._events.add_action(record)

    def _signals(self) -> Signals:
        measured = self._observer.signals()
        return measured if self._constraints is None else signals_with_constraints(measured, self._constraints)

    def state_dict(self) -> dict[str, Json]:
        """Returns the state of the sizer and the limits that a restart needs."""
        state = asdict(self._state)
        persisted: dict[str, Any] = {
            name: dict(value) if isinstance(value := state[name], Mapping) else value for name in _PERSISTED_FIELDS
        }
        return {
            **persisted,
            "dollars_today": self._observer.dollars_today,
            "at": max(0.0, self._tick_at),
            "restraints": self._limits.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        persisted = {name: state[name] for name in _PERSISTED_FIELDS}
        for name in ("targets", "present_nodes", "breaker_until"):
            persisted[name] = {PoolId(pool): value for pool, value in state[name].items()}
        self._state = SizerState(**persisted)
        self._observer.dollars_today = state["dollars_today"]
        self._limits.load_state_dict(state.get("restraints", {}))  # absent from runs of earlier releases


def _no_nodes_needed(recommendation: PoolRecommendation) -> PoolRecommendation:
    """Recommends no nodes for a complete run: nodes that an autoscaler starts would leave at once."""
    return replace(recommendation, target=0, reasons=(Reason.COMPLETE,), victims=())
