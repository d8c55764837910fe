"""The published rule: a dead band on the share of time that trainers wait. Serves as the baseline, and as the fallback
while compute or busy times are missing.

Source: AstraFlow, arXiv:2605.15565: over ten versions w = min(waited / step time, 0.95); w > 0.10: G -> ceil(G/(1-w));
w < 0.05: G -> min(G, ceil(G * consumed / entered * 1.10)); else hold.
"""

from collections.abc import Sequence
from math import ceil, isfinite

from astraflow.scaling.measurement.signals import StreamSignals

WINDOW_STEPS = 10
"""Steps over which the share is measured, and between two actions."""

_HIGH, _LOW, _MOST, _MARGIN = 0.10, 0.05, 0.95, 1.10
_ROUNDING = 1e-9


def baseline_total(nodes: int, streams: Sequence[StreamSignals]) -> int:
    """Returns the target of all pools together; the policy with the largest target decides.

    >>> from astraflow.contract.ids import PolicyId
    >>> def stream(wait, used):
    ...     return StreamSignals(policy=PolicyId("a"), compute_s=(), groups_per_step=1, produced_per_usable=1,
    ...         wait_share_300_s=0, wait_share_600_s=0, step_age_s=0, wait_share_of_steps=wait,
    consumed_per_entered=used) >>> baseline_total(6, [stream(0.27, 1.0)]), baseline_total(11, [stream(0.02, 0.8)]) (9,
    10) >>> baseline_total(9, [stream(0.07, 0.5)]) 9
    """
    return max([_target_nodes(nodes, stream) for stream in streams], default=nodes)


def _target_nodes(nodes: int, stream: StreamSignals) -> int:
    wait = min(stream.wait_share_of_steps, _MOST)
    if wait > _HIGH:
        return ceil(max(1, nodes) / (1 - wait) - _ROUNDING)
    consumed = stream.consumed_per_entered
    if wait < _LOW and isfinite(consumed):
        return min(nodes, ceil(nodes * max(0.0, consumed) * _MARGIN - _ROUNDING))
    return nodes
