"""Learning of a simulated run: a fault that wastes the training until a change of the run mends it."""

from collections.abc import Callable, Mapping

from astraflow.contract.fleet.run_changes import RunAction, RunChange
from astraflow.contract.ids import FlowId
from astraflow.contract.learning_faults import STEP, LearningFault
from astraflow.contract.plugins import PluginChange, PluginKind, PluginSlot, PluginSpec
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record
from astraflow.contract.reports.report import FlowReport
from astraflow.contract.values import Values
from astraflow.scaling.simulation.simulator import POLICY
from maintainer.evals.cases import LearningTrouble, Mend

FLOW = FlowId("prompts")
EVALUATION = FlowId("test")
SELECTORS = ("sequential", "uniform", "curriculum")


class SimulatedLearning:
    """Faults of one run, and what changes of the run do to them: implements the controls of dataflow and of the folder.

    trouble: None for a run that learns as it should.
    """

    def __init__(self, trouble: LearningTrouble | None) -> None:
        self._trouble = trouble
        self.is_mended = False
        """A change has mended the fault."""
        self._is_stopped = False
        self._is_paused = False
        self._selector: PluginSpec = {"kind": trouble.selector if trouble is not None else "uniform"}
        self.wasted_s = 0.0
        """Time in which the run trained to no effect. Seconds."""
        self.changes: list[str] = []
        """Changes that were made, as sentences."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the latest step."""
        return self._trouble.learning_rate if self._trouble is not None else 1e-4

    def advance(self, now: float, step_s: float) -> None:
        """Counts a step of the time, seconds since the start."""
        is_idle = (self._is_stopped or self._is_paused) and not self.is_mended
        needs_change = self._trouble is not None and bool(self._trouble.mended_by)
        self.wasted_s += step_s if is_idle or (needs_change and self.faults(now)) else 0.0

    def faults(self, now: float, *, injected_text: str = "") -> tuple[Record, ...]:
        """Returns the records that the run doctor reports at this time. injected_text: text of a policy's answer."""
        trouble = self._trouble
        if trouble is None or self.is_mended or self._is_stopped or now < trouble.from_h * 3600:
            return ()
        fault = LearningFault(trouble.fault)
        texts = {"answer": injected_text} if injected_text else {}
        values: Values = {STEP: 40.0, **trouble.numbers, **texts}
        record = Record(
            kind=RecordKind.LEARNING_FAULT, subject=POLICY, cause=fault.value, severity=fault.severity, values=values
        )
        return (record,)

    def flow(self) -> FlowReport:
        """Returns the report of the flow that is trained on."""
        return FlowReport(
            id=FLOW,
            issued=0,
            open=0,
            admitted=0,
            dropped={},
            tasks_queued=0,
            tasks_leased=0,
            episodes={},
            leases_expired=0,
            tasks_returned=0,
            is_paused=self._is_paused,
            selector=self._selector,
        )

    @staticmethod
    def plugin_kinds() -> tuple[PluginKind, ...]:
        """Returns the plugins that the run can use."""
        return tuple(PluginKind(slot=PluginSlot.SELECTOR, kind=kind, summary="") for kind in SELECTORS)

    # Controls of dataflow and of the run's folder.

    async def pause_flow(self, flow: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        """Pauses or resumes the flow."""
        self._is_paused = is_paused
        self._make(RunChange(action=RunAction.PAUSE if is_paused else RunAction.RESUME, subject=flow))
        return "done"

    async def change_plugins(self, change: PluginChange) -> str:
        """Sets the selector."""
        if change.selector is not None:
            self._selector = change.selector
            kind = str(change.selector["kind"])
            self._make(
                RunChange(action=RunAction.PLUGIN, subject=str(change.flow), slot=PluginSlot.SELECTOR, kind=kind)
            )
        return "done"

    async def evaluate(self, flow: FlowId, *, actor: str, reason: str) -> str:
        """Evaluates nothing: a round takes no time here."""
        self._make(RunChange(action=RunAction.EVALUATE, subject=flow))
        return "done"

    def stop(self) -> None:
        """Stops the run."""
        self._is_stopped = True
        self._make(RunChange(action=RunAction.STOP))

    def fork(self, policy: str, learning_rate: float, *, name: str) -> None:
        """Goes on with another rate: people follow the fork."""
        self._make(RunChange(action=RunAction.FORK, subject=policy, learning_rate=learning_rate))

    def _make(self, change: RunChange) -> None:
        self.changes.append(change.sentence)
        mends = self._trouble.mended_by if self._trouble is not None else ()
        self.is_mended = self.is_mended or any(_MENDS[mend](change, self.learning_rate) for mend in mends)


def _is_fork(change: RunChange, low: float, high: float) -> bool:
    return change.action is RunAction.FORK and low <= (change.learning_rate or 0.0) <= high


_MENDS: Mapping[Mend, Callable[[RunChange, float], bool]] = {
    "higher_rate": lambda change, rate: _is_fork(change, 2 * rate, 100 * rate),
    "lower_rate": lambda change, rate: _is_fork(change, rate / 100, rate / 2),
    "curriculum": lambda change, _: change.kind == "curriculum",
    "pause": lambda change, _: change.action is RunAction.PAUSE,
    "stop": lambda change, _: change.action is RunAction.STOP,
}
"""Whether a change mends the fault, at the learning rate of the run."""
