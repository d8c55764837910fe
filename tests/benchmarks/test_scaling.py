"""The benchmark works."""

import pytest

from benchmarks.scaling.__main__ import compared, plot, published, published_line, scenario_line
from benchmarks.scaling.decisions import decision_times_ms


@pytest.mark.long
def test_every_scaling_policy_has_figures() -> None:
    runs_by_policy = compared("steady", range(1))
    assert scenario_line("steady", runs_by_policy).count("|") == 3
    assert runs_by_policy["default"][0].cost < runs_by_policy["plain"][0].cost + 0.5


@pytest.mark.long
def test_the_published_experiment_is_plotted() -> None:
    runs_by_policy = published(range(1))
    assert "26.9" in published_line("fixed 6", runs_by_policy["fixed 6"])
    assert plot(runs_by_policy).count("<polyline") == 5


def test_a_decision_is_timed() -> None:
    median_ms, slowest_ms = decision_times_ms(nodes=50, decisions=5)
    assert 0 < median_ms <= slowest_ms
