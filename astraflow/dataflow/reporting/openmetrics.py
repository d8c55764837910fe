"""The report as metric families, for Prometheus and whatever else reads OpenMetrics.

Names are `astraflow_area_thing_unit`; what only grows is a counter, whose samples end in `_total`. Rates are left to
whoever reads: they follow from the counters, over any window. A counter starts again from 0 only where the thing it is
about begins anew, which then has a label of its own (a node's incarnation).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from astraflow.contract.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.links import WeightsReport
from astraflow.contract.reports import FlowReport, NodeReport, NodeState, PoolReport, Report, StreamReport
from astraflow.dataflow.reporting.losses import KINDS

Rows: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Label values, and the figure."""

NODE_COUNTER_FAMILIES = {
    "episodes_done": ("done", "episodes", "Episodes that ended with a result"),
    "episodes_failed": ("failed", "episodes", "Episodes that ended with a failure"),
    "tokens_generated": ("generated", "tokens", "Tokens written by the node's engines"),
    "tokens_continued": ("continued", "tokens", "Tokens taken from what other nodes handed back"),
    "busy_s": ("busy", "seconds", "Time in which all slots were used; half of them used is half a second a second"),
    "blocked_s": ("blocked", "seconds", "Time of free slots for which dataflow had no task"),
    "weight_bytes_full": ("weight_full", "bytes", "Fetched as full snapshots"),
    "weight_bytes_delta": ("weight_delta", "bytes", "Fetched as deltas"),
    "weight_updates_full": ("weight_full", "updates", "Versions fetched as a full snapshot"),
    "weight_updates_delta": ("weight_delta", "updates", "Versions fetched as deltas"),
    "weight_bytes_shared": ("weight_shared", "bytes", "Mapped where the store on the same host has them"),
    "weight_updates_shared": ("weight_shared", "updates", "Versions mapped where the store on the same host has them"),
    "weight_fetch_s": ("weight_fetch", "seconds", "Time spent on fetching versions"),
    "weight_verify_s": ("weight_verify", "seconds", "Time spent on staging and proving versions"),
    "weight_pause_s": ("weight_pause", "seconds", "Time for which engines stood still to swap versions"),
    "weight_failures": ("weight", "failures", "Versions that could not be had, loaded or taken as deltas"),
    "logprob_gap_failures": ("logprob_gap", "failures", "Versions withheld because engine and trainer disagree"),
    "evaluation_episodes": ("evaluation", "episodes", "Episodes of pinned tasks, which are among those above"),
    "evaluation_loads": ("evaluation", "loads", "Versions pinned for evaluations"),
    "evaluation_load_s": ("evaluation_load", "seconds", "Time spent on loading and measuring them"),
    "evaluation_bytes": ("evaluation_weight", "bytes", "Fetched for them"),
}
"""For each of `NODE_COUNTERS` its thing, unit and help."""

NODE_GAUGE_FAMILIES = {
    "logprob_gap": ("logprob_gap", "nats", "Largest difference of engine and trainer logprobs, newest version"),
    "logprob_gap_max": ("logprob_gap_largest", "nats", "The same, largest of all versions"),
    "tokens_per_s": ("engine", "tokens_per_second", "What the engine says it generates now"),
    "evaluation_running": ("evaluation_running", "tasks", "Pinned tasks that run"),
}
"""The same for `NODE_GAUGES`."""


_PREFIX_FATES = ("handed_back", "continued", "discarded", "stale", "late")
"""Of `FlowReport.prefixes`, what only grows and is counted in prefixes."""


@dataclass(frozen=True, slots=True)
class _Plain:
    """A family with one sample for each flow, stream or node: an attribute of its report."""

    make: type[CounterMetricFamily | GaugeMetricFamily]
    thing: str
    unit: str
    meaning: str
    attribute: str


_C, _G = CounterMetricFamily, GaugeMetricFamily

