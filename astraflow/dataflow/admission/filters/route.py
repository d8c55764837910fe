"""Routes groups to the streams of policies by rules over their metadata."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.values import Json
from astraflow.dataflow.admission.conditions import Conditions
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class RouteRule(Conditions):
    """Streams that receive the groups for which the conditions hold."""

    to: Annotated[tuple[str, ...], SettableBy.OPERATOR]
    """Policies whose streams receive their own trajectories of the group; the others' are dropped. Empty: all are."""


class RouteOptions(Config):
    """Rules in order: the first whose conditions hold decides. Where none holds, every stream receives its own."""

    rules: tuple[RouteRule, ...] = Field(min_length=1, max_length=16)

    @model_validator(mode="after")
    def _rules_are_reachable(self) -> Self:
        for position, rule in enumerate(self.rules[:-1]):
            if rule.always_hold:
                raise ValueError(
                    f"rules.{position} has no conditions, so that no later rule is reached: give it one, or move it to "
                    "the end"
                )
        return self


@filters.register("route", options=RouteOptions)
class Route:
    """Decides by rules which policies' streams receive a group.

    Trajectories never enter the stream of another policy: its staleness bound counts versions of its own weights.
    """

    def __init__(self, options: RouteOptions) -> None:
        self._rules = options.rules
        self._matched = [0] * len(self._rules)
        self._dropped = [0] * len(self._rules)
        self._unmatched = 0

    def check_policies(self, policies: tuple[PolicyId, ...]) -> None:
        """Checks the rules against the policies of their flow. Raises: ValueError that names the rule."""
        for position, rule in enumerate(self._rules):
            for policy in rule.to:
                if policy not in policies:
                    known = ", ".join(repr(str(name)) for name in policies)
                    raise ValueError(
                        f"rules.{position}.to names {str(policy)!r}, but this flow trains {known}; name one of these"
                    )
        starved = [policy for policy in policies if all(policy not in rule.to for rule in self._rules)]
        if starved and self._rules[-1].always_hold:
            raise ValueError(
                f"no rule routes anything to {str(starved[0])!r}, whose trainer would wait for ever; name it in `to`"
            )

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether the stream of the group's policy receives it."""
        for position, rule in enumerate(self._rules):
            if rule.hold_for(group, version):
                is_kept = group.policy in rule.to
                self._matched[position] += 1
                self._dropped[position] += not is_kept
                return is_kept
        self._unmatched += 1
        return True

    def state_dict(self) -> dict[str, Json]:
        """Returns the counts of each rule."""
        return {"matched": list(self._matched), "dropped": list(self._dropped), "unmatched": self._unmatched}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the counts; they begin again if the number of rules has changed."""
        if len(state["matched"]) == len(self._rules):
            self._matched, self._dropped = list(state["matched"]), list(state["dropped"])
            self._unmatched = state["unmatched"]

    def metrics(self) -> dict[str, float]:
        """Returns how many policies' shares of groups each rule matched and dropped, and how many matched none."""
        counts = {"unmatched": float(self._unmatched)}
        for position, (matched, dropped) in enumerate(zip(self._matched, self._dropped, strict=True), start=1):
            counts |= {f"rule_{position}_matched": float(matched), f"rule_{position}_dropped": float(dropped)}
        return counts
