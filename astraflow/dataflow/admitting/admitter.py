"""Decides what of a finished group goes into which stream."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId
from astraflow.contract.trajectories import Group
from astraflow.dataflow.admitting.filtering import Filter
from astraflow.dataflow.admitting.routing import RoutedGroup, route

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

    def __init__(
        self, policies: Sequence[PolicyId], filters: Sequence[tuple[str, Filter]], *, min_group_size: int
    ) -> None:
        self._policies = tuple(policies)
        self._filters = tuple(filters)
        self._min_group_size = min_group_size

    def admit(self, group: Group) -> Admission:
        """Decide. A policy that the group has too few trajectories for is refused as `failed`."""
        routed = route(group)
        kept: dict[PolicyId, RoutedGroup] = {}
        refused: dict[PolicyId, str] = {}
        for policy in self._policies:
            reason = self._refusal(routed.get(policy))
            if reason is None:
                kept[policy] = routed[policy]
            else:
                refused[policy] = reason
        return Admission(kept=kept, refused=refused)

    def _refusal(self, group: RoutedGroup | None) -> str | None:
        if group is None or len({row.task for row in group.rows}) < self._min_group_size:
            return FAILED
        return next((kind for kind, filter_ in self._filters if not filter_.keep(group)), None)