_FLOW = (
    _Plain(_C, "flow_issued", "groups", "Handed out", "issued"),
    _Plain(_G, "flow_open", "groups", "Issued, not all members back yet", "open"),
    _Plain(_C, "flow_admitted", "groups", "Complete, past every filter", "admitted"),
    _Plain(_G, "flow_queued", "tasks", "Wait for a node", "tasks_queued"),
    _Plain(_G, "flow_leased", "tasks", "Are with a node", "tasks_leased"),
    _Plain(_C, "flow_expired", "leases", "Ran out", "leases_expired"),
    _Plain(_C, "flow_returned", "tasks", "Handed back by nodes that left", "tasks_returned"),
    _Plain(_G, "flow_paused", "", "1 while nothing is issued on somebody's word", "is_paused"),
)
_STREAM = (
    _Plain(_G, "stream", "version", "Of the trainer's weights", "version"),
    _Plain(_G, "stream_batch", "groups", "In a batch", "batch_groups"),
    _Plain(_G, "stream_staleness_bound", "versions", "Largest age of a served row", "max_staleness"),
    _Plain(_C, "stream_admitted", "groups", "Routed to the policy", "admitted"),
    _Plain(_G, "stream_buffered", "groups", "Wait for a batch", "buffered"),
    _Plain(_G, "stream_out", "groups", "With the trainer, not acknowledged yet", "in_batch"),
    _Plain(_C, "stream_trained", "groups", "Acknowledged, each once", "trained"),
    _Plain(_C, "stream_replayed", "groups", "Trained again, each time", "replayed"),
    _Plain(_G, "stream_replayable", "groups", "Kept to be trained again", "replayable"),
    _Plain(_G, "stream_issue_room", "groups", "The staleness gate lets out now", "issue_room"),
    _Plain(_C, "stream_trainer", "steps", "Acknowledged", "steps"),
    _Plain(_C, "stream_redelivered", "batches", "Served again to a trainer that came back", "redelivered"),
    _Plain(_C, "stream_wait", "seconds", "The trainer was blocked in a pull", "wait_s"),
    _Plain(_C, "stream_compute", "seconds", "The trainer computed", "compute_s"),
    _Plain(_C, "stream_publish", "seconds", "The trainer published", "publish_s"),
    _Plain(_G, "stream_wait", "ratio", "Blocked in a pull over wall time, latest ten steps", "wait_fraction"),
    _Plain(_G, "stream_waiting", "", "1 while the trainer waits for a batch", "is_waiting"),
    _Plain(_G, "stream_trained_mean", "reward", "Of the latest batch", "reward_mean"),
    _Plain(_G, "stream_produced_mean", "reward", "Of the last ten seconds' rollouts", "reward_produced"),
    _Plain(_G, "stream_row_mean", "tokens", "Model-written, of the latest batch", "tokens_mean"),
)
_VERSION = (
    _Plain(_G, "version", "number", "That the trainer told of last; what follows is about it", "version"),
    _Plain(_G, "version_full", "bytes", "Its size", "full_bytes"),
    _Plain(_G, "version_sent", "bytes", "What the trainer sent of it", "sent_bytes"),
    _Plain(_G, "version_copy", "seconds", "The trainer waited while its bits were copied", "copy_s"),
    _Plain(_G, "version_hash", "seconds", "Hashing", "hash_s"),
    _Plain(_G, "version_encode", "seconds", "Encoding", "encode_s"),
    _Plain(_G, "version_send", "seconds", "Until the store had it", "send_s"),
)
_LINK = (
    _Plain(_C, "link_came", "versions", "Came over it", "versions"),
    _Plain(_C, "link_full", "bytes", "Fetched as full snapshots", "full_bytes"),
    _Plain(_C, "link_delta", "bytes", "Fetched as deltas", "delta_bytes"),
    _Plain(_C, "link_shared", "bytes", "Mapped on the same host", "shared_bytes"),
    _Plain(_C, "link_fetch", "seconds", "From the first request to the last byte", "fetch_s"),
    _Plain(_C, "link_decode", "seconds", "Turning deltas into bits", "decode_s"),
    _Plain(_C, "link_stage", "seconds", "Bringing the version before beside itself", "stage_s"),
    _Plain(_C, "link_verify", "seconds", "Hashing", "verify_s"),
    _Plain(_C, "link_pause", "seconds", "Until engines stood still", "pause_s"),
    _Plain(_C, "link_apply", "seconds", "Engines took versions over", "apply_s"),
    _Plain(_C, "link_resume", "seconds", "Until engines wrote again", "resume_s"),
    _Plain(_C, "link_got_over", "breaks", "Fetches that were resumed", "resumes"),
    _Plain(_C, "link", "failures", "Left for another source", "failures"),
    _Plain(_G, "link_latest", "bytes", "That travelled for the latest version", "latest_bytes"),
    _Plain(_G, "link_latest_fetch", "seconds", "The latest version took", "latest_fetch_s"),
    _Plain(_G, "link_latest_behind", "versions", "The node was when it fetched the latest one", "latest_behind"),
    _Plain(_G, "link_latest_changed", "ratio", "Elements that the latest delta changed", "latest_changed_share"),
)
_ROUND = (
    _Plain(_G, "evaluation_running_done", "samples", "With a result, in the round that runs", "done"),
    _Plain(_G, "evaluation_running_total", "samples", "Of the round that runs", "total"),
)
_ADVICE = (
    _Plain(_G, "pool_target", "nodes", "That the sizer advises", "target"),
    _Plain(_G, "pool_band_low", "nodes", "Below which it orders, the other pools as they are", "band_low"),
    _Plain(_G, "pool_band_high", "nodes", "Above which it retires", "band_high"),
)
_NODE = (
    _Plain(_G, "node_leased", "tasks", "It has now", "leased"),
    _Plain(_G, "node_capacity", "tasks", "It runs at once", "facts.capacity"),
    _Plain(_G, "node_beat_age", "seconds", "Since its last beat", "beat_age_s"),
    _Plain(_C, "node_expired", "leases", "Ran out", "lease_expiries"),
)


