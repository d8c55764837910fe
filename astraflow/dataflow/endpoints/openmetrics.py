"""Converts the report into metric families for Prometheus and other readers of OpenMetrics.

Names are `astraflow_area_thing_unit`; a value that only grows is a counter, whose samples end in `_total`. There are no
rates: readers compute them from the counters, over any window. A counter restarts at 0 only if its subject starts
again, which then has another label (a node's incarnation).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from astraflow.contract.fleet.recommendations import LimitInEffect, PoolRecommendation
from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.report import FlowReport, NodeReport, NodeState, PoolReport, Report, StreamReport
from astraflow.contract.weight_reports import WeightsReport
from astraflow.dataflow.history.losses import KINDS

FamilyRows: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Label values and the value of the metric."""

_PARTIAL_ROLLOUT_OUTCOMES = ("handed_back", "continued", "discarded", "stale", "late")
"""Outcomes in `FlowReport.partial_rollouts` that only grow and are counted in partial rollouts."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Space of a file system."""

    free_bytes: int
    """Space that is free for dataflow's user."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _SimpleFamily:
    """Family with one sample per flow, stream or node: an attribute of its report."""

    family_type: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    unit: str
    help_text: str
    attribute: str


_C, _G = CounterMetricFamily, GaugeMetricFamily

_FLOW = (
    _SimpleFamily(_C, "flow_issued", "groups", "Groups issued", "issued"),
    _SimpleFamily(_G, "flow_open", "groups", "Groups issued with members that have no result yet", "open"),
    _SimpleFamily(_C, "flow_admitted", "groups", "Complete groups that passed every filter", "admitted"),
    _SimpleFamily(_G, "flow_queued", "tasks", "Tasks that wait for a node", "tasks_queued"),
    _SimpleFamily(_G, "flow_leased", "tasks", "Tasks leased to nodes", "tasks_leased"),
    _SimpleFamily(_C, "flow_expired", "leases", "Expired leases", "leases_expired"),
    _SimpleFamily(_C, "flow_returned", "tasks", "Tasks returned by nodes that left", "tasks_returned"),
    _SimpleFamily(_G, "flow_paused", "", "1 while the flow is paused", "is_paused"),
)
_STREAM = (
    _SimpleFamily(_G, "stream", "version", "Version of the trainer's weights", "version"),
    _SimpleFamily(_G, "stream_batch", "groups", "Groups per batch", "batch_groups"),
    _SimpleFamily(_G, "stream_staleness_bound", "versions", "Largest age of a served row", "max_staleness"),
    _SimpleFamily(_C, "stream_admitted", "groups", "Groups routed to the policy", "groups.admitted"),
    _SimpleFamily(_G, "stream_buffered", "groups", "Groups that wait for a batch", "groups.buffered"),
    _SimpleFamily(_G, "stream_in_batch", "groups", "Groups with the trainer, not acknowledged yet", "groups.in_batch"),
    _SimpleFamily(_C, "stream_trained", "groups", "Groups acknowledged, each counted once", "groups.trained"),
    _SimpleFamily(_C, "stream_replayed", "groups", "Groups trained again, counted each time", "groups.replayed"),
    _SimpleFamily(_G, "stream_replayable", "groups", "Groups retained to be trained again", "groups.replayable"),
    _SimpleFamily(_G, "stream_issue_headroom", "groups", "Groups that the staleness gate admits now", "issue_headroom"),
    _SimpleFamily(_G, "stream_pace", "groups", "Groups that pacing lets be outstanding", "pace.limit"),
    _SimpleFamily(_G, "stream_outstanding", "groups", "Groups issued and not yet in a batch", "pace.outstanding"),
    _SimpleFamily(_C, "stream_trainer", "steps", "Acknowledged steps", "training.steps"),
    _SimpleFamily(
        _C, "stream_redelivered", "batches", "Batches served again to a restarted trainer", "training.redelivered"
    ),
    _SimpleFamily(_C, "stream_wait", "seconds", "Time for which the trainer waited for batches", "training.wait_s"),
    _SimpleFamily(_C, "stream_compute", "seconds", "Time for which the trainer computed", "training.compute_s"),
    _SimpleFamily(_C, "stream_publish", "seconds", "Time for which the trainer published", "training.publish_s"),
    _SimpleFamily(
        _G,
        "stream_wait",
        "ratio",
        "Time waiting for batches over wall time, latest ten steps",
        "training.wait_fraction",
    ),
    _SimpleFamily(_G, "stream_waiting", "", "1 while the trainer waits for a batch", "training.is_waiting"),
    _SimpleFamily(_G, "stream_trained_mean", "reward", "Mean reward of the latest batch", "training.reward_mean"),
    _SimpleFamily(_G, "stream_produced_mean", "reward", "Mean reward of rollouts, last ten seconds", "reward_produced"),
    _SimpleFamily(
        _G, "stream_row_mean", "tokens", "Mean model-written tokens per row, latest batch", "training.tokens_mean"
    ),
)
_VERSION = (
    _SimpleFamily(_G, "version", "number", "Version that the trainer reported last; the others describe it", "version"),
    _SimpleFamily(_G, "version_full", "bytes", "Full size of the version", "full_bytes"),
    _SimpleFamily(_G, "version_sent", "bytes", "Bytes of the version that the trainer sent", "sent_bytes"),
    _SimpleFamily(_G, "version_copy", "seconds", "Time for which the trainer waited for the copy", "copy_s"),
    _SimpleFamily(_G, "version_hash", "seconds", "Time spent hashing", "hash_s"),
    _SimpleFamily(_G, "version_encode", "seconds", "Time spent encoding", "encode_s"),
    _SimpleFamily(_G, "version_send", "seconds", "Time until the store had the version", "send_s"),
)
_LINK = (
    _SimpleFamily(_C, "link_fetched", "versions", "Versions fetched over the link", "versions"),
    _SimpleFamily(_C, "link_full", "bytes", "Bytes fetched as full snapshots", "full_bytes"),
    _SimpleFamily(_C, "link_delta", "bytes", "Bytes fetched as deltas", "delta_bytes"),
    _SimpleFamily(_C, "link_shared", "bytes", "Bytes mapped on the same host", "shared_bytes"),
    _SimpleFamily(_C, "link_fetch", "seconds", "Time from the first request to the last byte", "fetch_s"),
    _SimpleFamily(_C, "link_decode", "seconds", "Time spent decoding deltas", "decode_s"),
    _SimpleFamily(
        _C, "link_stage", "seconds", "Time spent copying the previous version into the staging buffer", "stage_s"
    ),
    _SimpleFamily(_C, "link_verify", "seconds", "Time spent hashing", "verify_s"),
    _SimpleFamily(_C, "link_pause", "seconds", "Time until engines were paused", "pause_s"),
    _SimpleFamily(_C, "link_apply", "seconds", "Time for which engines loaded versions", "apply_s"),
    _SimpleFamily(_C, "link_resume", "seconds", "Time until engines generated again", "resume_s"),
    _SimpleFamily(_C, "weight_fetch", "resumes", "Fetches that were resumed", "resumes"),
    _SimpleFamily(_C, "link", "failures", "Fetches that moved on to another source", "failures"),
    _SimpleFamily(_G, "link_latest", "bytes", "Bytes transferred for the latest version", "latest_bytes"),
    _SimpleFamily(_G, "link_latest_fetch", "seconds", "Time to fetch the latest version", "latest_fetch_s"),
    _SimpleFamily(
        _G,
        "link_latest_behind",
        "versions",
        "Version lag before the latest version was fetched",
        "latest_versions_behind",
    ),
    _SimpleFamily(_G, "link_latest_changed", "ratio", "Elements that the latest delta changed", "latest_changed_share"),
)
_ROUND = (
    _SimpleFamily(_G, "evaluation_running_done", "samples", "Samples with a result in the running round", "done"),
    _SimpleFamily(_G, "evaluation_running_total", "samples", "Samples of the running round", "total"),
)
_RECOMMENDATION = (
    _SimpleFamily(_G, "pool_target", "nodes", "Recommended nodes", "target"),
    _SimpleFamily(
        _G, "pool_band_low", "nodes", "Size below which the pool scales up, other pools unchanged", "band_low"
    ),
    _SimpleFamily(_G, "pool_band_high", "nodes", "Size above which the pool scales down", "band_high"),
)
_NODE = (
    _SimpleFamily(_G, "node_leased", "tasks", "Tasks leased to the node", "leased"),
    _SimpleFamily(_G, "node_capacity", "tasks", "Upper limit of concurrent tasks", "facts.capacity"),
    _SimpleFamily(_G, "node_heartbeat_age", "seconds", "Time since the last heartbeat", "heartbeat_age_s"),
    _SimpleFamily(_C, "node_expired", "leases", "Expired leases", "lease_expiries"),
)


class ReportCollector(Collector):
    """Collects the families of one report."""

    def __init__(
        self, report: Report, left_out: Mapping[str, int] | None = None, disk: DiskSpace | None = None
    ) -> None:
        """left_out: numbers of items that could not be reported, by kind. disk: of dataflow's directory."""
        self._report = report
        self._left_out = left_out or {}
        self._disk = disk

    def collect(self) -> Iterator[Metric]:
        """Yields all families in a fixed order."""
        report = self._report
        yield from _run_families(report)
        left_out = [((kind,), self._left_out.get(kind, 0)) for kind in KINDS]
        help_text = "Reports, frames and rows that could not be encoded, sent, written or read"
        yield _family(_C, "run_lost", "reports", help_text, ("kind",), left_out)
        yield from _disk_families(self._disk)
        yield from _flow_families(report.flows)
        yield from _stream_families(report.streams)
        yield from _version_families(report.weights)
        yield from _evaluation_families(report.evaluations)
        yield from _pool_families(report.pools)
        yield from _recommendation_families(report.recommendations)
        nodes = [node for node in report.nodes if node.state is not NodeState.GONE]
        yield from _node_families(nodes)
        yield from _link_families(report, nodes)


