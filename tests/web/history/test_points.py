"""The history behind the charts."""

import dataclasses
import json
import math

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import NodeState, Report
from tests import make
from tests.fakes.synthetic_run import SyntheticRun
from web.history.capacity import FLEET_VALUES
from web.history.points import MAX_CHARTED_NODES, MAX_POINTS, VALUES, Series, point_json

SOLVER = PolicyId("solver")


def series_of(*reports: Report) -> Series:
    series = Series()
    for report in reports:
        series.add(report)
    return series


def test_repeated_and_older_reports_are_ignored() -> None:
    synthetic_run = SyntheticRun()
    series = series_of(synthetic_run.report(5))

    assert series.add(synthetic_run.report(5)) is None
    assert series.add(synthetic_run.report(4)) is None
    assert series.add(synthetic_run.report(6)) is not None
    assert [point.sequence for point in series.after(0)] == [5, 6]


@pytest.mark.long
def test_the_oldest_points_are_removed() -> None:
    synthetic_run = SyntheticRun()
    series = series_of(*(synthetic_run.report(second) for second in range(1, MAX_POINTS + 3)))

    assert len(series) == MAX_POINTS
    assert series.after(0)[0].sequence == 3


def test_windows_end_at_the_newest_point() -> None:
    synthetic_run = SyntheticRun()
    series = series_of(*(synthetic_run.report(second) for second in (1, 2, 50, 60)))

    assert [point.sequence for point in series.window(10)] == [50, 60]
    assert [point.sequence for point in series.after(2)] == [50, 60]


def test_the_average_reward_is_the_mean_of_the_latest_ten_steps() -> None:
    report = SyntheticRun().report(100)
    stream = make.changed_stream(report.streams[0], rewards=(9.0, *[0.5] * 9, 1.0))
    point = series_of(dataclasses.replace(report, streams=(stream,))).after(0)[0].policies[SOLVER]

    assert point.reward == 1.0
    assert point.reward_average == 0.55


def test_before_the_first_step_there_is_a_reward_of_rollouts_and_no_average() -> None:
    report = SyntheticRun().report(100)
    stream = make.changed_stream(report.streams[0], rewards=(), reward_produced=0.2)
    point = series_of(dataclasses.replace(report, streams=(stream,))).after(0)[0].policies[SOLVER]

    assert point.reward == 0.2
    assert point.reward_average is None


def test_unmeasured_values_are_none_and_never_nan() -> None:
    report = SyntheticRun().report(100)
    stream = make.changed_stream(
        report.streams[0], rewards=(), reward_produced=math.nan, wait_fraction=math.inf, produced_per_s=math.nan
    )
    point = series_of(dataclasses.replace(report, streams=(stream,))).after(0)[0]

    assert point.policies[SOLVER].reward_average is None
    assert point.policies[SOLVER].wait is None
    json.dumps(point_json(point), allow_nan=False)


def test_before_the_first_step_there_is_no_wait() -> None:
    assert series_of(SyntheticRun().report(3)).after(0)[0].policies[SOLVER].wait is None


def test_lags_have_distinct_names_of_serving_nodes() -> None:
    report = SyntheticRun(nodes=("a", "a", "b")).report(100)
    lost_node = dataclasses.replace(report.nodes[2], state=NodeState.LOST)
    point = series_of(dataclasses.replace(report, nodes=(*report.nodes[:2], lost_node))).after(0)[0]

    assert list(point.lags[SOLVER]) == ["a", "a (n1)"]


def test_only_the_nodes_with_the_largest_lag_of_a_large_pool_are_charted() -> None:
    report = SyntheticRun(nodes=tuple(f"node-{number}" for number in range(40))).report(100)
    lags = series_of(report).after(0)[0].lags[SOLVER]

    assert len(lags) == MAX_CHARTED_NODES
    assert max(lags.values()) == series_of(report).after(0)[0].policies[SOLVER].lag


def test_a_point_is_encoded_as_rows() -> None:
    point = series_of(SyntheticRun().report(100)).after(0)[0]
    sequence, _, policies, fleet = point_json(point)

    assert sequence == 100
    assert len(policies["solver"]["v"]) == len(VALUES)
    assert set(policies["solver"]["l"]) == {"node-a", "node-b"}
    assert len(fleet) == len(FLEET_VALUES)
