"""How large the pools should be, from the run's own reports: feeds the sizer, and journals what moves a target, and
what keeps one from moving.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from astraflow.contract.advice import FleetTerms, PoolAdvice, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.reports import Report
from astraflow.contract.values import Json
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.reporting.events import Events
from astraflow.dataflow.reporting.restraints import Restraints
from astraflow.scaling.observation import Observer
from astraflow.scaling.options import Spec
from astraflow.scaling.signals import Signals
from astraflow.scaling.sizer import decide
from astraflow.scaling.state import SizerState
from astraflow.scaling.terms import limits_of, signals_under, spec_under

TERMS_S = 60.0
"""What the fleet service told is believed for so long: it says it again every few seconds."""

_KEPT = ("targets", "presents", "trim", "node_groups_per_s", "shut_until")
"""Of the sizer's state, what a restart does not measure anew within minutes."""


class Advisor:
    """Looks at every report, decides once a tick, and remembers over restarts what it decided."""

    def __init__(self, spec: Spec, *, journal: Journal, events: Events) -> None:
        self._spec = spec
        self._journal = journal
        self._events = events
        self._observer = Observer(spec)
        self._restraints = Restraints()
        self._state = SizerState()
        self._tick_at = float("-inf")
        self._report_at = float("-inf")
        self._terms: FleetTerms | None = None
        self._told_at = float("-inf")
        self._is_due = False
        self._latest: tuple[PoolAdvice, ...] = ()
        saved = journal.saved_state("advice")
        if saved is not None:
            self.load_state_dict(saved)
        journal.keep_state("advice", self.state_dict)

    @property
    def latest(self) -> tuple[PoolAdvice, ...]:
        """Of the last tick; empty before the first."""
        return self._latest

    @property
    def spec(self) -> Spec:
        """Options and bounds: of the configuration, and of the fleet service as long as it says so."""
        return self._spec if self._terms is None else spec_under(self._spec, self._terms)

    def learn(self, terms: FleetTerms) -> None:
        """What the fleet service may and would do. What stops or frees a pool is answered with the next report.

        Raises: InvalidInput for terms that cannot be; those before hold.
        """
        spec_under(self._spec, terms)
        self._is_due |= self._terms is None or limits_of(terms) != limits_of(self._terms)
        self._terms, self._told_at = terms, self._report_at

    def observe(self, report: Report) -> None:
        """The next report. A target that moves, or is kept from it, is noted with its sentence, as durable as acts."""
        self._report_at = report.at
        if self._terms is not None and report.at - self._told_at > TERMS_S:
            self._terms, self._is_due = None, True
        spec = self.spec
        self._observer.observe(report, ordered_at=self._state.missing_since)
        is_new = {pool.id for pool in report.pools} - {advice.pool for advice in self._latest}
        if report.at - self._tick_at < spec.tick_s and not is_new and not self._is_due:
            return
        self._tick_at, self._is_due = report.at, False
        verdict = decide(self._signals(), spec, self._state)
        self._state, self._latest = verdict.state, verdict.advice
        if report.completion is not None and report.completion.ends_run:
            self._latest = tuple(_needless(advice) for advice in verdict.advice)
            self._journal.touch()
            return
        for advice in verdict.advice:
            self._note(advice, has_moved=advice.pool in verdict.moved)
        self._journal.touch()

    def _note(self, advice: PoolAdvice, *, has_moved: bool) -> None:
        by = f"the {advice.policy}"
        if has_moved:
            self._events.act("target_moved", advice.pool, actor=by, reason=advice.sentence)
        for told in self._restraints.observe(advice, has_moved=has_moved):
            self._events.act(told.kind, told.pool, actor=by, reason=told.sentence)

    def _signals(self) -> Signals:
        measured = self._observer.signals()
        return measured if self._terms is None else signals_under(measured, self._terms)

    def state_dict(self) -> dict[str, Json]:
        """What a restart goes on with."""
        state = asdict(self._state)
        kept: dict[str, Any] = {
            name: dict(value) if isinstance(value := state[name], Mapping) else value for name in _KEPT
        }
        return {
            **kept,
            "dollars_today": self._observer.dollars_today,
            "at": max(0.0, self._tick_at),
            "restraints": self._restraints.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        kept = {name: state[name] for name in _KEPT}
        for name in ("targets", "presents", "shut_until"):
            kept[name] = {PoolId(pool): value for pool, value in state[name].items()}
        self._state = SizerState(**kept)
        self._observer.dollars_today = state["dollars_today"]
        self._restraints.load_state_dict(state.get("restraints", {}))  # absent from runs that began before it was kept


def _needless(advice: PoolAdvice) -> PoolAdvice:
    """Advice of no nodes, for whatever scales by it: those that it starts would leave at once."""
    sentence = "The run is complete: it needs no nodes."
    return replace(advice, target=0, reasons=(Reason.IDLE,), sentence=sentence, victims=())
