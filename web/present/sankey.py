"""Where the boxes and bands of a flow diagram are: columns from left to right, heights by what went through.

Pure geometry, in the units of a drawing that is `WIDTH` wide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH = 1180.0
BOX = 8.0
"""Width of a box."""
LABEL = 62.0
"""Height of the texts above a box, with the space before them."""
LAST = 142.0
"""Width of the texts of the last column."""
BAND_AT_LEAST = 1.5
THICKEST = 132.0
"""Height of the busiest column's boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stage to be placed. Within a column, stages stand in the order in which they are given."""

    key: str
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What goes from one stage to another."""

    source: str
    target: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A stage as it is drawn."""

    key: str
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stream as it is drawn: an SVG path."""

    source: str
    target: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The drawing."""

    height: float
    boxes: Mapping[str, Box]
    bands: Sequence[Band]


def laid_out(places: Sequence[Place], streams: Sequence[Stream]) -> Layout:
    """Boxes and bands. Every stream joins two of the places; bands at a box follow the order of its neighbours."""
    columns: dict[int, list[Place]] = {}
    for place in places:
        columns.setdefault(place.column, []).append(place)
    step = (WIDTH - LAST) / max(1, max(columns, default=0))
    values = {place.key: _value(place.key, streams) for place in places}
    busiest = max((sum(values[place.key] for place in column) for column in columns.values()), default=0.0)
    scale = THICKEST / busiest if busiest else 0.0
    boxes: dict[str, Box] = {}
    for number, column in columns.items():
        y = 0.0
        for place in column:
            y += LABEL
            height = max(2 * BAND_AT_LEAST, values[place.key] * scale)
            boxes[place.key] = Box(key=place.key, x=number * step, y=y, height=height)
            y += height
    height = max((box.y + box.height for box in boxes.values()), default=0.0)
    return Layout(height=height + 4.0, boxes=boxes, bands=_bands(boxes, streams, scale))


def _value(key: str, streams: Sequence[Stream]) -> float:
    coming = sum(stream.value for stream in streams if stream.target == key)
    return max(coming, sum(stream.value for stream in streams if stream.source == key))


def _bands(boxes: Mapping[str, Box], streams: Sequence[Stream], scale: float) -> list[Band]:
    left = {key: box.y for key, box in boxes.items()}
    right = dict(left)
    bands = []
    for stream in sorted(streams, key=lambda one: (boxes[one.source].y, boxes[one.target].y)):
        thickness = max(BAND_AT_LEAST, stream.value * scale)
        begin, end = right[stream.source], left[stream.target]
        right[stream.source] += thickness
        left[stream.target] += thickness
        path = _path(boxes[stream.source].x + BOX, begin, boxes[stream.target].x, end, thickness)
        bands.append(Band(source=stream.source, target=stream.target, path=path))
    return bands


def _path(x: float, y: float, to_x: float, to_y: float, thickness: float) -> str:
    middle = (x + to_x) / 2
    return (
        f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        f"V{to_y + thickness:.1f}"
        f"C{middle:.1f} {to_y + thickness:.1f} {middle:.1f} {y + thickness:.1f} {x:.1f} {y + thickness:.1f}Z"
    )
