"""The chart of endings: shares that add up, over the steps."""

import pytest

from web.runs.endings import HEIGHT, endings_chart


def test_shares_are_stacked_up_to_the_whole() -> None:
    rows = [
        (1.0, {"step": 1, "ending_won": 0.25, "ending_turns": 0.75}),
        (2.0, {"step": 2, "loss": 1.0}),
        (3.0, {"step": 3, "ending_won": 1.0}),
    ]
    chart = endings_chart(rows)
    assert chart is not None
    assert [(share.metric, share.latest.strip("\u202f%")) for share in chart.shares] == [
        ("ending_won", "100"),
        ("ending_turns", "0"),
    ]
    assert chart.options["lines"] == [[[1.0, 0.25], [3.0, 1.0]], [[1.0, 0.75], [3.0, 0.0]]]
    assert (chart.options["start"], chart.options["end"]) == (1.0, 3.0)
    won, turns = (share.path for share in chart.shares)
    assert won == f"M0.0 {0.75 * HEIGHT:.1f}L1000.0 0.0L1000.0 {HEIGHT:.1f}L0.0 {HEIGHT:.1f}Z"
    assert turns == f"M0.0 0.0L1000.0 0.0L1000.0 0.0L0.0 {0.75 * HEIGHT:.1f}Z"


def test_means_over_several_steps_are_scaled_to_the_whole() -> None:
    chart = endings_chart([(1.0, {"step": 9, "ending_won": 0.5, "ending_lost": 1.0})])
    assert chart is not None
    assert [line[0][1] for line in chart.options["lines"]] == pytest.approx([1 / 3, 2 / 3], abs=1e-3)
    assert "1000.0" in chart.shares[0].path, "a single step has an area too"


def test_a_run_without_endings_has_no_chart() -> None:
    assert endings_chart([]) is None
    assert endings_chart([(1.0, {"step": 1, "loss": 0.1, "ending_won": None})]) is None
