"""Input of every view, a snapshot with its signals and names; and numbers for a model."""

import math
from collections.abc import Sequence
from functools import cached_property

from astraflow.contract.fleet.instances import Instance
from astraflow.contract.reports.report import NodeReport, NodeState
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.signals import Signal, SignalKind, best_median_speeds
from maintainer.agent.observation.snapshot import Snapshot


class ViewContext:
    """Snapshot with its signals and names."""

    def __init__(self, snapshot: Snapshot, signals: Sequence[Signal], names: Names) -> None:
        self.snapshot = snapshot
        self.signals = tuple(signals)
        self.names = names

    @cached_property
    def nodes(self) -> dict[str, NodeReport]:
        """Nodes in dataflow's report, by name."""
        return self.snapshot.nodes()

    @cached_property
    def stragglers(self) -> frozenset[str]:
        """Names of nodes much slower than the same hardware elsewhere."""
        return frozenset(signal.subject for signal in self.signals if signal.kind is SignalKind.STRAGGLER)

    @cached_property
    def speeds(self) -> dict[str, float]:
        """Episodes per second of ready nodes, by name."""
        return {name: node.episodes_per_s for name, node in self.nodes.items() if node.state is NodeState.READY}

    def speed_share(self, node: NodeReport) -> float | None:
        """Speed over the best median speed of the same hardware; None if too few nodes report."""
        best_speed = self._best_speeds.get(node.facts.hardware, 0.0)
        return node.episodes_per_s / best_speed if best_speed > 0 else None

    @cached_property
    def _best_speeds(self) -> dict[str, float]:
        return best_median_speeds({name: self.nodes[name] for name in self.speeds}, self.speeds)

    def node(self, instance: Instance) -> NodeReport | None:
        """Dataflow's report of an instance's node; None without one."""
        return self.nodes.get(instance.id)


def rounded(value: float) -> float:
    """Rounds to four significant digits, which cost fewer tokens."""
    return float(f"{value:.4g}") if math.isfinite(value) else 0.0


def rounded_or_none(value: float | None) -> float | None:
    """Rounds a value that may be unknown."""
    return None if value is None else rounded(value)


def seconds_left(until: float | None, now: float) -> float:
    """Seconds until then; 0 for a past time or none."""
    return rounded(max(0.0, until - now)) if until is not None else 0.0