def _run_families(report: Report) -> Iterator[Metric]:
    simulated = ", ".join(report.simulated)
    yield InfoMetricFamily("astraflow_run", "Name of the run", value={"run": report.run, "simulated": simulated})
    yield _family(_G, "run_report_timestamp", "seconds", "Unix time of the report", (), [((), report.at)])
    yield _family(_G, "run_up", "seconds", "Uptime of this dataflow process", (), [((), report.uptime_s)])
    yield _family(_G, "run_durable", "", "1 when the run survives a restart", (), [((), report.is_durable)])
    yield _family(_G, "run_held", "bytes", "Results in memory, until trained or dropped", (), [((), report.held_bytes)])
    yield _family(_G, "run_memory", "bytes", "Bound of the results in memory", (), [((), report.memory_bytes)])
    yield _family(_G, "run", "problems", "Problems that need action now", (), [((), len(report.problems))])
    is_complete = report.completion is not None and report.completion.ends_run
    help_text = "1 when the run has met its stop condition and serves no more tasks"
    yield _family(_G, "run_complete", "", help_text, (), [((), is_complete)])


def _disk_families(disk: DiskSpace | None) -> Iterator[Metric]:
    free, size = ([], []) if disk is None else ([((), disk.free_bytes)], [((), disk.size_bytes)])
    help_text = "Free space of the file system that holds dataflow's directory"
    yield _family(_G, "run_disk_free", "bytes", help_text, (), free)
    yield _family(_G, "run_disk_size", "bytes", "Size of that file system", (), size)


