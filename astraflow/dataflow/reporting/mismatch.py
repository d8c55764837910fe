"""Names why engine and trainer give other probabilities to the same tokens, where that is about to stop training."""

from collections.abc import Collection

from astraflow.contract.ids import PolicyId
from astraflow.contract.mismatch import mismatch_cause
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import NodeState, Report, StreamReport


def mismatch_problems(report: Report, *, mixtures: Collection[PolicyId] = ()) -> tuple[Record, ...]:
    """Returns a problem for each policy whose latest measured divergence is above its trainer's bound.

    mixtures: policies whose trainers state that their model is a mixture of experts.
    """
    return tuple(
        _problem(report, stream, is_mixture=stream.policy in mixtures)
        for stream in report.streams
        if stream.training.metrics.get("mismatch_of_bound", 0.0) > 1 and "mismatch_k3" in stream.training.metrics
    )


def _problem(report: Report, stream: StreamReport, *, is_mixture: bool) -> Record:
    nodes = [node for node in report.nodes if node.state is NodeState.READY and node.facts.serves([stream.policy])]
    probes = [node.gauges["logprob_mismatch_max"] for node in nodes if "logprob_mismatch_max" in node.gauges]
    precisions = dict.fromkeys(node.facts.precision for node in nodes if node.facts.precision)
    cause, values = mismatch_cause(
        stream.training.metrics,
        probe=max(probes, default=None),
        engines=", ".join(precisions),
        trainer="" if stream.batching is None else stream.batching.precision,
        is_mixture=is_mixture,
    )
    return problem_record(cause, stream.policy, policy=stream.policy, **values)
