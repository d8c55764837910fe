"""What-if comparison: replays of dataflow's record with other bounds of a pool and with the current ones."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import PoolRecommendation, WhatIfAnswer, WhatIfQuestion
from web.charts.panels import Panel, PanelView, Row, Series, panel_view
from web.charts.tables import as_sheet, columns_json
from web.components import formats
from web.components.downloads import Sheet
from web.components.formats import usd

MIN_MINUTE_POINTS = 5
"""Minimum points by the minute; shorter records are replayed by the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsComparison:
    """Two replays of the same record: with current and with changed options."""

    pool: str
    current: WhatIfAnswer
    changed: WhatIfAnswer

    def recommendations(self, answer: WhatIfAnswer) -> list[PoolRecommendation]:
        """Targets of the pool, oldest first."""
        return [recommendation for recommendation in answer.recommendations if recommendation.pool == self.pool]


async def compare_bounds(
    control: ControlPlaneClient, pool: Pool, bounds: Mapping[str, Any], *, options: Mapping[str, Any], hours: float
) -> BoundsComparison:
    """Runs both replays. bounds: of the pool, as in `dataflow.pools`. Raises: as the control plane's `what_if`."""
    spec = pool.spec
    current_bounds: dict[str, Any] = {"mode": spec.mode.value, "min_nodes": spec.min_nodes, "max_nodes": spec.max_nodes}
    limit = max(2, min(20_000, round(hours * 60)))
    questions = (
        WhatIfQuestion(pools={spec.id: current_bounds}, limit=limit),
        WhatIfQuestion(options=options, pools={spec.id: current_bounds | dict(bounds)}, limit=limit),
    )
    current, changed = await asyncio.gather(*(_answer(control, question) for question in questions))
    return BoundsComparison(pool=spec.id, current=current, changed=changed)


async def _answer(control: ControlPlaneClient, question: WhatIfQuestion) -> WhatIfAnswer:
    """Replays the whole run by the minute; a run with too few points by the second."""
    answer = await control.what_if(question)
    if answer.reports >= MIN_MINUTE_POINTS:
        return answer
    seconds = WhatIfQuestion(options=question.options, pools=question.pools, resolution_s=1, limit=900)
    return await control.what_if(seconds)


def figures(answers: BoundsComparison, of: str) -> Sequence[float]:
    """Changed, current and recorded value of `node_hours`, `usd` or `wait`."""
    current, changed, pool = answers.current, answers.changed, answers.pool
    return {
        "node_hours": (
            changed.node_hours.get(pool, 0.0),
            current.node_hours.get(pool, 0.0),
            current.recorded_node_hours.get(pool, 0.0),
        ),
        "usd": (changed.dollars, current.dollars, current.recorded_dollars),
        "wait": (changed.wait, current.wait, current.recorded_wait),
    }[of]


TARGETS = Panel(
    name="what-if",
    label="Target of the pool, in nodes",
    series=(
        Series(value="then", label="with these bounds", draw="step"),
        Series(value="now", label="with current bounds", style="second", draw="step"),
    ),
    format="count",
    table="what-if",
    from_zero=True,
    at_least=4.0,
    limit_label="max nodes",
    height=176,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """View model of the comparison."""

    insight: str
    view: PanelView
    table: dict[str, Any]
    """Table of the chart, see `web.charts.tables`."""
    rows: tuple[tuple[str, str, str, str], ...]
    """Figure, recorded value, value with current bounds, value with these bounds."""
    steps: tuple[tuple[str, str, str], ...]
    """Targets as a table: elapsed time, with current bounds, with these bounds."""
    note: str


def what_if_view(answers: BoundsComparison, *, max_nodes: int) -> WhatIfView:
    """Builds the chart and its table."""
    began, ended = answers.changed.began_at, answers.changed.ended_at
    lines = {"then": answers.recommendations(answers.changed), "now": answers.recommendations(answers.current)}
    rows = _rows(lines["then"], lines["now"], began, ended)
    changes = [rows[0], *(later for earlier, later in pairwise(rows) if earlier[1] != later[1])]
    return WhatIfView(
        insight=_insight(answers),
        view=panel_view(replace(TARGETS, limit=float(max_nodes)), rows),
        table=columns_json(
            [(at, {**values, "elapsed": at - began}) for at, values in rows],
            ("now", "then"),
            kinds={"elapsed": "elapsed", "time": "at"},
        ),
        rows=(
            ("Trainer waits", *_texts(answers, "wait", formats.percent)),
            ("Node hours", *_texts(answers, "node_hours", formats.rate)),
            ("Cost, all pools", *_texts(answers, "usd", usd)),
        ),
        steps=tuple(
            (
                formats.duration(at - began) if at > began else "start",
                formats.count(values["now"]),
                formats.count(values["then"]),
            )
            for at, values in changes
        ),
        note=(
            f"Replayed over {formats.several(answers.changed.reports, 'report')} of the last "
            f"{formats.duration(ended - began)}. Waits include only those caused by too few nodes."
        ),
    )


def what_if_sheet(answers: BoundsComparison) -> Sheet:
    """Returns both lines as a sheet: a row for each time at which a target changes, and for the two ends."""
    lines = {"then": answers.recommendations(answers.changed), "now": answers.recommendations(answers.current)}
    rows = _rows(lines["then"], lines["now"], answers.changed.began_at, answers.changed.ended_at)
    return as_sheet(f"astraflow-what-if-{answers.pool}", rows, [series.value for series in TARGETS.series])


def _insight(answers: BoundsComparison) -> str:
    then, now, _ = figures(answers, "wait")
    hours, hours_now, _ = figures(answers, "node_hours")
    cost = hours - hours_now
    if abs(then - now) < 0.001 and abs(cost) < 0.005:
        return "These bounds would have made no difference"
    is_equal = formats.percent(then) == formats.percent(now)
    waits = (
        f"{formats.percent(then)} either way"
        if is_equal
        else f"{formats.percent(then)} instead of {formats.percent(now)}"
    )
    more = "more" if cost > 0 else "fewer"
    return f"With these bounds the trainer waits {waits}, for {formats.rate(abs(cost))} node hours {more}"


def _texts(answers: BoundsComparison, name: str, text: Callable[[float], str]) -> tuple[str, str, str]:
    then, now, recorded = figures(answers, name)
    return text(recorded), text(now), text(then)


def _rows(
    then: Sequence[PoolRecommendation], now: Sequence[PoolRecommendation], began: float, ended: float
) -> list[Row]:
    """Returns both targets at each change; a target holds until the next recommendation."""
    times = sorted({recommendation.at for recommendation in (*then, *now)} | {began, ended})
    return [(at, {"then": _target(then, at), "now": _target(now, at)}) for at in times]


def _target(sizes: Sequence[PoolRecommendation], at: float) -> float | None:
    earlier = [recommendation for recommendation in sizes if recommendation.at <= at]
    return float(earlier[-1].target) if earlier else (float(sizes[0].target) if sizes else None)
