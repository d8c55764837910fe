"""A report in which every metric family has a sample."""

from dataclasses import replace

from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.report import PoolReport, Report
from tests import make


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