def _flow_families(flows: Sequence[FlowReport]) -> Iterator[Metric]:
    yield from _plain_families(_FLOW, ("flow",), [((flow.id,), flow) for flow in flows])
    dropped = _nested((flow.id, flow.dropped) for flow in flows)
    yield _family(_C, "flow_dropped", "groups", "Groups refused at admission", ("flow", "reason"), dropped)
    pushed = _nested((flow.id, flow.episodes) for flow in flows)
    yield _family(_C, "flow_pushed", "episodes", "Episodes pushed by nodes", ("flow", "outcome"), pushed)
    ended = _nested((flow.id, flow.endings) for flow in flows)
    yield _family(_C, "flow_ended", "trajectories", "Trajectories by ending", ("flow", "ending"), ended)
    refused = _nested((flow.id, flow.refused) for flow in flows)
    yield _family(_C, "flow_refused", "results", "Results that broke a limit, by limit", ("flow", "limit"), refused)
    terms = _nested((flow.id, flow.reward_terms) for flow in flows)
    yield _family(_G, "flow_term_mean", "reward", "Mean of a reward term, last ten seconds", ("flow", "term"), terms)
    handed_back = _nested((flow.id, _part(flow.partial_rollouts, _PARTIAL_ROLLOUT_OUTCOMES)) for flow in flows)
    help_text = "Partial rollouts that nodes handed back"
    yield _family(_C, "flow_handed_back", "partial_rollouts", help_text, ("flow", "outcome"), handed_back)
    saved = [((flow.id,), flow.partial_rollouts.get("tokens_saved", 0)) for flow in flows]
    yield _family(_C, "flow_saved", "tokens", "Tokens continued instead of generated again", ("flow",), saved)
    metrics, labels = _plugin_metrics((flow.id, flow.plugins) for flow in flows), ("flow", "plugin", "metric")
    yield _family(_G, "flow_plugin_metric", "", "Metrics of selector and filters", labels, metrics)


