"""Working state of one decision: its inputs and its results so far."""

from dataclasses import dataclass, field

from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.scaling.measurement.gates import is_gated
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.balance import Balance
from astraflow.scaling.rule.capacity import Capacity
from astraflow.scaling.rule.pools import Pool
from astraflow.scaling.rule.state import SizerState


@dataclass(slots=True)
class Tick:
    """Working state of a tick. Actions change `pools`, `reasons`, `limited_by`, `victims` and `after` only."""

    signals: Signals
    spec: Spec
    before: SizerState
    capacity: Capacity
    pools: list[Pool]
    balance: Balance | None = None
    reasons: list[Reason] = field(default_factory=list)
    limited_by: list[LimitInEffect] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)
    after: SizerState = field(default_factory=SizerState)
    rule: str = "sizer"

    @property
    def at(self) -> float:
        """Unix seconds."""
        return self.signals.at

    def recent(self, actions: tuple[float, ...]) -> list[float]:
        """Returns the actions within the window of the action budget."""
        return [action for action in actions if self.at - action < self.spec.options.action_window_s]

    def is_just_after(self, actions: tuple[float, ...]) -> bool:
        """Returns whether an action in the other direction would be a flap."""
        return any(self.at - action <= self.spec.options.action_window_s for action in actions)

    @property
    def is_gated(self) -> bool:
        """A trainer waits at the staleness gate, where more nodes would hardly help."""
        return is_gated(self.signals.gate, wait_high=self.spec.options.wait_high)

    @property
    def smallest_rate(self) -> float:
        """Rate of the slowest node that could be ordered. Groups a second."""
        return min((pool.rate for pool in self.pools if pool.rate > 0), default=0.0)
