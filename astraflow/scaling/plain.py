"""The published rule: a dead band on the share of time for which trainers wait. The baseline, and what is left to go by
when compute or busy times are missing.

Source: AstraFlow, arXiv:2605.15565: over ten versions w = min(waited / step time, 0.95); w > 0.10: G -> ceil(G/(1-w));
w < 0.05: G -> min(G, ceil(G * consumed / entered * 1.10)); else hold.
"""

from collections.abc import Sequence
from math import ceil, isfinite

from astraflow.scaling.signals import StreamSignals

VERSIONS = 10
"""Steps that the share is taken over, and that pass between two actions."""

_HIGH, _LOW, _MOST, _MARGIN = 0.10, 0.05, 0.95, 1.10
_ROUNDING = 1e-9


def plain_total(nodes: int, streams: Sequence[StreamSignals]) -> int:
    """Nodes of all pools together; of several policies the one that wants most decides.

    >>> from astraflow.contract.ids import PolicyId
    >>> def stream(wait, used):
    ...     return StreamSignals(policy=PolicyId("a"), compute_s=(), groups_per_step=1, produced_per_usable=1,
    ...         wait_300_s=0, wait_600_s=0, step_age_s=0, wait_of_versions=wait, consumed_over_entered=used)
    >>> plain_total(6, [stream(0.27, 1.0)]), plain_total(11, [stream(0.02, 0.8)]), plain_total(9, [stream(0.07, 0.5)])
    (9, 10, 9)
    """
    return max([_wanted(nodes, stream) for stream in streams], default=nodes)


def _wanted(nodes: int, stream: StreamSignals) -> int:
    wait = min(stream.wait_of_versions, _MOST)
    if wait > _HIGH:
        return ceil(max(1, nodes) / (1 - wait) - _ROUNDING)
    used = stream.consumed_over_entered
    if wait < _LOW and isfinite(used):
        return min(nodes, ceil(nodes * max(0.0, used) * _MARGIN - _ROUNDING))
    return nodes
