"""The map of nodes: one cell each, by shape and colour. Neighbours that look the same are one shape with a pattern."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from astraflow.contract.reports import NodeState
from web.feed.node_table import NodeRow
from web.present import formats
from web.present.node_cells import SLOW_BELOW, lag_cell

SIDE = 10
MOST_ACROSS = 100

LOOKS = {
    "ready": "ready, usual rate",
    "slow": f"ready, under {SLOW_BELOW:.0%} of its type's rate",
    "idle": "ready, makes nothing",
    "joining": "joining",
    "draining": "draining",
    "lost": "lost",
    "gone": "gone",
}
"""How cells look, and what that means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatClass:
    """All cells of one look."""

    look: str
    label: str
    count: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """The whole map, `SIDE` units to a cell."""

    classes: Sequence[HeatClass]
    across: int
    count: int
    width: int
    height: int
    summary: str


def heat_map(rows: Sequence[NodeRow]) -> HeatMap:
    """The map of these nodes, in their order."""
    across = max(1, min(MOST_ACROSS, max(20, round((len(rows) * 2.5) ** 0.5)), len(rows) or 1))
    looks = [look_of(row) for row in rows]
    paths: dict[str, list[str]] = {look: [] for look in LOOKS}
    for down in range(0, len(looks), across):
        column = 0
        for look, cells in groupby(looks[down : down + across]):
            length = len(list(cells))
            width = length * SIDE
            paths[look].append(f"M{column * SIDE} {down // across * SIDE}h{width}v{SIDE}h-{width}z")
            column += length
    counts = {look: looks.count(look) for look in LOOKS}
    classes = [
        HeatClass(look=look, label=label, count=formats.count(counts[look]), path="".join(paths[look]))
        for look, label in LOOKS.items()
        if counts[look]
    ]
    summary = ", ".join(f"{one.count} {one.label}" for one in classes)
    lines = -(-len(rows) // across)
    return HeatMap(
        classes=classes, across=across, count=len(rows), width=across * SIDE, height=lines * SIDE, summary=summary
    )


def look_of(row: NodeRow) -> str:
    """How a node's cell looks: by its state, and for one that is ready by its rate."""
    if row.node.state is not NodeState.READY:
        return str(row.node.state.value)
    if row.node.episodes_per_s == 0:
        return "idle"
    return "slow" if row.rate_share is not None and row.rate_share < SLOW_BELOW else "ready"


def cell_words(row: NodeRow) -> str:
    """What the cell under the cursor is."""
    node = row.node
    share = f", {formats.percent(row.rate_share)} of its type's median" if row.rate_share is not None else ""
    rate = f"{formats.rate(node.episodes_per_s)} episodes/s{share}, {lag_cell(row)[0]}, {node.leased} leases"
    return f"{node.facts.name} in {node.facts.pool}: {LOOKS[look_of(row)]}; {rate}"
