"""What scripts draw from: columns that say the same as the points."""

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId
from tests.fakes.world import World
from web.history.points import Series, rounded
from web.present import charts
from web.present.overview import DRAWN, rows_of
from web.present.page_points import lags_over, packed, page_points

SOLVER = PolicyId("solver")


def whole(column: list[Any]) -> list[Any]:
    """A column as `static/js/points.js` reads it."""
    return [value for one in column for value in ([one[0]] * one[1] if isinstance(one, list) else [one])]


@given(st.lists(st.none() | st.integers(0, 2) | st.floats(allow_nan=False)))
def test_a_packed_column_is_the_column(column: list[float | None]) -> None:
    assert whole(packed(column)) == column
    assert len(packed(column)) <= len(column)


def test_columns_say_what_the_points_say_as_far_as_charts_draw_it() -> None:
    series, world = Series(), World(nodes=("a", "b"))
    points = [point for second in range(100, 160) if (point := series.add(world.report(second))) is not None]
    rows = rows_of(points, SOLVER)

    found = page_points(
        SOLVER,
        rows,
        DRAWN,
        sequences=[point.sequence for point in points],
        lags=lags_over(points, SOLVER, ["a", "b", "gone"]),
    )

    assert list(accumulate(whole(found["sequence"]))) == [point.sequence for point in points]
    assert [at / 100 for at in accumulate(whole(found["at"]))] == [round(point.at, 2) for point in points]
    for name, column in found["columns"].items():
        assert whole(column) == [rounded(values[name]) for _, values in rows], name
    assert {line.value for spec in DRAWN for line in spec.lines} <= found["columns"].keys()
    assert "loss" not in found["columns"], "the page draws no such line"
    assert whole(found["lags"]["a"]) == [point.lags[SOLVER]["a"] for point in points]
    assert found["lags"]["gone"] == [[None, 60]]


def test_what_stays_the_same_takes_no_room() -> None:
    rows: list[charts.Row] = [(float(at), {"wait": 0.25, "version": 3}) for at in range(900)]

    found = page_points(SOLVER, rows, [charts.CHARTS["wait"]], sequences=list(range(1, 901)))

    assert found["columns"] == {"version": [[3, 900]], "wait": [[0.25, 900]]}
    assert found["sequence"] == [[1, 900]]
    assert found["at"] == [0, [100, 899]]


def test_a_page_without_points_has_empty_columns() -> None:
    found = page_points(SOLVER, [], [charts.CHARTS["wait"]], sequences=[])

    assert (found["at"], found["sequence"], found["columns"]["wait"]) == ([], [], [])
