"""Tables of charts: columns hold the same values as the points."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId
from tests.fakes.synthetic_run import SyntheticRun
from web.charts import panels
from web.charts.tables import lags_over, points_json, rows_of, run_length_encoded
from web.history.points import Series, rounded

SOLVER = PolicyId("solver")


def whole(column: list[Any]) -> list[Any]:
    """Unpacks a column as `static/js/tables.js` does."""
    return [value for cell in column for value in ([cell[0]] * cell[1] if isinstance(cell, list) else [cell])]


@pytest.mark.long
@given(st.lists(st.none() | st.integers(0, 2) | st.floats(allow_nan=False)))
def test_unpacking_a_packed_column_returns_it(column: list[float | None]) -> None:
    assert whole(run_length_encoded(column)) == column
    assert len(run_length_encoded(column)) <= len(column)


def test_columns_hold_the_values_that_charts_draw() -> None:
    series, synthetic_run = Series(), SyntheticRun(nodes=("a", "b"))
    points = [point for second in range(100, 160) if (point := series.add(synthetic_run.report(second))) is not None]
    rows = rows_of(points, SOLVER)

    columns = points_json(
        SOLVER,
        rows,
        panels.ALL_CHARTS.values(),
        sequences=[point.sequence for point in points],
        lags=lags_over(points, SOLVER),
    )

    assert list(accumulate(whole(columns["sequence"]))) == [point.sequence for point in points]
    assert [at / 100 for at in accumulate(whole(columns["at"]))] == [round(point.at, 2) for point in points]
    for name, column in columns["columns"].items():
        assert whole(column) == [rounded(values[name]) for _, values in rows], name
    drawn = {series.value for panel in panels.ALL_CHARTS.values() for series in panel.series}
    assert drawn <= columns["columns"].keys()
    assert "loss" not in columns["columns"], "the page draws no such line"
    assert whole(columns["lags"]["a"]) == [point.lags[SOLVER]["a"] for point in points]


def test_constant_values_are_packed() -> None:
    rows: list[panels.Row] = [(float(at), {"wait": 0.25, "version": 3, "steps": 7}) for at in range(900)]

    columns = points_json(SOLVER, rows, [panels.CHARTS["wait"]], sequences=list(range(1, 901)))

    assert columns["columns"] == {"steps": [[7, 900]], "version": [[3, 900]], "wait": [[0.25, 900]]}
    assert columns["sequence"] == [[1, 900]]
    assert columns["at"] == [0, [100, 899]]


def test_a_page_without_points_has_empty_columns() -> None:
    columns = points_json(SOLVER, [], [panels.CHARTS["wait"]], sequences=[])

    assert (columns["at"], columns["sequence"], columns["columns"]["wait"]) == ([], [], [])
