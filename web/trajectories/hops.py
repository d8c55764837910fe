"""View of the timeline of an episode: a row with a bar for each span, from lease to step."""

from dataclasses import dataclass

from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.timelines import ADMIT, BATCH, EPISODE, GENERATE, LEASE, PUSH, REWARD, STEP, TOOL
from web.components import formats

_NODE, _DATAFLOW, _TRAINER = "node", "dataflow", "trainer"

LABELS = {
    LEASE: ("Lease", _NODE),
    EPISODE: ("Episode", _NODE),
    GENERATE: ("Generation", _NODE),
    TOOL: ("Tool", _NODE),
    REWARD: ("Reward", _NODE),
    PUSH: ("Push", _DATAFLOW),
    ADMIT: ("Admission of its group", _DATAFLOW),
    BATCH: ("Wait for a batch", _DATAFLOW),
    STEP: ("Training", _TRAINER),
}
"""Label and process of each span; a span of a plugin has its own name and is of the node."""

MIN_WIDTH = 0.4
"""Width of the bar of a very short span, in percent of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRow:
    """One span of the timeline."""

    label: str
    process: str
    detail: str
    error: str
    began: str
    """Time since the begin of the first span."""
    duration: str
    x: float
    """Left edge of the bar, in percent of the whole."""
    width: float
    is_inside: bool
    """Whether the span is inside of the episode."""


def hop_rows(sample: SampledTrajectory) -> tuple[HopRow, ...]:
    """Returns the rows in order of their begin; none for a trajectory without recorded spans."""
    hops = sample.timeline
    if not hops:
        return ()
    first = min(hop.began_at for hop in hops)
    whole_s = max(max(hop.ended_at for hop in hops) - first, 1e-9)
    rows = []
    for hop in hops:
        label, process = LABELS.get(hop.name, (hop.name, _NODE))
        width = max(MIN_WIDTH, 100 * hop.duration_s / whole_s)
        rows.append(
            HopRow(
                label=label,
                process=process,
                detail=hop.detail,
                error=hop.error,
                began=formats.duration(hop.began_at - first),
                duration=formats.duration(hop.duration_s),
                x=round(min(100 * (hop.began_at - first) / whole_s, 100 - MIN_WIDTH), 3),
                width=round(width, 3),
                is_inside=process == _NODE and hop.name not in (LEASE, EPISODE),
            )
        )
    return tuple(rows)