def _stream_families(streams: Sequence[StreamReport]) -> Iterator[Metric]:
    yield from _plain_families(_STREAM, ("policy",), [((stream.policy,), stream) for stream in streams])
    dropped = _nested((stream.policy, stream.groups.dropped) for stream in streams)
    yield _family(_C, "stream_dropped", "groups", "Groups dropped without training", ("policy", "reason"), dropped)
    ages = [((stream.policy, str(age)), rows) for stream in streams for age, rows in stream.staleness.items()]
    help_text = "Rows of the latest ten batches, by age in versions when served"
    yield _family(_G, "stream_served", "rows", help_text, ("policy", "age"), ages)
    step_metrics = _nested((stream.policy, stream.training.metrics) for stream in streams)
    yield _family(
        _G, "stream_step_metric", "", "Metrics of the trainer's latest step", ("policy", "metric"), step_metrics
    )
    metrics = _plugin_metrics((stream.policy, stream.plugins) for stream in streams)
    labels = ("policy", "plugin", "metric")
    yield _family(_G, "stream_plugin_metric", "", "Metrics of the sampler", labels, metrics)


def _version_families(weights: Sequence[WeightsReport]) -> Iterator[Metric]:
    latest = [((report.policy,), report.versions[-1]) for report in weights if report.versions]
    yield from _plain_families(_VERSION, ("policy",), latest)
    changed = [(labels, version.changed_share) for labels, version in latest]
    measured_shares = [(labels, share) for labels, share in changed if share is not None]
    yield _family(
        _G, "version_changed", "ratio", "Elements that differ from the previous version", ("policy",), measured_shares
    )


def _evaluation_families(rounds: Sequence[EvaluationReport]) -> Iterator[Metric]:
    running = [((round_.flow,), round_) for round_ in rounds if round_.state is EvaluationState.RUNNING]
    yield from _plain_families(_ROUND, ("evaluation",), running)
    ended = [round_ for round_ in rounds if round_.finished_at is not None]
    versions = [((round_.flow, policy), version) for round_ in ended for policy, version in round_.versions.items()]
    help_text = "Version evaluated in the last ended round"
    yield _family(_G, "evaluation_ended", "version", help_text, ("evaluation", "policy"), versions)
    masked = [((round_.flow,), round_.masked) for round_ in ended]
    help_text = "Samples without a score in the last ended round"
    yield _family(_G, "evaluation_ended_masked", "samples", help_text, ("evaluation",), masked)
    scores = [((round_.flow, score.policy, score.name), score) for round_ in ended for score in round_.scores]
    labels = ("evaluation", "policy", "metric")
    values = [(score_labels, score.value) for score_labels, score in scores]
    yield _family(_G, "evaluation_ended_score", "", "Scores of the last ended round", labels, values)
    errors = [(score_labels, score.error) for score_labels, score in scores if score.error is not None]
    yield _family(_G, "evaluation_ended_score_error", "", "Standard errors of these scores", labels, errors)


