"""Training metrics as small multiples: of one run, or of compared runs with a line for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.training_metrics import ENDING_PREFIX, MetricGroup, MetricUnit, TrainingMetric
from web.charts.panels import Panel, PanelView, Row, Series, metric_format, panel_view, value_text
from web.charts.tables import TABLE_ROWS, Table, as_sheet
from web.components import formats
from web.components.downloads import Sheet
from web.components.insights import change_insight
from web.history.training_steps import STEP, X_VALUES, recorded_metrics

TRAINING = "training"
"""Name of all training metrics together, among the charts of a run."""

STEPS = "steps"
"""Table of a page with the training steps of a run."""

SHOWN_STEPS = 400
"""Steps that a page begins with; zooming fetches those between."""

SMALL_HEIGHT = 96
LARGE_HEIGHT = 280


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChart:
    """Chart of one metric, ready for the template."""

    metric: TrainingMetric
    view: PanelView
    summary: str
    """Range of the values, for people who do not see the drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection:
    """Small multiples of a group."""

    group: MetricGroup
    charts: tuple[MetricChart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """Training metrics of a run over the shown time range."""

    pinned: tuple[MetricChart, ...]
    """Small multiples that the user pinned, in the user's order; the sections have the others."""
    sections: tuple[MetricSection, ...]
    endings: PanelView | None
    """Shares of the endings of interactions, which have no small multiples; None without any."""
    insight: str
    """Title of the endings."""
    steps: tuple[int, int] | None
    """First and last shown step; None without any."""
    shown: int
    """Count of the shown steps."""
    thinned_from: int | None
    """Number of steps of which some are shown; None if all are."""


def training_view(
    rows: Sequence[Row], *, thinned_from: int | None = None, address: str = "", pins: Sequence[str] = ()
) -> TrainingView:
    """Builds the section of a run's page.

    rows, thinned_from: of `training_rows`. address: of a metric's page, with {} for its name. pins: names of charts.
    """
    steps = [int(values[STEP] or 0) for _, values in rows]
    metrics = [metric for metric in recorded_metrics(rows) if metric.group is not MetricGroup.ENDINGS]
    by_name = {metric.name: metric_chart(metric, rows) for metric in metrics}
    return TrainingView(
        pinned=tuple(by_name[name] for name in pins if name in by_name),
        sections=sections([chart for name, chart in by_name.items() if name not in pins]),
        endings=endings_panel(rows, address=address),
        insight=endings_insight(rows),
        steps=(steps[0], steps[-1]) if steps else None,
        shown=len(rows),
        thinned_from=thinned_from,
    )


def sections(charts: Sequence[MetricChart]) -> tuple[MetricSection, ...]:
    """Returns the charts by group, without empty groups."""
    by_group = {group: tuple(chart for chart in charts if chart.metric.group is group) for group in MetricGroup}
    return tuple(MetricSection(group=group, charts=members) for group, members in by_group.items() if members)


def metric_panel(metric: TrainingMetric) -> Panel:
    """Returns the small multiple of a metric."""
    return Panel(
        name=metric.name,
        label=metric.label,
        series=(Series(value=metric.name, label=metric.label),),
        format=metric_format(metric),
        table=STEPS,
        height=SMALL_HEIGHT,
        description=metric.description,
        reason="The trainer did not report it for these steps",
    )


def metric_chart(metric: TrainingMetric, *many: Sequence[Row], lines: Sequence[Series] = ()) -> MetricChart:
    """Returns the small multiple of a run, or of compared runs with a line for each."""
    panel = metric_panel(metric)
    if lines:
        panel = replace(panel, series=tuple(replace(line, value=metric.name) for line in lines))
    return MetricChart(metric=metric, view=panel_view(panel, *many), summary=_summary(panel, *many))


def large(chart: MetricChart) -> PanelView:
    """Returns the chart in full width."""
    metric = chart.metric
    unit = {MetricUnit.NUMBER: "", MetricUnit.SHARE: ", per cent"}.get(metric.unit, f", {metric.unit.value}")
    return replace(chart.view, panel=replace(chart.view.panel, height=LARGE_HEIGHT, label=f"{metric.label}{unit}"))


def endings_panel(rows: Sequence[Row], *, address: str = "") -> PanelView | None:
    """Returns the shares of the endings of interactions, from the bottom up; None when no interaction ended."""
    names = {name for _, values in rows for name, value in values.items() if value}
    endings = [ending for ending in Ending if f"{ENDING_PREFIX}{ending.value}" in names]
    panel = Panel(
        name="endings",
        label="Shares of the endings of interactions",
        series=tuple(
            Series(
                value=(name := f"{ENDING_PREFIX}{ending.value}"),
                label=ending.label,
                style=f"ending ending-{ending.value}",
                href=address.format(name),
            )
            for ending in endings
        ),
        format="percent",
        table=STEPS,
        form="shares",
        height=120,
    )
    return panel_view(panel, rows) if endings else None


def endings_insight(rows: Sequence[Row]) -> str:
    """Returns the most frequent ending of the newest step; empty without any."""
    names = {f"{ENDING_PREFIX}{ending.value}": ending for ending in Ending}
    for _, values in reversed(rows):
        shares = {ending: share for name, ending in names.items() if (share := values.get(name))}
        if shares:
            most = max(shares, key=shares.__getitem__)
            part = formats.percent(shares[most] / sum(shares.values()))
            return f"Most interactions ended as: {most.label}, {part}"
    return ""


def metric_insight(metric: TrainingMetric, rows: Sequence[Row]) -> str:
    """Returns the title of a run's chart: the change over the shown steps."""
    values = [value for _, numbers in rows if (value := numbers.get(metric.name)) is not None]
    return change_insight(metric.label, values, lambda value: value_text(value, metric_format(metric)))


def metric_sheet(name: str, rows: Sequence[Row], metrics: Sequence[TrainingMetric]) -> Sheet:
    """Returns the metrics as a sheet, one row for each step. name: of the file."""
    return as_sheet(name, rows, (*X_VALUES, *(metric.name for metric in metrics)))


def metric_table(rows: Sequence[Row], metrics: Sequence[TrainingMetric]) -> Table:
    """Returns about sixty evenly spaced steps, newest first."""
    newest = rows[-1][0] if rows else 0.0
    body = [
        (
            formats.count(values[STEP]),
            formats.duration(newest - at),
            *(value_text(values.get(metric.name), metric_format(metric)) for metric in metrics),
        )
        for at, values in rows[::-1][:: max(1, -(-len(rows) // TABLE_ROWS))]
    ]
    return ("step", "age", *(metric.label for metric in metrics)), body


def _summary(panel: Panel, *many: Sequence[Row]) -> str:
    texts = []
    for index, line in enumerate(panel.series):
        values = [value for _, numbers in many[index] if (value := numbers.get(line.value)) is not None]
        if values:
            low, high = (value_text(value, panel.format) for value in (min(values), max(values)))
            between = f"between {low} and {high}" if low != high else f"constantly {low}"
            texts.append(f"{line.label}: {between}.")
    return " ".join(texts)
