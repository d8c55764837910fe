"""Runs beside each other: one chart for each number, a line for each run."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

from web.history.points import rounded
from web.present import charts, formats, scales
from web.present.runs import RUN_CHARTS
from web.present.series import TABLE_ROWS, Table
from web.reading.comparing import ComparedRun, differences
from web.reading.exports import Sheet

By = Literal["step", "time"]
STYLES = ("one", "two", "three", "four")
"""CSS classes of the runs' lines; each also has a dash of its own."""


SPECS = {spec.name: spec for spec in RUN_CHARTS.values() if len(spec.lines) == 1 or spec.name == "reward"}
"""What runs are compared by: one line for each."""

READ_POINTS = 200
"""Of each line, what a reader's pointer finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """A run as a column."""

    id: int
    name: str
    style: str
    figures: tuple[tuple[str, str], ...]
    has_settings: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The page."""

    columns: tuple[ComparedColumn, ...]
    drawings: tuple[charts.Drawing, ...]
    findings: tuple[str, ...]
    """Titles of the drawings."""
    differing: tuple[tuple[str, tuple[str, ...]], ...]
    without_settings: tuple[str, ...]
    """Names of runs of which no recipe is known."""
    by: By
    policies: tuple[str, ...]


def comparison(many: Sequence[ComparedRun], *, by: By, policies: Sequence[str], only: str = "") -> Comparison:
    """Everything the template needs. only: name of the chart that is shown by itself; empty for all."""
    specs = [spec for spec in SPECS.values() if only in ("", spec.name)]
    drawn = [(_drawing(spec, many, by), _finding(spec, many)) for spec in specs]
    shown = [(drawing, finding) for drawing, finding in drawn if any(line.path for line in drawing.lines)]
    return Comparison(
        columns=tuple(_column(one, STYLES[place]) for place, one in enumerate(many)),
        drawings=tuple(drawing for drawing, _ in shown),
        findings=tuple(finding for _, finding in shown),
        differing=tuple(
            (key, tuple(formats.MISSING if value is None else value for value in values))
            for key, values in differences(many)
        ),
        without_settings=tuple(one.record.name for one in many if one.settings is None),
        by=by,
        policies=tuple(policies),
    )


def sheet(many: Sequence[ComparedRun], *, by: By) -> Sheet:
    """What is plotted: a row for each run and time."""
    names = [line.value for spec in RUN_CHARTS.values() for line in [_line_of(spec)]]
    place = _place_of(by)
    rows = [
        [one.record.id, one.record.name, one.policy, place(one, at, numbers), *(numbers.get(name) for name in names)]
        for one in many
        for at, numbers in one.rows
    ]
    return Sheet(name="comparison", columns=("id", "run", "policy", by, *names), rows=rows)


def chart_sheet(many: Sequence[ComparedRun], name: str, *, by: By) -> Sheet:
    """What one chart plots: a row for each run and place. name: one of `SPECS`."""
    line = _line_of(SPECS[name])
    rows = [
        (one.record.id, one.record.name, one.policy, at, value)
        for one in many
        for at, value in _series(one, line, by)
        if value is not None
    ]
    return Sheet(name=f"comparison-{name}", columns=("id", "run", "policy", by, line.value), rows=rows)


