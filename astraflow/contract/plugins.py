"""Plugins: data algorithms of a run and their changes while it is active, and results of the checks of a plugin."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.values import Json

PluginSpec: TypeAlias = Mapping[str, Json]
"""Plugin spec: its `kind` and the options of that kind."""


class PluginSlot(Enum):
    """Point of the dataflow where plugins decide. `SELECTOR` and `FILTERS` belong to a flow, `SAMPLER` to a policy's
    stream."""

    SELECTOR = "selector"
    FILTERS = "filters"
    SAMPLER = "sampler"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginKind:
    """A plugin that a run can use."""

    slot: PluginSlot
    """Slot that it fits."""
    kind: str
    """Its name in a spec."""
    summary: str
    """First sentence of its documentation; empty for an installed plugin of another package that was not used yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginChange:
    """New plugins for one flow or for one policy's stream. A field that is None leaves its slot unchanged."""

    flow: FlowId | None = None
    policy: PolicyId | None = None
    selector: PluginSpec | None = None
    """New selector of the flow."""
    filters: tuple[PluginSpec, ...] | None = None
    """New filters of the flow: the complete list, in order."""
    sampler: PluginSpec | None = None
    """New sampler of the policy's stream."""
    file: str = ""
    """Absolute path of a Python file on the host of dataflow that registers the plugins; empty: they are known."""
    actor: str
    reason: str

    def specs_by_slot(self) -> dict[PluginSlot, tuple[PluginSpec, ...]]:
        """Returns the new specs of each slot that changes."""
        return {
            **({} if self.selector is None else {PluginSlot.SELECTOR: (self.selector,)}),
            **({} if self.filters is None else {PluginSlot.FILTERS: self.filters}),
            **({} if self.sampler is None else {PluginSlot.SAMPLER: (self.sampler,)}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPlugins:
    """Plugins of one slot that take effect with the next version."""

    slot: PluginSlot
    """Slot whose plugins change."""
    specs: tuple[PluginSpec, ...]
    """Plugins with their options, in order."""
    actor: str
    """Name of the requester."""
    reason: str
    """Reason of the request."""
    version: Version
    """Version at the time of the request. The plugins take effect once it is passed."""


class Outcome(Enum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    """The part refuses the feature, or has no way to show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    promise: str
    outcome: Outcome
    detail: str = ""
    """Cause of an outcome other than `passed`, or the measured value."""
    seconds: float = 0.0


def broken_promises(results: Sequence[CheckResult]) -> list[str]:
    """Returns a line for each broken promise."""
    return [f"{result.promise}: {result.detail}" for result in results if result.outcome is Outcome.FAILED]


def plugin_labels(specs: Iterable[PluginSpec]) -> list[str]:
    """Returns the labels under which a slot's plugins are counted, in order: their kinds, the second of a kind with its
    number, as `length 2`."""
    kinds: list[str] = []
    labels: list[str] = []
    for spec in specs:
        kind = str(spec.get("kind", ""))
        labels.append(f"{kind} {kinds.count(kind) + 1}" if kind in kinds else kind)
        kinds.append(kind)
    return labels
