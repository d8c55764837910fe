"""Titles of a run's charts, derived from its record."""

from web.components import formats
from web.components.insights import change_insight, run_insights, version_lag_insight


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

    chart_titles = run_insights(rows)

    assert chart_titles == {
        "reward": "Reward rose from 0.20 to 0.69 in 49\u202fs",
        "wait": "The trainer waited 2\u202f% of each step on average",
    }


def test_chart_titles_without_measurements_say_so() -> None:
    chart_titles = run_insights([(1000.0, {"reward_average": None, "wait": None})])

    assert chart_titles["reward"] == "No reward yet"


def test_the_title_of_a_metric_has_the_values_at_the_ends_of_its_line() -> None:
    falling = [2.0 - second / 50 for second in range(50)]

    assert change_insight("Loss", falling, formats.figure) == "Loss fell from 2 to 1.02"
    assert change_insight("Entropy", [1.2, 1.21], formats.figure) == "Entropy is steady at 1.21"
    assert change_insight("Entropy", [], formats.figure) == "Entropy: not reported"


def test_the_version_lag_title_says_whether_nodes_kept_up() -> None:
    assert version_lag_insight([], 2) == "No node serves this policy"
    assert version_lag_insight([0, 0], 2) == "Every node serves the newest version"
    assert version_lag_insight([2, 1], 2) == "No node is more than 2 versions behind; the bound is 2"
    assert version_lag_insight([4, 1], 2) == "1 of 2 nodes beyond the staleness bound of 2"
