"""From the reports of a minute to one point of the run's history.

A point is a report like any other, taken at the end of its minute, with these figures over the whole minute instead:

- `wait_fraction` of a stream: seconds waited over seconds of steps, both between the ends of two minutes
- `reward_mean`, `tokens_mean` of a stream: mean over the steps that the minute's reports saw
- `reward_produced` of a stream: mean over the reports during which anything came in
- `produced_per_s`, `consumed_per_s` of a stream, `episodes_per_s`, `tokens_per_s` of a pool: mean over the reports

Of the versions published lately those of the minute are there, so that each is in one point. Everything else is as it
was last: cumulative counts (whose differences are exact sums), levels, so that the balances hold, versions, rewards of
the latest 32 steps, metrics. Nodes are left out: a month has 43,200 minutes, and a run may
have a thousand nodes; their pools say how many there were and what they did together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.links import WeightsReport
from astraflow.contract.reports import PoolReport, Report, StreamReport

T = TypeVar("T")

MINUTE_S = 60


class Minutes:
    """Collects reports, oldest first, and gives a point whenever one begins another minute."""

    def __init__(self, last: Report | None = None) -> None:
        """last: the point before, which figures between two ends of minutes are taken from."""
        self._last = last
        self._reports: list[Report] = []

    def add(self, report: Report) -> Report | None:
        """The point of the minute before, if this report is the first of another one."""
        ended = None
        if self._reports and _minute(report) != _minute(self._reports[-1]):
            ended = self._last = point(self._reports, before=self._last)
            self._reports = []
        self._reports.append(replace(report, nodes=(), events=()))
        return ended


def point(reports: Sequence[Report], *, before: Report | None) -> Report:
    """One point for the reports of a minute. before: the point of the minute before, if there is one."""
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
    by_step = {stream.steps: stream for stream in reports if stream.steps}.values()
    busy = [stream for stream in reports if stream.produced_per_s or stream.reward_produced]
    return replace(
        last,
        produced_per_s=_mean(reports, lambda stream: stream.produced_per_s),
        consumed_per_s=_mean(reports, lambda stream: stream.consumed_per_s),
        wait_fraction=_wait_fraction(last, before or reports[0]),
        reward_mean=_mean(by_step, lambda stream: stream.reward_mean) if by_step else last.reward_mean,
        tokens_mean=_mean(by_step, lambda stream: stream.tokens_mean) if by_step else last.tokens_mean,
        reward_produced=_mean(busy, lambda stream: stream.reward_produced) if busy else 0.0,
    )


def _wait_fraction(last: StreamReport, before: StreamReport) -> float:
    waited_s = last.wait_s - before.wait_s
    wall_s = waited_s + last.compute_s - before.compute_s + last.publish_s - before.publish_s
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
    return [one for report in reports for one in report.pools if one.id == pool]


def _minute(report: Report) -> int:
    return int(report.at // MINUTE_S)


def _mean(values: Iterable[T], figure: Callable[[T], float]) -> float:
    figures = [figure(value) for value in values]
    return sum(figures) / len(figures)