class ReportCollector(Collector):
    """The families of one report."""

    def __init__(self, report: Report, left_out: Mapping[str, int] | None = None) -> None:
        """left_out: what could not be reported, by kind."""
        self._report = report
        self._left_out = left_out or {}

    def collect(self) -> Iterator[Metric]:
        """All families, in an order that stays."""
        report = self._report
        yield from _run_families(report)
        left_out = [((kind,), self._left_out.get(kind, 0)) for kind in KINDS]
        meaning = "Reports, frames and rows that could not be encoded, sent, written or read"
        yield _family(_C, "run_left_out", "reports", meaning, ("kind",), left_out)
        yield from _flow_families(report.flows)
        yield from _stream_families(report.streams)
        yield from _version_families(report.weights)
        yield from _evaluation_families(report.evaluations)
        yield from _pool_families(report.pools)
        yield from _plain_families(_ADVICE, ("pool",), [((advice.pool,), advice) for advice in report.advice])
        nodes = [node for node in report.nodes if node.state is not NodeState.GONE]
        yield from _node_families(nodes)
        yield from _link_families(report, nodes)


def _run_families(report: Report) -> Iterator[Metric]:
    simulated = ", ".join(report.simulated)
    yield InfoMetricFamily("astraflow_run", "What runs", value={"run": report.run, "simulated": simulated})
    yield _family(_G, "run_report_timestamp", "seconds", "When the report was made, Unix time", (), [((), report.at)])
    yield _family(_G, "run_up", "seconds", "Since this dataflow process began", (), [((), report.uptime_s)])
    yield _family(_G, "run_durable", "", "1 when a restart forgets nothing", (), [((), report.is_durable)])
    yield _family(_G, "run_held", "bytes", "Results in memory, until trained or dropped", (), [((), report.held_bytes)])
    yield _family(_G, "run_memory", "bytes", "What they may take", (), [((), report.memory_bytes)])
    yield _family(_G, "run", "troubles", "Things that somebody must see to now", (), [((), len(report.troubles))])


