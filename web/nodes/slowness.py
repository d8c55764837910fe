"""Cause why a node is slow: one sentence with figures, from its reports and those of its pool. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from astraflow.contract.reports.report import NodeState
from web.components import formats
from web.live.node_texts import SLOW_BELOW
from web.state.node_table import NodeRow

MIN_BLOCKED_SHARE = 0.2
MIN_REFRESH_SHARE = 0.05
MIN_FAILED_SHARE = 0.1
MIN_USED_SHARE = 0.5
"""Share of its capacity below which a node counts as underused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A figure of the node with the median of its pool."""

    label: str
    own: str
    pool_median: str
    """Median of the ready nodes of its pool."""
    is_cause: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """Insight about the speed of a node."""

    sentence: str
    tone: str
    figures: Sequence[ComparedFigure]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    label: str
    read: Callable[[NodeRow], float | None]
    show: Callable[[float | None], str]


FIGURES = {
    "rate": _Figure(label="Episodes/s", read=lambda row: row.node.episodes_per_s, show=formats.rate),
    "tokens": _Figure(label="Tokens/s", read=lambda row: row.node.tokens_per_s, show=formats.rate),
    "busy": _Figure(label="Busy", read=lambda row: row.shares.busy if row.shares else None, show=formats.percent),
    "blocked": _Figure(
        label="Waiting for tasks", read=lambda row: row.shares.blocked if row.shares else None, show=formats.percent
    ),
    "refresh": _Figure(
        label="Paused for weights",
        read=lambda row: row.shares.refresh if row.shares else None,
        show=formats.percent,
    ),
    "leases": _Figure(label="Capacity in use", read=lambda row: _used(row), show=formats.percent),
    "lag": _Figure(label="Versions behind", read=lambda row: row.lag, show=formats.count),
    "link": _Figure(
        label="Link",
        read=lambda row: link_speed(row),
        show=lambda speed: formats.MISSING if speed is None else f"{formats.size(speed)}/s",
    ),
    "fetch": _Figure(label="Fetching a version", read=lambda row: fetch_seconds(row), show=formats.duration),
    "failed": _Figure(label="Failed episodes", read=lambda row: _failed(row), show=formats.percent),
}


def slowness(row: NodeRow, peers: Sequence[NodeRow]) -> Slowness:
    """Returns the insight about a node's speed. peers: nodes of its pool."""
    ready = [other for other in peers if other.node.state is NodeState.READY and other.node.id != row.node.id]
    own = {name: figure.read(row) for name, figure in FIGURES.items()}
    pool_median = {name: _median([figure.read(other) for other in ready]) for name, figure in FIGURES.items()}
    cause, sentence, tone = _insight(row, own, pool_median, len(ready))
    figures = [
        ComparedFigure(
            label=figure.label,
            own=figure.show(own[name]),
            pool_median=figure.show(pool_median[name]),
            is_cause=name == cause,
        )
        for name, figure in FIGURES.items()
        if own[name] is not None
    ]
    return Slowness(sentence=sentence, tone=tone, figures=figures)


_Figures = dict[str, float | None]


def _insight(row: NodeRow, own: _Figures, pool_median: _Figures, peers: int) -> tuple[str, str, str]:
    """Returns the name of the figure that is the cause, the sentence, and its tone."""
    node = row.node
    silent = formats.duration(node.heartbeat_age_s)
    match node.state:
        case NodeState.LOST:
            return "", f"Lost: its last heartbeat was {silent} ago, and its leases were reassigned.", "bad"
        case NodeState.GONE:
            return "", "It has left the run.", ""
        case NodeState.JOINING:
            return "link", f"Loading its first weights at {_shown('link', own)}.", "warn"
        case NodeState.DRAINING:
            return "", f"Draining: it finishes its {node.leased} episodes and takes no new tasks.", "warn"
        case NodeState.READY:
            pass
    common = pool_median["rate"]
    if not peers or not common:
        return "", "No comparison: no other node of its pool is ready and producing.", ""
    share = node.episodes_per_s / common
    rates = f"{_shown('rate', own)} episodes/s, {formats.percent(share)} of the median {_shown('rate', pool_median)}"
    comparison = f"{rates} of {formats.several(peers, 'other ready node')} in its pool"
    if share >= SLOW_BELOW:
        return "", f"Normal speed: {comparison}.", "good"
    cause, why = _cause(row, own, pool_median)
    return cause, f"Slow: {comparison}. {why}", "warn"


