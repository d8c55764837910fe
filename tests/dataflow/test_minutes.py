"""Points of a minute: rates are averaged, counts are the last ones."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import PoolReport, Report
from astraflow.dataflow.history.minutes import MinuteAggregator, point
from tests import make


def pool(**changes: float) -> PoolReport:
    plain = PoolReport(id=PoolId("local"), ready=1, joining=0, draining=0, lost=0, episodes_per_s=0.0, tokens_per_s=0.0)
    return replace(plain, **changes)  # type: ignore[arg-type]  # counts are passed as integers


def report(second: int, *, pools: tuple[PoolReport, ...] = (), **stream: Any) -> Report:
    fields = {"steps": 0, **stream}
    return replace(make.report(make.stream_report(**fields), sequence=second), at=6000.0 + second, pools=pools)


def test_rates_are_means_of_the_minute_and_counts_its_last_values() -> None:
    reports = [
        report(0, produced_per_s=1.0, consumed_per_s=4.0, trained=10, pools=(pool(tokens_per_s=10.0, ready=1),)),
        report(1, produced_per_s=3.0, consumed_per_s=0.0, trained=14, pools=(pool(tokens_per_s=30.0, ready=2),)),
    ]
    (stream,) = (whole := point(reports, before=None)).streams
    assert (stream.produced_per_s, stream.consumed_per_s, stream.groups.trained) == (2.0, 2.0, 14)
    assert (whole.pools[0].tokens_per_s, whole.pools[0].ready) == (20.0, 2)
    assert (whole.sequence, whole.at, whole.nodes) == (1, 6001.0, ())


def test_the_wait_fraction_is_measured_between_the_ends_of_two_minutes() -> None:
    before = report(0, wait_s=100.0, compute_s=200.0, publish_s=0.0)
    reports = [
        report(60, wait_s=101.0, compute_s=201.0, publish_s=0.0, wait_fraction=0.9),
        report(119, wait_s=110.0, compute_s=228.0, publish_s=2.0, wait_fraction=0.9),
    ]
    assert point(reports, before=before).streams[0].training.wait_fraction == pytest.approx(10 / 40)
    assert point(reports[:1], before=reports[0]).streams[0].training.wait_fraction == pytest.approx(0.9)


def test_a_step_in_several_reports_counts_once() -> None:
    step_rewards = [(1, 0.2), (1, 0.2), (1, 0.2), (2, 0.8)]
    reports = [report(at, steps=step, reward_mean=reward) for at, (step, reward) in enumerate(step_rewards)]
    assert point(reports, before=None).streams[0].training.reward_mean == pytest.approx(0.5)


def test_seconds_without_rollouts_do_not_lower_the_reward() -> None:
    quiet: dict[str, Any] = {"produced_per_s": 0.0, "reward_produced": 0.0}
    reports = [report(0, **quiet), report(1, produced_per_s=2.0, reward_produced=0.5), report(2, **quiet)]
    assert point(reports, before=None).streams[0].reward_produced == pytest.approx(0.5)
    assert point(reports[:1], before=None).streams[0].reward_produced == 0.0


@pytest.mark.long
@given(seconds=st.lists(st.integers(0, 600), min_size=1, max_size=40, unique=True).map(sorted))
def test_every_ended_minute_has_one_point_despite_a_restart(seconds: list[int]) -> None:
    def points_of(reports: list[Report], minutes: MinuteAggregator) -> list[int]:
        return [ended.sequence for report in reports if (ended := minutes.add(report)) is not None]

    reports = [report(second) for second in seconds]
    whole = points_of(reports, MinuteAggregator())
    last_of_minute = {second // 60: second for second in seconds}
    assert whole == [last for minute, last in last_of_minute.items() if minute != seconds[-1] // 60]
    for cut in range(len(reports)):
        first = MinuteAggregator()
        early = points_of(reports[:cut], first)
        kept = [report for report in reports[:cut] if report.sequence > (early[-1] if early else -1)]
        again = MinuteAggregator()
        assert early + points_of(kept, again) + points_of(reports[cut:], again) == whole


def test_each_version_is_in_the_point_of_its_minute() -> None:
    weights_reports = [make.weights_report(1, 2, 3, 4, first_at=6058.0)]
    first = replace(report(59), weights=(make.weights_report(1, 2, first_at=6058.0),))
    second = replace(report(119), weights=tuple(weights_reports))

    assert [version.version for version in point([first], before=None).weights[0].versions] == [1, 2]
    assert [version.version for version in point([second], before=first).weights[0].versions] == [3, 4]
