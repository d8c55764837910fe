"""Why a node is slow: one sentence with figures, from what it says and what its like say. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from astraflow.contract.reports import NodeState
from web.feed.node_table import NodeRow
from web.present import formats
from web.present.node_cells import SLOW_BELOW

BLOCKED_FROM = 0.2
REFRESH_FROM = 0.05
FAILED_FROM = 0.1
UNUSED_BELOW = 0.5
"""A node that holds less of its capacity than that has not enough to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure beside that of its like."""

    label: str
    own: str
    usual: str
    """The median of the ready nodes of its pool."""
    is_cause: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """The finding."""

    sentence: str
    tone: str
    figures: Sequence[Compared]


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
        label="Found no task", read=lambda row: row.shares.blocked if row.shares else None, show=formats.percent
    ),
    "refresh": _Figure(
        label="Stood still for weights",
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
    "failed": _Figure(label="Episodes that failed", read=lambda row: _failed(row), show=formats.percent),
}


def slowness(row: NodeRow, like: Sequence[NodeRow]) -> Slowness:
    """What is to be said of a node's pace. like: the other nodes of its pool."""
    ready = [other for other in like if other.node.state is NodeState.READY and other.node.id != row.node.id]
    own = {name: figure.read(row) for name, figure in FIGURES.items()}
    usual = {name: _median([figure.read(other) for other in ready]) for name, figure in FIGURES.items()}
    cause, sentence, tone = _finding(row, own, usual, len(ready))
    figures = [
        Compared(label=figure.label, own=figure.show(own[name]), usual=figure.show(usual[name]), is_cause=name == cause)
        for name, figure in FIGURES.items()
        if own[name] is not None
    ]
    return Slowness(sentence=sentence, tone=tone, figures=figures)


_Figures = dict[str, float | None]


def _finding(row: NodeRow, own: _Figures, usual: _Figures, peers: int) -> tuple[str, str, str]:
    """Name of the figure that is the cause, the sentence, its tone."""
    node = row.node
    silent = formats.duration(node.beat_age_s)
    match node.state:
        case NodeState.LOST:
            return "", f"It is lost: it was last heard {silent} ago, and its leases went to others.", "bad"
        case NodeState.GONE:
            return "", "It said goodbye and makes nothing.", ""
        case NodeState.JOINING:
            return "link", f"It loads its first version of the weights, over {_shown('link', own)}.", "warn"
        case NodeState.DRAINING:
            return "", f"It drains: it finishes the {node.leased} episodes it has and takes no more.", "warn"
        case NodeState.READY:
            pass
    common = usual["rate"]
    if not peers or not common:
        return "", "Nothing to compare it with: no other node of its pool is ready and produces.", ""
    share = node.episodes_per_s / common
    rates = f"{_shown('rate', own)} episodes/s are {formats.percent(share)} of the median {_shown('rate', usual)}"
    of = f"{rates} of the {formats.several(peers, 'other ready node')} of its pool"
    if share >= SLOW_BELOW:
        return "", f"It is not slow: {of}.", "good"
    cause, why = _cause(row, own, usual)
    return cause, f"It is slow: {of}. {why}", "warn"


def _cause(row: NodeRow, own: _Figures, usual: _Figures) -> tuple[str, str]:
    """The first thing that is out of the ordinary, from what hides the others to what is left."""
    if row.node.beat_age_s > 5.0:
        return "", f"It has been silent for {formats.duration(row.node.beat_age_s)}: its machine or its network hangs."
    if _stands_out("failed", own, usual, FAILED_FROM):
        return "failed", f"{_beside('failed', own, usual)} of its episodes fail: see its last errors."
    if _stands_out("blocked", own, usual, BLOCKED_FROM):
        return "blocked", f"It finds no task in {_beside('blocked', own, usual)} of its time: it could do more."
    if _stands_out("refresh", own, usual, REFRESH_FROM):
        return "refresh", f"It stands still for new weights in {_beside('refresh', own, usual)} of its time."
    lag, common_lag = own["lag"], usual["lag"] or 0.0
    if lag is not None and (row.is_beyond or lag > common_lag + 1):
        link = f"Its link brings {_shown('link', own)}, where {_shown('link', usual)} are usual."
        return "lag", f"It is {formats.several(lag, 'version')} behind. {link}"
    used = own["leases"]
    if used is not None and used < UNUSED_BELOW and used < (usual["leases"] or 0.0):
        return "leases", f"It runs {_beside('leases', own, usual)} of the episodes that it could run at once."
    busy = f", busy in {_beside('busy', own, usual)} of its time" if own["busy"] is not None else ""
    return "tokens", f"Its engine is slow: {_beside('tokens', own, usual)} tokens/s{busy}."


def link_speed(row: NodeRow) -> float | None:
    """Bytes a second that its preferred link brought with the latest version."""
    link = next((link for link in row.node.links if link.latest_fetch_s > 0 and link.latest_bytes > 0), None)
    return link.latest_bytes / link.latest_fetch_s if link else None


def fetch_seconds(row: NodeRow) -> float | None:
    """Seconds for a version, over all its links."""
    versions = sum(link.versions for link in row.node.links)
    return sum(link.fetch_s for link in row.node.links) / versions if versions else None


def _used(row: NodeRow) -> float | None:
    capacity = row.node.facts.capacity
    return row.node.leased / capacity if capacity else None


def _failed(row: NodeRow) -> float | None:
    counters = row.node.counters
    done, failed = counters.get("episodes_done", 0.0), counters.get("episodes_failed", 0.0)
    return failed / done if done else None


def _stands_out(name: str, own: _Figures, usual: _Figures, least: float) -> bool:
    mine = own[name]
    return mine is not None and mine >= least and mine > 1.5 * (usual[name] or 0.0)


def _shown(name: str, figures: _Figures) -> str:
    return FIGURES[name].show(figures[name])


def _beside(name: str, own: _Figures, usual: _Figures) -> str:
    return f"{_shown(name, own)} (median {_shown(name, usual)})"


def _median(found: Sequence[float | None]) -> float | None:
    measured = [number for number in found if number is not None]
    return median(measured) if measured else None
