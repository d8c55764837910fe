"""Decides what of a finished group goes into which stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.groups import Group
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.filtering import Filter
from astraflow.dataflow.admitting.routing import RoutedGroup, route
from astraflow.dataflow.plugged import Plugged
from astraflow.runtime.logs import get_logger

log = get_logger()

FAILED = "failed"
"""Reason of a group with fewer successful members than the minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What became of a finished group, policy by policy."""

    kept: dict[PolicyId, RoutedGroup]
    refused: dict[PolicyId, str]
    """Why, for each policy that gets nothing."""


class Admitter:
    """Routes a group to its policies, then asks each filter in order."""

    def __init__(self, policies: Sequence[PolicyId], filters: Plugged[Filter], *, min_group_size: int) -> None:
        self._policies = tuple(policies)
        self.plugged = filters
        self._min_group_size = min_group_size

    def admit(self, group: Group, versions: Mapping[PolicyId, Version]) -> Admission:
        """Decide. A policy that the group has too few trajectories for is refused as `failed`.

        versions: of the trainers now.
        """
        routed = route(group)
        kept: dict[PolicyId, RoutedGroup] = {}
        refused: dict[PolicyId, str] = {}
        for policy in self._policies:
            reason = self._refusal(routed.get(policy), versions[policy])
            if reason is None:
                kept[policy] = routed[policy]
            else:
                refused[policy] = reason
        return Admission(kept=kept, refused=refused)

    def state_dict(self) -> dict[str, Json]:
        """The filters'."""
        return self.plugged.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.plugged.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """The filters', as `kind.metric`."""
        return self.plugged.metrics()

    def _refusal(self, group: RoutedGroup | None, version: Version) -> str | None:
        if group is None or len({row.task for row in group.rows}) < self._min_group_size:
            return FAILED
        return next((refusal for label, one in self.plugged if (refusal := _asked(one, label, group, version))), None)


def _asked(one: Filter, label: str, group: RoutedGroup, version: Version) -> str | None:
    """Why a filter refuses. A filter that breaks refuses: what the group went through is counted either way."""
    try:
        return None if one.keep(group, version) else label
    except Exception:  # whatever a third party's raises: the push it came with must not be half taken
        log.exception("filter_broke", filter=label, group=group.id)
        return f"{label} broke"
