"""Draws docs/images/balance.svg, a moving chart of capacity and demand: `python -m docs.generate.balance`.

The series is a simulated run of a scaling scenario, with a fixed seed, so that the file changes only with the rule. The
animation is part of the SVG (SMIL) and needs no script.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from astraflow.scaling.simulation.result import SimulationResult, TickRecord
from astraflow.scaling.simulation.scenarios import find_scenario
from astraflow.scaling.simulation.simulator import simulate

PATH = Path(__file__).parents[1] / "images" / "balance.svg"
SCENARIO, SEED = "step-and-back", 0

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 330, 52, 18, 46, 40
_LOOP_S = 14
"""Duration of one pass of the animation. Seconds."""
_EVERY_S = 60.0
"""Time between two drawn points. Seconds of the run."""
_NEEDED, _READY, _TARGET = "#b45309", "#2563eb", "#64748b"
_LABELS = ((_NEEDED, "nodes needed by the demand"), (_READY, "ready nodes"), (_TARGET, "target of the sizer"))


def drawing() -> str:
    """Returns the SVG of the scenario's run."""
    return svg(simulate(find_scenario(SCENARIO), seed=SEED))


def svg(run: SimulationResult) -> str:
    """Returns the chart of a run: lines over hours, uncovered from left to right again and again."""
    ticks = _thinned(run.ticks)
    top = 1.1 * max(max(tick.needed, tick.ready, tick.target) for tick in ticks)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(at_s: float) -> float:
        return _LEFT + (right - _LEFT) * at_s / ticks[-1].at_s

    def y(nodes: float) -> float:
        return bottom - (bottom - _TOP) * nodes / top

    def line(value: Callable[[TickRecord], float], colour: str, dash: str = "") -> str:
        points = " ".join(f"{x(tick.at_s):.1f},{y(value(tick)):.1f}" for tick in ticks)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'

    lines = [
        line(lambda tick: tick.target, _TARGET, ' stroke-dasharray="4 3"'),
        line(lambda tick: tick.ready, _READY),
        line(lambda tick: tick.needed, _NEEDED),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="13">',
            f"<title>Capacity follows demand: simulated scenario {SCENARIO}</title>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            *_legend(),
            *_axes(x, y, hours=ticks[-1].at_s / 3600, top=top),
            f'<clipPath id="shown"><rect x="{_LEFT}" y="0" width="{right - _LEFT}" height="{_HEIGHT}">'
            f"{_animated('width', 0, right - _LEFT)}</rect></clipPath>",
            f'<g clip-path="url(#shown)">{"".join(lines)}</g>',
            f'<line x1="{right}" x2="{right}" y1="{_TOP}" y2="{bottom}" stroke="#94a3b8">'
            f"{_animated('x1', _LEFT, right)}{_animated('x2', _LEFT, right)}</line>",
            "</svg>\n",
        ]
    )


def _animated(attribute: str, first: float, last: float) -> str:
    """Returns the animation of an attribute: it reaches the last value at four fifths of a pass, and stays."""
    return (
        f'<animate attributeName="{attribute}" dur="{_LOOP_S}s" repeatCount="indefinite" '
        f'keyTimes="0;0.8;1" values="{first};{last};{last}"/>'
    )


def _legend() -> Iterable[str]:
    for number, (colour, label) in enumerate(_LABELS):
        left = _LEFT + 230 * number
        yield f'<rect x="{left}" y="14" width="18" height="4" fill="{colour}"/>'
        yield f'<text x="{left + 24}" y="21" fill="#0f172a">{label}</text>'


def _axes(x: Callable[[float], float], y: Callable[[float], float], *, hours: float, top: float) -> Iterable[str]:
    for hour in range(int(hours) + 1):
        yield f'<text x="{x(3600.0 * hour):.1f}" y="{_HEIGHT - 18}" text-anchor="middle" fill="#475569">{hour} h</text>'
    for nodes in range(0, int(top) + 1, 10):
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(nodes):.1f}" y2="{y(nodes):.1f}" stroke="#e2e8f0"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(nodes) + 4:.1f}" text-anchor="end" fill="#475569">{nodes}</text>'


def _thinned(ticks: Iterable[TickRecord]) -> list[TickRecord]:
    """Returns one record for each `_EVERY_S` seconds."""
    kept: list[TickRecord] = []
    for tick in ticks:
        if not kept or tick.at_s >= kept[-1].at_s + _EVERY_S:
            kept.append(tick)
    return kept


if __name__ == "__main__":
    PATH.write_text(drawing())
