"""Reasons for which groups are dropped: those of the dataflow, and filters, which describe themselves."""

from collections.abc import Iterable

from astraflow.contract.plugins import PluginKind, PluginSlot

DATAFLOW_REASONS = {
    "failed": "too many members failed",
    "stale": "older than max_staleness allows",
    "full": "the buffer was full while this policy's trainer was stalled",
}
"""Meaning of each reason that is no filter."""


def drop_meaning(reason: str, kinds: Iterable[PluginKind]) -> str:
    """Returns the meaning of a reason in `dropped` of a flow or a stream; empty for a filter without a description.

    reason: one of the dataflow's, or the label of a filter (`length`, or `length 2` for the second one).
    """
    if reason in DATAFLOW_REASONS:
        return DATAFLOW_REASONS[reason]
    name = reason.partition(" ")[0]
    return next((kind.summary for kind in kinds if kind.slot is PluginSlot.FILTERS and kind.kind == name), "")
