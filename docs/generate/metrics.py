"""Page of the training metrics, from `astraflow.contract.training_metrics`."""

from collections.abc import Iterator

from astraflow.contract.training_metrics import TRAINING_METRICS, MetricGroup, MetricUnit, TrainingMetric
from docs.generate.page import Page, table


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


PAGE = Page(name="metrics", body=_body)
