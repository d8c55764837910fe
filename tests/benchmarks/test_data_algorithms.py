"""The benchmark works and distinguishes a saving from none."""

from xml.etree import ElementTree

import pytest

from astraflow.runtime.plot import Curve, line_plot
from benchmarks.data_algorithms import VARIANTS, curves, measure, table


@pytest.mark.long
def test_a_short_run_has_a_line_for_every_variant_and_replay_saves_rollouts() -> None:
    outcomes = [measure(variant, steps=4, seed=1) for variant in VARIANTS]
    lines = table([outcomes, outcomes]).splitlines()
    assert len(lines) == 1 + len(VARIANTS)
    assert all("± 0.00" in line for line in lines[1:]), "the same seed twice has no spread"
    assert [curve.points for curve in curves([outcomes])] == [outcome.curve for outcome in outcomes]
    rollouts = {outcome.name: outcome.rollouts for outcome in outcomes}
    assert rollouts["none"] < rollouts["+ replay 0.5"] < rollouts["dynamic sampling"]
    assert all(outcome.stale < 0.01 for outcome in outcomes)


def test_curve_names_are_escaped_in_plots() -> None:
    picture = line_plot([Curve(name="a < b", points=((0, 1), (2, 3)))], x_label="x & y", y_label="z")
    assert "a < b" in "".join(ElementTree.fromstring(picture).itertext())  # noqa: S314 (we drew it ourselves)