def _pool_families(pools: Sequence[PoolReport]) -> Iterator[Metric]:
    states = ("ready", "joining", "draining", "lost")
    rows = [((pool.id, state), getattr(pool, state)) for pool in pools for state in states]
    yield _family(_G, "pool", "nodes", "Nodes by state", ("pool", "state"), rows)


def _recommendation_families(recommendations: Sequence[PoolRecommendation]) -> Iterator[Metric]:
    labelled = [((recommendation.pool,), recommendation) for recommendation in recommendations]
    yield from _plain_families(_RECOMMENDATION, ("pool",), labelled)
    limits = [((pool, limit.value), limit in item.limited_by) for (pool,), item in labelled for limit in LimitInEffect]
    help_text = "1 while the limit keeps the recommendation away from the demand"
    yield _family(_G, "pool_limit_in_effect", "", help_text, ("pool", "limit"), limits)


def _node_families(nodes: Sequence[NodeReport]) -> Iterator[Metric]:
    labels = ("node", "pool")
    labelled = [((node.id, node.facts.pool), node) for node in nodes]
    ready = [(values, node.state is NodeState.READY) for values, node in labelled]
    yield _family(_G, "node_ready", "", "1 while the node takes tasks", labels, ready)
    yield from _plain_families(_NODE, labels, labelled)
    served = [((*values, policy), number) for values, node in labelled for policy, number in node.versions.items()]
    yield _family(_G, "node_served", "version", "Version served, by policy", (*labels, "policy"), served)
    for key, metric in NODE_COUNTERS.items():
        rows = [(values, node.counters[key]) for values, node in labelled if key in node.counters]
        yield _family(_C, f"node_{metric.family}", metric.unit, metric.meaning, labels, rows)
    for key, metric in NODE_GAUGES.items():
        rows = [(values, node.gauges[key]) for values, node in labelled if key in node.gauges]
        yield _family(_G, f"node_{metric.family}", metric.unit, metric.meaning, labels, rows)


def _link_families(report: Report, nodes: Sequence[NodeReport]) -> Iterator[Metric]:
    behind = [((node.id, node.facts.pool, policy), lag) for node in nodes for policy, lag in report.lag(node).items()]
    labels = ("node", "pool", "policy")
    yield _family(_G, "node_lag", "versions", "Versions behind the trainer", labels, behind)
    links = [((node.id, node.facts.pool, link.source), link) for node in nodes for link in node.links]
    yield from _plain_families(_LINK, ("node", "pool", "source"), links)


def _plain_families(
    table: Sequence[_SimpleFamily], labels: tuple[str, ...], labelled: Sequence[tuple[tuple[str, ...], Any]]
) -> Iterator[Metric]:
    for simple in table:
        part, _, _ = simple.attribute.rpartition(".")
        present = [(values, item) for values, item in labelled if not part or attrgetter(part)(item) is not None]
        value_of = attrgetter(simple.attribute)
        rows = [(values, value_of(item)) for values, item in present]
        yield _family(simple.family_type, simple.name, simple.unit, simple.help_text, labels, rows)


def _nested(counts: Iterable[tuple[str, Mapping[str, float]]]) -> FamilyRows:
    return [((label, key), number) for label, numbers in counts for key, number in numbers.items()]


def _part(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, float]:
    return {name: counts[name] for name in names if name in counts}


def _plugin_metrics(plugins: Iterable[tuple[str, Mapping[str, float]]]) -> FamilyRows:
    """Splits the metrics of plugins, named `kind.metric`."""
    return [((label, *_split_name(name)), value) for label, metrics in plugins for name, value in metrics.items()]


def _split_name(name: str) -> tuple[str, str]:
    plugin, _, metric = name.partition(".")
    return plugin, metric


def _family(
    family_type: type[CounterMetricFamily | GaugeMetricFamily],
    thing: str,
    unit: str,
    help_text: str,
    labels: tuple[str, ...],
    rows: FamilyRows,
) -> Metric:
    name = "_".join(part for part in ("astraflow", thing, unit) if part)
    family = family_type(name, help_text, labels=labels, unit=unit)
    for label_values, value in rows:
        family.add_metric(label_values, value)
    return family
