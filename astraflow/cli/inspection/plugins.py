"""Data algorithms of a run as a table, and parsing of a change."""

import getpass
import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from astraflow.cli.output import Table, show
from astraflow.cli.run_endpoints import RunEndpoint
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginSlot, PluginSpec
from astraflow.contract.reports.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlugins:
    """Plugins of one slot of a flow or a policy."""

    owner: str
    slot: PluginSlot
    active: tuple[PluginSpec, ...]
    planned: tuple[PlannedPlugins, ...]
    """Changes from the next version on."""


def show_plugins(endpoint: RunEndpoint, *, as_json: bool) -> None:
    """Prints the active plugins and those planned for the next version."""
    report = endpoint.call(ControlPlaneClient, ControlPlaneClient.report)
    show(plugin_slots(report), plugin_slot_table, as_json=as_json)


def change_plugins(endpoint: RunEndpoint, change: PluginChange) -> None:
    """Changes plugins of a run and prints its answer. Raises: InvalidInput, UnknownPolicy."""
    answer = endpoint.call(ControlPlaneClient, lambda client: client.change_plugins(change))
    typer.echo(answer)


def read_change(
    *, flow: str, policy: str, selector: str, filters: str, sampler: str, file: str, reason: str
) -> PluginChange | None:
    """Parses a change from JSON options; returns None without any option. Raises: InvalidInput."""
    if not any((flow, policy, selector, filters, sampler, file, reason)):
        return None
    if not reason:
        raise InvalidInput(
            "cannot change plugins: the reason is missing; give --reason, which is recorded in the run's events",
            code="plugins.reason_required",
        )
    return PluginChange(
        flow=FlowId(flow) if flow else None,
        policy=PolicyId(policy) if policy else None,
        selector=_spec(_json(selector, "--selector"), "--selector") if selector else None,
        filters=_specs(_json(filters, "--filters"), "--filters") if filters else None,
        sampler=_spec(_json(sampler, "--sampler"), "--sampler") if sampler else None,
        file=str(Path(file).resolve()) if file else "",
        actor=_actor(),
        reason=reason,
    )


def plugin_slots(report: Report) -> list[SlotPlugins]:
    """Returns each plugin slot of each flow and policy."""
    selectors = [_slot(f"flow {flow.id}", PluginSlot.SELECTOR, [flow.selector], flow.planned) for flow in report.flows]
    filters = [_slot(f"flow {flow.id}", PluginSlot.FILTERS, flow.filters, flow.planned) for flow in report.flows]
    samplers = [
        _slot(f"policy {stream.policy}", PluginSlot.SAMPLER, [stream.sampler], stream.planned)
        for stream in report.streams
    ]
    return [*(slot for slots in zip(selectors, filters, strict=True) for slot in slots), *samplers]


def plugin_slot_table(slots: Iterable[SlotPlugins]) -> Table:
    """Returns a row for each slot."""
    table = Table("owner", "slot", "active", "from the next version", wrapped=("active", "from the next version"))
    for slot in slots:
        planned = "; ".join(f"{_text(change.specs)} ({change.actor}: {change.reason})" for change in slot.planned)
        table.add(slot.owner, slot.slot.value, _text(slot.active), planned)
    return table


def _slot(owner: str, slot: PluginSlot, specs: Iterable[PluginSpec], planned: Iterable[PlannedPlugins]) -> SlotPlugins:
    changes = tuple(change for change in planned if change.slot is slot)
    return SlotPlugins(owner=owner, slot=slot, active=tuple(specs), planned=changes)


def _text(specs: Iterable[PluginSpec]) -> str:
    return ", ".join(json.dumps(dict(spec)) for spec in specs) or "none"


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        raise InvalidInput(
            f"cannot parse {option}: {text!r} is not JSON ({problem}); quote it for the shell",
            code="plugins.invalid_json",
        ) from None


def _spec(value: Any, option: str) -> PluginSpec:
    if not isinstance(value, dict):
        raise InvalidInput(
            f"""cannot parse {option}: {json.dumps(value)} is not an object; write it as '{{"kind": "..."}}'""",
            code="plugins.invalid_spec",
        )
    return value


def _specs(value: Any, option: str) -> tuple[PluginSpec, ...]:
    if not isinstance(value, list):
        raise InvalidInput(
            f"cannot parse {option}: {json.dumps(value)} is not a list; write a list of objects, '[]' for no filters",
            code="plugins.invalid_spec",
        )
    return tuple(_spec(spec, option) for spec in value)


def _actor() -> str:
    """Returns the system user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user id without a name
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
