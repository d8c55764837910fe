"""Live texts about weight transfers: snapshots against deltas, and agreement of engines with their trainer."""

from astraflow.contract.reports import Report
from web.live.node_cache import node_cache
from web.views import formats

GAP_LIMIT = 1e-3
"""Logprob gap in nats above which engine and trainer disagree."""


@node_cache(lambda _: None)
def build_weight_texts(report: Report) -> dict[str, tuple[str, str]]:
    """Returns text and tone by key, summed over the nodes of the report."""
    total = _totals(report)
    full, delta = total["weight_bytes_full"], total["weight_bytes_delta"]
    fulls, deltas = total["weight_updates_full"], total["weight_updates_delta"]
    shared, mapped = total["weight_bytes_shared"], total["weight_updates_shared"]
    updates = fulls + deltas + mapped
    gap, gap_tone = _gap(report)
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
        "weights/gap": (gap, gap_tone),
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
    """Sums each counter over all nodes. Iterates over the counters a node reports, since it has few of thousands."""
    total = dict.fromkeys(_COUNTERS, 0.0)
    for node in report.nodes:
        counters = node.counters
        for name in counters.keys() & total.keys():
            total[name] += counters[name]
    return total


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


def _gap(report: Report) -> tuple[str, str]:
    gaps = [node.gauges["logprob_gap_max"] for node in report.nodes if "logprob_gap_max" in node.gauges]
    if not gaps:
        return "not measured", ""
    worst = max(gaps)
    return (f"{worst:.1e} nats", "bad") if worst > GAP_LIMIT else (f"{worst:.1e} nats", "good")
