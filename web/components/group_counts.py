"""Counts of groups and episodes of a run, and whether they balance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.plugins import PluginKind, PluginSlot
from astraflow.contract.reports.report import FlowReport, StreamReport
from web.components import formats

DATAFLOW_REASONS = {
    "failed": "too many members failed",
    "stale": "older than max_staleness allows",
    "damaged": "a stored result could not be read after a restart",
    "set_aside": "their batch ended the trainer repeatedly and is kept for a bug report",
    "full": "the buffer was full while this policy's trainer was stalled",
}
"""Meaning of each reason that is no filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountEntry:
    """One line of a balance."""

    label: str
    count: str
    share: str
    """Share of the total, as text."""
    weight: float
    """The share as a number from 0 to 1, for a bar."""
    note: str = ""
    is_component: bool = True
    """Whether the line is a part of the total; False for the total itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBalance:
    """A total and its parts."""

    title: str
    entries: tuple[CountEntry, ...]
    is_balanced: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFigure:
    """A figure that a plugin reports."""

    of: str
    name: str
    value: str


def drop_meaning(reason: str, kinds: Iterable[PluginKind]) -> str:
    """Returns the meaning of a reason in `dropped` of a flow or a stream; empty for a filter without a description.

    reason: one of the dataflow's, or the label of a filter (`length`, or `length 2` for the second one).
    """
    if reason in DATAFLOW_REASONS:
        return DATAFLOW_REASONS[reason]
    name = reason.partition(" ")[0]
    return next((kind.summary for kind in kinds if kind.slot is PluginSlot.FILTERS and kind.kind == name), "")


def plugin_figures(flows: Sequence[FlowReport], streams: Sequence[StreamReport]) -> tuple[PluginFigure, ...]:
    """Returns the figures of every flow's selector and filters, and of every stream's sampler and replays."""
    figures: list[PluginFigure] = []
    for flow in flows:
        figures += _figures(f"flow {flow.id}", flow.plugins)
    for stream in streams:
        of = f"stream {stream.policy}"
        if stream.groups.replayed or stream.groups.replayable:
            counts = {
                "groups trained again": stream.groups.replayed,
                "groups available for replay": stream.groups.replayable,
            }
            figures += [PluginFigure(of=of, name=name, value=formats.count(number)) for name, number in counts.items()]
        figures += _figures(of, stream.plugins)
    return tuple(figures)


def _figures(of: str, plugins: Mapping[str, float]) -> list[PluginFigure]:
    return [
        PluginFigure(of=of, name=name.replace("_", " "), value=formats.figure(value)) for name, value in plugins.items()
    ]


def flow_balance(flow: FlowReport, kinds: Sequence[PluginKind]) -> CountBalance:
    """Returns the balance issued = open + admitted + dropped, by reason.

    kinds: known plugins, whose filters are among the reasons.
    """
    parts = [
        ("open", flow.open, "issued, members still out"),
        ("admitted", flow.admitted, "complete, passed every filter"),
        *_dropped(flow.dropped, kinds),
    ]
    return _balance(f"Flow {flow.id}", ("issued", flow.issued, "groups issued since the run started"), parts)


def partial_rollout_balance(flow: FlowReport) -> CountBalance:
    """Returns the balance of partial rollouts: handed back = stored + continued + discarded + stale."""
    counts = flow.partial_rollouts
    parts = [
        ("stored", counts.get("stored", 0), "waiting for a node, or assigned to one"),
        ("continued", counts.get("continued", 0), "continued by another node"),
        ("discarded", counts.get("discarded", 0), "not used"),
        ("stale", counts.get("stale", 0), DATAFLOW_REASONS["stale"]),
    ]
    saved = f"by nodes that left; {formats.count(counts.get('tokens_saved', 0))} tokens reused"
    return _balance(f"Partial rollouts in {flow.id}", ("handed back", counts.get("handed_back", 0), saved), parts)


def stream_balance(stream: StreamReport, kinds: Sequence[PluginKind]) -> CountBalance:
    """Returns the balance admitted = buffered + in batch + trained + dropped, by reason. kinds: as for a flow."""
    parts = [
        ("buffered", stream.groups.buffered, "waiting for a batch"),
        ("in batch", stream.groups.in_batch, "with the trainer, not yet acknowledged"),
        ("trained", stream.groups.trained, "acknowledged, counted once"),
        *_dropped(stream.groups.dropped, kinds),
    ]
    total = ("admitted", stream.groups.admitted, "groups routed to this policy")
    return _balance(f"Stream {stream.policy}", total, parts)


def _dropped(groups: Mapping[str, int], kinds: Sequence[PluginKind]) -> list[tuple[str, int, str]]:
    return [(f"dropped: {reason}", number, drop_meaning(reason, kinds)) for reason, number in sorted(groups.items())]


def episode_entries(flow: FlowReport) -> tuple[CountEntry, ...]:
    """Returns the results of nodes, counted by outcome."""
    total = sum(flow.episodes.values())
    return tuple(
        _entry(outcome.replace("_", " "), number, total, _episode_note(outcome))
        for outcome, number in sorted(flow.episodes.items(), key=lambda item: -item[1])
    )


_EPISODE_NOTES = {
    "accepted": "counted, each task once",
    "duplicate": "a second result of a task; the first one counts",
    "late": "a second result of a task, after its group was complete",
    "retried": "infrastructure failure; another node retries",
    "superseded": "failed in an attempt that a newer one replaced",
    "unknown": "for a task unknown to dataflow",
}


def _episode_note(outcome: str) -> str:
    if outcome.startswith("failed_"):
        return f"failed at the {outcome.removeprefix('failed_')}; counted as a failed member"
    return _EPISODE_NOTES.get(outcome, "")


def _balance(title: str, total: tuple[str, int, str], parts: Sequence[tuple[str, int, str]]) -> CountBalance:
    label, whole, note = total
    parts_total = sum(number for _, number, _ in parts)
    total_entry = CountEntry(
        label=label, count=formats.count(whole), share="", weight=1.0, note=note, is_component=False
    )
    entries = (total_entry, *(_entry(name, number, whole, meaning) for name, number, meaning in parts))
    is_balanced = parts_total == whole
    sentence = (
        "The counts balance: nothing lost, nothing counted twice."
        if is_balanced
        else f"The parts add up to {formats.count(parts_total)}, not {formats.count(whole)}: please report this bug."
    )
    return CountBalance(title=title, entries=entries, is_balanced=is_balanced, sentence=sentence)


def _entry(label: str, number: int, whole: int, note: str) -> CountEntry:
    share = number / whole if whole else 0.0
    return CountEntry(
        label=label,
        count=formats.count(number),
        share=formats.percent(share) if whole else "",
        weight=share,
        note=note,
    )
