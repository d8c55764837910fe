"""Two target lines over the same record, and what each would have cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from astraflow.contract.advice import PoolAdvice
from web.acts.what_if import Compared, figures
from web.present import charts, formats, scales
from web.present.pools import usd
from web.present.series import as_sheet
from web.reading.exports import Sheet

SPEC = charts.ChartSpec(
    name="what-if",
    label="Target of the pool, in nodes",
    lines=(
        charts.Line(value="then", label="with these bounds", style="main"),
        charts.Line(value="now", label="as it is", style="second"),
    ),
    format="count",
    at_least=4.0,
    limit_label="most nodes",
    height=176,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """The answer, for the page."""

    finding: str
    drawing: charts.Drawing
    rows: tuple[tuple[str, str, str, str], ...]
    """Figure, as it was, as it is, with these bounds."""
    steps: tuple[tuple[str, str, str], ...]
    """The targets as a table: after how long, as it is, with these bounds."""
    note: str


def what_if_view(answers: Compared, *, max_nodes: int) -> WhatIfView:
    """The chart and its table."""
    began, ended = answers.then.began_at, answers.then.ended_at
    lines = {"then": answers.sizes(answers.then), "now": answers.sizes(answers.now)}
    rows = _rows(lines["then"], lines["now"], began, ended)
    window = scales.window_of(began, ended, None)
    moments = [rows[0], *(after for before, after in pairwise(rows) if before[1] != after[1])]
    return WhatIfView(
        finding=_finding(answers),
        drawing=charts.draw(SPEC, rows, window, limit=float(max_nodes)),
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
            for at, values in moments
        ),
        note=(
            f"Played over {formats.several(answers.then.reports, 'report')} of the last "
            f"{formats.duration(ended - began)}. Waits are those that too few nodes explain."
        ),
    )


def what_if_sheet(answers: Compared) -> Sheet:
    """Both lines: a row for each time at which one of them moves, and for the two ends."""
    lines = {"then": answers.sizes(answers.then), "now": answers.sizes(answers.now)}
    rows = _rows(lines["then"], lines["now"], answers.then.began_at, answers.then.ended_at)
    return as_sheet(f"astraflow-what-if-{answers.pool}", rows, [line.value for line in SPEC.lines])


def _finding(answers: Compared) -> str:
    then, now, _ = figures(answers, "wait")
    hours, hours_now, _ = figures(answers, "node_hours")
    cost = hours - hours_now
    if abs(then - now) < 0.001 and abs(cost) < 0.005:
        return "These bounds would have changed nothing"
    is_same = formats.percent(then) == formats.percent(now)
    waits = (
        f"{formats.percent(then)} either way"
        if is_same
        else f"{formats.percent(then)} instead of {formats.percent(now)}"
    )
    more = "more" if cost > 0 else "fewer"
    return f"With these bounds the trainer waits {waits}, for {formats.rate(abs(cost))} node hours {more}"


def _texts(answers: Compared, name: str, text: Callable[[float], str]) -> tuple[str, str, str]:
    then, now, recorded = figures(answers, name)
    return text(recorded), text(now), text(then)


def _rows(then: Sequence[PoolAdvice], now: Sequence[PoolAdvice], began: float, ended: float) -> list[charts.Row]:
    """Both as steps: a target stays until the next one. What is told is what moved, and the last: often that alone."""
    moments = sorted({advice.at for advice in (*then, *now)} | {began, ended})
    rows: list[charts.Row] = []
    for at in moments:
        if rows:
            rows.append((at, rows[-1][1]))
        rows.append((at, {"then": _target(then, at), "now": _target(now, at)}))
    return rows


def _target(sizes: Sequence[PoolAdvice], at: float) -> float | None:
    known = [advice for advice in sizes if advice.at <= at]
    return float(known[-1].target) if known else (float(sizes[0].target) if sizes else None)
