"""Samples the groups with the highest priority first. (After prioritized experience replay, arXiv:1511.05952)"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.admission.conditions import Conditions
from astraflow.dataflow.serving.buffer import BufferedGroup, filled
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class PriorityRule(Conditions):
    """Priority of the groups for which the conditions hold."""

    priority: float
    """Higher is sooner. A group that no rule matches has 0."""


class PriorityOptions(Config):
    """Options of the sampler `priority`."""

    by: Annotated[Literal["spread", "reward", "rules"], SettableBy.AGENT] = "spread"
    """`spread`: largest standard deviation of rewards, where group-relative advantages are largest before they are
    normalised; `reward`: highest mean reward; `rules`: the first of `rules` whose conditions hold."""
    rules: tuple[PriorityRule, ...] = Field(default=(), max_length=16)

    @model_validator(mode="after")
    def _rules_are_used(self) -> Self:
        if bool(self.rules) != (self.by == "rules"):
            raise ValueError("rules and by = 'rules' belong together: give both, or neither")
        return self


@samplers.register("priority", options=PriorityOptions)
class Priority:
    """Uses every group once; groups at their deadline come first, so that none is lost to one of higher priority."""

    def __init__(self, options: PriorityOptions) -> None:
        self._by = options.by
        self._rules = options.rules
        self._matched = [0] * len(self._rules)
        self._sampled = 0
        self._urgent = 0

    def fresh_count(self, count: int, trained: int) -> int:
        """Returns `count`: all groups are fresh."""
        return count

    def sample(
        self, fresh: Sequence[BufferedGroup], trained: Sequence[BufferedGroup], count: int, version: Version
    ) -> list[BufferedGroup]:
        """Returns the groups that would be too stale in the next batch, then the groups of highest priority."""
        order = sorted(fresh, key=lambda group: (group.deadline > version, -self._priority(group, version)))
        chosen = filled(order, count)
        for group in chosen:
            rule = self._rule_of(group, version)
            if rule is not None:
                self._matched[rule] += 1
        self._sampled += len(chosen)
        self._urgent += sum(group.deadline <= version for group in chosen)
        return chosen

    def state_dict(self) -> dict[str, Json]:
        """Returns the counts of groups."""
        return {"taken": self._sampled, "urgent": self._urgent, "matched": list(self._matched)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._sampled, self._urgent = state["taken"], state["urgent"]
        matched = list(state.get("matched", ()))  # absent from runs of earlier releases
        if len(matched) == len(self._rules):  # else the rules have changed, and their counts begin again
            self._matched = matched

    def metrics(self) -> dict[str, float]:
        """Returns the share of groups that were taken because of their deadline, and the groups taken of each rule."""
        taken_by_rule = {
            f"rule_{position}_taken": float(count) for position, count in enumerate(self._matched, start=1)
        }
        return {"urgent_share": self._urgent / self._sampled if self._sampled else 0.0, **taken_by_rule}

    def _rule_of(self, candidate: BufferedGroup, version: Version) -> int | None:
        return next(
            (position for position, rule in enumerate(self._rules) if rule.hold_for(candidate.group, version)), None
        )

    def _priority(self, candidate: BufferedGroup, version: Version) -> float:
        if self._by == "rules":
            rule = self._rule_of(candidate, version)
            return 0.0 if rule is None else self._rules[rule].priority
        rewards = candidate.group.role_rewards().values()
        return float(np.mean([np.std(values) if self._by == "spread" else np.mean(values) for values in rewards]))