def chart_table(many: Sequence[ComparedRun], name: str, *, by: By) -> Table:
    """The same for people: about sixty places, the last first; each run as it was there, or last before."""
    spec = SPECS[name]
    series = [[(at, value) for at, value in _series(one, _line_of(spec), by) if value is not None] for one in many]
    places = sorted({at for found in series for at, _ in found}, reverse=True)
    shown = places[:: max(1, -(-len(places) // TABLE_ROWS))]
    body = [
        (
            formats.count(at) if by == "step" else formats.duration(at),
            *(scales.value_text(_at(found, at), spec.format) for found in series),
        )
        for at in shown
    ]
    return ("step" if by == "step" else "after", *(one.record.name for one in many)), body


def _at(found: Sequence[tuple[float, float]], at: float) -> float | None:
    place = bisect_right(found, at, key=itemgetter(0))
    return found[place - 1][1] if place and at <= found[-1][0] else None


def _series(one: ComparedRun, line: charts.Line, by: By) -> list[tuple[float, float | None]]:
    place = _place_of(by)
    return [(at, numbers.get(line.value)) for x, numbers in one.rows if (at := place(one, x, numbers)) is not None]


def _place_of(by: By) -> Callable[[ComparedRun, float, dict[str, float | None]], float | None]:
    if by == "step":
        return lambda one, at, numbers: numbers.get("steps")
    return lambda one, at, numbers: at - one.record.started_at


def _line_of(spec: charts.ChartSpec) -> charts.Line:
    """The line that is compared: a mean, where there is one."""
    return next((line for line in spec.lines if line.style == "main"), spec.lines[0])


def _drawing(spec: charts.ChartSpec, many: Sequence[ComparedRun], by: By) -> charts.Drawing:
    line = _line_of(spec)
    series = [_series(one, line, by) for one in many]
    ends = [at for found in series for at, _ in found]
    window = scales.window_of(0.0, max(ends, default=0.0), None)
    if by == "step":
        window = replace(window, end=max(1.0, max(ends, default=0.0)))
    values = [value for found in series for _, value in found if value is not None]
    axis = scales.y_axis(values, at_least=spec.at_least)
    return charts.Drawing(
        spec=replace(spec, label=f"{spec.label}, {line.label}" if len(spec.lines) > 1 else spec.label),
        lines=tuple(
            charts.DrawnLine(
                label=one.record.name,
                style=STYLES[number],
                path=scales.path(
                    [
                        (window.place(at), None if value is None else axis.place(value, spec.height))
                        for at, value in found
                    ]
                ),
                area="",
                end="",
                latest=scales.value_text(next((v for _, v in reversed(found) if v is not None), None), spec.format),
            )
            for number, (one, found) in enumerate(zip(many, series, strict=True))
        ),
        y_ticks=tuple((axis.place(tick, spec.height), scales.tick_text(tick, spec.format)) for tick in axis.ticks),
        x_ticks=tuple(_step_ticks(window) if by == "step" else scales.x_ticks(window)),
        limit_y=None,
        limit=None,
        window=window,
        options={
            "start": window.start,
            "end": window.end,
            "by": by,
            "format": spec.format,
            "height": spec.height,
            "lines": [_read(found) for found in series],
        },
    )


def _read(found: Sequence[tuple[float, float | None]]) -> list[list[float | None]]:
    known = [(at, value) for at, value in found if value is not None]
    shown = known[::-1][:: max(1, -(-len(known) // READ_POINTS))][::-1]
    return [[round(at, 1), rounded(value)] for at, value in shown]


def _finding(spec: charts.ChartSpec, many: Sequence[ComparedRun]) -> str:
    """Which run ends highest."""
    name = _line_of(spec).value
    ends = [
        (last, one.record.name)
        for one in many
        if (last := next((found for _, row in reversed(one.rows) if (found := row.get(name)) is not None), None))
        is not None
    ]
    if not ends:
        return "Nothing was measured yet"
    ends.sort(reverse=True)
    texts = [scales.value_text(value, spec.format) for value, _ in ends]
    if len(ends) == 1:
        return f"{ends[0][1]} ends at {texts[0]}"
    if texts[0] == texts[-1]:
        return f"All end at {texts[0]}"
    return f"{ends[0][1]} ends highest, at {texts[0]} against {', '.join(texts[1:])}"


def _step_ticks(window: scales.Window) -> list[tuple[float, str]]:
    axis = scales.y_axis([window.end], at_least=1.0)
    return [(100 * tick / window.end, f"{tick:g}") for tick in axis.ticks if tick <= window.end]


def _column(one: ComparedRun, style: str) -> ComparedColumn:
    last = {name: value for _, numbers in one.rows for name, value in numbers.items() if value is not None}
    return ComparedColumn(
        id=one.record.id or 0,
        name=one.record.name,
        style=style,
        figures=(
            ("Recipe", one.record.recipe or formats.MISSING),
            ("Policy", one.policy or formats.MISSING),
            ("Step", formats.count(last.get("steps"))),
            ("Reward", formats.reward(last.get("reward_average"))),
            ("Waits", formats.percent(last.get("wait"))),
            ("Lasted", formats.duration(one.record.last_at - one.record.started_at)),
        ),
        has_settings=one.settings is not None,
    )
