"""Decides which policies' streams receive a finished group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.batches import Rows
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.values import Json
from astraflow.dataflow.admission.filters import Filter
from astraflow.dataflow.admission.routing import RoutedGroup, route
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.runtime.logs import get_logger

log = get_logger()

FAILED = "failed"
"""Reason of a group with fewer successful members than the minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Decision about a finished group, for each policy."""

    admitted: dict[PolicyId, RoutedGroup]
    refused: dict[PolicyId, str]
    """Reason of refusal for each policy that receives nothing."""


class Admitter:
    """Routes a group to its policies, then applies each filter in order."""

    def __init__(self, policies: Sequence[PolicyId], filters: SlotPlugins[Filter], *, min_group_size: int) -> None:
        self._policies = tuple(policies)
        self.slot_plugins = filters
        self._min_group_size = min_group_size

    def admit(self, group: Group, versions: Mapping[PolicyId, Version]) -> Admission:
        """Decides for each policy. A policy with too few trajectories in the group is refused as `failed`.

        versions: the trainers' current versions.
        """
        routed = route(group)
        admitted: dict[PolicyId, RoutedGroup] = {}
        refused: dict[PolicyId, str] = {}
        for policy in self._policies:
            reason = self._refusal(routed.get(policy), versions[policy])
            if reason is None:
                admitted[policy] = routed[policy]
            else:
                refused[policy] = reason
        return Admission(admitted=admitted, refused=refused)

    def state_dict(self) -> dict[str, Json]:
        """Returns the state of the filters."""
        return self.slot_plugins.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self.slot_plugins.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Returns the filters' metrics, named `kind.metric`."""
        return self.slot_plugins.metrics()

    def _refusal(self, group: RoutedGroup | None, version: Version) -> str | None:
        if group is None or len({*Rows.of(group.rows).tasks}) < self._min_group_size:
            return FAILED
        return next(
            (
                refusal
                for label, plugin in self.slot_plugins
                if (refusal := _filter_refusal(plugin, label, group, version))
            ),
            None,
        )


def _filter_refusal(plugin: Filter, label: str, group: RoutedGroup, version: Version) -> str | None:
    """Returns the reason of refusal, None if the filter keeps the group. A filter that raises refuses the group."""
    try:
        return None if plugin.keep(group, version) else label
    except (
        Exception
    ):  # a third-party filter may raise anything; the push that completed the group must not be half applied
        log.exception("filter_failed", filter=label, group=group.id)
        return f"{label} failed"
