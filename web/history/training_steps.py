"""Training steps in the page's database: every step of each policy, exactly, for as long as its run is recorded."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlmodel import Session, col

from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.training_metrics import (
    ROLLOUT_REWARD,
    TRAINING_METRICS,
    MetricGroup,
    TrainingMetric,
    training_metric,
)
from web.database.tables import TrainingStepRow
from web.history import series_writer
from web.history.series_queries import Row

STEP, VERSION, TOTAL_TOKENS, TOTAL_EPISODES = "step", "version", "total_tokens", "total_episodes"
X_VALUES = (STEP, VERSION, TOTAL_TOKENS, TOTAL_EPISODES)
"""Values of a row besides its metrics: what a chart's x axis may show."""

MAX_OTHER_METRICS = 32
"""Maximum number of a policy's metrics without a description and reward terms: recipes choose their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRows:
    """Steps of a policy, oldest first: each with its time, the `X_VALUES` and its metrics."""

    rows: list[Row]
    thinned_from: int | None = None
    """Number of steps of which these rows are a part; None if they are all steps. A row is always one step, exactly."""


def add_steps(session: Session, run_id: int, steps: Sequence[TrainingStep]) -> None:
    """Writes steps; existing rows stay unchanged."""
    rows = [
        {
            "run_id": run_id,
            "policy": step.policy,
            "step": step.step,
            "at": step.at,
            "version": int(step.version),
            "total_tokens": step.total_tokens,
            "total_episodes": step.total_episodes,
            "reward": step.reward,
            "metrics_json": orjson.dumps(dict(step.metrics)).decode(),
        }
        for step in steps
    ]
    series_writer.insert_rows(session, TrainingStepRow, rows)


def last_step(session: Session, run_id: int, policy: str) -> int:
    """Returns the number of a policy's newest recorded step; 0 without any."""
    query = select(func.max(col(TrainingStepRow.step))).where(
        col(TrainingStepRow.run_id) == run_id, col(TrainingStepRow.policy) == policy
    )
    return int(session.execute(query).scalar_one() or 0)


def recorded_metrics(*many: Sequence[tuple[float, Mapping[str, float | None]]]) -> list[TrainingMetric]:
    """Returns the metrics with a value in any of the rows, in the order in which they are shown."""
    names = {name for rows in many for _, values in rows for name, value in values.items() if value is not None}
    described = [metric for metric in TRAINING_METRICS if metric.name in names]
    others = names.difference((metric.name for metric in TRAINING_METRICS), X_VALUES)
    return [*described, *(metric for name in sorted(others) if (metric := training_metric(name)) is not None)]


