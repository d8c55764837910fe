"""Page of the training metrics, from `astraflow.contract.training_metrics`."""

from collections.abc import Iterator

from astraflow.contract.training_metrics import TRAINING_METRICS, MetricGroup, MetricUnit, TrainingMetric
from docs.generate.page import Page, table

_HEAD = """
Trainers report these metrics for each step (`StepReport.metrics`), in the groups of the run's page. All are in the
report (`astraflow report --json`), in `/metrics` (`stream_step_metric`), in the series of a run
(`GET /api/v1/series.csv?run_id=1&chart=training`) and in exports to trackers. A trainer reports those that apply to its
algorithm and engine. It may report others, which are shown in a group of their own. Dataflow adds the endings and the
reward terms of the rollouts since the previous step. A reward term has the name `reward_term_` and its own, for at most
16 terms; a name with other characters than letters, digits, `_`, `.` and `-` has no chart.
Shares are fractions: 0.1 is 10%.
"""


def _body() -> Iterator[str]:
    for group in MetricGroup:
        metrics = [metric for metric in TRAINING_METRICS if metric.group is group]
        if metrics:
            yield from (
                f"## {group.value}\n",
                *table(("metric", "unit", "on the page", "meaning"), map(_row, metrics)),
                "",
            )


def _row(metric: TrainingMetric) -> tuple[str, str, str, str]:
    unit = "" if metric.unit is MetricUnit.NUMBER else metric.unit.value
    return f"`{metric.name}`", unit, metric.label, metric.description


PAGE = Page(name="metrics", title="What does this training metric mean?", head=_HEAD, body=_body)
