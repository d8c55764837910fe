"""Changes of a run itself, which agents plan for a fault of learning.

A change of a run is planned, judged, approved and applied like a change of a pool (`astraflow.contract.fleet.plans`).
"""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Name, PoolId
from astraflow.contract.plugins import PluginSlot

RUN = PoolId("run")
"""Stands for the run in place of a pool; no pool may have this name."""


class RunAction(Enum):
    """Action of a change. The value of `STOP` and `FORK` is also the verb of the command line."""

    PAUSE = "pause"
    """Issues no new groups of a flow."""
    RESUME = "resume"
    """Issues groups of a paused flow again."""
    PLUGIN = "plugin"
    """Replaces a selector, the filters or a sampler by one plugin with its default options, from the next version."""
    EVALUATE = "evaluate"
    """Begins a round of an evaluation with the newest versions."""
    STOP = "stop"
    """Ends the processes of the run; it can be resumed."""
    FORK = "fork"
    """Starts a new run in the newest kept checkpoint, with another learning rate of a policy. This run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """Requested change of a run."""

    action: RunAction
    """Action, which decides the fields that are set."""
    subject: str = ""
    """Flow, evaluation or policy that it concerns; empty to stop the run."""
    slot: PluginSlot | None = None
    """Slot of the plugin; None for other actions."""
    kind: str = ""
    """Kind of the new plugin; empty for other actions."""
    learning_rate: float | None = None
    """Learning rate of the policy in a fork; None for other actions."""

    def __post_init__(self) -> None:
        needs = {
            "subject": (self.action is not RunAction.STOP, bool(self.subject)),
            "slot": (self.action is RunAction.PLUGIN, self.slot is not None),
            "kind": (self.action is RunAction.PLUGIN, bool(self.kind)),
            "learning rate": (self.action is RunAction.FORK, self.learning_rate is not None),
        }
        for what, (is_needed, is_set) in needs.items():
            if is_needed is not is_set:
                raise InvalidInput(
                    f"cannot plan {self.action.value!r}: it {'needs a' if is_needed else 'takes no'} {what}; "
                    "see the schema of the tool",
                    code="run_change.invalid",
                )
        for name in filter(None, (self.subject, self.kind)):
            Name(name)
        if self.learning_rate is not None and not 0 < self.learning_rate <= 1:
            raise InvalidInput(
                f"cannot plan a fork with the learning rate {self.learning_rate:g}: use more than 0 and at most 1",
                code="run_change.invalid_rate",
            )

    @property
    def sentence(self) -> str:
        """The change for people.

        >>> RunChange(action=RunAction.FORK, subject="solver", learning_rate=1e-4).sentence
        'fork the run, with a learning rate of 0.0001 of solver'
        """
        match self.action:
            case RunAction.PLUGIN:
                slot = self.slot.value if self.slot is not None else ""
                return f"use the {slot} {self.kind} in {self.subject}"
            case RunAction.EVALUATE:
                return f"evaluate the newest versions by {self.subject}"
            case RunAction.STOP:
                return "stop the run"
            case RunAction.FORK:
                return f"fork the run, with a learning rate of {self.learning_rate:g} of {self.subject}"
            case _:
                return f"{self.action.value} the flow {self.subject}"
