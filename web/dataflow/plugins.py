"""Data plugins of flows and policies: description, effect so far, and planned changes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.plugins import PlannedPlugins, PluginSlot, PluginSpec
from astraflow.contract.reports.report import FlowReport, StreamReport
from web.components import formats

KINDS: Mapping[PluginSlot, Mapping[str, str]] = {
    PluginSlot.SELECTOR: {
        "uniform": "all prompts are equally likely",
        "sequential": "every prompt once before any repeats",
        "greso": "skips prompts without recent learning signal; retries some of them",
        "curriculum": "prefers prompts whose recent mean reward is near a target",
    },
    PluginSlot.FILTERS: {
        "keep_all": "accepts every group",
        "informative": "drops groups whose members all scored alike",
        "length": "drops groups with too many truncated, short or long answers",
        "repetition": "drops groups whose answers repeat themselves",
        "off_policy": "drops groups with too many tokens of older versions",
        "route": "rules decide which policies' streams receive a group",
    },
    PluginSlot.SAMPLER: {
        "fresh": "every group once",
        "priority": "every group once; widest reward spread, highest reward or a rule's priority first",
        "replay": "replays groups, up to a share of each batch",
    },
}
"""Descriptions of the built-in plugins; other packages may register more."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A change that takes effect with the next version."""

    owner: str
    slot: str
    specs: str
    requested_by: str
    reason: str
    version: str
    href: str


def plugin_rows(
    flows: Sequence[FlowReport], streams: Sequence[StreamReport], paths: Mapping[str, str]
) -> list[PluginRow]:
    """Returns a row per selector, filter and sampler. paths: pages to change them, by `flow NAME` or `policy NAME`."""
    rows = []
    for flow in flows:
        finished = flow.admitted + sum(flow.dropped.values())
        owner = f"flow {flow.id}"
        effect = f"chose {formats.several(flow.issued, 'group')}"
        rows.append(_row(owner, PluginSlot.SELECTOR, flow.selector, effect, flow.plugins, paths[owner]))
        for spec in flow.filters or ({},):
            dropped = flow.dropped.get(_kind(spec), 0)
            share = f" ({formats.percent(dropped / finished)})" if finished else ""
            effect = f"dropped {formats.count(dropped)} of {formats.several(finished, 'group')}{share}"
            rows.append(
                _row(owner, PluginSlot.FILTERS, spec, effect if spec else "drops nothing", flow.plugins, paths[owner])
            )
    for stream in streams:
        owner = f"policy {stream.policy}"
        effect = f"made {formats.count(stream.steps)} batch{'' if stream.steps == 1 else 'es'}"
        if stream.replayed:
            effect += f"; {formats.several(stream.replayed, 'group')} trained again"
        rows.append(_row(owner, PluginSlot.SAMPLER, stream.sampler, effect, stream.plugins, paths[owner]))
    return rows


def planned_rows(
    flows: Sequence[FlowReport], streams: Sequence[StreamReport], paths: Mapping[str, str]
) -> list[PlannedRow]:
    """Returns the changes that take effect with the next version."""
    changes = [(f"flow {flow.id}", planned) for flow in flows for planned in flow.planned]
    changes += [(f"policy {stream.policy}", planned) for stream in streams for planned in stream.planned]
    return [_planned(owner, planned, paths[owner]) for owner, planned in changes]


def options_text(spec: PluginSpec) -> str:
    """Returns a spec's options as JSON; empty without options."""
    options = {name: value for name, value in spec.items() if name != "kind"}
    return json.dumps(options, ensure_ascii=False) if options else ""


def _row(
    owner: str, slot: PluginSlot, spec: PluginSpec, effect: str, measured: Mapping[str, float], href: str
) -> PluginRow:
    kind = _kind(spec)
    own_figures = {name: value for name, value in measured.items() if name.partition(".")[0] == kind}
    figures = (f"{name.partition('.')[2].replace('_', ' ')} {value:.4g}" for name, value in own_figures.items())
    return PluginRow(
        owner=owner,
        slot={PluginSlot.SELECTOR: "selector", PluginSlot.FILTERS: "filter", PluginSlot.SAMPLER: "sampler"}[slot],
        kind=kind or ("none" if slot is PluginSlot.FILTERS else "unknown"),
        options=options_text(spec),
        description=KINDS[slot].get(kind, "from another package" if kind else ""),
        effect=effect,
        figures=" · ".join(figures),
        href=href,
    )


def _planned(owner: str, planned: PlannedPlugins, href: str) -> PlannedRow:
    return PlannedRow(
        owner=owner,
        slot=planned.slot.value,
        specs=", ".join(f"{_kind(spec)} {options_text(spec)}".strip() for spec in planned.specs) or "none",
        requested_by=planned.actor,
        reason=planned.reason,
        version=f"v{planned.version}",
        href=href,
    )


def _kind(spec: PluginSpec) -> str:
    return str(spec.get("kind", ""))