def _flow_families(flows: Sequence[FlowReport]) -> Iterator[Metric]:
    yield from _plain_families(_FLOW, ("flow",), [((flow.id,), flow) for flow in flows])
    dropped = _nested((flow.id, flow.dropped) for flow in flows)
    yield _family(_C, "flow_dropped", "groups", "Refused at admission", ("flow", "reason"), dropped)
    pushed = _nested((flow.id, flow.episodes) for flow in flows)
    yield _family(_C, "flow_pushed", "episodes", "That nodes handed in", ("flow", "fate"), pushed)
    handed_back = _nested((flow.id, _part(flow.prefixes, _PREFIX_FATES)) for flow in flows)
    meaning = "What became of beginnings of episodes that nodes handed back"
    yield _family(_C, "flow_handed_back", "prefixes", meaning, ("flow", "fate"), handed_back)
    saved = [((flow.id,), flow.prefixes.get("tokens_saved", 0)) for flow in flows]
    yield _family(_C, "flow_saved", "tokens", "Continued instead of written again", ("flow",), saved)
    figures = _figures((flow.id, flow.plugins) for flow in flows)
    labels = ("flow", "plugin", "figure")
    yield _family(_G, "flow_plugin_figure", "", "What selector and filters say of themselves", labels, figures)


def _stream_families(streams: Sequence[StreamReport]) -> Iterator[Metric]:
    yield from _plain_families(_STREAM, ("policy",), [((stream.policy,), stream) for stream in streams])
    dropped = _nested((stream.policy, stream.dropped) for stream in streams)
    yield _family(_C, "stream_dropped", "groups", "Never trained on", ("policy", "reason"), dropped)
    ages = [((stream.policy, str(age)), rows) for stream in streams for age, rows in stream.staleness.items()]
    meaning = "Of the latest ten batches, by age in versions when served"
    yield _family(_G, "stream_served", "rows", meaning, ("policy", "age"), ages)
    told = _nested((stream.policy, stream.metrics) for stream in streams)
    yield _family(_G, "stream_step_figure", "", "What the trainer says of its latest step", ("policy", "figure"), told)
    figures = _figures((stream.policy, stream.plugins) for stream in streams)
    labels = ("policy", "plugin", "figure")
    yield _family(_G, "stream_plugin_figure", "", "What the sampler says of itself", labels, figures)


def _version_families(weights: Sequence[WeightsReport]) -> Iterator[Metric]:
    latest = [((one.policy,), one.versions[-1]) for one in weights if one.versions]
    yield from _plain_families(_VERSION, ("policy",), latest)
    changed = [(of, version.changed_share) for of, version in latest]
    known = [(of, share) for of, share in changed if share is not None]
    yield _family(_G, "version_changed", "ratio", "Elements that differ from the version before", ("policy",), known)


def _evaluation_families(rounds: Sequence[EvaluationReport]) -> Iterator[Metric]:
    running = [((one.flow,), one) for one in rounds if one.state is EvaluationState.RUNNING]
    yield from _plain_families(_ROUND, ("evaluation",), running)
    ended = [one for one in rounds if one.finished_at is not None]
    versions = [((one.flow, policy), version) for one in ended for policy, version in one.versions.items()]
    meaning = "That the round was about which ended last"
    yield _family(_G, "evaluation_ended", "version", meaning, ("evaluation", "policy"), versions)
    masked = [((one.flow,), one.masked) for one in ended]
    yield _family(_G, "evaluation_ended_masked", "samples", "Without a score in that round", ("evaluation",), masked)
    scores = [((one.flow, score.policy, score.name), score) for one in ended for score in one.scores]
    labels = ("evaluation", "policy", "figure")
    values = [(of, score.value) for of, score in scores]
    yield _family(_G, "evaluation_ended_score", "", "What that round found", labels, values)
    errors = [(of, score.error) for of, score in scores if score.error is not None]
    yield _family(_G, "evaluation_ended_score_error", "", "Its standard error", labels, errors)


