"""Data algorithms as a run is told about them: what is asked for, and what is to change while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.values import Json

PluginSpec: TypeAlias = Mapping[str, Json]
"""A plug-in: its `kind` and that kind's options."""


class Seam(Enum):
    """A point of the dataflow where plug-ins decide. The first two belong to a flow, the last to a policy's stream."""

    SELECTOR = "selector"
    FILTERS = "filters"
    SAMPLER = "sampler"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginChange:
    """Other plug-ins for one flow or for one policy's stream. What is None stays as it is."""

    flow: FlowId | None = None
    policy: PolicyId | None = None
    selector: PluginSpec | None = None
    """Of a flow."""
    filters: tuple[PluginSpec, ...] | None = None
    """Of a flow: all of them, in order."""
    sampler: PluginSpec | None = None
    """Of a policy's stream."""
    actor: str
    reason: str

    def wanted(self) -> dict[Seam, tuple[PluginSpec, ...]]:
        """The specs of each seam that is to change."""
        return {
            **({} if self.selector is None else {Seam.SELECTOR: (self.selector,)}),
            **({} if self.filters is None else {Seam.FILTERS: self.filters}),
            **({} if self.sampler is None else {Seam.SAMPLER: (self.sampler,)}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPlugins:
    """Plug-ins of one seam that take over with the next version."""

    seam: Seam
    specs: tuple[PluginSpec, ...]
    actor: str
    reason: str
    version: Version
    """At which they were asked for: they take over once it is passed."""
