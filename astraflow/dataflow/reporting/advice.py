"""How large the pools should be, from the run's own reports: feeds the sizer, and journals what moves a target."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.ids import PoolId
from astraflow.contract.reports import Report
from astraflow.contract.tasks import Json
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.reporting.events import Events
from astraflow.scaling.observation import Observer
from astraflow.scaling.options import Spec
from astraflow.scaling.sizer import decide
from astraflow.scaling.state import SizerState

_KEPT = ("targets", "presents", "trim", "node_groups_per_s", "shut_until")
"""Of the sizer's state, what a restart does not measure anew within minutes."""


class Advisor:
    """Looks at every report, decides once a tick, and remembers over restarts what it decided."""

    def __init__(self, spec: Spec, *, journal: Journal, events: Events) -> None:
        self._spec = spec
        self._journal = journal
        self._events = events
        self._observer = Observer(spec)
        self._state = SizerState()
        self._tick_at = float("-inf")
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
        """Options and bounds."""
        return self._spec

    def observe(self, report: Report) -> None:
        """The next report. A target that moves is noted with its sentence, as durable as any act."""
        self._observer.observe(report, ordered_at=self._state.missing_since)
        is_new = {pool.id for pool in report.pools} - {advice.pool for advice in self._latest}
        if report.at - self._tick_at < self._spec.options.tick_s and not is_new:
            return
        self._tick_at = report.at
        verdict = decide(self._observer.signals(), self._spec, self._state)
        self._state, self._latest = verdict.state, verdict.advice
        for advice in verdict.advice:
            if advice.pool in verdict.moved:
                self._events.act("target_moved", advice.pool, actor=f"the {advice.policy}", reason=advice.sentence)
        self._journal.touch()

    def state_dict(self) -> dict[str, Json]:
        """What a restart goes on with."""
        state = asdict(self._state)
        kept: dict[str, Any] = {
            name: dict(value) if isinstance(value := state[name], Mapping) else value for name in _KEPT
        }
        return {**kept, "dollars_today": self._observer.dollars_today, "at": max(0.0, self._tick_at)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        kept = {name: state[name] for name in _KEPT}
        for name in ("targets", "presents", "shut_until"):
            kept[name] = {PoolId(pool): value for pool, value in state[name].items()}
        self._state = SizerState(**kept)
        self._observer.dollars_today = state["dollars_today"]
