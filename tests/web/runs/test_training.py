"""Small multiples of training metrics: groups, values and endings."""

from astraflow.contract.training_metrics import MetricGroup, TrainingMetric, training_metric
from web.charts.panels import Row, Series
from web.history.training_steps import STEP, recorded_metrics
from web.runs.training import endings_insight, endings_panel, metric_chart, metric_table, training_view


def metric(name: str) -> TrainingMetric:
    metric_description = training_metric(name)
    assert metric_description is not None
    return metric_description


def rows_of(**columns: list[float | None]) -> list[Row]:
    count = len(next(iter(columns.values())))
    return [
        (1000.0 + 10 * index, {STEP: index + 1, **{name: values[index] for name, values in columns.items()}})
        for index in range(count)
    ]


def test_metrics_with_data_stand_in_the_order_of_their_groups() -> None:
    view = training_view(rows_of(zeta=[1.0], checkpoint_s=[1.0], loss=[1.0], entropy=[1.0], mfu=[None], alpha=[1.0]))

    names = {section.group: [chart.metric.name for chart in section.charts] for section in view.sections}
    assert list(names) == [MetricGroup.LEARNING, MetricGroup.TIME, MetricGroup.OTHER]
    assert list(names.values()) == [["loss", "entropy"], ["checkpoint_s"], ["alpha", "zeta"]]
    assert (view.steps, view.shown) == ((1, 1), 1)


def test_without_steps_there_is_nothing_to_draw() -> None:
    view = training_view([])

    assert (view.sections, view.steps) == ((), None)


def test_a_small_multiple_has_the_newest_value_and_a_summary() -> None:
    chart = metric_chart(metric("entropy"), rows_of(entropy=[1.5, None, 1.25, 1.4]))

    assert [text.partition("\u202f")[0] for text in chart.view.latest] == ["1.40"]
    assert chart.view.sparkline == "0,0 667,100 1000,40"
    assert (chart.view.panel.table, chart.view.panel.from_zero) == ("steps", False)
    assert [number in chart.summary for number in ("1.25", "1.50")] == [True, True]


def test_compared_runs_have_a_line_each_with_their_own_table() -> None:
    lines = [Series(value="", label=name, table=f"steps-{name}") for name in ("one", "two", "three")]
    chart = metric_chart(metric("mfu"), rows_of(mfu=[0.5, 0.6]), rows_of(mfu=[0.1, 0.2]), [], lines=lines)

    assert [(line.value, line.table) for line in chart.view.panel.series] == [
        ("mfu", f"steps-{name}") for name in ("one", "two", "three")
    ]
    assert [text.strip("%\u202f") for text in chart.view.latest] == ["60", "20", "\N{EN DASH}"]
    assert "three" not in chart.summary


def test_endings_are_shares_with_the_newest_one_as_their_title() -> None:
    rows: list[Row] = [
        (1.0, {STEP: 1, "ending_won": 0.25, "ending_turns": 0.75}),
        (2.0, {STEP: 2, "loss": 1.0}),
        (3.0, {STEP: 3, "ending_won": 1.0}),
    ]
    view = endings_panel(rows, address="/runs/1/charts/{}")

    assert view is not None
    assert view.panel.form == "shares"
    assert [series.href for series in view.panel.series] == ["/runs/1/charts/ending_won", "/runs/1/charts/ending_turns"]
    assert "100" in endings_insight(rows)
    assert endings_panel([(1.0, {STEP: 1, "loss": 0.1, "ending_won": None})]) is None


def test_the_table_has_the_newest_step_first() -> None:
    rows = rows_of(entropy=[1.5, 1.25])
    heads, body = metric_table(rows, recorded_metrics(rows))

    assert heads == ("step", "age", "Entropy")
    assert [row[0] for row in body] == ["2", "1"]
