"""Filter of sampled trajectories, parsed from and written to page addresses."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from urllib.parse import urlencode

from astraflow.contract.reports.queries import MAX_ORDINAL, MAX_SEARCH_CHARS, TrajectoryQuery
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.spans import Ending


class EndFilter(Enum):
    """End of a member: of its last text, or of its interaction."""

    ANY = ""
    WHOLE = "whole"
    """Ended by the model's own stop."""
    CUT = "cut"
    """Truncated at its length limit."""
    FAILED = "failed"
    """Failed without a trajectory."""
    DONE = "done"
    WON = "won"
    LOST = "lost"
    TURNS = "turns"
    CONTEXT = "context"
    MALFORMED = "malformed"
    REPEATED = "repeated"
    BUDGET = "budget"

    @property
    def of_interaction(self) -> Ending | None:
        """Ending of an interaction; None for the others."""
        return next((ending for ending in Ending if ending.value == self.value), None)


TEXT_ENDINGS = {
    EndFilter.ANY: "any",
    EndFilter.WHOLE: "complete",
    EndFilter.CUT: "truncated",
    EndFilter.FAILED: "failed",
}
"""Label of each end that every trajectory may have."""


def ending_options(*, with_interactions: bool) -> dict[EndFilter, str]:
    """Returns the ends to choose from, with their labels."""
    interactions = {end: end.of_interaction.label for end in EndFilter if end.of_interaction is not None}
    return {**TEXT_ENDINGS, **(interactions if with_interactions else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Requested filter. Invalid parts of an address are ignored."""

    policy: str = ""
    group: str = ""
    outcome: str = ""
    text: str = ""
    ending: EndFilter = EndFilter.ANY
    call: CallOutcome | None = None
    """Outcome of a recorded call that the trajectory has."""
    task: str = ""
    role: str = ""
    term: str = ""
    min_term: float | None = None
    max_term: float | None = None
    """Bounds of the reward term; ignored without one."""
    step: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    before: int | None = None
    after: int | None = None

    @property
    def has_filters(self) -> bool:
        """Whether any filter is set."""
        return replace(self, before=None, after=None) != SampleFilter()

    @property
    def hides_members(self) -> bool:
        """Whether the filter may hide members of a group of which it shows others."""
        whole = SampleFilter(policy=self.policy, group=self.group, outcome=self.outcome, step=self.step)
        return replace(self, before=None, after=None) != whole

    @property
    def is_first_page(self) -> bool:
        """Whether the page starts with the newest trajectory."""
        return self.before is None and self.after is None

    def query(self, *, limit: int) -> TrajectoryQuery:
        """Returns the query for dataflow."""
        has_text = self.ending in (EndFilter.WHOLE, EndFilter.CUT)
        has_no_failure = has_text or self.ending.of_interaction is not None
        return TrajectoryQuery(
            policy=self.policy,
            group=self.group,
            task=self.task,
            role=self.role,
            ending=self.ending.of_interaction,
            call=self.call,
            term=self.term,
            min_term=self.min_term if self.term else None,
            max_term=self.max_term if self.term else None,
            outcome=self.outcome,
            text=self.text,
            step=self.step,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
            is_truncated=self.ending is EndFilter.CUT if has_text else None,
            is_failed=None if self.ending is EndFilter.ANY else not has_no_failure,
            before=self.before,
            after=self.after,
            limit=limit,
        )

    def address(self, **changes: object) -> str:
        """Returns the query string of a link with some changes; a change of the filter starts at the newest again."""
        call = self.call.value if self.call else None
        own = {**asdict(self), "before": None, "after": None, "ending": self.ending.value, "call": call}
        values = {**own, **changes}
        return urlencode({name: value for name, value in values.items() if value is not None and value != ""})


def filter_from(values: Mapping[str, str], *, policies: tuple[str, ...]) -> SampleFilter:
    """Returns the filter of an address."""
    min_reward, max_reward = _bounds(values, "reward")
    min_term, max_term = _bounds(values, "term")
    before, after = _ordinal(values.get("before", "")), _ordinal(values.get("after", ""))
    policy = values.get("policy", "")
    return SampleFilter(
        policy=policy if policy in policies else "",
        group=values.get("group", ""),
        outcome=values.get("outcome", ""),
        text=values.get("text", "").strip()[:MAX_SEARCH_CHARS],
        ending=next((ending for ending in EndFilter if ending.value == values.get("ending")), EndFilter.ANY),
        call=outcome_named(values.get("call", "")),
        task=values.get("task", ""),
        role=values.get("role", ""),
        term=values.get("term", ""),
        min_term=min_term,
        max_term=max_term,
        step=_ordinal(values.get("step", "")),
        min_reward=min_reward,
        max_reward=max_reward,
        before=before,
        after=after if before is None else None,
    )


def outcome_named(name: str) -> CallOutcome | None:
    """Returns the outcome of calls with this name; None for any other text."""
    return next((outcome for outcome in CallOutcome if outcome.value == name), None)


def _bounds(values: Mapping[str, str], name: str) -> tuple[float | None, float | None]:
    """Returns the lower and the upper bound, without an upper one below the lower one."""
    low, high = _number(values.get(f"min_{name}", "")), _number(values.get(f"max_{name}", ""))
    return low, high if low is None or high is None or low <= high else None


def _ordinal(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ORDINAL))
    return int(text) if is_number and int(text) <= MAX_ORDINAL else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
