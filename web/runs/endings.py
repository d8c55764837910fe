"""Shares of the endings of interactions over the steps of a run, as a stacked chart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.training_metrics import ENDING_PREFIX
from web.charts import scales
from web.charts.charts import Row
from web.components import formats
from web.history.points import rounded
from web.history.training_steps import STEP

HEIGHT = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingShare:
    """One area of the chart."""

    metric: str
    label: str
    style: str
    """CSS class."""
    path: str
    latest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingsChart:
    """The chart, ready for the template."""

    shares: tuple[EndingShare, ...]
    """From the bottom up."""
    insight: str
    x_ticks: tuple[tuple[float, str], ...]
    options: Mapping[str, Any]
    height: int = HEIGHT


def endings_chart(rows: Sequence[Row]) -> EndingsChart | None:
    """Draws the shares of each row (of `training_rows`, oldest first); None when no interaction ended.

    A row over several steps has means of shares, which are scaled to add up to 1 again.
    """
    points = [
        (float(step), shares)
        for _, values in rows
        if (step := values.get(STEP)) is not None
        if (shares := _shares(values))
    ]
    if not points:
        return None
    endings = [ending for ending in Ending if any(ending in shares for _, shares in points)]
    window = scales.Window(start=points[0][0], end=max(points[-1][0], points[0][0] + 1), range_s=None)
    floors = [0.0] * len(points)
    drawn = []
    for ending in endings:
        tops = [floor + shares.get(ending, 0.0) for floor, (_, shares) in zip(floors, points, strict=True)]
        places = [window.x_of(step) for step, _ in points]
        drawn.append(
            EndingShare(
                metric=f"{ENDING_PREFIX}{ending.value}",
                label=ending.label,
                style=f"ending-{ending.value}",
                path=_area(places, floors, tops),
                latest=formats.percent(points[-1][1].get(ending, 0.0)),
            )
        )
        floors = tops
    most = max(endings, key=lambda ending: points[-1][1].get(ending, 0.0))
    return EndingsChart(
        shares=tuple(drawn),
        insight=f"Most interactions ended as: {most.label}, {formats.percent(points[-1][1].get(most, 0.0))}",
        x_ticks=tuple(scales.step_ticks(window)),
        options={
            "start": window.start,
            "end": window.end,
            "by": "step",
            "format": "percent",
            "lines": [[[step, rounded(shares.get(ending, 0.0))] for step, shares in points] for ending in endings],
        },
    )


def _shares(values: Mapping[str, float | None]) -> dict[Ending, float]:
    shares = {ending: max(0.0, values.get(f"{ENDING_PREFIX}{ending.value}") or 0.0) for ending in Ending}
    total = sum(shares.values())
    return {ending: share / total for ending, share in shares.items() if share} if total else {}


def _area(places: Sequence[float], floors: Iterable[float], tops: Iterable[float]) -> str:
    """Returns the path around the area; a single row is as wide as the chart."""
    if len(places) == 1:
        places, floors, tops = (0.0, scales.WIDTH), [*floors] * 2, [*tops] * 2
    upper = [f"{x:.1f} {HEIGHT * (1 - top):.1f}" for x, top in zip(places, tops, strict=True)]
    lower = [f"{x:.1f} {HEIGHT * (1 - floor):.1f}" for x, floor in zip(places, floors, strict=True)]
    return f"M{'L'.join([*upper, *reversed(lower)])}Z"
