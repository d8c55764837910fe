"""Combines the reports of a minute into one point of the run's history.

A point is a report like any other, taken at the end of its minute, except for these values over the whole minute:

- `wait_fraction` of a stream: seconds waited over seconds of steps, both between the ends of two minutes
- `reward_mean`, `tokens_mean` of a stream: mean over the steps that the minute's reports saw
- `reward_produced` of a stream: mean over the reports during which any group arrived
- `produced_per_s`, `consumed_per_s` of a stream, `episodes_per_s`, `tokens_per_s` of a pool: mean over the reports

Only versions published within the minute are listed, so that each version is in one point. All other fields have their
last value: cumulative counts (whose differences are exact sums), levels, so that the balances hold, versions, rewards
of the latest 32 steps, metrics. Nodes are left out: a month has 43,200 minutes, and a run may have a thousand nodes;
their pools contain their number and their sums.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.reports.report import PoolReport, Report, StreamReport, TrainingReport
from astraflow.contract.weight_reports import WeightsReport

T = TypeVar("T")

MINUTE_S = 60


class MinuteAggregator:
    """Collects reports, oldest first, and returns a point whenever a report begins another minute."""

    def __init__(self, last: Report | None = None) -> None:
        """last: the previous point, from which values between the ends of two minutes are computed."""
        self._last = last
        self._reports: list[Report] = []

    def add(self, report: Report) -> Report | None:
        """Returns the point of the previous minute, if this report is the first of another minute."""
        ended = None
        if self._reports and _minute(report) != _minute(self._reports[-1]):
            ended = self._last = point(self._reports, before=self._last)
            self._reports = []
        self._reports.append(replace(report, nodes=(), events=()))
        return ended


def point(reports: Sequence[Report], *, before: Report | None) -> Report:
    """Returns one point for the reports of a minute. before: the point of the previous minute, if there is one."""
    last = reports[-1]
    earlier = {stream.policy: stream for stream in before.streams} if before else {}
    return replace(
        last,
        nodes=(),
        events=(),
        streams=tuple(
            _stream(stream, _streams_of(stream.policy, reports), earlier.get(stream.policy)) for stream in last.streams
        ),
        weights=tuple(_weights(weights, minute=_minute(last)) for weights in last.weights),
        pools=tuple(_pool(pool, _pools_of(pool.id, reports)) for pool in last.pools),
    )


def _stream(last: StreamReport, reports: Sequence[StreamReport], before: StreamReport | None) -> StreamReport:
    by_step = {stream.training.steps: stream.training for stream in reports if stream.training.steps}.values()
    busy = [stream for stream in reports if stream.produced_per_s or stream.reward_produced]
    training = replace(
        last.training,
        wait_fraction=_wait_fraction(last.training, (before or reports[0]).training),
        reward_mean=_mean(by_step, lambda step: step.reward_mean) if by_step else last.training.reward_mean,
        tokens_mean=_mean(by_step, lambda step: step.tokens_mean) if by_step else last.training.tokens_mean,
    )
    return replace(
        last,
        training=training,
        produced_per_s=_mean(reports, lambda stream: stream.produced_per_s),
        consumed_per_s=_mean(reports, lambda stream: stream.consumed_per_s),
        reward_produced=_mean(busy, lambda stream: stream.reward_produced) if busy else 0.0,
    )


def _wait_fraction(last: TrainingReport, before: TrainingReport) -> float:
    waited_s = last.wait_s - before.wait_s
    wall_s = last.total_s - before.total_s
    return waited_s / wall_s if wall_s > 0 else last.wait_fraction


def _pool(last: PoolReport, reports: Sequence[PoolReport]) -> PoolReport:
    return replace(
        last,
        episodes_per_s=_mean(reports, lambda pool: pool.episodes_per_s),
        tokens_per_s=_mean(reports, lambda pool: pool.tokens_per_s),
    )


def _weights(last: WeightsReport, *, minute: int) -> WeightsReport:
    versions = tuple(version for version in last.versions if int(version.published_at // MINUTE_S) == minute)
    return replace(last, versions=versions)


def _streams_of(policy: PolicyId, reports: Iterable[Report]) -> list[StreamReport]:
    return [stream for report in reports for stream in report.streams if stream.policy == policy]


def _pools_of(pool: PoolId, reports: Iterable[Report]) -> list[PoolReport]:
    return [pool_report for report in reports for pool_report in report.pools if pool_report.id == pool]


def _minute(report: Report) -> int:
    return int(report.at // MINUTE_S)


def _mean(values: Iterable[T], value_of: Callable[[T], float]) -> float:
    numbers = [value_of(value) for value in values]
    return sum(numbers) / len(numbers)
