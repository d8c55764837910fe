"""Points over any range: by the second as far as they are in memory, by the minute before that, from dataflow."""

from collections.abc import Sequence

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.logs import get_logger
from web.points import Point, point_of
from web.ranges import TimeRange
from web.state import RunState

log = get_logger()

MOST_POINTS = 900
"""So many travel to a page; of more, every second, third, ... one."""

MINUTE_S = 60.0


async def history(state: RunState, control: ControlPlaneClient, asked: TimeRange) -> list[Point]:
    """Points of the range, oldest first. While dataflow cannot be asked, those in memory are all there is."""
    recent = state.series.window(float("inf"))
    if not recent:
        return []
    end = recent[-1].at if asked.end is None else asked.end
    start = end - asked.duration_s
    older = await _minutes(state, control, start, recent) if start < recent[0].at and not state.is_stale else []
    return thinned([point for point in (*older, *recent) if start <= point.at <= end])


def thinned(points: Sequence[Point], *, at_most: int = MOST_POINTS) -> list[Point]:
    """Evenly fewer points; the newest is always there."""
    stride = max(1, -(-len(points) // at_most))
    return list(points[::-1][::stride][::-1])


async def _minutes(state: RunState, control: ControlPlaneClient, start: float, recent: Sequence[Point]) -> list[Point]:
    """The minutes before what is in memory, from `start` on."""
    first = recent[0]
    before_s = first.at - start
    after, minutes = max(0, int(first.sequence - before_s - MINUTE_S)), int(before_s / MINUTE_S) + 2
    try:
        reports = await control.history(after_sequence=after, limit=minutes, resolution_s=int(MINUTE_S))
    except AstraFlowError as problem:
        log.warning("history_failed", problem=str(problem))
        return []
    return [point_of(report) for report in reports if report.sequence < first.sequence and report.at >= start]
