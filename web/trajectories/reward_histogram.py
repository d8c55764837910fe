"""Histogram of rewards, whose bars link to the trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.reports.queries import RewardHistogram
from astraflow.contract.rollouts.spans import Ending
from web.components import formats
from web.trajectories.filters import SampleFilter

MAX_EMPTY_BARS = 60
"""Maximum number of empty bins that are drawn between two others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBar:
    """One bin."""

    label: str
    """Bounds of the bin; the upper one is exclusive."""
    edge: str
    """Lower bound, short enough to fit below a bar."""
    count: str
    groups: str
    share: float
    """Height relative to the fullest bin."""
    address: str
    """Link to its trajectories; empty for an empty bin."""
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """All bins, with an insight."""

    bars: tuple[HistogramBar, ...]
    insight: str
    note: str
    failed: int
    failed_address: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingCount:
    """Trajectories with one ending."""

    label: str
    count: str
    share: str
    address: str
    """Link to them."""
    is_chosen: bool


def histogram(spread: RewardHistogram, filters: SampleFilter, *, path: str, of_term: bool = False) -> Histogram:
    """Draws the histogram. path: page of trajectories to which the bars link. of_term: values are those of the
    filter's reward term."""
    low, high = ("min_term", "max_term") if of_term else ("min_reward", "max_reward")
    chosen = (getattr(filters, low), getattr(filters, high))
    most = max((reward_bin.trajectories for reward_bin in spread.bins), default=1)
    total = sum(reward_bin.trajectories for reward_bin in spread.bins)
    bars: list[HistogramBar] = []
    end: float | None = None
    for reward_bin in spread.bins:
        width = reward_bin.end - reward_bin.begin
        gaps = 0 if end is None else round((reward_bin.begin - end) / width)
        bars += [_empty_bar((end or 0.0) + index * width, width) for index in range(min(gaps, MAX_EMPTY_BARS))]
        end = reward_bin.end
        bars.append(
            HistogramBar(
                label=_edge(reward_bin.lowest)
                if reward_bin.lowest == reward_bin.highest
                else _label(reward_bin.begin, reward_bin.end),
                edge=_edge(reward_bin.lowest if reward_bin.lowest == reward_bin.highest else reward_bin.begin),
                count=formats.count(reward_bin.trajectories),
                groups=formats.several(reward_bin.groups, "group"),
                share=reward_bin.trajectories / most,
                address=f"{path}?{filters.address(**{low: reward_bin.lowest, high: reward_bin.highest})}",
                is_chosen=chosen == (reward_bin.lowest, reward_bin.highest),
            )
        )
    return Histogram(
        bars=tuple(bars),
        insight=_insight(spread, total),
        note=formats.several(total, "trajectory").replace("trajectorys", "trajectories"),
        failed=spread.failed,
        failed_address=f"{path}?{filters.address(ending='failed', min_reward=None, max_reward=None)}",
        total=total,
    )


def ending_counts(spread: RewardHistogram, filters: SampleFilter, *, path: str) -> tuple[EndingCount, ...]:
    """Returns the endings of interactions, the most frequent first. path: page to which they link."""
    total = sum(spread.endings.values())
    labels = {ending.value: ending.label for ending in Ending}
    return tuple(
        EndingCount(
            label=labels.get(name, name),
            count=formats.count(number),
            share=formats.percent(number / total),
            address=f"{path}?{filters.address(ending=name)}",
            is_chosen=filters.ending.value == name,
        )
        for name, number in sorted(spread.endings.items(), key=lambda item: (-item[1], item[0]))
    )


def _empty_bar(begin: float, width: float) -> HistogramBar:
    label = _label(begin, begin + width)
    return HistogramBar(label=label, edge=_edge(begin), count="0", groups="", share=0.0, address="", is_chosen=False)


def _label(begin: float, end: float) -> str:
    return f"{_edge(begin)} to {_edge(end)}"


def _edge(value: float) -> str:
    return f"{round(value, 9):g}".replace("-", "\N{MINUS SIGN}")


def _insight(spread: RewardHistogram, total: int) -> str:
    """Returns the distribution as a sentence."""
    if not total:
        return "No reward yet"
    fullest = max(spread.bins, key=lambda reward_bin: reward_bin.trajectories)
    share = formats.percent(fullest.trajectories / total)
    if len(spread.bins) == 1:
        return f"All scored {_reward_range(fullest.lowest, fullest.highest)}"
    return f"{share} scored {_reward_range(fullest.lowest, fullest.highest)}"


def _reward_range(lowest: float, highest: float) -> str:
    if lowest == highest:
        return formats.reward(lowest)
    return f"{formats.reward(lowest)} to {formats.reward(highest)}"


def bin_rows(spread: RewardHistogram) -> Sequence[Sequence[float]]:
    """Returns the bins as rows of a file."""
    return [
        (reward_bin.begin, reward_bin.end, reward_bin.trajectories, reward_bin.groups) for reward_bin in spread.bins
    ]
