"""Form for changing plugins, prefilled with those in effect."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import PlannedPlugins, PluginKind, PluginSlot, PluginSpec
from astraflow.contract.reports.report import FlowReport, StreamReport
from web.dataflow.plugins import options_text, specs_text

MOST_FILTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRow:
    """Row of one plugin; an empty row adds one."""

    kind: str
    options: str
    is_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSlot:
    """Rows of one plugin slot."""

    name: str
    label: str
    is_list: bool
    rows: Sequence[FormRow]
    kinds: Mapping[str, str]
    """Summaries of the kinds that can be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginForm:
    """Form of a flow or of a policy's stream."""

    title: str
    action: str
    effective_from: str
    slots: Sequence[FormSlot]
    planned: Sequence[str]


def flow_form(flow: FlowReport, kinds: Sequence[PluginKind], *, action: str) -> PluginForm:
    """Returns the form of a flow: its selector and filters. kinds: plugins that can be chosen."""
    filters = [*(_row(spec) for spec in flow.filters), FormRow(kind="", options="", is_on=False)]
    return PluginForm(
        title=f"Change the plugins of flow {flow.id}",
        action=action,
        effective_from="when all its policies have reached the next version",
        slots=[
            _form_slot(PluginSlot.SELECTOR, "Selector: chooses the next prompt", [_row(flow.selector)], kinds),
            _form_slot(PluginSlot.FILTERS, "Filters: choose the groups to keep, in this order", filters, kinds),
        ],
        planned=[_planned(change) for change in flow.planned],
    )


def sampler_form(stream: StreamReport, kinds: Sequence[PluginKind], *, action: str) -> PluginForm:
    """Returns the form of a policy's stream: its sampler. kinds: as for a flow."""
    return PluginForm(
        title=f"Change the sampler of {stream.policy}",
        action=action,
        effective_from="with the trainer's next version",
        slots=[_form_slot(PluginSlot.SAMPLER, "Sampler: chooses the groups of a batch", [_row(stream.sampler)], kinds)],
        planned=[_planned(change) for change in stream.planned],
    )


def requested_plugin(form: Mapping[str, Sequence[str]], slot: PluginSlot) -> PluginSpec | None:
    """Requested plugin of a slot with a single one; None if the form names none. Raises: InvalidInput."""
    kinds, options = _fields(form, slot)
    return _spec(kinds[0], options[0]) if kinds and kinds[0].strip() else None


def requested_filters(form: Mapping[str, Sequence[str]]) -> tuple[PluginSpec, ...]:
    """Requested filters that are enabled, in order. Raises: InvalidInput."""
    kinds, options = _fields(form, PluginSlot.FILTERS)
    is_on = set(form.get(f"{PluginSlot.FILTERS.value}_on", ()))
    rows = [(kind, text) for index, (kind, text) in enumerate(zip(kinds, options, strict=True)) if str(index) in is_on]
    if len(rows) > MOST_FILTERS:
        raise InvalidInput(
            f"cannot set {len(rows)} filters: a flow has at most {MOST_FILTERS}; disable some", code="plugins.too_many"
        )
    return tuple(_spec(kind, text) for kind, text in rows)


def changes_plugins(
    slot: PluginSlot,
    wanted: Sequence[PluginSpec],
    in_force: Sequence[PluginSpec],
    planned: Sequence[PlannedPlugins],
) -> bool:
    """True if the requested specs differ from the planned or current ones."""
    upcoming = next((change.specs for change in planned if change.slot is slot), tuple(in_force))
    return [dict(spec) for spec in wanted] != [dict(spec) for spec in upcoming if spec]


def _fields(form: Mapping[str, Sequence[str]], slot: PluginSlot) -> tuple[Sequence[str], Sequence[str]]:
    kinds, options = form.get(f"{slot.value}_kind", ()), form.get(f"{slot.value}_options", ())
    if len(kinds) != len(options):
        raise InvalidInput(
            f"cannot read the form: it has {len(kinds)} kinds and {len(options)} options of {slot.value}; reload it",
            code="plugins.invalid_form",
        )
    return kinds, options


def _spec(kind: str, options: str) -> PluginSpec:
    if not kind.strip():
        raise InvalidInput(
            "cannot change the plugins: an enabled one has no kind; choose a kind", code="plugins.kind_missing"
        )
    try:
        value: Any = json.loads(options) if options.strip() else {}
    except ValueError as problem:
        raise InvalidInput(
            f"cannot read the options of {kind!r}: not JSON ({problem}): {options[:200]!r}; send a JSON object",
            code="plugins.invalid_options",
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(
            f'cannot read the options of {kind!r}: not an object: {options[:200]!r}; send for example {{"ratio": 0.3}}',
            code="plugins.invalid_options",
        )
    return {"kind": kind.strip(), **value}


def _form_slot(slot: PluginSlot, label: str, rows: Sequence[FormRow], kinds: Sequence[PluginKind]) -> FormSlot:
    return FormSlot(
        name=slot.value,
        label=label,
        is_list=slot is PluginSlot.FILTERS,
        rows=rows,
        kinds={known.kind: known.summary for known in kinds if known.slot is slot},
    )


def _row(spec: PluginSpec) -> FormRow:
    return FormRow(kind=str(spec.get("kind", "")), options=options_text(spec), is_on=True)


def _planned(planned: PlannedPlugins) -> str:
    return f"{planned.slot.value}: {specs_text(planned)} ({planned.actor}: {planned.reason})"
