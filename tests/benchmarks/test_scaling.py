"""The benchmark works."""

import pytest

from tests.benchmarks.scaling.__main__ import compared, plot, published, published_line, scenario_line
from tests.benchmarks.scaling.decisions import decision_times_ms


def test_every_scaling_policy_has_figures() -> None:
    found = compared("steady", range(1))
    assert scenario_line("steady", found).count("|") == 3
    assert found["default"][0].cost < found["plain"][0].cost + 0.5


@pytest.mark.long
def test_the_published_experiment_is_plotted() -> None:
    found = published(range(1))
    assert "26.9" in published_line("fixed 6", found["fixed 6"])
    assert plot(found).count("<polyline") == 5


def test_a_decision_is_timed() -> None:
    median_ms, slowest_ms = decision_times_ms(nodes=50, decisions=5)
    assert 0 < median_ms <= slowest_ms
