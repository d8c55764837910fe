"""Prints every metric family as the table in docs/how-to/observability.md: `python -m tests.dataflow.families`."""

from dataclasses import replace

from prometheus_client.core import Metric

from astraflow.contract.evaluations import EvaluationState
from astraflow.contract.nodes import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.reports import PoolReport, Report
from astraflow.dataflow.reporting.openmetrics import ReportCollector
from tests import make

HEAD = "| family | kind | labels | what it says |\n|---|---|---|---|\n"


def full_report() -> Report:
    """Returns a report in which every family has a sample."""
    stream = make.stream_report(
        steps=3, dropped={"stale": 2}, staleness={0: 5}, metrics={"loss": 0.1}, plugins={"replay.share": 0.25}
    )
    node = make.node_report(counters=dict.fromkeys(NODE_COUNTERS, 1.5), gauges=dict.fromkeys(NODE_GAUGES, 0.25))
    node = replace(node, links=(make.link_report(),))
    pool = PoolReport(id=node.facts.pool, ready=1, joining=0, draining=0, lost=0, episodes_per_s=1.0, tokens_per_s=5.0)
    flow = replace(
        make.flow_report(),
        plugins={"greso.skipped": 3.0},
        partial_rollouts={"handed_back": 2, "tokens_saved": 9},
        endings={"won": 3},
        reward_terms={"format": 0.5},
    )
    rounds = (make.round_report(1), make.round_report(2, state=EvaluationState.RUNNING))
    return replace(
        make.report(stream, flows=(flow,), nodes=(node,)),
        pools=(pool,),
        evaluations=rounds,
        recommendations=(make.pool_advice(),),
        weights=(make.weights_report(3),),
    )


def table() -> str:
    """Returns all families in the order in which they are served."""
    return HEAD + "".join(_line(family) for family in ReportCollector(full_report()).collect())


def _line(family: Metric) -> str:
    suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
    labels = ", ".join(sorted({label for sample in family.samples for label in sample.labels})) or "none"
    unit = f" ({family.unit.replace('_', ' ')})" if family.unit else ""
    return f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation}{unit} |\n"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201 (prints the table)
