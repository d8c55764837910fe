"""Live texts of the pages by key; the first paint and every push use the same texts."""

from dataclasses import dataclass

from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.records import render
from astraflow.contract.reports.capacity import capacity_balance
from astraflow.contract.reports.diagnosis import diagnose
from astraflow.contract.reports.report import FlowReport, NodeReport, NodeState, PoolReport, Report, StreamReport
from web.components import formats, insights
from web.components.diagnosis_texts import diagnosis_texts
from web.components.fleet_texts import fleet_texts
from web.history.capacity import node_cache
from web.history.points import Series
from web.history.time_ranges import DEFAULT_RANGE, NAMED_RANGES_S
from web.state.annotations import capitalized


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveText:
    """One text and its tone: `good`, `pace` (limits, as it may), `warn`, `bad` or empty. The text carries the same
    meaning without the tone."""

    text: str
    tone: str = ""


def build_live_texts(report: Report, series: Series, fleet: FleetStatus | None = None) -> dict[str, LiveText]:
    """Returns every text that changes while a page is open, except those of nodes (see `web.live.live_nodes`).

    fleet: status of the fleet service; None without one.
    """
    live_texts = _run_texts(report)
    for stream in report.streams:
        live_texts |= _stream_texts(stream, series)
    for flow in report.flows:
        live_texts |= _flow_texts(flow)
    for pool in report.pools:
        live_texts |= _pool_texts(pool)
    live_texts |= {
        f"pool/{recommendation.pool}/recommendation": LiveText(text=recommendation_text(recommendation))
        for recommendation in report.recommendations
    }
    toned = build_weight_texts(report) | fleet_texts(report, series, capacity_balance(report, fleet))
    for stream in report.streams:
        toned |= diagnosis_texts(report, diagnose(report, stream.policy, fleet))
    return live_texts | {key: LiveText(text=text, tone=tone) for key, (text, tone) in toned.items()}


def visible_nodes(report: Report) -> list[NodeReport]:
    """Returns the nodes of the run except those that are gone: ready ones first, lost ones last."""
    order = [NodeState.READY, NodeState.JOINING, NodeState.DRAINING, NodeState.LOST]
    present = [node for node in report.nodes if node.state is not NodeState.GONE]
    return sorted(present, key=lambda node: (order.index(node.state), node.facts.name, node.id))


def present_nodes(report: Report) -> list[NodeReport]:
    """Returns the visible nodes except lost ones, which serve no version any more."""
    return [node for node in visible_nodes(report) if node.state is not NodeState.LOST]


@node_cache(lambda _: None)
def node_summary(report: Report) -> str:
    """Returns the number of nodes per state."""
    states = [node.state for node in report.nodes]
    shown = (NodeState.READY, NodeState.JOINING, NodeState.DRAINING, NodeState.LOST)
    parts = [f"{count} {state.value}" for state in shown if (count := states.count(state))]
    return ", ".join(parts) or "no nodes"


def recommendation_text(recommendation: PoolRecommendation) -> str:
    """Returns the recommended size of a pool with its cause, in words."""
    return capitalized(render(recommendation.change))


def _run_texts(report: Report) -> dict[str, LiveText]:
    rollouts = sum(pool.episodes_per_s for pool in report.pools)
    tokens = sum(pool.tokens_per_s for pool in report.pools)
    return {
        "run/uptime": LiveText(text=formats.duration(report.uptime_s)),
        "run/nodes": LiveText(text=node_summary(report)),
        "run/episodes_per_s": LiveText(text=formats.rate(rollouts)),
        "run/tokens_per_s": LiveText(text=formats.rate(tokens)),
    }


def _stream_texts(stream: StreamReport, series: Series) -> dict[str, LiveText]:
    key = f"policy/{stream.policy}"
    points = series.window(NAMED_RANGES_S[DEFAULT_RANGE])
    newest = points[-1].policies.get(stream.policy) if points else None
    average = newest.reward_average if newest else None
    live_texts = {
        "reward": LiveText(text=formats.reward(newest.reward if newest and average is None else average)),
        "reward_note": LiveText(text=insights.reward_note(stream.policy, points)),
        "reward_last": LiveText(text=formats.reward(newest.reward if newest else None)),
        "reward_trained": LiveText(text=formats.reward(newest.reward_trained if newest else None)),
        "produced": LiveText(text=formats.rate(stream.produced_per_s)),
        "consumed": LiveText(text=formats.rate(stream.consumed_per_s)),
        "rates_note": LiveText(text=insights.rates_note(stream)),
        "buffered": LiveText(text=formats.count(stream.groups.buffered)),
        "buffer_note": LiveText(text=insights.buffer_note(stream)),
        "version": LiveText(text=f"v{stream.version}"),
        "steps": LiveText(text=formats.count(stream.training.steps)),
        "tokens_mean": LiveText(text=formats.rate(stream.training.tokens_mean)),
        "step_time": LiveText(text=_step_time(stream)),
        "admitted": LiveText(text=formats.count(stream.groups.admitted)),
        "in_batch": LiveText(text=formats.count(stream.groups.in_batch)),
        "trained": LiveText(text=formats.count(stream.groups.trained)),
        "dropped": LiveText(text=formats.count(sum(stream.groups.dropped.values()))),
        "redelivered": LiveText(text=formats.count(stream.training.redelivered)),
    }
    titles = insights.chart_insights(stream, points)
    live_texts |= {f"{chart}/{DEFAULT_RANGE}": LiveText(text=title) for chart, title in titles.items()}
    return {f"{key}/{name}": text for name, text in live_texts.items()}


