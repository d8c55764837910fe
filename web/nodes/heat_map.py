"""Heat map of nodes: one cell per node, by state and rate. Adjacent cells of one style share a path."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from astraflow.contract.reports.report import NodeState
from web.components import formats
from web.live.node_texts import SLOW_BELOW, node_lag_text
from web.state.node_table import NodeRow

CELL_SIDE = 10
MAX_COLUMNS = 100

CELL_STYLES = {
    "ready": "ready, normal rate",
    "slow": f"ready, under {SLOW_BELOW:.0%} of its type's rate",
    "idle": "ready, idle",
    "joining": "joining",
    "draining": "draining",
    "lost": "lost",
    "gone": "gone",
}
"""Cell styles and their meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatClass:
    """All cells of one style."""

    style: str
    label: str
    count: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Heat map, `CELL_SIDE` units to a cell."""

    classes: Sequence[HeatClass]
    columns: int
    count: int
    width: int
    height: int
    summary: str


def heat_map(rows: Sequence[NodeRow]) -> HeatMap:
    """Draws the map of these nodes, in their order."""
    columns = max(1, min(MAX_COLUMNS, max(20, round((len(rows) * 2.5) ** 0.5)), len(rows) or 1))
    styles = [cell_style(row) for row in rows]
    paths: dict[str, list[str]] = {style: [] for style in CELL_STYLES}
    for start in range(0, len(styles), columns):
        column = 0
        for style, cells in groupby(styles[start : start + columns]):
            length = len(list(cells))
            width = length * CELL_SIDE
            paths[style].append(f"M{column * CELL_SIDE} {start // columns * CELL_SIDE}h{width}v{CELL_SIDE}h-{width}z")
            column += length
    counts = {style: styles.count(style) for style in CELL_STYLES}
    classes = [
        HeatClass(style=style, label=label, count=formats.count(counts[style]), path="".join(paths[style]))
        for style, label in CELL_STYLES.items()
        if counts[style]
    ]
    summary = ", ".join(f"{heat_class.count} {heat_class.label}" for heat_class in classes)
    lines = -(-len(rows) // columns)
    return HeatMap(
        classes=classes,
        columns=columns,
        count=len(rows),
        width=columns * CELL_SIDE,
        height=lines * CELL_SIDE,
        summary=summary,
    )


def cell_style(row: NodeRow) -> str:
    """Returns the style of a node's cell: by state, and for ready nodes by rate."""
    if row.node.state is not NodeState.READY:
        return str(row.node.state.value)
    if row.node.episodes_per_s == 0:
        return "idle"
    return "slow" if row.rate_share is not None and row.rate_share < SLOW_BELOW else "ready"


def cell_description(row: NodeRow) -> str:
    """Returns the tooltip of a node's cell."""
    node = row.node
    share = f", {formats.percent(row.rate_share)} of its type's median" if row.rate_share is not None else ""
    rate = f"{formats.rate(node.episodes_per_s)} episodes/s{share}, {node_lag_text(row)[0]}, {node.leased} leases"
    return f"{node.facts.name} in {node.facts.pool}: {CELL_STYLES[cell_style(row)]}; {rate}"
