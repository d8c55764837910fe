"""Live texts of one node; the first paint of its row and every push use the same texts."""

from collections.abc import Mapping

from astraflow.contract.reports.report import NodeReport, NodeState
from web.components import formats
from web.components.texts import with_cause
from web.history.samples import TimeShares
from web.process_settings import STALE_AFTER_S
from web.state.node_table import LEFT_STATES, NodeRow

TONES = {
    NodeState.JOINING: "busy",
    NodeState.READY: "good",
    NodeState.DRAINING: "warn",
    NodeState.LOST: "bad",
    NodeState.GONE: "off",
}

_TERMINATING = (NodeState.DRAINING, NodeState.GONE)

SLOW_BELOW = 0.75
"""Share of its type's median rate below which a node counts as slow."""


def build_node_texts(row: NodeRow, at: float) -> dict[str, tuple[str, str]]:
    """Returns text and tone of every changing cell of a row. at: time of the report, Unix seconds."""
    node = row.node
    is_silent = node.heartbeat_age_s > STALE_AFTER_S
    state = with_cause(node.state.value, row.cause) if node.state in _TERMINATING else node.state.value
    texts = {
        "state": (
            f"{state}, no heartbeat for {formats.duration(node.heartbeat_age_s)}" if is_silent else state,
            TONES[node.state],
        ),
        "rate": (formats.rate(node.episodes_per_s), ""),
        "share": (formats.percent(row.rate_share), share_tone(row)),
        "bar": (bar_text(row.shares), ""),
        "lag": node_lag_text(row),
        "leases": (formats.count(node.leased), ""),
        "limit": (formats.count(node.lease_limit), ""),
        "engine": engine_text(node),
        "age": (formats.duration(round(at - node.joined_at, -1 if at - node.joined_at > 60 else 0)), ""),
        "errors": node_errors_text(node),
    }
    return {f"node/{node.id}/{name}": text for name, text in texts.items()}


def share_tone(row: NodeRow) -> str:
    """Returns `warn` for a ready node that is slow compared with its type."""
    if row.rate_share is None or row.node.state is not NodeState.READY:
        return ""
    return "warn" if row.rate_share < SLOW_BELOW else ""


def bar_text(shares: TimeShares | None) -> str:
    """Returns the shares of time in whole per cent, for the bar: busy, blocked, refresh.

    >>> bar_text(TimeShares(busy=0.914, blocked=0.05, refresh=0.002)), bar_text(None)
    ('91 5 0', '')
    """
    if shares is None:
        return ""
    return " ".join(str(round(100 * share)) for share in (shares.busy, shares.blocked, shares.refresh))


def node_lag_text(row: NodeRow) -> tuple[str, str]:
    """Returns the distance to the trainer's version in words, with its tone."""
    if row.lag is None:
        return formats.MISSING if row.node.state in LEFT_STATES else "none loaded", ""
    if row.lag == 0:
        return "current", "good"
    return f"{row.lag} behind", "bad" if row.is_beyond else ""


def engine_text(node: NodeReport) -> tuple[str, str]:
    """Returns the load of the node's engines in words; a warning while requests wait."""
    gauges = node.gauges
    if "engine_running" not in gauges:
        return "not measured yet", ""
    running, waiting = round(gauges["engine_running"]), round(gauges.get("engine_waiting", 0.0))
    restarts = round(node.counters.get("engine_restarts", 0.0))
    restarted = f", restarted {formats.several(restarts, 'time')}" if restarts else ""
    cache = formats.percent(gauges.get("engine_cache_used", 0.0))
    text = f"{formats.count(running)} running, {formats.count(waiting)} waiting, cache {cache} used"
    text += f"{_prompts_text(node.counters)}{_drafts_text(node)}{restarted}"
    return text, "warn" if waiting > running or restarts else ""


def _prompts_text(counters: Mapping[str, float]) -> str:
    """Returns the share of prompts that servers had in their caches, and the moves between them; empty if unknown."""
    prompts, moves = counters.get("prompt_tokens", 0.0), round(counters.get("prefix_moves", 0.0))
    if not prompts:
        return ""
    cached = formats.percent(counters.get("prompt_tokens_cached", 0.0) / prompts)
    lost = formats.count(round(counters.get("prefix_tokens_lost", 0.0)))
    moved = f", {formats.several(moves, 'move')} to a server without them ({lost} tokens lost)" if moves else ""
    return f", {cached} of prompt tokens cached{moved}"


def _drafts_text(node: NodeReport) -> str:
    """Returns the accepted share of drafted tokens, and the gain where it is measured; empty without drafts."""
    drafted = node.counters.get("tokens_drafted", 0.0)
    if not drafted:
        return ""
    accepted = formats.percent(node.counters.get("tokens_drafted_accepted", 0.0) / drafted)
    gain = node.gauges.get("speculation_gain")
    if gain is None:
        return f", {accepted} of drafted tokens accepted"
    effect = f"{gain:.2f} times the rate without" if gain > 1 else "does not pay, so off but for short trials"
    return f", {accepted} of drafted tokens accepted ({effect})"


def node_errors_text(node: NodeReport) -> tuple[str, str]:
    """Returns the latest error, shortened, with its tone."""
    if not node.errors:
        return "none", ""
    last = formats.shortened(node.errors[-1], at_most=160)
    more = f" (and {len(node.errors) - 1} before)" if len(node.errors) > 1 else ""
    return last + more, "bad"
