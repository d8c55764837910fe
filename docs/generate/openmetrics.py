"""Page of the metric families of `/metrics`, from a report in which each has a sample."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from astraflow.dataflow.endpoints.openmetrics import ReportCollector
from docs.generate.page import Page, table
from tests.dataflow.families import full_report


def _body() -> Iterator[str]:
    return iter(table(("family", "kind", "labels", "meaning"), map(_row, ReportCollector(full_report()).collect())))


def _row(family: Metric) -> tuple[str, str, str, str]:
    suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
    labels = ", ".join(sorted({label for sample in family.samples for label in sample.labels})) or "none"
    unit = f" ({family.unit.replace('_', ' ')})" if family.unit else ""
    return f"`{family.name}{suffix}`", family.type, labels, f"{family.documentation}{unit}"


PAGE = Page(name="openmetrics", body=_body)
