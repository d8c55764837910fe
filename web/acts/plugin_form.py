"""The form in which plug-ins are changed: what it asks for, against what is in force."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import PlannedPlugins, PluginSpec, Seam
from astraflow.contract.reports import FlowReport, StreamReport
from web.present.plugins import KINDS, options_text

MOST_FILTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRow:
    """One plug-in; an empty row is for one more."""

    kind: str
    options: str
    is_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSeam:
    """The rows of one seam."""

    name: str
    label: str
    is_list: bool
    rows: Sequence[FormRow]
    kinds: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginForm:
    """The form of a flow or of a policy's stream."""

    title: str
    action: str
    when: str
    seams: Sequence[FormSeam]
    planned: Sequence[str]


def flow_form(flow: FlowReport, *, action: str) -> PluginForm:
    """Of a flow: its selector and its filters."""
    filters = [*(_row(spec) for spec in flow.filters), FormRow(kind="", options="", is_on=False)]
    return PluginForm(
        title=f"Change the plug-ins of flow {flow.id}",
        action=action,
        when="when all its policies have reached the next one",
        seams=[
            _seam(Seam.SELECTOR, "Selector: which prompt is issued next", [_row(flow.selector)]),
            _seam(Seam.FILTERS, "Filters: which groups are kept, in this order", filters),
        ],
        planned=[_planned(one) for one in flow.planned],
    )


def sampler_form(stream: StreamReport, *, action: str) -> PluginForm:
    """Of a policy's stream: its sampler."""
    return PluginForm(
        title=f"Change the sampler of {stream.policy}",
        action=action,
        when="with the trainer's next one",
        seams=[_seam(Seam.SAMPLER, "Sampler: what a batch is made of", [_row(stream.sampler)])],
        planned=[_planned(one) for one in stream.planned],
    )


def wanted_single(form: Mapping[str, Sequence[str]], seam: Seam) -> PluginSpec | None:
    """The plug-in of a seam that has one; None when the form names none. Raises: InvalidInput."""
    kinds, options = _fields(form, seam)
    return _spec(kinds[0], options[0]) if kinds and kinds[0].strip() else None


def wanted_filters(form: Mapping[str, Sequence[str]]) -> tuple[PluginSpec, ...]:
    """The filters that are on, in order. Raises: InvalidInput."""
    kinds, options = _fields(form, Seam.FILTERS)
    is_on = set(form.get(f"{Seam.FILTERS.value}_on", ()))
    rows = [(kind, text) for place, (kind, text) in enumerate(zip(kinds, options, strict=True)) if str(place) in is_on]
    if len(rows) > MOST_FILTERS:
        raise InvalidInput(f"{len(rows)} filters are more than the {MOST_FILTERS} that a flow may have")
    return tuple(_spec(kind, text) for kind, text in rows)


def differs(
    seam: Seam,
    wanted: Sequence[PluginSpec],
    in_force: Sequence[PluginSpec],
    planned: Sequence[PlannedPlugins],
) -> bool:
    """Whether asking for these would change what is to come."""
    to_come = next((one.specs for one in planned if one.seam is seam), tuple(in_force))
    return [dict(spec) for spec in wanted] != [dict(spec) for spec in to_come if spec]


def _fields(form: Mapping[str, Sequence[str]], seam: Seam) -> tuple[Sequence[str], Sequence[str]]:
    kinds, options = form.get(f"{seam.value}_kind", ()), form.get(f"{seam.value}_options", ())
    if len(kinds) != len(options):
        raise InvalidInput(f"the form has {len(kinds)} kinds and {len(options)} options of {seam.value}: load it again")
    return kinds, options


def _spec(kind: str, options: str) -> PluginSpec:
    if not kind.strip():
        raise InvalidInput("a plug-in that is on needs a kind")
    try:
        value: Any = json.loads(options) if options.strip() else {}
    except ValueError as problem:
        raise InvalidInput(f"the options of {kind} are not JSON ({problem}): {options[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f'the options of {kind} are an object, as in {{"ratio": 0.3}}, not {options[:200]}')
    return {"kind": kind.strip(), **value}


def _seam(seam: Seam, label: str, rows: Sequence[FormRow]) -> FormSeam:
    return FormSeam(name=seam.value, label=label, is_list=seam is Seam.FILTERS, rows=rows, kinds=KINDS[seam])


def _row(spec: PluginSpec) -> FormRow:
    return FormRow(kind=str(spec.get("kind", "")), options=options_text(spec), is_on=True)


def _planned(planned: PlannedPlugins) -> str:
    specs = ", ".join(f"{spec.get('kind', '')} {options_text(spec)}".strip() for spec in planned.specs) or "no filter"
    return f"{planned.seam.value}: {specs} ({planned.actor}: {planned.reason})"