def _step_time(stream: StreamReport) -> str:
    if not stream.training.steps:
        return formats.MISSING
    return formats.duration((stream.training.total_s) / stream.training.steps)


def _flow_texts(flow: FlowReport) -> dict[str, LiveText]:
    live_texts = {
        "state": LiveText(text="paused", tone="warn") if flow.is_paused else LiveText(text="issuing", tone="good"),
        "issued": LiveText(text=formats.count(flow.issued)),
        "open": LiveText(text=formats.count(flow.open)),
        "admitted": LiveText(text=formats.count(flow.admitted)),
        "dropped": LiveText(text=formats.count(sum(flow.dropped.values()))),
        "leased": LiveText(text=formats.count(flow.tasks_leased)),
        "queued": LiveText(text=formats.count(flow.tasks_queued)),
    }
    return {f"flow/{flow.id}/{name}": text for name, text in live_texts.items()}


def _pool_texts(pool: PoolReport) -> dict[str, LiveText]:
    live_texts = {
        "ready": LiveText(text=formats.count(pool.ready)),
        "episodes_per_s": LiveText(text=formats.rate(pool.episodes_per_s)),
        "tokens_per_s": LiveText(text=formats.rate(pool.tokens_per_s)),
    }
    return {f"pool/{pool.id}/{name}": text for name, text in live_texts.items()}


MISMATCH_LIMIT = 1e-3
"""Logprob mismatch in nats above which engine and trainer disagree."""


@node_cache(lambda _: None)
def build_weight_texts(report: Report) -> dict[str, tuple[str, str]]:
    """Returns text and tone by key, summed over the nodes of the report."""
    total = _totals(report)
    full, delta = total["weight_bytes_full"], total["weight_bytes_delta"]
    fulls, deltas = total["weight_updates_full"], total["weight_updates_delta"]
    shared, mapped = total["weight_bytes_shared"], total["weight_updates_shared"]
    updates = fulls + deltas + mapped
    mismatch, mismatch_tone = _mismatch(report)
    return {
        "weights/full": (formats.size(full), ""),
        "weights/delta": (formats.size(delta), ""),
        "weights/shared": (formats.size(shared), ""),
        "weights/shared_updates": (formats.several(mapped, "version"), ""),
        "weights/full_updates": (formats.several(fulls, "full snapshot"), ""),
        "weights/delta_updates": (formats.several(deltas, "delta"), ""),
        "weights/saved": (_saved(full, delta, fulls, deltas, mapped), ""),
        "weights/pause": (formats.duration(total["weight_pause_s"] / updates) if updates else formats.MISSING, ""),
        "weights/failures": (formats.count(total["weight_failures"]), "bad" if total["weight_failures"] else ""),
        "weights/mismatch": (mismatch, mismatch_tone),
    }


_COUNTERS = (
    "weight_bytes_full",
    "weight_bytes_delta",
    "weight_updates_full",
    "weight_updates_delta",
    "weight_bytes_shared",
    "weight_updates_shared",
    "weight_pause_s",
    "weight_failures",
)


def _totals(report: Report) -> dict[str, float]:
    """Sums each counter over all nodes."""
    counters = [node.counters for node in report.nodes]
    return {name: sum([of_node[name] for of_node in counters if name in of_node]) for name in _COUNTERS}


def _saved(full: float, delta: float, fulls: float, deltas: float, mapped: float) -> str:
    """Returns the saving of deltas compared with the snapshots they replaced."""
    if mapped and not deltas:
        return "Nodes map versions from the store on their host: nothing is transferred"
    if not fulls or not deltas:
        return "No delta transferred yet"
    mean_full, mean_delta = full / fulls, delta / deltas
    saved = 1 - mean_delta / mean_full if mean_full else 0.0
    compared = f"A delta is {formats.size(mean_delta)}, a snapshot {formats.size(mean_full)}"
    return f"{compared}: {formats.percent(saved)} less"


def _mismatch(report: Report) -> tuple[str, str]:
    mismatches = [node.gauges["logprob_mismatch_max"] for node in report.nodes if "logprob_mismatch_max" in node.gauges]
    if not mismatches:
        return "not measured", ""
    worst = max(mismatches)
    return (f"{worst:.1e} nats", "bad") if worst > MISMATCH_LIMIT else (f"{worst:.1e} nats", "good")
