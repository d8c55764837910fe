"""Data plugins of flows and policies: description, effect so far, and planned changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.plugins import PlannedPlugins, PluginSlot, PluginSpec, plugin_labels
from astraflow.contract.reports.report import Report
from web.components import formats


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One active plugin."""

    owner: str
    slot: str
    kind: str
    options: str
    description: str
    effect: str
    figures: str
    href: str
    """Page where it is changed."""


def plugin_rows(report: Report, paths: Mapping[str, str]) -> list[PluginRow]:
    """Returns a row per selector, filter and sampler. paths: pages to change them, by `flow NAME` or `policy NAME`."""
    rows = []
    summaries = {(known.slot, known.kind): known.summary for known in report.plugin_kinds}
    for flow in report.flows:
        finished = flow.admitted + sum(flow.dropped.values())
        owner = f"flow {flow.id}"
        effect = f"chose {formats.several(flow.issued, 'group')}"
        selector = _kind(flow.selector)
        rows.append(
            _row(owner, PluginSlot.SELECTOR, flow.selector, selector, effect, flow.plugins, summaries, paths[owner])
        )
        filters = flow.filters or ({},)
        for label, spec in zip(plugin_labels(filters), filters, strict=True):
            dropped = flow.dropped.get(label, 0)
            share = f" ({formats.percent(dropped / finished)})" if finished else ""
            effect = f"dropped {formats.count(dropped)} of {formats.several(finished, 'group')}{share}"
            effect = effect if spec else "drops nothing"
            rows.append(_row(owner, PluginSlot.FILTERS, spec, label, effect, flow.plugins, summaries, paths[owner]))
    for stream in report.streams:
        owner = f"policy {stream.policy}"
        effect = f"made {formats.count(stream.training.steps)} batch{'' if stream.training.steps == 1 else 'es'}"
        if stream.groups.replayed:
            effect += f"; {formats.several(stream.groups.replayed, 'group')} trained again"
        sampler = _kind(stream.sampler)
        rows.append(
            _row(owner, PluginSlot.SAMPLER, stream.sampler, sampler, effect, stream.plugins, summaries, paths[owner])
        )
    return rows


def planned_changes(report: Report, paths: Mapping[str, str]) -> list[tuple[str, PlannedPlugins, str]]:
    """Returns the changes that take effect with the next version, with their owners and the pages to change them."""
    changes = [(f"flow {flow.id}", planned) for flow in report.flows for planned in flow.planned]
    changes += [(f"policy {stream.policy}", planned) for stream in report.streams for planned in stream.planned]
    return [(owner, planned, paths[owner]) for owner, planned in changes]


def specs_text(planned: PlannedPlugins) -> str:
    """Returns the plugins of a planned change with their options; `none` for none."""
    return ", ".join(f"{_kind(spec)} {options_text(spec)}".strip() for spec in planned.specs) or "none"


def options_text(spec: PluginSpec) -> str:
    """Returns a spec's options as JSON; empty without options."""
    options = {name: value for name, value in spec.items() if name != "kind"}
    return json.dumps(options, ensure_ascii=False) if options else ""


def _row(
    owner: str,
    slot: PluginSlot,
    spec: PluginSpec,
    label: str,
    effect: str,
    measured: Mapping[str, float],
    summaries: Mapping[tuple[PluginSlot, str], str],
    href: str,
) -> PluginRow:
    kind = _kind(spec)
    own_figures = {name: value for name, value in measured.items() if name.partition(".")[0] == label}
    figures = (
        f"{name.partition('.')[2].replace('_', ' ')} {formats.figure(value)}" for name, value in own_figures.items()
    )
    return PluginRow(
        owner=owner,
        slot={PluginSlot.SELECTOR: "selector", PluginSlot.FILTERS: "filter", PluginSlot.SAMPLER: "sampler"}[slot],
        kind=kind or ("none" if slot is PluginSlot.FILTERS else "unknown"),
        options=options_text(spec),
        description=summaries.get((slot, kind), ""),
        effect=effect,
        figures=" · ".join(figures),
        href=href,
    )


def _kind(spec: PluginSpec) -> str:
    return str(spec.get("kind", ""))
