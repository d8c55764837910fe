"""How rewards are spread, as bars that are links."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.lookups import RewardSpread
from web.present import formats
from web.present.sample_filter import SampleFilter

MOST_BARS = 60
"""Of a spread with wide holes, empty bins between two others are left out beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bin."""

    label: str
    """From, and to before."""
    edge: str
    """Where it begins: what fits below a bar."""
    count: str
    groups: str
    share: float
    """Of the fullest bin."""
    address: str
    """Of the page that shows it; empty for an empty bin."""
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """All bins, and what they say."""

    bars: tuple[Bar, ...]
    finding: str
    note: str
    failed: int
    failed_address: str
    total: int


def histogram(spread: RewardSpread, asked: SampleFilter, *, path: str) -> Histogram:
    """path: of the page of trajectories, which the bars lead to."""
    most = max((one.trajectories for one in spread.bins), default=1)
    total = sum(one.trajectories for one in spread.bins)
    bars: list[Bar] = []
    end: float | None = None
    for one in spread.bins:
        width = one.end - one.begin
        holes = 0 if end is None else round((one.begin - end) / width)
        bars += [_hole((end or 0.0) + place * width, width) for place in range(min(holes, MOST_BARS))]
        end = one.end
        bars.append(
            Bar(
                label=_edge(one.lowest) if one.lowest == one.highest else _label(one.begin, one.end),
                edge=_edge(one.lowest if one.lowest == one.highest else one.begin),
                count=formats.count(one.trajectories),
                groups=formats.several(one.groups, "group"),
                share=one.trajectories / most,
                address=f"{path}?{asked.address(min_reward=one.lowest, max_reward=one.highest)}",
                is_chosen=(asked.min_reward, asked.max_reward) == (one.lowest, one.highest),
            )
        )
    return Histogram(
        bars=tuple(bars),
        finding=_finding(spread, total),
        note=formats.several(total, "trajectory").replace("trajectorys", "trajectories"),
        failed=spread.failed,
        failed_address=f"{path}?{asked.address(ending='failed', min_reward=None, max_reward=None)}",
        total=total,
    )


def _hole(begin: float, width: float) -> Bar:
    label = _label(begin, begin + width)
    return Bar(label=label, edge=_edge(begin), count="0", groups="", share=0.0, address="", is_chosen=False)


def _label(begin: float, end: float) -> str:
    return f"{_edge(begin)} to {_edge(end)}"


def _edge(value: float) -> str:
    return f"{round(value, 9):g}".replace("-", "\N{MINUS SIGN}")


def _finding(spread: RewardSpread, total: int) -> str:
    """What the spread says, in a sentence."""
    if not total:
        return "No reward yet"
    fullest = max(spread.bins, key=lambda one: one.trajectories)
    share = formats.percent(fullest.trajectories / total)
    if len(spread.bins) == 1:
        return f"All scored {_scored(fullest.lowest, fullest.highest)}"
    return f"{share} scored {_scored(fullest.lowest, fullest.highest)}"


def _scored(lowest: float, highest: float) -> str:
    if lowest == highest:
        return formats.reward(lowest)
    return f"{formats.reward(lowest)} to {formats.reward(highest)}"


def bin_rows(spread: RewardSpread) -> Sequence[Sequence[float]]:
    """Bins as the rows of a file."""
    return [(one.begin, one.end, one.trajectories, one.groups) for one in spread.bins]
