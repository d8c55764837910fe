"""What every view is made of: all that is seen at one moment, what is the matter, and names for it."""

from collections.abc import Sequence
from functools import cached_property

from astraflow.contract.fleet import Instance
from astraflow.contract.reports import NodeReport, NodeState
from maintainer.names import Names
from maintainer.observation import Signal, SignalKind, usual_speeds
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

    @cached_property
    def speeds(self) -> dict[str, float]:
        """Episodes a second of nodes that work, by name."""
        return {name: node.episodes_per_s for name, node in self.nodes.items() if node.state is NodeState.READY}

    def speed_share(self, node: NodeReport) -> float | None:
        """Its speed over what nodes of its hardware do where they do best; None while too few tell."""
        usual = self._usual.get(node.facts.hardware, 0.0)
        return node.episodes_per_s / usual if usual > 0 else None

    @cached_property
    def _usual(self) -> dict[str, float]:
        return usual_speeds({name: self.nodes[name] for name in self.speeds}, self.speeds)

    def node(self, instance: Instance) -> NodeReport | None:
        """What dataflow reports of an instance's node."""
        return self.nodes.get(instance.id)