def training_rows(
    session: Session,
    run_id: int,
    policy: str,
    *,
    since: float | None = None,
    until: float | None = None,
    at_most: int | None = None,
    metric: str = "",
) -> TrainingRows:
    """Returns the steps of a policy from `since` to before `until`; None: as far as recorded.

    at_most: if there are more steps, returns at most this number of them: those with the lowest and the highest value
    of `metric` in stretches of equal length; without a metric a half that is evenly spaced, with the last, and those
    whose values lie farthest beyond the spaced ones beside them, so that no spike is missed. None returns all.
    """
    conditions = [col(TrainingStepRow.run_id) == run_id, col(TrainingStepRow.policy) == policy]
    conditions += [] if since is None else [col(TrainingStepRow.at) >= since]
    conditions += [] if until is None else [col(TrainingStepRow.at) < until]
    step = col(TrainingStepRow.step)
    bounds = select(func.count(), func.min(step), func.max(step)).where(*conditions)
    count, first, last = session.execute(bounds).one()
    query = select(*_COLUMNS).where(*conditions).order_by(step)
    if at_most is None or count <= at_most:
        return TrainingRows(rows=_rows(session.execute(query)))
    if metric:
        extremes = _extremes(session.execute(query), metric, -(-count // max(1, at_most // 2)))
        return TrainingRows(rows=_rows(extremes), thinned_from=count)
    stride = -(-count // max(1, at_most // 2 - 1))
    spaced = session.execute(query.where(((step - first) % stride == 0) | (step == last))).all()
    outliers = _outliers(session.execute(query), spaced, at_most - len(spaced))
    chosen = sorted([*spaced, *outliers], key=lambda row: row.step)
    return TrainingRows(rows=_rows(chosen), thinned_from=count)


def step_numbers(session: Session, run_id: int, policy: str, metric: str) -> list[tuple[float, int, float | None]]:
    """Returns time, number and one metric of all steps of a policy, oldest first."""
    is_reward = metric == ROLLOUT_REWARD
    source = col(TrainingStepRow.reward) if is_reward else col(TrainingStepRow.metrics_json)
    query = (
        select(col(TrainingStepRow.at), col(TrainingStepRow.step), source)
        .where(col(TrainingStepRow.run_id) == run_id, col(TrainingStepRow.policy) == policy)
        .order_by(col(TrainingStepRow.step))
    )
    return [
        (at, step, _finite(value if is_reward else orjson.loads(value).get(metric)))
        for at, step, value in session.execute(query)
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_COLUMNS = tuple(col(getattr(TrainingStepRow, name)) for name in ("at", *X_VALUES, "reward", "metrics_json"))


def _extremes(rows: Any, metric: str, width: int) -> Iterator[Any]:
    """Yields the rows with the lowest and the highest value of a metric, of each `width` consecutive rows."""
    low: tuple[float, int, Any] | None = None
    high = low
    for index, row in enumerate(rows):
        if index % width == 0:
            yield from _in_order(low, high)
            low = high = None
        value = _metrics(row).get(metric)
        if value is not None and (low is None or value < low[0]):
            low = value, index, row
        if value is not None and (high is None or value > high[0]):
            high = value, index, row
    yield from _in_order(low, high)


def _in_order(low: tuple[float, int, Any] | None, high: tuple[float, int, Any] | None) -> list[Any]:
    chosen = {entry[1]: entry[2] for entry in (low, high) if entry is not None}
    return [chosen[index] for index in sorted(chosen)]


def _outliers(rows: Iterable[Any], spaced: Sequence[Any], count: int) -> list[Any]:
    """Returns the rows with a value farthest beyond those of the two rows beside it in `spaced`, in proportion to the
    range of the metric there. Rows in `spaced` are left out."""
    if count <= 0:
        return []
    known = [_metrics(row) for row in spaced]
    names = {name for metrics in known for name in metrics}
    ranges = {name: _range([metrics.get(name) for metrics in known]) for name in names}
    widths = {name: (ends[1] - ends[0]) or 1e-12 for name, ends in ranges.items() if ends is not None}
    beside = [
        {name: ends for name in widths if (ends := _range([left.get(name), right.get(name)])) is not None}
        for left, right in pairwise(known)
    ]
    numbers = [row.step for row in spaced]

    def excess(row: Any) -> float:
        near = beside[min(bisect_right(numbers, row.step), len(beside)) - 1]
        return max(
            (
                max(near[name][0] - value, value - near[name][1]) / widths[name]
                for name, value in _metrics(row).items()
                if value is not None and name in near
            ),
            default=0.0,
        )

    skipped = set(numbers)
    return heapq.nlargest(count, (row for row in rows if row.step not in skipped), key=excess)


def _range(values: Iterable[float | None]) -> tuple[float, float] | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


def _metrics(row: Any) -> dict[str, float | None]:
    return {ROLLOUT_REWARD: row.reward, **orjson.loads(row.metrics_json)}


def _rows(stored: Any) -> list[Row]:
    others: set[str] = set()
    return [(row.at, _values(row, others)) for row in stored]


def _values(row: Any, others: set[str]) -> dict[str, float | None]:
    """Returns the values of a step. others: names of metrics without a description and of reward terms so far."""
    shown = {name: value for name, value in _metrics(row).items() if _is_shown(name, value, others)}
    return {**shown, **{name: getattr(row, name) for name in X_VALUES}}


def _is_shown(name: str, value: float | None, others: set[str]) -> bool:
    """Returns False for measurements of a publish, and for metrics with names of a recipe beyond the maximum."""
    metric = training_metric(name)
    if metric is None or value is None or not math.isfinite(value):
        return False
    if metric.group in (MetricGroup.REWARD_TERMS, MetricGroup.OTHER) and len(others) < MAX_OTHER_METRICS:
        others.add(name)
    return metric.group not in (MetricGroup.REWARD_TERMS, MetricGroup.OTHER) or name in others
