"""Small multiples of training metrics: groups, axes and values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.training_metrics import MetricGroup, TrainingMetric, training_metric
from web.charts.charts import Row
from web.history.training_steps import STEP
from web.runs.training import MetricLine, large_chart, metric_table, recorded, run_line, small_chart, training_view


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
    assert (view.steps, view.step_times) == ((1, 1), ((1, 1000.0),))


def test_without_steps_there_is_nothing_to_draw() -> None:
    view = training_view([])

    assert (view.sections, view.steps) == ((), None)


def test_a_small_multiple_reaches_from_the_lowest_to_the_highest_value() -> None:
    rows = rows_of(entropy=[1.5, 1.25, 1.4])
    drawing = small_chart(metric("entropy"), [run_line(metric("entropy"), rows)]).drawing

    assert [text for _, text in drawing.y_ticks] == ["1.25", "1.50"]
    assert [text for _, text in drawing.x_ticks] == ["step 1", "3"]
    assert drawing.lines[0].path == f"M0.0 0.0L500.0 {drawing.spec.height:.1f}L1000.0 {0.4 * drawing.spec.height:.1f}"


def test_steps_without_a_value_do_not_interrupt_the_line() -> None:
    rows = rows_of(mismatch_max=[0.1, None, 0.3])
    (line,) = small_chart(metric("mismatch_max"), [run_line(metric("mismatch_max"), rows)]).drawing.lines

    assert (line.path.count("M"), line.path.count("L")) == (1, 1)


@pytest.mark.long
@given(st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=20), st.integers(0, 10**6))
def test_every_value_lies_within_both_plots(values: list[float], first: int) -> None:
    line = MetricLine(label="run", style="main", points=[(first + index, value) for index, value in enumerate(values)])
    for chart in (small_chart(metric("loss"), [line]), large_chart(metric("loss"), [line])):
        drawing = chart.drawing
        places = [part.split() for part in drawing.lines[0].path.replace("L", "M").split("M")[1:]]
        assert all(0 <= float(x) <= 1000 and -0.1 <= float(y) <= drawing.spec.height + 0.1 for x, y in places)
        assert 1 <= len(drawing.y_ticks) <= 7
        assert all(0 <= x <= 100 for x, _ in drawing.x_ticks)


def test_compared_runs_share_the_axes() -> None:
    lines = [
        MetricLine(label="one", style="one", points=[(1, 0.5), (2, 0.6)]),
        MetricLine(label="two", style="two", points=[(2, 0.1), (5, 0.2)]),
        MetricLine(label="three", style="three", points=[]),
    ]
    chart = small_chart(metric("mfu"), lines)

    assert [text for _, text in chart.drawing.y_ticks] == ["10%", "60%"]
    assert [text for _, text in chart.drawing.x_ticks] == ["step 1", "5"]
    assert [line.latest.strip("%\u202f") for line in chart.drawing.lines] == ["60", "20", "\N{EN DASH}"]
    assert "three" not in chart.summary


def test_the_table_has_the_newest_step_first() -> None:
    rows = rows_of(entropy=[1.5, 1.25])
    heads, body = metric_table(rows, recorded(rows))

    assert heads == ("step", "age", "Entropy")
    assert [row[0] for row in body] == ["2", "1"]
