"""The live texts of one node: the first paint of its row and each push show the same ones."""

from astraflow.contract.reports import NodeReport, NodeState
from web.feed.node_table import NodeRow
from web.history.samples import Shares
from web.present import formats
from web.present.causes import with_cause
from web.settings import STALE_AFTER_S

TONES = {
    NodeState.JOINING: "busy",
    NodeState.READY: "good",
    NodeState.DRAINING: "warn",
    NodeState.LOST: "bad",
    NodeState.GONE: "off",
}

_LEAVING = (NodeState.DRAINING, NodeState.GONE)

SLOW_BELOW = 0.75
"""A node with less of its kind's usual rate is called slow."""


def row_cells(row: NodeRow, at: float) -> dict[str, tuple[str, str]]:
    """Text and tone of everything in a row that changes. at: of the report, Unix seconds."""
    node = row.node
    is_silent = node.beat_age_s > STALE_AFTER_S
    state = with_cause(node.state.value, row.cause) if node.state in _LEAVING else node.state.value
    texts = {
        "state": (
            f"{state}, silent for {formats.duration(node.beat_age_s)}" if is_silent else state,
            TONES[node.state],
        ),
        "rate": (formats.rate(node.episodes_per_s), ""),
        "share": (formats.percent(row.rate_share), share_tone(row)),
        "bar": (bar_text(row.shares), ""),
        "lag": lag_cell(row),
        "leases": (formats.count(node.leased), ""),
        "age": (formats.duration(round(at - node.joined_at, -1 if at - node.joined_at > 60 else 0)), ""),
        "errors": errors_cell(node),
    }
    return {f"node/{node.id}/{name}": cell for name, cell in texts.items()}


def share_tone(row: NodeRow) -> str:
    """Whether a node is far slower than its like."""
    if row.rate_share is None or row.node.state is not NodeState.READY:
        return ""
    return "warn" if row.rate_share < SLOW_BELOW else ""


def bar_text(shares: Shares | None) -> str:
    """Shares in whole per cent, for the bar: busy, blocked, refresh.

    >>> bar_text(Shares(busy=0.914, blocked=0.05, refresh=0.002)), bar_text(None)
    ('91 5 0', '')
    """
    if shares is None:
        return ""
    return " ".join(str(round(100 * share)) for share in (shares.busy, shares.blocked, shares.refresh))


def lag_cell(row: NodeRow) -> tuple[str, str]:
    """How far behind its trainer."""
    if row.lag is None:
        return "none loaded", ""
    if row.lag == 0:
        return "current", "good"
    return f"{row.lag} behind", "bad" if row.is_beyond else ""


def errors_cell(node: NodeReport) -> tuple[str, str]:
    """The last error."""
    if not node.errors:
        return "none", ""
    last = formats.shortened(node.errors[-1], at_most=160)
    more = f" (and {len(node.errors) - 1} before)" if len(node.errors) > 1 else ""
    return last + more, "bad"
