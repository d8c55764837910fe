"""Changes of data algorithms during a run: requested at any time, activated with the next version."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from astraflow.contract.errors import InvalidInput, NotPermitted, UnknownPolicy
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginKind, PluginSlot, PluginSpec
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.values import Json
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.records import Records
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.storage.journal import Journal
from astraflow.runtime.config.base import suggest_name
from astraflow.runtime.config.setting_permissions import SettableBy, settable_by
from astraflow.runtime.plugins import Registry

MAX_PLUGINS = 32
"""Largest number of plugins in one slot: every commit writes the active specs."""

MAX_TEXT_LENGTH = 1000
"""Largest length of actor and reason. Characters."""

_REGISTRIES: Mapping[PluginSlot, Registry[Any]] = {
    PluginSlot.SELECTOR: selectors,
    PluginSlot.FILTERS: filters,
    PluginSlot.SAMPLER: samplers,
}

PluginOwner: TypeAlias = Flow | Stream
"""Owner of plugin slots."""


class PluginChanges:
    """Plans changes, and activates them when they are due.

    A stream's change is due when its trainer's version grows, a flow's when all its policies have reached the next
    version, so that one rule decides about everything at a version. Where no version is expected a change is activated
    at once: while its flow, or all flows that feed its stream, are paused, and until every trainer concerned has
    attached for the first time. Pausing also resolves a deadlock in which the active plugins prevent new versions,
    such as a filter that drops everything.
    """

    def __init__(
        self,
        flows: Mapping[FlowId, Flow],
        streams: Mapping[PolicyId, Stream],
        *,
        trainers: Mapping[PolicyId, Mapping[str, Json]],
        journal: Journal,
        records: Records,
        events: Events,
    ) -> None:
        self._flows = flows
        self._streams = streams
        self._trainers = trainers
        self._journal = journal
        self._records = records
        self._events = events

    def plan(self, change: PluginChange) -> str:
        """Plans a change as a whole; returns when it applies. Raises: InvalidInput, NotPermitted, UnknownPolicy."""
        owner, where = self._owner_of(change)
        wanted = change.specs_by_slot()
        _check(change, wanted, owner, where)
        for slot, specs in wanted.items():
            _check_options(slot, specs, owner.plugin_slots[slot].specs, where=f"{where}.{slot.value}")
        for slot, specs in wanted.items():
            owner.plugin_slots[slot].check(specs, _REGISTRIES[slot], where=f"{where}.{slot.value}")
        if change.file:
            subject = owner.id if isinstance(owner, Flow) else owner.policy
            self._events.record_action(
                RecordKind.PLUGIN_FILE_LOADED, subject, actor=change.actor, reason=change.reason, file=change.file
            )
        for slot, specs in wanted.items():
            if change.file and change.file not in owner.plugin_slots[slot].files:
                owner.plugin_slots[slot].files.append(change.file)
            owner.plugin_slots[slot].plan(specs, actor=change.actor, reason=change.reason, version=owner.version)
            if owner.plugin_slots[slot].planned is None:
                self._record_event(RecordKind.PLUGINS_UNCHANGED, owner, slot, specs, by=change)
        self.activate_due(owner)
        for planned in (owner.plugin_slots[slot].planned for slot in wanted):
            if planned is not None:
                self._record_event(RecordKind.PLUGINS_PLANNED, owner, planned.slot, planned.specs, by=planned)
        self._journal.touch()
        return "; ".join(f"{slot.value} of {where} {_when(owner.plugin_slots[slot])}" for slot in wanted)

    def activate_due(self, owner: PluginOwner) -> None:
        """Activates the changes that are due. Call this when a version has grown."""
        for slot_plugins in owner.plugin_slots.values():
            if slot_plugins.planned is not None and self._is_due(owner, slot_plugins.planned):
                self._activate(owner, slot_plugins, slot_plugins.planned)

    def activate_due_of_paused_flow(self, flow: Flow) -> None:
        """Activates the changes that are due for a paused flow and the streams that it feeds."""
        self.activate_due(flow)
        for policy in flow.policies:
            self.activate_due(self._streams[policy])

    def _owner_of(self, change: PluginChange) -> tuple[PluginOwner, str]:
        """Returns the owner of the slots to change, and its path in a recipe."""
        if change.flow is not None and change.policy is None:
            if change.flow not in self._flows:
                raise InvalidInput(
                    f"cannot change flow {change.flow!r}: this run has no such flow; "
                    f"{suggest_name(change.flow, list(self._flows))}",
                    code="plugins.unknown_flow",
                )
            return self._flows[change.flow], f"flows.{change.flow}"
        if change.policy is not None and change.flow is None:
            if change.policy not in self._streams:
                suggestion = suggest_name(change.policy, list(self._streams))
                raise UnknownPolicy(
                    f"cannot change policy {change.policy!r}: this run has no such policy; {suggestion}",
                    code="plugins.unknown_policy",
                )
            return self._streams[change.policy], f"policies.{change.policy}"
        raise InvalidInput(
            "cannot change plugins: they belong to a flow or to a policy; name exactly one of the two",
            code="plugins.no_owner",
        )

    def _is_due(self, owner: PluginOwner, planned: PlannedPlugins) -> bool:
        if isinstance(owner, Flow):
            flows, policies = [owner], owner.policies
        else:
            flows = [flow for flow in self._flows.values() if owner.policy in flow.policies]
            policies = (owner.policy,)
        is_idle = all(flow.is_paused for flow in flows) or any(policy not in self._trainers for policy in policies)
        return is_idle or owner.version > planned.version

    def _activate(self, owner: PluginOwner, slot_plugins: SlotPlugins[Any], planned: PlannedPlugins) -> None:
        previous_rows = selector_rows_owner(owner) if isinstance(owner, Flow) else None
        refused = slot_plugins.activate_planned()
        if isinstance(owner, Stream):
            self._records.record_released(owner.policy, owner.release_unreplayed())
        elif planned.slot is PluginSlot.SELECTOR:
            self._transfer_rows(owner, previous_rows, is_state_discarded=bool(refused))
        restarted = ", ".join(f"{label} ({cause})" for label, cause in refused.items())
        self._record_event(
            RecordKind.PLUGINS_CHANGED, owner, planned.slot, planned.specs, by=planned, restarted=restarted
        )

    def _transfer_rows(self, flow: Flow, previous_owner: str | None, *, is_state_discarded: bool) -> None:
        """Deletes the rows that no plugin continues, in the commit that records the change."""
        new_owner = selector_rows_owner(flow)
        if previous_owner is not None and (is_state_discarded or new_owner != previous_owner):
            self._journal.delete_rows(previous_owner)
        if new_owner is not None and flow.rows is not None:
            self._journal.register_rows(new_owner, flow.rows[1].changed_rows)

    def _record_event(
        self,
        kind: RecordKind,
        owner: PluginOwner,
        slot: PluginSlot,
        specs: Iterable[PluginSpec],
        *,
        by: PluginChange | PlannedPlugins,
        **values: str,
    ) -> None:
        subject = owner.id if isinstance(owner, Flow) else owner.policy
        plugins = ", ".join(json.dumps(dict(spec)) for spec in specs) or "none"
        self._events.record_action(
            kind, subject, actor=by.actor, reason=by.reason, slot=slot.value, plugins=plugins, **values
        )


def selector_rows_owner(flow: Flow) -> str | None:
    """Returns the owner name of a flow's selector rows in the journal; None without rows."""
    return None if flow.rows is None else f"flow {flow.id} {flow.rows[0]}"


