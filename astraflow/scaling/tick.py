"""One decision in the making: what it is made of, and what it has come to so far."""

from dataclasses import dataclass, field

from astraflow.contract.advice import Cap, Reason
from astraflow.scaling.balance import Balance
from astraflow.scaling.capacity import Capacity
from astraflow.scaling.gates import is_gated
from astraflow.scaling.options import Spec
from astraflow.scaling.pools import Pool
from astraflow.scaling.signals import Signals
from astraflow.scaling.state import SizerState


@dataclass(slots=True)
class Tick:
    """The moves of a tick change `pools`, `reasons`, `capped_by`, `victims` and `after`; all else is given."""

    signals: Signals
    spec: Spec
    before: SizerState
    capacity: Capacity
    pools: list[Pool]
    balance: Balance | None = None
    reasons: list[Reason] = field(default_factory=list)
    capped_by: list[Cap] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)
    after: SizerState = field(default_factory=SizerState)
    policy: str = "sizer"

    @property
    def at(self) -> float:
        """Unix seconds."""
        return self.signals.at

    def recent(self, actions: tuple[float, ...]) -> list[float]:
        """Those within the window that the budget of actions is about."""
        return [action for action in actions if self.at - action < self.spec.options.action_window_s]

    def is_just_after(self, actions: tuple[float, ...]) -> bool:
        """Whether a move the other way would be a flap."""
        return any(self.at - action <= self.spec.options.action_window_s for action in actions)

    @property
    def is_gated(self) -> bool:
        """A trainer waits, and more nodes would hardly help."""
        return is_gated(self.signals.gate, wait_high=self.spec.options.wait_high)

    @property
    def smallest_rate(self) -> float:
        """Groups a second of the smallest node that could be ordered."""
        return min((pool.rate for pool in self.pools if pool.rate > 0), default=0.0)
