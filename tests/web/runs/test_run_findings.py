"""Titles of a run's charts, derived from its record."""

from web.charts.version_lag import LagInterval, NodeLagRow
from web.components import formats
from web.runs.findings import change_finding, run_findings, version_lag_finding


def node_lags(*lags: int) -> NodeLagRow:
    stretches = tuple(LagInterval(x=0.0, y=0.0, width=1.0, lag=lag, level="current") for lag in lags)
    return NodeLagRow(name="node", intervals=stretches, latest="current")


def test_chart_titles_describe_the_change_of_each_number() -> None:
    rows = [
        (
            1000.0 + second,
            {
                "reward_average": 0.2 + second / 100,
                "wait": 0.02,
            },
        )
        for second in range(50)
    ]

    chart_titles = run_findings(rows)

    assert chart_titles == {
        "reward": "Reward rose from 0.20 to 0.69 in 49\u202fs",
        "wait": "Fed the whole time",
    }


def test_chart_titles_without_measurements_say_so() -> None:
    chart_titles = run_findings([(1000.0, {"reward_average": None, "wait": None})])

    assert chart_titles["reward"] == "No reward yet"


def test_the_title_of_a_metric_compares_its_first_and_last_tenth() -> None:
    falling = [2.0 - second / 50 for second in range(50)]

    assert change_finding("Loss", falling, formats.figure) == "Loss fell from 1.96 to 1.06"
    assert change_finding("Entropy", [1.2, 1.21], formats.figure) == "Entropy is steady at 1.21"
    assert change_finding("Entropy", [], formats.figure) == "Entropy: not reported"


def test_the_version_lag_title_says_whether_nodes_kept_up() -> None:
    assert version_lag_finding([], 2) == "No nodes in this time range"
    assert version_lag_finding([node_lags(0, 0), node_lags(0)], 2) == "Every node served the newest version"
    assert (
        version_lag_finding([node_lags(0, 2), node_lags(1)], 2)
        == "No node was more than 2 versions behind; the bound is 2"
    )
    assert version_lag_finding([node_lags(0, 4), node_lags(1)], 2) == "1 of 2 nodes fell behind the bound of 2"