def plugin_kinds() -> tuple[PluginKind, ...]:
    """Returns the plugins that a run can use, by slot. Raises: InvalidInput when a module that the environment names
    cannot be imported."""
    return tuple(
        PluginKind(slot=slot, kind=kind, summary=summary)
        for slot, registry in _REGISTRIES.items()
        for kind, summary in registry.summaries().items()
    )


def _check(
    change: PluginChange, changes: Mapping[PluginSlot, tuple[PluginSpec, ...]], owner: PluginOwner, where: str
) -> None:
    slot_names = " and ".join(slot.value for slot in owner.plugin_slots)
    if not changes:
        raise InvalidInput(
            f"cannot change {where}: the change is empty; give {slot_names}", code="plugins.empty_change"
        )
    for slot, specs in changes.items():
        if slot not in owner.plugin_slots:
            raise InvalidInput(
                f"cannot change {where}: it has no {slot.value}, only {slot_names}; flows have a selector and filters, "
                "policies a sampler",
                code="plugins.unknown_slot",
            )
        if len(specs) > MAX_PLUGINS:
            raise InvalidInput(
                f"cannot change {where}.{slot.value}: {len(specs)} plugins are too many; give at most {MAX_PLUGINS}",
                code="plugins.too_many",
            )
    for field, text in (("actor", change.actor), ("reason", change.reason)):
        if not 0 < len(text.strip()) <= MAX_TEXT_LENGTH:
            raise InvalidInput(
                f"cannot change {where}: invalid {field}; give one of 1 to {MAX_TEXT_LENGTH} characters",
                code="plugins.invalid_text",
            )


def _check_options(slot: PluginSlot, specs: Iterable[PluginSpec], current: Iterable[PluginSpec], *, where: str) -> None:
    """Checks that a change sets no option that only the recipe may set, before any plugin is built.

    current: active specs; a change may repeat their options. Raises: NotPermitted.
    """
    in_force = [(str(spec["kind"]), path, value) for spec in current for path, value in _options(spec)]
    for spec in specs:
        kind = str(spec.get("kind", ""))
        if kind not in _REGISTRIES[slot].kinds():
            continue  # building it raises an error with the known kinds
        model = _REGISTRIES[slot].options(kind)
        for path, value in _options(spec):
            if path[0] not in model.model_fields:
                continue  # building it raises an error about the unknown option
            is_open = settable_by(model, path) in (SettableBy.AGENT, SettableBy.OPERATOR)
            if not is_open and (kind, path, value) not in in_force:
                raise NotPermitted(
                    f"cannot change {where}: only the recipe sets the option {'.'.join(path)!r} of {kind!r}; change it "
                    "in the recipe and start the run again",
                    code="plugins.recipe_only_option",
                )


def _options(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the options of a spec without its kind: path of keys and list positions, and value."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            if (*path, str(key)) != ("kind",):
                yield from _options(inner, (*path, str(key)))
    else:
        yield path, value


def _when(slot_plugins: SlotPlugins[Any]) -> str:
    return "is active" if slot_plugins.planned is None else "changes with the next version"