def _cause(row: NodeRow, own: _Figures, pool_median: _Figures) -> tuple[str, str]:
    """Returns the first unusual figure and its sentence, in the order in which causes hide one another."""
    if row.node.heartbeat_age_s > 5.0:
        return (
            "",
            f"No heartbeat for {formats.duration(row.node.heartbeat_age_s)}: its machine or network may be stuck.",
        )
    if _is_unusually_high("failed", own, pool_median, MIN_FAILED_SHARE):
        return "failed", f"{_with_pool_median('failed', own, pool_median)} of its episodes fail: see its last errors."
    if _is_unusually_high("blocked", own, pool_median, MIN_BLOCKED_SHARE):
        return (
            "blocked",
            f"It waits for tasks {_with_pool_median('blocked', own, pool_median)} of its time: it has spare capacity.",
        )
    if _is_unusually_high("refresh", own, pool_median, MIN_REFRESH_SHARE):
        return "refresh", f"It pauses for new weights {_with_pool_median('refresh', own, pool_median)} of its time."
    lag, common_lag = own["lag"], pool_median["lag"] or 0.0
    if lag is not None and (row.is_beyond or lag > common_lag + 1):
        link = f"Its link runs at {_shown('link', own)}, median {_shown('link', pool_median)}."
        return "lag", f"It is {formats.several(lag, 'version')} behind. {link}"
    used = own["leases"]
    if used is not None and used < MIN_USED_SHARE and used < (pool_median["leases"] or 0.0):
        return "leases", f"It runs {_with_pool_median('leases', own, pool_median)} of its capacity."
    busy = f", busy in {_with_pool_median('busy', own, pool_median)} of its time" if own["busy"] is not None else ""
    return "tokens", f"Its engine is slow: {_with_pool_median('tokens', own, pool_median)} tokens/s{busy}."


def link_speed(row: NodeRow) -> float | None:
    """Returns the speed of the first link with a fetch, for the latest version. Bytes per second."""
    link = next((link for link in row.node.links if link.latest_fetch_s > 0 and link.latest_bytes > 0), None)
    return link.latest_bytes / link.latest_fetch_s if link else None


def fetch_seconds(row: NodeRow) -> float | None:
    """Returns the mean seconds per fetched version over all links; None without a fetch."""
    versions = sum(link.versions for link in row.node.links)
    return sum(link.fetch_s for link in row.node.links) / versions if versions else None


def _used(row: NodeRow) -> float | None:
    limit = row.node.lease_limit
    return row.node.leased / limit if limit else None


def _failed(row: NodeRow) -> float | None:
    counters = row.node.counters
    done, failed = counters.get("episodes_done", 0.0), counters.get("episodes_failed", 0.0)
    return failed / done if done else None


def _is_unusually_high(name: str, own: _Figures, pool_median: _Figures, least: float) -> bool:
    value = own[name]
    return value is not None and value >= least and value > 1.5 * (pool_median[name] or 0.0)


def _shown(name: str, figures: _Figures) -> str:
    return FIGURES[name].show(figures[name])


def _with_pool_median(name: str, own: _Figures, pool_median: _Figures) -> str:
    return f"{_shown(name, own)} (median {_shown(name, pool_median)})"


def _median(figures: Sequence[float | None]) -> float | None:
    measured = [number for number in figures if number is not None]
    return median(measured) if measured else None
