"""What is looked at on this machine before a recipe is launched on it."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from astraflow.cli.fleet_form import FleetForm
from astraflow.cli.ports import free_ports
from astraflow.contract.errors import InvalidInput
from astraflow.recipe import Recipe
from astraflow.runtime.runs import runs

LOOPBACK = "127.0.0.1"

FREE_BYTES = 10**9
"""A run directory should have this much room."""

PORTS = 6
"""Data, weights, joining, fleet, metrics, page."""

SERVICES = 3
"""Weight store, dataflow, and the process that runs the run."""

PROCESS_BYTES = 100 * 10**6
TORCH_BYTES = 400 * 10**6
"""What a process takes at the least, without and with torch, as seen of `reverse`; larger models come on top."""

STAND_IN = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCheck:
    """One thing that was looked at before a launch."""

    what: str
    is_good: bool
    message: str


def checks(recipe: Recipe, fleet: FleetForm, *, problems: int, host: str) -> Iterator[FormCheck]:
    """One after the other.

    problems: how many there are beside the fields. host: where machines elsewhere would join.
    """
    yield FormCheck(
        what="Recipe",
        is_good=not problems,
        message=f"{problems} problems, beside their fields" if problems else "every setting is understood",
    )
    yield _disk()
    yield _memory(recipe, fleet)
    yield _ports(host if any(pool.is_elsewhere for pool in fleet.pools) else LOOPBACK)


def _disk() -> FormCheck:
    folder = next(path for path in (runs(), *runs().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    return FormCheck(
        what="Disk", is_good=free >= FREE_BYTES, message=f"{free / 1e9:,.1f} GB free for the run in {runs()}"
    )


def _memory(recipe: Recipe, fleet: FleetForm) -> FormCheck:
    """Its processes on this machine; nodes that a provider starts elsewhere are not among them."""
    nodes = recipe.nodes.count
    if fleet.pools:
        nodes = sum(pool.first_nodes for pool in fleet.pools if not pool.is_elsewhere)
    trainers = [policy.backend.get("kind") != STAND_IN for policy in recipe.policies.values()]
    nodes_with_torch = nodes if recipe.nodes.engine.get("kind") != STAND_IN else 0
    with_torch = sum(trainers) + nodes_with_torch
    without = SERVICES + bool(fleet.pools) + len(trainers) + nodes - with_torch
    needed, free = with_torch * TORCH_BYTES + without * PROCESS_BYTES, psutil.virtual_memory().available
    return FormCheck(
        what="Memory",
        is_good=free >= needed,
        message=f"{free / 1e9:,.1f} GB free; its {with_torch + without} processes here take at least "
        f"{needed / 1e9:,.1f} GB, models not counted",
    )


def _ports(host: str) -> FormCheck:
    try:
        free_ports(PORTS, host=host)
    except InvalidInput as problem:
        return FormCheck(what="Ports", is_good=False, message=str(problem))
    return FormCheck(what="Ports", is_good=True, message=f"{PORTS} are free on {host}")
