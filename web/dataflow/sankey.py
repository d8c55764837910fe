"""Layout of a flow diagram: columns of boxes from left to right, heights in proportion to the flow.

Pure geometry, in the units of a drawing that is `WIDTH` wide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH = 1180.0
BOX_WIDTH = 8.0
"""Width of a box."""
LABEL_HEIGHT = 62.0
"""Height of the texts above a box, including the space before them."""
LAST_COLUMN_WIDTH = 142.0
"""Width of the texts in the last column."""
MIN_BAND_HEIGHT = 1.5
MAX_COLUMN_HEIGHT = 132.0
"""Height of the boxes in the busiest column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePosition:
    """A stage to lay out. Stages of a column keep their order."""

    key: str
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLink:
    """Flow from one stage to another."""

    source: str
    target: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Drawn stage."""

    key: str
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Drawn link, as an SVG path."""

    source: str
    target: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Drawing of a diagram."""

    height: float
    boxes: Mapping[str, Box]
    bands: Sequence[Band]


def diagram_layout(places: Sequence[StagePosition], streams: Sequence[StageLink]) -> Layout:
    """Lays out boxes and bands. Every link connects two stages; bands at a box follow the order of neighbours."""
    columns: dict[int, list[StagePosition]] = {}
    for stage in places:
        columns.setdefault(stage.column, []).append(stage)
    step = (WIDTH - LAST_COLUMN_WIDTH) / max(1, max(columns, default=0))
    values = {stage.key: _value(stage.key, streams) for stage in places}
    busiest = max((sum(values[stage.key] for stage in column) for column in columns.values()), default=0.0)
    scale = MAX_COLUMN_HEIGHT / busiest if busiest else 0.0
    boxes: dict[str, Box] = {}
    for number, column in columns.items():
        y = 0.0
        for stage in column:
            y += LABEL_HEIGHT
            height = max(2 * MIN_BAND_HEIGHT, values[stage.key] * scale)
            boxes[stage.key] = Box(key=stage.key, x=number * step, y=y, height=height)
            y += height
    height = max((box.y + box.height for box in boxes.values()), default=0.0)
    return Layout(height=height + 4.0, boxes=boxes, bands=_bands(boxes, streams, scale))


def _value(key: str, links: Sequence[StageLink]) -> float:
    incoming = sum(link.value for link in links if link.target == key)
    return max(incoming, sum(link.value for link in links if link.source == key))


def _bands(boxes: Mapping[str, Box], links: Sequence[StageLink], scale: float) -> list[Band]:
    left_edges = {key: box.y for key, box in boxes.items()}
    right_edges = dict(left_edges)
    bands = []
    for link in sorted(links, key=lambda other: (boxes[other.source].y, boxes[other.target].y)):
        thickness = max(MIN_BAND_HEIGHT, link.value * scale)
        begin, end = right_edges[link.source], left_edges[link.target]
        right_edges[link.source] += thickness
        left_edges[link.target] += thickness
        path = _path(boxes[link.source].x + BOX_WIDTH, begin, boxes[link.target].x, end, thickness)
        bands.append(Band(source=link.source, target=link.target, path=path))
    return bands


def _path(x: float, y: float, to_x: float, to_y: float, thickness: float) -> str:
    middle = (x + to_x) / 2
    return (
        f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        f"V{to_y + thickness:.1f}"
        f"C{middle:.1f} {to_y + thickness:.1f} {middle:.1f} {y + thickness:.1f} {x:.1f} {y + thickness:.1f}Z"
    )
