"""What every view is made of: all that is seen at one moment, what is the matter, and names for it."""

from collections.abc import Sequence
from functools import cached_property

from astraflow.contract.fleet import Instance
from astraflow.contract.reports import NodeReport
from maintainer.names import Names
from maintainer.observation import Signal, SignalKind
from maintainer.sight import Sight


class Moment:
    """One look, with its signals."""

    def __init__(self, sight: Sight, signals: Sequence[Signal], names: Names) -> None:
        self.sight = sight
        self.signals = tuple(signals)
        self.names = names

    @cached_property
    def nodes(self) -> dict[str, NodeReport]:
        """What dataflow reports, by name."""
        return self.sight.nodes()

    @cached_property
    def stragglers(self) -> frozenset[str]:
        """Names of nodes that are much slower than their like."""
        return frozenset(signal.subject for signal in self.signals if signal.kind is SignalKind.STRAGGLER)

    def node(self, instance: Instance) -> NodeReport | None:
        """What dataflow reports of an instance's node."""
        return self.nodes.get(instance.id)
