"""What a trainer did with its time: stretches of it, each divided into waiting, computing and publishing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from web.present import formats
from web.present.scales import WIDTH, Window

STRETCHES = 120
HEIGHT = 100.0
PARTS = ("compute", "publish", "wait")
"""From the bottom up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of one stretch."""

    part: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All of it."""

    shares: tuple[Share, ...]
    finding: str
    legend: tuple[tuple[str, str], ...]
    """Parts, and how much of the time each took."""
    stretches: tuple[tuple[float, float, Mapping[str, float]], ...]
    """Begin and end of each that is drawn (Unix seconds), and the seconds that its parts took."""


def timeline(rows: Sequence[tuple[float, Mapping[str, float | None]]], window: Window) -> Timeline:
    """From a policy's rows, whose seconds count up."""
    known = [(at, seconds) for at, numbers in rows if (seconds := _seconds(numbers)) is not None]
    stride = max(1, len(known) // STRETCHES)
    ends = known[::stride] + (known[-1:] if known and (len(known) - 1) % stride else [])
    shares: list[Share] = []
    stretches: list[tuple[float, float, Mapping[str, float]]] = []
    sums = dict.fromkeys(PARTS, 0.0)
    begin, before = ends[0] if ends else (0.0, sums)
    for end, after in ends[1:]:
        grown = {part: after[part] - before[part] for part in PARTS}
        total = sum(grown.values())
        if min(grown.values()) < 0:  # the run began anew
            begin, before = end, after
        if total <= 0 or min(grown.values()) < 0:
            continue  # no step ended
        if drawn := _shares(grown, total, begin, end, window):
            shares += drawn
            stretches.append((begin, end, grown))
        sums = {part: sums[part] + grown[part] for part in PARTS}
        begin, before = end, after
    return Timeline(shares=tuple(shares), finding=_finding(sums), legend=_legend(sums), stretches=tuple(stretches))


def _seconds(numbers: Mapping[str, float | None]) -> dict[str, float] | None:
    found = {part: numbers.get(f"{part}_s") for part in PARTS}
    return {part: value for part, value in found.items() if value is not None} if None not in found.values() else None


def _shares(grown: dict[str, float], total: float, begin: float, end: float, window: Window) -> list[Share]:
    left, right = max(0.0, window.place(begin)), min(WIDTH, window.place(end))
    found, floor = [], HEIGHT
    for part in PARTS:
        height = HEIGHT * grown[part] / total
        floor -= height
        if height and right > left:
            found.append(Share(part=part, x=left, y=max(0.0, floor), width=right - left, height=height))
    return found


def _legend(sums: dict[str, float]) -> tuple[tuple[str, str], ...]:
    total = sum(sums.values())
    return tuple((part, formats.percent(sums[part] / total) if total else formats.MISSING) for part in PARTS)


def _finding(sums: dict[str, float]) -> str:
    total = sum(sums.values())
    if not total:
        return "No step was timed yet"
    computed, waited = (formats.percent(sums[part] / total) for part in ("compute", "wait"))
    return f"It computed {computed} of its time and waited {waited}"
