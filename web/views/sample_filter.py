"""Filter of sampled trajectories, parsed from and written to page addresses."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from urllib.parse import urlencode

from astraflow.contract.queries import MAX_ORDINAL, MAX_SEARCH_CHARS, TrajectoryQuery


class Ending(Enum):
    """End of a member."""

    ANY = ""
    WHOLE = "whole"
    """Ended by the model's own stop."""
    CUT = "cut"
    """Truncated at its length limit."""
    FAILED = "failed"
    """Failed without a trajectory."""


ENDINGS = {
    Ending.ANY: "any",
    Ending.WHOLE: "complete",
    Ending.CUT: "truncated",
    Ending.FAILED: "failed",
}
"""Label of each ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Requested filter. Invalid parts of an address are ignored."""

    policy: str = ""
    group: str = ""
    outcome: str = ""
    text: str = ""
    ending: Ending = Ending.ANY
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
    def is_first_page(self) -> bool:
        """Whether the page starts with the newest trajectory."""
        return self.before is None and self.after is None

    def query(self, *, limit: int) -> TrajectoryQuery:
        """Returns the query for dataflow."""
        has_text = self.ending in (Ending.WHOLE, Ending.CUT)
        return TrajectoryQuery(
            policy=self.policy,
            group=self.group,
            outcome=self.outcome,
            text=self.text,
            step=self.step,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
            is_truncated=self.ending is Ending.CUT if has_text else None,
            is_failed=None if self.ending is Ending.ANY else self.ending is Ending.FAILED,
            before=self.before,
            after=self.after,
            limit=limit,
        )

    def address(self, **changes: object) -> str:
        """Returns the query string of a link with some changes; a change of the filter starts at the newest again."""
        values = {**asdict(self), "before": None, "after": None, "ending": self.ending.value, **changes}
        return urlencode({name: value for name, value in values.items() if value is not None and value != ""})


def filter_from(values: Mapping[str, str], *, policies: tuple[str, ...]) -> SampleFilter:
    """Returns the filter of an address."""
    low, high = _number(values.get("min_reward", "")), _number(values.get("max_reward", ""))
    before, after = _ordinal(values.get("before", "")), _ordinal(values.get("after", ""))
    policy = values.get("policy", "")
    return SampleFilter(
        policy=policy if policy in policies else "",
        group=values.get("group", ""),
        outcome=values.get("outcome", ""),
        text=values.get("text", "").strip()[:MAX_SEARCH_CHARS],
        ending=next((ending for ending in Ending if ending.value == values.get("ending")), Ending.ANY),
        step=_ordinal(values.get("step", "")),
        min_reward=low,
        max_reward=high if low is None or high is None or low <= high else None,
        before=before,
        after=after if before is None else None,
    )


def _ordinal(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ORDINAL))
    return int(text) if is_number and int(text) <= MAX_ORDINAL else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