def _pool_families(pools: Sequence[PoolReport]) -> Iterator[Metric]:
    states = ("ready", "joining", "draining", "lost")
    rows = [((pool.id, state), getattr(pool, state)) for pool in pools for state in states]
    yield _family(_G, "pool", "nodes", "By state", ("pool", "state"), rows)


def _node_families(nodes: Sequence[NodeReport]) -> Iterator[Metric]:
    labels = ("node", "pool")
    labelled = [((node.id, node.facts.pool), node) for node in nodes]
    ready = [(values, node.state is NodeState.READY) for values, node in labelled]
    yield _family(_G, "node_ready", "", "1 while it takes tasks", labels, ready)
    yield from _plain_families(_NODE, labels, labelled)
    served = [((*values, policy), number) for values, node in labelled for policy, number in node.versions.items()]
    yield _family(_G, "node_served", "version", "Of each policy's weights", (*labels, "policy"), served)
    for key, (thing, unit, meaning) in NODE_COUNTER_FAMILIES.items():
        told = [(values, node.counters[key]) for values, node in labelled if key in node.counters]
        yield _family(_C, f"node_{thing}", unit, meaning, labels, told)
    for key, (thing, unit, meaning) in NODE_GAUGE_FAMILIES.items():
        told = [(values, node.gauges[key]) for values, node in labelled if key in node.gauges]
        yield _family(_G, f"node_{thing}", unit, meaning, labels, told)


def _link_families(report: Report, nodes: Sequence[NodeReport]) -> Iterator[Metric]:
    behind = [((node.id, node.facts.pool, policy), lag) for node in nodes for policy, lag in report.lag(node).items()]
    labels = ("node", "pool", "policy")
    yield _family(_G, "node_lag", "versions", "Served, behind the trainer's", labels, behind)
    links = [((node.id, node.facts.pool, link.source), link) for node in nodes for link in node.links]
    yield from _plain_families(_LINK, ("node", "pool", "source"), links)


def _plain_families(
    table: Sequence[_Plain], labels: tuple[str, ...], labelled: Sequence[tuple[tuple[str, ...], Any]]
) -> Iterator[Metric]:
    for plain in table:
        figure = attrgetter(plain.attribute)
        rows = [(values, figure(one)) for values, one in labelled]
        yield _family(plain.make, plain.thing, plain.unit, plain.meaning, labels, rows)


def _nested(counts: Iterable[tuple[str, Mapping[str, float]]]) -> Rows:
    return [((of, key), number) for of, numbers in counts for key, number in numbers.items()]


def _part(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, float]:
    return {name: counts[name] for name in names if name in counts}


def _figures(plugins: Iterable[tuple[str, Mapping[str, float]]]) -> Rows:
    """Plug-ins call their figures `kind.figure`."""
    return [((of, *_halves(name)), value) for of, figures in plugins for name, value in figures.items()]


def _halves(name: str) -> tuple[str, str]:
    plugin, _, figure = name.partition(".")
    return plugin, figure


def _family(
    make: type[CounterMetricFamily | GaugeMetricFamily],
    thing: str,
    unit: str,
    meaning: str,
    labels: tuple[str, ...],
    rows: Rows,
) -> Metric:
    name = "_".join(part for part in ("astraflow", thing, unit) if part)
    family = make(name, meaning, labels=labels, unit=unit)
    for values, figure in rows:
        family.add_metric(values, figure)
    return family
