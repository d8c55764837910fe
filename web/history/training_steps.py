"""Training metrics in the recorded history: one row for each step of a policy, at the time of its report."""

import math

from sqlmodel import Session

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.contract.training_metrics import MetricGroup, training_metric
from web.history import series_queries
from web.history.samples import SECOND_LEVEL, Sample, training_subject
from web.history.series_queries import Row

STEP = "step"
"""Value with the number of the step, in addition to its metrics."""

MAX_OTHER_METRICS = 32
"""Maximum number of a policy's metrics without a description and reward terms: recipes choose their names."""


class TrainingSteps:
    """Collects one sample for each step of each policy. Of several steps between two reports, the last is known."""

    def __init__(self) -> None:
        self._steps: dict[PolicyId, int] = {}
        """Number of the last collected step."""
        self._others: dict[PolicyId, set[str]] = {}
        """Names of reward terms and of metrics without a description."""

    def add(self, report: Report) -> list[Sample]:
        """Adds a report; returns the samples of the steps that it is the first to show."""
        samples = []
        for stream in report.streams:
            if stream.training.steps > self._steps.get(stream.policy, 0):
                self._steps[stream.policy] = stream.training.steps
                numbers = {
                    name: value for name, value in step_values(stream).items() if self._is_recorded(stream, name)
                }
                subject = training_subject(stream.policy)
                samples.append(Sample(level=SECOND_LEVEL, at=report.at, subject=subject, values=numbers))
        return samples

    def _is_recorded(self, stream: StreamReport, name: str) -> bool:
        """Returns False for reward terms and metrics without a description beyond the maximum."""
        metric = training_metric(name)
        if name == STEP or metric is None or metric.group not in (MetricGroup.REWARD_TERMS, MetricGroup.OTHER):
            return True
        others = self._others.setdefault(stream.policy, set())
        if len(others) < MAX_OTHER_METRICS:
            others.add(name)
        return name in others


def step_values(stream: StreamReport) -> dict[str, float | None]:
    """Metrics of a policy's last step, with its number as `STEP`."""
    metrics: dict[str, float | None] = {
        name: value
        for name, value in stream.training.metrics.items()
        if math.isfinite(value) and training_metric(name) is not None
    }
    return {**metrics, STEP: stream.training.steps}


def training_rows(
    session: Session,
    run_id: int,
    policy: str,
    *,
    since: float | None = None,
    until: float | None = None,
    at_most: int = series_queries.MAX_ROWS,
) -> list[Row]:
    """Metrics of a policy's steps, oldest first, with the number of the step as `STEP`; each step once.

    Over a long range a row stands for several steps: it has the number of the last one, and means or maxima of the
    metrics.
    """
    subject = training_subject(policy)
    values = series_queries.values_of(session, run_id, subject)
    maxima = {name for name in values if (metric := training_metric(name)) is not None and metric.is_maximum}
    rows = series_queries.rows(
        session,
        run_id,
        subject,
        values,
        since=since,
        until=until,
        at_most=at_most,
        maxima=maxima | {STEP},
        paced_by=STEP,
    )
    steps: list[Row] = []
    for at, numbers in rows:
        step = numbers[STEP]
        if step is not None and (not steps or step > (steps[-1][1][STEP] or 0)):
            steps.append((at, {**numbers, STEP: int(step)}))
    return steps
