"""The data algorithms in force: what each does, what it did, what takes over next."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.plugins import PlannedPlugins, PluginSpec, Seam
from astraflow.contract.reports import FlowReport, StreamReport
from web.present import formats

KINDS: Mapping[Seam, Mapping[str, str]] = {
    Seam.SELECTOR: {
        "uniform": "every prompt equally likely",
        "sequential": "every prompt once before any comes again",
        "greso": "skips prompts that lately taught nothing, with a chance to be tried again",
        "curriculum": "prefers prompts whose recent mean reward is near a target",
    },
    Seam.FILTERS: {
        "keep_all": "never refuses",
        "informative": "drops groups whose members all scored alike",
        "length": "drops groups with too many cut off, too short or too long answers",
        "repetition": "drops groups whose answers repeat themselves",
        "off_policy": "drops groups with too many tokens of older versions",
    },
    Seam.SAMPLER: {
        "fresh": "every group once",
        "priority": "every group once, the widest spread or the highest reward first",
        "replay": "up to a share of each batch is trained again",
    },
}
"""Those that come with AstraFlow, in a few words; packages may bring more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One plug-in in force."""

    owner: str
    seam: str
    kind: str
    options: str
    says: str
    effect: str
    figures: str
    href: str
    """Where it is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """What takes over with the next version."""

    owner: str
    seam: str
    specs: str
    who: str
    why: str
    version: str
    href: str


def plugin_rows(
    flows: Sequence[FlowReport], streams: Sequence[StreamReport], paths: Mapping[str, str]
) -> list[PluginRow]:
    """Each selector, filter and sampler. paths: where each owner's are changed, by `flow NAME` and `policy NAME`."""
    rows = []
    for flow in flows:
        finished = flow.admitted + sum(flow.dropped.values())
        owner = f"flow {flow.id}"
        chosen = f"chose {formats.several(flow.issued, 'group')}"
        rows.append(_row(owner, Seam.SELECTOR, flow.selector, chosen, flow.plugins, paths[owner]))
        for spec in flow.filters or ({},):
            dropped = flow.dropped.get(_kind(spec), 0)
            share = f" ({formats.percent(dropped / finished)})" if finished else ""
            effect = f"dropped {formats.count(dropped)} of {formats.several(finished, 'group')}{share}"
            rows.append(
                _row(owner, Seam.FILTERS, spec, effect if spec else "drops nothing", flow.plugins, paths[owner])
            )
    for stream in streams:
        owner = f"policy {stream.policy}"
        effect = f"made {formats.count(stream.steps)} batch{'' if stream.steps == 1 else 'es'}"
        if stream.replayed:
            effect += f"; {formats.several(stream.replayed, 'group')} trained again"
        rows.append(_row(owner, Seam.SAMPLER, stream.sampler, effect, stream.plugins, paths[owner]))
    return rows


def planned_rows(
    flows: Sequence[FlowReport], streams: Sequence[StreamReport], paths: Mapping[str, str]
) -> list[PlannedRow]:
    """Changes that wait for the next version."""
    found = [(f"flow {flow.id}", planned) for flow in flows for planned in flow.planned]
    found += [(f"policy {stream.policy}", planned) for stream in streams for planned in stream.planned]
    return [_planned(owner, planned, paths[owner]) for owner, planned in found]


def options_text(spec: PluginSpec) -> str:
    """A spec's options as JSON; empty without any."""
    options = {name: value for name, value in spec.items() if name != "kind"}
    return json.dumps(options, ensure_ascii=False) if options else ""


def _row(owner: str, seam: Seam, spec: PluginSpec, effect: str, measured: Mapping[str, float], href: str) -> PluginRow:
    kind = _kind(spec)
    own = {name: value for name, value in measured.items() if name.partition(".")[0] == kind}
    figures = (f"{name.partition('.')[2].replace('_', ' ')} {value:.4g}" for name, value in own.items())
    return PluginRow(
        owner=owner,
        seam={Seam.SELECTOR: "selector", Seam.FILTERS: "filter", Seam.SAMPLER: "sampler"}[seam],
        kind=kind or ("none" if seam is Seam.FILTERS else "not told"),
        options=options_text(spec),
        says=KINDS[seam].get(kind, "of a package" if kind else ""),
        effect=effect,
        figures=" · ".join(figures),
        href=href,
    )


def _planned(owner: str, planned: PlannedPlugins, href: str) -> PlannedRow:
    return PlannedRow(
        owner=owner,
        seam=planned.seam.value,
        specs=", ".join(f"{_kind(spec)} {options_text(spec)}".strip() for spec in planned.specs) or "none",
        who=planned.actor,
        why=planned.reason,
        version=f"v{planned.version}",
        href=href,
    )


def _kind(spec: PluginSpec) -> str:
    return str(spec.get("kind", ""))
